"""Catch-up: from the run's genesis, a published checkpoint or our own older state to the newest agreed round.

Everything is authenticated from the chain backwards, so sources need not be trusted (docs/protocol.md section 8):
statements on chain for the newest decided round name theta at its start and the link to the last agreed record; each
record under its link names the one before; the chain of links has to end at a state we have; and the state that
results has to hash to the theta that the chain names.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from enum import Enum
from fractions import Fraction
from hashlib import sha256
from itertools import islice, takewhile

from loguru import logger

from gauntlet.agreement import Claim, last_words
from node.amendments import adopted, follow, settle
from node.behind import common_ground, lies_behind, more_than, way_back
from node.checkpoints import FETCH_SECONDS, Start, counted_stakes, fetcher, published_starts, shown_by_all
from node.claimed import Claimed, at_commit, newest_claims, newest_decided
from node.follower import Follower
from node.held import Held
from node.payloads import MAX_THREADS, Lacking, gather_pinned
from node.records import Records
from node.sources import Sources
from node.state import Saved, Snapshot
from node.wanted import say_wanted
from protocol import keys
from protocol.errors import (
    ChainError,
    CheckpointCorrupt,
    ConfigError,
    InvalidMessage,
    OutOfSync,
    StorageError,
)
from protocol.messages import Link, first_link
from protocol.spec import RunSpec
from protocol.types import Digest, PeerId
from storage.collect import first
from storage.exchange import Data, Wanted
from training.checkpoint import MAX_MANIFEST_BYTES

ASK_SECONDS = 10.0
"""For all validators' documents together: one that stalls costs us this much."""
MEET_SHARE = 1 / 8
"""Of a round: so long buckets that stall may hold us up each time that we look for common ground."""
LIARS = Fraction(1, 3)
"""Of the stake: more is not expected to lie."""
DOWNLOADS_TRIED = 4
"""Checkpoints in one pass: each is as large as the model, and may be anybody's."""


class CaughtUp(Enum):
    """What became of a catch-up. Our own state is in place where it is not YES."""

    YES = "the state that others claim is in place, or nobody claims another one than ours"
    LACKING = "no source had all that it needs"
    NOBODY = "nobody claims a state that comes after what most of the stake said last"
    DIVIDED = "several such claims contradict each other, and none has most of the stake"


def join(follower: Follower, held: Held) -> bool:
    """Take up the state of this folder; give a fresh one theta_0, and then what catch-up reaches. False when others
    have moved on from theta_0 and we could not follow, now or before a restart."""
    newest = newest_decided(follower)
    if held.resume():
        if newest < 0 or held.saved.link != first_link(follower.run.id):
            return True
        return _is_at_start(follower, held, newest)
    _genesis(follower, held)
    held.begin()
    return newest < 0 or catch_up(follower, held) is CaughtUp.YES or _is_at_start(follower, held, newest)


def _is_at_start(follower: Follower, held: Held, newest: int) -> bool:
    """Whether theta_0, which we hold, is what most of the stake said last: then the run has not moved on from it."""
    last = newest_claims(follower, newest).last
    return 2 * sum(stake for pair, stake in last if pair == held.claim) > sum(stake for _, stake in last) or not last


def catch_up(follower: Follower, held: Held, *, widely: bool = False) -> CaughtUp:
    """Bring the node to the start of the newest decided round that any validator has stated something for, with the
    state saved.

    One pass over every state to start from, towards what at least half of the stake claims that claims anything: less
    may be anybody's invention, records and payloads included. `widely`: other claims too, where nothing says against
    them. The claim may be false all the same, so a node that follows what no more than half of the counted stake claims
    says that it stands apart, and one that can follow nobody goes on with what it has and tries again in a later round.
    """
    newest = newest_decided(follower)
    if newest < 0:
        return CaughtUp.YES
    claimed = newest_claims(follower, newest)
    target = claimed.round
    if target < held.saved.round:
        # Nobody has stated anything since: those rounds have no record, so they changed nothing.
        if held.saved.round < newest:
            given_back = _give_back(held, newest, set())
            held.save(round=newest)
            if given_back:
                held.save_own()
        return CaughtUp.YES
    settle(follower, held)
    sources, stakes = follower.sources(), counted_stakes(follower, target, at_commit(follower, target))
    ours, apart = held.claim, held.saved.apart
    behind = _come_after_last_words(follower, claimed, sources, ours, widely=widely)
    tried = _undisputed(claimed, behind, ours) if widely else [*behind]
    for claim in tried:
        few = not claimed.by_most(claim) and (apart or claim != ours)
        if _follow(follower, held, behind[claim].again(), claim, target, stakes, sources, apart=few):
            return CaughtUp.YES
    if not behind:
        outcome = CaughtUp.NOBODY
    elif tried or _majority_is_unread(claimed, behind):
        outcome = CaughtUp.LACKING
    else:
        outcome = CaughtUp.DIVIDED
    logger.warning("round {round}: {why}; trying again in a later round", round=target, why=outcome.value)
    return outcome


def _come_after_last_words(
    follower: Follower, claimed: Claimed, sources: Sources, ours: Claim, *, widely: bool
) -> dict[Claim, Records]:
    """The claims that most of the stake's last words lie behind, in the order in which they are tried, with the records
    behind them. What we hold ourselves goes first.

    A state that the run has left, theta_0 itself, is the cheapest of lies, since everybody can follow it. Whoever goes
    on without the others goes on from what these held.
    """
    found: dict[Claim, Records] = {}
    for claim in sorted(claimed.worth_asking if widely else claimed.likely, key=lambda claim: claim != ours):
        records = Records(follower.run.id, sources, claim[1], claimed.round, follower.time)
        if lies_behind(claimed.last, way_back(claim, records)):
            found[claim] = records
    return found


def _undisputed(claimed: Claimed, behind: Mapping[Claim, Records], ours: Claim) -> list[Claim]:
    """Of claims that come after the last words, what more than half of the stake claims that counts; or ours; or the
    only one, or the one that all others come after. Of two that contradict each other one may be invented, records and
    payloads included, and nothing that a node can read tells which; more stake among the few that speak does not. Of
    several thetas for one link the replay tells."""
    if most := [claim for claim in behind if claimed.by_most(claim)]:
        return most
    if _majority_is_unread(claimed, behind):
        # Perhaps for a moment only. Liars and one that was away may well be half of what was said last.
        behind = {c: r for c, r in behind.items() if lies_behind(claimed.last, way_back(c, r.again()), 1 - LIARS)}
    if ours in behind:
        return [ours]
    ways = {claim: [*islice(way_back(claim, records.again()), 1, None)] for claim, records in behind.items()}
    first = [claim for claim in behind if not any(pair in behind and pair[1] != claim[1] for pair in ways[claim])]
    return first if len({link for _, link in first}) == 1 else []


def _majority_is_unread(claimed: Claimed, behind: Collection[Claim]) -> bool:
    """Whether the claim of most of the stake that counts is not seen to come after the last words: it is a lie, or its
    records are out of our reach."""
    return any(claimed.by_most(claim) and claim not in behind for claim in claimed.stakes)


def meet(follower: Follower, held: Held) -> bool:
    """After rounds in which nothing was agreed: take up the newest state that more than half of the stake has gone
    through, by what it said last, if more than half of the counted stake is there to go on from it. Whether that is
    another one than ours.

    Where validators that hold different states all speak for their own, nobody has a majority, and nobody is
    contradicted. A majority of the stake has an honest validator in it, so what it has gone through was no invention.
    What we hold is undone for it only where more than a third of the stake is there and says that it holds something
    else: whoever is silent comes after us when it is back, and those that hold us up may be liars.
    """
    newest = newest_decided(follower)
    claimed, clock = newest_claims(follower, newest), follower.run.first.clock
    ours, target, sources = held.claim, held.saved.round, follower.sources()
    if 2 * claimed.stakes.get(ours, 0) > claimed.counted:
        return False
    until = follower.time.now() + MEET_SHARE * clock.round_blocks * clock.block_seconds
    ways: dict[Claim, tuple[Claim, ...]] = {}

    def way_of(claim: Claim) -> tuple[Claim, ...]:
        if follower.time.now() >= until:
            return ways.get(claim, (claim,))
        if claim not in ways:
            walked = way_back(claim, Records(follower.run.id, sources, claim[1], target, follower.time))
            ways[claim] = tuple(takewhile(lambda pair: pair == claim or follower.time.now() < until, walked))
        return ways[claim]

    peers = follower.doors.chain.peers(follower.clock.attest_by(newest))
    words, here = last_words(follower.run, -1, peers), last_words(follower.run, claimed.round, peers)
    ground = common_ground(words, way_of)
    if ground is None or ground == ours or ground[1] == first_link(follower.run.id):
        return False
    if ours not in way_of(ground) and not more_than(
        LIARS, sum(stake for _, stake in words), here, lambda claim: ours not in way_of(claim)
    ):
        return False
    if not more_than(Fraction(1, 2), claimed.counted, claimed.stakes.items(), lambda claim: ground in way_of(claim)):
        return False
    records = Records(follower.run.id, sources, ground[1], target, follower.time)
    stakes = counted_stakes(follower, claimed.round, at_commit(follower, claimed.round))
    return _follow(follower, held, records, ground, target, stakes, sources, apart=True)


def _follow(
    follower: Follower,
    held: Held,
    records: Records,
    claim: Claim,
    target: int,
    stakes: Mapping[PeerId, int],
    sources: Sources,
    *,
    apart: bool,
) -> bool:
    """Take up this claim for the start of round `target`, which these records lead to, from the first state that does;
    whether one did. Otherwise our own state is in place."""
    for start, steps in _starts(follower, held, records, stakes, sources):
        try:
            _replay(follower, held, start, steps, target, claim, sources, apart=apart)
            return True
        except (StorageError, OutOfSync, InvalidMessage, CheckpointCorrupt) as fault:
            held.restore()
            held.store.commit(held.saved)  # and sweeps what the refused start left on the disk
            logger.warning("catch-up from {origin} failed: {fault}", origin=start.origin, fault=str(fault))
        except ChainError:
            held.restore()
            raise
    return False


def _genesis(follower: Follower, held: Held) -> Start:
    """theta_0 from the owner's bucket or a validator's. Its digest stands in the spec, so any source will do."""
    spec = follower.run.first
    digest = Digest(bytes.fromhex(spec.genesis_checkpoint))
    sources = follower.sources()
    faults: list[str] = []
    for holder in holders_of_genesis(follower, digest, sources):
        opener = sources.bucket_of(holder)
        if opener is None:
            continue
        try:
            snapshot = Snapshot(0, first_link(follower.run.id), digest)
            held.load_consensus(snapshot, fetcher(follower, [opener]))
            return Start(0, snapshot.link, snapshot, "genesis")
        except (StorageError, CheckpointCorrupt, ConfigError) as fault:
            faults.append(str(fault))
    raise ConfigError(
        "the run's first checkpoint theta_0 is in no bucket that this node can read: the owner's bucket is down or its "
        f"read key is wrong ({'; '.join(faults) or 'nobody has published a bucket'}); ask the run's owner"
    )


def holders_of_genesis(follower: Follower, digest: Digest, sources: Sources) -> Iterator[PeerId]:
    """The owner, and the validator that is the first to give theta_0's manifest when all are asked."""
    yield follower.run.first.owner_id
    key = keys.blob(digest)
    found = first(
        [
            Wanted(holder, sources.own(holder, key), MAX_MANIFEST_BYTES, _hashes_to(digest), exact=False)
            for holder in sources.validators()
        ],
        timeout_seconds=FETCH_SECONDS,
        max_threads=MAX_THREADS,
        time=follower.time,
    )
    if found is not None:
        yield found[0]


def _hashes_to(digest: Digest) -> Callable[[Data], bool]:
    return lambda data: sha256(data).digest() == digest


def _starts(
    follower: Follower, held: Held, records: Records, stakes: Mapping[PeerId, int], sources: Sources
) -> Iterator[tuple[Start, list[Link]]]:
    """States from which the agreed records lead on, with those records, the oldest first; the best state first, each
    only when those before it have failed.

    Our own while few records follow it (their payloads are fewer bytes than a model), or what we held before it since
    our last snapshot; then, back along the links, the published ones that most of the stake names, the newest first,
    and our own older one; then the other published ones, last those for whose link more stake names another state; then
    genesis. What is on none of the links on the way is never tried: it may be of a state that only a minority held,
    ours too. Ours stands at a link and not at a round: rounds that we passed over have not moved it.
    """
    genesis = first_link(follower.run.id)
    own = {start.link: start for start in _own_starts(held.saved)}
    for link, steps in islice(records.links(), follower.run.first.checkpoint_rounds + 1):
        if link in own:
            yield own[link], steps
            own.clear()  # what is older needs more of what this lacked
    logger.info("catching up: asking {count} validators for checkpoints", count=len(sources.validators()))
    published = published_starts(follower, stakes, sources, shown_by_all(follower, sources, ASK_SECONDS))
    if not any(published):
        logger.warning("catching up: no validator shows a checkpoint that can be read")
    downloads = 0
    for offers in (*filter(None, published), []):
        sought = {offer.link for offer in offers} | own.keys()
        for link, steps in records.links():
            for offer in (offer for offer in offers if offer.link == link and downloads < DOWNLOADS_TRIED):
                downloads += 1
                yield offer.at(records.round_of(steps)), steps
            if link in own:
                yield own[link], steps
                own.clear()
                sought &= {offer.link for offer in offers}
            sought.discard(link)
            if not sought:
                break
    if held.saved.link != genesis:
        for link, steps in records.links():
            if link == genesis:
                try:
                    yield _genesis(follower, held), steps
                except ConfigError as fault:
                    logger.warning("{fault}", fault=str(fault))


def _own_starts(saved: Saved) -> Iterator[Start]:
    """What we hold, and what we held since our last snapshot."""
    yield Start(saved.round, saved.link, None, "our own state")
    kept = saved.consensus
    rounds = kept.snapshot.round, *(step.round + 1 for step in kept.log)
    for round, link in zip(rounds, kept.links, strict=True):
        if link != saved.link:
            yield Start(round, link, None, f"our own state of round {round}")


def _replay(
    follower: Follower,
    held: Held,
    start: Start,
    steps: Sequence[Link],
    newest: int,
    claim: Claim,
    sources: Sources,
    *,
    apart: bool,
) -> None:
    """Apply these records to `start`; commits only a state that hashes to the theta which is claimed for `newest`.
    apart: whether no more than half of the counted stake claims it."""
    theta, previous = claim
    heads = [(step.record.round, step.head) for step in steps]
    run = adopted(follower.run, heads, follower.doors, held.store.run.read, follower.time)
    began = follower.time.now()
    if start.fetch is not None:
        logger.info("catching up from {origin}, and {count} rounds", origin=start.origin, count=len(steps))
    if start.snapshot is not None:
        held.load_consensus(start.snapshot, start.fetch)
    elif start.link != held.saved.link:
        if start.link not in held.saved.consensus.links:
            raise OutOfSync("this disk has lost it meanwhile")
        held.step_back(start.link)
    if held.replica.digest() != (steps[0].record.theta if steps else theta):
        raise OutOfSync("its theta is another than the next agreed record names")
    links = [*(step.record.previous for step in steps[1:]), previous]
    for done, (step, link) in enumerate(zip(steps, links, strict=True) if steps else ()):
        _apply(follower, held, run.spec_at(step.record.round), step, link, sources)
        left = (follower.time.now() - began) / (done + 1) * (len(steps) - done - 1)
        logger.info(
            "catching up: applied round {round}, {done} of {total}, about {left} s left",
            round=step.record.round,
            done=done + 1,
            total=len(steps),
            left=int(left),
        )
    if held.replica.digest() != theta:
        raise OutOfSync(f"replayed state does not hash to the theta that round {newest} names on chain")
    follow(follower, held, run)
    # Of rounds before a checkpoint's nobody tells us which were void. What may have been applied is not sent twice.
    given_back = _give_back(held, newest, {*range(start.round), *(step.record.round for step in steps)})
    held.stand(newest, previous, apart=apart)
    if given_back:
        held.save_own()
    if apart:
        logger.warning(
            "the state of round {round} is what validators say that hold no more than half of the counted stake: the "
            "others are silent and may hold another; nothing is agreed, and no work counts, before they speak",
            round=newest,
        )
    held.events.emit("caught_up", newest, origin=start.origin, applied=len(steps), theta=theta.hex(), apart=apart)


def _apply(follower: Follower, held: Held, spec: RunSpec, step: Link, link: Digest, sources: Sources) -> None:
    """One round's outer step, whose record has this link. Its payloads lie on the disk until they are opened: a pass
    that breaks off before leaves the next one those that it has."""
    try:
        opened = gather_pinned(
            spec,
            follower.run.id,
            step.record.round,
            step.pairs,
            sources,
            follower.doors.verify,
            follower.transfer_seconds(len(step.pairs)),
            held.cache,
            follower.time,
        )
    except Lacking as fault:
        say_wanted(follower, fault.round, fault.peers)
        raise
    held.step(step.record.round, spec.outer, step.record.theta, link, opened)
    held.write_snapshot(step.record.round + 1, link)


def _give_back(held: Held, newest: int, decided: Collection[int]) -> bool:
    """After the rounds up to `newest`: where the one that we sealed for was void, take back what we sent; whether."""
    sealed = held.saved.sealed
    if sealed is None or not held.saved.round <= sealed.round < newest or sealed.round in decided:
        return False
    mine = held.own_update(sealed.round)
    if mine is not None:
        held.give_back(mine)
    return mine is not None

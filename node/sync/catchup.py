"""Catch-up: from the run's genesis, a published checkpoint or our own older state to where the run stands.

Where that is, the final chain says (gauntlet/agreement.py, node/chain/agreement.py); nobody is believed. Everything is
authenticated from there backwards, so sources need not be trusted (docs/protocol.md section 8): each selection under
its link names the one before; the chain of links has to end at a state that we can have; and each state on the way has
to hash to the theta that the next selection names.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from enum import Enum
from hashlib import sha256
from itertools import islice

from loguru import logger

from gauntlet.agreement import Tip
from node.chain.follower import Follower
from node.fetch.payloads import MAX_THREADS, Lacking, gather_pinned
from node.fetch.sources import Sources
from node.state.node_state import NodeState
from node.state.saved import Saved, Snapshot
from node.sync.amendments import adopted, follow
from node.sync.checkpoints import FETCH_SECONDS, Offer, Start, counted_stakes, fetcher, published_starts, shown_by_all
from node.sync.repair_requests import say_wanted
from node.sync.selection_chain import SelectionChain
from protocol import keys
from protocol.errors import (
    ChainError,
    CheckpointCorrupt,
    ConfigError,
    InvalidMessage,
    OutOfSync,
    StorageError,
)
from protocol.messages import first_link
from protocol.run import Run
from protocol.spec import RunSpec
from protocol.types import Digest, Peer, PeerId, Selection
from storage.collect import first
from storage.exchange import Data, Wanted
from training.checkpoint import MAX_MANIFEST_BYTES

ASK_SECONDS = 10.0
"""For all validators' documents together: one that stalls costs us this much."""
DOWNLOADS_TRIED = 6
"""Checkpoints in one pass: each is as large as the model, and may be anybody's."""
DOWNLOADS_OF_ONE = 2
"""Of those that one validator shows: nobody uses up the others' turns."""


class Followed(Enum):
    """What became of following the run. Unless it is YES, we hold what we held, or what the run went through before."""

    YES = "we hold the run's current state"
    ON_THE_WAY = "the rounds after our state can no longer be fetched"
    LOST = "no checkpoint that leads there can be fetched"


def join(follower: Follower, state: NodeState) -> None:
    """Take up the state of this folder; give a fresh one theta_0."""
    if not state.resume():
        _genesis(follower, state)
        state.begin()


def catch_up(follower: Follower, state: NodeState, tip: Tip) -> Followed:
    """Bring our state to where the run stands: back along its selections to a state that we hold or can have, and
    forward from there, one state after the other, as far as payloads are to be had."""
    sources = follower.sources()
    stakes = counted_stakes(follower, tip.round, at_commit(follower, tip.round))
    records = SelectionChain(
        follower.run.id, sources, tip.link, tip.round, follower.time, known=follower.agreement.selections
    )
    for begin, steps in _starts(follower, state, records, stakes, sources):
        try:
            _replay(follower, state, begin, steps, tip, sources)
            return Followed.YES
        except (StorageError, OutOfSync, InvalidMessage, CheckpointCorrupt) as fault:
            state.restore()
            state.store.commit(state.saved)  # and sweeps what the refused start left on the disk
            logger.warning("catch-up from {origin} failed: {fault}", origin=begin.origin, fault=str(fault))
        except ChainError:
            state.restore()
            raise
    outcome = Followed.ON_THE_WAY if _is_on_the_way(follower, state.saved, records) else Followed.LOST
    logger.warning("our state is not the run's: {why}; trying again in every round", why=outcome.value)
    return outcome


def _is_on_the_way(follower: Follower, saved: Saved, records: SelectionChain) -> bool:
    """Whether the run went through the link that we hold, with whatever theta others name there: ours is what came of
    it here. Never theta_0 in a run that has checkpoints by now: who has lost all would else take everybody back to the
    beginning."""
    young = follower.run.first.checkpoint_rounds
    for link, steps in records.links():
        if link == saved.link:
            return link != first_link(follower.run.id) or len(steps) <= young
    return False


def at_commit(follower: Follower, round: int) -> Sequence[Peer]:
    """Whose stake counts in `round`; as of now where its block D has not come yet."""
    return follower.doors.chain.peers(min(follower.clock.commit_by(round), follower.head()))


def _genesis(follower: Follower, state: NodeState) -> Start:
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
            state.load_consensus(snapshot, fetcher(follower, [opener]))
            return Start(0, snapshot.link, snapshot, "genesis")
        except (StorageError, CheckpointCorrupt, ConfigError) as fault:
            faults.append(str(fault))
    raise ConfigError(
        "the run's first checkpoint theta_0 is in none of the buckets that this node can read: the owner's "
        f"bucket is down or its read key is wrong ({'; '.join(faults) or 'nobody has published a bucket'}); "
        "ask the run's owner"
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
    follower: Follower, state: NodeState, records: SelectionChain, stakes: Mapping[PeerId, int], sources: Sources
) -> Iterator[tuple[Start, list[Selection]]]:
    """States from which the agreed selections lead on, with those, the oldest first; the best state first, each
    only when those before it have failed.

    Our own while few of them follow it (their payloads are fewer bytes than a model), or what we held before it since
    our last snapshot; then, back along the links, the published ones that most of the stake names, the newest first,
    and our own older one; then the other published ones, last those for whose link more stake names another state; then
    genesis. What is on none of the links on the way is never tried: it may be of a state that only a minority held,
    ours too. Ours stands at a link and not at a round: rounds that we passed over have not moved it.
    """
    genesis = first_link(follower.run.id)
    own = {start.link: start for start in _own_starts(state.saved)}
    for link, steps in islice(records.links(), follower.run.first.checkpoint_rounds + 1):
        if link in own:
            yield own[link], steps
            own.clear()  # what is older needs more of what this lacked
    logger.info("catching up: asking {count} validators for checkpoints", count=len(sources.validators()))
    published = published_starts(follower, stakes, sources, shown_by_all(follower, sources, ASK_SECONDS))
    if not any(published):
        logger.warning("catching up: no validator has a checkpoint that can be read")
    downloads = list[Offer]()
    for offers in (*filter(None, published), []):
        sought = {offer.link for offer in offers} | own.keys()
        for link, steps in records.links():
            for offer in (offer for offer in offers if offer.link == link and _has_a_turn(offer, downloads)):
                downloads.append(offer)
                yield offer.at(records.round_of(steps)), steps
            if link in own:
                yield own[link], steps
                own.clear()
                sought &= {offer.link for offer in offers}
            sought.discard(link)
            if not sought:
                break
    if state.saved.link != genesis:
        for link, steps in records.links():
            if link == genesis:
                try:
                    yield _genesis(follower, state), steps
                except ConfigError as fault:
                    logger.warning("{fault}", fault=str(fault))


def _has_a_turn(offer: Offer, tried: Sequence[Offer]) -> bool:
    """Whether to download this one as well: one of those that show it has turns left."""
    used = [holder for other in tried for holder in other.holders]
    return len(tried) < DOWNLOADS_TRIED and any(used.count(one) < DOWNLOADS_OF_ONE for one in offer.holders)


def _own_starts(saved: Saved) -> Iterator[Start]:
    """What we hold, and what we held since our last snapshot."""
    yield Start(saved.round, saved.link, None, "our own state")
    kept = saved.consensus
    rounds = kept.snapshot.round, *(step.round + 1 for step in kept.log)
    for round, link in zip(rounds, kept.links, strict=True):
        if link != saved.link:
            yield Start(round, link, None, f"our own state of round {round}")


def _replay(
    follower: Follower, state: NodeState, begin: Start, steps: Sequence[Selection], tip: Tip, sources: Sources
) -> None:
    """Apply these selections to `begin`, and stand at the tip. Where a payload is lacking, or another theta is
    named than what comes of the selections before, we stand before that: the run went through what was reproduced."""
    heads = [(step.round, step.head) for step in steps]
    run = adopted(follower.run, heads, follower.doors, state.store.run.read, follower.time)
    began = follower.time.now()
    if begin.fetch is not None:
        logger.info("catching up from {origin}, and {count} rounds", origin=begin.origin, count=len(steps))
    if begin.snapshot is not None:
        state.load_consensus(begin.snapshot, begin.fetch)
    elif begin.link != state.saved.link:
        if begin.link not in state.saved.consensus.links:
            raise OutOfSync("this disk has lost it meanwhile")
        state.step_back(begin.link)
    links = [begin.link, *(step.previous for step in steps[1:]), tip.link] if steps else [tip.link]
    done = 0
    try:
        for step, link in zip(steps, links[1:], strict=True):
            _require(state, step.theta)
            if link in follower.agreement.selections:
                follower.before_apply(step)
            _apply(follower, state, run.spec_at(step.round), step, link, sources)
            done += 1
            left = (follower.time.now() - began) / done * (len(steps) - done)
            logger.info(
                "catching up: applied round {round}, {done} of {total}, about {left} s left",
                round=step.round,
                done=done,
                total=len(steps),
                left=int(left),
            )
        _require(state, tip.theta)
    except (Lacking, OutOfSync) as fault:
        # What we began with may be anybody's until a selection has named its theta.
        named = done > 0 or isinstance(fault, Lacking)
        if named and links[done] not in (state.saved.link, first_link(run.id)):
            _stand(follower, state, run, begin, steps[:done], links[done], tip)
        raise
    _stand(follower, state, run, begin, steps, tip.link, tip)
    state.events.emit(
        "caught_up", tip.round, origin=begin.origin, applied=len(steps), theta=state.replica.digest().hex()
    )


def _require(state: NodeState, theta: Digest | None) -> None:
    """Raises OutOfSync for another theta than is named there."""
    if theta is not None and state.replica.digest() != theta:
        raise OutOfSync("its theta differs from the run's")


def _stand(
    follower: Follower, state: NodeState, run: Run, begin: Start, steps: Sequence[Selection], link: Digest, tip: Tip
) -> None:
    """Save what was reproduced."""
    follow(follower, state, run)
    # Of rounds before a checkpoint's nobody tells us which were void. What may have been applied is not sent twice.
    given_back = _give_back(state, tip.round, {*range(begin.round), *(step.round for step in steps)})
    state.stand(link, tip)
    if given_back:
        state.save_own()


def _apply(
    follower: Follower, state: NodeState, spec: RunSpec, step: Selection, link: Digest, sources: Sources
) -> None:
    """One round's outer step, whose selection has this link. Its payloads lie on the disk until they are opened: a pass
    that breaks off before leaves the next one those that it has."""
    try:
        opened = gather_pinned(
            spec,
            follower.run.id,
            step.round,
            step.contributing,
            sources,
            follower.doors.verify,
            follower.transfer_seconds(len(step.contributing)),
            state.cache,
            follower.time,
        )
    except Lacking as fault:
        say_wanted(follower, fault.round, fault.peers)
        raise
    state.step(step.round, spec.outer, step.theta, link, opened)
    state.write_snapshot(step.round + 1, link)


def _give_back(state: NodeState, round: int, decided: Collection[int]) -> bool:
    """After the rounds before this one: where the one that we sealed for was void, take back what we sent; whether."""
    sealed = state.saved.sealed
    if sealed is None or not state.saved.round <= sealed.round < round or sealed.round in decided:
        return False
    mine = state.own_update(sealed.round)
    if mine is not None:
        state.give_back(mine)
    return mine is not None

"""Catch-up: from the run's genesis, a published checkpoint or our own older state to the run's tip.

The final chain defines the tip (gauntlet/agreement.py, murmur/node/chain/agreement.py). Everything is authenticated
from there backwards, so sources need not be trusted (docs/protocol.md section 8). Each selection under its link names
the one before. The chain of links has to end at a state that we can get. Each state on the way has to hash to the theta
that the next selection names.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from enum import Enum
from hashlib import sha256
from itertools import islice

from loguru import logger

from gauntlet.agreement import Tip
from murmur.node.chain.follower import Follower
from murmur.node.fetch.payloads import Lacking
from murmur.node.fetch.selected import gather_pinned
from murmur.node.fetch.sources import Sources
from murmur.node.fetch.threads import FETCH_THREADS
from murmur.node.state.node_state import NodeState
from murmur.node.state.saved import Saved, Snapshot
from murmur.node.sync.amendments import adopted, follow
from murmur.node.sync.checkpoints import (
    FETCH_SECONDS,
    Offer,
    Start,
    counted_stakes,
    fetcher,
    published_starts,
    shown_by_all,
)
from murmur.node.sync.repair_requests import say_wanted
from murmur.node.sync.selection_chain import SelectionChain
from murmur.protocol import keys
from murmur.protocol.errors import ChainError, CheckpointCorrupt, ConfigError, InvalidMessage, OutOfSync, StorageError
from murmur.protocol.messages import first_link
from murmur.protocol.run import Run
from murmur.protocol.spec import RunSpec
from murmur.protocol.types import Digest, Peer, PeerId, Selection
from murmur.training.checkpoint import MAX_MANIFEST_BYTES
from storage.collect import first
from storage.exchange import Data, Wanted

GENESIS_PAUSE_SECONDS = 10.0
"""Between two tries to get theta_0."""
ASK_SECONDS = 10.0
"""Time-out for all validators' documents together: a stalled one costs us this much."""
DOWNLOADS_TRIED = 6
"""Checkpoints downloaded in one pass: each is as large as the model, and may be anyone's."""
DOWNLOADS_OF_ONE = 2
"""Downloads of checkpoints shown by one validator, so that it cannot use up the others' turns."""


class Followed(Enum):
    """The result of following the run. Unless it is YES, our state is unchanged or an earlier state of the run."""

    YES = "we hold the run's current state"
    ON_THE_WAY = "the rounds after our state can no longer be fetched"
    LOST = "no checkpoint that leads there can be fetched"


def join(follower: Follower, state: NodeState, *, waits: bool) -> None:
    """Resume from this folder; load theta_0 if the folder is fresh. waits: until a bucket has it. Raises StorageError
    otherwise."""
    if state.resume():
        return
    while True:
        try:
            _genesis(follower, state)
            break
        except StorageError as fault:
            if not waits:
                raise
            logger.warning("{fault}. Trying again, nothing goes on chain before", fault=str(fault))
        follower.time.sleep(GENESIS_PAUSE_SECONDS)
    state.begin()


def catch_up(follower: Follower, state: NodeState, tip: Tip) -> Followed:
    """Bring our state to the run's tip: back along its selections to a state that we have or can get, then forward one
    state after the other, as far as payloads can be fetched."""
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
            state.store.commit(state.saved)  # also removes the refused start's files from the disk
            logger.warning("catch-up from {origin} failed: {fault}", origin=begin.origin, fault=str(fault))
        except ChainError:
            state.restore()
            raise
    outcome = Followed.ON_THE_WAY if _is_on_the_way(follower, state.saved, records) else Followed.LOST
    logger.warning("our state is not the run's: {why}; trying again in every round", why=outcome.value)
    return outcome


def _is_on_the_way(follower: Follower, saved: Saved, records: SelectionChain) -> bool:
    """Whether the run went through our link, whatever theta others name there: our theta is our own result of that
    link. Never for theta_0 in a run that has checkpoints by now: a node that has lost everything would otherwise vote
    to take all nodes back to the beginning."""
    young = follower.run.first.checkpoint_rounds
    for link, steps in records.links():
        if link == saved.link:
            return link != first_link(follower.run.id) or len(steps) <= young
    return False


def at_commit(follower: Follower, round: int) -> Sequence[Peer]:
    """Return the peers whose stake counts in `round`; as of now while its commit deadline has not come."""
    return follower.ports.chain.peers(min(follower.clock.commit_deadline(round), follower.head()))


def _genesis(follower: Follower, state: NodeState) -> Start:
    """Load theta_0 from the owner's bucket or a validator's. The spec pins its digest, so any source will do. Raises
    StorageError."""
    spec = follower.run.first
    digest = spec.genesis_digest
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
    raise StorageError(
        "theta_0 of the run is in none of the buckets that this node can read "
        f"({'; '.join(faults) or 'nobody has published a bucket'}): ask the run's owner for it"
    )


def holders_of_genesis(follower: Follower, digest: Digest, sources: Sources) -> Iterator[PeerId]:
    """Yield the owner, then the validator that answers first with theta_0's manifest when all are asked."""
    yield follower.run.first.owner_id
    key = keys.blob(digest)
    found = first(
        [
            Wanted(holder, sources.own(holder, key), MAX_MANIFEST_BYTES, _hashes_to(digest), exact=False)
            for holder in sources.validators()
        ],
        timeout_seconds=FETCH_SECONDS,
        max_threads=FETCH_THREADS,
        time=follower.time,
    )
    if found is not None:
        yield found[0]


def _hashes_to(digest: Digest) -> Callable[[Data], bool]:
    return lambda data: sha256(data).digest() == digest


def _starts(
    follower: Follower, state: NodeState, records: SelectionChain, stakes: Mapping[PeerId, int], sources: Sources
) -> Iterator[tuple[Start, list[Selection]]]:
    """Yield states from which the agreed selections lead on, with those selections, the oldest first. The best start
    comes first, and the next only after it has failed.

    Order: our own state, or one that we held since our last snapshot, while few selections follow it (their payloads
    are fewer bytes than a model). Then, back along the links, the published states that most of the stake names, the
    newest first, and our own older one. Then the other published states, last those for whose link more stake names
    another state. Then genesis. A state whose link is not on the way is never tried: it may be one that only a minority
    held, and so may ours. Our state is found by its link and not by its round: rounds that we skipped have not moved
    it.
    """
    genesis = first_link(follower.run.id)
    own = {start.link: start for start in _own_starts(state.saved)}
    for link, steps in islice(records.links(), follower.run.first.checkpoint_rounds + 1):
        if link in own:
            yield own[link], steps
            own.clear()  # older states need even more of the missing payloads
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
                except StorageError as fault:
                    logger.warning("{fault}", fault=str(fault))


def _has_a_turn(offer: Offer, tried: Sequence[Offer]) -> bool:
    """Whether to download this checkpoint too: one of the validators that show it has turns left."""
    used = [holder for other in tried for holder in other.holders]
    return len(tried) < DOWNLOADS_TRIED and any(used.count(one) < DOWNLOADS_OF_ONE for one in offer.holders)


def _own_starts(saved: Saved) -> Iterator[Start]:
    """Yield our current state, and those that we held since our last snapshot."""
    yield Start(saved.round, saved.link, None, "our own state")
    kept = saved.consensus
    rounds = kept.snapshot.round, *(step.round + 1 for step in kept.log)
    for round, link in zip(rounds, kept.links, strict=True):
        if link != saved.link:
            yield Start(round, link, None, f"our own state of round {round}")


def _replay(
    follower: Follower, state: NodeState, begin: Start, steps: Sequence[Selection], tip: Tip, sources: Sources
) -> None:
    """Apply these selections to `begin`, and save the state at the tip. If a payload is missing, or the replayed theta
    is not the one named, save the state before that: the run went through the part that was reproduced."""
    heads = [(step.round, step.head) for step in steps]
    run = adopted(follower.run, heads, follower.ports, state.store.run.read, follower.time)
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
        # A start may be anyone's until a selection has named its theta.
        named = done > 0 or isinstance(fault, Lacking)
        if named and links[done] not in (state.saved.link, first_link(run.id)):
            _commit_at_tip(follower, state, run, begin, steps[:done], links[done], tip)
        raise
    _commit_at_tip(follower, state, run, begin, steps, tip.link, tip)
    state.events.emit(
        "caught_up", tip.round, origin=begin.origin, applied=len(steps), theta=state.replica.digest().hex()
    )


def _require(state: NodeState, theta: Digest | None) -> None:
    """Raise OutOfSync if theta is not the named one."""
    if theta is not None and state.replica.digest() != theta:
        raise OutOfSync("its theta differs from the run's")


def _commit_at_tip(
    follower: Follower, state: NodeState, run: Run, begin: Start, steps: Sequence[Selection], link: Digest, tip: Tip
) -> None:
    """Save the reproduced state."""
    follow(follower, state, run)
    # Which rounds before a checkpoint's were void is unknown. An update that may have been applied is not sent again.
    given_back = _restore_to_error_feedback(state, tip.round, {*range(begin.round), *(step.round for step in steps)})
    state.commit_at_tip(link, tip)
    if given_back:
        state.save_own()


def _apply(
    follower: Follower, state: NodeState, spec: RunSpec, step: Selection, link: Digest, sources: Sources
) -> None:
    """Make one round's outer step, whose selection has this link. Payloads stay on the disk until they are opened: the
    next pass reuses those of an interrupted one."""
    try:
        opened = gather_pinned(
            spec,
            follower.run.id,
            step.round,
            step.contributing,
            sources,
            follower.ports.verify,
            follower.transfer_seconds,
            state.cache,
            follower.time,
        )
    except Lacking as fault:
        say_wanted(follower, fault.round, fault.peers)
        raise
    state.step(step.round, spec.outer, step.theta, link, opened)
    state.write_snapshot(step.round + 1, link)


def _restore_to_error_feedback(state: NodeState, round: int, decided: Collection[int]) -> bool:
    """Take back our sealed update if its round is before this one and was void. Return whether it was."""
    sealed = state.saved.sealed
    if sealed is None or not state.saved.round <= sealed.round < round or sealed.round in decided:
        return False
    mine = state.own_update(sealed.round)
    if mine is not None:
        state.restore_to_error_feedback(mine)
    return mine is not None

"""Catch-up: from the run's genesis, a published checkpoint or our own older state to the newest agreed round.

Everything is authenticated from the chain backwards, so sources need not be trusted (docs/protocol.md section 8):
statements on chain for the newest decided round name theta at its start and the link to the last agreed record; each
record under its link names the one before; the chain of links has to end at a state we have; and the state that
results has to hash to the theta that the chain names.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from loguru import logger

from gauntlet.agreement import Claim, claims
from node.amendments import adopted, follow, settle
from node.checkpoints import CHECKPOINTS_TRIED, FETCH_SECONDS, Start, fetch_checkpoint, fetcher
from node.follower import Follower
from node.held import Held
from node.payloads import Sources, gather_pinned
from protocol import keys
from protocol.errors import (
    ChainError,
    CheckpointCorrupt,
    ConfigError,
    InvalidMessage,
    MurmurError,
    OutOfSync,
    StorageError,
)
from protocol.messages import LINK_MAX_BYTES, Link, first_link, parse_link
from protocol.types import Attestation, Digest, Peer, PeerId, Record


@dataclass(frozen=True, slots=True)
class Step:
    """One agreed record on the way: its round, the head of the amendments in force in it, and the pairs it pins."""

    round: int
    link: Digest
    head: Digest
    pairs: tuple[tuple[PeerId, Digest], ...]


def join(follower: Follower, held: Held) -> bool:
    """Give a fresh folder a state: theta_0, and then what catch-up reaches. False when others have moved on from
    theta_0 and we could not follow."""
    start = _genesis(follower, held)
    held.begin(start.state, start.link)
    return _newest_decided(follower) < 0 or catch_up(follower, held)


def catch_up(follower: Follower, held: Held) -> bool:
    """Bring the node to the start of the newest decided round that any validator has stated something for: whether that
    succeeded, with the state saved, or nobody claims another state than ours. Otherwise our own state is in place.

    One pass over every state to start from, towards what at least half of the stake claims that claims anything: less
    may be anybody's invention, records and payloads included. The claim may be false all the same, so the caller goes
    on with what it has and tries again in a later round.
    """
    newest = _newest_decided(follower)
    if newest < 0:
        return True
    target, followed = _newest_claims(follower, newest)
    if target < held.saved.round:
        # Nobody has stated anything since: those rounds have no record, so they changed nothing.
        if held.saved.round < newest:
            held.save(round=newest, own=_given_back(held, newest, set()))
        return True
    settle(follower, held)
    sources = follower.sources()
    for claim in followed:
        for start in _starts(follower, held, target, sources):
            try:
                _replay(follower, held, start, target, *claim, sources)
                return True
            except (StorageError, OutOfSync, InvalidMessage, CheckpointCorrupt) as fault:
                held.load_consensus(held.saved.consensus)
                held.store.commit(held.saved)  # and sweeps what the refused start left on the disk
                logger.warning("catch-up from {origin} failed: {fault}", origin=start.origin, fault=str(fault))
            except ChainError:
                held.load_consensus(held.saved.consensus)
                raise
    logger.warning("no source had all that round {round} needs: trying again in a later round", round=target)
    return False


def _newest_decided(follower: Follower) -> int:
    """The newest round whose attestations are final; -1 before the first."""
    head = follower.head()
    round = follower.clock.round_at(head)
    return round if head >= follower.clock.attest_by(round) else round - 1


def _newest_claims(follower: Follower, newest: int) -> tuple[int, tuple[Claim, ...]]:
    """The newest round up to `newest` with a statement made in time, and what is worth following of the claims for its
    start, the most staked first; -1 for none. A slot keeps its last statement, however long its author has been silent,
    so one look at the newest round's X does."""
    peers = follower.doors.chain.peers(follower.clock.attest_by(newest))
    stated = {
        peer.slot.statement.round
        for peer in peers
        if peer.slot is not None and isinstance(peer.slot.statement, Record | Attestation)
    }
    for round in sorted(stated, reverse=True):
        if round <= newest and (found := claims(follower.run, round, _at_commit(follower, round), peers)):
            total = sum(found.values())
            return round, tuple(claim for claim, stake in found.items() if 2 * stake >= total)[: 2 if total else 1]
    return -1, ()


def _at_commit(follower: Follower, round: int) -> Sequence[Peer]:
    """Whose stake counts in `round`; nobody's where the chain's node has pruned that: then stake as of now orders."""
    try:
        return follower.doors.chain.peers(follower.clock.commit_by(round))
    except ChainError:
        return ()


def _genesis(follower: Follower, held: Held) -> Start:
    """theta_0 from the owner's bucket or a validator's. Its digest stands in the spec, so any source will do."""
    spec = follower.run.first
    digest = Digest(bytes.fromhex(spec.genesis_checkpoint))
    sources = Sources(follower.doors.chain.peers(follower.head()), follower.doors.open_pointer)
    faults: list[str] = []
    for holder in (spec.owner_id, *sources.validators()):
        opener = sources.bucket_of(holder)
        if opener is None:
            continue
        try:
            held.load_consensus(digest, fetcher(follower, opener()))
            return Start(0, first_link(follower.run.id), digest, "genesis")
        except (StorageError, CheckpointCorrupt, ConfigError) as fault:
            faults.append(str(fault))
    raise ConfigError(
        "the run's first checkpoint theta_0 is in no bucket that this node can read: the owner's bucket is down or its "
        f"read key is wrong ({'; '.join(faults) or 'nobody has published a bucket'}); ask the run's owner"
    )


def _starts(follower: Follower, held: Held, newest: int, sources: Sources) -> Iterator[Start]:
    """Candidate starting points, best first: our own state while it is fresh (the payloads since are fewer bytes than a
    model), checkpoints from the newest on, our own older state, genesis. Each only when those before it have failed."""
    saved = held.saved
    own = Start(saved.round, saved.link, saved.consensus, "our own state")
    fresh = saved.round <= newest <= saved.round + follower.run.first.checkpoint_rounds
    if fresh:
        yield own
    yield from _checkpoints(follower, newest, sources)
    if not fresh and saved.round <= newest:
        yield own
    if saved.round > 0:
        try:
            yield _genesis(follower, held)
        except ConfigError as fault:
            logger.warning("{fault}", fault=str(fault))


def _checkpoints(follower: Follower, newest: int, sources: Sources) -> Iterator[Start]:
    every = follower.run.first.checkpoint_rounds
    last = newest - newest % every
    # Older ones than our own state too: ours may be wrong.
    for round in (r for r in range(last, last - CHECKPOINTS_TRIED * every, -every) if r > 0):
        for holder in sources.validators():
            opener = sources.bucket_of(holder)
            assert opener is not None
            try:
                start = fetch_checkpoint(follower, opener(), holder, round)
            except (StorageError, InvalidMessage, ConfigError) as fault:
                logger.debug("no checkpoint of round {round}: {fault}", round=round, fault=str(fault))
            else:
                # Tried and refused, it may still be had right from the next validator.
                yield start


def _replay(
    follower: Follower, held: Held, start: Start, newest: int, theta: Digest, previous: Digest, sources: Sources
) -> None:
    """Apply the records between `start` and `newest`; commits only a state that hashes to `theta`."""
    steps = _walk(follower, start, previous, sources)
    run = adopted(
        follower.run, [(step.round, step.head) for step in steps], follower.doors, held.store.run.read, follower.time
    )
    held.load_consensus(start.state, start.fetch)
    began = follower.time.now()
    for done, step in enumerate(steps):
        spec = run.spec_at(step.round)
        opened = gather_pinned(
            spec,
            follower.run.id,
            step.round,
            step.pairs,
            sources,
            follower.doors.verify,
            follower.transfer_seconds(len(step.pairs)),
            time=follower.time,
        )
        held.replica.outer_step([o.update for o in opened], alpha=spec.outer.alpha, aggregate=spec.outer.aggregate)
        left = (follower.time.now() - began) / (done + 1) * (len(steps) - done - 1)
        logger.info(
            "catching up: applied round {round}, {done} of {total}, about {left} s left",
            round=step.round,
            done=done + 1,
            total=len(steps),
            left=int(left),
        )
    if held.replica.digest() != theta:
        raise OutOfSync(f"replayed state does not hash to the theta that round {newest} names on chain")
    follow(follower, held, run)
    # Of rounds before a checkpoint's nobody tells us which were void. What may have been applied is not sent twice.
    own = _given_back(held, newest, {*range(start.round), *(step.round for step in steps)})
    held.save(round=newest, consensus=held.save_consensus(), link=previous, own=own)
    held.events.emit("caught_up", newest, origin=start.origin, applied=len(steps), theta=theta.hex())


def _given_back(held: Held, newest: int, decided: Collection[int]) -> Digest | None:
    """Our own state after the rounds up to `newest`: where the one that we sealed for was void, with what we sent."""
    sealed = held.saved.sealed
    if sealed is None or not held.saved.round <= sealed.round < newest or sealed.round in decided:
        return held.saved.own
    mine = held.own_update(sealed.round)
    assert mine is not None
    held.replica.give_back(mine)
    return held.save_own()


def _walk(follower: Follower, start: Start, previous: Digest, sources: Sources) -> list[Step]:
    """The agreed records from just after `start` to the one that `previous` names, oldest first."""
    steps: list[Step] = []
    link, below = previous, follower.clock.round_at(follower.head()) + 1
    while link != start.link:
        found = _record(follower, link, sources)
        record = found.record
        if record.round >= below:
            raise OutOfSync(f"the chain of records does not lead back to {start.origin}")
        steps.append(Step(record.round, link, found.head, found.pairs))
        link, below = record.previous, record.round
    return steps[::-1]


def _record(follower: Follower, link: Digest, sources: Sources) -> Link:
    faults: list[str] = []
    for holder in sources.validators():
        opener = sources.bucket_of(holder)
        assert opener is not None
        try:
            data = opener().get(
                keys.statement(follower.run.id, link), max_bytes=LINK_MAX_BYTES, timeout_seconds=FETCH_SECONDS
            )
            return parse_link(data, link)
        except (MurmurError, ConfigError) as fault:
            faults.append(str(fault))
    raise StorageError(f"the agreed record {link.hex()[:16]} is in no validator's bucket ({'; '.join(faults[:2])})")

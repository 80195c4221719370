"""A second implementation of what votes come to (gauntlet/agreement.py): lists and loops, from the rules as written. It
shares nothing with the product but the values, so that a fault there is seen.

The oracle of simulated networks follows it, and tests compare it with the product on random rounds and histories.
"""

from collections.abc import Collection, Sequence
from fractions import Fraction
from functools import cache
from hashlib import sha256, shake_256

from gauntlet.agreement import Agreed, Log, Post
from murmur.protocol.run import Run
from murmur.protocol.types import Commitment, Digest, Peer, PeerId, Selection, StateRef

SEAT_ROUNDS = 4
MEMORY_ROUNDS = 64

LastVotes = tuple[Peer, int]
"""A validator, and the round for which it voted last."""
Voters = Sequence[tuple[PeerId, Fraction]]
Runner = tuple[Peer, Digest]


def plain_block(run: Run, round: int, offset: int) -> int:
    return run.first.clock.start_block + round * run.first.clock.round_blocks + offset


def plain_shares(voted: Sequence[LastVotes], round: int, rounds: int, *, ever: bool) -> list[tuple[PeerId, Fraction]]:
    """Who voted in the last so many rounds with his share; all who ever did if nobody did, where `ever`."""
    lately = [peer for peer, at in voted if round - at <= rounds]
    if not lately and ever:
        lately = [peer for peer, _ in voted]
    total = 0
    for peer in lately:
        total += peer.stake
    if total == 0:
        return [(peer.id, Fraction(1, len(lately))) for peer in lately]
    return [(peer.id, Fraction(peer.stake, total)) for peer in lately]


def plain_votes(posts: Sequence[Post], peer: PeerId, until: int) -> tuple[bool, StateRef | None, list[int]]:
    """Whether a hotkey has voted by a block, the state that binds it, and the uids that it has named with that."""
    voted, state_ref, names = False, None, []
    for post in posts:
        if post.peer != peer or post.block > until:
            continue
        voted = True
        theirs = StateRef(post.vote.theta, post.vote.previous)
        if theirs == (bytes(32), bytes(32)):
            continue
        if state_ref is None:
            state_ref = theirs
        if theirs == state_ref:
            names += plain_bits(post.vote.bitmap)
    return voted, state_ref, names


@cache
def plain_bits(bitmap: int) -> list[int]:
    return [place for place, bit in enumerate(reversed(f"{bitmap:b}")) if bit == "1"]


def plain_runners(run: Run, round: int, log: Log) -> list[Runner]:
    """Who committed by the commit deadline, the best first."""
    left = []
    for peer in log.commit:
        slot = peer.slot
        if slot is None or slot.block > plain_block(run, round, run.first.clock.commit):
            continue
        if isinstance(slot.statement, Commitment) and slot.statement.round == round:
            left.append((peer, slot.statement.envelope))
    found = []
    while left:
        best = left[0]
        for other in left[1:]:
            if plain_is_before(other[0], best[0], log.commit_hash):
                best = other
        left.remove(best)
        found.append(best)
    return found


def plain_is_before(one: Peer, other: Peer, hash: Digest) -> bool:
    if one.incentive != other.incentive:
        return one.incentive > other.incentive
    lots = [int.from_bytes(shake_256(b"order" + hash + peer.id).digest(8), "little") for peer in (one, other)]
    return lots[0] < lots[1] if lots[0] != lots[1] else one.id < other.id


def plain_places(run: Run, round: int, runners: Sequence[Runner]) -> list[Runner]:
    """Those that contribute of these, who stand in their order: so many places are held back for whoever has no
    incentive as there are of him, an eighth at most; the others go to the first; what they leave, to the rest."""
    places = run.spec_at(round).gauntlet.contributors
    new = [runner for runner in runners if runner[0].incentive == 0]
    held_back = min(len(new), places // 8)
    taken: list[Runner] = []
    for runner in runners:
        if runner[0].incentive > 0 and len(taken) < places - held_back:
            taken.append(runner)
    for runner in new:
        if len(taken) < places:
            taken.append(runner)
    return taken


def plain_majority(voters: Voters, backing: Collection[PeerId]) -> bool:
    share = Fraction(0)
    for peer, theirs in voters:
        if peer in backing:
            share += theirs
    return share > Fraction(1, 2)


def plain_ref(voters: Voters, posts: Sequence[Post], until: int) -> StateRef | None:
    """What more than half of these name."""
    for candidate in {StateRef(post.vote.theta, post.vote.previous) for post in posts}:
        if candidate == (bytes(32), bytes(32)):
            continue
        if plain_majority(voters, [peer for peer, _ in voters if plain_votes(posts, peer, until)[1] == candidate]):
            return candidate
    return None


def plain_supported(
    voters: Voters, runners: Sequence[Runner], posts: Sequence[Post], state_ref: StateRef | None, until: int
) -> list[Runner]:
    """Whom more than half have named with this state by a block, in their order."""
    heard = [(peer, plain_votes(posts, peer, until)) for peer, _ in voters]
    found = []
    for runner in runners:
        names = [peer for peer, (_, theirs, uids) in heard if theirs == state_ref and runner[0].uid in uids]
        if state_ref is not None and plain_majority(voters, names):
            found.append(runner)
    return found


def plain_agreed(run: Run, round: int, log: Log, voters: Voters, final: int, height: int) -> Agreed | None:
    """`agreed`, block by block, each from the beginning."""
    runners = plain_runners(run, round, log)
    last = plain_block(run, round, run.first.clock.words)
    state_ref, supported, block = None, [], last
    for block in range(plain_block(run, round, run.first.clock.commit) + 1, min(final, last) + 1):
        state_ref = plain_ref(voters, log.posts, block)
        supported = plain_supported(voters, runners, log.posts, state_ref, block)
        if not supported:
            continue
        if all(plain_votes(log.posts, peer, block)[0] for peer, _ in voters):
            break
        if all(runner in supported for runner in plain_places(run, round, runners)):
            break
    else:
        if final < last:
            return None
    void = any(a.void_round == round and (a.void_from_block or 0) <= height for a in run.amendments)
    if state_ref is None or not supported or void:
        return Agreed(state_ref, None, block)
    contributing = sorted((peer.id, envelope) for peer, envelope in plain_places(run, round, supported))
    head = run.id
    for amendment in run.amendments:
        if amendment.from_round <= round:
            head = amendment.digest
    return Agreed(state_ref, Selection(round, *state_ref, head, tuple(contributing)), block)


def plain_start(run: Run) -> Digest:
    """The link of a run in which nothing was selected yet."""
    return Digest(sha256(b"murmuration genesis" + run.id).digest())


def plain_link(selection: Selection) -> Digest:
    data = selection.round.to_bytes(4, "little") + selection.theta + selection.previous + selection.head
    for peer, envelope in selection.contributing:
        data += peer + envelope
    return Digest(sha256(data).digest())

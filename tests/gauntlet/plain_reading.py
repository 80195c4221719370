"""The part of the plain agreement (murmur/lab/simulation/plain_agreement.py) that reads voters from one state, and tips
from logs: the oracle of simulated networks has its own memory for both."""

from collections.abc import Sequence
from fractions import Fraction

from gauntlet.agreement import Log
from murmur.lab.simulation.plain_agreement import (
    MEMORY_ROUNDS,
    SEAT_ROUNDS,
    LastVotes,
    plain_agreed,
    plain_block,
    plain_link,
    plain_ref,
    plain_shares,
    plain_start,
)
from murmur.protocol.run import Run
from murmur.protocol.types import Digest, Peer, PeerId, Vote


def plain_last_vote(run: Run, peer: Peer) -> int | None:
    """The round that the vote in a slot is for, -1 for an announcement."""
    if not peer.validates or peer.slot is None or not isinstance(peer.slot.statement, Vote):
        return None
    vote = peer.slot.statement
    if plain_block(run, vote.round, run.first.clock.commit) < peer.slot.block:
        return vote.round
    empty = vote.bitmap == 0 and bytes(vote.theta) + bytes(vote.previous) == bytes(64)
    return -1 if empty and vote.round == 0 else None


def plain_spoken(run: Run, round: int, peers: Sequence[Peer]) -> list[LastVotes]:
    """Who has voted before this round, by the slots of one state."""
    voted = []
    for peer in peers:
        at = plain_last_vote(run, peer)
        if at is not None and at < round:
            voted.append((peer, at))
    return voted


def plain_voters(run: Run, round: int, log: Log) -> list[tuple[PeerId, Fraction]]:
    """Who counts in a round."""
    return plain_shares(plain_spoken(run, round, log.commit), round, SEAT_ROUNDS, ever=True)


def plain_remembered(run: Run, round: int, log: Log) -> list[tuple[PeerId, Fraction]]:
    """Who settles where the run stands."""
    return plain_shares(plain_spoken(run, round, log.commit), round, MEMORY_ROUNDS, ever=False)


def plain_tip(run: Run, logs: Sequence[Log]) -> tuple[Digest, Digest | None]:
    """(link, theta) where the run stands after these rounds, the first first; theta None until somebody has named what
    follows from the last selection."""
    link, theta = plain_start(run), None
    for round, log in enumerate(logs):
        last = plain_block(run, round, run.first.clock.words)
        voters = plain_voters(run, round, log)
        most = plain_ref(voters, log.posts, last)
        if most is None:
            continue
        of_all = plain_ref(plain_remembered(run, round, log), log.posts, last)
        if most == of_all or (most.link == link and (theta is None or theta == most.theta)):
            found = plain_agreed(run, round, log, voters, last, last)
            selection = found.selection if found is not None else None
            if selection is None:
                theta, link = most
            else:
                theta, link = None, plain_link(selection)
    return link, theta

"""A second implementation of what votes come to, and random rounds and histories to compare it with.

The implementation uses lists and loops, from the rules as written. It shares nothing with the product but the values.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cache
from hashlib import sha256, shake_256
from random import Random

from gauntlet.agreement import Agreed, Log, Post, Tip, abstention, moved, outcome, start, vote_for
from murmur.protocol.run import Amendment, Run
from murmur.protocol.types import Commitment, Digest, Peer, PeerId, Selection, Slot, StateRef, Uid, Vote
from tests.gauntlet.agreement_scenes import (
    ANNOUNCED,
    CLOCK,
    FORK,
    LINK,
    OURS,
    POISON,
    ROUND,
    Chain,
    X,
    commit_hash,
    miner,
)
from tests.gauntlet.world import POINTER, RUN, digest, make_spec, peer_id

Voters = Sequence[tuple[PeerId, Fraction]]
Runner = tuple[Peer, Digest]


def plain_block(run: Run, round: int, offset: int) -> int:
    return run.first.clock.start_block + round * run.first.clock.round_blocks + offset


def plain_last_vote(run: Run, peer: Peer) -> int | None:
    """The round that the vote in a slot is for, -1 for an announcement."""
    if not peer.validates or peer.slot is None or not isinstance(peer.slot.statement, Vote):
        return None
    vote = peer.slot.statement
    if plain_block(run, vote.round, run.first.clock.commit) < peer.slot.block:
        return vote.round
    empty = vote.bitmap == 0 and bytes(vote.theta) + bytes(vote.previous) == bytes(64)
    return -1 if empty and vote.round == 0 else None


def plain_voters(
    run: Run, round: int, peers: Sequence[Peer], rounds: int, *, ever: bool
) -> list[tuple[PeerId, Fraction]]:
    """Who spoke in the last so many rounds with his share; all who ever did if nobody did, where `ever`."""
    voted = []
    for peer in peers:
        at = plain_last_vote(run, peer)
        if at is not None and at < round:
            voted.append((peer, at))
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
    """Whether a hotkey has spoken by a block, the state that binds it, and the uids that it has named with that."""
    voted, state_ref, names = False, None, []
    for post in posts:
        if post.peer != peer or post.block > until:
            continue
        voted = True
        theirs = post.vote.theta, post.vote.previous
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
    """Who committed by D, the best first."""
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
    taken = []
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
    for candidate in {(post.vote.theta, post.vote.previous) for post in posts}:
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


def plain_agreed(run: Run, round: int, log: Log, final: int, height: int) -> Agreed | None:
    """`agreed`, block by block, each from the beginning."""
    voters = plain_voters(run, round, log.commit, 4, ever=True)
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
    void = any(a.void_round == round and a.void_from_block <= height for a in run.amendments)
    if state_ref is None or not supported or void:
        return Agreed(state_ref, None, block)
    contributing = sorted((peer.id, envelope) for peer, envelope in plain_places(run, round, supported))
    head = run.id
    for amendment in run.amendments:
        if amendment.from_round <= round:
            head = amendment.digest
    return Agreed(state_ref, Selection(round, *state_ref, head, tuple(contributing)), block)


def plain_tip(run: Run, logs: Sequence[Log]) -> tuple[Digest, Digest | None]:
    """(link, theta) where the run stands after these rounds, the first first; theta None until somebody has named what
    follows from the last selection."""
    link, theta = Digest(sha256(b"murmuration genesis" + run.id).digest()), None
    for round, log in enumerate(logs):
        last = plain_block(run, round, run.first.clock.words)
        most = plain_ref(plain_voters(run, round, log.commit, 4, ever=True), log.posts, last)
        if most is None:
            continue
        of_all = plain_ref(plain_voters(run, round, log.commit, 64, ever=False), log.posts, last)
        if most == of_all or (most[1] == link and (theta is None or theta == most[0])):
            selection = plain_agreed(run, round, log, last, last).selection
            if selection is None:
                theta, link = most
            else:
                theta, link = None, plain_link(selection)
    return link, theta


def plain_link(selection: Selection) -> Digest:
    data = selection.round.to_bytes(4, "little") + selection.theta + selection.previous + selection.head
    for peer, envelope in selection.contributing:
        data += peer + envelope
    return Digest(sha256(data).digest())


@cache
def random_runs() -> list[Run]:
    """Few places, and amendments that change them or declare rounds void."""
    runs = []
    for places in (1, 2, 3, 5, 8, 16):
        run = Run(make_spec(contributors=places))
        void = {"void_round": ROUND, "void_from_block": X + 50}
        fewer = {"changes": {"gauntlet": {"contributors": max(1, places - 2)}}}
        for of_first, of_second in ((void, {}), (fewer, void), ({}, {})):
            first = Amendment(previous=run.id.hex(), from_round=ROUND, **of_first)
            second = Amendment(previous=first.digest.hex(), from_round=ROUND + 1, **of_second)
            runs.append(run.amended([first, second]) if of_first else run)
    return runs


PAIRS = [OURS, POISON, FORK]
STAKES = [
    lambda random, count: [1] * count,
    lambda random, count: [0] * count,
    lambda random, count: [random.randint(0, 9) for _ in range(count)],
    lambda random, count: [2 ** random.randint(0, 3) for _ in range(count)],
    lambda random, count: [random.choice([1, 10**18]) for _ in range(count)],
]


def random_seat(random: Random, round: int) -> Slot | None:
    """A validator's slot as of D: mostly of one that counts."""
    clock = CLOCK
    before = round - random.choice([1, 1, 1, 1, 2, 4, 5, 64, 65])
    if random.random() < 0.75 and before >= 0:
        block = clock.vote_deadline(before) - random.choice([0, 5, 39])
        return Slot(block, POINTER, random.choice([vote_for(before, (), random.choice(PAIRS)), abstention(before)]))
    return random.choice(
        [
            None,
            Slot(7, POINTER),
            ANNOUNCED,
            Slot(clock.commit_deadline(0), POINTER, abstention(0)),
            Slot(7, POINTER, vote_for(0, [], OURS)),
            Slot(clock.commit_deadline(round), POINTER, Commitment(round, digest("v"))),
            Slot(clock.commit_deadline(round) - 3, POINTER, vote_for(round, [], OURS)),
            Slot(clock.vote_deadline(round - 1), POINTER, vote_for(round - 1, [], OURS)) if round else ANNOUNCED,
        ]
    )


def random_case(seed: int) -> tuple[Run, int, Log]:
    """A round in which validators, some hostile, and strangers say what they like."""
    random = Random(seed)
    run, round = random.choice(random_runs()), random.choice([0, 1, ROUND, ROUND, ROUND, ROUND + 1, 70])
    count, commit_deadline, vote_deadline = (
        random.randint(1, 6),
        CLOCK.commit_deadline(round),
        CLOCK.vote_deadline(round),
    )
    stakes = random.choice(STAKES)(random, count)
    places = random.sample(range(32), 32)
    validators = [
        Peer(peer_id(100 + number), Uid(places.pop()), stake, random.random() < 0.9, slot=random_seat(random, round))
        for number, stake in enumerate(stakes)
    ]
    miners = []
    for number in range(random.randint(0, random.choice([2, 8, 24]))):
        said = Commitment(round if random.random() < 0.9 else round + 1, digest(f"e{number}"))
        slot = Slot(commit_deadline + (random.random() < 0.1), POINTER, said) if random.random() < 0.9 else None
        incentive = random.choice([0, 0, 0, 5, 5, 7, 65535])
        miners.append(
            Peer(peer_id(number), Uid(places.pop()), random.randint(0, 5), False, slot=slot, incentive=incentive)
        )
    peers = [*validators, *miners]
    random.shuffle(peers)
    good = [peer.uid for peer in peers if random.random() < 0.7]
    blocks = [*sorted(random.sample(range(commit_deadline + 1, vote_deadline + 1), 6)), vote_deadline]
    quiet = random.random() < 0.3
    posts = []
    strangers = [peer_id(999), *(peer.id for peer in miners[:1])]
    for peer in [*(peer.id for peer in validators), *strangers]:
        usual = random.choice(PAIRS[:1] * 8 + PAIRS)
        for block in random.sample(blocks, random.choice([0, 0, 1, 2] if quiet else [0, 1, 1, 1, 2, 2, 3, 4])):
            state_ref = usual if random.random() < 0.8 else random.choice([*PAIRS, None])
            names = [uid for uid in good if random.random() < 0.85]
            names += [Uid(uid) for uid in range(34) if random.random() < 0.05]
            vote = abstention(round) if state_ref is None else vote_for(round, names, state_ref)
            posts.append(Post(block, peer, vote))
    posts = {(post.block, post.peer): post for post in posts}
    return run, round, Log(peers, commit_hash(seed), tuple(posts[at] for at in sorted(posts)))


def random_history(seed: int) -> tuple[list[Log], list[Tip]]:
    """Rounds of validators that come and go for some rounds or many, follow where the run stands, or lie; the logs, and
    where the run stood after each."""
    random = Random(seed)
    count = random.randint(1, 5)
    stakes = random.choice(STAKES)(random, count)
    validators = [Peer(peer_id(100 + n), Uid(100 + n), stake, True, slot=ANNOUNCED) for n, stake in enumerate(stakes)]
    chain = Chain(RUN, [replace(miner(0), slot=None), *validators])
    back, hostile = dict.fromkeys(range(count), 0), {n for n in range(count) if random.random() < 0.3}
    tip, links, logs, tips = start(RUN), [LINK], [], []
    for round in range(random.choice([20, 20, 20, 90])):
        clock = RUN.clock
        if random.random() < 0.8:
            chain.write(peer_id(0), clock.commit_deadline(round) - 1, Commitment(round, digest(f"envelope {round}")))
        if random.random() < 0.05:
            chain.stakes[round] = dict(
                zip((peer.id for peer in validators), random.choice(STAKES)(random, count), strict=True)
            )
        for number, peer in enumerate(validators):
            if round < back[number]:
                continue
            if random.random() < 0.1:
                back[number] = round + random.choice([1, 2, 5, 6, 70])
                continue
            block = clock.commit_deadline(round) + random.randint(1, 10)
            for _ in range(random.choice([1, 1, 2, 3]) if number in hostile else 1):
                honest = tip.theta or digest(f"after {tip.link.hex()}"), tip.link
                lies = [(digest("poison"), tip.link), (digest("after"), random.choice(links)), None, honest]
                state_ref = random.choice(lies) if number in hostile else random.choice([honest] * 9 + [None])
                uids = [Uid(0)] if random.random() < 0.9 else []
                chain.write(
                    peer.id, block, abstention(round) if state_ref is None else vote_for(round, uids, state_ref)
                )
                block += random.randint(1, 9)
        logs.append(chain.log(round))
        tip = moved(tip, round, outcome(RUN, round, logs[-1], clock.vote_deadline(round)))
        tips.append(tip)
        links.append(tip.link)
    return logs, tips

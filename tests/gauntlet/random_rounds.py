"""Random rounds and histories, on which the product is compared with murmur/lab/simulation/plain_agreement.py."""

from dataclasses import replace
from functools import cache
from random import Random

from gauntlet.agreement import Log, Post, Tip, abstention, moved, outcome, start, vote_for
from murmur.protocol.run import Amendment, Run
from murmur.protocol.types import Commitment, Peer, Slot, Uid
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


STATE_REFS = [OURS, POISON, FORK]
STAKES = [
    lambda random, count: [1] * count,
    lambda random, count: [0] * count,
    lambda random, count: [random.randint(0, 9) for _ in range(count)],
    lambda random, count: [2 ** random.randint(0, 3) for _ in range(count)],
    lambda random, count: [random.choice([1, 10**18]) for _ in range(count)],
]


def random_seat(random: Random, round: int) -> Slot | None:
    """A validator's slot as of the commit deadline: mostly of one that counts."""
    clock = CLOCK
    before = round - random.choice([1, 1, 1, 1, 2, 4, 5, 64, 65])
    if random.random() < 0.75 and before >= 0:
        block = clock.vote_deadline(before) - random.choice([0, 5, 39])
        return Slot(
            block, POINTER, random.choice([vote_for(before, (), random.choice(STATE_REFS)), abstention(before)])
        )
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
        vote_by = Commitment(round if random.random() < 0.9 else round + 1, digest(f"e{number}"))
        slot = Slot(commit_deadline + (random.random() < 0.1), POINTER, vote_by) if random.random() < 0.9 else None
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
        usual = random.choice(STATE_REFS[:1] * 8 + STATE_REFS)
        for block in random.sample(blocks, random.choice([0, 0, 1, 2] if quiet else [0, 1, 1, 1, 2, 2, 3, 4])):
            state_ref = usual if random.random() < 0.8 else random.choice([*STATE_REFS, None])
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

"""What votes come to, and where the run stands, against a second implementation on random histories."""

from collections import Counter
from fractions import Fraction
from random import Random

from gauntlet.agreement import Agreed, Log, Tip, agreed, electorate, moved, order_of, outcome, remembered, vote_weights
from murmur.lab.simulation.plain_agreement import plain_agreed, plain_places, plain_runners
from murmur.protocol.run import Run
from tests.gauntlet.agreement_scenes import ROUND, log_of, miner
from tests.gauntlet.plain_reading import plain_remembered, plain_tip, plain_voters
from tests.gauntlet.random_rounds import random_case, random_history, random_runs
from tests.gauntlet.world import RUN, digest


def kind_of(found: Agreed | None, log: Log, run: Run, round: int) -> str:
    if found is None:
        return "open"
    if found.state_ref is None:
        return "no state"
    if found.selection is None:
        return "nobody"
    seated = set(electorate(run, round, log.commit))
    silent = seated - {post.peer for post in log.posts if post.block <= found.block}
    early = found.block < run.clock.vote_deadline(round)
    kind = ("early, by all" if not silent else "early, by the order") if early else "at X"
    return f"{kind}, cut" if len(found.selection.contributing) == run.spec_at(round).gauntlet.contributors else kind


def test_a_second_implementation_agrees_on_thousands_of_random_rounds(share):
    kinds = Counter()
    for seed in range(share(3000)):
        run, round, log = random_case(seed)
        random, last = Random(-seed), run.clock.vote_deadline(round)
        final = random.choice([last, last, random.randint(last - 41, last), last + 1])
        height = final + random.choice([0, 60])
        found = agreed(run, round, log, final, height)
        assert found == plain_agreed(run, round, log, plain_voters(run, round, log), final, height), seed
        kinds[kind_of(found, log, run, round)] += 1
    # So the histories are worth something.
    assert len(kinds) == 9, kinds
    assert min(kinds.values()) >= share(20), kinds


def test_a_second_implementation_knows_the_same_electorate_in_thousands_of_random_states(share):
    for seed in range(share(1500)):
        run, round, log = random_case(seed)
        voters = dict(plain_voters(run, round, log))
        found = vote_weights(run, round, log.commit)
        assert {peer: Fraction(stake, sum(found.values())) for peer, stake in found.items()} == voters, seed
        lately = {peer for peer, _ in plain_remembered(run, round, log)}
        assert remembered(run, round, log.commit).keys() == lately, seed


def test_a_second_implementation_gives_the_places_to_the_same_of_thousands_of_random_crowds(share):
    between = 0
    for seed in range(share(3000)):
        random = Random(seed)
        run = random.choice(random_runs())
        incentives = [random.choice([0, 0, 3, 3, 7, 65535]) for _ in range(random.randint(0, 24))]
        log = log_of(miners=[miner(uid, incentive) for uid, incentive in enumerate(incentives)])
        runners = [one for one in plain_runners(run, ROUND, log) if random.random() < 0.8]
        found = order_of(run, ROUND, log).first({peer.uid for peer, _ in runners})
        expected = plain_places(run, ROUND, runners)
        assert sorted(found) == sorted(peer.uid for peer, _ in expected), seed
        between += [runners.index(one) for one in expected] != list(range(len(expected)))
    assert between > share(100), "newcomers that go before the paid"


def test_a_second_implementation_knows_where_the_run_stands_in_hundreds_of_random_histories(share):
    strong = Counter()
    for seed in range(share(200)):
        logs, tips = random_history(seed)
        for round in (len(logs) // 2, len(logs)):
            assert (round, *plain_tip(RUN, logs[:round])) == (
                tips[round - 1].round,
                tips[round - 1].link,
                tips[round - 1].theta,
            ), seed
        for round, log in enumerate(logs):
            found = outcome(RUN, round, log, RUN.clock.vote_deadline(round))
            strong[found.agreed.state_ref is not None, found.strong] += 1
    assert set(strong) == {(True, True), (True, False), (False, False)}
    assert min(strong.values()) > share(100), strong


def test_where_the_run_stands_follows_from_the_newest_strong_round_alone(share):
    """So that it can be read back from the end, and a joiner needs no more."""
    for seed in range(200, 200 + share(60)):
        logs, tips = random_history(seed)
        outcomes = [outcome(RUN, round, log, RUN.clock.vote_deadline(round)) for round, log in enumerate(logs)]
        strong = max((round for round, found in enumerate(outcomes) if found.strong), default=None)
        if strong is None:
            continue
        tip = Tip(strong, digest("wherever"), digest("whatever"))
        for round in range(strong, len(outcomes)):
            tip = moved(tip, round, outcomes[round])
        assert tip == tips[-1], seed

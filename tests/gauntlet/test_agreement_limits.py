"""What no minority, stranger or late vote can do, in random rounds."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from random import Random

from gauntlet.agreement import (
    Log,
    Post,
    abstention,
    agreed,
    electorate,
    named,
    order_of,
    outcome,
    refs_named,
    remembered,
    vote_for,
    vote_weights,
)
from murmur.lab.simulation.plain_agreement import plain_places, plain_ref, plain_runners, plain_supported
from murmur.protocol.types import PeerId, Uid
from tests.gauntlet.agreement_scenes import OURS
from tests.gauntlet.plain_reading import plain_voters
from tests.gauntlet.random_rounds import STATE_REFS, random_case
from tests.gauntlet.world import peer_id


def with_posts(log: Log, posts: Iterable[Post]) -> Log:
    """The log with these as well, but for a second one of a hotkey in the same block."""
    all_of_them = {(post.block, post.peer): post for post in posts} | {
        (post.block, post.peer): post for post in log.posts
    }
    return replace(log, posts=tuple(all_of_them[at] for at in sorted(all_of_them)))


def anything(random: Random, round: int, peers: Collection[PeerId], blocks: Sequence[int]) -> list[Post]:
    """Whatever these may say in these blocks."""
    found = []
    for peer in sorted(peers):
        for block in random.sample(blocks, min(len(blocks), random.randint(0, 4))):
            state_ref = random.choice([*STATE_REFS, None])
            names = [Uid(uid) for uid in range(34) if random.random() < random.choice([0.1, 0.9])]
            found.append(
                Post(block, peer, abstention(round) if state_ref is None else vote_for(round, names, state_ref))
            )
    return found


def test_what_is_decided_in_a_final_block_nothing_that_is_said_later_changes(share):
    decided = 0
    for seed in range(share(2500)):
        run, round, log = random_case(seed)
        random, last = Random(seed), run.clock.vote_deadline(round)
        final = random.randint(last - 39, last)
        known = replace(log, posts=tuple(post for post in log.posts if post.block <= final))
        found = agreed(run, round, known, final, final)
        if found is None:
            continue
        decided += 1
        voters = {peer.id for peer in log.commit if peer.validates}
        later = with_posts(known, anything(random, round, voters, range(final + 1, last + 1)))
        for until in (final, min(last, final + 7), last, last + 9):
            assert agreed(run, round, later, until, final) == found, seed
    assert decided > share(400)


def test_what_is_decided_by_the_order_while_some_are_silent_is_what_all_votes_by_x_come_to(share):
    """Not only by rule, then: nobody who waits for X would find anything else."""
    early = 0
    for seed in range(share(4000)):
        run, round, log = random_case(seed)
        random, last = Random(seed), run.clock.vote_deadline(round)
        found = agreed(run, round, log, last, last)
        silent = electorate(run, round, log.commit).keys() - {p.peer for p in log.posts if p.block <= found.block}
        if found.selection is None or found.block == last or not silent:
            continue
        early += 1
        voters = {peer.id for peer in log.commit if peer.validates}
        posts = with_posts(log, anything(random, round, voters, range(found.block + 1, last + 1))).posts
        voters = plain_voters(run, round, log)
        assert plain_ref(voters, posts, last) == found.state_ref, seed
        supported = plain_supported(voters, plain_runners(run, round, log), posts, found.state_ref, last)
        expected = sorted((peer.id, envelope) for peer, envelope in plain_places(run, round, supported))
        assert found.selection.contributing == tuple(expected), seed
    assert early > share(100)


def test_whatever_a_hotkey_without_a_seat_says_changes_nothing(share):
    for seed in range(share(2000)):
        run, round, log = random_case(seed)
        last = run.clock.vote_deadline(round)
        counted = {*electorate(run, round, log.commit), *remembered(run, round, log.commit)}
        strangers = {peer.id for peer in log.commit} - counted | {peer_id(999), peer_id(998)}
        more = with_posts(log, anything(Random(seed), round, strangers, range(last - 39, last + 1)))
        fewer = replace(log, posts=tuple(post for post in log.posts if post.peer in counted))
        for final in (last - 20, last):
            assert agreed(run, round, more, final, final) == agreed(run, round, fewer, final, final), seed
        assert outcome(run, round, more, last) == outcome(run, round, fewer, last), seed


def test_at_most_half_of_the_stake_alone_selects_nobody_and_names_no_pair(share):
    for seed in range(share(2000)):
        run, round, log = random_case(seed)
        random, last, weights = Random(seed), run.clock.vote_deadline(round), vote_weights(run, round, log.commit)
        alone = set[PeerId]()
        for peer in random.sample(sorted(weights), len(weights)):
            if 2 * sum(weights[one] for one in (*alone, peer)) <= sum(weights.values()):
                alone.add(peer)
        theirs = [post for post in log.posts if post.peer in alone]
        theirs += anything(random, round, alone, range(last - 39, last + 1))
        found = agreed(run, round, with_posts(replace(log, posts=()), theirs), last, last)
        assert (found.state_ref, found.selection) == (None, None), seed


def test_whom_most_name_is_selected_whatever_the_others_say_unless_the_places_go_to_better_ones(share):
    """So nobody's silence, lie or book costs a peer its place that most have read, and no round is void for it."""
    seen = 0
    for seed in range(share(2500)):
        run, round, log = random_case(seed)
        random, last, weights = Random(seed), run.clock.vote_deadline(round), vote_weights(run, round, log.commit)
        committed = order_of(run, round, log).committed
        honest = set[PeerId]()
        for peer in random.sample(sorted(weights), len(weights)):
            if 2 * sum(weights[one] for one in honest) <= sum(weights.values()):
                honest.add(peer)
        good = {uid for uid in committed if random.random() < 0.6}
        if not honest or not good or run.voided(round, last):
            continue
        seen += 1
        block = random.randint(last - 39, last)
        theirs = [Post(block, peer, vote_for(round, good, OURS)) for peer in honest]
        others = anything(random, round, weights.keys() - honest, range(last - 39, last + 1))
        found = agreed(run, round, with_posts(replace(log, posts=()), [*theirs, *others]), last, last)
        assert found.state_ref == OURS, seed
        chosen = {uid for uid, (peer, _) in committed.items() if peer in dict(found.selection.contributing)}
        places = run.spec_at(round).gauntlet.contributors
        assert good <= chosen or len(chosen) == places, seed
    assert seen > share(800)


def test_nothing_that_is_written_over_a_vote_takes_it_back(share):
    """Another state, fewer names, an abstention, at any time: what it had said counts the same, at every block."""
    retracted = 0
    for seed in range(share(2000)):
        run, round, log = random_case(seed)
        random, last = Random(seed), run.clock.vote_deadline(round)
        over = []
        for peer in {post.peer for post in log.posts}:
            bound = next((p for p in log.posts if p.peer == peer and p.vote.state_ref is not None), None)
            for block in range(bound.block + 1, last + 1) if bound is not None else ():
                if random.random() < 0.1:
                    other = random.choice(
                        [state_ref for state_ref in [*STATE_REFS, None] if state_ref != bound.vote.state_ref]
                    )
                    names = [Uid(uid) for uid in range(34) if random.random() < 0.5]
                    same = [uid for uid in named(bound.vote) if random.random() < 0.5]
                    vote = abstention(round) if other is None else vote_for(round, names, other)
                    over.append(Post(block, peer, random.choice([vote, vote_for(round, same, bound.vote.state_ref)])))
        retracted += len(over)
        without = with_posts(replace(log, posts=()), log.posts)
        for final in (last - 30, last - 10, last - 1, last):
            with_them = agreed(run, round, with_posts(log, over), final, final)
            assert with_them == agreed(run, round, without, final, final), seed
    assert retracted > share(2000)


def test_all_nodes_of_one_state_decide_alike_however_they_list_it(share):
    for seed in range(share(500)):
        run, round, log = random_case(seed)
        last = run.clock.vote_deadline(round)
        turned = replace(log, commit=Random(seed).sample(log.commit, len(log.commit)))
        assert agreed(run, round, turned, last, last) == agreed(run, round, log, last, last)
        assert outcome(run, round, turned, last) == outcome(run, round, log, last)
        assert refs_named(run, round, turned) == refs_named(run, round, log)


def test_what_a_round_means_for_the_run_is_what_was_decided_in_it(share):
    """The state as of the vote deadline is that of the early decision: whoever was bound to it stays."""
    for seed in range(share(1000)):
        run, round, log = random_case(seed)
        last = run.clock.vote_deadline(round)
        assert outcome(run, round, log, last).agreed == agreed(run, round, log, last, last), seed

"""Reading a round's votes, and where the run stands, from states of the chain alone: the same as of who saw it all."""

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from gauntlet.agreement import (
    MEMORY_ROUNDS,
    Log,
    Post,
    Tip,
    abstention,
    electorate,
    moved,
    outcome,
    posts_in,
    remembered,
    start,
    vote_for,
)
from murmur.node.chain.agreement import Agreement
from murmur.protocol.errors import STATE_PRUNED, ChainError
from murmur.protocol.messages import encode_slot, first_link, link_of
from murmur.protocol.run import Amendment, Run
from murmur.protocol.types import Commitment, Digest, Peer, PeerId, Pointer, StateRef, Uid, Vote
from tests.fakes.chain import FakeChain, FakeWorld
from tests.gauntlet.world import digest
from tests.specs import toy_spec

RUN = Run(toy_spec())
CLOCK = RUN.clock
STATE_REF = StateRef(digest("theta"), first_link(RUN.id))
POINTER = Pointer("https://store.example", "bucket", "key", "secret")


class CountedChain(FakeChain):
    """Counts the states that are read."""

    def __init__(self, world: FakeWorld) -> None:
        super().__init__(world, hotkey("reader"))
        self.read: list[int] = []

    def peers(self, block: int) -> tuple[Peer, ...]:
        self.read.append(block)
        return super().peers(block)


def hotkey(name: str) -> PeerId:
    return PeerId(digest(name))


def make_world(*validators: str, **options: int) -> FakeWorld:
    """A chain with one miner and these validators, which have announced themselves."""
    world = FakeWorld(**{"max_space_bytes": 10**9, **options})
    world.register(hotkey("miner"))
    for name in validators:
        world.register(hotkey(name), stake=1, validates=True)
        post(world, name, abstention(0))
    world.step()
    return world


def post(world: FakeWorld, name: str, statement: Vote | Commitment | None) -> None:
    """In the block that is made next."""
    world.publish(hotkey(name), encode_slot(POINTER, statement))


def go_to(world: FakeWorld, block: int) -> None:
    """So that this block is final, and the one after it is being built."""
    world.step(block - world.final)


def say(
    world: FakeWorld, name: str, block: int, *uids: int, round: int = 0, state_ref: StateRef | None = STATE_REF
) -> None:
    """`name` names these from `block` on."""
    go_to(world, block - 1)
    post(world, name, abstention(round) if state_ref is None else vote_for(round, list(map(Uid, uids)), state_ref))


def recorded(world: FakeWorld, round: int, until: int) -> tuple[Post, ...]:
    """The votes of those that count, by one who looked at every block, and believes only what stands in the block that
    wrote it."""
    chain, first = FakeChain(world, hotkey("recorder")), CLOCK.commit_deadline(round)
    commit = chain.peers(first)
    counted = {*electorate(RUN, round, commit), *remembered(RUN, round, commit)}
    blocks = range(first + 1, until + 1)
    posts = {post for block in blocks for post in posts_in(RUN, round, chain.peers(block)) if post.block == block}
    return tuple(sorted((p for p in posts if p.peer in counted), key=lambda post: (post.block, post.peer)))


# --- a round's words -----------------------------------------------------------------------------------------

D, X = CLOCK.commit_deadline(0), CLOCK.vote_deadline(0)


def test_a_vote_that_was_written_over_is_read_from_the_state_before() -> None:
    world = make_world("one", "two")
    say(world, "one", D + 2, 0)
    say(world, "two", D + 3, 0)
    say(world, "one", D + 7, 1)
    say(world, "one", D + 9, 0, state_ref=None)
    go_to(world, X)
    log = Agreement(CountedChain(world)).log(RUN, 0, X)
    assert [(one.block, one.peer == hotkey("one"), one.vote.bitmap) for one in log.posts] == [
        (D + 2, True, 1),
        (D + 3, False, 1),
        (D + 7, True, 2),
        (D + 9, True, 0),
    ]
    assert log.posts == recorded(world, 0, X)
    assert (log.commit, log.commit_hash) == (world.state(D).peers, world.header(D).hash)


def test_two_states_are_read_for_every_block_in_which_one_that_counts_wrote_and_two_more_and_none_twice() -> None:
    world = make_world("one", "two")
    world.register(hotkey("stranger"), stake=10**9, validates=True)
    for block in (D + 2, D + 5, D + 9):
        say(world, "one", block, 0)
        post(world, "two", vote_for(0, [Uid(0)], STATE_REF))
        post(world, "stranger", vote_for(0, [Uid(0)], STATE_REF))
    say(world, "stranger", D + 12, 0)
    go_to(world, X)
    chain = CountedChain(world)
    agreement = Agreement(chain)
    agreement.log(RUN, 0, X)
    assert chain.read == [D, X, D + 9, D + 8, D + 5, D + 4, D + 2, D + 1]
    for block in (X, D + 7, X + 9):
        assert len(agreement.log(RUN, 0, block).posts) == 6
    assert len(chain.read) == 8


def test_what_was_read_of_a_round_before_is_not_read_again() -> None:
    world = make_world("one")
    say(world, "one", D + 2, 0)
    go_to(world, D + 4)
    chain = CountedChain(world)
    agreement = Agreement(chain)
    agreement.log(RUN, 0, D + 4)
    say(world, "one", D + 9, 1)
    go_to(world, X)
    chain.read.clear()
    assert agreement.log(RUN, 0, X).posts == recorded(world, 0, X)
    assert chain.read == [X, D + 9, D + 8]


def test_walking_back_over_overwritten_slots_gives_the_log_of_who_recorded_every_block(
    share: Callable[[int], int],
) -> None:
    """Whoever reads at the end, and whoever reads at any blocks on the way, whatever is written, and whoever leaves the
    subnet or comes back meanwhile."""
    posts = over = gone = 0
    for seed in range(share(150)):
        random = Random(seed)
        names = [f"validator {number}" for number in range(random.randint(1, 5))]
        world = make_world(*names)
        round = random.choice([0, 1, 5])
        first, last = CLOCK.commit_deadline(round), CLOCK.vote_deadline(round)
        if round:
            go_to(world, CLOCK.commit_deadline(round - 1) + 2)
            for name in names:
                if random.random() < 0.8:
                    post(world, name, random.choice([abstention(round - 1), vote_for(round - 1, [], STATE_REF)]))
        go_to(world, first)
        on_the_way = Agreement(FakeChain(world, hotkey("reader")))
        while world.final < last + random.choice([0, 3]):
            for name in names:
                if random.random() < 0.15:
                    state_ref = random.choice([STATE_REF, STATE_REF, StateRef(digest("another"), STATE_REF.link)])
                    votes = [vote_for(round, [Uid(random.randint(0, 9))], state_ref), abstention(round)]
                    odd = [Commitment(round, digest("x")), vote_for(round + 1, [], STATE_REF), None]
                    try:
                        post(world, name, random.choice([*votes * 3, *odd]))
                    except ChainError:
                        continue  # not registered any more
            if random.random() < 0.03:
                other = random.choice(names)
                if (uid := next((p.uid for p in world.pending_peers if p.id == hotkey(other)), None)) is not None:
                    world.register(hotkey(f"{other} is replaced in {world.head}"), uid=uid)
                else:
                    world.register(hotkey(other), stake=1, validates=True)
                gone += 1
            world.step()
            if random.random() < 0.2:
                final = world.final
                log = on_the_way.log(RUN, round, final)
                assert log.posts == recorded(world, round, min(final, last)), (seed, final)
        expected = recorded(world, round, last)
        go_to(world, last + 3)
        for reader in (on_the_way, Agreement(FakeChain(world, hotkey("late reader")))):
            assert reader.log(RUN, round, last).posts == expected, seed
        posts += len(expected)
        over += len(expected) - len({post.peer for post in expected})
    assert min(posts - over, over, gone) > share(40)


def test_a_vote_of_who_lost_its_place_on_the_subnet_in_the_round_stays() -> None:
    """A validator posts its vote, and hands its uid to another hotkey before the vote deadline. Who reads at the vote
    deadline has to read what those read who were quicker: else they would go on from two selections."""
    world = make_world("one", "two", "three")
    say(world, "two", D + 2, 0)
    say(world, "one", D + 4, 0)
    go_to(world, D + 6)
    quick = Agreement(FakeChain(world, hotkey("quick")))
    found = quick.agreed(RUN, 0, D + 6)
    world.register(hotkey("other"), uid=1)
    go_to(world, X)
    late = Agreement(FakeChain(world, hotkey("late")))
    assert late.log(RUN, 0, X).posts == quick.log(RUN, 0, X).posts == recorded(world, 0, X)
    assert [one.peer for one in late.log(RUN, 0, X).posts] == [hotkey("two"), hotkey("one")]
    assert found == quick.agreed(RUN, 0, D + 6)


def test_a_state_that_is_pruned_is_asked_of_an_archive_and_without_one_it_is_said() -> None:
    world = make_world("one", keep_blocks=10, archive_blocks=10**6)
    say(world, "one", D + 2, 0)
    say(world, "one", D + 5, 1)
    go_to(world, X)
    agreement = Agreement(FakeChain(world, hotkey("reader")))
    with pytest.raises(ChainError) as fault:
        agreement.log(RUN, 0, X)
    assert fault.value.code == STATE_PRUNED
    world.archive_answers = True
    assert [one.block for one in agreement.log(RUN, 0, X).posts] == [D + 2, D + 5]


# --- what is agreed ------------------------------------------------------------------------------------------


def test_a_round_is_open_until_enough_have_spoken_and_its_selection_is_kept_from_then_on() -> None:
    world = make_world("one", "two", "three")
    go_to(world, D - 1)
    post(world, "miner", Commitment(0, digest("envelope")))
    agreement = Agreement(FakeChain(world, hotkey("reader")))
    assert agreement.agreed(RUN, 0, D - 1) is None
    say(world, "one", D + 2, 0)
    go_to(world, D + 2)
    assert agreement.agreed(RUN, 0, D + 2) is None
    assert agreement.selections == {}
    say(world, "two", D + 3, 0)
    go_to(world, D + 3)
    found = agreement.agreed(RUN, 0, D + 3)
    assert found is not None
    assert found.selection is not None
    assert (found.block, found.selection.contributing) == (D + 3, ((hotkey("miner"), digest("envelope")),))
    assert agreement.selections == {link_of(found.selection): found.selection}
    go_to(world, X)
    assert agreement.outcome(RUN, 0).agreed == found


# --- where the run stands ------------------------------------------------------------------------------------


def test_before_anybody_has_spoken_a_run_stands_at_its_beginning() -> None:
    world = make_world("one")
    agreement = Agreement(FakeChain(world, hotkey("reader")))
    assert agreement.tip(RUN) == start(RUN)
    go_to(world, CLOCK.vote_deadline(2))
    assert agreement.tip(RUN) == Tip(3, first_link(RUN.id))


def play(world: FakeWorld, random: Random, names: list[str], rounds: int) -> list[Tip]:
    """Rounds of validators that mostly go on from where the run stands; where that is by one who saw every block."""
    tip, tips, away = start(RUN), [], dict.fromkeys(names, 0)
    links = [tip.link]
    for round in range(rounds):
        go_to(world, CLOCK.commit_deadline(round) - 1)
        if random.random() < 0.8:
            post(world, "miner", Commitment(round, digest(f"envelope {round}")))
        go_to(world, CLOCK.commit_deadline(round) + 1)
        for name in names:
            if random.random() < 0.15:
                away[name] = round + random.choice([1, 2, 6])
        for _ in range(3):
            for name in names:
                if away[name] <= round and random.random() < 0.6:
                    state_ref = StateRef(tip.theta or digest(f"after {tip.link.hex()}"), tip.link)
                    lie = random.choice([(digest("lie"), tip.link), (digest("lie"), random.choice(links)), None])
                    state_ref = state_ref if random.random() < 0.8 else lie
                    post(world, name, abstention(round) if state_ref is None else vote_for(round, [Uid(0)], state_ref))
            world.step(2)
        go_to(world, CLOCK.vote_deadline(round))
        chain = FakeChain(world, hotkey("recorder"))
        at_commit, last = chain.peers(CLOCK.commit_deadline(round)), CLOCK.vote_deadline(round)
        log = Log(at_commit, chain.header(CLOCK.commit_deadline(round)).hash, recorded(world, round, last))
        tip = moved(tip, round, outcome(RUN, round, log, last))
        tips.append(tip)
        links.append(tip.link)
    return tips


def test_where_the_run_stands_is_the_same_read_back_from_its_end_as_followed_from_its_beginning(
    share: Callable[[int], int],
) -> None:
    """By a joiner, and by one that knew where it stood at some round before."""
    stands = set()
    for seed in range(share(40)):
        random = Random(seed)
        names = [f"validator {number}" for number in range(random.randint(1, 4))]
        world = make_world(*names)
        tips = play(world, random, names, 14)
        joiner = Agreement(FakeChain(world, hotkey("joiner")))
        assert joiner.tip(RUN) == tips[-1], seed
        known = random.randrange(len(tips))
        assert Agreement(FakeChain(world, hotkey("known"))).tip(RUN, tips[known]) == tips[-1], seed
        assert joiner.tip(RUN, tips[-1]) == tips[-1]
        stands.add(tips[-1].link)
    assert len(stands) == share(40)


def goes_on(world: FakeWorld, rounds: int, *names: str) -> Tip:
    """Rounds in which these all say the same; where the run stands then, by who followed it."""
    tip = start(RUN)
    for round in range(rounds):
        go_to(world, CLOCK.commit_deadline(round) - 1)
        post(world, "miner", Commitment(round, digest(f"envelope {round}")))
        go_to(world, CLOCK.commit_deadline(round) + 1)
        for name in names:
            post(world, name, vote_for(round, [Uid(0)], (digest(f"theta {round}"), tip.link)))
        go_to(world, CLOCK.vote_deadline(round))
        tip = Agreement(FakeChain(world, hotkey("follower"))).tip(RUN, tip)
        assert (tip.round, tip.theta) == (round + 1, None)
    return tip


def test_a_joiner_reads_the_newest_round_and_no_more_where_that_settles_it() -> None:
    world = make_world("one", "two")
    tip = goes_on(world, 6, "one", "two")
    chain = CountedChain(world)
    agreement = Agreement(chain)
    assert agreement.tip(RUN) == tip
    assert min(chain.read) == CLOCK.commit_deadline(5)
    assert list(agreement.selections) == [tip.link]


def test_a_run_in_which_nobody_has_spoken_for_long_stands_where_it_stood() -> None:
    """However long, and whether or not those that voted are validators yet."""
    world = make_world("one")
    tip = goes_on(world, MEMORY_ROUNDS + 3, "one")
    go_to(world, CLOCK.vote_deadline(tip.round + MEMORY_ROUNDS + 5))
    for _ in range(2):
        joiner = Agreement(FakeChain(world, hotkey("joiner")))
        assert joiner.tip(RUN) == replace(tip, round=tip.round + MEMORY_ROUNDS + 6)
        world.set_stake(hotkey("one"), 0, validates=False)
        world.step()


def test_what_was_known_does_not_count_where_the_owner_has_voided_a_round_before_it() -> None:
    world = make_world("one")
    tips = play(world, Random(1), ["one"], 4)
    world.step()
    reader = FakeChain(world, hotkey("reader"))
    known = Agreement(reader).tip(RUN)
    assert known == tips[-1]
    strong = next(round for round in range(3, -1, -1) if Agreement(reader).outcome(RUN, round).agreed.selection)
    void = Amendment(
        previous=RUN.id.hex(),
        from_round=3,
        void_round=strong,
        void_from_block=CLOCK.vote_deadline(3),
    )
    run = RUN.amended([void])
    found = Agreement(reader).tip(run, known)
    assert found == Agreement(reader).tip(run)
    assert found.link != known.link
    assert isinstance(found.theta, bytes)


def test_a_tip_of_the_future_is_read_anew() -> None:
    """After a home was copied to another chain, or a clock that ran on."""
    world = make_world("one")
    tips = play(world, Random(2), ["one"], 3)
    ahead = Tip(9, Digest(bytes(32)), Digest(bytes(32)))
    assert Agreement(FakeChain(world, hotkey("reader"))).tip(RUN, ahead) == tips[-1]

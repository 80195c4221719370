"""The oracle follows the run as `gauntlet.agreement` does, through rounds in which hardly anybody speaks."""

from collections import Counter
from collections.abc import Callable, Mapping
from random import Random

from gauntlet.agreement import Log, Outcome, abstention, moved, outcome, posts_in, start, vote_for
from murmur.lab.simulation.oracle import Oracle
from murmur.lab.simulation.world import World
from murmur.protocol.messages import encode_slot, link_of
from murmur.protocol.types import Commitment, PeerId, StateRef, Uid
from tests.gauntlet.world import POINTER, RUN, digest, peer_id

CLOCK = RUN.first.clock
STAKES = {peer_id(1): 33, peer_id(2): 34, peer_id(3): 33}
LIAR, *HONEST = STAKES
MINERS = [peer_id(number) for number in range(4, 8)]
Said = Mapping[PeerId, StateRef | None]
"""Pairs of a round's votes, None for an abstention."""


class Played:
    """A chain on which rounds are voted on, an oracle that watches it, and the tip by `gauntlet.agreement`."""

    def __init__(self) -> None:
        self.world, self.oracle = World(), Oracle(RUN)
        self.tip, self.theta, self.round = start(RUN), digest("theta 0"), 0
        for peer, stake in STAKES.items():
            self.world.register(peer, stake=stake, validates=True)
        for peer in MINERS:
            self.world.register(peer)
        self.world.step()
        for peer in STAKES:
            self.world.publish(peer, encode_slot(POINTER, abstention(0)))

    @property
    def state_ref(self) -> StateRef:
        return self.theta, self.tip.link

    def play(self, said: Said, names: Mapping[PeerId, tuple[Uid, ...]] | None = None) -> tuple[Outcome, bool]:
        """Return a round's outcome, and whether the oracle and the rule both let nodes apply it."""
        base = CLOCK.start_block + self.round * CLOCK.round_blocks
        self._until(base + CLOCK.commit - 1)
        for peer in MINERS:
            promise = Commitment(self.round, digest(f"{peer.hex()} {self.round}"))
            self.world.publish(peer, encode_slot(POINTER, promise))
        self._until(base + CLOCK.commit)
        for peer, state_ref in said.items():
            uids = (names or {}).get(peer, (Uid(3), Uid(4)))
            vote = abstention(self.round) if state_ref is None else vote_for(self.round, uids, state_ref)
            self.world.publish(peer, encode_slot(POINTER, vote))
            self.world.step()
        self._until(base + CLOCK.words)
        opened = base + CLOCK.commit
        states = [self.world.state(block).peers for block in range(opened + 1, base + CLOCK.words + 1)]
        posts = [
            post
            for block, peers in enumerate(states, opened + 1)
            for post in posts_in(RUN, self.round, peers)
            if post.block == block
        ]
        log = Log(self.world.state(opened).peers, self.world.header(opened).hash, tuple(posts))
        found = outcome(RUN, self.round, log, base + CLOCK.words)
        selection = found.agreed.selection
        self.tip = moved(self.tip, self.round, found)
        applied = None
        if selection is not None and self.tip.link == link_of(selection):
            applied = frozenset(peer for peer, _ in selection.contributing)
            self.theta = digest(f"theta {self.round}")
        assert self.oracle.selected(self.world, self.round) == applied
        self.round += 1
        return found, applied is not None

    def _until(self, block: int) -> None:
        self.world.step(block - self.world.head)
        self.oracle.look(self.world)


def test_a_lone_validator_that_names_an_old_link_moves_nothing() -> None:
    network = Played()
    for _ in range(3):
        old = network.state_ref
        assert network.play(dict.fromkeys(STAKES, network.state_ref))[1]
    for _ in range(5):
        network.play({LIAR: None})
    found, applied = network.play({LIAR: (network.theta, old[1])})
    assert found.agreed.selection is not None
    assert (found.strong, applied) == (False, False)
    found, applied = network.play({LIAR: network.state_ref})
    assert (found.strong, applied) == (False, True)  # from where the run stands a minority may go on


def test_the_oracle_follows_random_histories_as_the_agreement_does(share: Callable[[int], int]) -> None:
    kinds: Counter[tuple[bool, bool, bool]] = Counter()
    for seed in range(share(12)):
        random, network = Random(seed), Played()
        refs: list[StateRef] = [network.state_ref]
        voters: tuple[PeerId, ...] = tuple(STAKES)
        left = 3
        while network.round < 90:
            left -= 1
            if left < 0:
                voters = tuple(random.sample(list(STAKES), random.choice([1, 1, 2, 3])))
                left = random.randint(1, 9)
            common = random.choice([network.state_ref, network.state_ref, network.state_ref, random.choice(refs)])
            said: dict[PeerId, StateRef | None] = {
                peer: random.choice([common, common, common, random.choice(refs), None]) for peer in voters
            }
            names = {peer: tuple(Uid(uid) for uid in range(3, 7) if random.random() < 0.8) for peer in voters}
            refs = [*refs, network.state_ref, (digest(f"{seed} {network.round}"), network.tip.link)][-6:]
            found, applied = network.play(said, names)
            kinds[found.agreed.selection is not None, found.strong, applied] += 1
    for kind in [(True, True, True), (True, False, True), (True, False, False), (False, False, False)]:
        assert kinds[kind] > share(10), kinds

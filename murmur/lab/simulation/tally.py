"""Who contributed, worked and was paid in a simulated network."""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from murmur.lab.simulation.network import Network, SimulatedNode
from murmur.lab.simulation.result import Result
from murmur.protocol.types import hotkey

MOST_COMMITS = 3
"""Commitments of one node to one round: the first, and some after forks and restarts. Each costs the chain's quota."""


@dataclass
class Tally:
    """`shares`: of the honest miners that contributed, by round. `paid`: of the withholding miners in rows of weights.
    `worked`: (miner, round) of all inner rounds that were trained, whether the work was in time or not. `posted`:
    commitments by node and round."""

    shares: list[float] = field(default_factory=list)
    paid: list[float] = field(default_factory=list)
    worked: set[tuple[str, int]] = field(default_factory=set)
    posted: Counter[tuple[str, int]] = field(default_factory=Counter)

    def wastes(self, name: str, round: int) -> bool:
        """Record a node's commitment to a round; return whether this is the first of too many."""
        self.posted[name, round] += 1
        return self.posted[name, round] == MOST_COMMITS + 1

    def contributed(self, network: Network, contributing: Collection[str]) -> None:
        """Record a decided round: the hotkeys that contributed; none in a void one."""
        miners = [m for m in network.members.values() if not (m.validates or m.hostile or m.gone)]
        self.shares.append(sum(hotkey(m.peer) in contributing for m in miners) / max(1, len(miners)))

    def pays(self, network: Network, member: SimulatedNode, weights: Mapping[str, float]) -> None:
        """Record a validator's row of weights, by uid."""
        if member.hostile:
            return
        withholding = {hotkey(m.peer) for m in network.members.values() if m.hostile == "withholds"}
        uids = {str(peer.uid) for peer in network.world.pending_peers if hotkey(peer.id) in withholding}
        self.paid.append(sum(w for uid, w in weights.items() if uid in uids) / sum(weights.values()))

    def close(self, network: Network, result: Result) -> None:
        """Put the figures into the result."""
        theirs = sum(network.members[name].hostile == "withholds" for name, _ in self.worked)
        result.honest_contributed = _mean(self.shares)
        result.withholders_pay = _mean(self.paid)
        result.withholders_work = round(theirs / max(1, len(self.worked)), 4)


def _mean(values: list[float]) -> float:
    return round(sum(values) / max(1, len(values)), 4)

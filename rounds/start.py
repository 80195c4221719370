"""From a configuration to a miner or validator that plays its rounds until it is stopped."""

from functools import partial

from node.build import build, on_ranks
from node.config import NodeConfig, home
from rounds.miner import Miner
from rounds.validator import Validator
from training.parallel import Ranks

Role = type[Miner] | type[Validator]


def miner(config: NodeConfig) -> None:
    """Connect, catch up and mine, on all ranks."""
    on_ranks(config, partial(play, config, "miner", Miner))


def validator(config: NodeConfig) -> None:
    """Connect, catch up and judge, on all ranks."""
    on_ranks(config, partial(play, config, "validator", Validator))


def play(config: NodeConfig, name: str, role: Role, ranks: Ranks) -> None:
    """Build the node and play its rounds. Called on the first rank, with the others waiting for its calls."""
    built = build(config, name, home(config), ranks)
    role(built.node, built.shards).run()

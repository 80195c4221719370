"""From a configuration to a miner or validator that plays its rounds until it is stopped."""

from functools import partial

from node.build import build, on_ranks
from node.config import NodeConfig
from rounds.miner import Miner
from rounds.validator import Validator
from training.memory import Role
from training.parallel import Ranks

Player = type[Miner] | type[Validator]


def miner(config: NodeConfig) -> None:
    """Connect, catch up and mine, on all ranks."""
    on_ranks(config.codec, config.device, partial(play, config, "miner", Miner))


def validator(config: NodeConfig) -> None:
    """Connect, catch up and judge, on all ranks."""
    on_ranks(config.codec, config.device, partial(play, config, "validator", Validator))


def play(config: NodeConfig, role: Role, player: Player, ranks: Ranks) -> None:
    """Build the node and play its rounds. Called on the first rank, with the others waiting for its calls."""
    built = build(config, role, ranks)
    if issubclass(player, Miner):
        player(built.node, built.shards, speculates=config.miner.speculate).run()
    else:
        player(built.node, built.shards).run()

"""Start a miner from its configuration; it plays its rounds until it is stopped."""

from functools import partial

from murmur.node.config.settings import NodeConfig
from murmur.node.program.assemble import build
from murmur.node.program.shared import lifetime, on_ranks
from murmur.protocol.types import hotkey
from murmur.rounds.miner import Miner
from murmur.training.parallel import Ranks


def start(config: NodeConfig, miner: type[Miner] = Miner) -> None:
    """Connect, catch up and mine, on all ranks."""
    on_ranks(config.codec, config.device, partial(play, config, miner))


def play(config: NodeConfig, miner: type[Miner], ranks: Ranks) -> None:
    """Build the node and play its rounds. Called on the first rank; the others wait for its calls."""
    built = build(config, "miner", ranks)
    with lifetime(built.node.state, hotkey(built.node.me)):
        miner(built.node, built.shards, speculates=config.miner.speculate).run()

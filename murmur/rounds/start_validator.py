"""Start a validator from its configuration; it plays its rounds until it is stopped."""

from functools import partial

from murmur.node.config.settings import NodeConfig
from murmur.node.program.assemble import build
from murmur.node.program.shared import lifetime, on_ranks
from murmur.protocol.types import hotkey
from murmur.rounds.validator import Validator
from murmur.training.parallel import Ranks


def start(config: NodeConfig, validator: type[Validator] = Validator) -> None:
    """Connect, catch up and judge, on all ranks."""
    on_ranks(config.codec, config.device, partial(play, config, validator))


def play(config: NodeConfig, validator: type[Validator], ranks: Ranks) -> None:
    """Build the node and play its rounds. Called on the first rank; the others wait for its calls."""
    built = build(config, "validator", ranks)
    with lifetime(built.node.state, hotkey(built.node.me)):
        validator(built.node, built.shards).run()

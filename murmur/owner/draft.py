"""A run's spec before it is published: the owner's choices, completed from the subnet and the data. theta_0 and the
first block are its last two fields: one takes an inner round to make, the other is chosen when the run is sealed."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import ceil
from statistics import median
from typing import Any

from murmur.configs import presets
from murmur.data.shards import Shards
from murmur.protocol.errors import ConfigError
from murmur.protocol.ports import Chain
from murmur.protocol.spec import RunSpec, build
from murmur.protocol.types import Digest, PeerId, Subnet, hotkey

LOOK_BACK_BLOCKS = 9
"""Number of newest blocks whose intervals give the median block time: the newest, since a local chain has made its
first ones at once."""
NOBODYS_THETA = "0" * 64
"""Placeholder for theta_0's digest while there is none."""


@dataclass(frozen=True, slots=True)
class Place:
    """The subnet of a planned run, as the chain has it. `local`: strangers' buckets may be on this machine."""

    genesis: bytes
    netuid: int
    owner: PeerId
    subnet: Subnet
    block_seconds: float
    local: bool


def look(chain: Chain, netuid: int, owner: PeerId, *, local: bool) -> Place:
    """Return the current place. Raises ChainError."""
    head = chain.finalized()
    times = [chain.header(block).time for block in range(max(1, head.block - LOOK_BACK_BLOCKS), head.block)]
    taken = [later - earlier for earlier, later in pairwise([*times, head.time])]
    if not taken or not (seconds := median(taken)) > 0:
        raise ConfigError(
            f"the chain has {head.block} final blocks, too few to tell how long one takes: start again in a minute"
        )
    # Two digits are enough for plans, and make 12 s always 12.0.
    seconds = float(f"{seconds:.2g}")
    return Place(chain.genesis(), netuid, owner, chain.subnet(head.block), seconds, local)


def draft(table: Mapping[str, Any], name: str, place: Place, data: Shards, *, own_vocabulary: bool) -> dict[str, Any]:
    """Return the spec's table: `table` (of a preset or a file), overridden by the place's and the data's values.

    own_vocabulary: use the table's vocabulary, which may be larger than the data's tokenizer needs; else the
    tokenizer's. Windows that the table leaves open are those of the small presets. `weight_rounds` is at least the
    subnet's minimum.
    """
    given = {key: value for key, value in table.items() if key != "amendments"}
    clock = {**(given.get("clock") or presets.WINDOWS)}
    clock |= {"tempo": place.subnet.tempo, "weights_rate_limit": place.subnet.weights_rate_limit}
    clock = {"start_block": 1, "block_seconds": place.block_seconds} | clock
    gauntlet = dict(given.get("gauntlet") or {})
    fewest = weight_rounds(clock.get("round_blocks"), place.subnet)
    gauntlet["weight_rounds"] = max(fewest, int(gauntlet.get("weight_rounds", 1)))
    model = dict(given.get("model") or {})
    if not own_vocabulary:
        model["vocabulary"] = data.index.vocabulary
    found = {"index": data.digest.hex(), "num_tokens": data.train.num_tokens}
    return given | {
        "name": name,
        "chain": place.genesis.hex(),
        "netuid": place.netuid,
        "owner": hotkey(place.owner),
        "local": place.local,
        "genesis_checkpoint": NOBODYS_THETA,
        "model": model,
        "data": dict(given.get("data") or {}) | found,
        "clock": clock,
        "gauntlet": gauntlet,
    }


def weight_rounds(round_blocks: Any, subnet: Subnet) -> int:
    """Return the fewest rounds between two sets of weights that the subnet's rate limit allows. 1 for an invalid
    length: the spec's own validation reports it."""
    if type(round_blocks) is not int or round_blocks < 1:
        return 1
    return max(1, ceil(subnet.weights_rate_limit / round_blocks))


def sealed(table: Mapping[str, Any], theta: Digest, start_block: int) -> RunSpec:
    """Return the spec. Raises ConfigError with one line for each fault."""
    return build(
        {**table, "genesis_checkpoint": theta.hex(), "clock": {**table["clock"], "start_block": start_block}},
        "the run's spec",
    )

"""The preset tiny over the local network's text, and names of peers and draws, for benches that train."""

import json
from collections.abc import Iterable

from murmur.configs import presets
from murmur.data.shards import Shards
from murmur.protocol.assignment import Draw
from murmur.protocol.spec import RunSpec
from murmur.protocol.types import Digest

Changes = dict[str, dict[str, object]]
"""Fields of the preset by table."""


def spec_with(changes: Changes, shards: Shards) -> RunSpec:
    table = presets.table("tiny")
    for name, fields in changes.items():
        table.setdefault(name, {}).update(fields)
    table["data"] |= {"index": shards.digest.hex(), "num_tokens": shards.train.num_tokens}
    clock = {"start_block": 9, "round_blocks": 400, "commit": 200, "reveal": 250, "words": 390}
    owner = "5GrwvaEF5zXb26Fz9rcQpDWS57CtERHpNehXCPcNoHGKutQY"
    head = {"name": "bench", "chain": "0" * 64, "netuid": 1, "owner": owner, "genesis_checkpoint": "0" * 64}
    return RunSpec.model_validate({**table, **head, "clock": clock})


def word(*parts: object) -> Digest:
    """Return a name's digest: a key, a page, a seed."""
    return Digest(Draw("bench", json.dumps(parts).encode()).words(32).to_bytes(32, "little"))


def changes_of(texts: Iterable[str]) -> Changes:
    """Parse lines of TABLE.FIELD=JSON."""
    changes: Changes = {}
    for text in texts:
        where, value = text.split("=", 1)
        table, field = where.split(".")
        changes.setdefault(table, {})[field] = json.loads(value)
    return changes

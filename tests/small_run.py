"""A run whose rounds cost milliseconds: its spec, its data set, its owner."""

from pathlib import Path
from random import Random
from typing import Any

from murmur.data import build
from murmur.data.shards import Shards
from murmur.protocol.spec import RunSpec
from murmur.protocol.types import Digest, hotkey
from tests.fakes.chain import FakeSigner, FakeWorld

BLOCK_SECONDS = 0.12
"""Modelled; time-outs follow from it."""
START_BLOCK = 12
OWNER = FakeSigner("owner")
MODEL = {"vocabulary": 264, "layers": 1, "width": 16, "heads": 2, "kv_heads": 1, "ffn": 16, "context": 16}


def text(file: Path) -> str:
    """Write 70 kB of made-up sentences and return the file's name, a source of data sets. They never change: with the
    text every draw of a test's run would."""
    random = Random(0)
    words = ["".join(random.choices("aeioubdklmnrst", k=random.randint(2, 9))) for _ in range(300)]
    often = [1 / rank for rank in range(1, len(words) + 1)]
    lines: list[str] = []
    while sum(map(len, lines)) < 70_000:
        lines.append(" ".join(random.choices(words, often, k=random.randint(5, 15))).capitalize() + ".\n")
    file.write_text("".join(lines))
    return str(file)


def data_set(folder: Path) -> Digest:
    """Shards of made-up text; returns the index's digest."""
    source = text(folder.with_name(f"{folder.name}.txt"))
    return build.build(source, folder, shard_tokens=20_000, held_out_fraction=0.2, limit_bytes=40_000)


def small_spec(
    data: Shards, genesis: Digest, world: FakeWorld, weights_rate_limit: int = 1, **gauntlet: Any
) -> RunSpec:
    """A run whose rounds cost milliseconds. Peers are judged leniently: who is honest is the arena's subject."""
    rules = {
        "contributors": 3,
        "reserve": 1,
        "evaluations": 4,
        "sample_sequences": 32,
        "references": 1,
        "copy_overlap": 1.0,
        "proof_floor": 0.0,
        "proof_allowance": 1000.0,
        "score_floor": 0.0,
    }
    lag = world.finality_lag
    words = 28 + 6 * lag
    table = {
        "name": "small",
        "chain": world.genesis().hex(),
        "netuid": 1,
        "owner": hotkey(OWNER.peer),
        "genesis_checkpoint": genesis.hex(),
        "checkpoint_rounds": 2,
        "local": True,
        "model": MODEL,
        "compression": {"k": 1024},
        "inner": {
            "steps": 2,
            "sequences": 16,
            "peak_lr": 5e-3,
            "final_lr": 1e-3,
            "warmup_steps": 0,
            "decay_steps": 100,
        },
        "data": {
            "index": data.digest.hex(),
            "num_tokens": data.train.num_tokens,
            "page_sequences": 16,
            "held_out_sequences": 2,
        },
        "clock": {
            "start_block": START_BLOCK,
            "round_blocks": words + 2,
            "commit": 10,
            "reveal": 14,
            "words": words,
            "finality_blocks": lag,
            "tempo": 100,
            "weights_rate_limit": weights_rate_limit,
            "block_seconds": BLOCK_SECONDS,
        },
        "gauntlet": {**rules, **gauntlet},
    }
    return RunSpec.model_validate(table)

"""A run whose rounds cost milliseconds: its spec, its data set, its owner."""

import json
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

from murmur.data import build
from murmur.data.index import INDEX, ShardEntry, list_leaves, npy_header
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
    """Write 70 kB of made-up sentences, some of them a document, and return the file's name, a source of data sets.
    They never change: with the text every draw of a test's run would."""
    random = Random(0)
    words = ["".join(random.choices("aeioubdklmnrst", k=random.randint(2, 9))) for _ in range(300)]
    often = [1 / rank for rank in range(1, len(words) + 1)]
    lines: list[str] = []
    while sum(map(len, lines)) < 70_000:
        lines.append(" ".join(random.choices(words, often, k=random.randint(5, 15))).capitalize() + ".\n")
    documents = ["".join(lines[at : at + 20]) for at in range(0, len(lines), 20)]
    file.write_text("".join(json.dumps({"text": document}) + "\n" for document in documents))
    return str(file)


def recut(folder: Path, shard_tokens: int) -> None:
    """Cut both splits of a data set into shards of exactly so many tokens, but for the last."""
    data = Shards.open(folder)
    tokens = {
        "train": data.train.tokens(0, data.train.num_tokens),
        "held-out": data.held_out.tokens(0, data.held_out.num_tokens),
    }
    for path in (*folder.glob("*.npy"), *folder.glob("*.leaves")):
        path.unlink()
    entries: dict[str, list[ShardEntry]] = {split: [] for split in tokens}
    for split, found in tokens.items():
        for number, at in enumerate(range(0, len(found), shard_tokens)):
            part = found[at : at + shard_tokens].astype(f"<u{data.index.token_bytes}")
            file = npy_header(data.index.token_bytes, len(part)) + part.tobytes()
            leaves = list_leaves(file)
            entry = ShardEntry(
                file=f"{split}-{number:05d}.npy",
                sha256=sha256(file).hexdigest(),
                leaves=sha256(leaves).hexdigest(),
                num_tokens=len(part),
            )
            (folder / entry.file).write_bytes(file)
            (folder / entry.leaves_file).write_bytes(leaves)
            entries[split].append(entry)
    index = data.index.model_copy(update={"train": tuple(entries["train"]), "held_out": tuple(entries["held-out"])})
    (folder / INDEX).write_bytes(index.to_bytes())


def data_set(folder: Path) -> Digest:
    """Shards of made-up text; returns the index's digest."""
    source = text(folder.with_name(f"{folder.name}.jsonl"))
    return build.build(source, folder, held_out=0.2, limit_bytes=40_000)


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
            **({"optimizer": "muon", "state": "fresh"} if gauntlet.get("trace_values") else {}),
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

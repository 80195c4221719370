"""The spec of a local network's run: drafted while nobody knows how long a round takes here, sealed once that is
measured."""

import json
import tomllib
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from chain.adapter import SubtensorChain
from localnet import calibration
from localnet.plan import BLOCK_SECONDS, NETUID, Plan
from localnet.store import StoreReady
from node.published import require_read_only
from protocol import keys
from protocol.messages import encode_slot
from protocol.spec import RunSpec
from protocol.types import Digest
from storage.s3 import open_bucket
from training import checkpoint
from training.genesis import genesis_state
from training.replica import Replica, genesis_theta
from training.shards import Shards

CONFIGS = Path(__file__).resolve().parents[1] / "configs"
LEAD_SECONDS = 4.0
"""From the sealed spec to round 0: what nodes that are loaded already need to find the run."""


def draft(preset: str, genesis: str, owner: str, data: Path) -> dict[str, Any]:
    """Everything of the spec but the clock, which is a placeholder, and theta_0."""
    table = tomllib.loads((CONFIGS / f"{preset}.toml").read_text())
    shards = Shards.open(data)
    table["data"] |= {"index": shards.digest.hex(), "num_tokens": shards.train.num_tokens}
    return table | {
        "name": "localnet",
        "chain": genesis.removeprefix("0x"),
        "netuid": NETUID,
        "owner": owner,
        "local": True,
        "genesis_checkpoint": "0" * 64,
        "checkpoint_rounds": 4,
        "clock": {
            "start_block": 100,
            "round_blocks": 400,
            "commit": 200,
            "reveal": 250,
            "leader_slots": 1,
            "leader_slot": 50,
            "attest": 350,
            "block_seconds": BLOCK_SECONDS,
        },
    }


def seal(
    plan: Plan,
    draft: Mapping[str, Any],
    phases: Mapping[str, Sequence[float]],
    chain: SubtensorChain,
    store: StoreReady,
    text: Path,
) -> RunSpec:
    """Make theta_0, fix the clock, and publish both: the moment at which the run exists."""
    user = store.users["owner"]
    bucket = open_bucket(store.endpoint, user.bucket, user.write_access_key, user.write_secret_key, local=True)
    require_read_only(bucket, store.pointer("owner"), local=True)
    provisional = RunSpec.model_validate(dict(draft))
    replica = Replica(provisional, genesis_theta(provisional.model, plan.seed))
    state = genesis_state(replica, Shards.open(text))
    genesis = checkpoint.save(plan.folder / "genesis", state)
    for digest, path in checkpoint.blobs(plan.folder / "genesis", genesis):
        bucket.put(keys.blob(digest), path, timeout_seconds=60.0)
    final = chain.finalized().block
    start_block, subnet = final + int(LEAD_SECONDS / BLOCK_SECONDS), chain.subnet(final)
    clock = calibration.windows(phases, BLOCK_SECONDS, plan.validators, subnet) | {"start_block": start_block}
    gauntlet = draft["gauntlet"] | {"weight_rounds": calibration.weight_rounds(int(clock["round_blocks"]), subnet)}
    sealed = {"genesis_checkpoint": genesis.hex(), "clock": clock, "gauntlet": gauntlet}
    spec = RunSpec.model_validate({**draft, **sealed})
    data = spec.to_bytes()
    digest = Digest(sha256(data).digest())
    bucket.put(keys.blob(digest), data, timeout_seconds=60.0)
    chain.publish(encode_slot(store.pointer("owner"), None, digest))
    (plan.folder / "spec.json").write_bytes(data)
    (plan.folder / "calibration.json").write_text(json.dumps({"seconds": phases, "clock": clock}, indent=2) + "\n")
    return spec


def to_toml(table: Mapping[str, Any]) -> str:
    """A table of plain values and one level of tables as TOML; JSON's literals for them are TOML's."""
    plain = [f"{name} = {json.dumps(value)}" for name, value in table.items() if not isinstance(value, Mapping)]
    for name, value in table.items():
        if isinstance(value, Mapping):
            plain += [f"[{name}]", *(f"{key} = {json.dumps(entry)}" for key, entry in value.items())]
    return "\n".join(plain) + "\n"

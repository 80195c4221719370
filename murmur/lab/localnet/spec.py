"""The spec of a local network's run: drafted before the length of a round is known here, sealed once that is measured.
It is drafted and published as any owner's (murmur/owner/)."""

import json
from collections.abc import Mapping, Sequence
from math import ceil, inf
from pathlib import Path
from typing import Any

from murmur.chain.keys import verify
from murmur.data.shards import Shards
from murmur.lab.localnet import calibration
from murmur.lab.localnet.plan import CALL_SECONDS, NETUID, Plan
from murmur.lab.localnet.store import StoreReady
from murmur.node.config.adapters import ChainAccess, open_ports, own_chain, own_wallet, signer_of
from murmur.node.config.ports import Ports
from murmur.node.config.settings import BucketConfig, OwnerConfig, WalletConfig
from murmur.node.doctor.bucket_trial import require_read_only
from murmur.owner.draft import Place, draft, sealed, weight_rounds
from murmur.owner.publish import announce, theta_blobs, upload
from murmur.owner.theta import make_theta
from murmur.protocol.spec import RunSpec, build
from murmur.protocol.types import Subnet

LEAD_SECONDS = 4.0
"""Seconds from the sealed spec to round 0, in which running nodes find the run; the transfer of theta_0 over their
links is added."""
COLD_LEAD_SECONDS = 40.0
"""The same for nodes that start only then."""
WHILE_UNKNOWN = {
    "round_blocks": 400,
    "commit": 200,
    "reveal": 250,
    "words": 350,
}
"""The draft's windows: long enough for every preset."""


def open_owner(plan: Plan, url: str, store: StoreReady) -> Ports:
    """Return the network's ports for the run's owner."""
    user = store.users["owner"]
    bucket = BucketConfig(
        endpoint=store.endpoint,
        name=user.bucket,
        access_key=user.write_access_key,
        secret_key=user.write_secret_key,  # type: ignore[arg-type]
        read_access_key=user.read_access_key,
        read_secret_key=user.read_secret_key,  # type: ignore[arg-type]
    )
    config = OwnerConfig(
        network=url,
        netuid=NETUID,
        wallet=WalletConfig(name="owner", path=plan.folder / "wallets"),
        bucket=bucket,
        call_timeout_seconds=CALL_SECONDS,
    )
    wallet = own_wallet(config)
    return open_ports(config, ChainAccess(own_chain(config, wallet), signer_of(wallet), verify), local=True)


def drafted(plan: Plan, owner: Ports, data: Path) -> dict[str, Any]:
    """Return the spec without theta_0 and, where it has to be measured, without the clock."""
    chain = owner.chain
    subnet = chain.subnet(chain.finalized().block)
    place = Place(chain.genesis(), NETUID, owner.signer.peer, subnet, plan.block_seconds, local=True)
    table = {"checkpoint_rounds": 4, "clock": WHILE_UNKNOWN} | plan.table
    return draft(table, "localnet", place, Shards.open(data), own_vocabulary=True)


def seal(
    plan: Plan, table: Mapping[str, Any], phases: Mapping[str, Sequence[float]] | None, owner: Ports, data: Path
) -> RunSpec:
    """Make theta_0, set the clock, and publish both: from then on the run exists. phases: the measured seconds; None
    where the plan has a clock."""
    require_read_only(owner.bucket, owner.pointer, local=True)
    genesis = make_theta(plan.folder / "genesis", build(table, "the draft"), plan.seed, Shards.open(data))
    blobs = theta_blobs(plan.folder / "genesis", genesis)
    upload(owner.bucket, blobs)
    final = owner.chain.finalized().block
    slowest = min((link.down_mbps for link in plan.links.values()), default=inf)
    lead = LEAD_SECONDS if phases is not None else COLD_LEAD_SECONDS
    lead += sum(path.stat().st_size for _, path in blobs) * 8e-6 / slowest
    clock = dict(table["clock"] if phases is None else _measured(plan, phases, owner.chain.subnet(final)))
    if (link := plan.links.get("miner")) is not None:
        clock |= {"upload_mbps": link.up_mbps, "download_mbps": link.down_mbps}
    gauntlet = table["gauntlet"] | {"weight_rounds": weight_rounds(clock["round_blocks"], owner.chain.subnet(final))}
    spec = sealed({**table, "clock": clock, "gauntlet": gauntlet}, genesis, final + ceil(lead / plan.block_seconds))
    announce(owner, spec.to_bytes())
    (plan.folder / "spec.json").write_bytes(spec.to_bytes())
    if phases is not None:
        (plan.folder / "calibration.json").write_text(json.dumps({"seconds": phases, "clock": clock}, indent=2) + "\n")
    return spec


def _measured(plan: Plan, phases: Mapping[str, Sequence[float]], subnet: Subnet) -> Mapping[str, Any]:
    return calibration.windows(phases, plan.block_seconds, subnet)

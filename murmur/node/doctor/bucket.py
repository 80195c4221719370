"""Checks of the bucket: we can open it, our key writes it, and the published pointer only reads it."""

from murmur.chain.keys import verify
from murmur.node.config.adapters import ChainAccess, open_ports
from murmur.node.config.settings_sources import variable_of
from murmur.node.doctor.bucket_trial import try_own
from murmur.node.doctor.examined_node import ExaminedNode
from murmur.node.doctor.finding import FailedCheck
from murmur.node.doctor.reach import reaction
from murmur.node.telemetry.trouble import of_own_bucket
from murmur.protocol.errors import StorageError
from murmur.proxies import way_to

TRY_SECONDS = 8.0
"""For eight requests of a few bytes: a slower store is of no use."""
ENDPOINT = f"{variable_of('bucket.endpoint')} (--bucket.endpoint)"
POINTER_FIX = f"check {ENDPOINT} and {variable_of('bucket.name')} (--bucket.name)"


def pointer(node: ExaminedNode) -> str:
    """Check that the configured bucket is valid and its pointer can be published."""
    config = node.config
    node.ports = open_ports(config, ChainAccess(node.chain, node.signer, verify), local=node.local)
    return f"{config.bucket.endpoint}/{config.bucket.name} can be published"


def bucket(node: ExaminedNode) -> str:
    """Check that our key writes, and that the published pointer reads and does no more."""
    ports = node.ports
    began = node.time.now()
    try:
        try_own(ports.bucket, ports.pointer, local=node.local, timeout_seconds=TRY_SECONDS, time=ports.time)
    except StorageError as fault:
        trouble = of_own_bucket(fault)
        raise FailedCheck(
            f"{trouble.of.says} ({fault}): peers could not read anything from this node",
            f"{trouble.of.do}. Is {ENDPOINT} right?",
            reaction(node.config.bucket.endpoint, node.time.now() - began, TRY_SECONDS),
        ) from None
    way = way_to(node.config.bucket.endpoint)
    return f"our key writes; the published key reads, and can do nothing else{way}"

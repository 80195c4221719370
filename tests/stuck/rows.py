"""The situations in which a node is kept from its work, each with the cause that every surface has to name."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """One situation of a run that goes on. `begins`: lines of the faults file. `told_by`: the nodes that say it."""

    name: str
    begins: tuple[tuple[str, str], ...]
    told_by: tuple[str, ...]
    cause: str


def _of(node: str, *kinds: tuple[str, str]) -> list[Row]:
    return [Row(f"{node}: {kind}", ((node, kind),), (node,), cause) for kind, cause in kinds]


# A wave's faults begin together, on different nodes, and end together. miner-4 and validator-2 stay whole.
FAST = "stores-1"
"""The wave that `make check` plays."""
WAVES: dict[str, list[Row]] = {
    "stores-1": [
        *_of("miner-1", ("store-full", "bucket_full")),
        *_of("miner-2", ("store-readonly", "bucket_denied")),
        *_of("miner-3", ("read-key-revoked", "read_key_refused")),
    ],
    "stores-2": [
        *_of("miner-1", ("store-quota", "bucket_full")),
        *_of("miner-2", ("store-throttled", "bucket_throttled")),
        *_of("miner-3", ("store-limited", "bucket_throttled")),
    ],
    "stores-3": [
        *_of("miner-1", ("store-expired", "bucket_expired")),
        *_of("miner-2", ("store-suspended", "bucket_suspended")),
        *_of("miner-3", ("store-unknown-key", "bucket_unknown_key")),
    ],
    "stores-4": [
        *_of("miner-1", ("store-wrong-secret", "bucket_wrong_secret")),
        *_of("miner-2", ("store-no-bucket", "bucket_missing")),
        *_of("miner-3", ("store-broken", "bucket_fails")),
        *_of("validator-1", ("store-full", "bucket_full")),
    ],
    "stores-5": [
        *_of("miner-1", ("store-hangs", "bucket_silent")),
        *_of("miner-2", ("store-gone", "bucket_unreachable")),
        *_of("miner-3", ("store-skewed", "bucket_clock")),
        *_of("validator-1", ("store-gone", "bucket_unreachable")),
    ],
    "chain-1": [
        *_of("miner-1", ("chain-frozen", "chain_halted")),
        *_of("miner-2", ("chain-behind", "chain_behind")),
        *_of("miner-3", ("chain-refuses", "chain_refuses")),
        *_of("validator-1", ("chain-behind", "chain_behind")),
    ],
    "chain-2": [
        *_of("miner-1", ("chain-mute", "chain_silent")),
        *_of("miner-2", ("chain-gone", "chain_silent")),
        *_of("validator-1", ("chain-frozen", "chain_halted")),
    ],
    "clocks": [
        *_of("miner-1", ("clock-ahead", "clock_wrong")),
        *_of("miner-2", ("clock-behind", "clock_wrong")),
        *_of("validator-1", ("clock-ahead", "clock_wrong")),
    ],
    "halt": [Row("the chain halts", (("chain", "halts"),), ("miner-4", "validator-2"), "chain_halted")],
}

"""The fee of a transaction and its payer; withdrawn before the call runs, whether or not it succeeds.

A fee is a base, the bytes of the extrinsic, and the weight of its call. The coldkey that owns a hotkey pays for the
hotkey's calls. Source: subtensor's transaction-fee pallet and its `fee_filters`. Left out: tips, fees in alpha, and the
multiplier that follows how full blocks are.
"""

from murmur.lab.devnet import balances
from murmur.lab.devnet.call import Events
from murmur.lab.devnet.neurons import is_owned, owner
from murmur.lab.devnet.storage import Storage

Name = tuple[str, str]
"""A call: (pallet, function)."""

_RAO_PER_WEIGHT = 500_000 / 10**9
"""Per unit of reference time (picoseconds)."""
_BASE_WEIGHT = 108_157_000
"""System.BlockWeights of the pinned runtime: any extrinsic of the normal class."""
_READ_WEIGHT, _WRITE_WEIGHT = 25_000_000, 100_000_000
"""System.DbWeight of the pinned runtime."""

_READS_WRITES: dict[Name, tuple[int, int]] = {
    ("Balances", "transfer_keep_alive"): (1, 1),
    ("Balances", "transfer_allow_death"): (1, 1),
    ("Commitments", "set_commitment"): (8, 4),
    ("SubtensorModule", "burned_register"): (47, 38),
    ("SubtensorModule", "add_stake"): (26, 16),
    ("SubtensorModule", "remove_stake"): (28, 14),
    ("SubtensorModule", "set_weights"): (17, 2),
    ("SubtensorModule", "set_mechanism_weights"): (17, 2),
    ("SubtensorModule", "commit_timelocked_weights"): (8, 2),
    ("SubtensorModule", "commit_timelocked_mechanism_weights"): (8, 2),
    ("SubtensorModule", "commit_crv3_mechanism_weights"): (8, 2),
}
"""Reads and writes of a call, from which its weight is computed. The metadata does not carry weights: these approximate
the runtime's benchmarks. Only the order of magnitude is reliable (a tenth of a thousandth of a TAO to a few
thousandths)."""
_OTHERS = (10, 2)
_FREE = ("Sudo", "sudo")
"""The runtime refunds root's fee."""

_COLDKEY_PAYS = {name for name in _READS_WRITES if name[1] == "set_commitment" or name[1].endswith("weights")}
"""Calls that hotkeys sign."""


def fee_of(call: Name, length_bytes: int) -> int:
    """Return the fee of a signed extrinsic of this length with this call, in rao."""
    if call == _FREE:
        return 0
    reads, writes = _READS_WRITES.get(call, _OTHERS)
    weight = _BASE_WEIGHT + reads * _READ_WEIGHT + writes * _WRITE_WEIGHT
    return int(weight * _RAO_PER_WEIGHT) + length_bytes


def payer_of(storage: Storage, call: Name, signer: str) -> str:
    """Return the account that pays: for a hotkey's call its owner, if it has one."""
    return owner(storage, signer) if call in _COLDKEY_PAYS and is_owned(storage, signer) else signer


def can_pay(storage: Storage, call: Name, signer: str, length_bytes: int) -> bool:
    fee = fee_of(call, length_bytes)
    return not fee or balances.spendable(storage, payer_of(storage, call, signer)) >= fee


def withdraw(storage: Storage, events: Events, payer: str, fee: int) -> None:
    """Withdraw a fee that the payer can pay."""
    if fee:
        balances.add(storage, payer, -fee)
        balances.destroy(storage, fee)
        events.emit("Balances", "Withdraw", {"who": payer, "amount": fee})


def report(events: Events, payer: str, fee: int) -> None:
    """Emit the fee's event after the events of its call."""
    if fee:
        events.emit("TransactionPayment", "TransactionFeePaid", {"who": payer, "actual_fee": fee, "tip": 0})

"""Balances: transfers, and the withdrawals of fees, registration and stake. Amounts in rao."""

from typing import Any

from murmur.lab.devnet.call import Call, DispatchError
from murmur.lab.devnet.storage import Storage

EXISTENTIAL_DEPOSIT = 500
"""Balances.ExistentialDeposit of the pinned runtime."""


def free(storage: Storage, address: str) -> int:
    return int(storage.get("System.Account", address)["data"]["free"])


def spendable(storage: Storage, address: str) -> int:
    """Return what an account can pay without falling below the existential deposit."""
    return max(0, free(storage, address) - EXISTENTIAL_DEPOSIT)


def add(storage: Storage, address: str, amount: int) -> None:
    """Change a free balance by `amount` (negative: withdraw; the caller has checked that it is there)."""
    account = storage.get("System.Account", address)
    account["data"]["free"] += amount
    account["providers"] = int(account["data"]["free"] > 0)
    storage.put("System.Account", address, value=account)


def destroy(storage: Storage, amount: int) -> None:
    """Reduce the total issuance by money that left an account and went to no other."""
    for total in ("Balances.TotalIssuance", "TotalIssuance"):
        storage.put(total, value=max(0, storage.get(total) - amount))


def transfer_keep_alive(call: Call, dest: Any, value: int) -> None:
    _transfer(call, dest, value, keep=EXISTENTIAL_DEPOSIT)


def transfer_allow_death(call: Call, dest: Any, value: int) -> None:
    _transfer(call, dest, value, keep=0)


def _transfer(call: Call, dest: Any, value: int, keep: int) -> None:
    source, storage = call.signer(), call.storage
    if not isinstance(dest, str):  # an index or raw bytes instead of an account id
        raise DispatchError("CannotLookup")
    available = free(storage, source)
    if available < value:
        raise DispatchError({"Token": "FundsUnavailable"})
    if available - value < keep:
        raise DispatchError({"Token": "NotExpendable"})
    if free(storage, dest) + value < EXISTENTIAL_DEPOSIT:
        raise DispatchError({"Token": "BelowMinimum"})
    add(storage, source, -value)
    add(storage, dest, value)
    call.events.emit("Balances", "Transfer", {"from": source, "to": dest, "amount": value})

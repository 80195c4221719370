"""Executing extrinsics: origins, nonces, events, and the table of the calls that this chain knows.

Rules and error names are those of the pinned subtensor runtime as far as a subnet's life needs them; every other call
fails with System.CallFiltered. Fees are zero. Deterministic: time and block number are arguments.
"""

from collections.abc import Callable
from typing import Any

from chain.devnet import admin, balances, commitments, neurons, staking, weights
from chain.devnet.call import Call, DispatchError, Events
from chain.devnet.codec import compact
from chain.devnet.epoch import run_due_epoch
from chain.devnet.extrinsic import Extrinsic
from chain.devnet.storage import Storage

Handler = Callable[..., None]

CALLS: dict[tuple[str, str], Handler] = {
    ("Balances", "transfer_keep_alive"): balances.transfer_keep_alive,
    ("Balances", "transfer_allow_death"): balances.transfer_allow_death,
    ("Commitments", "set_commitment"): commitments.set_commitment,
    ("SubtensorModule", "burned_register"): neurons.burned_register,
    ("SubtensorModule", "add_stake"): staking.add_stake,
    ("SubtensorModule", "remove_stake"): staking.remove_stake,
    ("SubtensorModule", "set_weights"): weights.set_weights,
    ("SubtensorModule", "set_mechanism_weights"): weights.set_mechanism_weights,
    **{("AdminUtils", name): admin.setter(name) for name in admin.SETTERS},
}


def execute_block(
    storage: Storage, netuid: int, number: int, milliseconds: int, extrinsics: list[Extrinsic]
) -> list[bytes]:
    """Apply block `number` to `storage`; returns the block's raw extrinsics, the timestamp inherent first.

    Extrinsics must be verified and in nonce order; one whose call fails changes nothing but its nonce and the events.
    """
    events = Events()
    storage.put("System.Number", value=number)
    run_due_epoch(storage, netuid, number)
    events.begin(0)
    inherent = timestamp(storage, milliseconds)
    events.succeed("Mandatory")
    for index, extrinsic in enumerate(extrinsics, start=1):
        events.begin(index)
        account = storage.get("System.Account", extrinsic.signer)
        account["nonce"] += 1
        storage.put("System.Account", extrinsic.signer, value=account)
        try:
            dispatch(storage, events, number, extrinsic.signer, extrinsic.call)
        except DispatchError as error:
            events.fail(error.value)
        else:
            events.succeed("Normal")
    storage.put_raw("System.Events", value=storage.codec.encode_events(events.records))
    return [inherent, *(extrinsic.data for extrinsic in extrinsics)]


def timestamp(storage: Storage, milliseconds: int) -> bytes:
    """Set the block's time (Unix milliseconds); returns the unsigned extrinsic that says so."""
    storage.put("Timestamp.Now", value=milliseconds)
    bare = b"\x05" + storage.codec.compose_call("Timestamp", "set", {"now": milliseconds})
    return compact(len(bare)) + bare


def dispatch(storage: Storage, events: Events, number: int, origin: str | None, raw: bytes) -> None:
    """Run one call for `origin` (None: root). Raises DispatchError, having changed nothing."""
    decoded = storage.codec.decode_call(raw)
    name = decoded["call_module"], decoded["call_function"]
    arguments: dict[str, Any] = {argument["name"]: argument["value"] for argument in decoded["call_args"]}
    mark = events.mark()
    try:
        with storage.transaction():
            call = Call(storage, events, number, origin, raw)
            if name == ("Sudo", "sudo"):
                _sudo(call)
            elif name in CALLS:
                CALLS[name](call, **arguments)
            else:
                call.fail("System", "CallFiltered")
    except DispatchError:
        events.rewind(mark)
        raise


def _sudo(call: Call) -> None:
    if call.signer() != call.storage.get("Sudo.Key"):
        call.fail("Sudo", "RequireSudo")
    result: dict[str, Any] = {"Ok": ()}
    try:
        dispatch(call.storage, call.events, call.block, None, call.raw[2:])
    except DispatchError as error:
        result = {"Err": error.value}
    call.events.emit("Sudo", "Sudid", {"sudo_result": result})

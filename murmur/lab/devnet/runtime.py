"""Execution of extrinsics: admission to the pool, origins, nonces, fees, events, and the table of this chain's calls.

Rules and error names are those of the pinned subtensor runtime, as far as a subnet's life needs them; every other call
fails with System.CallFiltered. Deterministic: time and block number are arguments.
"""

from collections.abc import Callable
from typing import Any

from murmur.lab.devnet import admin, balances, commitments, fees, neurons, staking, timelock, weights
from murmur.lab.devnet.call import BAD_ORIGIN, Call, DispatchError, Events
from murmur.lab.devnet.codec import compact
from murmur.lab.devnet.epoch import begin_block
from murmur.lab.devnet.extrinsic import Extrinsic
from murmur.lab.devnet.metadata import SPEC_NAME, SPEC_VERSION
from murmur.lab.devnet.storage import Storage

Handler = Callable[..., None]


def spec_version(storage: Storage) -> int:
    """Return the version of the runtime that makes the next block."""
    upgrade = storage.get("System.LastRuntimeUpgrade")
    return SPEC_VERSION if upgrade is None else int(upgrade["spec_version"])


def set_code(call: Call, code: str) -> None:
    """Upgrade the runtime, as root. The rules are this program's and stay. The next block has another version, so
    extrinsics signed for the old one are no longer accepted. `code` is ignored."""
    if call.origin is not None:
        raise DispatchError(BAD_ORIGIN)
    upgrade = {"spec_version": spec_version(call.storage) + 1, "spec_name": SPEC_NAME}
    call.storage.put("System.LastRuntimeUpgrade", value=upgrade)
    call.events.emit("System", "CodeUpdated", None)


CALLS: dict[tuple[str, str], Handler] = {
    ("Balances", "transfer_keep_alive"): balances.transfer_keep_alive,
    ("Balances", "transfer_allow_death"): balances.transfer_allow_death,
    ("Commitments", "set_commitment"): commitments.set_commitment,
    ("SubtensorModule", "burned_register"): neurons.burned_register,
    ("SubtensorModule", "add_stake"): staking.add_stake,
    ("SubtensorModule", "remove_stake"): staking.remove_stake,
    ("SubtensorModule", "set_weights"): weights.set_weights,
    ("SubtensorModule", "set_mechanism_weights"): weights.set_mechanism_weights,
    ("SubtensorModule", "commit_timelocked_weights"): timelock.commit_timelocked_weights,
    ("SubtensorModule", "commit_timelocked_mechanism_weights"): timelock.commit_timelocked_mechanism_weights,
    ("SubtensorModule", "commit_crv3_mechanism_weights"): timelock.commit_crv3_mechanism_weights,
    ("SubtensorModule", "set_tempo"): admin.set_tempo,
    ("System", "set_code"): set_code,
    **{("AdminUtils", name): admin.setter(name) for name in admin.SETTERS},
    **{name: admin.global_setter(item) for name, item in admin.GLOBAL_SETTERS.items()},
}


_WEIGHTS_CALLS = frozenset(name for name in CALLS if "weights" in name[1] and name[0] == "SubtensorModule")
_CANNOT_PAY = "Inability to pay some fees (e.g. account balance too low)"
_RATE_LIMITED = "Custom error: 6"
_STAKE_TOO_LOW = "Custom error: 1"


def refusal(storage: Storage, number: int, extrinsic: Extrinsic) -> str | None:
    """Return why the transaction extensions reject an extrinsic in block `number`, in the pool's words; None when they
    accept it.

    They check the fee, and for weights the stake and the rate limit.
    """
    decoded = storage.codec.decode_call(extrinsic.call)
    name = _name(decoded)
    if not fees.can_pay(storage, name, extrinsic.signer, len(extrinsic.data)):
        return _CANNOT_PAY
    if name not in _WEIGHTS_CALLS:
        return None
    netuid = next(argument["value"] for argument in decoded["call_args"] if argument["name"] == "netuid")
    uid = storage.get("Uids", netuid, extrinsic.signer)
    if staking.stake_of(storage, extrinsic.signer, netuid) < storage.get("StakeThreshold"):
        return _STAKE_TOO_LOW
    call = Call(storage, Events(), number, extrinsic.signer, extrinsic.call)
    return _RATE_LIMITED if uid is not None and not weights.has_rested(call, netuid, uid) else None


def execute_block(
    storage: Storage,
    netuid: int,
    number: int,
    milliseconds: int,
    extrinsics: list[Extrinsic],
    beacon_key: bytes | None,
) -> tuple[list[bytes], list[Extrinsic], list[Extrinsic]]:
    """Apply block `number` to `storage`. Return the block's raw extrinsics, the timestamp inherent first; the included
    extrinsics; and those left out because an earlier one made them invalid.

    Extrinsics must be verified and in nonce order. A failed call changes only its nonce, its payer's balance and the
    events. `beacon_key` opens the commits that are due.
    """
    events = Events()
    storage.put("System.Number", value=number)
    neurons.decay_burn(storage, netuid)
    begin_block(storage, events, netuid, number, beacon_key)
    events.begin(0)
    inherent = timestamp(storage, milliseconds)
    events.succeed("Mandatory", pays=False)
    included: list[Extrinsic] = []
    left_out: list[Extrinsic] = []
    for extrinsic in extrinsics:
        account = storage.get("System.Account", extrinsic.signer)
        if account["nonce"] != extrinsic.nonce or refusal(storage, number, extrinsic) is not None:
            left_out.append(extrinsic)
            continue
        included.append(extrinsic)
        events.begin(len(included))
        account["nonce"] += 1
        storage.put("System.Account", extrinsic.signer, value=account)
        _apply(storage, events, number, extrinsic)
    storage.put_raw("System.Events", value=storage.codec.encode_events(events.records))
    return [inherent, *(extrinsic.data for extrinsic in included)], included, left_out


def _apply(storage: Storage, events: Events, number: int, extrinsic: Extrinsic) -> None:
    """Charge an extrinsic and run its call."""
    name = _name(storage.codec.decode_call(extrinsic.call))
    fee = fees.fee_of(name, len(extrinsic.data))
    payer = fees.payer_of(storage, name, extrinsic.signer)
    fees.withdraw(storage, events, payer, fee)
    failure: DispatchError | None = None
    try:
        dispatch(storage, events, number, extrinsic.signer, extrinsic.call)
    except DispatchError as error:
        failure = error
    fees.report(events, payer, fee)
    if failure is None:
        events.succeed("Normal", pays=fee > 0)
    else:
        events.fail(failure.value, pays=fee > 0)


def timestamp(storage: Storage, milliseconds: int) -> bytes:
    """Set the block's time (Unix milliseconds); return the unsigned extrinsic for it."""
    storage.put("Timestamp.Now", value=milliseconds)
    bare = b"\x05" + storage.codec.compose_call("Timestamp", "set", {"now": milliseconds})
    return compact(len(bare)) + bare


def dispatch(storage: Storage, events: Events, number: int, origin: str | None, raw: bytes) -> None:
    """Run one call for `origin` (None: root). On DispatchError the state is unchanged."""
    decoded = storage.codec.decode_call(raw)
    name = _name(decoded)
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


def _name(decoded: dict[str, Any]) -> fees.Name:
    return decoded["call_module"], decoded["call_function"]


def _sudo(call: Call) -> None:
    if call.signer() != call.storage.get("Sudo.Key"):
        call.fail("Sudo", "RequireSudo")
    result: dict[str, Any] = {"Ok": ()}
    try:
        dispatch(call.storage, call.events, call.block, None, call.raw[2:])
    except DispatchError as error:
        result = {"Err": error.value}
    call.events.emit("Sudo", "Sudid", {"sudo_result": result})

"""Hyperparameters: AdminUtils' setters for root, and for the subnet's owner where the real runtime allows it.

Left out: the owner's rate limit and the freeze window before an epoch.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from murmur.lab.devnet.call import BAD_ORIGIN, Call, DispatchError

MIN_TEMPO, MAX_TEMPO = 360, 50_400
"""SubtensorModule.MinTempo and MaxTempo of the pinned runtime: the owner's bounds."""


class Setter(NamedTuple):
    item: str
    """The storage item that it writes, per netuid."""
    owner_may: bool


SETTERS = {
    "sudo_set_tempo": Setter("Tempo", False),
    "sudo_set_max_allowed_validators": Setter("MaxAllowedValidators", False),
    "sudo_set_weights_set_rate_limit": Setter("WeightsSetRateLimit", False),
    "sudo_set_network_registration_allowed": Setter("NetworkRegistrationAllowed", False),
    "sudo_set_max_allowed_uids": Setter("MaxAllowedUids", True),
    "sudo_set_min_allowed_weights": Setter("MinAllowedWeights", True),
    "sudo_set_immunity_period": Setter("ImmunityPeriod", True),
    "sudo_set_weights_version_key": Setter("WeightsVersionKey", True),
    "sudo_set_activity_cutoff_factor": Setter("ActivityCutoffFactorMilli", True),
    "sudo_set_commit_reveal_weights_enabled": Setter("CommitRevealWeightsEnabled", True),
    "sudo_set_commit_reveal_weights_interval": Setter("RevealPeriodEpochs", True),
    "sudo_set_kappa": Setter("Kappa", True),
    "sudo_set_min_burn": Setter("MinBurn", True),
    "sudo_set_max_burn": Setter("MaxBurn", True),
}
GLOBAL_SETTERS = {
    ("AdminUtils", "sudo_set_stake_threshold"): "StakeThreshold",
    ("Commitments", "set_max_space"): "Commitments.MaxSpace",
}
"""Root's setters for all subnets: the item that each writes."""


def setter(name: str) -> Callable[..., None]:
    """Return the handler of one setter. Each names its new value differently; it is the only argument besides
    netuid."""
    item, owner_may = SETTERS[name]

    def handle(call: Call, netuid: int, **arguments: Any) -> None:
        is_owner = owner_may and call.origin == call.storage.get("SubnetOwner", netuid)
        if call.origin is not None and not is_owner:
            raise DispatchError(BAD_ORIGIN)
        call.ensure(call.storage.get("NetworksAdded", netuid), "SubnetDoesNotExist", "AdminUtils")
        (value,) = arguments.values()
        if item == "MaxAllowedUids":
            too_few = value < call.storage.get("SubnetworkN", netuid)
            call.ensure(not too_few, "MaxAllowedUIdsLessThanCurrentUIds", "AdminUtils")
        if item == "MaxAllowedValidators":
            too_many = value > call.storage.get("MaxAllowedUids", netuid)
            call.ensure(not too_many, "MaxValidatorsLargerThanMaxUIds", "AdminUtils")
        call.storage.put(item, netuid, value=value)

    return handle


def global_setter(item: str) -> Callable[..., None]:
    """Return the handler of one of root's setters; its only argument is the new value."""

    def handle(call: Call, **arguments: Any) -> None:
        if call.origin is not None:
            raise DispatchError(BAD_ORIGIN)
        (value,) = arguments.values()
        call.storage.put(item, value=value)

    return handle


def set_tempo(call: Call, netuid: int, tempo: int) -> None:
    """Set the tempo within bounds, as the owner's own call; a new epoch begins to count now."""
    if call.signer() != call.storage.get("SubnetOwner", netuid):
        raise DispatchError(BAD_ORIGIN)
    call.ensure(MIN_TEMPO <= tempo <= MAX_TEMPO, "TempoOutOfBounds")
    call.storage.put("Tempo", netuid, value=tempo)
    call.storage.put("LastEpochBlock", netuid, value=call.block)
    call.events.emit("SubtensorModule", "TempoSet", (netuid, tempo))

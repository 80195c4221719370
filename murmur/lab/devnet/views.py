"""The runtime APIs behind `state_call`: what a client reads in one call instead of item by item.

Computed from storage at the block asked for; nothing is kept here. An API that this chain does not have fails as on a
real node. Money in rao, lengths in blocks, PerU16 as integers.
"""

from collections.abc import Callable
from typing import Any

from murmur.lab.devnet import fees
from murmur.lab.devnet.codec import compact
from murmur.lab.devnet.extrinsic import parse
from murmur.lab.devnet.market import U16_MAX
from murmur.lab.devnet.neurons import owner
from murmur.lab.devnet.staking import alpha_of, root_weight_of
from murmur.lab.devnet.storage import Storage

_METADATA_VERSION = 15
_NO_AXON = dict.fromkeys(("block", "version", "ip", "port", "ip_type", "protocol", "placeholder1", "placeholder2"), 0)
_NO_PROMETHEUS = dict.fromkeys(("block", "version", "ip", "port", "ip_type"), 0)


class UnknownMethod(Exception):
    """No such runtime API method on this chain."""


def runtime_call(storage: Storage, metadata: bytes, method: str, arguments: bytes) -> bytes:
    """Run "Api_method" on SCALE arguments; returns the SCALE result.

    Raises UnknownMethod, or ValueError when the arguments are not what the method takes.
    """
    if method == "Metadata_metadata_at_version":
        known = int.from_bytes(arguments[:4], "little") == _METADATA_VERSION
        return b"\x01" + compact(len(metadata)) + metadata if known else b"\x00"
    handler = _METHODS.get(method)
    if handler is None:
        raise UnknownMethod(method)
    api, _, name = method.partition("_")
    definition = storage.codec.apis[api][name]
    if handler is _query_info:  # its argument is an extrinsic, which tells its own length
        values: tuple[Any, ...] = (arguments,)
    else:
        values = storage.codec.decode(f"({', '.join(kind for _, kind in definition['inputs'])})", arguments)
    return storage.codec.encode(definition["output"], handler(storage, *values))


def metagraph(storage: Storage, netuid: int) -> dict[str, Any] | None:
    """The whole subnet; None when there is none."""
    if not storage.get("NetworksAdded", netuid):
        return None
    return {
        "netuid": netuid,
        "name": list(b"murmuration devnet"),
        "symbol": list("α".encode()),
        "identity": None,
        "network_registered_at": storage.get("NetworkRegisteredAt", netuid),
        "owner_hotkey": storage.get("SubnetOwnerHotkey", netuid),
        "owner_coldkey": storage.get("SubnetOwner", netuid),
        "block": storage.get("System.Number"),
        "tempo": storage.get("Tempo", netuid),
        "last_step": storage.get("LastEpochBlock", netuid),
        "blocks_since_last_step": storage.get("BlocksSinceLastStep", netuid),
        "subnet_emission": 0,
        "alpha_in": storage.get("SubnetAlphaIn", netuid),
        "alpha_out": storage.get("SubnetAlphaOut", netuid),
        "tao_in": storage.get("SubnetTAO", netuid),
        "alpha_out_emission": storage.get("SubnetAlphaOutEmission", netuid),
        "alpha_in_emission": 0,
        "tao_in_emission": 0,
        "pending_alpha_emission": sum(
            storage.get(item, netuid) for item in ("PendingServerEmission", "PendingValidatorEmission")
        ),
        "pending_root_emission": 0,
        "subnet_volume": 0,
        "moving_price": {"bits": 1 << 32},
        "max_uids": storage.get("MaxAllowedUids", netuid),
        "num_uids": storage.get("SubnetworkN", netuid),
        "burn": storage.get("Burn", netuid),
        "pow_registration_allowed": False,
        **{name: value for name, value in _hyperparameters(storage, netuid).items() if name in _IN_METAGRAPH},
        **_columns(storage, netuid),
    }


def _columns(storage: Storage, netuid: int) -> dict[str, Any]:
    """The metagraph's lists by uid."""
    uids = range(storage.get("SubnetworkN", netuid))
    hotkeys = [storage.get("Keys", netuid, uid) for uid in uids]
    alpha = [alpha_of(storage, hotkey, netuid) for hotkey in hotkeys]
    root = [root_weight_of(storage, hotkey) for hotkey in hotkeys]
    zeros = [0] * len(hotkeys)
    return {
        "hotkeys": hotkeys,
        "coldkeys": [owner(storage, hotkey) for hotkey in hotkeys],
        "identities": [None] * len(hotkeys),
        "axons": [_NO_AXON] * len(hotkeys),
        "active": storage.get("Active", netuid),
        "validator_permit": storage.get("ValidatorPermit", netuid),
        "pruning_score": [U16_MAX] * len(hotkeys),
        "last_update": storage.get("LastUpdate", netuid),
        "emission": storage.get("Emission", netuid),
        "dividends": storage.get("Dividends", netuid),
        "incentives": storage.get("Incentive", netuid),
        "consensus": storage.get("Consensus", netuid),
        "trust": zeros,
        "rank": zeros,
        "block_at_registration": [storage.get("BlockAtRegistration", netuid, uid) for uid in uids],
        "alpha_stake": alpha,
        "tao_stake": root,
        "total_stake": [mine + weight for mine, weight in zip(alpha, root, strict=True)],
        "tao_dividends_per_hotkey": [],
        "alpha_dividends_per_hotkey": [],
        "collateral_locked": zeros,
        "collateral_min": zeros,
        "collateral_earned": zeros,
    }


def _mechagraph(storage: Storage, netuid: int, mechanism: int) -> dict[str, Any] | None:
    return metagraph(storage, netuid) if mechanism == 0 else None


def _selective_metagraph(storage: Storage, netuid: int, indexes: list[int]) -> dict[str, Any] | None:
    """The columns asked for: index i is the i-th field of the runtime's SelectiveMetagraph, netuid always comes."""
    whole = metagraph(storage, netuid)
    if whole is None:
        return None
    names = storage.codec.field_names(storage.codec.apis["SubnetInfoRuntimeApi"]["get_selective_metagraph"]["output"])
    asked = {names[index] for index in indexes if index < len(names)}
    return {name: whole.get(name) if name in asked or name == "netuid" else None for name in names}


def _neurons_lite(storage: Storage, netuid: int) -> list[dict[str, Any]]:
    graph = metagraph(storage, netuid)
    if graph is None:
        return []
    trust = storage.get("ValidatorTrust", netuid)
    return [
        {
            "hotkey": hotkey,
            "coldkey": graph["coldkeys"][uid],
            "uid": uid,
            "netuid": netuid,
            "active": graph["active"][uid],
            "axon_info": _NO_AXON,
            "prometheus_info": _NO_PROMETHEUS,
            "stake": [(graph["coldkeys"][uid], graph["total_stake"][uid])],
            "rank": 0,
            "emission": graph["emission"][uid],
            "incentive": graph["incentives"][uid],
            "consensus": graph["consensus"][uid],
            "trust": 0,
            "validator_trust": trust[uid],
            "dividends": graph["dividends"][uid],
            "last_update": graph["last_update"][uid],
            "validator_permit": graph["validator_permit"][uid],
            "pruning_score": graph["pruning_score"][uid],
        }
        for uid, hotkey in enumerate(graph["hotkeys"])
    ]


def _neuron_lite(storage: Storage, netuid: int, uid: int) -> dict[str, Any] | None:
    neurons = _neurons_lite(storage, netuid)
    return neurons[uid] if uid < len(neurons) else None


_HYPERPARAMETERS = {
    "rho": ("Rho", "U16"),
    "kappa": ("Kappa", "U16"),
    "immunity_period": ("ImmunityPeriod", "U16"),
    "min_allowed_weights": ("MinAllowedWeights", "U16"),
    "max_weights_limit": ("MaxWeightsLimit", "U16"),
    "tempo": ("Tempo", "U16"),
    "min_difficulty": ("MinDifficulty", "U64"),
    "max_difficulty": ("MaxDifficulty", "U64"),
    "weights_version": ("WeightsVersionKey", "U64"),
    "weights_rate_limit": ("WeightsSetRateLimit", "U64"),
    "adjustment_interval": ("AdjustmentInterval", "U16"),
    "activity_cutoff": ("ActivityCutoff", "U64"),
    "registration_allowed": ("NetworkRegistrationAllowed", "Bool"),
    "target_regs_per_interval": ("TargetRegistrationsPerInterval", "U16"),
    "min_burn": ("MinBurn", "TaoBalance"),
    "max_burn": ("MaxBurn", "TaoBalance"),
    "bonds_moving_avg": ("BondsMovingAverage", "U64"),
    "max_regs_per_block": ("MaxRegistrationsPerBlock", "U16"),
    "serving_rate_limit": ("ServingRateLimit", "U64"),
    "max_validators": ("MaxAllowedValidators", "U16"),
    "adjustment_alpha": ("AdjustmentAlpha", "U64"),
    "difficulty": ("Difficulty", "U64"),
    "commit_reveal_period": ("RevealPeriodEpochs", "U64"),
    "commit_reveal_weights_enabled": ("CommitRevealWeightsEnabled", "Bool"),
    "liquid_alpha_enabled": ("LiquidAlphaOn", "Bool"),
}
"""The runtime's name of each hyperparameter: its storage item and its kind in the third version of the API."""

_IN_METAGRAPH = {*_HYPERPARAMETERS, "alpha_high", "alpha_low"}


def _hyperparameters(storage: Storage, netuid: int) -> dict[str, Any]:
    values = {name: storage.get(item, netuid) for name, (item, _) in _HYPERPARAMETERS.items()}
    low, high = storage.get("AlphaValues", netuid)
    return {**values, "alpha_low": low, "alpha_high": high}


def _hyperparameters_v1(storage: Storage, netuid: int) -> dict[str, Any] | None:
    return _hyperparameters(storage, netuid) if storage.get("NetworksAdded", netuid) else None


def _hyperparameters_v3(storage: Storage, netuid: int) -> list[dict[str, Any]] | None:
    if not storage.get("NetworksAdded", netuid):
        return None
    values = _hyperparameters(storage, netuid)
    kinds = {name: kind for name, (_, kind) in _HYPERPARAMETERS.items()} | {"alpha_low": "U16", "alpha_high": "U16"}
    return [{"name": name.encode(), "value": {kinds[name]: value}} for name, value in values.items()]


def _next_epoch(storage: Storage, netuid: int) -> int | None:
    if not storage.get("NetworksAdded", netuid):
        return None
    return int(storage.get("LastEpochBlock", netuid) + storage.get("Tempo", netuid))


def _account_nonce(storage: Storage, account: str) -> int:
    return int(storage.get("System.Account", account)["nonce"])


def _query_info(storage: Storage, arguments: bytes) -> dict[str, Any]:
    data = arguments[:-4]  # behind it stands its length
    decoded = storage.codec.decode_call(parse(data).call)
    fee = fees.fee_of((decoded["call_module"], decoded["call_function"]), len(data))
    return {"weight": {"ref_time": 0, "proof_size": 0}, "class": "Normal", "partial_fee": fee}


_METHODS: dict[str, Callable[..., Any]] = {
    "SubnetInfoRuntimeApi_get_metagraph": metagraph,
    "SubnetInfoRuntimeApi_get_mechagraph": _mechagraph,
    "SubnetInfoRuntimeApi_get_selective_metagraph": _selective_metagraph,
    "SubnetInfoRuntimeApi_get_subnet_hyperparams": _hyperparameters_v1,
    "SubnetInfoRuntimeApi_get_subnet_hyperparams_v3": _hyperparameters_v3,
    "SubnetInfoRuntimeApi_get_next_epoch_start_block": _next_epoch,
    "NeuronInfoRuntimeApi_get_neurons_lite": _neurons_lite,
    "NeuronInfoRuntimeApi_get_neuron_lite": _neuron_lite,
    "AccountNonceApi_account_nonce": _account_nonce,
    "TransactionPaymentApi_query_info": _query_info,
}

"""report.json as it is promised to people and tools: nothing missing, nothing more."""

from typing import Any

import jsonschema


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _map(name: str, value: Any) -> dict[str, Any]:
    return {"type": "object", "propertyNames": {"pattern": name}, "additionalProperties": value}


HOTKEY = "^5[1-9A-HJ-NP-Za-km-z]{46,48}$"
COUNT = {"type": "integer", "minimum": 0}
SECONDS = {"type": ["number", "null"], "minimum": 0}
LOSS = {"type": ["number", "null"]}
SHARE = {"type": ["number", "null"], "minimum": 0, "maximum": 1}
REASONS = [
    "MISSING",
    "LATE",
    "WRONG_SIZE",
    "UNSIGNED",
    "WRONG_RUN",
    "UNREVEALED",
    "BAD_KEY",
    "OUT_OF_SYNC",
    "MALFORMED",
    "NORM",
    "COPY",
]

ROUND = _object(
    round=COUNT,
    val_loss=LOSS,
    active=COUNT,
    contributing={"type": "array", "items": {"type": "string", "pattern": HOTKEY}, "uniqueItems": True},
    void={"type": "boolean"},
    rejected=_map(HOTKEY, {"enum": REASONS}),
    standing=_map(HOTKEY, {"enum": ["NOT_ELIGIBLE", "LOW_SCORE", "NOT_SELECTED"]}),
    theta=_map("^[a-z][a-z0-9-]*$", {"type": "string", "pattern": "^[0-9a-f]{64}$"}),
    seconds=_object(**dict.fromkeys(("compute", "upload", "download", "apply"), SECONDS)),
    phases={
        "type": "object",
        "propertyNames": {"enum": ["miner", "validator"]},
        "additionalProperties": _map("^[a-z]+$", {"type": "number", "minimum": 0}),
    },
    utilization=SHARE,
    payload_bytes={"type": "integer", "minimum": 1},
)
INJECTED = _object(
    kind={"enum": ["kill", "absent", "wipe", "freeze", "late", "slow", "stall", "join"]},
    node={"type": "string", "pattern": "^(store|devnet|[a-z]+-[0-9]+)$"},
    round=COUNT,
    seconds={"type": "number", "minimum": 0},
    back_after_rounds={"type": ["integer", "null"], "minimum": 0},
)
BLAME = _object(round=COUNT, validator={"type": "string"}, peer={"type": "string"}, reason={"enum": REASONS})
CHAOS = _object(
    seed=COUNT,
    injected={"type": "array", "items": INJECTED},
    void_rounds=COUNT,
    void_unexplained=COUNT,
    unexplained={"type": "array", "items": COUNT, "uniqueItems": True},
    ended_for_good=COUNT,
    honest_faults_booked=COUNT,
    blames={"type": "array", "items": BLAME},
    longest_absence_rounds=COUNT,
)
REPORT = _object(
    rounds={"type": "array", "items": ROUND},
    peers=_map(
        HOTKEY,
        _object(
            name={"type": "string"},
            fault={"type": ["string", "null"]},
            contributed=COUNT,
            weight={"type": "number", "minimum": 0, "maximum": 1},
        ),
    ),
    summary=_object(
        loss_first=LOSS,
        loss_last=LOSS,
        replicas_identical={"type": "boolean"},
        faulty_contributions=COUNT,
        honest_contributions=COUNT,
        void_rounds=COUNT,
        utilization=SHARE,
        weights_set=COUNT,
        weights_standing=COUNT,
        weights_refused=COUNT,
        weights_pending=COUNT,
        payload_ratio={"type": "number", "minimum": 1},
        wall_seconds={"type": "number", "minimum": 0},
    ),
    chaos={"anyOf": [CHAOS, {"type": "null"}]},
)


def assert_report(report: dict[str, Any]) -> None:
    jsonschema.validate(report, REPORT)

"""The context of a running call: its origin, the state, the block, and its events."""

from dataclasses import dataclass, field
from typing import Any, NoReturn

from murmur.lab.devnet.storage import Storage

BAD_ORIGIN = "BadOrigin"
_NO_WEIGHT = {"ref_time": 0, "proof_size": 0}


class DispatchError(Exception):
    """A call's refusal. `value` is the runtime's DispatchError, ready for the codec; `name` is the pallet's name for
    it."""

    def __init__(self, value: Any, name: str | None = None) -> None:
        super().__init__(name or str(value))
        self.value = value


class Events:
    """The events of one block, in order."""

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []
        self._phase: Any = "Initialization"

    def begin(self, extrinsic: int) -> None:
        self._phase = {"ApplyExtrinsic": extrinsic}

    def mark(self) -> int:
        return len(self.records)

    def rewind(self, mark: int) -> None:
        """Remove the events since `mark`: their call failed."""
        del self.records[mark:]

    def emit(self, pallet: str, name: str, fields: Any) -> None:
        """Emit an event. `fields`: a dict for an event with named fields, a tuple for one without."""
        self.records.append({"phase": self._phase, "event": {pallet: {name: fields}}, "topics": []})

    def succeed(self, dispatch_class: str, *, pays: bool) -> None:
        self.emit("System", "ExtrinsicSuccess", {"dispatch_info": _dispatch_info(dispatch_class, pays)})

    def fail(self, error: Any, *, pays: bool) -> None:
        info = _dispatch_info("Normal", pays)
        self.emit("System", "ExtrinsicFailed", {"dispatch_error": error, "dispatch_info": info})


def _dispatch_info(dispatch_class: str, pays: bool) -> dict[str, Any]:
    return {"weight": _NO_WEIGHT, "class": dispatch_class, "pays_fee": "Yes" if pays else "No"}


@dataclass(frozen=True, slots=True)
class Call:
    """One call in execution. `origin` is the signer's SS58 address, None for root; `raw` the encoded call."""

    storage: Storage
    events: Events
    block: int
    origin: str | None
    raw: bytes = field(repr=False)

    def signer(self) -> str:
        """Return the signing account. Raises DispatchError for root, which signs nothing."""
        if self.origin is None:
            raise DispatchError(BAD_ORIGIN)
        return self.origin

    def fail(self, pallet: str, error: str) -> NoReturn:
        """Refuse with a pallet's error, by its name in the runtime."""
        raise DispatchError(self.storage.codec.module_error(pallet, error), error)

    def ensure(self, condition: bool, error: str, pallet: str = "SubtensorModule") -> None:
        if not condition:
            self.fail(pallet, error)

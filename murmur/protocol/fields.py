"""Types of the fields of specs and documents, and the tables that hold them."""

from hashlib import sha256
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, ValidationError

from murmur.protocol.messages import canonical_json
from murmur.protocol.types import DIGEST_BYTES, Digest, PeerId

_U32 = 2**32 - 1
"""Bound of every integer of a spec, so that messages and arithmetic can carry it."""
Positive = Annotated[int, Field(gt=0, le=_U32)]
Count = Annotated[int, Field(ge=0, le=_U32)]
Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Decay = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]


def _hex_digest(value: str) -> str:
    if len(value) != 2 * DIGEST_BYTES or any(c not in "0123456789abcdef" for c in value):
        raise ValueError("expected a sha256 digest as 64 lower-case hex digits")
    return value


HexDigest = Annotated[str, AfterValidator(_hex_digest)]


def _from_hex(value: object) -> bytes:
    """Take the bytes themselves too: what code builds has no detour over text."""
    if isinstance(value, str):
        return bytes.fromhex(_hex_digest(value))
    if isinstance(value, bytes) and len(value) == DIGEST_BYTES:
        return value
    raise ValueError("expected a sha256 digest as 64 lower-case hex digits")


DigestField = Annotated[Digest, BeforeValidator(_from_hex), PlainSerializer(bytes.hex, when_used="json")]
PeerIdField = Annotated[PeerId, BeforeValidator(_from_hex), PlainSerializer(bytes.hex, when_used="json")]
"""32 bytes, which JSON has as 64 hex digits."""


class Table(BaseModel):
    """A table of a spec or an amendment: only known fields, of exactly their types."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Published(Table):
    """A table whose digest is on chain."""

    def to_bytes(self) -> bytes:
        """Return the canonical JSON of every field, defaults included."""
        return canonical_json(self.model_dump(mode="json"))

    @property
    def digest(self) -> Digest:
        return Digest(sha256(self.to_bytes()).digest())


def fault_lines(fault: ValidationError) -> str:
    """Return one indented line per fault: where, what is wrong. Input values are left out: they may be secrets. Names
    of fields may be another node's: they are shown, but never as line breaks or control characters."""
    lines = []
    for error in fault.errors(include_url=False, include_context=False, include_input=False):
        where = ".".join(ascii(str(part)[:80])[1:-1] for part in error["loc"]) or "(whole)"
        lines.append(f"  {where}: {error['msg'].removeprefix('Value error, ')}")
    return "\n".join(lines)

"""Run: a first spec and the amendments that its owner published since (docs/protocol.md section 0)."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from protocol.clock import Clock
from protocol.errors import ConfigError, InvalidMessage
from protocol.layout import Layout
from protocol.messages import parse_json
from protocol.spec import Count, HexDigest, Positive, Published, RunSpec, build, fault_lines
from protocol.types import Digest


class Amendment(Published):
    """A change by the run's owner. `changes` replaces fields of the named tables from `from_round` on (never clock,
    model or compression: they fix clock and layout). `void_round` declares that round's record void as seen from
    chain height `void_from_block` on. `previous` is the digest of the amendment before (hex), or of the first spec."""

    previous: HexDigest
    from_round: Positive
    changes: dict[Literal["inner", "outer", "gauntlet", "protocol"], dict[str, Any]] = Field(default_factory=dict)
    void_round: Count | None = None
    void_from_block: Count | None = None

    @model_validator(mode="after")
    def _void_has_height(self) -> Self:
        """Without a height, nodes that applied the record before and nodes that replay it later would differ."""
        if (self.void_round is None) != (self.void_from_block is None):
            raise ValueError("void_round and void_from_block are given together or not at all")
        return self


def parse_amendment(data: bytes, digest: Digest) -> Amendment:
    """An amendment from its canonical bytes, checked against its digest."""
    if sha256(data).digest() != digest:
        raise InvalidMessage("amendment: its bytes do not hash to the digest on chain")
    try:
        amendment = Amendment.model_validate(parse_json(data))
    except ValidationError as fault:
        raise InvalidMessage("amendment: " + fault_lines(fault)) from None
    if amendment.digest != digest:
        raise InvalidMessage("amendment: not in canonical form")
    return amendment


@dataclass(frozen=True)
class Run:
    """A first spec with its amendments in order. `id` never changes."""

    first: RunSpec
    amendments: tuple[Amendment, ...] = ()

    @cached_property
    def id(self) -> Digest:
        return self.first.digest

    @property
    def clock(self) -> Clock:
        return self.first.rounds_clock

    @property
    def layout(self) -> Layout:
        return self.first.layout

    @property
    def head(self) -> Digest:
        """What the owner's slot names: the latest amendment's digest, or the first spec's."""
        return self.amendments[-1].digest if self.amendments else self.id

    def spec_at(self, round: int) -> RunSpec:
        """The spec in force in `round`."""
        return self._specs[sum(amendment.from_round <= round for amendment in self.amendments)]

    def voided(self, round: int, block: int) -> bool:
        """True when the owner has declared the round's record void, as seen at chain height `block`."""
        return any(
            a.void_round == round and a.void_from_block is not None and block >= a.void_from_block
            for a in self.amendments
        )

    def amended(self, amendments: Sequence[Amendment]) -> "Run":
        """This run with `amendments` (oldest first) appended; raises ConfigError when they do not follow on."""
        run = Run(self.first, self.amendments + tuple(amendments))
        previous, from_round = run.id, 0
        for amendment in run.amendments:
            if bytes.fromhex(amendment.previous) != previous or amendment.from_round < from_round:
                raise ConfigError("amendments of the run do not follow one another: ask the run's owner")
            previous, from_round = amendment.digest, amendment.from_round
        assert run._specs
        return run

    @cached_property
    def _specs(self) -> tuple[RunSpec, ...]:
        specs = [self.first]
        for amendment in self.amendments:
            table = specs[-1].model_dump(mode="json")
            for name, fields in amendment.changes.items():
                target = table if name == "protocol" else table[name]
                allowed = {"min_protocol", "max_protocol"} if name == "protocol" else set(target)
                if unknown := set(fields) - allowed:
                    raise ConfigError(f"an amendment changes unknown fields of {name}: {sorted(unknown)}")
                if name == "inner" and fields.get("optimizer", target["optimizer"]) != target["optimizer"]:
                    raise ConfigError(
                        "an amendment changes inner.optimizer, which stays for the whole run: what miners have saved "
                        "is the state of the first one"
                    )
                target.update(fields)
            specs.append(build(table, f"the run spec amended from round {amendment.from_round}"))
        return tuple(specs)

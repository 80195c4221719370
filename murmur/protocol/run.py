"""Run: a first spec and the amendments that its owner published since (docs/protocol.md section 0)."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from operator import itemgetter
from typing import Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from murmur.protocol.clock import Clock
from murmur.protocol.errors import ConfigError, InvalidMessage
from murmur.protocol.fields import Count, HexDigest, Positive, Published, fault_lines
from murmur.protocol.layout import Layout
from murmur.protocol.messages import parse_json
from murmur.protocol.spec import RunSpec, TrainingSpec, build
from murmur.protocol.types import Digest


class Amendment(Published):
    """A change by the run's owner, in force from `from_round` on. `changes` replaces fields of the named tables (never
    clock, model or compression: they fix clock and layout). `void_round` declares that round void as seen from chain
    height `void_from_block` on, which is not before `from_round` starts. `previous` is the digest of the amendment
    before (hex), or of the first spec."""

    previous: HexDigest
    from_round: Positive
    changes: dict[Literal["inner", "outer", "gauntlet", "protocol"], dict[str, Any]] = Field(default_factory=dict)
    void_round: Count | None = None
    void_from_block: Count | None = None

    @model_validator(mode="after")
    def _void_has_height(self) -> Self:
        """Without a height, nodes that applied the round before and nodes that replay it later would differ."""
        if (self.void_round is None) != (self.void_from_block is None):
            raise ValueError("void_round and void_from_block are given together or not at all")
        return self


def parse_amendment(data: bytes, digest: Digest) -> Amendment:
    """Parse an amendment from its canonical bytes, checked against its digest."""
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
        """The digest that the owner's slot names: the latest amendment's, or the first spec's."""
        return self.amendments[-1].digest if self.amendments else self.id

    def head_at(self, round: int) -> Digest:
        """Return the digest of the last published amendment of those in force in `round`, of the first spec before any:
        together with the round it names one spec. Links of selections contain it (murmur.protocol.messages.link_of)."""
        return next((a.digest for a in reversed(self.amendments) if a.from_round <= round), self.id)

    def settled_by(self, amendment: Amendment) -> int:
        """Return the block that decides about an amendment: as of it, the owner's slot has to name the amendment, or
        one that builds on it. It is the last block before the round before `from_round`."""
        return self.clock.start(amendment.from_round - 1) - 1

    def spec_at(self, round: int) -> RunSpec:
        """Return the spec in force in `round`: the first one with the changes of all amendments in force by then, in
        the order of their publication."""
        return self._stages[bisect_right(self._stages, round, key=itemgetter(0)) - 1][1]

    def voided(self, round: int, block: int) -> bool:
        """Whether the owner has declared the round void, as seen at chain height `block`."""
        return any(
            a.void_round == round and a.void_from_block is not None and block >= a.void_from_block
            for a in self.amendments
        )

    def amended(self, amendments: Sequence[Amendment]) -> "Run":
        """Return this run with `amendments` (in the order of their publication) appended. Raises ConfigError if they do
        not follow one another, or if one of them makes no valid spec."""
        run = Run(self.first, self.amendments + tuple(amendments))
        previous, stages = self.head, self._stages
        for amendment in amendments:
            if bytes.fromhex(amendment.previous) != previous:
                raise ConfigError("amendments of the run do not follow one another: ask the run's owner")
            starts = self.clock.start(amendment.from_round)
            if amendment.void_from_block is not None and amendment.void_from_block < starts:
                raise ConfigError(
                    f"an amendment voids a round from block {amendment.void_from_block} on, but holds only from block "
                    f"{starts} on: nodes that looked before and after it would part"
                )
            previous, stages = amendment.digest, _staged(stages, amendment)
        vars(run)["_stages"] = stages  # not built again: a spec of a large model costs milliseconds
        return run

    @cached_property
    def _stages(self) -> list[tuple[int, RunSpec]]:
        """(first round, spec) of every stage, by round."""
        stages = [(0, self.first)]
        for amendment in self.amendments:
            stages = _staged(stages, amendment)
        return stages


def _staged(stages: list[tuple[int, RunSpec]], amendment: Amendment) -> list[tuple[int, RunSpec]]:
    """Return the stages with one more amendment: it applies to every stage from its round on."""
    at = bisect_right(stages, amendment.from_round, key=itemgetter(0))
    before, after = stages[:at], stages[at:]
    if before[-1][0] == amendment.from_round:
        after.insert(0, before.pop())
    else:
        after.insert(0, (amendment.from_round, before[-1][1]))
    return before + [(round, _changed(spec, amendment) if amendment.changes else spec) for round, spec in after]


def _changed(spec: RunSpec, amendment: Amendment) -> RunSpec:
    return build(changed(spec, amendment.changes), f"the run spec amended from round {amendment.from_round}")


_SAVED = "what miners have saved is the state of the first one"
FIXED = {
    "inner": {"optimizer": _SAVED, "state": _SAVED},
    "gauntlet": {"trace_values": "payloads have one size"},
}
"""Fields that no amendment changes, and why."""


def changed(spec: TrainingSpec, changes: Mapping[Any, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the spec's table with these fields of its tables replaced. Raises ConfigError for a field that no
    amendment can change."""
    table = spec.model_dump(mode="json")
    for name, fields in changes.items():
        target = table if name == "protocol" else table[name]
        allowed = {"min_protocol", "max_protocol"} if name == "protocol" else set(target)
        if unknown := set(fields) - allowed:
            raise ConfigError(f"an amendment changes unknown fields of {name}: {sorted(unknown)}")
        for fixed, why in FIXED.get(name, {}).items():
            if fields.get(fixed, target[fixed]) != target[fixed]:
                raise ConfigError(f"an amendment changes {name}.{fixed}, which stays for the whole run: {why}")
        target.update(fields)
    return table

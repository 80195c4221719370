"""A cluster's spec, and its members' documents in the shared bucket (docs/cluster.md).

Members trust each other, not the store: beats, claims and records are documents tagged with the group's secret. A
record is created once, so the store decides which one a round has.
"""

from collections.abc import Mapping
from enum import StrEnum
from functools import cached_property
from hashlib import sha256
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, ValidationError, model_validator

from murmur.protocol.errors import ConfigError, InvalidMessage
from murmur.protocol.fields import Count, Decay, DigestField, PeerIdField, Positive, Rate, Share, Table, fault_lines
from murmur.protocol.layout import DenseLayout, Layout
from murmur.protocol.messages import KEY_BYTES, encode_document, link_of, parse_document, parse_json
from murmur.protocol.ports import Signer, Verify
from murmur.protocol.run import changed
from murmur.protocol.spec import Exchange, OuterSpec, TrainingSpec
from murmur.protocol.types import MAX_UIDS, Digest, PeerId, Selection

GROUP = PeerId(bytes(32))
"""The signer of a record: the group."""
NAME = r"^[a-z0-9][a-z0-9-]{0,62}$"
"""In the head of a document that belongs to no one round."""
AMENDABLE = {
    "outer": {"alpha", "aggregate"},
    "cluster": {"beat_seconds", "silent_seconds", "grace", "least_steps", "keep_rounds"},
}
"""Fields of these tables that may change in mid-run: none that determines the format of states or updates. Of `inner`
all but the optimizer and its state may change (murmur/protocol/run.py)."""

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Loss = Annotated[float, Field(allow_inf_nan=False)]
WrappedKey = Annotated[str, Field(pattern=rf"^[0-9a-f]{{{2 * KEY_BYTES}}}$")]


class ClusterTable(Table):
    """How a cluster's rounds end.

    A member whose beat has not changed for `silent_seconds` of looks that the store answered is not waited for; beats
    are `beat_seconds` apart. Once more than half of the living members have claimed, the others end their inner steps.
    The round then waits for two steps and the time to send, plus `grace` of the median training time, or two beats if
    that is longer. A member that has done less than `least_steps` of the inner steps sends nothing, unless it is slower
    than the others or began late. Payloads are kept for `keep_rounds` rounds.

    `exchange` is the kind of update: SparseLoCo's, or every value in int8 (sparseloco/dense.py), which carries nothing
    over from round to round. It is fixed for the whole run.
    """

    exchange: Exchange = "sparse"
    beat_seconds: Rate = 5.0
    silent_seconds: Rate = 20.0
    grace: Share = 0.02
    least_steps: Share = 0.25
    keep_rounds: Positive = 24


class ClusterOuter(OuterSpec):
    """`momentum`: Nesterov's, of the int8 exchange. It is fixed for the whole run."""

    momentum: Decay = 0.0


class ClusterSpec(TrainingSpec):
    """A whole run of a cluster. There is no owner: each holder of the group's secret is a member."""

    outer: ClusterOuter = ClusterOuter()
    cluster: ClusterTable = ClusterTable()

    @cached_property
    def layout(self) -> Layout:
        sparse = super().layout
        return DenseLayout(sparse.tensors, sparse.k) if self.exchange == "int8" else sparse

    @property
    def exchange(self) -> Exchange:
        return self.cluster.exchange

    @property
    def momentum(self) -> float:
        return self.outer.momentum

    @model_validator(mode="after")
    def _exchange_fits(self) -> Self:
        if self.exchange == "int8" and self.outer.aggregate != "mean":
            raise ValueError(
                f"outer: aggregate {self.outer.aggregate!r} is not for cluster.exchange 'int8', which takes the mean"
            )
        if self.exchange == "sparse" and self.momentum:
            raise ValueError(
                f"outer: momentum {self.momentum:g} is for cluster.exchange 'int8'; SparseLoCo has none: set it to 0"
            )
        return self

    @model_validator(mode="after")
    def _times_fit(self) -> Self:
        cluster = self.cluster
        if cluster.silent_seconds < 3 * cluster.beat_seconds:
            raise ValueError(
                f"cluster: silent_seconds {cluster.silent_seconds:g} is less than three beats of "
                f"{cluster.beat_seconds:g} s: a member would be given up for one late beat"
            )
        if cluster.keep_rounds < 2 * self.checkpoint_rounds:
            raise ValueError(
                f"cluster: keep_rounds {cluster.keep_rounds} is less than two intervals of checkpoints "
                f"({2 * self.checkpoint_rounds}): who joins could not follow"
            )
        return self


def build_cluster(table: Mapping[str, object], source: str) -> ClusterSpec:
    """Build a spec from a table; `source` names it in errors. Raises ConfigError with one line per fault."""
    try:
        return ClusterSpec.model_validate(table)
    except ValidationError as fault:
        raise ConfigError(f"{source} is not a valid cluster spec:\n" + fault_lines(fault)) from None


def parse_cluster(data: bytes, digest: Digest) -> ClusterSpec:
    """Parse a spec from its canonical bytes, checked against the run's id. Raises InvalidMessage for other bytes and
    ConfigError for a spec that is not valid here."""
    if sha256(data).digest() != digest:
        raise InvalidMessage("spec: its bytes do not hash to the run's id")
    spec = build_cluster(parse_json(data), "the cluster's spec")
    if spec.digest != digest:
        raise ConfigError("this release writes the cluster's spec in other bytes: use the release that created it")
    return spec


class Document(Table):
    """What is in the bucket under the tag of its writer, a member or the group. `kind`: in its head."""

    kind: ClassVar[str]

    def encode(self, run: Digest, round: int, writer: Signer) -> bytes:
        return encode_document(self.kind, run, round, self.model_dump(mode="json"), writer)

    @classmethod
    def parse(cls, data: bytes, run: Digest, round: int, writer: PeerId, verify: Verify) -> Self:
        """Raises InvalidMessage."""
        body = parse_document(data, cls.kind, run, round, writer, verify)
        try:
            return cls.model_validate(body)
        except ValidationError as fault:
            raise InvalidMessage(f"{cls.__name__.lower()}: " + fault_lines(fault)) from None


class Amendment(Document):
    """A change of the spec, or the end of the run: the record that names it is of the last round. Any holder of the
    group's secret may write one; members trust each other."""

    kind: ClassVar[str] = "amend"

    changes: dict[Literal["inner", "outer", "cluster"], dict[str, Any]] = Field(default_factory=dict)
    last: bool = False


def amended(spec: ClusterSpec, amendment: Amendment) -> ClusterSpec:
    """Return the spec with this amendment. Raises ConfigError if that is no valid spec, or for a field that cannot
    change."""
    for name, fields in amendment.changes.items():
        if name in AMENDABLE and (fixed := set(fields) - AMENDABLE[name]):
            raise ConfigError(f"an amendment cannot change {', '.join(f'{name}.{field}' for field in sorted(fixed))}")
    whole = build_cluster(changed(spec, amendment.changes), "the cluster's spec with this amendment")
    return spec.model_copy(update={name: getattr(whole, name) for name in amendment.changes})  # the layout stays


class Standing(StrEnum):
    """What a member does in its round; its beats say so (docs/cluster.md)."""

    JOINING = "join"
    TRAINING = "train"
    SENDING = "send"
    WAITING = "wait"
    APPLYING = "apply"
    IDLE = "idle"
    """It sends nothing in this round, and waits for the others' record."""
    DONE = "done"
    """The run is closed: it has applied the last record."""


class Beat(Document):
    """A member's sign of life, written again and again. process: drawn at its start; count: of its beats. round, step,
    phase: its position; a member that joins or idles will not claim in the round. theta: what it holds at the start of
    that round, as it says; what follows from the last record is named by nothing else. passed: seconds since it began
    the round's inner steps, or, of a member that began late, since the others did; 0 where it does not know. leaving:
    it does not come back by itself."""

    kind: ClassVar[str] = "beat"

    name: Annotated[str, Field(pattern=NAME)]
    process: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
    count: Count
    round: Count
    step: Count
    phase: Annotated[Standing, Field(strict=False)]
    theta: DigestField | None = None
    passed: Seconds = 0.0
    leaving: bool = False


class Drain(Document):
    """The request that a member leaves after its round. request: drawn for each; a member follows it once."""

    kind: ClassVar[str] = "drain"

    request: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]


class Claim(Document):
    """A member's statement that its sealed update of a round is complete in its part of the bucket. theta, previous:
    the state that it was trained from, and the link of the record before. envelope: the digest that pins the sealed
    object. key: the wrapped key that opens it. steps: inner steps done, in `seconds`. sending: seconds from the last of
    them to the claim, in its last round. loss: mean over these steps, nats a token, as the member says; None if it was
    not finite. No decision reads it: it is for people."""

    kind: ClassVar[str] = "claim"

    theta: DigestField
    previous: DigestField
    envelope: DigestField
    key: WrappedKey
    steps: Positive
    seconds: Seconds
    sending: Seconds = 0.0
    loss: Loss | None = None


class MeanPart(Document):
    """One part of a round's mean, summed by a member for all (int8). record: the link of the record whose updates are
    summed; a round that is closed anew has another mean. envelope, key: as in a claim."""

    kind: ClassVar[str] = "mean"

    record: DigestField
    envelope: DigestField
    key: WrappedKey


class Contribution(Claim):
    """A claim in a record."""

    member: PeerIdField


class Record(Document):
    """The result of a round: the updates to apply to `theta`. by: the member that closed it, for people. amendments:
    how many are in force from the next round on."""

    kind: ClassVar[str] = "record"

    by: PeerIdField
    amendments: Count = 0
    theta: DigestField
    previous: DigestField
    updates: Annotated[tuple[Contribution, ...], Field(min_length=1, max_length=MAX_UIDS, strict=False)]

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        members = [update.member for update in self.updates]
        if members != sorted(set(members)):
            raise ValueError("the members are not in order")
        if any((update.theta, update.previous) != (self.theta, self.previous) for update in self.updates):
            raise ValueError("an update was trained from another state")
        return self

    @property
    def claims(self) -> dict[PeerId, Claim]:
        """The applied updates by member."""
        return {update.member: update for update in self.updates}

    def link(self, run: Digest, round: int) -> Digest:
        """Return this record's link: `previous` of the next."""
        return link_of(self.selection(run, round))

    def selection(self, run: Digest, round: int) -> Selection:
        """Return the applied updates as a Selection, for code that follows any run. Its link is `previous` of the
        next."""
        pairs = tuple((update.member, update.envelope) for update in self.updates)
        return Selection(round, self.theta, self.previous, run, pairs)

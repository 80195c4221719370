"""The shapes of books and reports in JSON (murmur.protocol.messages.parse_as): all that of a stranger's text is ever
turned into objects. Ranges that depend on a round are checked by gauntlet/report.py."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType

from murmur.protocol.messages import REVEAL_BYTES, U32, Hex32, Shape
from murmur.protocol.types import MAX_UIDS

MAX_DETAIL_CHARACTERS = 300
MOST_STEPS = 1 << 14
"""Of a round whose steps are repeated."""
_MOST_REMEMBERED = 32 * MAX_UIDS
"""All hotkeys in the most rounds that a spec can ask for."""

AverageShape = tuple[float, float]
RememberedShape = Annotated[list[tuple[U32, Hex32, Hex32]], Meta(max_length=_MOST_REMEMBERED)]
_Text = Annotated[str, Meta(max_length=64)]
"""Room for a hotkey's address, or an outcome's name."""
_Hotkeys = Annotated[list[_Text], Meta(max_length=MAX_UIDS)]


class RecordShape(Shape):
    """A PeerRecord in JSON."""

    first_seen: U32
    mu: float
    sigma: float
    gaps: AverageShape
    units: AverageShape
    scores: AverageShape
    usual_scores: AverageShape
    score_variances: AverageShape
    assigned_scores: AverageShape
    evaluations: U32
    last_evaluated: U32 | None
    contributed: U32
    faults: U32
    penalty: float
    presence: float
    work: float
    repeated: U32
    unproven: U32


class BookShape(Shape):
    """A ScoreBook in JSON."""

    version: Literal[8]
    round: Annotated[int, Meta(ge=-1, le=(1 << 32) - 1)]
    unit: AverageShape
    usual_score: AverageShape
    score_variance: AverageShape
    peers: dict[Hex32, RecordShape]
    remembered: RememberedShape
    unobserved: float


class LossShape(Shape):
    assigned: float | None
    unassigned: float | None
    references: U32


_Distances = Annotated[list[float], Meta(max_length=MOST_STEPS)]


class RepetitionShape(Shape):
    round: U32
    steps: Annotated[int, Meta(ge=1, le=(1 << 32) - 1)]
    declared: U32
    moves: _Distances
    gradients: _Distances
    confirmed: bool


class RowShape(Shape):
    """A row of `Report.named`."""

    uid: U32
    weight: float
    rejected: _Text | UnsetType = UNSET
    detail: Annotated[str, Meta(max_length=MAX_DETAIL_CHARACTERS)] | UnsetType = UNSET
    standing: _Text | UnsetType = UNSET
    contributing: bool | UnsetType = UNSET
    twins: _Hotkeys | UnsetType = UNSET
    copied: bool | UnsetType = UNSET
    mu: float | UnsetType = UNSET
    sigma: float | UnsetType = UNSET
    proof: float | UnsetType | None = UNSET
    score: float | UnsetType = UNSET
    assigned_score: float | UnsetType = UNSET
    evaluations: U32 | UnsetType = UNSET
    contributed: U32 | UnsetType = UNSET
    faults: U32 | UnsetType = UNSET
    penalty: float | UnsetType = UNSET
    eligible: bool | UnsetType = UNSET
    peer_score: float | UnsetType = UNSET
    presence: float | UnsetType = UNSET
    loss_score: LossShape | UnsetType = UNSET
    gap: float | UnsetType = UNSET
    work: float | UnsetType = UNSET
    repeated: U32 | UnsetType = UNSET
    unproven: U32 | UnsetType = UNSET
    repetition: RepetitionShape | UnsetType = UNSET


class PaidShape(Shape):
    block: U32
    set_in: U32 | None


class ReportShape(Shape):
    """A report's body: what `Report.to_body` writes."""

    round: U32
    peers: Annotated[dict[_Text, RowShape], Meta(max_length=MAX_UIDS)]
    before: BookShape
    after: BookShape
    gone: U32
    history: RememberedShape
    reveals: Annotated[
        dict[_Text, Annotated[str, Meta(min_length=2 * REVEAL_BYTES, max_length=2 * REVEAL_BYTES)]],
        Meta(max_length=MAX_UIDS),
    ]
    payloads: Annotated[dict[_Text, Hex32], Meta(max_length=MAX_UIDS)]
    paid: PaidShape
    unobserved: _Text | None

"""What the witness excuses."""

import pytest

from murmur.lab.simulation.invariants import Witness
from murmur.protocol.types import Reason


@pytest.mark.parametrize(
    ("detail", "void", "excused"),
    [
        ("equals the payload of ours in round 4", (4, 5), True),
        ("equals the payload of ours in round 4", (5,), False),
        ("equals the payload of another in round 4", (4, 5), False),
        ("overlaps 0.99 with the payload of ours in round 4", (4, 5), False),
    ],
    ids=["from one theta", "theta moved", "another's", "only near"],
)
def test_an_honest_peer_repeats_its_own_payload_by_chance_only_while_rounds_are_void(
    detail: str, void: tuple[int, ...], excused: bool
) -> None:
    witness = Witness(9)
    witness._void = dict.fromkeys(void)
    assert witness._by_chance("ours", 6, {"rejected": str(Reason.COPY), "detail": detail}) == excused

"""A cluster at this moment, for the page: its members and its amendments, as a source has found them."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Literal

from murmur.page.rounds import Rounds
from murmur.page.tables import work

State = Literal["alive", "silent", "stuck", "left", "unknown"]
USUAL_ROUNDS = 8
"""Rounds from which the usual length of a round is taken, and in which a member's last claim is looked for."""


@dataclass(frozen=True, slots=True)
class MemberNow:
    """A member. `member`: its id. `state`: silent without a goodbye, stuck at one step, left on request, or unknown:
    not watched for long enough yet. `phase`, `round`, `step`: where it is, or was last; `step` is None where that is
    not known."""

    member: str
    name: str
    state: State
    phase: str
    round: int
    step: int | None = None


@dataclass(frozen=True, slots=True)
class AmendmentNow:
    """An amendment. `from_round`: the first round in which it is in force, None while no record names it. `last`: it
    ends the run with the record that names it."""

    number: int
    from_round: int | None
    changes: dict[str, Any]
    last: bool


@dataclass(frozen=True, slots=True)
class ClusterNow:
    """A cluster. `closed`: it has had its last round."""

    members: tuple[MemberNow, ...] = ()
    amendments: tuple[AmendmentNow, ...] = ()
    closed: bool = False


def facts(now: ClusterNow, rounds: Rounds) -> dict[str, Any]:
    """Return it as JSON. `last`: the newest round in which the member has claimed, with the numbers of `work`."""
    nodes = {peer: node for node, peer in rounds.hotkeys.items()}
    newest = [*rounds][: -USUAL_ROUNDS - 1 : -1]

    def last(member: str) -> dict[str, Any] | None:
        node = nodes.get(member, member)
        return next(({"round": one.number, **work(one, node)} for one in newest if node in one.steps), None)

    return {
        "members": [asdict(member) | {"last": last(member.member)} for member in now.members],
        "amendments": [asdict(amendment) for amendment in now.amendments],
        "closed": now.closed,
    }


def round_seconds(rounds: Rounds) -> float | None:
    """Return how long a round usually takes, by the last ones; None while that is not known."""
    lengths = [median(one.length.values()) for one in rounds.newest(USUAL_ROUNDS) if one.length]
    return median(lengths) if lengths else None


def troubles(now: ClusterNow) -> Iterator[str]:
    """Yield what is wrong with its members, the worst first."""
    silent = [member.name for member in now.members if member.state == "silent"]
    if silent and {member.state for member in now.members} <= {"silent", "left"}:
        yield f"No member is alive: {_list(silent)} went silent."
    for member in now.members:
        if member.state == "stuck":
            yield (
                f"{member.name} beats, but has not moved on from step {member.step} of round {member.round}: its GPU "
                "hangs, or its link is blocked. The others do not wait for it."
            )
    if silent:
        are, them = ("is", "it") if len(silent) == 1 else ("are", "them")
        yield f"{_list(silent)} {are} silent: the others go on without {them}."


def contributed(body: dict[str, Any], names: Mapping[str, str]) -> str:
    """Return in words who contributed to a round. body: as in murmur/page/round.py; names: by id."""
    said = f"{len(body['contributing'])} of {body['active'] or 0} contributed in round {body['round']}"
    for code, words in (("LATE", "came too late"), ("APART", "held another model")):
        late = [names.get(member, member[:12]) for member, why in body["rejected"].items() if why == code]
        said += f", {_list(late)} {words}" if late else ""
    return said


def _list(names: list[str]) -> str:
    names = sorted(names)
    shown = names if len(names) <= 4 else [*names[:3], f"{len(names) - 3} more"]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"

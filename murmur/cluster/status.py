"""`murmur cluster status`: read from the bucket by a holder of the token."""

from collections import Counter
from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any

from node.cluster.amendments import AmendedSpec
from node.cluster.bootstrap import find_spec, open_shared
from node.cluster.group_keys import Group, Token
from node.cluster.ledger import Ledger
from protocol.cluster import Beat
from protocol.types import PeerId
from storage.realtime import REAL

LAST = 5
_NOBODY = PeerId(bytes(32))


def look(token: Token) -> dict[str, Any]:
    """Return members by their last beat, and the last records. A member whose beat did not change while we looked is
    silent. Raises ConfigError, StorageError."""
    bucket, run = open_shared(token), token.run_id
    spec = find_spec(bucket, run)
    ledger = Ledger(bucket, run, Group(token.secret), _NOBODY, REAL)
    rounds = ledger.rounds()
    latest = {round: ledger.record(round) for round in range(max(0, rounds - LAST), rounds)}
    found = {round: record for round, record in latest.items() if record is not None}
    now = AmendedSpec(spec, ledger).at(max((record.amendments for record in found.values()), default=0))
    beats, alive = look_twice(ledger, now.spec.cluster.beat_seconds)
    names = told_names(beats)
    records = []
    for round, record in found.items():
        losses = [update.loss for update in record.updates if update.loss is not None]
        records.append(
            {
                "round": round,
                "members": [names.get(update.member, update.member[:8]) for update in record.updates],
                "steps": sum(update.steps for update in record.updates),
                "loss": median(losses) if losses else None,
                "theta": record.theta,
                "by": names.get(record.by, record.by[:8]),
            }
        )
    members = [
        {
            "name": names[member.hex()],
            "member": member.hex(),
            "round": beat.round,
            "step": beat.step,
            "phase": "left" if beat.leaving else beat.phase,
            "alive": member in alive,
        }
        for member, beat in sorted(beats.items(), key=lambda one: one[1].name)
    ]
    return {
        "run": spec.name,
        "id": run.hex(),
        "steps": now.spec.inner.steps,
        "amendments": now.count,
        "closed": now.closed,
        "members": members,
        "records": records,
    }


def look_twice(ledger: Ledger, beat_seconds: float) -> tuple[dict[PeerId, Beat], set[PeerId]]:
    """Return all members' last beats, and the members that live: their beat has changed within a beat and a half.
    Raises StorageError."""
    before = ledger.beats()
    if all(beat.leaving for beat in before.values()):
        return before, set()
    REAL.sleep(1.5 * beat_seconds)
    beats = ledger.beats()
    return beats, {member for member, beat in beats.items() if not beat.leaving and before.get(member) != beat}


def told_names(beats: Mapping[PeerId, Beat]) -> dict[str, str]:
    """Return each member's name by its id in hex; with the id's beginning where several have one name."""
    count = Counter(beat.name for beat in beats.values())
    return {
        member.hex(): beat.name if count[beat.name] == 1 else f"{beat.name}.{member.hex()[:8]}"
        for member, beat in beats.items()
    }


def lines(found: dict[str, Any]) -> Iterator[str]:
    """Yield the status as lines for people."""
    yield f"run {found['run']} ({found['id'][:16]}), {sum(m['alive'] for m in found['members'])} members alive"
    if found["amendments"]:
        yield f"amendments: {found['amendments']}" + (", the last one closes the run" if found["closed"] else "")
    for member in found["members"]:
        state = member["phase"] if member["alive"] or member["phase"] == "left" else "silent"
        yield f"  {member['name']:<16} {state:<6} round {member['round']}, step {member['step']} of {found['steps']}"
    for record in found["records"]:
        loss = f" at loss {record['loss']:.3f}" if record["loss"] is not None else ""
        yield (
            f"round {record['round']}: {len(record['members'])} contributed, {record['steps']} steps{loss}, closed by "
            f"{record['by']}: {', '.join(record['members'])}"
        )

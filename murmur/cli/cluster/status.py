"""`murmur cluster status`: read from the bucket by a holder of the token."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from statistics import median
from typing import Any

from murmur.cluster.amendments import AmendedSpec, AmendmentLost
from murmur.cluster.bootstrap import find_spec, open_shared
from murmur.cluster.group_keys import Group, Token
from murmur.cluster.ledger import Ledger, UnreadableRecord
from murmur.plan.timetable import duration
from murmur.protocol.cluster import Beat, ClusterTable, Record
from murmur.protocol.types import Digest, PeerId
from storage.realtime import REAL

LAST = 5
_NOBODY = PeerId(bytes(32))


def look(token: Token, tell: Callable[[str], None]) -> dict[str, Any]:
    """Return members by their last beat, and the last records. Raises ConfigError, StorageError."""
    tell(f"reading {token.endpoint}/{token.bucket}")
    bucket, run = open_shared(token), token.run_id
    spec = find_spec(bucket, run)
    ledger = Ledger(bucket, run, Group(token.secret), _NOBODY, REAL)
    rounds, faults = ledger.rounds(), list[str]()
    found = records_of(ledger, range(max(0, rounds - LAST), rounds), faults)
    now = AmendedSpec(spec, ledger)
    try:
        now = now.at(max((record.amendments for record in found.values()), default=0))
    except AmendmentLost as fault:
        faults.append(str(fault))
    tell(f"waiting for each member's next beat, at most {now.spec.cluster.silent_seconds:.0f} s")
    beats, alive = living(ledger, now.spec.cluster)
    names = {member: beat.name for member, beat in beats.items()}
    faults += differing(ledger, rounds, found.get(rounds - 1), {member: beats[member] for member in alive}, names)
    records = []
    for round, record in found.items():
        losses = [update.loss for update in record.updates if update.loss is not None]
        records.append(
            {
                "round": round,
                "members": [names.get(update.member, update.member.hex()[:8]) for update in record.updates],
                "steps": sum(update.steps for update in record.updates),
                "loss": median(losses) if losses else None,
                "theta": record.theta.hex(),
                "by": names.get(record.by, record.by.hex()[:8]),
            }
        )
    members = [
        {
            "name": names[member],
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
        "last_record_at": ledger.closed_at(rounds - 1) if rounds else None,
        "members": members,
        "records": records,
        "faults": faults,
    }


def differing(
    ledger: Ledger, round: int, record: Record | None, beats: Mapping[PeerId, Beat], names: Mapping[PeerId, str]
) -> list[str]:
    """Return in words which living members hold different thetas at the start of one round, and which claim in this
    round on another record before it than the bucket shows. Raises StorageError."""
    found, thetas = list[str](), defaultdict[int, dict[Digest, list[str]]](lambda: defaultdict(list))
    for member, beat in sorted(beats.items()):
        if beat.theta is not None:
            thetas[beat.round][beat.theta].append(names[member])
    for at, groups in sorted(thetas.items()):
        if len(groups) > 1:
            sides = "; ".join(", ".join(group) for group in sorted(groups.values(), key=len))
            found.append(
                f"members hold different thetas at the start of round {at}: {sides}. Those that the next "
                "record does not follow start over by themselves; a machine that does so again and again computes "
                "wrongly: take it out"
            )
    if record is not None:
        link = record.link(ledger.run, round - 1)
        claims = ledger.claims_of(round, sorted(beats))
        others = [names[member] for member, claim in sorted(claims.items()) if claim.previous != link]
        if others:
            found.append(
                f"round {round}: {', '.join(others)} go on from another record of round {round - 1} than the bucket "
                "shows: the store has changed it, or shows several. Members follow what most of them claim"
            )
    return found


def records_of(ledger: Ledger, rounds: Iterable[int], faults: list[str] | None = None) -> dict[int, Record]:
    """Return the records of these rounds that are there and can be read. faults: what is wrong with the others is added
    here. Raises StorageError."""
    found = dict[int, Record]()
    for round in rounds:
        try:
            record = ledger.record(round)
        except UnreadableRecord as fault:
            if faults is not None:
                faults.append(str(fault))
            continue
        if record is not None:
            found[round] = record
    return found


def living(ledger: Ledger, rules: ClusterTable) -> tuple[dict[PeerId, Beat], set[PeerId]]:
    """Return all members' last beats, and the members that live: their beat changes within `silent_seconds`. Waits as
    long for those that are silent. Raises StorageError."""
    beats, alive, until = ledger.beats(), set[PeerId](), REAL.now() + rules.silent_seconds
    while REAL.now() < until and any(not beat.leaving and member not in alive for member, beat in beats.items()):
        REAL.sleep(rules.beat_seconds)
        latest = ledger.beats()
        alive |= {member for member, beat in latest.items() if member in beats and beat != beats[member]}
        beats |= latest
    return beats, {member for member in alive if not beats[member].leaving}


def lines(found: dict[str, Any]) -> Iterator[str]:
    """Yield the status as lines for people."""
    alive = sum(m["alive"] for m in found["members"])
    state = "closed, and nobody is left" if found["closed"] and not alive else f"members alive: {alive}"
    yield f"run {found['run']} ({found['id'][:16]}), {state}"
    if found["amendments"]:
        yield f"amendments: {found['amendments']}" + (", the last one closes the run" if found["closed"] else "")
    for member in found["members"]:
        state = member["phase"] if member["alive"] or member["phase"] == "left" else "silent"
        yield f"  {member['name']:<16} {state:<6} round {member['round']}, step {member['step']} of {found['steps']}"
    yield from found["faults"]
    if found["last_record_at"] is not None:
        yield f"the newest record is {duration(max(0.0, REAL.wall() - found['last_record_at']))} old"
    for record in found["records"]:
        loss = f" at loss {record['loss']:.3f}" if record["loss"] is not None else ""
        yield (
            f"round {record['round']}: {len(record['members'])} contributed, {record['steps']} steps{loss}, closed by "
            f"{record['by']}: {', '.join(record['members'])}"
        )

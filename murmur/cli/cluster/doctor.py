"""`murmur cluster doctor`: all of a member's requirements, tested before it is started. Nothing stays in the bucket:
test objects are put for a moment into this machine's own part."""

import os
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path

from murmur.cli.cluster.status import living, records_of
from murmur.cli.doctor.examination import as_json, show
from murmur.cli.doctor.slow_checks import (
    BUSY,
    NOTHING_GIVEN,
    STORE_SECONDS,
    gpus_here,
    in_memory,
    measure_links,
    on_gpu,
    parts,
    tried_words,
    versions,
)
from murmur.cluster.amendments import AmendedSpec, AmendmentLost
from murmur.cluster.bootstrap import OWN_GROUP, another_group, find_spec, member_id, open_data, open_shared, wrong_group
from murmur.cluster.documents import CALL_SECONDS
from murmur.cluster.group_keys import Group, Token, parse_token, read_token
from murmur.cluster.ledger import Ledger, UnreadableRecord
from murmur.cluster.pace import ROUNDS, SPREAD, usual_seconds
from murmur.node.config.settings import ClusterConfig, flags_in, load_part
from murmur.node.doctor import machine
from murmur.node.doctor.finding import Advice, Check, Examined, FailedCheck, Finding, Status
from murmur.node.program import process
from murmur.plan.cluster import refusals
from murmur.plan.machine import tell
from murmur.plan.measure import measure
from murmur.plan.member import ClusterPlan
from murmur.plan.rates import Rates
from murmur.plan.timetable import duration
from murmur.protocol.cluster import ClusterSpec
from murmur.protocol.errors import ConfigError
from murmur.protocol.ports import Time
from murmur.protocol.types import PeerId
from murmur.training.memory import Role
from storage.behaviour import CREATES_NOT_ONCE, STORES_THAT_CREATE_ONCE, creates_once
from storage.prefixed import PrefixedBucket
from storage.realtime import REAL
from storage.s3 import RangedBucket

TOKEN_FIX = "ask for the token again (murmur cluster invite), and save it in the file of --token-file"
STORE_FIX = f"use another store: {STORES_THAT_CREATE_ONCE}"
BUCKET_FIX = "check that this machine reaches the bucket's address, and that the token's key is still valid"
DATA_FIX = "set --data to a copy of the run's data, or leave it out to fetch the data from the bucket"


class ExaminedMember(Examined):
    """One member under examination, and the results that its checks share."""

    role: Role = "miner"
    home: Path
    token: Token
    bucket: RangedBucket
    ledger: Ledger
    spec: ClusterSpec
    me: PeerId
    members: int
    """This one, and the others that live."""
    links: Rates

    def __init__(self, config: ClusterConfig, say: Callable[[str], None], time: Time = REAL) -> None:
        self.config, self.tell, self.time = config, say, time

    @property
    def endpoint(self) -> str:
        return self.token.endpoint

    @property
    def own(self) -> PrefixedBucket:
        """Our own part of the bucket."""
        return self.ledger.part(self.me)

    reader = own
    """Members read with the key that they write with."""


def examine(options: Namespace) -> int:
    """Run the checks and return the exit status: 1 when a check has failed. Raises ConfigError."""
    flags = {"name": "doctor"} | flags_in(options, ClusterConfig)  # the name is not shown to other members
    try:
        config = load_part(ClusterConfig, "murmur cluster doctor", flags, os.environ)
    except ConfigError as fault:
        if not options.json:
            raise
        fix = "correct the settings that are missing or wrong"
        print(as_json([Finding("configuration", Status.FAULT, str(fault), fix)]), end="")  # noqa: T201
        return 1
    process.log_to_stderr("ERROR")
    return show(ExaminedMember(config, tell), CHECKS, json=options.json)


def token(member: ExaminedMember) -> str:
    """Check that the token is complete and leads to a bucket."""
    member.token = parse_token(read_token(member.config.token_file))
    member.bucket = open_shared(member.token)
    member.me = member_id(member.token.run_id, member.config.name)
    member.ledger = Ledger(member.bucket, member.token.run_id, Group(member.token.secret), member.me, member.time)
    return f"run {member.token.run[:16]} in {member.token.endpoint}/{member.token.bucket}"


def bucket(member: ExaminedMember) -> str:
    """Check that the token's key lists and reads."""
    member.bucket.list("", max_keys=1, timeout_seconds=CALL_SECONDS)
    return "the token's key opens it"


def run(member: ExaminedMember) -> str | Advice:
    """Check that the run exists, belongs to this token's group, and is supported by this release."""
    member.spec = find_spec(member.bucket, member.token.run_id)
    if wrong_group(member.bucket, member.token.run_id, member.ledger.group):
        raise FailedCheck(another_group(member.token.run_id), OWN_GROUP)
    rounds, lost = member.ledger.rounds(), ""
    try:
        record = member.ledger.record(rounds - 1) if rounds else None
        if record is not None:
            member.spec = AmendedSpec(member.spec, member.ledger).at(record.amendments).spec
    except (UnreadableRecord, AmendmentLost) as fault:
        lost = str(fault)
    except ConfigError as fault:
        raise FailedCheck(str(fault), "update this release") from None
    member.tell("which members live")
    others = living(member.ledger, member.spec.cluster)[1] - {member.me}
    member.members = len(others) + 1
    said = f"{member.spec.name}, round {rounds}; others that live: {len(others)}"
    return Advice(f"{said}. {lost}", "wait until a member that was there puts it back") if lost else said


def once(member: ExaminedMember) -> str:
    """Check that the store can decide rounds: it creates an object only where there is none."""
    if not creates_once(member.own, timeout_seconds=STORE_SECONDS):
        raise FailedCheck(CREATES_NOT_ONCE, STORE_FIX)
    return "when several members create one object, one wins and the others learn it (If-None-Match: *)"


def data(member: ExaminedMember) -> str:
    """Check that the data set is the run's."""
    shards = open_data(member.config, member.spec, member.bucket, member.home)
    return f"index {member.spec.data.index[:16]}, {shards.train.num_tokens:,} tokens"


def links(member: ExaminedMember) -> str:
    """Measure the links to and from the bucket."""
    return measure_links(member)[2]


def memory(member: ExaminedMember) -> str:
    """Check that the model trains in the GPUs' memory."""
    return in_memory(member.spec, on_gpu(member.config.device))


def pace(member: ExaminedMember) -> str | Advice:
    """Compute a round's duration on this machine, and whether others are faster."""
    with_gpus = on_gpu(member.config.device)
    gpus, gpu_bytes = gpus_here() if with_gpus else (1, 0)
    plan = ClusterPlan(member.spec, gpus, gpu_bytes, member.links, on_gpu=with_gpus, members=member.members)
    measured = measure(plan, NOTHING_GIVEN, member.tell, home=member.home)
    plan, tried = measured.plan, tried_words(measured)
    if found := refusals(plan):
        raise FailedCheck("; ".join([*found, tried]), f"use a faster machine, store or link. {BUSY}")
    said = (
        f"among {member.members} members with this machine a round takes {duration(plan.round_seconds)}, of which "
        f"{plan.utilization:.0%} is compute; {tried}"
    )
    theirs = others_seconds(member)
    if theirs is None or plan.compute_seconds <= SPREAD * theirs:
        return said
    steps = member.spec.inner.steps
    ours = max(1, int(steps * theirs / plan.compute_seconds))
    return Advice(
        f"{said}. The others do all inner steps in {duration(theirs)}: this machine does about {ours} of "
        f"{steps}, and the others do not wait for it",
        f"no action is needed. A faster machine contributes more. {BUSY}",
    )


def others_seconds(member: ExaminedMember) -> float | None:
    """Return the seconds in which the others do all inner steps, by the last records; None where there are none."""
    newest = member.ledger.rounds()
    records = records_of(member.ledger, range(max(0, newest - ROUNDS), newest)).values()
    updates = [update for record in records for update in record.updates if update.member != member.me]
    return usual_seconds(updates, member.spec.inner.steps)


CHECKS: Sequence[Check] = (
    Check("home", machine.home, machine.HOME_FIX),
    Check("device", machine.device, "choose another --device or --codec"),
    Check("token", token, TOKEN_FIX, ("home",)),
    Check("clock", machine.clock, machine.CLOCK_FIX, ("token",)),
    Check("bucket", bucket, BUCKET_FIX, ("token", "clock")),
    Check("run", run, TOKEN_FIX, ("bucket",)),
    Check("once", once, BUCKET_FIX, ("bucket",)),
    Check("parts", parts, BUCKET_FIX, ("bucket",)),
    Check("versions", versions, BUCKET_FIX, ("bucket",)),
    Check("disk", machine.member_disk, machine.HOME_FIX, ("run",)),
    Check("data", data, DATA_FIX, ("run",)),
    Check("links", links, BUCKET_FIX, ("bucket",)),
    Check("memory", memory, "use GPUs with more memory", ("device", "run")),
    Check("pace", pace, "use a faster machine", ("home", "device", "run", "links")),
)

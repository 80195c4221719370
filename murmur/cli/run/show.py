"""`murmur run show`: a published run as any node sees it, or one that is not published yet."""

import sys
import tomllib
from argparse import Namespace
from shlex import quote

from murmur.cli import network
from murmur.cli.evaluate.checkpoints import rows_of
from murmur.cli.run.amend import described, when_settled
from murmur.export.rows import described as described_row
from murmur.export.rows import read_rows
from murmur.node.observe.opened_network import OpenedNetwork
from murmur.node.sync.amendments import owner_slot
from murmur.owner.amend import Standing, standing
from murmur.owner.draft import NOBODYS_THETA
from murmur.owner.folder import DRAFT, OWNER, open_folder
from murmur.owner.records import Stated, records, stated
from murmur.plan.timetable import duration
from murmur.protocol.errors import StorageError
from murmur.protocol.messages import first_link
from murmur.protocol.run import Run
from murmur.protocol.spec import RunSpec, build
from murmur.protocol.types import PublicPointer


def show(options: Namespace) -> int:
    """Print the run. Raises ConfigError, ChainError."""
    lines: list[str] = []
    if options.folder is not None and not (options.folder / DRAFT).exists():
        options.run = options.folder
    elif options.folder is not None:
        mine = open_folder(options.folder)
        if mine.spec is None:
            publish = f"murmur run publish {quote(str(mine.path))}"
            lines = [*_spec(build(mine.table, "the draft")), f"not published yet: {publish}"]
            sys.stdout.write("\n".join(lines) + "\n")
            return 0
        _say_where(options, mine.spec)
    there = network.open_network("murmur run show", options)
    now = standing(there.run, there.ports)
    newest = stated(there.run, there.ports, now.block)
    lines = [*_spec(there.run.first), *_time(now), *_links(there, now.run, newest, now.block), *_amendments(now)]
    lines += [f"evaluated  {described_row(row)}" for row in read_rows(rows_of(there))[-1:]]
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


def _say_where(options: Namespace, spec: RunSpec) -> None:
    """Set the flags that follow from the owner's folder."""
    file = options.folder / OWNER
    kept = tomllib.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    options.owner = options.owner or spec.owner
    options.netuid = options.netuid or str(spec.netuid)
    options.network = options.network or kept.get("network")
    options.home = options.home or str(options.folder)


def _spec(spec: RunSpec) -> list[str]:
    model, inner, clock = spec.model, spec.inner, spec.clock
    theta = "not made yet" if spec.genesis_checkpoint == NOBODYS_THETA else spec.genesis_checkpoint
    return [
        f"run        {spec.name}{' (local)' * spec.local}, protocol {spec.min_protocol} to {spec.max_protocol}",
        f"owner      {spec.owner}, subnet {spec.netuid} of the chain {spec.chain[:16]}..",
        f"model      {spec.layout.num_parameters:,} parameters: {model.layers} layers of {model.width}, context "
        f"{model.context:,}, vocabulary {model.vocabulary:,}",
        f"round      {clock.round_blocks} blocks of {clock.block_seconds:g} s "
        f"({duration(clock.round_blocks * clock.block_seconds)}): {inner.steps} inner steps of {inner.sequences} "
        "sequences",
        f"payload    {spec.object_bytes:,} bytes, up to {spec.gauntlet.contributors} contribute",
        f"data       {spec.data.num_tokens:,} tokens, index {spec.data.index}",
        f"theta_0    {theta}",
    ]


def _time(now: Standing) -> list[str]:
    run = now.run
    lines = [f"run id     {run.id.hex()}", f"head       {run.head.hex()}"]
    round, clock = run.clock.round_at(now.block), run.clock
    if round < 0:
        left = clock.start_block - now.block
        seconds = left * run.first.clock.block_seconds
        return [
            *lines,
            f"now        round 0 begins with block {clock.start_block}, in {left} blocks ({duration(seconds)})",
        ]
    return [*lines, f"now        round {round}, block {now.block - clock.start(round)} of {clock.round_blocks}"]


def _links(there: OpenedNetwork, run: Run, newest: Stated | None, block: int) -> list[str]:
    slot = owner_slot(run.first.owner_id, there.ports.chain.peers(block))
    if slot is None or slot.pointer is None:
        bucket = "none: the owner's slot names no bucket"
    elif isinstance(slot.pointer, PublicPointer):
        bucket = slot.pointer.endpoint
    else:
        bucket = f"{slot.pointer.endpoint}/{slot.pointer.bucket}"
    lines = [f"bucket     {bucket}"]
    if newest is None:
        return [*lines, "link       unknown: no validator has posted a vote recently"]
    if newest.link == first_link(run.id):
        what = "no round has been agreed yet"
    else:
        try:
            _, found = next(records(run, there.ports, block, newest.link))
            what = f"of round {found.round}, in which {len(found.contributing)} contributed"
        except StorageError as fault:
            what = f"its selection cannot be read: {fault}"
    return [
        *lines,
        f"link       {newest.link.hex()}: {what}",
        f"theta      {newest.theta.hex()} at the start of round {newest.round}, by {newest.share:.0%} of the stake "
        "that counts",
    ]


def _amendments(now: Standing) -> list[str]:
    lines = [f"amendment  {described(amendment)}: settled" for amendment in now.run.amendments]
    lines += [f"amendment  {described(amendment)}: {when_settled(now, amendment)}" for amendment in now.pending]
    if now.refused is not None:
        lines.append(f"refused    the slot names another amendment, which nodes do not follow: {now.refused}")
    return lines or ["amendments none"]

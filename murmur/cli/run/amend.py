"""`murmur run amend` and `murmur run void`: an owner's changes to a published run, or their withdrawal."""

import json
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from shlex import quote
from typing import Any

from murmur.cli.run import questions
from murmur.cli.run.questions import say
from murmur.node.chain import subnet_terms
from murmur.node.config.ports import Ports
from murmur.node.config.run_file import RunFile, folder_of
from murmur.node.config.settings import OwnerConfig
from murmur.node.observe import reader
from murmur.owner.amend import POST_BLOCKS, Standing, changes, earliest_round, proposed, require_in_time, same, standing
from murmur.owner.folder import RunFolder, open_folder
from murmur.owner.publish import announce, await_named, name
from murmur.owner.records import records, stated, was_agreed
from murmur.plan.network import planned, refusals
from murmur.plan.timetable import duration
from murmur.protocol.errors import ChainError, ConfigError, StorageError
from murmur.protocol.run import Amendment, Run
from murmur.protocol.spec import parse_table
from murmur.protocol.types import Digest


def amend(options: Namespace) -> int:
    """Publish an amendment. Raises ConfigError for one that no node would follow, or that breaks the run."""
    fields = _fields(options)
    folder, settings, ports, now = _open(options)
    if (posted := same(now, fields)) is not None:
        say("the owner's slot already names this amendment")
        return _confirm(options, settings, folder, ports, posted)
    amendment = proposed(now, fields)
    before, after = now.planned, now.planned.amended([amendment])
    changed = list(changes(before, after, amendment.from_round))
    if not changed:
        raise ConfigError("the amendment changes nothing: the spec of that round already has these values")
    _require(options, before, after, amendment, ports)
    say(f"from round {amendment.from_round} on:")
    width = max(len(field) for field, _, _ in changed)
    for field, old, new in changed:
        say(f"  {field:<{width}}  {json.dumps(old)} -> {json.dumps(new)}")
    return _post(options, settings, folder, ports, now, amendment)


def void(options: Namespace) -> int:
    """Declare a round void, or withdraw pending amendments. Raises ConfigError when that is no longer possible."""
    folder, settings, ports, now = _open(options)
    if options.pending:
        return _take_back(options, settings, folder, ports, now)
    number: int = options.round
    run = now.run
    for amendment in now.planned.amendments:
        if amendment.void_round == number:
            say(f"round {number} is declared void already, from block {amendment.void_from_block} on")
            return _confirm(options, settings, folder, ports, amendment)
    if not 0 <= number <= run.clock.decided_before(now.block):
        raise ConfigError(
            f"round {number} is not decided yet: only an agreed round can be declared void. The current round "
            f"is {run.clock.round_at(now.block)}"
        )
    _require_left_behind(run, ports, now, number)
    try:
        if not was_agreed(run, ports, number):
            raise ConfigError(f"nothing was agreed in round {number}: it is void already, and the run has gone on")
    except ChainError as fault:
        say(f"cannot find out whether round {number} agreed on anything: {fault}")
    earliest = earliest_round(run, now.block)
    height = run.clock.start(earliest)
    fields = {"from_round": earliest, "void_round": number, "void_from_block": height}
    amendment = proposed(now, fields)
    say(
        f"round {number} will be void from block {height} on (round {earliest}): the run continues from the "
        "state before it, and its miners keep their updates for later"
    )
    return _post(options, settings, folder, ports, now, amendment)


# --- what the commands share -------------------------------------------------------------------------------------


def _open(options: Namespace) -> tuple[RunFolder, OwnerConfig, Ports, Standing]:
    """Return the folder, its owner's settings and ports, and the run's standing. Amendments settled by now are saved in
    the folder: a chain node prunes the state that decided them."""
    folder = open_folder(options.folder)
    settings = questions.owner_settings(OwnerConfig, options, folder.path)
    ports = questions.ports(settings, folder)
    return folder, settings, ports, _look(settings, folder)


def _look(settings: OwnerConfig, folder: RunFolder) -> Standing:
    """Return the run's standing as a stranger reads it."""
    spec = folder.spec
    if spec is None:
        raise ConfigError(f"the run in {folder.path} is not published yet: until then change it by creating it anew")
    ports, run = reader.open_run(questions.as_strangers(settings, spec.owner, folder.path), folder.path)
    if run.id != spec.digest:
        raise ConfigError(
            f"the owner's slot names run {run.first.name} ({run.id.hex()[:16]}), not the one in {folder.path}: "
            f"publish it (murmur run publish {quote(str(folder.path))}), or name that run's folder"
        )
    now = standing(run, ports)
    RunFile(folder_of(folder.path, run.id)).save(now.run)
    folder.keep(now.planned.amendments)
    return now


def _fields(options: Namespace) -> dict[str, Any]:
    """Return from_round and changes, merged from the file and the flags."""
    table: dict[str, Any] = {"changes": {}}
    if options.file is not None:
        try:
            table |= parse_table(options.file.read_text(encoding="utf-8-sig"), str(options.file))
        except UnicodeDecodeError as fault:
            raise ConfigError(f"{options.file} is neither TOML nor JSON: {fault}") from None
        if unknown := set(table) - {"from_round", "changes"}:
            raise ConfigError(f"{options.file}: {', '.join(sorted(unknown))}: expected from_round and [changes.TABLE]")
    if options.from_round is not None:
        table["from_round"] = options.from_round
    for changed, fields in changes_of(options.changes).items():
        table["changes"].setdefault(changed, {}).update(fields)
    if "from_round" not in table or not table["changes"]:
        raise ConfigError(
            "an amendment needs --from-round R and at least one --set TABLE.FIELD=VALUE, or a file with both"
        )
    return table


def changes_of(words: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Parse TABLE.FIELD=VALUE into tables of fields. Raises ConfigError."""
    found: dict[str, dict[str, Any]] = {}
    for change in words:
        path, equals, text = change.partition("=")
        name_of, dot, field = path.strip().partition(".")
        if not (equals and dot and name_of and field):
            raise ConfigError(f"--set {change}: expected TABLE.FIELD=VALUE, such as inner.peak_lr=1e-4")
        found.setdefault(name_of, {})[field] = _value(text.strip())
    return found


def _value(text: str) -> Any:
    """Return a number, true or false, or else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _require(options: Namespace, before: Run, after: Run, amendment: Amendment, ports: Ports) -> None:
    """Raise ConfigError when the run could not continue with the amendment, but could without."""
    number = amendment.from_round
    subnet = ports.chain.subnet(ports.chain.finalized().block)
    faults = [*subnet_terms.misfits(after, number, subnet), *refusals(planned(after.spec_at(number), options))]
    known = {*subnet_terms.misfits(before, number, subnet), *refusals(planned(before.spec_at(number), options))}
    if fresh := [fault for fault in faults if fault not in known]:
        raise ConfigError(
            "the run cannot work with this amendment, and nothing was published:\n  " + "\n  ".join(fresh)
        )


def _post(
    options: Namespace, settings: OwnerConfig, folder: RunFolder, ports: Ports, now: Standing, amendment: Amendment
) -> int:
    if now.refused is not None:
        say(f"it replaces the amendment in the slot, which nodes do not follow: {now.refused}")
    if not questions.agreed_to("publish it?", yes=options.yes):
        say("nothing was published")
        return 0
    then = _look(settings, folder)
    _require_unchanged(_heads(now), _heads(then))
    require_in_time(then, amendment)
    block = announce(ports, amendment.to_bytes())
    await_named(ports, amendment.digest, block)
    return _confirm(options, settings, folder, ports, amendment)


def _confirm(options: Namespace, settings: OwnerConfig, folder: RunFolder, ports: Ports, amendment: Amendment) -> int:
    """Read the amendment back as other nodes do, and print when it is settled."""
    now = _look(settings, folder)
    if amendment in now.run.amendments:
        say(f"the amendment is settled: every node follows it from round {amendment.from_round} on")
        return 0
    if amendment not in now.pending:
        raise ConfigError(f"nodes do not follow the amendment: {now.refused}. Publish it again for a later round")
    say(when_settled(now, amendment))
    void = questions.command(options, "void", folder.path, "--pending")
    say(f"to take it back before then: {void}")
    return 0


def when_settled(now: Standing, amendment: Amendment) -> str:
    """Return, as text, when a pending amendment is settled."""
    block = now.run.settled_by(amendment)
    seconds = max(0, block - now.block) * now.run.first.clock.block_seconds
    return f"pending; settled as of block {block}, in about {duration(seconds)}, if the slot still names it then"


def _heads(now: Standing) -> tuple[Digest, Digest | None]:
    """Return the head that the next amendment builds on, and the slot's amendment."""
    return now.planned.head, now.slot.amendment if now.slot is not None else None


def _require_unchanged(before: object, now: object) -> None:
    """Raise ConfigError when the amendments changed while the owner was asked, which may take hours. Nodes that know a
    settled amendment do not follow an owner that leaves it out."""
    if before != now:
        raise ConfigError(
            "the amendments have changed meanwhile: one was settled, or another machine has posted. Nothing "
            "was published: run the same command again"
        )


def _staying(now: Standing) -> tuple[Amendment, ...]:
    """Return the pending amendments that are settled before another post could be final."""
    by = now.block + now.run.first.clock.finality_blocks + POST_BLOCKS
    return tuple(amendment for amendment in now.pending if now.run.settled_by(amendment) <= by)


def _take_back(options: Namespace, settings: OwnerConfig, folder: RunFolder, ports: Ports, now: Standing) -> int:
    """Name the amendment before the first pending one that can still be withdrawn."""
    stays = _staying(now)
    leaves = now.pending[len(stays) :]
    if not leaves and now.refused is None:
        late = ": the last one is settled before another post could be final" if stays else ""
        raise ConfigError(f"no amendment is pending that could be taken back{late}")
    for amendment in leaves:
        say(f"taken back: {described(amendment)}")
    if now.refused is not None:
        say(f"taken back: the amendment that nodes do not follow ({now.refused})")
    if not questions.agreed_to("take it back?", yes=options.yes):
        say("nothing was published")
        return 0
    then = _look(settings, folder)
    _require_unchanged((*_heads(now), now.run.head, stays), (*_heads(then), then.run.head, _staying(then)))
    head = stays[-1].digest if stays else now.run.head
    block = name(ports, head)
    await_named(ports, head, block)
    say(f"the owner's slot names {head.hex()[:16]} again, since block {block}")
    return 0


def described(amendment: Amendment) -> str:
    """Return an amendment's content in one line."""
    said = list(_said(amendment.changes))
    if amendment.void_round is not None:
        said.append(f"round {amendment.void_round} is void from block {amendment.void_from_block} on")
    return f"from round {amendment.from_round}: " + ", ".join(said)


def _said(tables: Mapping[Any, Mapping[str, Any]]) -> Iterator[str]:
    for table, fields in tables.items():
        for field, value in fields.items():
            yield ascii(f"{table}.{field} = {json.dumps(value)}")[1:-1]


def _require_left_behind(run: Run, ports: Ports, now: Standing, number: int) -> None:
    """Raise ConfigError when the run has built on the round's agreement: nodes that look later would diverge from those
    that have applied it."""
    newest = stated(run, ports, now.block)
    if newest is None:
        return
    try:
        with questions.steps("reading the agreed selections back") as tell:
            way = records(
                run, ports, now.block, newest.link, lambda at, _: tell(newest.round - at, newest.round - number)
            )
            gone_on = next((selection for _, selection in way if selection.round <= number), None)
    except StorageError as fault:
        raise ConfigError(
            f"cannot find out whether the run has gone on from round {number}: {fault}. Try again when "
            "validators' buckets answer"
        ) from None
    if gone_on is not None and gone_on.round == number:
        raise ConfigError(
            f"the run has gone on from round {number}: validators with {newest.share:.0%} of the stake hold a "
            "state that contains it, and share its bytes. Voiding it now would split the run between nodes "
            "that have applied it and later ones"
        )

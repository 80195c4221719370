"""`murmur run create`: a run's folder, with every check that is possible beforehand."""

import json
import re
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any

from pydantic import ValidationError

from murmur.cli.run import questions
from murmur.cli.run.questions import say
from murmur.configs import presets
from murmur.data.build import build as build_shards
from murmur.data.index import INDEX
from murmur.data.job import BUILDING
from murmur.data.shards import Shards
from murmur.homes import expanded
from murmur.node.chain import subnet_terms
from murmur.node.config.adapters import own_chain, own_wallet, signer_of
from murmur.node.config.settings import HotkeyConfig
from murmur.node.program.shared import on_ranks
from murmur.owner.draft import Place, draft, look
from murmur.owner.folder import AMENDMENTS, DATA, DRAFT, OWNER, THETA, finish, to_toml, write
from murmur.owner.theta import make_theta
from murmur.plan.network import planned, refusals
from murmur.plan.timetable import duration
from murmur.protocol.errors import ChainError, ConfigError
from murmur.protocol.fields import fault_lines
from murmur.protocol.ports import Chain
from murmur.protocol.run import Amendment, Run
from murmur.protocol.spec import RunSpec, build
from murmur.protocol.types import Peer, hotkey
from murmur.training.parallel import Ranks

NO_SUBNET = "SubnetNotExists"
"""`ChainError.code` of a read of a subnet that does not exist."""


def create(options: Namespace) -> int:
    """Create a run's folder. Raises ConfigError for a run that could not work, with every known reason."""
    folder: Path = options.folder
    if (folder / DRAFT).exists():
        raise ConfigError(
            f"{folder} already holds a run: publish it ({questions.command(options, 'publish', folder)}), "
            "or name another folder"
        )
    statuses: list[int] = []
    on_ranks("auto", options.device, lambda ranks: statuses.append(_create(options, folder, ranks)))
    return statuses[0] if statuses else 0


def _create(options: Namespace, folder: Path, ranks: Ranks) -> int:
    settings = questions.owner_settings(HotkeyConfig, options, folder, ahead=True)
    source = _given(options.spec, "spec", "what to train: a preset or a file", "tiny")
    text = _given(options.data, "data", "a data set's folder, or text: botocore, a folder, a file, hf:NAME", "botocore")
    table = presets.table(source)
    chain = own_chain(settings, wallet := own_wallet(settings))
    owner = signer_of(wallet).peer
    peers = _peers(chain)
    place = look(chain, settings.netuid, owner, local=options.local)
    subnet = place.subnet
    say(
        f"subnet {settings.netuid} of {settings.network}: {_blocks(table, place)}, tempo {subnet.tempo}, "
        f"{subnet.post_bytes} bytes of posts an epoch, weights every {subnet.weights_rate_limit} blocks, "
        f"commit-reveal {'on' if subnet.commit_reveal else 'off'}"
    )
    if all(peer.id != owner for peer in peers):
        raise ConfigError(
            f"hotkey {hotkey(owner)} is not registered on subnet {settings.netuid}, so it has no slot to name a run "
            f"in: btcli subnet register --netuid {settings.netuid} -w {settings.wallet.name} -H "
            f"{settings.wallet.hotkey}"
        )
    folder.mkdir(parents=True, exist_ok=True)
    at, data = _data(text, options, folder)
    drafted = draft(table, _name(options, folder), place, data, own_vocabulary=not presets.is_preset(source))
    spec = build(drafted, f"the run spec made of {source}")
    amendments = _planned(spec, table.get("amendments", []))
    _require(spec, data, options, subnet_terms.misfits(Run(spec), 0, subnet), source)
    say(
        f"theta_0: {spec.layout.num_parameters:,} parameters, and the norms of one honest round of {spec.inner.steps} "
        "steps"
    )
    num_steps = spec.inner.steps
    with questions.steps("inner steps") as tell:
        theta = make_theta(folder / THETA, spec, options.seed, data, ranks, lambda step, _: tell(step + 1, num_steps))
    write(folder / OWNER, to_toml(_nested(questions.keep(options, settings))).encode())
    if amendments:
        (folder / AMENDMENTS).mkdir(exist_ok=True)
    for number, fields in enumerate(amendments, 1):
        write(folder / AMENDMENTS / f"{number}.json", (json.dumps(fields, indent=2) + "\n").encode())
    finish(folder, {**drafted, "genesis_checkpoint": theta.hex()}, at)
    _say_next(options, folder, spec, amendments)
    return 0


def _blocks(table: Mapping[str, Any], place: Place) -> str:
    """Return the block time as text: the spec's value counts, whatever the chain's last blocks took."""
    clock = table.get("clock")
    said = clock.get("block_seconds") if isinstance(clock, Mapping) else None
    if said is None or said == place.block_seconds:
        return f"blocks of {place.block_seconds:g} s"
    return f"blocks of {said} s by the spec (the last ones took {place.block_seconds:g} s)"


def _peers(chain: Chain) -> Sequence[Peer]:
    """Return all peers of the subnet. Raises ConfigError where there is no such subnet."""
    try:
        return chain.peers(chain.finalized().block)
    except ChainError as fault:
        if fault.code != NO_SUBNET:
            raise
        raise ConfigError(f"--netuid: {fault}") from None


def _given(value: str | None, name: str, question: str, default: str) -> str:
    if value is not None:
        return value
    if not questions.somebody_is_there():
        raise ConfigError(f"--{name} is missing: {question}")
    return questions.ask(f"{name} ({question})", default)


def _name(options: Namespace, folder: Path) -> str:
    return options.name or re.sub(r"[^a-z0-9-]+", "-", folder.absolute().name.lower()).strip("-")[:63] or "run"


def _data(source: str, options: Namespace, folder: Path) -> tuple[Path, Shards]:
    """Return the data set's folder, and the data set: the named one, or one made from text here."""
    at = expanded(source)
    if not (at / INDEX).is_file():
        at = folder / DATA
        if not (at / INDEX).is_file() or (at / BUILDING).exists():
            say(f"data: tokenising {source} into {at}")
            with questions.steps("text") as tell:
                build_shards(
                    source,
                    at,
                    tokenizer=options.tokenizer,
                    on_progress=lambda _, done, total: tell(done, total),
                    say=say,
                )
    elif options.tokenizer is not None:
        raise ConfigError(f"{source} is tokenised already: leave out --tokenizer")
    data = Shards.open(at)
    say(
        f"data: {data.train.num_tokens:,} tokens to train on, {data.held_out.num_tokens:,} held out, vocabulary "
        f"{data.index.vocabulary:,} with ids for turns ({at})"
    )
    return at.absolute(), data


def _require(spec: RunSpec, data: Shards, options: Namespace, misfits: Sequence[str], source: str) -> None:
    """Raise ConfigError for a spec that does not work on this subnet, with this data, or on the planned machine."""
    data.check(spec)
    plan = planned(spec, options)
    faults = [*misfits, *refusals(plan)]
    if faults:
        windows = ", ".join(f"{name} = {getattr(spec.clock, name)}" for name in presets.WINDOWS)
        raise ConfigError(
            f"a run of {source} cannot work here, and nothing was made:\n  "
            + "\n  ".join(faults)
            + f"\nIts [clock] has {windows} in blocks of {spec.clock.block_seconds:g} s. Give longer windows in a "
            "file of your own (--spec FILE), or train less per round ([inner]). Or plan for another machine (--gpus, "
            "--gpu-tflops, --up, --down, or --measure for this one)"
        )
    spare = plan.tightest("miner")
    say(
        f"plan: every deadline is met; a miner {spare[0].does} {duration(spare[1])} after the commit deadline of "
        f"the round before, by {duration(spare[2])}. A round has {spec.clock.round_blocks} blocks, "
        f"{duration(plan.round_seconds)}"
    )


def _planned(spec: RunSpec, tables: Any) -> list[dict[str, Any]]:
    """Return the amendments that the preset plans. Raises ConfigError for invalid ones."""
    run, found = Run(spec), []
    for fields in tables if isinstance(tables, list) else [tables]:
        try:
            amendment = Amendment.model_validate({"previous": run.head.hex(), **fields})
        except (ValidationError, TypeError) as fault:
            told = fault_lines(fault) if isinstance(fault, ValidationError) else str(fault)
            raise ConfigError(f"the spec's [[amendments]] are not valid:\n{told}") from None
        run = run.amended([amendment])
        found.append({"from_round": amendment.from_round, "changes": amendment.changes})
    return found


def _nested(dotted: Mapping[str, str]) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for name, value in dotted.items():
        first, _, rest = name.partition(".")
        if rest:
            table.setdefault(first, {})[rest] = value
        else:
            table[first] = int(value) if first == "netuid" else value
    return table


def _say_next(options: Namespace, folder: Path, spec: RunSpec, amendments: Sequence[Mapping[str, Any]]) -> None:
    say()
    say(f"the run {spec.name} is in {folder}; nothing is published yet")
    say(f"  look at it:     murmur run show {quote(str(folder))}")
    say("  publish it:     " + questions.command(options, "publish", folder))
    for number, fields in enumerate(amendments, 1):
        amend = questions.command(options, "amend", folder, folder / AMENDMENTS / f"{number}.json")
        say(f"  by round {fields['from_round'] - 2}: {amend}")

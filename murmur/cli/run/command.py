"""`murmur run`: a run of one's own. Its words; each action has a module of its own here."""

import argparse
from pathlib import Path
from typing import Any

from murmur.cli import peer_options
from murmur.configs import presets
from murmur.node.config import settings
from murmur.owner.folder import DRAFT
from murmur.plan.machine import add_machine
from murmur.protocol.errors import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Found a run on a subnet, publish it, and lead it (docs/start-a-run.md)."
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for add in (_add_create, _add_publish, _add_amend, _add_show, _add_void):
        add(actions)


def run(options: argparse.Namespace) -> int:
    """The exit status, as of all of murmur: 0 when it is done, 1 when chain or store failed meanwhile (the same command
    goes on), 2 for what the owner has to mend."""
    if options.action == "create":
        from murmur.cli.run.create import create

        return create(options)
    if options.action == "publish":
        from murmur.cli.run.publish import publish

        return publish(options)
    if options.action == "show":
        require_run(options.folder)
        from murmur.cli.run.show import show  # torch, which a wrong word should not wait for

        return show(options)
    from murmur.cli.run.amend import amend, void

    return (amend if options.action == "amend" else void)(options)


def require_run(folder: Path | None) -> None:
    """Refuse a folder that holds no run. Raises ConfigError."""
    if folder is not None and not (folder / DRAFT).exists() and not any(folder.glob("nodes/*/node.toml")):
        raise ConfigError(f"{folder} is not a run's folder: murmur run create and murmur localnet make such folders")


def _add_create(actions: Any) -> None:
    create = _action(actions, "create", "draft the spec, make theta_0 and check that the run can work")
    create.description = (
        "Make a folder with everything that a run needs: the spec, theta_0 and the data set. The spec is "
        "checked against the subnet and against `murmur plan`. Nothing is published. On a terminal, the "
        "command asks for missing settings."
    )
    create.add_argument("--spec", help=f"a preset ({', '.join(presets.names())}), or a TOML or JSON file")
    create.add_argument("--name", help="name of the run: letters, digits and '-' (default: the folder's)")
    create.add_argument(
        "--data",
        help="folder of a data set (murmur shards build), or a source of text: botocore, a folder, a file, hf:NAME",
    )
    create.add_argument("--tokenizer", type=Path, help="a tokenizer's file, for text (default: bytes)")
    create.add_argument("--seed", type=int, default=0, help="seed of theta_0 (default %(default)s)")
    create.add_argument(
        "--local",
        action="store_true",
        help="make a rehearsal for this machine: buckets may be on private addresses and without https. It cannot "
        "be changed later",
    )
    create.add_argument(
        "--device",
        choices=["auto", "cpu", "cuda"],
        default="auto",
        help="device that trains theta_0's honest round; `murmur torchrun` gives it several GPUs (default %(default)s)",
    )
    settings.add_flags(create, settings.OwnerConfig)
    add_machine(create.add_argument_group("machine to plan for, as in `murmur plan`"))


def _add_publish(actions: Any) -> None:
    publish = _action(actions, "publish", "upload the run, name it on chain, and check it as a stranger would")
    publish.description = (
        "Upload theta_0, the data and the spec to the owner's bucket, and name the spec in the owner's slot "
        "on chain. Then read everything back, knowing only the owner's address. After an interruption, run "
        "the same command again. Once the slot names the spec, it never changes."
    )
    publish.add_argument(
        "--start-in",
        type=int,
        metavar="BLOCKS",
        help="blocks from the publication to round 0, for nodes to get ready (default: ten minutes or a round, the "
        "longer one)",
    )
    publish.add_argument(
        "--without-data",
        action="store_true",
        help="upload only the index: every node then needs its own copy as --data",
    )
    publish.add_argument("--replace", action="store_true", help="abandon the run that the slot names now")
    settings.add_flags(publish, settings.OwnerConfig)


def _add_amend(actions: Any) -> None:
    amend = _action(actions, "amend", "change the spec from a later round on")
    amend.description = (
        "Show what an amendment changes, and publish it. An amendment from round R on is settled at the end "
        "of round R - 2. Until then, `murmur run void --pending` takes it back."
    )
    amend.add_argument("file", type=Path, nargs="?", help="TOML or JSON with from_round and [changes.TABLE]")
    amend.add_argument("--from-round", type=int, metavar="R", help="the first round that it applies to")
    amend.add_argument(
        "--set",
        dest="changes",
        action="append",
        default=[],
        metavar="TABLE.FIELD=VALUE",
        help="a change, such as inner.peak_lr=1e-4 or protocol.max_protocol=3; repeatable",
    )
    amend.add_argument("--yes", action="store_true", help="publish without asking")
    settings.add_flags(amend, settings.OwnerConfig)
    add_machine(amend.add_argument_group("machine to plan for, as in `murmur plan`"))


def _add_show(actions: Any) -> None:
    show = actions.add_parser("show", help="A run as everybody sees it.", description="A run as everybody sees it.")
    show.add_argument(
        "folder", type=Path, nargs="?", help="a folder of `murmur run create`; without it, use flags to say which run"
    )
    peer_options.add_arguments(show)


def _add_void(actions: Any) -> None:
    void = _action(actions, "void", "declare a round void whose bytes are lost, or take back a pending amendment")
    void.description = (
        "Take something back as the owner. --round: a round whose selected payloads are lost; the run then "
        "goes on without it. Refused if the run has already gone on from that round. --pending: amendments "
        "that are not settled yet. Settled amendments and applied rounds stay."
    )
    what = void.add_mutually_exclusive_group(required=True)
    what.add_argument("--round", type=int, metavar="R", help="declare this round void")
    what.add_argument("--pending", action="store_true", help="take back the amendments that are not settled yet")
    void.add_argument("--yes", action="store_true", help="publish without asking")
    settings.add_flags(void, settings.OwnerConfig)


def _action(actions: Any, name: str, summary: str) -> argparse.ArgumentParser:
    """A subcommand of argparse's that works in a run's folder."""
    parser: argparse.ArgumentParser = actions.add_parser(name, help=summary)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="the run's folder")
    return parser

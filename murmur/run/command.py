"""`murmur run`: a run of one's own. Its words; each action has a module of its own here."""

import argparse
from pathlib import Path
from typing import Any

from murmur import peer_options
from murmur.plan.command import add_machine
from node.config import settings
from owner import presets


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Found a run on a subnet, put it before everybody, and lead it (docs/start-a-run.md)."
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for add in (_add_create, _add_publish, _add_amend, _add_show, _add_void):
        add(actions)


def run(options: argparse.Namespace) -> int:
    """The exit status, as of all of murmur: 0 when it is done, 1 when chain or store failed meanwhile (the same command
    goes on), 2 for what the owner has to mend."""
    if options.action == "create":
        from murmur.run.create import create

        return create(options)
    if options.action == "publish":
        from murmur.run.publish import publish

        return publish(options)
    if options.action == "show":
        from murmur.run.show import show

        return show(options)
    from murmur.run.amend import amend, void

    return (amend if options.action == "amend" else void)(options)


def _add_create(actions: Any) -> None:
    create = _action(actions, "create", "draft the spec, make theta_0 and look whether the run can work")
    create.description = (
        "Make a folder with everything of a run but its first block: the spec, checked against the subnet as it is "
        "and against `murmur plan`, theta_0, and the data set. Nothing is published. What is missing is asked for "
        "when there is a terminal."
    )
    create.add_argument("--spec", help=f"a preset ({', '.join(presets.names())}), or a TOML or JSON file")
    create.add_argument("--name", help="of the run: letters, digits and '-' (default: the folder's)")
    create.add_argument(
        "--data",
        help="folder of a data set (murmur shards build), or text to make one of: botocore, a folder, a file, hf:NAME",
    )
    create.add_argument("--tokenizer", type=Path, help="a tokenizer.json, for text (default: bytes)")
    create.add_argument("--seed", type=int, default=0, help="of theta_0 (default %(default)s)")
    create.add_argument(
        "--local",
        action="store_true",
        help="a rehearsal on this machine: buckets may be on private addresses and without https; it stays one",
    )
    create.add_argument(
        "--device",
        choices=["auto", "cpu", "cuda"],
        default="auto",
        help="where theta_0's honest round is trained; torchrun gives it several GPUs (default %(default)s)",
    )
    settings.add_flags(create, settings.OwnerConfig)
    add_machine(create.add_argument_group("the machine that the plan is for, as in `murmur plan`"))


def _add_publish(actions: Any) -> None:
    publish = _action(actions, "publish", "put the run up, name it on chain, and read it back as a stranger would")
    publish.description = (
        "Put theta_0, the data and the spec into the owner's bucket, and name the spec in the owner's slot on chain; "
        "then read all of it back with nothing but the owner's address. Cut short, at whatever moment, the same "
        "command goes on. From the moment at which the slot names it, the spec never changes."
    )
    publish.add_argument(
        "--start-in",
        type=int,
        metavar="BLOCKS",
        help="from the publication to round 0, in which nodes have to be there (default: ten minutes or a round, the "
        "longer one)",
    )
    publish.add_argument(
        "--without-data", action="store_true", help="put up the index alone: every node gets its own copy as --data"
    )
    publish.add_argument("--replace", action="store_true", help="give up the run that the slot names now")
    settings.add_flags(publish, settings.OwnerConfig)


def _add_amend(actions: Any) -> None:
    amend = _action(actions, "amend", "change the spec from a later round on")
    amend.description = (
        "Show what an amendment changes, and publish it. It holds for nobody before it is settled: as of the last "
        "block before the round before its own, and until then `murmur run void --pending` takes it back."
    )
    amend.add_argument("file", type=Path, nargs="?", help="TOML or JSON with from_round and [changes.TABLE]")
    amend.add_argument("--from-round", type=int, metavar="R", help="the first round in which it holds")
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
    add_machine(amend.add_argument_group("the machine that the plan is for, as in `murmur plan`"))


def _add_show(actions: Any) -> None:
    show = actions.add_parser("show", help="a run as everybody sees it", description="A run as everybody sees it.")
    show.add_argument(
        "folder", type=Path, nargs="?", help="a folder of `murmur run create`; without it, flags say which run"
    )
    peer_options.add_arguments(show)


def _add_void(actions: Any) -> None:
    void = _action(actions, "void", "declare a round void whose bytes are lost, or take a pending amendment back")
    void.description = (
        "What an owner can take back. --round: a round whose selected payloads nobody has any more, so that the run "
        "goes on without it; refused for a round that the run has gone on from. --pending: amendments "
        "that are not settled yet. What is settled, and what is trained, nobody can take back."
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

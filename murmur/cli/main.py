"""The console command `murmur`: one table of subcommands. Only the chosen one is imported, so that help is instant."""

import argparse
import errno
import io
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.metadata import version

from murmur.homes import provide_for_libraries
from murmur.node.program.process import disk_fault, run_program
from murmur.protocol.errors import ConfigError, MurmurError

OPERATORS_FAULTS = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
    errno.ENOENT,
    errno.EEXIST,
    errno.ENOTDIR,
    errno.EISDIR,
}
"""The system's refusals of a path given by the operator; every other OSError is a bug."""


@dataclass(frozen=True, slots=True)
class Subcommand:
    """`module` has add_arguments(parser) and run(options) -> exit status; that of a node's program has its name's
    function."""

    name: str
    summary: str
    module: str


SUBCOMMANDS = (
    Subcommand("arena", "play every known attack against the judging, and show the table", "murmur.cli.arena"),
    Subcommand("audit", "judge a validator's round again, from public objects", "murmur.cli.audit.command"),
    Subcommand("cluster", "a run among friends, over one bucket", "murmur.cli.cluster.command"),
    Subcommand("config", "show a node's settings and their sources", "murmur.cli.config"),
    Subcommand("dashboard", "show a run on a read-only page, live or ended", "murmur.cli.dashboard"),
    Subcommand("devnet", "run a chain and an S3 server, for nodes started by hand", "murmur.cli.devnet"),
    Subcommand("doctor", "check everything that a node needs, and say what to fix", "murmur.cli.doctor.command"),
    Subcommand("evaluate", "score an export on tasks, by lm-eval", "murmur.cli.evaluate.command"),
    Subcommand("explain", "explain how a hotkey is judged, why, and what to do", "murmur.cli.explain.command"),
    Subcommand("export", "write a run's model for other tools, or prove it", "murmur.cli.export.command"),
    Subcommand("localnet", "run a whole network on this machine", "murmur.cli.localnet"),
    Subcommand("member", "train in a cluster: neurons/member.py", "murmur.cli.programs"),
    Subcommand("mine", "train in a run: neurons/miner.py", "murmur.cli.programs"),
    Subcommand("plan", "show what a run needs: memory, compute, bytes, time", "murmur.cli.plan.command"),
    Subcommand("run", "lead your own run: create, publish, amend, show, void", "murmur.cli.run.command"),
    Subcommand("sft", "fine-tune an export on chats, in stages", "murmur.cli.sft"),
    Subcommand("shards", "build tokenised training data", "murmur.cli.shards"),
    Subcommand("simulate", "run whole networks in modelled time, with faults", "murmur.cli.simulate"),
    Subcommand("status", "show a node's round, its last results and its faults", "murmur.cli.status"),
    Subcommand("torchrun", "start a program once for each GPU, as torchrun does", "murmur.training.launch"),
    Subcommand("track", "show a node's numbers in W&B, TensorBoard or Trackio", "murmur.cli.track"),
    Subcommand("validate", "check, name and pay a run's miners: neurons/validator.py", "murmur.cli.programs"),
)
PROGRAMS = frozenset(one.name for one in SUBCOMMANDS if one.module == "murmur.cli.programs")
"""Subcommands that are node programs: they parse arguments, end and log as the files under neurons/ do."""


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the arguments, import the subcommand, run it, and return the exit status.

    2: the operator has to fix something. 1: a failure outside of this program. 130: stopped on request. 141: the reader
    of our output is gone. Bugs crash with a traceback.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A path may have letters that the terminal's encoding lacks, or bytes that are no letters at all.
        sys.stdout.reconfigure(errors="backslashreplace")
    if words and words[0] in PROGRAMS:
        program = getattr(import_module("murmur.cli.programs"), words[0])
        return run_program(partial(program, words[1:], f"murmur {words[0]}"))
    options, chosen = parse(words)
    provide_for_libraries()
    try:
        status = chosen(options)
        sys.stdout.flush()
        return status
    except ConfigError as fault:
        print(fault, file=sys.stderr)  # noqa: T201
        return 2
    except MurmurError as fault:
        print(f"stopped: {fault}", file=sys.stderr)  # noqa: T201
        return 1
    except BrokenPipeError as fault:
        if fault.filename is not None:
            raise
        _print_no_more()  # the reader of our output (head, less) has closed it
        return 141
    except OSError as fault:
        if fault.filename is None and (words_of_disk := disk_fault(fault)) is not None:
            print(words_of_disk, file=sys.stderr)  # noqa: T201
            _print_no_more()
            return 2
        if fault.errno not in OPERATORS_FAULTS or fault.filename is None:
            raise
        print(f"cannot use {fault.filename}: {fault.strerror}", file=sys.stderr)  # noqa: T201
        return 2
    except KeyboardInterrupt:
        return 130


def _print_no_more() -> None:
    """Print nothing more, not even what is left at exit."""
    with suppress(io.UnsupportedOperation):  # replaced by what is no file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def parse(argv: Sequence[str]) -> tuple[argparse.Namespace, Callable[[argparse.Namespace], int]]:
    """Return the options, and the function that runs them. Exits with status 2 for invalid arguments, and with 0 after
    --help."""
    words = list(argv)
    parser = argparse.ArgumentParser(
        prog="murmur",
        description="Murmuration: strangers, trusting nobody, pre-train one large language model over the internet.",
    )
    parser.add_argument("--version", action="version", version=f"murmuration {version('murmuration-node')}")
    table = parser.add_subparsers(dest="subcommand", metavar="COMMAND", required=True)
    wanted = next((word for word in words if not word.startswith("-")), None)
    runs: dict[str, Callable[[argparse.Namespace], int]] = {}
    for subcommand in SUBCOMMANDS:
        entry = table.add_parser(subcommand.name, help=subcommand.summary, description=subcommand.summary)
        if subcommand.name == wanted and subcommand.name not in PROGRAMS:
            module = import_module(subcommand.module)
            module.add_arguments(entry)
            runs[subcommand.name] = module.run
    options = parser.parse_args(words)
    return options, runs[options.subcommand]

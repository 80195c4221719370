"""`murmur evaluate DIR|RUN`: a model's results on tasks, by lm-eval's evaluator (extra `post`); for a run's checkpoints
also their held-out loss, which needs no extra."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from murmur.cli.export.command import require_source


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "For an export, or a model of murmur sft: evaluate it on tasks. For a run: measure the held-out loss "
        "of the newest state and of every checkpoint that has none yet. --tasks adds tasks. Results are lines "
        "of a file that the page shows."
    )
    parser.add_argument(
        "source",
        metavar="DIR|RUN",
        help="an export or fine-tuned model; or a local network's run folder, a node's TOML file, or the SS58 hotkey "
        "of a run's owner",
    )
    parser.add_argument(
        "--tasks",
        metavar="LIST",
        help="small or base (zero shots), chat (few shots), or lm-eval's names with commas, NAME or NAME:SHOTS",
    )
    parser.add_argument("--include", type=Path, metavar="DIR", help="a folder with tasks of your own")
    parser.add_argument(
        "--limit", type=int, metavar="N", help="use only so many documents of each task, for a quick test"
    )
    parser.add_argument("--batch", type=int, default=1, metavar="N", help="sequences at once (default %(default)s)")
    parser.add_argument("--device", help="cpu, cuda, cuda:1, .. (default: a GPU where there is one)")
    parser.add_argument("--chat", action="store_true", help="ask with the tokenizer's chat template")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table or lines")
    run = parser.add_argument_group("of a run")
    run.add_argument("--follow", action="store_true", help="evaluate every new checkpoint, until the run ends")
    run.add_argument("--network", help="finney, test, local or a ws(s):// URL")
    run.add_argument("--netuid", help="the subnet of the run")
    run.add_argument("--data", help="the run's data set (default: fetched)")
    run.add_argument("--home", help="folder for files fetched from runs (default ~/.murmur)")


def run(options: argparse.Namespace) -> int:
    """Print the results. Raises ConfigError for a folder that is no export, unknown tasks, and without the extra."""
    require_source(options.source)
    from murmur.export.origin import ORIGIN
    from murmur.export.tuned import is_tuned, read_tuned
    from murmur.export.verify import Differs, read_files
    from murmur.protocol.errors import ConfigError

    folder = Path(options.source)
    tuned = is_tuned(folder)
    if not tuned and not (folder / ORIGIN).is_file() and (not folder.is_dir() or (folder / "nodes").is_dir()):
        from murmur.cli.evaluate.checkpoints import evaluate_run

        return evaluate_run(options, evaluator_options(options))
    if options.follow:
        raise ConfigError("--follow needs a run: an export does not change")
    try:
        origin = read_tuned(folder).setting.origin if tuned else read_files(folder).origin
    except Differs as fault:
        raise ConfigError(f"{folder} does not match its own description: {fault}") from None
    if options.tasks is None:
        raise ConfigError("--tasks is missing: give small, base, chat, or names of lm-eval (murmur evaluate --help)")
    from murmur.export.evaluate import evaluate, parse_tasks, table
    from murmur.training.meeting import forget_platform

    forget_platform()

    found = evaluate(folder, origin, parse_tasks(options.tasks), **evaluator_options(options))
    sys.stdout.write(json.dumps(found | {"tuned": tuned}, indent=2) + "\n" if options.json else table(found))
    return 0


def evaluator_options(options: argparse.Namespace) -> dict[str, Any]:
    """Return the options that lm-eval takes."""
    return {name: getattr(options, name) for name in ("include", "limit", "batch", "device", "chat")}

"""`murmur evaluate DIR --tasks ...`: what an export achieves, by lm-eval's evaluator (extra `post`)."""

import argparse
import json
import sys
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="DIR", help="an export (murmur export)")
    parser.add_argument(
        "--tasks",
        required=True,
        metavar="LIST",
        help="base (zero shots), chat (few shots), or lm-eval's names with commas, NAME or NAME:SHOTS",
    )
    parser.add_argument("--include", type=Path, metavar="DIR", help="a folder with tasks of your own")
    parser.add_argument("--limit", type=int, metavar="N", help="only so many documents of each task, to try it out")
    parser.add_argument("--batch", type=int, default=1, metavar="N", help="sequences at once (default %(default)s)")
    parser.add_argument("--device", help="cpu, cuda, cuda:1, .. (default: a GPU where there is one)")
    parser.add_argument("--chat", action="store_true", help="ask with the tokenizer's chat template")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")


def run(options: argparse.Namespace) -> int:
    """Print the results. Raises ConfigError for a folder that is no export, unknown tasks, and without the extra."""
    from post.evaluate import evaluate, parse_tasks, table
    from post.verify import read_origin

    found = evaluate(
        options.folder,
        read_origin(options.folder),
        parse_tasks(options.tasks),
        include=options.include,
        limit=options.limit,
        batch=options.batch,
        device=options.device,
        chat=options.chat,
    )
    sys.stdout.write(json.dumps(found, indent=2) + "\n" if options.json else table(found))
    return 0

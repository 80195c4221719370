"""`murmur sft DIR --data FILE|hf:NAME --recipe NAME`: fine-tune an export for chat, by TRL's trainer (extra `post`)."""

import argparse
import sys
from pathlib import Path

from murmur.data.recipe import MAX_BAD

MISSING = "murmur sft needs the extra `post`, which is not installed: pip install -c constraints.txt -e '.[post]'"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Fine-tune an export on chats, with loss on the assistant's turns, in the recipe's stages. After an "
        "interruption, run the same command again. For several GPUs, put `murmur torchrun --nproc-per-node 8` before "
        "it, which shards the model (FSDP). For memory and time: murmur plan --sft."
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="an export (murmur export)")
    parser.add_argument(
        "--data",
        required=True,
        metavar="FILE|hf:NAME",
        help='chats: JSONL, a line {"messages": [{"role": .., "content": ..}, ..]} each, or rows of ShareGPT, Alpaca, '
        "or prompt and completion; or such a data set of the Hugging Face hub",
    )
    parser.add_argument("--recipe", required=True, metavar="NAME|FILE", help="covenant-72b, toy, or a TOML file")
    parser.add_argument(
        "--replay", type=Path, metavar="DIR", help="the run's data set, for stages that replay text of the run"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="where to write (default: DIR-sft beside the export)")
    parser.add_argument(
        "--batch", type=int, default=1, metavar="N", help="sequences at once on each device (default %(default)s)"
    )
    parser.add_argument(
        "--max-bad",
        type=float,
        default=MAX_BAD,
        metavar="SHARE",
        help="share of rows that may be unusable (default %(default)s)",
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: GPUs where there are any")


def run(options: argparse.Namespace) -> int:
    """Fine-tune, and print the results. Raises ConfigError for faults that the operator has to fix."""
    from murmur.export.recipes import recipe
    from murmur.protocol.errors import ConfigError

    found = recipe(options.recipe)
    from murmur.cli.export.exports import tell  # torch, which a wrong word need not wait for

    try:
        from murmur.export.sft import Order, tune
    except ImportError as fault:
        raise ConfigError(f"{MISSING} ({fault})") from None
    from murmur.training.meeting import forget_platform

    forget_platform()
    folder = options.folder.absolute()
    out = options.out or folder.with_name(f"{folder.name}-sft")
    order = Order(
        folder, out, options.data, options.recipe, found, options.replay, options.batch, options.device, options.max_bad
    )
    tune(order, tell, say)
    return 0


def say(line: str) -> None:
    """Print a line of output."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()

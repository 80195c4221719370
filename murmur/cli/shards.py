"""`murmur shards`: convert text into the tokenised shards that a run trains on, and join or show data sets."""

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from murmur.data.index import INDEX, Index
from murmur.data.recipe import HELD_OUT, HELD_OUT_TOKENS, MAX_BAD, Execution, Recipe, Source, executed, made, read
from murmur.protocol.errors import ConfigError

QUIET_SECONDS = 2
"""A shorter job ends before its progress could be read."""
_CHANGED = "files without their byte order mark or carriage returns"
_REFRAMED = "documents of others' tokens had another beginning or end: they were cut, or had none"
_UNKNOWN = "tokens for text that the tokenizer does not know"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    _add_build(
        actions.add_parser(
            "build",
            help="tokenise text",
            description="Tokenise text into shards. Rows that cannot be used are counted and said.",
        )
    )
    _add_import(
        actions.add_parser(
            "import",
            help="take tokens that others have made",
            description="Make shards of tokens: .ds (datatrove), .bin and .idx (Megatron), .npy, other .bin (nanoGPT). "
            "Documents are shuffled and checked as those of text are.",
        )
    )
    show = actions.add_parser("show", help="say what a data set holds", description="Say what a data set holds.")
    show.add_argument("folder", metavar="DIR", help="its folder or address")
    show.add_argument("--json", action="store_true", help="as JSON")
    join = actions.add_parser(
        "join",
        help="join data sets end to end",
        description="Join data sets end to end: a run that switches to another mix finds it in the later part.",
    )
    join.add_argument("folders", type=Path, nargs="+", metavar="DIR", help="data sets of one tokenizer, in this order")
    join.add_argument(
        "--out", type=Path, required=True, help="folder for the joined set; it must not hold a data set yet"
    )


def _add_build(build: argparse.ArgumentParser) -> None:
    build.add_argument("recipe", type=Path, nargs="?", help="a TOML file with [[sources]] (docs/data.md), or --from")
    _add_work(build)
    flags = build.add_argument_group("in place of a recipe")
    flags.add_argument(
        "--from",
        dest="sources",
        action="append",
        metavar="SOURCE",
        help="botocore (API documentation that is already installed), a folder, a file, a pattern, hf:NAME, or an "
        "address that fsspec knows; repeat it to mix sources",
    )
    flags.add_argument(
        "--weight",
        dest="weights",
        action="append",
        type=float,
        metavar="W",
        help="share of tokens of the source at the same place among --from, in any unit; default: all text of each",
    )
    flags.add_argument("--text-key", help="column or field of the text; default: text")
    flags.add_argument("--limit-bytes", type=int, help="stop after this much text of each source")
    flags.add_argument("--tokenizer", help="a tokenizer.json; default: bytes")
    _add_set(flags)


def _add_import(taken: argparse.ArgumentParser) -> None:
    taken.set_defaults(recipe=None, weights=None)
    taken.add_argument(
        "sources", nargs="+", metavar="SOURCE", help="a file, a folder, a pattern, or an address that fsspec knows"
    )
    taken.add_argument("--tokenizer", required=True, help="the tokenizer.json that made them")
    taken.add_argument(
        "--dtype", choices=("uint16", "uint32"), help="type of a raw .bin; default: uint16 below 65,536 ids"
    )
    _add_work(taken)
    _add_set(taken)


def _add_work(build: argparse.ArgumentParser) -> None:
    build.add_argument(
        "--out",
        required=True,
        help="folder for the shards, or an address such as s3://BUCKET/NAME; it must not hold a data set yet. An "
        "interrupted build continues",
    )
    build.add_argument(
        "--executor",
        dest="kind",
        choices=("local", "slurm", "ray"),
        help="who runs the tasks (docs/data.md): processes of this machine (default), Slurm, or Ray",
    )
    build.add_argument(
        "--workers",
        type=int,
        help="tasks that run at a time; default: one for each processor here, all elsewhere. The result is the same",
    )
    build.add_argument("--tasks", type=int, help="parts of the work, at most one for each file; the result is the same")
    build.add_argument("--json", action="store_true", help="print documents, tokens, skipped rows and digest as JSON")


def _add_set(flags: argparse._ActionsContainer) -> None:
    flags.add_argument(
        "--bos",
        action=argparse.BooleanOptionalAction,
        help="begin each document with the tokenizer's token for it; default: as the tokenizer does",
    )
    flags.add_argument("--end", help="the token that ends each document; default: the tokenizer's eos_token")
    flags.add_argument("--seed", type=int, help="seed of the order of documents; default: 0")
    flags.add_argument(
        "--held-out",
        type=float,
        help=f"kept from training: a share below 1, or tokens; default: {HELD_OUT}, at most {HELD_OUT_TOKENS:,} tokens",
    )
    flags.add_argument("--max-bad", type=float, help=f"share of rows that may be unusable; default: {MAX_BAD}")


def run(options: argparse.Namespace) -> int:
    """Build or join, and print the index's digest, which the run spec names; or show a data set."""
    if options.action == "show":
        return _print(_read_index(options.folder), options.json)
    if options.action == "join":
        from murmur.data.concatenation import join

        sys.stdout.write(f"{join(options.folders, options.out).hex()}\n")
        return 0
    index = _build(options)
    if options.json:
        return _print(index, as_json=True)
    sys.stdout.write(f"{sha256(index.to_bytes()).hexdigest()}\n")
    return 0


def _read_index(folder: str) -> Index:
    from murmur.data.place import place_of
    from murmur.data.shards import Shards, parse_index

    place = place_of(folder)
    if isinstance(place, Path):
        return Shards.open(place).index
    try:
        return parse_index((place / INDEX).read_bytes(), f"{place}")
    except FileNotFoundError:
        raise ConfigError(f"no data set in {place}: {INDEX} is missing; make one with: murmur shards build") from None


def _recipe(options: argparse.Namespace) -> tuple[Recipe, Execution]:
    fields, of_sources = _given(options, tuple(Recipe.model_fields)), _given(options, tuple(Source.model_fields))
    paths, weights = fields.pop("sources", []), options.weights
    if options.recipe is not None:
        if paths or weights or fields or of_sources:
            raise ConfigError(f"{options.recipe} says all of that: leave out the flags that are in place of a recipe")
        recipe, executor = read(options.recipe)
        return recipe, _execution(options, executor)
    if not paths:
        raise ConfigError("name what to build from: a recipe, or --from SOURCE")
    if weights is not None and len(weights) != len(paths):
        raise ConfigError(f"{len(paths)} times --from, but {len(weights)} times --weight: give one for each")
    mixed = zip(paths, weights or [None] * len(paths), strict=True)
    recipe = made(sources=tuple({"path": path, "weight": weight, **of_sources} for path, weight in mixed), **fields)
    return recipe, _execution(options, {})


def _execution(options: argparse.Namespace, executor: Mapping[str, object]) -> Execution:
    found = executed(**{**executor, **_given(options, ("kind", "workers", "tasks"))})
    if found.kind == "local" and found.workers is None:
        return found.model_copy(update={"workers": len(os.sched_getaffinity(0))})
    return found


def _given(options: argparse.Namespace, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: value for name in names if (value := getattr(options, name, None)) is not None}


def _build(options: argparse.Namespace) -> Index:
    recipe, execution = _recipe(options)
    from murmur.data.build import build
    from murmur.data.place import place_of

    out = place_of(options.out)

    shown, begun = "", time.monotonic()

    def on_progress(step: str, done: int, total: int) -> None:
        nonlocal shown
        seconds = int(time.monotonic() - begun)
        if seconds < QUIET_SECONDS:
            return
        text = f"{step}: {done} of {total} tasks, {seconds // 60}:{seconds % 60:02d}"
        if text != shown:
            shown = text
            sys.stderr.write(f"\r{text}")
            sys.stderr.flush()

    def say(line: str) -> None:
        sys.stderr.write(f"{line}\n")

    try:
        build(recipe, out, on_progress=on_progress, say=say, **execution.model_dump())
    finally:
        sys.stderr.write("\n" if shown else "")
    index = Index.model_validate_json((out / INDEX).read_bytes())
    for source in index.sources:
        if source.skipped:
            told = ", ".join(f"{count} {kind}" for kind, count in source.skipped.items())
            say(f"{_shown(source.name)}: rows left out: {told}")
        for count, what in ((source.changed, _CHANGED), (source.reframed, _REFRAMED), (source.unknown, _UNKNOWN)):
            if count:
                say(f"{_shown(source.name)}: {count:,} {what}")
    return index


def _shown(name: str) -> str:
    """Return a name from an index, which may be a stranger's, for a terminal."""
    return name if name.isprintable() else ascii(name)


def _print(index: Index, as_json: bool) -> int:
    tokens = {"train": sum(e.num_tokens for e in index.train), "held_out": sum(e.num_tokens for e in index.held_out)}
    digest = sha256(index.to_bytes()).hexdigest()
    if as_json:
        table = {
            "digest": digest,
            "tokens": tokens,
            "shards": {"train": len(index.train), "held_out": len(index.held_out)},
            **index.model_dump(mode="json", exclude={"train", "held_out"}),
        }
        sys.stdout.write(json.dumps(table) + "\n")
        return 0
    begins = "no token" if index.bos is None else f"token {index.bos}"
    lines = [
        f"digest      {digest}",
        f"tokens      {tokens['train']:,} to train on, {tokens['held_out']:,} held out",
        f"shards      {len(index.train)} and {len(index.held_out)}",
        f"tokenizer   {index.tokenizer}, vocabulary {index.vocabulary:,}; {begins} begins a document, "
        f"token {index.end} ends it",
    ]
    for source in index.sources:
        left_out = ", ".join(f"{count:,} {kind}" for kind, count in source.skipped.items()) or "none"
        lines.append(
            f"source      {_shown(source.name)}: {source.documents:,} documents, {source.tokens:,} tokens, share "
            f"{source.share:.3g}; rows left out: {left_out}"
            + (f"; {source.changed:,} {_CHANGED}" if source.changed else "")
            + (f"; {source.reframed:,} {_REFRAMED}" if source.reframed else "")
            + (f"; {source.unknown:,} {_UNKNOWN}" if source.unknown else "")
        )
    sys.stdout.write("\n".join(lines) + "\n")
    return 0

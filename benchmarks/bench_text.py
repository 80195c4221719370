"""What a data set costs: our build, bare `tokenizers`, and datatrove's own tokens and merge, of the same rows.

    python benchmarks/bench_text.py --tokenizer F [--tokenizer F ..] [--mb 60] [--repeat 3] [--large-mb 200] [--json]

Rows are the files of Python's packages on this machine. Each side is a process of its own with one thread, alternating;
its processor seconds are compared, all included: start, reading, checks, shards. `bare` is encode_batch_fast over the
same texts. `datatrove` is its DocumentTokenizer and DocumentTokenizerMerger, which shuffle too.

`moved`: tokens that are there already (`murmur shards import`), against copies of their file, and in sixteen times the
files and shards (`many`). What a build of few tokens costs (`none`) is taken off both. `large`: peak memory of a build
of one document, in letters of one byte and in characters of four. From 128 MiB of text on, tiktoken encodes where it
gives the same ids: --mb 150.
"""

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from statistics import median
from typing import Any

import numpy as np
from commit import commit

ENVIRONMENT = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
BARE = """
import json, sys
from tokenizers import Tokenizer
native = Tokenizer.from_file(sys.argv[2])
native.no_truncation(), native.no_padding()
native.encode_special_tokens = True
texts, size, total = [], 0, 0
for line in open(sys.argv[1], "rb"):
    texts.append(json.loads(line)["text"])
    size += len(texts[-1])
    if size > 1 << 20:
        total += sum(len(found.ids) for found in native.encode_batch_fast(texts, add_special_tokens=False))
        texts, size = [], 0
total += sum(len(found.ids) for found in native.encode_batch_fast(texts, add_special_tokens=False))
print(total)
"""
DATATROVE = """
import sys
from datatrove.executor.local import LocalPipelineExecutor
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.tokens import DocumentTokenizer, DocumentTokenizerMerger
rows, tokenizer, out, end = sys.argv[1:]
steps = [JsonlReader(rows), DocumentTokenizer(out + "/a", tokenizer_name_or_path=tokenizer, eos_token=end)]
LocalPipelineExecutor(steps, tasks=1, logging_dir=out + "/log").run()
merge = DocumentTokenizerMerger(out + "/a", out + "/b", save_filename="m")
LocalPipelineExecutor([merge], tasks=1, logging_dir=out + "/l").run()
"""


def rows(folder: Path, num_bytes: int, files: int = 1) -> int:
    """Write so much text as JSON lines, in so many files; return how much there is."""
    root, written = Path(sysconfig.get_paths()["purelib"]), 0
    folder.mkdir(parents=True)
    out = [(folder / f"{number:04d}.jsonl").open("w") for number in range(files)]
    paths = (path for ending in ("py", "md", "txt", "json") for path in sorted(root.rglob(f"*.{ending}")))
    for number, path in enumerate(paths):
        text = path.read_text(errors="replace") if path.stat().st_size < 1 << 18 else ""
        if text.strip():
            out[number % files].write(json.dumps({"text": text}) + "\n")
            written += len(text.encode())
        if written > num_bytes:
            break
    for file in out:
        file.close()
    return written


def timed(words: list[str]) -> dict[str, float]:
    """Return what a process and its children took: wall and processor seconds."""
    before, began = getrusage(RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(words, env=ENVIRONMENT, capture_output=True, check=False)
    if done.returncode:
        raise SystemExit(f"{words[:6]}: {done.stderr.decode(errors='replace')[-2000:]}")
    after = getrusage(RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"wall": time.perf_counter() - began, "cpu": cpu}


def build(out: Path, *words: str) -> dict[str, float]:
    shutil.rmtree(out, ignore_errors=True)
    return timed([sys.executable, "-m", "murmur", "shards", *words, "--out", str(out), "--workers", "1"])


def tokens_of(out: Path) -> int:
    done = subprocess.run(
        [sys.executable, "-m", "murmur", "shards", "show", str(out), "--json"], capture_output=True, check=True
    )
    table = json.loads(done.stdout)["tokens"]
    return int(table["train"] + table["held_out"])


def alternating(sides: dict[str, Callable[[], dict[str, float]]], repeat: int) -> dict[str, dict[str, float]]:
    """Return the median of each side's figures."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
    for _ in range(repeat):
        for name, run in sides.items():
            found[name].append(run())
    return {
        name: {figure: round(median(each[figure] for each in runs), 3) for figure in runs[0]}
        for name, runs in found.items()
    }


def text(folder: Path, tokenizer: Path, repeat: int) -> dict[str, Any]:
    """Our build, bare tokenizers, and datatrove."""
    path, out = folder / "rows" / "0000.jsonl", folder / "ours"
    build(out, "build", "--from", str(path), "--tokenizer", str(tokenizer))
    index = json.loads((out / "index.json").read_bytes())
    known = json.loads((out / "tokenizer.json").read_bytes())
    vocabulary = {number: token for token, number in known["model"]["vocab"].items()}
    end = {**vocabulary, **{each["id"]: each["content"] for each in known["added_tokens"]}}[index["end"]]

    def datatrove() -> dict[str, float]:
        shutil.rmtree(folder / "theirs", ignore_errors=True)
        words = [str(path.parent), str(out / "tokenizer.json"), str(folder / "theirs"), end]
        return timed([sys.executable, "-c", DATATROVE, *words])

    found = alternating(
        {
            "ours": lambda: build(out, "build", "--from", str(path), "--tokenizer", str(tokenizer)),
            "bare": lambda: timed([sys.executable, "-c", BARE, str(path), str(out / "tokenizer.json")]),
            "datatrove": datatrove,
        },
        repeat,
    )
    tokens = tokens_of(out)
    return {
        "tokens": tokens,
        "seconds": found,
        "tokens_per_cpu_second": {name: round(tokens / each["cpu"]) for name, each in found.items()},
        "ours_to_bare": round(found["bare"]["cpu"] / found["ours"]["cpu"], 3),
        "ours_to_datatrove": round(found["datatrove"]["cpu"] / found["ours"]["cpu"], 3),
    }


def moved(folder: Path, tokenizer: Path, million: int, repeat: int) -> dict[str, Any]:
    """Tokens that are there already, against copies of their file, and in sixteen files."""
    seed = folder / "seed"
    build(seed, "build", "--from", str(folder / "rows" / "0000.jsonl"), "--tokenizer", str(tokenizer))
    index = json.loads((seed / "index.json").read_bytes())
    width = {"uint16": 2, "uint32": 4}[index["dtype"]]
    some = np.concatenate([np.load(seed / entry["file"]) for entry in index["train"]])
    tokens = np.tile(some, -(-million * 1_000_000 // len(some)))[: million * 1_000_000]
    none, one, many = (folder / "tokens" / name for name in ("none", "one", "many"))
    for place in (none, one, many):
        place.mkdir(parents=True)
    tokens.astype(f"<u{width}").tofile(one / "0.bin")
    for number, some in enumerate(np.array_split(tokens, 16)):
        some.astype(f"<u{width}").tofile(many / f"{number:02d}.bin")
    tokens[:100_000].astype(f"<u{width}").tofile(none / "0.bin")
    copy = f"import os, shutil; shutil.copyfile({str(one / '0.bin')!r}, {str(folder / 'copy')!r}); "
    copy += f"file = open({str(folder / 'copy')!r}); os.fsync(file.fileno())"
    bos = ["--bos"] if index.get("bos") is not None else ["--no-bos"]
    recipe = (
        "import sys; from pathlib import Path; from murmur.data.build import build; "
        "build(sys.argv[1], Path(sys.argv[2]), tokenizer=sys.argv[3], bos=sys.argv[4] == '--bos', "
        "shard_tokens=int(sys.argv[5]))"
    )

    def taken(place: Path, shard_tokens: int) -> dict[str, float]:
        out = folder / "moved"
        shutil.rmtree(out, ignore_errors=True)
        return timed([sys.executable, "-c", recipe, str(place), str(out), str(tokenizer), *bos, str(shard_tokens)])

    found = alternating(
        {
            "copy": lambda: timed([sys.executable, "-c", copy]),
            "ours": lambda: taken(one, 1 << 24),
            "none": lambda: taken(none, 1 << 20),
            "many": lambda: taken(many, 1 << 20),
        },
        repeat,
    )
    return {
        "tokens": len(tokens),
        "bytes": len(tokens) * width,
        "seconds": found,
        "copies": round((found["ours"]["wall"] - found["none"]["wall"]) / found["copy"]["wall"], 2),
        "many_to_one": round(
            (found["many"]["cpu"] - found["none"]["cpu"]) / (found["ours"]["cpu"] - found["none"]["cpu"]), 3
        ),
    }


def large(folder: Path, tokenizer: Path, megabytes: int) -> dict[str, Any]:
    """Peak memory in MB of a build with a document of so many bytes."""
    found = {}
    for name, unit in (("ascii", "plain words of one byte each, and their line\n"), ("emoji", "words 🙂 of four\n")):
        place = folder / f"large-{name}"
        place.mkdir()
        text = unit * (megabytes * 1_000_000 // len(unit.encode()))
        with (place / "a.jsonl").open("w") as file:
            for each in ("a first document", text):
                file.write(json.dumps({"text": each}, ensure_ascii=False) + "\n")
        del text
        code = (
            "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True); "
            "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
        )
        words = [sys.executable, "-m", "murmur", "shards", "build", "--from", str(place), "--tokenizer", str(tokenizer)]
        words += ["--out", str(folder / f"made-{name}"), "--workers", "1"]
        began = time.perf_counter()
        done = subprocess.run([sys.executable, "-c", code, *words], env=ENVIRONMENT, capture_output=True, check=True)
        found[name] = {
            "peak_mb": round(int(done.stdout.split()[-1]) / 1024),
            "seconds": round(time.perf_counter() - began, 1),
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", type=Path, action="append", required=True, help="a tokenizer.json")
    parser.add_argument("--mb", type=int, default=60, help="of text")
    parser.add_argument("--million", type=int, default=100, help="tokens that are moved, in millions")
    parser.add_argument("--large-mb", type=int, default=200, help="of the one large document; 0: none")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="one line")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text_bytes = rows(folder / "rows", options.mb * 1_000_000)
        told: dict[str, Any] = {
            "benchmark": "text",
            "commit": commit(),
            "hardware": f"{platform.machine()}, {len(os.sched_getaffinity(0))} processors",
            "text_bytes": text_bytes,
            "text": {},
        }
        for tokenizer in options.tokenizer:
            told["text"][tokenizer.parent.parent.name] = text(folder, tokenizer, options.repeat)
        told["moved"] = moved(folder, options.tokenizer[0], options.million, options.repeat)
        if options.large_mb:
            told["large"] = large(folder, options.tokenizer[0], options.large_mb)
    sys.stdout.write(json.dumps(told, indent=None if options.json else 1) + "\n")


if __name__ == "__main__":
    main()

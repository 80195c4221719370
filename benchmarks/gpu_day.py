"""The first day on a GPU: codec, FSDP2, training, memory, trace and a round, in one command.

    make gpu                                            (or: bash benchmarks/gpu_day.sh)
    python benchmarks/gpu_day.py --tiny --out runs/gpu_day.json

Writes one JSON and beside it one page. Every part is a process with a time limit, so a part that fails or hangs stops
no other. The most important come first; what --minutes leave no time for is told. Without a GPU, or with --tiny, models
are tiny: parts do what a CPU can do, and say what needs CUDA. The status is 1 when a part failed.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import gpu_parts
import torch
from commit import commit
from gpu_parts import Case, Figures, Found

PASSED, NEEDS_CUDA, FAILED = "passed", "needs CUDA", "failed"


@dataclass(frozen=True, slots=True)
class Part:
    """One of the day's parts. limit: seconds after which it is ended."""

    work: Callable[[Case, Found], Figures]
    limit: float


PARTS = {
    "build": Part(gpu_parts.build, 240),
    "codec bytes": Part(gpu_parts.codec_bytes, 120),
    "codec speed": Part(gpu_parts.codec_speed, 120),
    "fsdp": Part(gpu_parts.fsdp, 150),
    "training 150m": Part(gpu_parts.training("150m"), 200),
    "trace": Part(gpu_parts.trace, 200),
    "round": Part(gpu_parts.one_round, 360),
    "training 1b": Part(gpu_parts.training("1b"), 240),
    "training largest": Part(gpu_parts.training("largest"), 420),
    "memory": Part(gpu_parts.memory, 60),
}
MINUTES = 25.0
END_SECONDS = 20.0
"""Time that a part has to stop what it has started: nodes have sessions of their own."""


def played(name: str, case: Case, found: Found) -> dict[str, Any]:
    """Run the part in this process; return its status."""
    try:
        return {"status": PASSED, "figures": PARTS[name].work(case, found), "why": ""}
    except gpu_parts.NeedsCuda as wait:
        return {"status": NEEDS_CUDA, "figures": wait.figures, "why": str(wait)}
    except gpu_parts.Wrong as fault:
        return {"status": FAILED, "figures": fault.figures, "why": str(fault)}
    except Exception as fault:  # noqa: BLE001  the day goes on, whatever it was
        traceback.print_exc()
        return {"status": FAILED, "figures": {}, "why": f"{type(fault).__name__}: {fault}"}


def apart(name: str, words: list[str], found: Found, left: float) -> dict[str, Any]:
    """Run the part in a process of its own, for `left` seconds at most; return its row."""
    began, limit = time.monotonic(), min(PARTS[name].limit, max(0.0, left))
    with tempfile.TemporaryDirectory() as folder:
        given, told, log = (Path(folder) / each for each in ("given.json", "told.json", "log"))
        given.write_text(json.dumps(found))
        command = [sys.executable, sys.argv[0], *words, "--part", name, "--given", str(given), "--told", str(told)]
        with log.open("w") as out:
            process = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)
            try:
                status = f"ended with status {process.wait(limit)}"
            except subprocess.TimeoutExpired:
                status = f"not done after {limit:.0f} s"
            finally:
                _end(process)
        row = json.loads(told.read_text()) if told.exists() else {"status": FAILED, "figures": {}, "why": status}
        if row["status"] == FAILED:
            row["log"] = log.read_text(errors="replace")[-3000:]
    return {"part": name, "seconds": round(time.monotonic() - began, 1)} | row


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End the part's whole session: nothing of it may stay on the GPU."""
    for signum in (signal.SIGINT, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signum)
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_SECONDS)


def about() -> dict[str, Any]:
    """Return what the figures belong to."""
    there = torch.cuda.is_available()
    return {
        "commit": commit(),
        "date": datetime.now(UTC).date().isoformat(),
        "hardware": torch.cuda.get_device_name() if there else "no GPU",
        "gpu_bytes": torch.cuda.get_device_properties(0).total_memory if there else None,
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
    }


# --- the page --------------------------------------------------------------------------------------------------------


def page(day: dict[str, Any]) -> str:
    """Return the day as markdown: what became of each part, then each one's figures."""
    about = ", ".join(f"{name} {value}" for name, value in day["about"].items() if value)
    lines = [f"# A day on {day['about']['hardware']}", "", f"{about}. Models: {day['case']}.", ""]
    lines += table(("part", "status", "seconds", "why"), day["parts"])
    for row in day["parts"]:
        lines += ["", f"## {row['part']}", "", *figures(row["figures"])]
        lines += ["", "```", *row["log"].splitlines()[-10:], "```"] if row.get("log") else []
    return "\n".join(lines) + "\n"


def figures(found: Figures) -> list[str]:
    """Return a line of the plain entries, and a table of those that are tables themselves, or tables of tables."""
    rest = [f"{name} {shown(value)}" for name, value in found.items() if not isinstance(value, dict)]
    rows: list[dict[str, Any]] = []
    for name, value in found.items():
        if isinstance(value, dict) and all(isinstance(each, dict) for each in value.values()):
            rows += [{"": f"{name}: {key}"} | each for key, each in value.items()]
        elif isinstance(value, dict):
            rows.append({"": name} | value)
    columns = tuple(dict.fromkeys(name for row in rows for name in row))
    lines = [", ".join(rest)] * bool(rest) + [""] * bool(rest and rows) + (table(columns, rows) if rows else [])
    return lines or ["No figures."]


def table(columns: tuple[str, ...], rows: list[dict[str, Any]]) -> list[str]:
    body = ["| " + " | ".join(shown(row.get(name)).replace("|", "/") for name in columns) + " |" for row in rows]
    return ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|", *body]


def shown(value: Any) -> str:
    """Return a figure with four digits, and anything else on one line."""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"
    if isinstance(value, list):
        return " ".join(map(shown, value)) or "none"
    if isinstance(value, dict):
        return ", ".join(f"{name} {shown(each)}" for name, each in value.items())
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return "" if value is None else " ".join(str(value).split())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="tiny models, as without a GPU")
    parser.add_argument("--only", nargs="+", metavar="PART", choices=PARTS, help="parts to run")
    parser.add_argument("--out", type=Path, default=Path("runs/gpu_day.json"), help="the JSON; the page is beside it")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="for all parts (default: %(default)g)")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    parser.add_argument("--given", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--told", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    tiny = options.tiny or not torch.cuda.is_available()
    if options.part:
        row = played(options.part, gpu_parts.TINY if tiny else gpu_parts.GPU, json.loads(options.given.read_text()))
        options.told.write_text(json.dumps(row))
        return
    # For the parts' processes: this tree's packages, its tests' too, before installed ones.
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(gpu_parts.ROOT), *filter(None, [before])])
    if tiny:
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    else:
        os.environ.pop("OMP_NUM_THREADS", None)  # make sets it for tests; here the cores are for the day
    day: dict[str, Any] = {"about": about(), "case": "tiny" if tiny else "full", "parts": []}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    last = time.monotonic() + 60 * options.minutes
    for name in options.only or PARTS:
        found = {row["part"]: row for row in day["parts"]}
        day["parts"].append(row := apart(name, ["--tiny"] * tiny, found, last - time.monotonic()))
        sys.stderr.write(f"{name}: {row['status']}, {row['seconds']} s{row['why'] and ': '}{row['why']}\n")
        # After every part: a day that is cut short keeps what it has.
        options.out.write_text(json.dumps(day, indent=1) + "\n")
        options.out.with_suffix(".md").write_text(page(day))
    sys.stdout.write(page(day))
    sys.exit(any(row["status"] == FAILED for row in day["parts"]))


if __name__ == "__main__":
    main()

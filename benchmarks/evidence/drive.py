"""The driver: makes the runs of a plan that the file of rows lacks, several processes at once, one writer."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from pathlib import Path
from threading import Thread
from typing import Any

from benchmarks.evidence import rows
from benchmarks.evidence.plan import Command, Plan, Scale
from benchmarks.evidence.rows import ROOT, Row
from benchmarks.evidence.settings import Setting

Work = Setting | Command


@dataclass(frozen=True)
class Place:
    """Where runs are made: which corpus, on which device."""

    small: bool
    device: str = "cpu"


_texts: Any = None


def _end_with_parent() -> None:
    """A process of a pool whose parent was killed would wait for work for ever."""

    def watch() -> None:
        parent = parent_process()
        if parent is not None:
            parent.join()
            os._exit(1)

    Thread(target=watch, daemon=True).start()


def _open(place: Place) -> None:
    """A worker process: one thread, and the corpus open."""
    import torch

    from benchmarks.evidence.corpus import open_corpus

    global _texts
    _end_with_parent()
    torch.set_num_threads(1)
    _texts = open_corpus(small=place.small, say=lambda line: None)


def _make(work: Work, device: str) -> Row:
    """One row, in a worker process."""
    from benchmarks.evidence.runs import train

    start = time.perf_counter()
    row: Row = {"id": work.id, "settings": work.key()}
    if isinstance(work, Command):
        done = subprocess.run([sys.executable, *work.words], cwd=ROOT, capture_output=True, text=True, check=False)
        # `murmur plan` ends with 1 for a plan that is late: its figures are what is asked for.
        printed = json.loads(done.stdout) if done.stdout.startswith("{") else {"failed": done.stderr[-500:]}
        row["result"] = {name: value for name, value in printed.items() if not isinstance(value, list)}
        row["seconds"] = round(time.perf_counter() - start, 1)
    else:
        row["points"], seconds = train(work, _texts, device)
        row["seconds"] = round(seconds, 1)
    return row | {"commit": rows.commit(), "machine": rows.machine()}


def drive(
    scale: Scale,
    path: Path,
    place: Place,
    *,
    corpus: str,
    processes: int,
    seconds: float,
    say: Callable[[str], None],
) -> None:
    """Until the plan is done, or no run is to be begun any more after so many seconds. Rows that are there stay."""
    ends = time.monotonic() + seconds
    context = get_context("spawn")
    with (
        rows.writing(path) as writer,
        ProcessPoolExecutor(processes, mp_context=context, initializer=_open, initargs=(place,)) as pool,
    ):
        known = {row["id"]: row for row in rows.read([path])}
        under_way: dict[Future[Row], Work] = {}
        while True:
            busy = {work.id for work in under_way.values()}
            lacking = [work for work in Plan(scale, corpus, known).work() if work.id not in known | dict.fromkeys(busy)]
            while lacking and len(under_way) < processes and time.monotonic() < ends:
                work = lacking.pop(0)
                under_way[pool.submit(_make, work, place.device)] = work
            if not under_way:
                say("the plan is done" if not lacking else f"time is up: {len(lacking)} runs or more are left")
                return
            finished, _ = wait(under_way, return_when=FIRST_COMPLETED)
            for future in finished:
                work, row = under_way.pop(future), future.result()
                writer.append(row)
                known[work.id] = row
                say(f"{len(known)} rows, {len(lacking) + len(under_way)} known to be left: {told(row)}")


def told(row: Row) -> str:
    """A row in a few words."""
    settings = row["settings"]
    if settings["kind"] == "command":
        return " ".join(settings["words"])
    base = Setting(settings["method"]).key()
    shown = {n: v for n, v in settings.items() if n not in ("method", "model", "corpus", "kind") and v != base.get(n)}
    return f"{settings['method']} {shown} loss {row['points'][-1]['loss']} in {row['seconds']} s"

"""`python -m benchmarks.evidence`: make what the plan lacks, then figures and report from the rows."""

import argparse
import sys
from dataclasses import replace
from math import inf
from pathlib import Path

from benchmarks.evidence.rows import ROOT


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.evidence", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tiny plan on a small corpus, into runs/evidence-quick")
    parser.add_argument(
        "--gpu", action="store_true", help="claims 1, 4 and 8 at 150 M parameters on this machine's GPU"
    )
    parser.add_argument(
        "--claim",
        type=int,
        choices=range(1, 11),
        help="make this claim's runs anew, at the rates that the rows say, into runs/evidence-claim-N",
    )
    parser.add_argument("--processes", type=int, help="at work at once (default: 2; with --gpu 1)")
    parser.add_argument("--minutes", type=float, default=inf, help="begin no run after so many")
    parser.add_argument("--rows", type=Path, help="file of rows to go on with (default: the newest of its kind)")
    parser.add_argument("--report", action="store_true", help="make no run: figures and report from the rows")
    options = parser.parse_args()
    from benchmarks.evidence import drive, plan, report, rows
    from benchmarks.evidence.corpus import open_corpus

    scale = plan.QUICK if options.quick else plan.GPU if options.gpu else plan.FULL
    path, folder = options.rows or _newest(scale.name), ROOT / ("runs/evidence-quick" if options.quick else "docs")
    if options.claim:
        folder, trials = ROOT / f"runs/evidence-claim-{options.claim}", plan.trials(rows.read([path]))
        scale, path = replace(scale, claims=(options.claim,)), folder / "rows.jsonl"
        rows.begin(path, trials)
    if not options.report:
        texts = open_corpus(small=options.quick, say=_say)
        drive.drive(
            scale,
            path,
            drive.Place(options.quick, "cuda" if options.gpu else "cpu"),
            corpus=texts.digest,
            processes=options.processes or (1 if options.gpu else 2),
            seconds=60 * options.minutes,
            say=_say,
        )
    written = report.write(scale, path, folder)
    _say(f"wrote {written}")


def _newest(scale: str) -> Path:
    if scale == "quick":
        return ROOT / "runs/evidence-quick/rows.jsonl"
    kind = "evidence-gpu" if scale == "gpu" else "evidence"
    folder = ROOT / "benchmarks/results"
    return max(folder.glob(f"{kind}_*.jsonl"), default=folder / f"{kind}_here.jsonl", key=lambda path: path.name[-16:])


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    main()

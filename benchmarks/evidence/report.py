"""docs/evidence.md and its figures, from the rows alone."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from benchmarks.evidence import rows, sources
from benchmarks.evidence.claims import CLAIMS, Claim
from benchmarks.evidence.plan import NAMES, TRIALS, TUNED, Scale
from benchmarks.evidence.rows import ROOT
from benchmarks.evidence.settings import WARM_UP, payload_bytes
from benchmarks.evidence.view import View

NOT_YET = "Not run yet."


def write(scale: Scale, path: Path, folder: Path) -> Path:
    """The document, and its figures in evidence/ beside it, anew."""
    figures = folder / "evidence"
    figures.mkdir(parents=True, exist_ok=True)
    for old in figures.glob("*.svg"):
        old.unlink()
    view = View(scale, rows.read([path]))
    text = "\n".join(
        [*head(view, path), *(line for claim in CLAIMS for line in section(claim, view, figures)), *tail()]
    )
    document = folder / "evidence.md"
    document.write_text(text.rstrip() + "\n", encoding="utf-8")
    return document


def head(view: View, path: Path) -> list[str]:
    base = view.scale.base
    params, tokens = base.num_parameters, base.peers * base.sequences * base.steps * base.model.context
    machines = Counter(row["machine"] for row in view.rows.values())
    commits = sorted({row["commit"] for row in view.rows.values()})
    name = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path.name
    found = ["# Evidence", ""]
    if view.scale.name == "quick":
        found += ["**This is the quick plan: tiny models, one seed, a small corpus. It shows that everything runs, and "
                  "no more.**", ""]  # fmt: skip
    found += [
        "The claims of the field, tried in one setting. A program computes this file from "
        f"{len(view.rows)} rows in `{name}`: do not edit it.",
        "",
        "    make evidence                     # makes the runs that the rows lack, then this file; hours",
        "    make evidence ARGS=--quick        # a tiny plan, in minutes, into runs/evidence-quick",
        "    make evidence ARGS=--report       # this file from the rows",
        "    make evidence ARGS='--claim 2'    # one claim's runs anew, into runs/evidence-claim-2",
        "    make evidence ARGS=--gpu          # claims 1, 4 and 8 at 150 M parameters  # needs a GPU",
        "",
        f"**Setting**, unless a claim says otherwise: a byte-level Llama-style decoder of "
        f"{params / 1e6:.2f} M parameters ({base.model.layers} layers of width {base.model.width}, context "
        f"{base.model.context}). There are {base.peers} peers with {base.sequences} sequences each in an inner step, "
        f"H = {base.inner_steps}, {base.steps} inner steps in {base.rounds} rounds, {tokens / 1e6:.2f} M tokens in all."
        f" SparseLoCo keeps k = {base.k} of 4096, with error feedback {base.decay}. AdamW has {100 * WARM_UP:.0f} % "
        "warm-up and a cosine to a tenth. Every method of a seed trains on the same pages. "
        "SparseLoCo is the product's codec and outer step.",
        "",
        f"**Loss** is on {base.evaluated} held-out sequences, in nats a byte. In brackets: least to greatest over the "
        "seeds. *Better* and *worse* are seed-wise differences beyond two standard errors: weak with three seeds.",
        "",
        *tuning(view),
        f"**Made** in {view.core_hours():.1f} core-hours on {', '.join(f'{m} ({n} rows)' for m, n in machines.items())}"
        f", at {', '.join(commits[:6])}{' and others' if len(commits) > 6 else ''}. Corpus {view.corpus}.",
        "",
    ]
    return found


def tuning(view: View) -> list[str]:
    """What every method's trials found."""
    found = [
        f"**Rates**: each method had {TRIALS} trials, chosen by one rule (`next_trial` in "
        "benchmarks/evidence/plan.py) and judged on validation text. DiLoCo in int8 takes those of fp32.",
        "",
        "| method | trials made | inner rate | outer rate | its validation loss | sent by a peer each round |",
        "|" + "---|" * 6,
    ]
    for method in TUNED:
        done = view.plan.trial_losses(method)
        size = payload_bytes(view.scale.base.but(method=method))
        shown = f"{len(done)} of {TRIALS} | | | "
        if done:
            peak, outer = best = min(done, key=lambda rate: done[rate])
            inner = f"{peak:g}{at_edge(peak, [rate[0] for rate in done])}"
            rates = f"{inner} | " + (
                "" if method == "ddp" else f"{outer:g}{at_edge(outer, [rate[1] for rate in done])}"
            )
            shown = f"{len(done)} of {TRIALS} | {rates} | {done[best]:.3f}"
        found.append(f"| {NAMES[method]} | {shown} | {size / 1e3:.1f} kB |")
    return [*found, ""]


def at_edge(rate: float, tried: Sequence[float]) -> str:
    """Words for a rate beyond which none was tried."""
    return " (at the edge of what was tried)" if rate in (min(tried), max(tried)) else ""


def section(claim: Claim, view: View, figures: Path) -> list[str]:
    asked = claim.number in view.scale.claims
    answer = claim.answer(view) if asked else []
    names = claim.draw(view, figures) if answer else []
    found = [f"## {claim.number}. {claim.title}", "", f"*{claim.question}*", ""]
    for name in names:
        found += [f"![{claim.title}](evidence/{name})", ""]
    found += [f"**Answer.** {answer[0]}", ""] if answer else [NOT_YET]
    found += [f"- {sentence}" for sentence in answer[1:]]
    if answer:
        found += ["", f"**Published.** {claim.published}", "", f"**Not shown.** {claim.not_shown}"]
        command = claim.command or f"make evidence ARGS='--claim {claim.number}'"
        found += ["", f"    {command}"]
    return [*found, ""]


def tail() -> list[str]:
    return [
        "## The corpus",
        "",
        "English and code from packages under free licences, at most 6 MB of each, split by document into training, "
        "validation and held-out text. A document is a file, or 128 KiB of a long one. Nothing that is fetched is run. "
        "Without apt the pip packages alone make a smaller corpus, whose rows are kept apart by its digest. "
        "`benchmarks/evidence/sources.py` says what each package is.",
        "",
        *sources.table(),
    ]

"""Which runs answer which claim, most valuable first, at three scales: full (hours on two cores), quick (minutes), gpu.

A `Line` is one thing that a figure shows, with a run for each seed. Rates come first: every method gets equally many
trials, on the validation part, with a seed of their own; what wins is used wherever the method is run. Lines whose
rates are not known yet are not in the plan yet.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from benchmarks.evidence.rows import Row
from benchmarks.evidence.settings import SIZES, Method, Optimizer, Setting, State, id_of

TRIAL_SEED = 1000
Rate = tuple[float, float]
"""Peak rate of the inner optimizer, and the outer one."""
TRIALS = 7
"""Of every method."""
START: dict[Optimizer, float] = {"adamw": 6e-3, "muon": 1.2e-2}
OUTER: dict[Method, tuple[float, ...]] = {"ddp": (1.0,), "diloco": (0.7, 0.4), "sparseloco": (1.0, 0.7)}


def next_trial(method: Method, optimizer: Optimizer, done: Mapping[Rate, float]) -> Rate | None:
    """The next trial of a method, by one rule for all, from the losses of those that were made. None after TRIALS.

    The inner rate is doubled or halved from START on until the best is between two others; then the outer rate at the
    best inner one, by the ratio of its first two. What is left goes to inner rates nearer to the best.
    """
    if len(done) == TRIALS:
        return None
    first = OUTER[method][0]
    inner = {peak: loss for (peak, outer), loss in done.items() if outer == first}
    peak = _beyond(inner, (START[optimizer], 2 * START[optimizer]))
    if peak is not None:
        return peak, first
    best = min(inner, key=lambda peak: inner[peak])
    outers = {outer: loss for (peak, outer), loss in done.items() if peak == best}
    outer = _beyond(outers, OUTER[method])
    if outer is not None:
        return best, outer
    peak, outer = min(done, key=lambda rate: done[rate])
    nearer = (round(peak * share, 7) for share in (1.5, 0.75, 1.25, 0.6, 0.9))
    return next((peak, outer) for peak in nearer if (peak, outer) not in done)


def _beyond(tried: Mapping[float, float], first: tuple[float, ...]) -> float | None:
    """The next of `first`, and then beyond the end at which the best is; None once it is between two others."""
    lacking = [rate for rate in first if rate not in tried]
    if lacking:
        return lacking[0]
    best, ratio = min(tried, key=lambda rate: tried[rate]), max(first) / min(first)
    if len(first) == 1 or min(tried) < best < max(tried):
        return None
    return round(best * ratio if best == max(tried) else best / ratio, 7)


NAMES: dict[Method, str] = {
    "ddp": "DDP",
    "diloco": "DiLoCo, fp32",
    "diloco-int8": "DiLoCo, int8",
    "sparseloco": "SparseLoCo",
}
CARRIED: tuple[tuple[str, Optimizer, State], ...] = (
    ("Muon, kept", "muon", "kept"),
    ("Muon, fresh", "muon", "fresh"),
    ("AdamW, kept", "adamw", "kept"),
)
"""Claim 10: what a round begins with."""
CARRIED_ROUNDS = 40
CARRIED_WIDTH = 256
"""Claim 10's widest model: runs are four times as long as others'."""
TUNED: tuple[Method, ...] = ("ddp", "diloco", "sparseloco")
TUNED_AS: dict[Method, Method] = {"ddp": "ddp", "diloco": "diloco", "diloco-int8": "diloco", "sparseloco": "sparseloco"}


@dataclass(frozen=True)
class Line:
    """`claim` 1 to 10, 0 for trials. `panel`: which figure of the claim. `x`: where on its axis."""

    claim: int
    panel: str
    label: str
    runs: tuple[Setting, ...]
    x: float | None = None


@dataclass(frozen=True)
class Command:
    """A measurement by another program of the project, which prints one JSON object: a row as well."""

    claim: int
    panel: str
    label: str
    words: tuple[str, ...]

    def key(self) -> dict[str, Any]:
        return {"kind": "command", "words": list(self.words)}

    @cached_property
    def id(self) -> str:
        return id_of(self.key())


@dataclass(frozen=True)
class Scale:
    """How large a plan is. `base`: what every run departs from."""

    name: str
    base: Setting
    main_seeds: tuple[int, ...]
    """Of the methods beside one another; all else has `seeds`."""
    seeds: tuple[int, ...]
    kept: tuple[int, ...]
    inner_steps: tuple[int, ...]
    peers: tuple[int, ...]
    longer: int
    """Times the base's steps, for runs that show whether a gap closes."""
    sizes: tuple[tuple[str, int], ...]
    """Model sizes, and how many seeds of each."""
    crowd: int
    colluders: tuple[int, ...]
    attacked_steps: int
    muon: bool
    codec: tuple[str, ...]
    carried_inner_steps: tuple[int, ...] = ()
    """H of claim 10, beside the base's."""
    claims: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10)


FULL = Scale(
    "full",
    Setting("sparseloco"),
    main_seeds=(0, 1, 2, 3, 4),
    seeds=(0, 1, 2),
    kept=(16, 32, 128, 256),
    inner_steps=(20, 30, 60, 120),
    peers=(2, 4, 16),
    longer=4,
    sizes=(("0.3M", 3), ("0.8M", 3), ("3M", 1), ("10M", 1)),
    crowd=10,
    colluders=(0, 1, 2, 3, 4),
    attacked_steps=100,
    muon=True,
    codec=("benchmarks/bench_codec.py", "--params", "16000000", "--rounds", "7", "--json"),
    carried_inner_steps=(30, 60, 120),
)
QUICK = Scale(
    "quick",
    Setting("sparseloco", size="quick", peers=4, sequences=4, inner_steps=10, steps=120, evaluated=64, points=4),
    main_seeds=(0,),
    seeds=(0,),
    kept=(16, 256),
    inner_steps=(30,),
    peers=(2, 8),
    longer=2,
    sizes=(("0.1M", 1),),
    crowd=10,
    colluders=(0, 3),
    attacked_steps=40,
    muon=False,
    codec=("benchmarks/bench_codec.py", "--params", "2000000", "--rounds", "3", "--json"),
    carried_inner_steps=(20,),
)
GPU = Scale(
    "gpu",
    Setting("sparseloco", size="150M", sequences=16, inner_steps=15, steps=300),
    main_seeds=(0, 1, 2),
    seeds=(0, 1, 2),
    kept=(16, 256),
    inner_steps=(30, 60),
    peers=(),
    longer=0,
    sizes=(),
    crowd=0,
    colluders=(),
    attacked_steps=0,
    muon=True,
    codec=("benchmarks/bench_cuda.py", "--json"),
    claims=(1, 4, 8),
)
H100 = ("--gpu-tflops", "380", "--gpu-memory", "80")
PRESETS = {"covenant-72b": (), "covenant-72b-110": (), "intellect-10b": H100}
"""Those of published runs, with the machines that they had, where they are not the plan's own."""


def trials(rows: Iterable[Row]) -> list[Row]:
    """Those of the rows that say the rates."""
    return [row for row in rows if row["settings"].get("part") == "validation"]


class Plan:
    """The lines of a scale on one corpus, as far as `rows` say the rates. `later`: the corpus of claim 10, if it is
    another."""

    def __init__(self, scale: Scale, corpus: str, rows: Mapping[str, Row], later: str = "") -> None:
        self.scale, self.rows = scale, rows
        self.base = scale.base.but(corpus=corpus)
        self.long = self.base.but(corpus=later or corpus, steps=max(1, scale.longer) * self.base.steps)
        """What claim 10's runs depart from: long ones, since in few rounds state hardly matters."""

    def lines(self) -> list[Line | Command]:
        return [line for block in self.blocks() for line in block]

    def blocks(self) -> list[list[Line | Command]]:
        """In the order in which they are run; within a block each line's first seed comes before any second one."""
        found: list[list[Line | Command]] = [
            [
                Command(9, "plan", name, ("-m", "murmur", "plan", "--spec", name, *flags, "--json"))
                for name, flags in PRESETS.items()
            ],
            [self._trials(method, "adamw") for method in TUNED],
            [*self._main(), *self._parts()],
            [*self._peers(1)],
            [*self._attacked(1)],
            [*self._longer(1)],
            [*self._kept(1)],
            [*self._kept(), *self._peers()],
            [*self._inner_steps(), *self._waiting()],
            [*self._attacked()],
            [Command(8, "codec", "codec", self.scale.codec)],
            [*self._muon()],
            *(self._sizes(size, num_seeds) for size, num_seeds in self.scale.sizes[:2]),
            [*self._longer()],
            *(self._sizes(size, num_seeds) for size, num_seeds in self.scale.sizes[2:]),
            *self._carried(),
        ]
        return [[line for line in block if self._is_asked(line)] for block in found]

    def _is_asked(self, line: Line | Command) -> bool:
        """The trials are, and SparseLoCo as built, since other claims are beside it."""
        built = (line.claim, line.panel, line.label) == (1, "main", NAMES["sparseloco"])
        beside = (built or line.claim == 0) and bool({*self.scale.claims} - {10})
        return beside or line.claim in self.scale.claims

    def work(self) -> list[Setting | Command]:
        """What is run, each run once, in this order."""
        found: dict[str, Setting | Command] = {}
        for block in self.blocks():
            for place in range(max((len(runs_of(line)) for line in block), default=0)):
                for line in block:
                    for run in runs_of(line)[place : place + 1]:
                        found.setdefault(run.id, run)
        return list(found.values())

    def rate(self, method: Method, optimizer: Optimizer = "adamw") -> Rate | None:
        """The best trial's; None while one lacks."""
        done = self.trial_losses(method, optimizer)
        return min(done, key=lambda rate: done[rate]) if len(done) == TRIALS else None

    def trial_runs(self, method: Method, optimizer: Optimizer = "adamw") -> tuple[Setting, ...]:
        """Those by whose losses the method's rates are chosen, as far as it is known which they are."""
        return self._tried(TUNED_AS[method], optimizer)[0]

    def trial_losses(self, method: Method, optimizer: Optimizer = "adamw") -> dict[Rate, float]:
        """Validation losses of the trials that were made."""
        return self._tried(TUNED_AS[method], optimizer)[1]

    def _trials(self, method: Method, optimizer: Optimizer) -> Line:
        return Line(0, optimizer, NAMES[method], self.trial_runs(method, optimizer))

    def _tried(self, method: Method, optimizer: Optimizer) -> tuple[tuple[Setting, ...], dict[Rate, float]]:
        """The trials that were made and the one to make next, and the losses of those that were made."""
        fixed = self.base.but(method=method, optimizer=optimizer, seed=TRIAL_SEED, part="validation", points=1)
        return self._tried_from(fixed, optimizer)

    def _tried_from(self, fixed: Setting, optimizer: Optimizer) -> tuple[tuple[Setting, ...], dict[Rate, float]]:
        method = fixed.method
        runs: list[Setting] = []
        done: dict[Rate, float] = {}
        while (rate := next_trial(method, optimizer, done)) is not None:
            runs.append(fixed.but(peak_lr=rate[0], outer_lr=rate[1]))
            row = self.rows.get(runs[-1].id)
            if row is None:
                break
            loss = row["points"][-1]["loss"]
            done[rate] = float("inf") if loss is None else loss
        return tuple(runs), done

    def _runs(
        self, method: Method, seeds: tuple[int, ...] | None = None, optimizer: Optimizer = "adamw", **changes: Any
    ) -> tuple[Setting, ...]:
        """One run for each seed at the method's rates; none while these are not known. On a wider model the inner rate
        falls as 1 / width, for every method alike."""
        rate = self.rate(method, optimizer)
        if rate is None:
            return ()
        run = self.base.but(method=method, optimizer=optimizer, outer_lr=rate[1], **changes)
        peak = rate[0] * self.base.model.width / run.model.width
        return tuple(run.but(peak_lr=peak, seed=seed) for seed in (self.scale.seeds if seeds is None else seeds))

    def _line(
        self, claim: int, panel: str, label: str, runs: tuple[Setting, ...], x: float | None = None
    ) -> list[Line]:
        return [Line(claim, panel, label, runs, x)] if runs else []

    def _main(self) -> list[Line]:
        return [line for m in NAMES for line in self._line(1, "main", NAMES[m], self._runs(m, self.scale.main_seeds))]

    def _longer(self, num_seeds: int | None = None) -> list[Line]:
        """Few seeds come first, so that a plan that is cut short has something of everything."""
        if not self.scale.longer:
            return []
        seeds = self.scale.seeds[:num_seeds]
        steps = self.scale.longer * self.base.steps
        return [line for m in TUNED for line in self._line(1, "longer", NAMES[m], self._runs(m, seeds, steps=steps))]

    def _kept(self, num_seeds: int | None = None) -> list[Line]:
        return [
            line
            for k in self.scale.kept
            for line in self._line(1, "k", "SparseLoCo", self._runs("sparseloco", self.scale.seeds[:num_seeds], k=k), k)
        ]

    def _inner_steps(self) -> list[Line]:
        return [
            line
            for steps in self.scale.inner_steps
            for m in ("sparseloco", "diloco")
            for line in self._line(1, "H", NAMES[m], self._runs(m, inner_steps=steps), steps)
        ]

    def _parts(self) -> list[Line]:
        off: dict[str, dict[str, Any]] = {
            "without error feedback": {"feedback": False},
            "kept values not quantised": {"quantise": False},
            "norms not bounded": {"rule": "unbounded_mean"},
        }
        return [
            line
            for name, change in off.items()
            for line in self._line(2, "parts", name, self._runs("sparseloco", **change))
        ]

    def _peers(self, num_seeds: int | None = None) -> list[Line]:
        """Equal tokens: what all peers together train on in a step stays."""
        together = self.base.peers * self.base.sequences
        found = []
        for peers in self.scale.peers:
            for m in ("sparseloco", "diloco"):
                runs = self._runs(m, self.scale.seeds[:num_seeds], peers=peers, sequences=together // peers)
                found += self._line(3, "peers", NAMES[m], runs, peers)
        for label, change in {
            "each peer replaced in a round with probability 0.1": {"leave": 0.1},
            "paces from 0.5 to 1.5": {"pace": 0.5},
        }.items():
            runs = self._runs("sparseloco", self.scale.seeds[:num_seeds], **change)
            found += self._line(3, "trouble", label, runs)
        return found

    def _muon(self) -> list[Line]:
        if not self.scale.muon:
            return []
        found = [self._trials(method, "muon") for method in TUNED]
        for m in TUNED:
            found += self._line(4, "muon", NAMES[m], self._runs(m, optimizer="muon"))
        return found

    def _sizes(self, size: str, num_seeds: int) -> list[Line | Command]:
        found: list[Line | Command] = []
        for m in TUNED:
            runs = self._runs(m, self.scale.seeds[:num_seeds], size=size)
            found += self._line(4, "sizes", NAMES[m], runs, runs[0].num_parameters if runs else None)
        return found

    def _waiting(self) -> list[Line]:
        cases: dict[str, dict[str, Any]] = {
            "every guess lacks one update, for a tenth of the steps": {"guess": "lacking", "delay": 0.1},
            "overlap: from the own update alone, for a tenth": {"guess": "own", "delay": 0.1},
            "overlap: from the own update alone, for half": {"guess": "own", "delay": 0.5},
            "every fourth round void": {"void": 4},
        }
        return [
            line
            for label, c in cases.items()
            for line in self._line(5, "waiting", label, self._runs("sparseloco", **c))
        ]

    def _carried(self) -> list[list[Line | Command]]:
        """Claim 10. At least 40 rounds each; a state's rates are those of its own trials, as long as the runs."""
        if not self.scale.carried_inner_steps:
            return []
        found: list[list[Line | Command]] = []
        for panel in ("trials", "main", "H", "sizes"):
            for label, optimizer, state in CARRIED:
                kind = self.long.but(optimizer=optimizer, state=state)
                runs, done = self._tried_from(kind.but(seed=TRIAL_SEED, part="validation", points=1), optimizer)
                if panel == "trials":
                    found.append([Line(10, panel, label, runs)])
                    continue
                if len(done) < TRIALS:
                    continue
                peak, outer = min(done, key=lambda rate: done[rate])
                best = kind.but(peak_lr=peak, outer_lr=outer)
                found.append(list(self._carried_lines(panel, label, best)))
        return found

    def _carried_lines(self, panel: str, label: str, best: Setting) -> Iterator[Line]:
        if panel == "main":
            yield Line(10, panel, label, tuple(best.but(seed=seed) for seed in self.scale.seeds), best.inner_steps)
        if panel == "H":
            for inner in self.scale.carried_inner_steps:
                run = best.but(inner_steps=inner, steps=max(best.steps, CARRIED_ROUNDS * inner))
                yield Line(10, panel, label, tuple(run.but(seed=seed) for seed in self.scale.seeds), inner)
        if panel == "sizes":
            for size, num_seeds in self.scale.sizes:
                if SIZES[size].width > CARRIED_WIDTH:
                    continue
                run = best.but(size=size, peak_lr=best.peak_lr * self.base.model.width / SIZES[size].width)
                runs = tuple(run.but(seed=seed) for seed in self.scale.seeds[:num_seeds])
                yield Line(10, panel, label, runs, run.num_parameters)

    def _attacked(self, num_seeds: int | None = None) -> list[Line]:
        rules = {
            "mean of whatever comes": "unbounded_mean",
            "mean, norms bounded by the median": "mean",
            "filtered mean": "filtered_mean",
            "trimmed mean": "trimmed_mean",
            "Krum": "krum",
        }
        return [
            line
            for count in self.scale.colluders
            for label, rule in rules.items()
            for line in self._line(
                6,
                "rules",
                label,
                self._runs(
                    "sparseloco",
                    self.scale.seeds[:num_seeds],
                    peers=self.scale.crowd,
                    rule=rule,
                    colluders=count,
                    attack="perturbed" if count else "none",
                    inner_steps=10,
                    steps=self.scale.attacked_steps,
                    points=2,
                ),
                count / self.scale.crowd,
            )
        ]


def runs_of(line: Line | Command) -> tuple[Setting | Command, ...]:
    """What a line asks for, run by run."""
    return line.runs if isinstance(line, Line) else (line,)

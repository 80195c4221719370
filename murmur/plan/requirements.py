"""A node's requirements in a run: memory, disk, compute, bytes and time, by arithmetic from the spec. No torch.

Memory and disk are counted in murmur/training/memory.py, a round's phases in murmur/plan/phases.py. Source of the
published figures: Covenant-72B (arXiv 2603.08163).
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self

from murmur.node.sync.expected_selection import guess_seconds
from murmur.plan.phases import (
    DEADLINES,
    MARGIN,
    VALIDATORS,
    Deadline,
    Opening,
    Setting,
    TrainerSetting,
    correction_phases,
    decided,
    opening,
    restart_phases,
    round_phases,
)
from murmur.plan.rates import Rate, Rates
from murmur.plan.timeline import Timed, amount, phase_seconds, schedule
from murmur.protocol.spec import RunSpec, TrainingSpec
from murmur.training.memory import (
    CPU_BYTES,
    MemoryPart,
    Role,
    cpu_activations,
    disk_parts,
    fits,
    gpus_needed,
    host_moments,
    largest,
    trainer_moments,
    trainer_parts,
    trainer_total,
)
from murmur.training.sizes import Sizes, untied_parameters

ROLES: tuple[Role, ...] = ("miner", "validator")
DAY_SECONDS = 86_400
_ROUNDS = 64
"""Rounds after which a round equals the previous one, or nearly."""


def utilization(compute_seconds: float, communication_seconds: float) -> float:
    """Return the share of the time spent computing, as the published runs define it. Both times are >= 0, one is not
    0."""
    return compute_seconds / (compute_seconds + communication_seconds)


def transfer_seconds(num_bytes: float, mbps: float) -> float:
    """Return the seconds that `num_bytes` take at `mbps` megabits (10^6) per second."""
    return link(mbps).seconds(num_bytes, 1)


def link(mbps: float) -> Rate:
    """Return a link of `mbps` megabits (10^6) per second."""
    return Rate(mbps / 8e-6, mbps / 8e-6)


@dataclass(frozen=True, slots=True)
class PublishedFigures:
    """The figures that a published run reports. `num_parameters` counts embedding and head separately; `value_bits` are
    the bits of one kept value, index and code."""

    name: str
    num_parameters: int
    values_per_chunk: int
    value_bits: int
    peers: int
    up_mbps: float
    down_mbps: float
    compute_seconds: float
    communication_seconds: float

    @property
    def payload_bytes(self) -> float:
        return self.num_parameters / 4096 * self.values_per_chunk * self.value_bits / 8


COVENANT = PublishedFigures("Covenant-72B", 72_747_327_488, 64, 14, 20, 110.0, 500.0, 20 * 60.0, 70.0)


@dataclass(frozen=True, slots=True)
class Missed:
    """A deadline that a node as planned does not meet: `ends` and `by` in seconds from the commit deadline of the
    previous round. `path`: the phases that delay it, the longest first."""

    deadline: Deadline
    ends: float
    by: float
    path: tuple[Timed, ...]


@dataclass(frozen=True)
class TrainerPlan(ABC):
    """Requirements of a trainer for `spec` on `gpus` GPUs of `gpu_bytes` memory, or, with on_gpu False, on its CPU
    alone. rates: of its machine and links. has_data: the data set is on its disk."""

    spec: TrainingSpec
    gpus: int
    gpu_bytes: int
    rates: Rates = field(default_factory=Rates)
    on_gpu: bool = True
    has_data: bool = False

    @property
    @abstractmethod
    def setting(self) -> TrainerSetting: ...

    @property
    @abstractmethod
    def round_seconds(self) -> float: ...

    @property
    @abstractmethod
    def utilization(self) -> float: ...

    # --- bytes and FLOPs -----------------------------------------------------------------------------------------

    @property
    def parameters(self) -> int:
        """Trained values; tied embeddings count once."""
        return self.spec.layout.num_parameters

    @property
    def parameters_untied(self) -> int:
        return untied_parameters(self.spec.model)

    @property
    def tokens(self) -> int:
        """Tokens that one peer trains on in a round."""
        return self.spec.inner.steps * self.spec.inner.sequences * self.spec.model.context

    @property
    def flops(self) -> int:
        """Model FLOPs of one peer's round."""
        return self.setting.flops

    @property
    def optimizer_flops(self) -> int:
        """Muon's additional FLOPs in one peer's round."""
        return self.setting.optimizer_flops

    @property
    def payload_bytes(self) -> int:
        return self.setting.sizes.payload

    @property
    def tokens_per_day(self) -> float:
        """Tokens that all contributors of full rounds train on in a day."""
        return self.setting.sizes.contributors * self.tokens * DAY_SECONDS / self.round_seconds

    # --- time ----------------------------------------------------------------------------------------------------

    @property
    def compute_seconds(self) -> float:
        """Seconds of the inner steps."""
        return self.rates.compute.seconds(self.flops + self.optimizer_flops, self.gpus)

    @property
    def upload_seconds(self) -> float:
        """Seconds of one payload's upload."""
        return self.rates.up.seconds(self.payload_bytes, 1)

    @property
    @abstractmethod
    def download_bytes(self) -> int: ...

    @property
    def download_seconds(self) -> float:
        return self.rates.down.seconds(self.download_bytes, 1)

    @property
    def published_utilization(self) -> float:
        """Utilization as the published runs count it: one payload up and those of all contributors down, nothing
        else."""
        return utilization(self.compute_seconds, self.upload_seconds + self.download_seconds)

    # --- memory --------------------------------------------------------------------------------------------------

    def memory(self, micro_sequences: int = 1) -> dict[str, MemoryPart]:
        """Return a trainer's memory by part with `micro_sequences` on each GPU at once."""
        return trainer_parts(self.setting.sizes, self.gpus, micro_sequences)

    @property
    def memory_total(self) -> MemoryPart:
        """A trainer's memory in total, with one sequence at once."""
        return trainer_total(self.setting.sizes, self.gpus, 1)

    @property
    def trainer_host(self) -> dict[str, int]:
        """Bytes on a trainer's host at each peak moment."""
        held = trainer_moments(self.setting.sizes, ranks=self._ranks, cpu_activations=self._host_activations)
        return {moment: sum(parts.values()) for moment, parts in held.items()}

    @property
    def sequences_per_gpu(self) -> int:
        """Sequences of one inner step per GPU, in one or more micro-batches."""
        return -(-self.spec.inner.sequences // self.gpus)

    @property
    def micro_sequences(self) -> int:
        """Most sequences at once that fit into a GPU's memory; 0 when not even one fits."""
        return largest(lambda count: self._fits(self.gpus, count), self.sequences_per_gpu)

    @property
    def gpus_needed(self) -> int | None:
        """Fewest GPUs of this size that suffice (murmur/training/memory.py)."""
        return gpus_needed(self.spec, self.gpu_bytes)

    def _fits(self, gpus: int, micro_sequences: int) -> bool:
        return fits(self.spec, gpus, self.gpu_bytes, micro_sequences)

    @property
    def _ranks(self) -> int:
        return self.gpus if self.on_gpu else 1

    @property
    def _host_activations(self) -> int | None:
        """Activation bytes where the CPU trains; None where GPUs do."""
        if self.on_gpu:
            return None
        return min(CPU_BYTES, cpu_activations(self.spec.model, self.spec.inner.sequences))

    def with_spread(self, spread: float) -> Self:
        """Return the plan for inner steps whose time varies by `spread` (a share)."""
        return self


@dataclass(frozen=True)
class Plan(TrainerPlan):
    """Requirements of one node of a run on a chain.

    Links that are not given default to those that the spec's clock was planned for. validators: how many of equal stake
    share the copies of payloads. voters: rates of the validators whose votes decide a round; by default this node's.
    margin: share of the compute that is kept free.
    """

    spec: RunSpec
    validators: int = VALIDATORS
    voters: Rates | None = None
    margin: float = MARGIN

    def __post_init__(self) -> None:
        clock = self.spec.clock
        up = self.rates.up if self.rates.up.one else link(clock.upload_mbps)
        down = self.rates.down if self.rates.down.one else link(clock.download_mbps)
        object.__setattr__(self, "rates", replace(self.rates, up=up, down=down))

    def with_spread(self, spread: float) -> Self:
        return replace(self, margin=max(MARGIN, spread))

    @property
    def sizes(self) -> Sizes:
        return Sizes(self.spec)

    @property
    def setting(self) -> Setting:
        return Setting(
            self.spec, self.gpus, self.rates.threads, self.on_gpu, self.has_data, self.validators, self.margin
        )

    @property
    def download_bytes(self) -> int:
        """Bytes of all contributing payloads of a full round."""
        return self.sizes.contributors * self.sizes.payload

    # --- time ----------------------------------------------------------------------------------------------------

    @property
    def round_seconds(self) -> float:
        return self.spec.clock.round_blocks * self.spec.clock.block_seconds

    @cached_property
    def openings(self) -> dict[Opening, float]:
        """Seconds from the commit deadline of the previous round until these are final, and until others have uploaded,
        if they are as fast as this node; that may be before the commit deadline."""
        clock = self.spec.clock
        final: dict[Opening, float] = {"commit": opening(clock, "commit"), "reveal": opening(clock, "reveal")}
        final["guess"] = final["commit"] + guess_seconds(clock)
        final["uploaded"] = final["commit"]
        voter = self if self.voters is None else replace(self, rates=self.voters, voters=None)
        vote = next(t for t in voter._scheduled("validator", final | {"decided": 0.0}) if t.phase.name == "vote")
        known = final | {"decided": decided(clock, vote.ends)}
        for _ in range(_ROUNDS):  # a node with the others' payloads earlier publishes earlier
            published = next(t for t in self._scheduled("miner", known) if t.phase.name == "publish")
            uploaded = min(known["commit"], published.ends - self.round_seconds)
            settled, known = (
                abs(uploaded - known["uploaded"]) < 1e-3 * self.round_seconds,
                known | {"uploaded": uploaded},
            )
            if settled:
                break
        return known

    def _scheduled(self, role: Role, openings: Mapping[Opening, float]) -> tuple[Timed, ...]:
        targets = [deadline.phase for deadline in DEADLINES if deadline.role == role]
        return schedule(round_phases(self.setting, role), self.rates, openings, targets, self.round_seconds)

    @cached_property
    def _timelines(self) -> dict[Role, tuple[Timed, ...]]:
        return {role: self._scheduled(role, self.openings) for role in ROLES}

    def timeline(self, role: Role) -> tuple[Timed, ...]:
        """Return the phases of a round, in the order of the code."""
        return self._timelines[role]

    def restart(self, role: Role) -> tuple[tuple[str, float], ...]:
        """Return names and seconds of the phases of a start, before the first round."""
        return tuple((phase.name, phase_seconds(phase, self.rates)) for phase in restart_phases(self.setting, role))

    def tightest(self, role: Role) -> tuple[Deadline, float, float]:
        """Return the deadline with the largest share used up, the seconds from the commit deadline until it is met, and
        until it passes."""
        found = []
        for deadline in DEADLINES:
            if deadline.role == role:
                ends = next(timed.ends for timed in self.timeline(role) if timed.phase.name == deadline.phase)
                found.append((deadline, ends, deadline.by(self.spec.clock)))
        return max(found, key=lambda one: one[1] / one[2])

    @property
    def missed(self) -> tuple[Missed, ...]:
        """Deadlines that are not met, even in the case that a validator is silent and the round is decided only at
        the vote deadline."""
        found: list[Missed] = []
        late = self.openings | {"decided": opening(self.spec.clock, "words")}
        for deadline in DEADLINES:
            timed = {phase.phase.name: phase for phase in self._scheduled(deadline.role, late)}
            last, by = timed[deadline.phase], deadline.by(self.spec.clock)
            if last.ends > by:
                path = sorted(_path(timed, last), key=lambda phase: -phase.seconds)
                found.append(Missed(deadline, last.ends, by, tuple(path)))
        return tuple(found)

    @property
    def loses_own_state(self) -> bool:
        """Whether a miner's own state is never completely on disk: the next compression cancels its writing."""
        timed = {phase.phase.name: phase for phase in self.timeline("miner")}
        return timed["save own state"].ends > timed["compress"].begins

    @property
    def uplink_share(self) -> float:
        """Share of the time in which a validator's uplink is busy; above 1 copies or checkpoints never finish
        uploading."""
        return self.rates.up.seconds(amount(round_phases(self.setting, "validator"), "up"), 1) / self.round_seconds

    @property
    def utilization(self) -> float:
        """Share of a miner's round that is spent computing. If its work is published only after the next commit
        deadline, share of the time until then."""
        done = [phase.ends for phase in self.timeline("miner") if phase.phase.name in ("commit", "publish")]
        return self.compute_seconds / max(self.round_seconds, *done)

    @property
    def correction(self) -> tuple[tuple[str, float], ...]:
        """Names and seconds of the phases that a wrong guess adds to a miner's round."""
        return tuple((phase.name, phase_seconds(phase, self.rates)) for phase in correction_phases(self.setting))

    @property
    def correction_seconds(self) -> float:
        return sum(seconds for _, seconds in self.correction)

    @property
    def published_after_correction(self) -> float:
        """Seconds from the commit deadline of the previous round until a miner with a wrong guess has committed and
        published."""
        ends = {timed.phase.name: timed.ends for timed in self.timeline("miner")}
        return max(ends["commit"], ends["publish"])

    # --- host and disk -------------------------------------------------------------------------------------------

    def host(self, role: Role) -> dict[str, int]:
        """Return the bytes on the host at each peak moment."""
        held = host_moments(self.spec, role, ranks=self._ranks, cpu_activations=self._host_activations)
        return {moment: sum(parts.values()) for moment, parts in held.items()}

    def host_bytes_peak(self, role: Role) -> int:
        return max(self.host(role).values())

    def disk_bytes(self, role: Role) -> int:
        """Return the most bytes of its state on disk, without the data set."""
        return sum(disk_parts(self.spec, role).values())

    def disk_bytes_per_day(self, role: Role) -> float:
        """Return the bytes that it writes in a day."""
        return amount(round_phases(self.setting, role), "write") * DAY_SECONDS / self.round_seconds

    def data_bytes_per_day(self, role: Role) -> float:
        """Return the bytes of the data set that are fetched and stay on disk, per day until all files are there or
        their budget is full; at most the whole data set."""
        sizes = self.sizes
        shards = sizes.trained_shards if role == "miner" and not self.has_data else 0
        return min(
            shards * sizes.shard * DAY_SECONDS / self.round_seconds,
            bool(shards) * self.spec.data.num_tokens * sizes.token,
        )


def _path(timed: dict[str, Timed], last: Timed) -> list[Timed]:
    """Return the chain of phases back from `last`, each of which ends when the next begins."""
    path, names = [last], list(timed)
    while True:
        first = path[-1]
        waits = first.phase.after
        if waits is None:
            waits = tuple(names[at - 1] for at in [names.index(first.phase.name)] if at)
        before = [timed[name] for name in waits if timed[name].ends >= first.begins - 1e-9]
        if not before:
            return path
        path.append(max(before, key=lambda phase: phase.ends))

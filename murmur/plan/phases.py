"""The phases of a round and of a restart, as built: one table for each role.

A phase lists the bytes that pass through each rate, the number of threads, and its predecessors;
murmur/plan/timeline.py computes times from them. Time counts from the commit deadline of the previous round, the last
instant at which both roles are idle: the phases after it settle that round, and the next commit deadline ends the
round. A change of the code also changes its line here; `murmur plan`, its refusals, a disk's wear and the utilization
follow.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from gauntlet.agreement import COPIES
from murmur.node.fetch.threads import FETCH_THREADS, OPEN_THREADS, PART_THREADS, PREFETCH_THREADS, parallel_fetches
from murmur.protocol.merkle import SECTION_BYTES
from murmur.protocol.spec import WINDOW_MARGIN_BLOCKS, ClockSpec, RunSpec, TrainingSpec
from murmur.training.memory import PLACE_BYTES, Role, Trainer
from murmur.training.muon_assignment import muon_flops
from murmur.training.sizes import FILE_BYTES, FP32, Sizes, flops_per_token
from storage.s3 import PART_BYTES

VALIDATORS = 3
"""Number of validators of equal stake that share the copies, unless a plan gives another."""
SELECT_CALLS = 5
"""Calls to the chain for a selection."""

RateName = Literal[
    "compute", "up", "down", "device", "copy", "fresh", "hash", "cipher", "write", "read", "compress", "apply", "probe",
    "call", "wait",
]  # fmt: skip
"""A field of murmur/plan/rates.py Rates."""

Opening = Literal["uploaded", "commit", "guess", "reveal", "decided"]
"""uploaded: others' payloads are in their buckets. commit, reveal: that deadline is final. guess: a miner guesses the
selection, at the latest. decided: the votes that decide the previous round are in a final block."""
MARGIN = 0.02
"""Least share of the compute that is kept free for variation of the inner steps' time. The spread of its own trial
counts if larger, where the machine is measured (murmur/plan/measure.py). Assumed: not measured on GPUs."""


@dataclass(frozen=True, slots=True)
class Work:
    """`amount` at a rate, by that many threads (for GPUs: by that many GPUs)."""

    amount: float
    rate: RateName
    threads: int = 1


@dataclass(frozen=True, slots=True)
class Phase:
    """A phase that a node runs once per round, or once in `every` rounds.

    work: done in order. beside: done by other threads meanwhile; the phase lasts as long as the longer of the two.
    after: phases that must have ended; None: the one listed before. opens: the block that must be final. Phases not
    ordered by `after` run concurrently.
    """

    name: str
    work: tuple[Work, ...]
    after: tuple[str, ...] | None = None
    opens: Opening | None = None
    beside: tuple[Work, ...] = ()
    every: int = 1


@dataclass(frozen=True, slots=True)
class Deadline:
    """`phase` has to end by `by(clock)`, seconds from the commit deadline of the previous round. As text: what the node
    does then (`does`), when that is, and the consequence of missing it (`missed`)."""

    role: Role
    phase: str
    by: Callable[[ClockSpec], float]
    does: str
    when: str
    missed: str


DEADLINES = (
    Deadline(
        "miner",
        "commit",
        lambda c: seconds(c, c.round_blocks),
        "commits",
        "the commit deadline",
        "nobody counts its work",
    ),
    Deadline(
        "miner",
        "publish",
        lambda c: seconds(c, c.round_blocks),
        "has published what it commits to",
        "the commit deadline",
        "others may have no time left to read it",
    ),
    Deadline(
        "validator",
        "gather",
        lambda c: opening(c, "reveal"),
        "has read those who contribute",
        "the reveal deadline's block is final",
        "it cannot select the peers that it lacks",
    ),
    Deadline(
        "validator",
        "vote",
        lambda c: seconds(c, c.words - c.commit),
        "has posted its vote",
        "the vote deadline",
        "it is not heard, and where most are late the round is void",
    ),
    Deadline(
        "validator",
        "held-out loss",
        lambda c: opening(c, "commit") + seconds(c, c.round_blocks) + seconds(c, c.reveal - c.commit) / 2,
        "is ready for the next round",
        "half of its reveal window",
        "it judges nobody in it",
    ),
)


def seconds(clock: ClockSpec, blocks: float) -> float:
    return blocks * clock.block_seconds


def opening(clock: ClockSpec, block: str) -> float:
    """Return the seconds from the commit deadline until this block of the clock ("commit", "reveal", "words") is
    final."""
    return seconds(clock, getattr(clock, block) - clock.commit + clock.finality_blocks)


def decided(clock: ClockSpec, voted: float) -> float:
    """Return the seconds from the commit deadline until the round is decided, when every validator's vote is in a block
    after `voted` seconds."""
    return min(voted + seconds(clock, clock.finality_blocks), opening(clock, "words"))


@dataclass(frozen=True, slots=True)
class TrainerSetting(ABC):
    """A trainer on a machine: `threads` of its CPUs and `gpus` that train. on_gpu: False where its CPU trains.
    has_data: the data set is on its disk, and nothing has to be fetched."""

    spec: TrainingSpec
    gpus: int
    threads: int
    on_gpu: bool = True
    has_data: bool = False

    @property
    @abstractmethod
    def sizes(self) -> Trainer: ...

    @property
    def flops(self) -> int:
        """Model FLOPs of one peer's round."""
        inner, model = self.spec.inner, self.spec.model
        return inner.steps * inner.sequences * model.context * flops_per_token(model)

    @property
    def optimizer_flops(self) -> int:
        """FLOPs of Muon's orthogonalisation on all GPUs, idle waiting included; 0 under AdamW."""
        inner = self.spec.inner
        return self.gpus * inner.steps * muon_flops(self.spec.model, inner, self.gpus)

    # --- what many phases do -------------------------------------------------------------------------------------

    def to_device(self, num_bytes: int) -> Work:
        """Return the transfer to or from the GPUs; where a CPU trains, a copy in its memory."""
        return Work(num_bytes, "device", self.gpus) if self.on_gpu else Work(num_bytes, "copy", self.threads)

    def copied(self, num_bytes: int) -> Work:
        return Work(num_bytes, "copy", self.threads)

    def saved(self, num_bytes: int) -> tuple[Work, ...]:
        """murmur/training/checkpoint.py save: files concurrently, each hashed and written in turn, piece by piece."""
        threads = self._files(num_bytes)
        return Work(num_bytes, "hash", threads), Work(num_bytes, "write", threads)

    def _files(self, num_bytes: int) -> int:
        return min(self.threads, -(-num_bytes // FILE_BYTES))

    def hashed(self, num_bytes: int) -> Work:
        """sparseloco/digest.py theta_digest."""
        return Work(num_bytes, "hash", min(self.threads, -(-num_bytes // SECTION_BYTES)))

    def loaded(self, num_bytes: int) -> tuple[Work, ...]:
        """murmur/training/checkpoint.py load: files are mapped, read while hashed, and copied to their place."""
        threads = self._files(num_bytes)
        return Work(num_bytes, "read", threads), Work(num_bytes, "hash", threads), self.copied(num_bytes)

    def opened(self, payloads: int, hashes: int, hashers: int) -> tuple[Work, ...]:
        """storage/seal.py unseal and sparseloco/wire.py parse_submission, several payloads concurrently: hashed,
        decrypted, and copied to their place."""
        total, threads = payloads * self.sizes.payload, self.openers
        return Work(hashes * total, "hash", hashers), Work(total, "cipher", threads), Work(total, "fresh", threads)

    def sealed(self) -> tuple[Work, ...]:
        """storage/seal.py Sealing: one thread encodes the payload, several encrypt and hash its sections."""
        payload, threads = self.sizes.payload, self.openers
        return Work(payload, "fresh"), Work(payload, "cipher", threads), Work(payload, "hash", threads)

    @property
    def openers(self) -> int:
        """Payloads opened concurrently, and sections of one payload sealed concurrently
        (murmur/node/fetch/payloads.py)."""
        return min(self.threads, OPEN_THREADS) if self.sizes.payload > PART_BYTES else 1

    def fetched(self) -> tuple[Work, ...]:
        """murmur/data/shards.py hold, by murmur/node/sync/dataset.py: whole files of the data set, hashed on arrival
        and when opened."""
        if self.has_data:
            return ()
        total = self.sizes.trained_shards * self.sizes.shard
        return Work(total, "down"), Work(total, "write"), Work(2 * total, "hash")

    def evaluated(self, sequences: int) -> Work:
        """Return forward passes: a third of training's FLOPs."""
        model = self.spec.model
        return Work(sequences * model.context * flops_per_token(model) / 3, "compute", self.gpus)

    def applied(self) -> tuple[Phase, ...]:
        """murmur/node/state/node_state.py apply: apply the agreed payloads and hash theta. Only the names of the
        payloads are saved."""
        return (*self.stepped(), Phase("theta digest", (self.hashed(self.sizes.model),)))

    def stepped(self) -> tuple[Phase, ...]:
        """murmur/training/replica.py outer_step."""
        sizes = self.sizes
        contributed = sizes.opened * sizes.payload
        return (
            Phase("outer step", (self.copied(sizes.model), Work(contributed, "apply", self.threads))),
            Phase("load weights", (self.to_device(sizes.model),)),
        )

    def snapshot(self) -> Phase:
        """murmur/node/state/snapshots.py: write theta to disk in parallel with the rounds, from when it is hashed."""
        written = self.saved(self.sizes.model)
        return Phase("snapshot", written, ("theta digest",), every=self.spec.checkpoint_rounds)

    def swap(self) -> tuple[Work, ...]:
        """murmur/training/trainer.py: move the optimizer's state to its place, or back."""
        moved = self.sizes.carried
        return (self.to_device(moved) if self.on_gpu else self.copied(moved),)

    def trained(self) -> tuple[Work, ...]:
        """All inner steps."""
        return (Work(self.flops + self.optimizer_flops, "compute", self.gpus),)

    def compressed(self) -> tuple[Work, ...]:
        """murmur/training/replica.py compress; with GPUs theta and error feedback to them, and the new error feedback
        back."""
        model = self.sizes.model
        return (Work(3 * model, "device", self.gpus) if self.on_gpu else Work(model, "compress", self.threads),)

    def downloaded(self) -> tuple[tuple[Work, ...], tuple[Work, ...]]:
        """All contributors' payloads except our own, and the work done during the download."""
        others = (self.sizes.contributors - 1) * self.sizes.payload
        return (Work(others, "down"),), (Work(others, "write"), Work(others, "hash", PREFETCH_THREADS))

    def sent(self) -> tuple[Phase, ...]:
        """murmur/rounds/contribution.py: the compressed update is sealed; meanwhile all but one part is uploaded, and
        its object saved."""
        payload = self.sizes.payload
        return (
            Phase("seal", self.sealed()),
            Phase("upload ahead", (Work(payload - min(payload, PART_BYTES), "up"),), ("compress",)),
            Phase("save sealed", (Work(payload, "write"), Work(payload, "hash")), ("seal",)),
        )

    def shown(self) -> tuple[Work, ...]:
        """The rest of the upload, once the object is saved: the part with the envelope, and the completion."""
        return Work(min(self.sizes.payload, PART_BYTES), "up"), Work(1, "call")


@dataclass(frozen=True, slots=True)
class Setting(TrainerSetting):
    """A node of a run on a chain. validators: how many count, with equal stake. margin: time kept free, as a share of
    the compute."""

    spec: RunSpec
    validators: int = VALIDATORS
    margin: float = MARGIN

    @property
    def sizes(self) -> Sizes:
        return Sizes(self.spec)

    @property
    def gathered_first(self) -> int:
        """Payloads that a validator has read when it has all contributors', in the book's order, best first. Concurrent
        downloads share the link and complete together (murmur/node/fetch/payloads.py)."""
        row = parallel_fetches(self.sizes.contributors)
        return min(self.sizes.gathered, row * -(-self.sizes.contributors // row))

    @property
    def copied_payloads(self) -> float:
        """Average number of the contributors' payloads that one validator copies."""
        return self.sizes.contributors * min(COPIES, self.validators) / self.validators

    def sampled(self) -> tuple[Work, ...]:
        """murmur/data/shards.py read, for one evaluated peer after the other and for unassigned pages: lists of leaves
        concurrently, then blocks, two requests for each."""
        if self.has_data:
            return ()
        sizes = self.sizes
        rounds = -(-self.spec.gauntlet.sample_sequences // PART_THREADS)
        calls = (2 + 2 * rounds) * (sizes.evaluated + 1)
        return Work(calls, "call"), Work(sizes.sampled, "down"), Work(sizes.sampled, "hash")

    def repeated(self) -> tuple[Work, ...]:
        """murmur/rounds/verify.py, for one miner's round: its text is read as samples are, theta loaded before and
        after."""
        sizes, load = self.sizes, self.to_device(self.sizes.model)
        calls = 2 + 2 * -(-self.spec.pages_per_round // PART_THREADS)
        text = (Work(calls, "call"), Work(sizes.repeated, "down"), Work(sizes.repeated, "hash"))
        return (*(() if self.has_data else text), load, *self.trained(), load)

    def posted(self) -> Work:
        return Work(seconds(self.spec.clock, WINDOW_MARGIN_BLOCKS), "wait")


def round_phases(setting: Setting, role: Role) -> tuple[Phase, ...]:
    """Return the phases of a round of a node that follows. Assumed: the selection is as in the previous round, and was
    predicted."""
    return miner_phases(setting) if role == "miner" else validator_phases(setting)


def miner_phases(setting: Setting) -> tuple[Phase, ...]:
    """murmur/rounds/miner.py Miner.play, from the commit deadline on. The miner trains from the selection that it
    guesses (murmur/node/node.py expect), of what is here by then; only its sending waits for the decision. Anybody
    without stake can make the guess wrong, by what it shows to whom, so the round has room for the correction."""
    sizes = setting.sizes
    download, meanwhile = setting.downloaded()
    return (
        Phase("reveal", (Work(2, "call"),), (), "commit"),
        Phase("swap", setting.swap(), ("reveal",)),
        Phase("save own state", setting.saved(sizes.own)),
        Phase("download", download, (), "uploaded", meanwhile),
        Phase("open payloads", setting.opened(sizes.contributors, 1, FETCH_THREADS), ("swap",), "guess"),
        *setting.stepped(),
        Phase("theta digest", (setting.hashed(sizes.model),)),
        Phase("select", (Work(SELECT_CALLS, "call"),), opens="decided"),
        replace(setting.snapshot(), after=("select",)),
        Phase("fetch data", setting.fetched(), ("reveal",)),
        Phase("inner steps", setting.trained(), ("load weights", "fetch data")),
        Phase("margin", tuple(replace(work, amount=setting.margin * work.amount) for work in setting.trained())),
        Phase("wrong guess", tuple(work for phase in correction_phases(setting) for work in phase.work)),
        Phase("compress", setting.compressed(), ("wrong guess", "select", "download")),
        *setting.sent(),
        Phase("commit", (setting.posted(),)),
        Phase("publish", setting.shown(), ("save sealed", "upload ahead")),
    )


def correction_phases(setting: Setting) -> tuple[Phase, ...]:
    """What a wrong guess adds to a miner's round, between two inner steps (murmur/node/state/node_state.py apply): the
    steps are kept, the expected outer step is undone, and the agreed one is made. What is lacking has come beside the
    steps before."""
    sizes = setting.sizes
    return (
        Phase("keep steps", (setting.to_device(sizes.model),)),
        Phase("open payloads", setting.opened(sizes.contributors, 1, FETCH_THREADS)),
        *setting.applied(),
    )


def validator_phases(setting: Setting) -> tuple[Phase, ...]:
    """murmur/rounds/validator.py Validator.play, from the commit deadline on."""
    spec, sizes, threads = setting.spec, setting.sizes, setting.threads
    gathered, first = sizes.gathered * sizes.payload, setting.gathered_first * sizes.payload
    reserve = gathered - first  # peers that are missing at the reveal deadline are left out
    probed = sizes.probes * sizes.payload
    sent = 2 * probed  # to the weights and back
    copied = setting.copied_payloads * sizes.payload
    # sparseloco/outer.py probe: the CPU decodes. Places and moves go to weights on GPUs; the old values come back, and
    # return with the places. They are listed, and those of each rank selected.
    values = sizes.probes * sizes.values
    scattered = (
        Work(2 * 2 * (PLACE_BYTES + FP32) * values, "fresh", threads),
        setting.to_device((2 * (PLACE_BYTES + FP32) + FP32) * values),
    )
    return (
        Phase(
            "gather",
            (Work(first, "down"),),
            (),
            "commit",
            (Work(first, "write"), Work(first, "hash", FETCH_THREADS)),
        ),
        Phase("gather reserve", (Work(reserve, "down"),), beside=(Work(reserve, "write"),)),
        Phase("check", setting.opened(sizes.gathered, 2, setting.openers), ("gather",), "reveal"),
        Phase("vote", (setting.posted(),)),
        Phase("copies", (Work(copied, "hash"), Work(copied, "up"))),
        Phase("fetch data", setting.sampled(), ("vote",)),
        Phase(
            "probe",
            (
                Work(probed, "copy", threads),
                Work(sent, "probe", threads),
                *(scattered if setting.on_gpu else ()),
            ),
        ),
        Phase("losses", (setting.evaluated(sizes.losses),)),
        Phase("select", (Work(SELECT_CALLS, "call"),), opens="decided"),
        Phase("fold", (Work(gathered, "write"),)),
        Phase("pay", (setting.posted(),), every=spec.gauntlet.weight_rounds),
        Phase("open payloads", setting.opened(sizes.contributors, 1, FETCH_THREADS)),
        *setting.applied(),
        setting.snapshot(),
        Phase("checkpoint upload", (Work(sizes.model, "up"),), every=spec.checkpoint_rounds),
        Phase("held-out loss", (setting.evaluated(spec.data.held_out_sequences),), ("theta digest",)),
        *((Phase("repeat steps", setting.repeated()),) if spec.trace.places else ()),
    )


def restart_phases(setting: TrainerSetting, role: Role) -> tuple[Phase, ...]:
    """murmur/node/program/assemble.py build and murmur/node/state/node_state.py resume. Each rank builds the whole
    model and sends all of it to its GPU. Then come the snapshot, and the payloads of the most rounds that can precede
    the next complete snapshot. A joiner first fetches the checkpoint."""
    sizes, rounds = setting.sizes, setting.spec.checkpoint_rounds
    build = Work((setting.gpus + 1) * sizes.model, "device", setting.gpus)
    own = Phase("load own state", (*setting.loaded(sizes.own), setting.to_device(sizes.carried)))
    payloads = Work(sizes.contributors * sizes.payload, "read")
    step = (
        payloads,
        *setting.opened(sizes.contributors, 1, setting.openers),
        *(work for p in setting.stepped() for work in p.work),
    )
    return (
        Phase("fetch checkpoint", (Work(sizes.model, "down"), Work(sizes.model, "write")), ()),
        Phase("build", (build if setting.on_gpu else setting.copied(2 * sizes.model),), ()),
        *((own,) if role == "miner" else ()),
        Phase("load snapshot", (*setting.loaded(sizes.model), setting.to_device(sizes.model))),
        Phase("replay", step * rounds),
        Phase("theta digest", (setting.hashed(sizes.model),)),
    )

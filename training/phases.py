"""What a round and a restart consist of, as built: one table for each role.

A phase says how many bytes go through which rate by how many threads, and what it waits for; training/timeline.py makes
times of that. Time counts from block D of the round before, the last instant at which both roles are idle: what follows
settles that round, and the next D is the deadline. When the code changes, its line changes here; `murmur plan`, its
refusals, a disk's wear and the utilization follow.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from protocol.spec import ClockSpec, RunSpec, TrainingSpec
from training.memory import PLACE_BYTES, Role, Trainer
from training.muon_assignment import muon_flops
from training.sizes import FP32, Sizes, flops_per_token

PART_BYTES = 16 << 20
"""Part of an upload (storage/s3.py), and section of a payload that is read back (protocol/merkle.py)."""
FILE_BYTES = 1 << 30
"""Saved state is in files of about so many bytes, written and read beside each other (training/checkpoint.py)."""
FETCH_THREADS, OPEN_THREADS, PREFETCH_THREADS, PART_THREADS = 16, 8, 3, 64
"""Objects that are fetched, and hashed, and opened beside each other (node/fetch/payloads.py), and parts of shards
(node/sync/dataset.py)."""
COPIES = 2
"""Validators that copy a payload unasked (gauntlet/agreement.py)."""
VALIDATORS = 3
"""So many of equal stake share the copies, unless a plan says otherwise."""
POST_BLOCKS = 2
"""Until a post is in a block, at most (protocol/spec.py)."""
SELECT_CALLS = 5
"""Looks at the chain for a selection."""

RateName = Literal[
    "compute", "up", "down", "device", "copy", "fresh", "hash", "cipher", "write", "read", "compress", "apply", "probe",
    "call", "wait",
]  # fmt: skip
"""A field of training/rates.py Rates."""

Opening = Literal["uploaded", "commit", "reveal", "decided"]
"""Others' payloads are in their buckets; D is final, V is; the words that decide the round before are in a final
block."""
MARGIN = 0.02
"""Share of the compute that is kept free beside it, since the time that inner steps take differs: at least this, and
the spread of its own trial where the machine is measured (murmur/plan/measure.py). Assumed: nobody measured it on
GPUs."""


@dataclass(frozen=True, slots=True)
class Work:
    """`amount` at a rate, by so many threads (of GPUs: by so many GPUs)."""

    amount: float
    rate: RateName
    threads: int = 1


@dataclass(frozen=True, slots=True)
class Phase:
    """Something that a node does once a round, or once in `every` rounds.

    work: one after the other. beside: by other threads meanwhile; a phase lasts as long as the longest. after: phases
    that must have ended, None: the one listed before. opens: the block that must be final. Phases with nothing between
    them in `after` run beside each other.
    """

    name: str
    work: tuple[Work, ...]
    after: tuple[str, ...] | None = None
    opens: Opening | None = None
    beside: tuple[Work, ...] = ()
    every: int = 1


@dataclass(frozen=True, slots=True)
class Deadline:
    """`phase` has to end by `by(clock)`, seconds from block D of the round before. In words: what the node does then,
    when that is, and what becomes of it when it comes later."""

    role: Role
    phase: str
    by: Callable[[ClockSpec], float]
    does: str
    when: str
    missed: str


DEADLINES = (
    Deadline("miner", "commit", lambda c: seconds(c, c.round_blocks), "commits", "block D", "nobody counts its work"),
    Deadline(
        "miner",
        "publish",
        lambda c: seconds(c, c.round_blocks),
        "has published what it commits to",
        "block D",
        "others may have no time left to read it",
    ),
    Deadline(
        "validator",
        "gather",
        lambda c: opening(c, "reveal"),
        "has read those who contribute",
        "block V is final",
        "whom it lacks it cannot select",
    ),
    Deadline(
        "validator",
        "word",
        lambda c: seconds(c, c.words - c.commit),
        "has said its word",
        "block X",
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
    """Seconds from D until this block of the clock ("commit", "reveal", "words") is final."""
    return seconds(clock, getattr(clock, block) - clock.commit + clock.finality_blocks)


def decided(clock: ClockSpec, said: float) -> float:
    """Seconds from D until the round is decided, where every validator's word is in a block after `said`
    seconds."""
    return min(said + seconds(clock, clock.finality_blocks), opening(clock, "words"))


@dataclass(frozen=True, slots=True)
class TrainerSetting(ABC):
    """Whoever trains, on a machine: `threads` of its CPUs, and `gpus` that train; on_gpu: False where its CPU does.
    has_data: the data set is on its disk, and none of it has to come."""

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
        """FLOPs in which its Muon orthogonalises on all GPUs, those included for which GPUs wait; 0 under AdamW."""
        inner = self.spec.inner
        return self.gpus * inner.steps * muon_flops(self.spec.model, inner, self.gpus)

    # --- what many phases do -------------------------------------------------------------------------------------

    def to_device(self, num_bytes: int) -> Work:
        """To the GPUs or from them; where a CPU trains, its memory."""
        return Work(num_bytes, "device", self.gpus) if self.on_gpu else Work(num_bytes, "copy", self.threads)

    def copied(self, num_bytes: int) -> Work:
        return Work(num_bytes, "copy", self.threads)

    def saved(self, num_bytes: int) -> tuple[Work, ...]:
        """training/checkpoint.py save: files beside each other, each hashed and written in turn, piece by piece."""
        threads = self._files(num_bytes)
        return Work(num_bytes, "hash", threads), Work(num_bytes, "write", threads)

    def _files(self, num_bytes: int) -> int:
        return min(self.threads, -(-num_bytes // FILE_BYTES))

    def hashed(self, num_bytes: int) -> Work:
        """sparseloco/digest.py theta_digest."""
        return Work(num_bytes, "hash", min(self.threads, -(-num_bytes // PART_BYTES)))

    def loaded(self, num_bytes: int) -> tuple[Work, ...]:
        """training/checkpoint.py load: files mapped, read by being hashed, and copied to where they belong."""
        threads = self._files(num_bytes)
        return Work(num_bytes, "read", threads), Work(num_bytes, "hash", threads), self.copied(num_bytes)

    def opened(self, payloads: int, hashes: int, hashers: int) -> tuple[Work, ...]:
        """storage/seal.py unseal and sparseloco/wire.py parse_submission, several payloads beside each other: hashed,
        deciphered, and copied to where they stay."""
        total, threads = payloads * self.sizes.payload, self.openers
        return Work(hashes * total, "hash", hashers), Work(total, "cipher", threads), Work(total, "fresh", threads)

    def sealed(self) -> tuple[Work, ...]:
        """storage/seal.py Sealing: the payload encoded by one thread, its sections encrypted and hashed by several."""
        payload, threads = self.sizes.payload, self.openers
        return Work(payload, "fresh"), Work(payload, "cipher", threads), Work(payload, "hash", threads)

    @property
    def openers(self) -> int:
        """Payloads that are opened, and sections of one that are sealed, beside each other (node/fetch/payloads.py)."""
        return min(self.threads, OPEN_THREADS) if self.sizes.payload > PART_BYTES else 1

    def fetched(self) -> tuple[Work, ...]:
        """training/shards.py hold, by node/sync/dataset.py: whole files of the data set, hashed when they come and when
        they are opened."""
        if self.has_data:
            return ()
        total = self.sizes.trained_shards * self.sizes.shard
        return Work(total, "down"), Work(total, "write"), Work(2 * total, "hash")

    def evaluated(self, sequences: int) -> Work:
        """Forward passes: a third of training's FLOPs."""
        model = self.spec.model
        return Work(sequences * model.context * flops_per_token(model) / 3, "compute", self.gpus)

    def applied(self) -> tuple[Phase, ...]:
        """node/state/node_state.py apply: the agreed payloads applied, and theta hashed. Saved is which payloads they
        were."""
        return (*self.stepped(), Phase("theta digest", (self.hashed(self.sizes.model),)))

    def stepped(self) -> tuple[Phase, ...]:
        """training/replica.py outer_step."""
        sizes = self.sizes
        contributed = sizes.contributors * sizes.payload
        return (
            Phase("outer step", (self.copied(sizes.model), Work(contributed, "apply", self.threads))),
            Phase("load weights", (self.to_device(sizes.model),)),
        )

    def snapshot(self) -> Phase:
        """node/state/snapshots.py: theta to the disk beside the rounds, from when it is hashed."""
        written = self.saved(self.sizes.model)
        return Phase("snapshot", written, ("theta digest",), every=self.spec.checkpoint_rounds)

    def swap(self) -> tuple[Work, ...]:
        """training/trainer.py: the optimizer's state to its place, or back from it."""
        moved = self.sizes.optimizer
        return (self.to_device(moved) if self.on_gpu else self.copied(moved),)

    def trained(self) -> tuple[Work, ...]:
        """All inner steps."""
        return (Work(self.flops + self.optimizer_flops, "compute", self.gpus),)

    def compressed(self) -> tuple[Work, ...]:
        """training/replica.py compress; on GPUs theta and error feedback there, and the new one back."""
        model = self.sizes.model
        return (Work(3 * model, "device", self.gpus) if self.on_gpu else Work(model, "compress", self.threads),)

    def downloaded(self) -> tuple[tuple[Work, ...], tuple[Work, ...]]:
        """All contributors' payloads but one's own, and what goes on beside that."""
        others = (self.sizes.contributors - 1) * self.sizes.payload
        return (Work(others, "down"),), (Work(others, "write"), Work(others, "hash", PREFETCH_THREADS))

    def sent(self) -> tuple[Phase, ...]:
        """rounds/contribution.py: what was compressed sealed, all but a part of it uploaded meanwhile, and its object
        saved."""
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
    """A node of a run on a chain. validators: how many count, with equal stake. margin: of the compute, time that is
    kept free beside it."""

    spec: RunSpec
    validators: int = VALIDATORS
    margin: float = MARGIN

    @property
    def sizes(self) -> Sizes:
        return Sizes(self.spec)

    @property
    def gathered_first(self) -> int:
        """Payloads that a validator has read when it has all contributors', the book's best first: those that travel
        beside each other share the link, and are whole together (node/fetch/payloads.py)."""
        rows = -(-self.sizes.contributors // FETCH_THREADS)
        return min(self.sizes.gathered, rows * -(-self.sizes.contributors // rows))

    @property
    def copied_payloads(self) -> float:
        """How many of the contributors' payloads one validator copies, on average."""
        return self.sizes.contributors * min(COPIES, self.validators) / self.validators

    def sampled(self) -> tuple[Work, ...]:
        """training/shards.py read, for one evaluated peer after the other and for nobody's pages: lists of leaves
        beside each other, then blocks, with two requests for each."""
        if self.has_data:
            return ()
        sizes = self.sizes
        rounds = -(-self.spec.gauntlet.sample_sequences // PART_THREADS)
        calls = (2 + 2 * rounds) * (sizes.evaluated + 1)
        return Work(calls, "call"), Work(sizes.sampled, "down"), Work(sizes.sampled, "hash")

    def posted(self) -> Work:
        return Work(seconds(self.spec.clock, POST_BLOCKS), "wait")


def round_phases(setting: Setting, role: Role) -> tuple[Phase, ...]:
    """A round of a node that follows: it was selected and predicted as in the round before."""
    return miner_phases(setting) if role == "miner" else validator_phases(setting)


def miner_phases(setting: Setting) -> tuple[Phase, ...]:
    """rounds/miner.py Miner.play, from D on, where what it expects is agreed (node/node.py expect): it trains from the
    keys on, and the decision holds up what it sends only."""
    sizes = setting.sizes
    download, meanwhile = setting.downloaded()
    return (
        Phase("reveal", (Work(2, "call"),), (), "commit"),
        Phase("swap", setting.swap(), ("reveal",)),
        Phase("save own state", setting.saved(sizes.own)),
        Phase("download", download, (), "uploaded", meanwhile),
        Phase("open payloads", setting.opened(sizes.contributors, 1, FETCH_THREADS), ("swap", "download")),
        *setting.stepped(),
        Phase("theta digest", (setting.hashed(sizes.model),)),
        Phase("select", (Work(SELECT_CALLS, "call"),), opens="decided"),
        replace(setting.snapshot(), after=("select",)),
        Phase("fetch data", setting.fetched(), ("reveal",)),
        Phase("inner steps", setting.trained(), ("load weights", "fetch data")),
        Phase("margin", tuple(replace(work, amount=setting.margin * work.amount) for work in setting.trained())),
        Phase("compress", setting.compressed(), ("margin", "select")),
        *setting.sent(),
        Phase("commit", (setting.posted(),)),
        Phase("publish", setting.shown(), ("save sealed", "upload ahead")),
    )


def validator_phases(setting: Setting) -> tuple[Phase, ...]:
    """rounds/validator.py Validator.play, from D on."""
    spec, sizes, threads = setting.spec, setting.sizes, setting.threads
    gathered, first = sizes.gathered * sizes.payload, setting.gathered_first * sizes.payload
    reserve = gathered - first  # who is not there by V is left out
    probed = sizes.probes * sizes.payload
    sent = 2 * probed  # there and back
    copied = setting.copied_payloads * sizes.payload
    # sparseloco/outer.py probe: the CPU decodes; places and moves go to weights on GPUs, what was there comes back, and
    # returns with the places. They are listed, and those of each rank picked out.
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
        Phase("word", (setting.posted(),)),
        Phase("copies", (Work(copied, "hash"), Work(copied, "up"))),
        Phase("fetch data", setting.sampled(), ("word",)),
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
    )


def restart_phases(setting: TrainerSetting, role: Role) -> tuple[Phase, ...]:
    """node/program/assemble.py build and node/state/node_state.py resume: each rank builds the whole model and gives
    its GPU all of it; the snapshot, and the payloads of as many rounds as there are at most until the next one is
    whole. A joiner gets the checkpoint before."""
    sizes, rounds = setting.sizes, setting.spec.checkpoint_rounds
    build = Work((setting.gpus + 1) * sizes.model, "device", setting.gpus)
    own = Phase("load own state", (*setting.loaded(sizes.own), setting.to_device(sizes.optimizer)))
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

"""RunSpec: every constant of a run that all nodes must agree on.

A field that only concerns one node (wallet, device, paths) belongs in murmur/node/config/settings.py; a field in the
wrong one of the two is a fault. The spec is written as TOML (murmur/configs/*.toml) and hashed as canonical JSON; the
digest of a run's first spec is its run id (docs/protocol.md section 0). All code asks `Run.spec_at(r)`
(murmur/protocol/run.py).
"""

import json
import tomllib
from collections.abc import Mapping
from functools import cached_property, lru_cache
from hashlib import sha256
from itertools import pairwise
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from murmur.protocol.clock import Clock
from murmur.protocol.errors import ConfigError, InvalidMessage
from murmur.protocol.fields import Count, Decay, HexDigest, Positive, Published, Rate, Share, Table, fault_lines
from murmur.protocol.layout import CHUNK, Layout, TraceShape
from murmur.protocol.messages import ENVELOPE_BYTES, parse_json
from murmur.protocol.types import DIGEST_BYTES, Digest, PeerId, peer_id

PROTOCOL_VERSION = 4
ROUND_POST_BYTES = 2 * 301
"""A validator has quota for two posts a round, at most 301 bytes each: its vote, and one that adds names to it."""
POSTS_PER_EPOCH = 3100 // ROUND_POST_BYTES
"""Rounds that the chain's quota of 3,100 bytes an epoch carries."""
WINDOW_MARGIN_BLOCKS = 2
"""The longest time, in blocks, until a post is in a block. A window has to include it even if finality lags twice as
far behind as planned."""


class ModelSpec(Table):
    """Llama-3 style decoder. `width` is d_model, `ffn` the SwiGLU inner width, `context` T in tokens."""

    vocabulary: Positive
    layers: Annotated[int, Field(gt=0, le=4096)]
    width: Positive
    heads: Positive
    kv_heads: Positive
    ffn: Positive
    context: Positive
    rope_theta: Rate = 500_000.0
    norm_epsilon: Rate = 1e-5
    tie_embeddings: bool = True

    @model_validator(mode="after")
    def _divides(self) -> Self:
        if self.width % self.heads or self.heads % self.kv_heads or (self.width // self.heads) % 2:
            raise ValueError("width must be a multiple of heads with an even quotient, heads a multiple of kv_heads")
        return self

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return every trained parameter's name and shape; tied embeddings appear once."""
        head = self.width // self.heads
        shapes: dict[str, tuple[int, ...]] = {"embedding.weight": (self.vocabulary, self.width)}
        for i in range(self.layers):
            shapes[f"layers.{i}.attention_norm.weight"] = (self.width,)
            shapes[f"layers.{i}.attention.query.weight"] = (self.heads * head, self.width)
            shapes[f"layers.{i}.attention.key.weight"] = (self.kv_heads * head, self.width)
            shapes[f"layers.{i}.attention.value.weight"] = (self.kv_heads * head, self.width)
            shapes[f"layers.{i}.attention.output.weight"] = (self.width, self.heads * head)
            shapes[f"layers.{i}.ffn_norm.weight"] = (self.width,)
            shapes[f"layers.{i}.ffn.gate.weight"] = (self.ffn, self.width)
            shapes[f"layers.{i}.ffn.up.weight"] = (self.ffn, self.width)
            shapes[f"layers.{i}.ffn.down.weight"] = (self.width, self.ffn)
        shapes["norm.weight"] = (self.width,)
        if not self.tie_embeddings:
            shapes["head.weight"] = (self.vocabulary, self.width)
        return shapes


class CompressionSpec(Table):
    """k values kept of a full chunk of 4096; `decay` is the error feedback's beta."""

    k: Annotated[int, Field(ge=1, le=CHUNK)] = 64
    decay: Share = 0.95


class InnerSpec(Table):
    """The H inner steps of a round, and the learning rate over the run's inner steps (murmur/training/schedule.py).

    `optimizer` is AdamW, or Muon for every matrix, embedding and head included, and AdamW for the gains, with one
    learning rate and weight decay. `state` is what the optimizer begins a round with: "kept", what the miner's own last
    round left, or "fresh", nothing, so that anybody can repeat a round. Both are fixed for the whole run.

    The schedule counts inner steps of non-void rounds, from `start_step` on: an amendment that sets it begins another
    schedule. At its own step `flat_from` the schedule pauses for `flat_steps`, with a constant learning rate; if
    `flat_from` is `warmup_steps`, it is a warm-up-stable-decay schedule.

    Pages are drawn from `num_pages` of the training split from `first_page` on (0: all that follow). Amendments can
    train in stages on a data set that holds one mix after the other: annealing has its own pages.
    """

    steps: Positive
    sequences: Positive
    optimizer: Literal["adamw", "muon"] = "adamw"
    state: Literal["kept", "fresh"] = "kept"
    peak_lr: Rate
    final_lr: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    warmup_steps: Count
    decay_steps: Positive
    decay: Literal["cosine", "sqrt"] = "cosine"
    flat_from: Count = 0
    flat_steps: Count = 0
    start_step: Count = 0
    first_page: Count = 0
    num_pages: Count = 0
    beta1: Share = 0.9
    beta2: Share = 0.95
    epsilon: Rate = 1e-8
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.1
    clip: Rate = 1.0

    @model_validator(mode="after")
    def _fresh_is_muons(self) -> Self:
        if self.state == "fresh" and self.optimizer != "muon":
            raise ValueError(
                'inner: state "fresh" needs optimizer "muon". AdamW without its averages learns far worse '
                "(docs/evidence.md, claim 10)"
            )
        return self


class OuterSpec(Table):
    """`alpha` is the outer learning rate; `aggregate` the rule of docs/protocol.md section 7."""

    alpha: Rate = 1.0
    aggregate: Literal["mean", "filtered_mean"] = "mean"


Exchange = Literal["sparse", "int8"]


class DataSpec(Table):
    """Pre-tokenised shards: sha256 of index.json, and its counts. A page is `page_sequences` sequences of the
    model's context, contiguous in the training split of `num_tokens` tokens; `held_out_sequences` are evaluated."""

    index: HexDigest
    num_tokens: Annotated[int, Field(gt=0, le=2**53)]
    page_sequences: Positive
    held_out_sequences: Positive = 64

    @property
    def index_digest(self) -> Digest:
        return Digest(bytes.fromhex(self.index))


class ClockSpec(Table):
    """Windows of a round as offsets in blocks (murmur/protocol/clock.py). `tempo` is the subnet's epoch in blocks.
    `weights_rate_limit` is the fewest blocks between two sets of a validator's weights. The windows were planned for
    `block_seconds` and the megabits a second."""

    start_block: Count
    round_blocks: Positive
    commit: Positive
    reveal: Positive
    words: Positive
    finality_blocks: Count = 0
    tempo: Positive = 360
    weights_rate_limit: Count = 100
    block_seconds: Rate = 12.0
    upload_mbps: Rate = 110.0
    download_mbps: Rate = 500.0


class GauntletSpec(Table):
    """Constants of checks, scoring, selection and pay (docs/protocol.md sections 5, 6, 9).

    `proof_decay`, `score_decay`, `unit_decay`: the decay of earlier values in the running averages of a peer's proof,
    of its score, and of honest peers' values. `proof_allowance`: how much lower the floor starts for a peer of few
    evaluations, in shares of comparisons (gauntlet/proof.py). `score_floor`: share of the honest score that a peer's
    has to exceed. For a peer of clear proof `score_allowance` standard errors below the honest score suffice if that is
    less. `probe_step`: share of a peer's update that is probed; a large step of one peer alone overshoots once the loss
    flattens, and honest scores drown or turn negative. `fault_penalty`: reduction of the proof by a fault, in units of
    the honest gap.

    `trace_values`: how many gradients, and as many changes of weights, a payload shows of its inner steps, so that
    validators can repeat and compare them (docs/protocol.md section 3). It is fixed for the whole run. 0: work is not
    verified. `verifications`: how many miners' steps a validator draws to repeat in each round.
    """

    contributors: Annotated[int, Field(ge=1, le=256)] = 20
    reserve: Count = 4
    norm_factor: Annotated[float, Field(gt=1, allow_inf_nan=False)] = 10.0
    copy_overlap: Share = 0.6
    copy_rounds: Annotated[int, Field(ge=0, le=32)] = 2
    evaluations: Positive = 20
    contributor_share: Share = 0.5
    references: Annotated[int, Field(ge=1, le=8)] = 3
    sample_sequences: Positive = 64
    probe_step: Rate = 0.1
    proof_floor: Share = 0.65
    proof_decay: Decay = 0.93
    proof_allowance: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.15
    unit_decay: Decay = 0.5
    score_decay: Decay = 0.75
    score_floor: Share = 0.25
    score_allowance: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 3.0
    fault_penalty: Share = 0.25
    opening_rounds: Count = 3
    rating_band: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.5
    weight_rounds: Positive = 1
    burn_share: Share = 0.0
    trace_values: Annotated[int, Field(ge=0, le=1 << 26)] = 0
    verifications: Annotated[int, Field(ge=1, le=64)] = 1


class TrainingSpec(Published):
    """The part of a run's spec that concerns its training, on a chain or in a cluster. `genesis_checkpoint`: the digest
    of theta_0's checkpoint (the sha256 of its manifest, which names its files)."""

    version: Literal[1] = 1
    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]
    min_protocol: Count = PROTOCOL_VERSION
    max_protocol: Count = PROTOCOL_VERSION
    genesis_checkpoint: HexDigest
    checkpoint_rounds: Positive = 8
    local: bool = False
    model: ModelSpec
    compression: CompressionSpec = CompressionSpec()
    inner: InnerSpec
    outer: OuterSpec = OuterSpec()
    data: DataSpec

    @model_validator(mode="after")
    def _protocol_range(self) -> Self:
        if self.min_protocol > self.max_protocol:
            raise ValueError(f"min_protocol {self.min_protocol} is above max_protocol {self.max_protocol}")
        return self

    @model_validator(mode="after")
    def _pages_suffice(self) -> Self:
        if self.num_pages < self.pages_per_round:
            begin = f" from inner.first_page {self.inner.first_page} on" if self.inner.first_page else ""
            raise ValueError(
                f"data: {self.data.num_tokens} tokens make {self.num_pages} pages{begin}, a peer needs "
                f"{self.pages_per_round} a round: use more data or smaller pages"
            )
        return self

    @property
    def genesis_digest(self) -> Digest:
        return Digest(bytes.fromhex(self.genesis_checkpoint))

    @cached_property
    def layout(self) -> Layout:
        return _layout(self.model, self.compression.k)

    @property
    def exchange(self) -> Exchange:
        """How updates are sent: the largest values in 2 bits, or every value in int8."""
        return "sparse"

    @property
    def momentum(self) -> float:
        """Nesterov's momentum of the outer step; if it is not 0, consensus state has a momentum for every parameter."""
        return 0.0

    @property
    def consensus_bytes(self) -> int:
        """Bytes of theta and its momentum, if any, in fp32: a checkpoint, or a snapshot."""
        return 4 * self.layout.num_parameters * (2 if self.momentum else 1)

    @property
    def plaintext_bytes(self) -> int:
        """Bytes of a plaintext: theta digest, all records, the trace."""
        return DIGEST_BYTES + self.layout.records_bytes + self.trace.num_bytes

    @property
    def trace(self) -> TraceShape:
        """The shape of a payload's trace: a run without a Gauntlet has none."""
        return TraceShape(0, self.inner.steps)

    @property
    def object_bytes(self) -> int:
        """Size of a sealed submission in a bucket: fixed, known beforehand."""
        return ENVELOPE_BYTES + self.plaintext_bytes

    @property
    def page_tokens(self) -> int:
        return self.data.page_sequences * self.model.context

    @property
    def num_pages(self) -> int:
        """Whole pages that are trained on at this stage; every sequence needs one token beyond its end as target."""
        following = max(0, (self.data.num_tokens - 1) // self.page_tokens - self.inner.first_page)
        return min(following, self.inner.num_pages or following)

    @property
    def pages_per_round(self) -> int:
        """Pages that one peer trains on in one round."""
        return -(-self.inner.steps * self.inner.sequences // self.data.page_sequences)

    @property
    def training(self) -> "TrainingSpec":
        """This spec without the fields that decide the rounds."""
        return TrainingSpec.model_construct(**{name: getattr(self, name) for name in TrainingSpec.model_fields})


class RunSpec(TrainingSpec):
    """A whole run whose rounds a Bittensor subnet decides. `owner` is the SS58 hotkey that may amend it and publishes
    theta_0; `chain` the chain's genesis hash."""

    chain: HexDigest
    netuid: Count
    owner: str
    clock: ClockSpec
    gauntlet: GauntletSpec = GauntletSpec()

    @field_validator("owner")
    @classmethod
    def _address(cls, value: str) -> str:
        peer_id(value)
        return value

    @property
    def trace(self) -> TraceShape:
        return TraceShape(self.gauntlet.trace_values, self.inner.steps)

    @model_validator(mode="after")
    def _trace_shows_every_tensor(self) -> Self:
        if self.gauntlet.trace_values:
            if self.inner.state == "kept":
                raise ValueError(
                    'gauntlet: trace_values needs inner.state "fresh": nobody can repeat a round that begins with '
                    "its miner's own optimizer state"
                )
            if self.trace.places < len(self.layout.tensors):
                raise ValueError(
                    f"gauntlet: {self.gauntlet.trace_values} trace_values make {self.trace.places} places in "
                    f"each of {self.inner.steps} steps, fewer than the {len(self.layout.tensors)} tensors"
                )
        return self

    @model_validator(mode="after")
    def _windows_fit(self) -> Self:
        """Refuse a clock that cannot work, with the numbers (docs/protocol.md section 1)."""
        clock = self.clock
        order = (0, clock.commit, clock.reveal, clock.words, clock.round_blocks)
        if any(early >= late for early, late in pairwise(order)):
            raise ValueError(
                "clock: needs 0 < commit < reveal < words < round_blocks, "
                f"got commit {clock.commit}, reveal {clock.reveal}, words {clock.words}, round_blocks "
                f"{clock.round_blocks}"
            )
        if clock.words + clock.finality_blocks >= clock.round_blocks + clock.commit:
            raise ValueError("clock: a round's votes are not final before the next round's commit window closes")
        lag = clock.finality_blocks
        needed = 2 * lag + WINDOW_MARGIN_BLOCKS
        if clock.reveal - clock.commit < 2 or clock.words - clock.reveal < needed:
            raise ValueError(
                "clock: keys are published once commit is final, votes cast once the keys are read: "
                f"needs reveal - commit >= 2 (got {clock.reveal - clock.commit}), and words - reveal (got "
                f"{clock.words - clock.reveal}) at least 2 * finality_blocks + {WINDOW_MARGIN_BLOCKS} = {needed}, "
                f"which leaves {(needed - lag) * clock.block_seconds:g} s to judge and to post"
            )
        if clock.round_blocks * POSTS_PER_EPOCH < clock.tempo:
            raise ValueError(
                f"clock: round_blocks {clock.round_blocks} is too short for the chain's quota: an epoch of "
                f"{clock.tempo} blocks carries {POSTS_PER_EPOCH} rounds of votes, so at least "
                f"{-(-clock.tempo // POSTS_PER_EPOCH)} blocks are needed"
            )
        pay_blocks = self.gauntlet.weight_rounds * clock.round_blocks
        if pay_blocks < clock.weights_rate_limit:
            raise ValueError(
                f"clock: the chain takes a validator's weights once in weights_rate_limit = {clock.weights_rate_limit} "
                f"blocks, but gauntlet.weight_rounds {self.gauntlet.weight_rounds} of round_blocks "
                f"{clock.round_blocks} are {pay_blocks}: set gauntlet.weight_rounds to at least "
                f"{-(-clock.weights_rate_limit // clock.round_blocks)}"
            )
        upload = self.object_bytes * 8e-6 / clock.upload_mbps
        if upload > clock.commit * clock.block_seconds:
            raise ValueError(
                f"clock: one payload of {self.object_bytes} bytes takes {upload:.0f} s at {clock.upload_mbps} Mb/s, "
                f"but the commit window is {clock.commit * clock.block_seconds:.0f} s"
            )
        heard = self.gauntlet.contributors + self.gauntlet.reserve
        download = heard * self.object_bytes * 8e-6 / clock.download_mbps
        if download > clock.round_blocks * clock.block_seconds:
            raise ValueError(
                f"clock: a validator reads {heard} payloads in {download:.0f} s at {clock.download_mbps} Mb/s, but a "
                f"round is {clock.round_blocks * clock.block_seconds:.0f} s"
            )
        return self

    @property
    def owner_id(self) -> PeerId:
        return peer_id(self.owner)

    @property
    def rounds_clock(self) -> Clock:
        clock = self.clock
        return Clock(clock.start_block, clock.round_blocks, clock.commit, clock.reveal, clock.words)


@lru_cache(maxsize=8)
def _layout(model: ModelSpec, k: int) -> Layout:
    """Return one layout for all specs of a run, which no amendment can change: a large model's takes milliseconds."""
    return Layout.of(model.shapes(), k)


def parse_text(text: str, source: str) -> RunSpec:
    """Parse a spec from a file of TOML or JSON; `source` names it in errors. Raises ConfigError with one line per
    fault."""
    return build(parse_table(text, source), source)


def parse_table(text: str, source: str) -> dict[str, Any]:
    """Parse the table of a file of TOML or JSON. Raises ConfigError."""
    as_json = text.lstrip().startswith("{")  # TOML never begins so
    try:
        return dict(json.loads(text) if as_json else tomllib.loads(text))
    except (ValueError, RecursionError) as fault:  # both parsers' own faults are ValueErrors
        raise ConfigError(f"{source} is not valid {'JSON' if as_json else 'TOML'}: {fault}") from None


def parse_spec(data: bytes, digest: Digest) -> RunSpec:
    """Parse a spec from its canonical bytes, checked against the digest on chain. Raises InvalidMessage for other bytes
    and ConfigError for a spec that is not valid here."""
    if sha256(data).digest() != digest:
        raise InvalidMessage("spec: its bytes do not hash to the digest on chain")
    spec = build(parse_json(data), "the published run spec")
    if spec.digest != digest:
        raise ConfigError(
            "this release writes the published run spec in other bytes, so it would take it for another run: "
            "use the release that the run's owner names"
        )
    return spec


def build(table: Mapping[str, Any], source: str) -> RunSpec:
    """Build a spec from a table; `source` names it in errors. Raises ConfigError with one line per fault."""
    try:
        return RunSpec.model_validate(table)
    except ValidationError as fault:
        raise ConfigError(f"{source} is not a valid run spec:\n" + fault_lines(fault)) from None

"""What a run asks of one miner: memory, compute, bytes and time, by arithmetic from the spec. No torch, no measurement.

The miner it describes shards everything over its GPUs (FSDP2: fp32 parameters, gradients and Adam's moments, bf16
matrix products), keeps one input a layer and computes the layer again for its gradient, makes logits in chunks, and
swaps between two phases: while computing the error feedback is on the host, while communicating Adam's moments are.
Bytes are counted tensor by tensor; what the allocator and NCCL take on top is `RESERVE`. Source of the phases:
Covenant-72B (arXiv 2603.08163).
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Literal

from protocol.run import Run
from protocol.spec import InnerSpec, ModelSpec, RunSpec
from training.schedule import lr_at

LOGITS_PER_CHUNK = 1 << 26
"""Logits that training/model.py has at once: 256 MiB in fp32. A 262,144-row vocabulary is done 256 positions at a
time."""

Recompute = Literal["none", "selective", "full"]
"""What a layer computes again for its gradient instead of keeping it: nothing; what is cheap beside matrix products and
attention; everything, from the layer's input on. Results are the same. A matter of each node."""

SUSTAINED_FLOPS = 530e12
"""Model FLOP/s of one GPU in the published run: 20 minutes for its round on eight B200, 24 % of their bf16 peak."""

RESERVE = 0.05
"""Share of a GPU's memory that is left for the CUDA context, NCCL's buffers and fragmentation."""

FP32, BF16 = 4, 2

STEP_PARTS = ("weights_in_use", "gradients_in_use", "activations", "logits")
"""What an inner step holds for a moment, beyond the shards."""


def utilization(compute_seconds: float, communication_seconds: float) -> float:
    """Share of the time that is spent computing, as the published runs define it. Both times are >= 0, one is not 0."""
    return compute_seconds / (compute_seconds + communication_seconds)


def transfer_seconds(num_bytes: float, mbps: float) -> float:
    """Seconds that `num_bytes` take at `mbps` megabits (10^6) a second."""
    return num_bytes * 8e-6 / mbps


@dataclass(frozen=True, slots=True)
class Claim:
    """What a published run says of itself. `num_parameters` counts embedding and head separately; `value_bits` is what
    it sends of one kept value, index and code."""

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


COVENANT = Claim("Covenant-72B", 72_747_327_488, 64, 14, 20, 110.0, 500.0, 20 * 60.0, 70.0)


# --- sizes ---------------------------------------------------------------------------------------------------


def layer_parameters(model: ModelSpec) -> int:
    """Parameters of one layer."""
    return sum(prod(shape) for name, shape in model.shapes().items() if name.startswith("layers.0."))


def matrix_parameters(model: ModelSpec) -> int:
    """Parameters in the matrices of all layers."""
    return model.layers * sum(
        prod(shape) for name, shape in model.shapes().items() if name.startswith("layers.0.") and len(shape) == 2
    )


def untied_parameters(model: ModelSpec) -> int:
    """Parameters with embedding and head counted separately, tied or not: how published counts are often given."""
    return sum(prod(shape) for shape in model.model_copy(update={"tie_embeddings": False}).shapes().values())


def flops_per_token(model: ModelSpec) -> int:
    """FLOPs of training on one token, forward and backward, without what is computed again.

    6 for each weight of a matrix product (the embedding is a look-up, the head a product), and causal attention:
    scores and weighted values of (T + 1) / 2 positions, 2 FLOPs each, three times over.
    """
    matrices = sum(prod(shape) for name, shape in model.shapes().items() if len(shape) == 2)
    products = matrices if model.tie_embeddings else matrices - model.vocabulary * model.width
    return 6 * products + 6 * model.layers * model.width * (model.context + 1)


def kept_layer_bytes(model: ModelSpec, recompute: Recompute) -> int:
    """Bytes a token that one layer keeps from the forward to the backward pass, in bf16 but for what norms take in.

    full: the layer's input. selective: that, and what matrix products and attention gave. none: fp32 inputs of both
    norms; inputs of query, key and value, these turned, output of the attention; inputs of gate and up, both outputs,
    silu and the product.
    """
    width, keys = model.width, model.width * model.kv_heads // model.heads
    if recompute == "full":
        return BF16 * width
    if recompute == "selective":
        return BF16 * (5 * width + 2 * keys + 2 * model.ffn)
    return FP32 * 2 * width + BF16 * (4 * width + 2 * keys + 4 * model.ffn)


# --- memory --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes of one thing in both phases: on each GPU, and on the host of all of them."""

    gpu_computing: int = 0
    gpu_communicating: int = 0
    host_computing: int = 0
    host_communicating: int = 0


def memory_parts(spec: RunSpec, gpus: int, micro_sequences: int, recompute: Recompute = "full") -> dict[str, Part]:
    """Memory of a miner by part, each at its own peak. `gpus` >= 1 share the model; each takes `micro_sequences` at
    once."""
    total = spec.layout.num_parameters
    shard = -(-total // gpus)
    # Muon keeps one value of each entry of the layers' matrices, AdamW two of everything.
    state = 2 * total - matrix_parameters(spec.model) * (spec.inner.optimizer == "muon")
    payloads = (1 + spec.gauntlet.contributors) * spec.object_bytes
    moments = step_moments(spec.model, gpus, micro_sequences, recompute).values()
    return {
        "theta": Part(0, FP32 * shard, FP32 * total, FP32 * total),
        "parameters": Part(FP32 * shard, FP32 * shard),
        "gradients": Part(FP32 * shard),
        "adam_moments": Part(FP32 * -(-state // gpus), 0, 0, FP32 * state),
        "error_feedback": Part(0, FP32 * shard, FP32 * total),
        **{name: Part(max(moment[name] for moment in moments)) for name in STEP_PARTS},
        "payloads": Part(0, 0, 0, payloads),
    }


def memory_total(spec: RunSpec, gpus: int, micro_sequences: int, recompute: Recompute = "full") -> Part:
    """Memory of all parts. What an inner step takes beyond the shards is that of its fullest moment: its parts peak at
    different ones."""
    parts = memory_parts(spec, gpus, micro_sequences, recompute)
    moments = step_moments(spec.model, gpus, micro_sequences, recompute).values()
    fullest = max(sum(moment.values()) for moment in moments)
    return Part(
        sum(part.gpu_computing for name, part in parts.items() if name not in STEP_PARTS) + fullest,
        sum(part.gpu_communicating for part in parts.values()),
        sum(part.host_computing for part in parts.values()),
        sum(part.host_communicating for part in parts.values()),
    )


def step_moments(
    model: ModelSpec, gpus: int, micro_sequences: int, recompute: Recompute = "full"
) -> dict[str, dict[str, int]]:
    """Bytes on one GPU beyond the shards, by part, at the moments of a micro-batch at which memory peaks.

    Sharded (gpus > 1): weights are gathered in bf16, those of embedding and head for the whole step, layers one by one
    with the next fetched ahead; gradients are bf16, then an fp32 buffer that is reduced. On one GPU autocast keeps
    bf16 copies of all layers to the end of the forward pass, and gradients are fp32. The gradient of a tied head waits
    for the embedding's, and their sum is a third tensor. Compiled layers and losses take less.
    """
    width, tokens, tied = model.width, micro_sequences * model.context, model.tie_embeddings
    layer, table = layer_parameters(model), model.vocabulary * model.width
    residual = BF16 * width * tokens
    kept = kept_layer_bytes(model, recompute) * model.layers * tokens
    again = (kept_layer_bytes(model, "none") - kept_layer_bytes(model, recompute)) * tokens
    hidden = kept + (FP32 + 2 * BF16) * width * tokens
    inside = kept + again + (BF16 * model.ffn + FP32 * width) * tokens
    chunk = model.vocabulary * min(max(1, LOGITS_PER_CHUNK // model.vocabulary), tokens)
    logits = (BF16 + FP32) * chunk
    grad_logits = (2 * BF16 + FP32) * chunk

    # Each moment: weights, gradients, activations, logits.
    if gpus == 1:
        low, full = BF16 * table, FP32 * table
        matrix = (FP32 + BF16) * width * model.ffn
        moments = {
            "logits": (BF16 * model.layers * layer + low, 0, hidden, logits),
            "gradient of the logits": (low, full, hidden, grad_logits),
            "gradient of the head": (low, full + low, hidden, BF16 * chunk),
            "gradient of a layer": (BF16 * layer, full * tied + matrix, inside, 0),
            "gradient of the embedding": (0, full * (3 if tied else 1), residual, 0),
        }
    else:
        tables = table if tied else 2 * table
        low, gathered = BF16 * table, BF16 * tables
        moments = {
            "gathering": (2 * gathered, 0, 0, 0),
            "logits": (gathered + BF16 * layer, 0, hidden, logits),
            "gradient of the logits": (gathered + BF16 * layer, low, hidden, grad_logits),
            "gradient of a layer": (gathered + 2 * BF16 * layer, low + (BF16 + FP32) * layer, inside, 0),
            "gradient of the embedding": (gathered, low * (3 if tied else 2), residual, 0),
            "reduction": (0, (BF16 + FP32) * tables, 0, 0),
        }
    return {moment: dict(zip(STEP_PARTS, taken, strict=True)) for moment, taken in moments.items()}


# --- the plan ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """What one miner needs for `spec` on `gpus` GPUs of `gpu_bytes` memory and `gpu_flops` model FLOP/s each, behind a
    link of `up_mbps` and `down_mbps` megabits a second."""

    spec: RunSpec
    gpus: int
    gpu_bytes: int
    gpu_flops: float
    up_mbps: float
    down_mbps: float

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
        return self.tokens * flops_per_token(self.spec.model)

    @property
    def payload_bytes(self) -> int:
        return self.spec.object_bytes

    @property
    def download_bytes(self) -> int:
        """All contributing payloads of a full round."""
        return self.spec.gauntlet.contributors * self.payload_bytes

    @property
    def compute_seconds(self) -> float:
        return self.flops / (self.gpus * self.gpu_flops)

    @property
    def upload_seconds(self) -> float:
        return transfer_seconds(self.payload_bytes, self.up_mbps)

    @property
    def download_seconds(self) -> float:
        return transfer_seconds(self.download_bytes, self.down_mbps)

    @property
    def utilization(self) -> float:
        return utilization(self.compute_seconds, self.upload_seconds + self.download_seconds)

    def memory(self, micro_sequences: int = 1) -> dict[str, Part]:
        """Memory by part with so many sequences on each GPU at once."""
        return memory_parts(self.spec, self.gpus, micro_sequences)

    @property
    def memory_total(self) -> Part:
        """All of it, with one sequence at once."""
        return memory_total(self.spec, self.gpus, 1)

    @property
    def sequences_per_gpu(self) -> int:
        """Sequences of one inner step that a GPU takes, in one or more micro-batches."""
        return -(-self.spec.inner.sequences // self.gpus)

    @property
    def micro_sequences(self) -> int:
        """Most sequences at once with which a GPU's memory suffices; 0 when not even one fits."""
        return last(lambda count: self._fits(self.gpus, count), self.sequences_per_gpu)

    @property
    def gpus_needed(self) -> int | None:
        """Fewest GPUs of this size that suffice; None when even one for each sequence of an inner step does not."""
        enough = (gpus for gpus in range(1, self.spec.inner.sequences + 1) if self._fits(gpus, 1))
        return next(enough, None)

    def _fits(self, gpus: int, micro_sequences: int) -> bool:
        needed = memory_total(self.spec, gpus, micro_sequences)
        return max(needed.gpu_computing, needed.gpu_communicating) <= (1 - RESERVE) * self.gpu_bytes


def last(holds: Callable[[int], bool], most: int) -> int:
    """Largest number of 1 .. most for which `holds`, which is true up to some number; 0 when none."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low


# --- schedule ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Milestone:
    """From `inner_step` on, the first of `round`: the inner learning rate there, the outer one, and what begins."""

    round: int
    inner_step: int
    lr: float
    alpha: float
    begins: str


def milestones(run: Run) -> list[Milestone]:
    """Where the learning rates of a run change their course, in order, when no round is void."""
    begins = [0, *(amendment.from_round for amendment in run.amendments)]
    found: list[Milestone] = []
    for first, last in zip(begins, [*begins[1:], None], strict=True):
        spec = run.spec_at(first)
        inner = spec.inner
        course = {first * inner.steps: ["amended" if first else "outset"]}
        for own, what in _course(inner):
            course.setdefault(inner.start_step + own, []).append(what)
        for step, whats in sorted(course.items()):
            round = step // inner.steps
            if first <= round and (last is None or round < last):
                found.append(Milestone(round, step, lr_at(step, inner), spec.outer.alpha, ", ".join(whats)))
    return found


def _course(inner: InnerSpec) -> list[tuple[int, str]]:
    """(inner steps from the schedule's start, what begins there), the flat window included in the count."""
    pause = inner.flat_steps
    late = [pause if inner.flat_from <= own else 0 for own in (inner.warmup_steps, inner.decay_steps)]
    course = [(0, "warm-up")] if inner.warmup_steps else []
    course += [(inner.warmup_steps + late[0], f"{inner.decay} decay"), (inner.decay_steps + late[1], "flat")]
    if pause:
        course.append((inner.flat_from, f"flat for {pause:,} steps"))
        if inner.warmup_steps < inner.flat_from < inner.decay_steps:
            course.append((inner.flat_from + pause, f"{inner.decay} decay goes on"))
    return course

"""Memory and disk of a node by part and by moment, for the code as built. Arithmetic from the spec; no torch.

GPUs: FSDP2 shards everything (fp32 parameters, gradients and the optimizer's state, bf16 matrix products). By default
each layer keeps one input and is recomputed for its gradient; logits are made in chunks. Parts are counted tensor by
tensor; `RESERVE` covers the allocator and NCCL.

Host: memory shared by the ranks (murmur/training/host.py), temporary memory of calls, and, where a CPU trains, what a
GPU would hold. Pages of mapped files belong to the system and are not counted.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from murmur.protocol.spec import ModelSpec, RunSpec, TrainingSpec
from murmur.training.muon_assignment import muon_bytes
from murmur.training.sizes import (
    BF16,
    FP32,
    LOGITS_PER_CHUNK,
    MemberSizes,
    Recompute,
    Sizes,
    TrainingSizes,
    layer_parameters,
)

Role = Literal["miner", "validator"]

Trainer = Sizes | MemberSizes
"""Sizes of a trainer: a miner, or a cluster's member."""

RESERVE = 0.05
"""Share of a GPU's memory left for the CUDA context, NCCL's buffers and fragmentation."""

PROCESS_BYTES = 360_000_000
"""Memory of a process before it holds a model: Python, torch and the chain's SDK (measured on a CPU)."""

SLAB_BYTES = 1 << 28
"""fp32 bytes of theta that are compressed at once on a GPU: error feedback and theta are copied there slab by slab
(murmur/training/trainer.py)."""

PLACE_BYTES = 8
"""Bytes of a value's position, on its way to a GPU (sparseloco/outer.py moves)."""

SUMMED_BYTES = 66 << 20
"""Most bytes of each payload that are held while a part of the mean is summed (murmur/cluster/mean_parts.py)."""

RECENT_ROUNDS = 4
"""Rounds whose payloads stay on disk for other nodes after a snapshot replaced them (murmur/node/state/redo_log.py)."""

CPU_BYTES = 4 << 30
"""Cap on the activations and logits that a CPU holds at once."""

MICRO_PARTS = ("weights_in_use", "gradients_in_use", "activations", "logits")
STEP_PARTS = (*MICRO_PARTS, "orthogonalised")
"""Parts that a micro-batch, and an inner step, hold temporarily beyond the shards."""


def kept_layer_bytes(model: ModelSpec, recompute: Recompute) -> int:
    """Return the bytes per token that one layer keeps from the forward to the backward pass, in bf16 except the norms'
    inputs.

    full: the layer's input. selective: also the outputs of matrix products and attention. none: fp32 inputs of both
    norms; inputs of query, key and value, these after rotation, output of the attention; inputs of gate and up, both
    outputs, silu and the product.
    """
    width, keys = model.width, model.width * model.kv_heads // model.heads
    if recompute == "full":
        return BF16 * width
    if recompute == "selective":
        return BF16 * (5 * width + 2 * keys + 2 * model.ffn)
    return FP32 * 2 * width + BF16 * (4 * width + 2 * keys + 4 * model.ffn)


# --- GPUs --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MemoryPart:
    """Bytes of one part in both phases, each at its own peak: on each GPU, and on the host of all GPUs."""

    gpu_computing: int = 0
    gpu_communicating: int = 0
    host_computing: int = 0
    host_communicating: int = 0


def gpu_parts(
    spec: TrainingSpec, gpus: int, micro_sequences: int, recompute: Recompute = "full"
) -> dict[str, tuple[int, int]]:
    """Return the bytes on one GPU by part, each at its own peak, while computing and while communicating. `gpus` >= 1
    share the model; each takes `micro_sequences` at once."""
    sizes = TrainingSizes(spec)
    shard, state = _shared(sizes.model, gpus), _shared(sizes.optimizer, gpus)
    moments = step_moments(spec, gpus, micro_sequences, recompute).values()
    return {
        "parameters": (shard, shard),
        "gradients": (shard, 0),
        "adam_moments": (state, state),
        **{name: (max(moment.get(name, 0) for moment in moments), 0) for name in STEP_PARTS},
        "slabs": (0, min(5 * SLAB_BYTES, 5 * shard)),
    }


def gpu_total(spec: TrainingSpec, gpus: int, micro_sequences: int, recompute: Recompute = "full") -> tuple[int, int]:
    """Return the bytes on one GPU at its fullest moment, while computing and while communicating: parts peak at
    different moments."""
    parts = gpu_parts(spec, gpus, micro_sequences, recompute)
    moments = step_moments(spec, gpus, micro_sequences, recompute).values()
    fullest = max(sum(moment.values()) for moment in moments)
    computing = sum(part for name, (part, _) in parts.items() if name not in STEP_PARTS) + fullest
    return computing, sum(part for _, part in parts.values())


def trainer_parts(
    sizes: Trainer, gpus: int, micro_sequences: int, recompute: Recompute = "full"
) -> dict[str, MemoryPart]:
    """Return a trainer's memory by part, each at its own peak."""
    on_gpu = gpu_parts(sizes.spec, gpus, micro_sequences, recompute)
    host = trainer_moments(sizes, ranks=gpus)
    computing = host.pop(COMPUTING)
    names = dict.fromkeys([*on_gpu, *(name for moment in host.values() for name in moment)])
    return {
        name: MemoryPart(
            *on_gpu.get(name, (0, 0)),
            computing.get(name, 0),
            max(moment.get(name, 0) for moment in host.values()),
        )
        for name in names
    }


def memory_total(spec: RunSpec, gpus: int, micro_sequences: int, recompute: Recompute = "full") -> MemoryPart:
    """Return the memory of all of a miner's parts at its fullest moment."""
    return trainer_total(Sizes(spec), gpus, micro_sequences, recompute)


def trainer_total(sizes: Trainer, gpus: int, micro_sequences: int, recompute: Recompute = "full") -> MemoryPart:
    """Return the memory of all of a trainer's parts at its fullest moment."""
    host = {moment: sum(held.values()) for moment, held in trainer_moments(sizes, ranks=gpus).items()}
    computing = host.pop(COMPUTING)
    return MemoryPart(*gpu_total(sizes.spec, gpus, micro_sequences, recompute), computing, max(host.values()))


def _shared(num_bytes: int, gpus: int) -> int:
    """Return one GPU's share of fp32 values."""
    return FP32 * -(-num_bytes // FP32 // gpus)


def step_moments(
    spec: TrainingSpec, gpus: int, micro_sequences: int, recompute: Recompute = "full"
) -> dict[str, dict[str, int]]:
    """Return the bytes on one GPU beyond the shards, by part, at the peak moments of an inner step."""
    return micro_moments(spec.model, gpus, micro_sequences, recompute) | {
        "optimizer step": {"orthogonalised": muon_bytes(spec.model, spec.inner)}
    }


def micro_moments(
    model: ModelSpec, gpus: int, micro_sequences: int, recompute: Recompute = "full"
) -> dict[str, dict[str, int]]:
    """Return the same for a micro-batch.

    Sharded (gpus > 1): weights are gathered in bf16, those of embedding and head for the whole step, layers one by one
    with the next prefetched. Gradients are bf16, then an fp32 buffer that is reduced. On one GPU autocast keeps bf16
    copies of all layers to the end of the forward pass, and gradients are fp32. The gradient of a tied head waits for
    the embedding's, and their sum is a third tensor. Compiled layers and losses take less.
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
    summed = FP32 * width * tokens  # the gradient of hidden, over the chunks

    # Each moment: weights, gradients, activations, logits.
    if gpus == 1:
        low, full = BF16 * table, FP32 * table
        matrix = (FP32 + BF16) * width * model.ffn
        moments = {
            "logits": (BF16 * model.layers * layer + low, 0, hidden, logits),
            "gradient of the logits": (low, full, hidden + summed, grad_logits),
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
            "gradient of the logits": (gathered + BF16 * layer, low, hidden + summed, grad_logits),
            "gradient of a layer": (gathered + 2 * BF16 * layer, low + (BF16 + FP32) * layer, inside, 0),
            "gradient of the embedding": (gathered, low * (3 if tied else 2), residual, 0),
            "reduction": (0, (BF16 + FP32) * tables, 0, 0),
        }
    return {moment: dict(zip(MICRO_PARTS, taken, strict=True)) for moment, taken in moments.items()}


def cpu_activations(model: ModelSpec, sequences: int) -> int:
    """Return the bytes of activations and logits of `sequences` at once on a CPU: in fp32, at most twice the bf16
    count."""
    moments = micro_moments(model, 1, sequences, "none").values()
    return 2 * max(moment["activations"] + moment["logits"] for moment in moments)


def fits(spec: TrainingSpec, gpus: int, gpu_bytes: int, micro_sequences: int) -> bool:
    """Whether training with `micro_sequences` at once fits into `gpus` GPUs, with RESERVE of each left free."""
    return max(gpu_total(spec, gpus, micro_sequences)) <= (1 - RESERVE) * gpu_bytes


def gpus_needed(spec: TrainingSpec, gpu_bytes: int) -> int | None:
    """Return the fewest GPUs of this size that suffice; None when even one for each sequence of an inner step does
    not."""
    return next((gpus for gpus in range(1, spec.inner.sequences + 1) if fits(spec, gpus, gpu_bytes, 1)), None)


# --- host --------------------------------------------------------------------------------------------------------

COMPUTING = "inner steps"


def host_moments(
    spec: RunSpec, role: Role, *, ranks: int = 1, cpu_activations: int | None = None
) -> dict[str, dict[str, int]]:
    """Return the bytes on a node's host, by part, at the peak moments of a round and of a restart.

    ranks: processes of the node, one for each GPU. cpu_activations: None where GPUs train. Otherwise the bytes that an
    inner step of the CPU's one process holds beyond parameters, gradients and the optimizer's state, which are then on
    the host too.
    """
    sizes = Sizes(spec)
    if role == "miner":
        return trainer_moments(sizes, ranks=ranks, cpu_activations=cpu_activations)
    model, payload = sizes.model, sizes.payload
    on_cpu = cpu_activations is not None
    always = {"processes": ranks * PROCESS_BYTES}
    stepping = _stepping(sizes, cpu_activations)
    module = {"parameters": model} if on_cpu else {}
    # It repeats a miner's steps (murmur/rounds/verify.py) when it has judged. It may have to stop in their midst, while
    # another round waits.
    stopped = (
        {"paused": model, "kept": model} | ({"adam_moments": sizes.optimizer} if on_cpu else {})
        if spec.trace.places
        else {}
    )
    held = always | module | _areas(sizes) | stopped
    checked = {"payloads": sizes.gathered * payload}
    applied = {"payloads": (sizes.gathered + sizes.contributors) * payload}
    # The records in memory shared by all ranks, and the weights before the probe. On the way to GPUs also places and
    # moves of a tensor, listed and selected.
    listed = 0 if on_cpu else 2 * (PLACE_BYTES + FP32) * _most_values(spec)
    probed = {"probed": payload + FP32 * sizes.values + listed}
    return {
        **({COMPUTING: held | stepping} if spec.trace.places else {}),
        "check": held | checked,
        "probe": held | checked | probed,
        "outer step": held | applied,
        "restart": always | module | {name: size for name, size in _areas(sizes).items() if name != "spare"},
    }


def trainer_moments(sizes: Trainer, *, ranks: int = 1, cpu_activations: int | None = None) -> dict[str, dict[str, int]]:
    """Return the same for a trainer."""
    model, payload = sizes.model, sizes.payload
    on_cpu = cpu_activations is not None
    always = {"processes": ranks * PROCESS_BYTES}
    stepping = _stepping(sizes, cpu_activations)
    trained = {name: stepping[name] for name in ("parameters", "adam_moments") if on_cpu}
    loaded = trained | ({"adam_moments": sizes.carried} if on_cpu else {})
    dense = sizes.spec.exchange == "int8"
    areas = _areas(sizes) | {"error_feedback": 0 if dense else model, "stored_moments": sizes.carried}
    held = always | areas
    sealed = {"payloads": 4 * payload}
    opened = {"payloads": sizes.opened * payload}
    # One tensor's values above the norms that an outer step applies, listed before and after the restraint.
    kept_back = 0 if dense else 2 * 2 * (PLACE_BYTES + FP32) * _most_values(sizes.spec)
    # Blocks of every payload, sealed, open and joined; the part of the mean, its sealed object, and copies of both.
    summed = 3 * sizes.contributors * min(payload, SUMMED_BYTES) + 4 * payload // sizes.contributors
    return {
        COMPUTING: held | stepping,
        "compress": held | trained | sealed | {"kept_back": kept_back},
        "swap": held | trained | sealed,
        **({"sum a part": held | trained | {"payloads": summed}} if dense else {}),
        "outer step": held | trained | opened,
        "restart": always | loaded | {name: areas[name] for name in areas if name != "spare"},
    }


def _stepping(sizes: Trainer, cpu_activations: int | None) -> dict[str, int]:
    """Return what inner steps hold on the host where a CPU takes them."""
    if cpu_activations is None:
        return {}
    model = sizes.model
    trained = {"parameters": model, "adam_moments": sizes.optimizer}
    return trained | {"gradients": model, "activations": cpu_activations}


def _areas(sizes: Trainer) -> dict[str, int]:
    """Return the areas of the run's state that every node keeps."""
    momentum = sizes.consensus - sizes.model
    return {"theta": sizes.model, "spare": sizes.model} | ({"momentum": momentum} if momentum else {})


def _most_values(spec: TrainingSpec) -> int:
    """Return the most values of a payload that belong to one tensor."""
    return max(sum(region.down * region.across * region.k for region in tensor.regions) for tensor in spec.layout)


def host_bytes_peak(spec: RunSpec, role: Role, *, ranks: int = 1, cpu_activations: int | None = None) -> int:
    """Return the host's bytes at its fullest moment."""
    moments = host_moments(spec, role, ranks=ranks, cpu_activations=cpu_activations)
    return max(sum(held.values()) for held in moments.values())


# --- disk --------------------------------------------------------------------------------------------------------


def disk_parts(spec: RunSpec, role: Role) -> dict[str, int]:
    """Return the most bytes of a node's state on disk, by part: a new file is written before the old one is removed.
    Without the data set, whose files arrive as needed and stay."""
    sizes = Sizes(spec)
    if role == "miner":
        return trainer_disk(sizes)
    return _consensus_disk(sizes) | {
        "checkpoint": sizes.consensus,
        "cache": sizes.gathered * sizes.payload,
        "payloads": (spec.gauntlet.copy_rounds + 1) * sizes.gathered * sizes.payload,
    }


def trainer_disk(sizes: Trainer) -> dict[str, int]:
    """Return the same for a trainer."""
    return _consensus_disk(sizes) | {
        "own_state": 2 * sizes.own,
        "sealed": 2 * sizes.payload,
        "cache": sizes.opened * sizes.payload,
    }


def _consensus_disk(sizes: Trainer) -> dict[str, int]:
    rounds = sizes.spec.checkpoint_rounds + RECENT_ROUNDS
    return {"snapshot": 2 * sizes.consensus, "log": rounds * sizes.opened * sizes.payload}


def largest(holds: Callable[[int], bool], most: int) -> int:
    """Return the largest number of 1 .. most for which `holds`, which is true up to some number; 0 when none."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low

"""Requirements of a fine-tuning: memory, time and disk, by arithmetic from the recipe. No torch.

As it is trained (murmur/export/trainer.py): parameters, gradients and AdamW's moments in fp32, sharded over the GPUs,
products in bf16, every layer recomputed: a miner's inner step (murmur/training/memory.py) at another context. TRL's
loss differs: it makes logits in tiles, and the head's gradient whole in fp32.
"""

from dataclasses import dataclass
from math import ceil

from murmur.export.recipes import Recipe, Stage
from murmur.plan.rates import Rate
from murmur.protocol.spec import ModelSpec, RunSpec
from murmur.training.memory import PROCESS_BYTES, RESERVE, largest, micro_moments
from murmur.training.sizes import BF16, FP32, flops_per_token, layer_parameters

SHARDS = {"parameters": 1, "gradients": 1, "adam_moments": 2}
"""fp32 values per parameter, of which each GPU holds its share."""
SAVED = 3
"""fp32 values per parameter in a checkpoint: the parameter and both moments."""
CHECKPOINTS = 2
TILE = 4096 * 32_768
"""Logits that TRL's loss holds at once, in bf16."""


@dataclass(frozen=True, slots=True)
class StageCost:
    """The upper bound of one stage, with all sequences full.

    `gpu`: bytes on each GPU by part, with one sequence at once, at the fullest moment of a step. `sequences_at_once`:
    how many fit, 0 for none. `gpus_needed`: fewest on which one fits, None where even one for each sequence of a step
    is not enough.
    """

    stage: Stage
    steps: int
    tokens: int
    flops: int
    seconds: float
    gpu: dict[str, int]
    sequences_at_once: int
    gpus_needed: int | None

    @property
    def gpu_bytes(self) -> int:
        return sum(self.gpu.values())


@dataclass(frozen=True, slots=True)
class Cost:
    """The whole recipe. `host_bytes`: while the first process reads the whole model for all. `disk_bytes`: checkpoints
    while a new one is written, the model between two stages, and the final one; without the data."""

    stages: tuple[StageCost, ...]
    host_bytes: int
    disk_bytes: int

    @property
    def seconds(self) -> float:
        return sum(stage.seconds for stage in self.stages)

    @property
    def fits(self) -> bool:
        return all(stage.sequences_at_once for stage in self.stages)


def cost(spec: RunSpec, recipe: Recipe, gpus: int, gpu_bytes: int, compute: Rate) -> Cost:
    """Return the cost on `gpus` of `gpu_bytes` memory that train at the model FLOP/s `compute` each."""
    parameters = spec.layout.num_parameters
    stages = tuple(_stage(spec, stage, gpus, gpu_bytes, compute) for stage in recipe.stages)
    return Cost(
        stages,
        host_bytes=FP32 * parameters + gpus * PROCESS_BYTES,
        disk_bytes=((CHECKPOINTS + 1) * SAVED * FP32 + FP32 + BF16) * parameters,
    )


def _stage(spec: RunSpec, stage: Stage, gpus: int, gpu_bytes: int, compute: Rate) -> StageCost:
    model = spec.model.model_copy(update={"context": stage.context})
    steps = stage.schedule(None).steps
    tokens = steps * stage.sequences * stage.context
    flops = tokens * flops_per_token(model)
    parameters, usable = spec.layout.num_parameters, (1 - RESERVE) * gpu_bytes

    def fits(count: int, at_once: int) -> bool:
        return sum(_gpu(model, parameters, count, at_once).values()) <= usable

    return StageCost(
        stage,
        steps,
        tokens,
        flops,
        compute.seconds(flops, gpus),
        _gpu(model, parameters, gpus, 1),
        largest(lambda at_once: fits(gpus, at_once), max(1, stage.sequences // gpus)),
        next((count for count in range(1, stage.sequences + 1) if fits(count, 1)), None),
    )


def _gpu(model: ModelSpec, parameters: int, gpus: int, at_once: int) -> dict[str, int]:
    """Return bytes by part: the shares, and the temporary memory of a step at its fullest moment."""
    shares = {name: FP32 * values * ceil(parameters / gpus) for name, values in SHARDS.items()}
    moments = micro_moments(model, gpus, at_once)
    moments = {name: moment for name, moment in moments.items() if "logits" not in name}
    fullest = max((*moments.values(), _loss(model, at_once)), key=lambda moment: sum(moment.values()))
    return shares | fullest


def _loss(model: ModelSpec, at_once: int) -> dict[str, int]:
    """Return the memory while the head's gradient is made: in fp32, then in bf16. It includes every layer's input, the
    last norm's input and output, and their gradient in fp32."""
    head, tokens = model.vocabulary * model.width, at_once * model.context
    kept = BF16 * model.width * tokens * model.layers
    ends = (2 * BF16 + 2 * FP32) * model.width * tokens
    return {
        "weights_in_use": BF16 * (head + layer_parameters(model)),
        "gradients_in_use": (FP32 + BF16) * head,
        "activations": kept + ends,
        "logits": BF16 * TILE,
    }

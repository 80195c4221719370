"""Inner steps: ours against plain transformers (or, where that is not installed, a plain model below), same shapes.

    python benchmarks/bench_training.py --preset 1b --steps 10
    python benchmarks/bench_training.py --preset tiny --vocabulary 262144 --steps 2     (memory, on a CPU)

Each side runs in a process of its own, one after the other, from the same weights on the same tokens, through the same
loop (murmur/training/inner.py: autocast to bf16 and torch.compile on a GPU, fused AdamW), with the largest micro-batch
that it finds by trial. Plain means: the whole model compiled, all logits at once, nothing computed again. Two more
sides by --sides: `eager` is ours without torch.compile, `loop` the plain model below in a plain loop (plain_loop.py).
Stops with status 1 when the models' first losses differ. `memory_bytes` is the peak of a GPU's tensors, on a CPU of the
whole process; `plan_bytes` is what murmur/training/memory.py says of ours.
"""

import argparse
import json
import platform
import subprocess
import sys
import time
from importlib.util import find_spec
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from bench_codec import percentile
from commit import commit
from plain_loop import plain_loop
from torch import Tensor, nn

from murmur.plan import presets
from murmur.protocol.spec import ModelSpec, RunSpec
from murmur.training.batch_trial import Fit, fit_cpu, fit_tried, step_on_gpu
from murmur.training.inner import inner_round
from murmur.training.loader import batches
from murmur.training.memory import memory_total
from murmur.training.meter import memory_bytes, peak_flops
from murmur.training.model import Transformer, initialise, rotary_table, rotate
from murmur.training.optimizer import make_optimizer
from murmur.training.sizes import Recompute, flops_per_token

SIDES = ("ours", "eager", "plain", "loop")
OURS = ("ours", "eager")


class PlainLayer(nn.Module):
    """A decoder layer in torch's own modules, named as in murmur/training/model.py."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        width, keys = spec.width, spec.width // spec.heads * spec.kv_heads
        linear = {"query": (width, width), "key": (width, keys), "value": (width, keys), "output": (width, width)}
        self.attention = nn.ModuleDict({name: nn.Linear(*sizes, bias=False) for name, sizes in linear.items()})
        linear = {"gate": (width, spec.ffn), "up": (width, spec.ffn), "down": (spec.ffn, width)}
        self.ffn = nn.ModuleDict({name: nn.Linear(*sizes, bias=False) for name, sizes in linear.items()})
        self.attention_norm = nn.RMSNorm(width, spec.norm_epsilon)
        self.ffn_norm = nn.RMSNorm(width, spec.norm_epsilon)
        self.size = width // spec.heads

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        y = self.attention_norm(x)
        q, k, v = (self.attention[name](y).unflatten(2, (-1, self.size)).transpose(1, 2) for name in PROJECTIONS)
        y = F.scaled_dot_product_attention(
            rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True, enable_gqa=k.shape[1] != q.shape[1]
        )
        x = x + self.attention["output"](y.transpose(1, 2).flatten(2))
        y = self.ffn_norm(x)
        return x + self.ffn["down"](F.silu(self.ffn["gate"](y)) * self.ffn["up"](y))


PROJECTIONS = ("query", "key", "value")


class Plain(nn.Module):
    """The whole model, logits included; parameters as in murmur/training/model.py."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.embedding = nn.Embedding(spec.vocabulary, spec.width)
        self.layers = nn.ModuleList(PlainLayer(spec) for _ in range(spec.layers))
        self.norm = nn.RMSNorm(spec.width, spec.norm_epsilon)
        self.head = nn.Linear(spec.width, spec.vocabulary, bias=False)
        if spec.tie_embeddings:
            self.head.weight = self.embedding.weight
        cos, sin = rotary_table(spec.context, spec.width // spec.heads, spec.rope_theta)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        return self.head(self.norm(x))


NAMES = {
    "embedding.": "model.embed_tokens.",
    "layers.": "model.layers.",
    "attention_norm.": "input_layernorm.",
    "ffn_norm.": "post_attention_layernorm.",
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.output": "self_attn.o_proj",
    "ffn.gate": "mlp.gate_proj",
    "ffn.up": "mlp.up_proj",
    "ffn.down": "mlp.down_proj",
    "head.": "lm_head.",
}


def llama(spec: ModelSpec, weights: dict[str, Tensor]) -> nn.Module:
    """transformers' model of this shape with our weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=spec.vocabulary,
            hidden_size=spec.width,
            intermediate_size=spec.ffn,
            num_hidden_layers=spec.layers,
            num_attention_heads=spec.heads,
            num_key_value_heads=spec.kv_heads,
            max_position_embeddings=spec.context,
            rms_norm_eps=spec.norm_epsilon,
            rope_parameters={"rope_type": "default", "rope_theta": spec.rope_theta},
            tie_word_embeddings=spec.tie_embeddings,
            use_cache=False,
            attn_implementation="sdpa",
            dtype=torch.float32,
        )
    )
    renamed = {}
    for name, weight in weights.items():
        theirs = "model.norm.weight" if name == "norm.weight" else name
        for ours, others in NAMES.items():
            theirs = theirs.replace(ours, others)
        renamed[theirs] = weight
    if spec.tie_embeddings:
        renamed["lm_head.weight"] = weights["embedding.weight"]
    model.load_state_dict(renamed)
    return model


class Baseline(nn.Module):
    """A plain model behind the one method that the inner loop calls."""

    def __init__(self, spec: ModelSpec, weights: dict[str, Tensor], with_transformers: bool) -> None:
        super().__init__()
        self.with_transformers = with_transformers
        if self.with_transformers:
            self.model = llama(spec, weights)
        else:
            self.model = Plain(spec)
            self.model.load_state_dict(weights, strict=False)
        self._run = self._losses

    def compile(self) -> None:
        """With the loss: plain loops compile it too, and then no fp32 copy of the logits is kept."""
        self._run = torch.compile(self._losses)

    def loss(self, sequences: Tensor, recompute: Recompute = "none") -> Tensor:
        """Mean cross entropy of each sequence, [B], from all logits at once."""
        return self._run(sequences)

    def _losses(self, sequences: Tensor) -> Tensor:
        found = self.model(sequences[:, :-1])
        logits = found.logits if self.with_transformers else found
        losses = F.cross_entropy(logits.float().flatten(0, 1), sequences[:, 1:].flatten(), reduction="none")
        return losses.view(len(sequences), -1).mean(dim=1)


def largest(model: Any, optimizer: torch.optim.Optimizer, spec: RunSpec, device: torch.device) -> Fit | None:
    """The largest micro-batch, by trial; None where one sequence is too large."""
    if device.type != "cuda":
        return fit_cpu(spec, spec.inner.sequences)
    total_bytes = torch.cuda.get_device_properties(device).total_memory
    return fit_tried(step_on_gpu(model, optimizer, spec, device, total_bytes), spec.inner.sequences)


def measure(side: str, spec: RunSpec, options: argparse.Namespace) -> dict[str, Any]:
    """Rates of single steps, and memory, of one side."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model: Any = Transformer(spec.model)
    initialise(model, 0)
    if side in ("plain", "loop"):
        weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
        model = Baseline(spec.model, weights, side == "plain" and find_spec("transformers") is not None)
    model.to(device)
    inner = spec.inner
    optimizer = make_optimizer(model, inner)
    found = Fit(options.micro_sequences, "none") if options.micro_sequences else largest(model, optimizer, spec, device)
    if found is None:
        return {"error": "out of memory with one sequence"}
    if (device.type == "cuda" or options.compile) and side != "eager":
        model.compile()
    generator = torch.Generator().manual_seed(1)
    shape = ((options.warmup + options.steps) * inner.sequences, spec.model.context + 1)
    tokens = torch.randint(0, spec.model.vocabulary, shape, generator=generator)
    times: list[float] = []

    def on_step(step: int, loss: float) -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
            if step == options.warmup - 1:
                torch.cuda.reset_peak_memory_stats(device)
        times.append(time.perf_counter())

    work = batches(tokens, options.warmup + options.steps, inner.sequences)
    if side == "loop":
        del optimizer  # the trial's, without state
        losses = plain_loop(model, work, inner, found, on_step)
    else:
        sizes = {"micro_sequences": found.micro_sequences, "recompute": found.recompute}
        losses = inner_round(model, optimizer, work, inner, first_step=0, on_step=on_step, **sizes).losses
    step_tokens = inner.sequences * spec.model.context
    rates = [step_tokens / (end - begin) for begin, end in pairwise(times[options.warmup - 1 :])]
    peak = peak_flops(device)
    median = percentile(rates, 0.5)
    planned = memory_total(spec, 1, found.micro_sequences, found.recompute).gpu_computing
    return {
        "median": median,
        "p10": percentile(rates, 0.1),
        "p90": percentile(rates, 0.9),
        "mfu": None if peak is None else median * flops_per_token(spec.model) / peak,
        "memory_bytes": memory_bytes(device),
        "plan_bytes": planned if side in OURS and device.type == "cuda" else None,
        "micro_sequences": found.micro_sequences,
        "recompute": found.recompute,
        "first_loss": losses[0],
        "last_loss": losses[-1],
        "model": "murmuration" if side in OURS else "transformers" if model.with_transformers else "plain torch",
    }


def chosen(options: argparse.Namespace) -> RunSpec:
    """The preset with what the options change."""
    table = presets.read(options.preset).first.model_dump()
    if options.sequences:
        table["inner"]["sequences"] = options.sequences
    if options.vocabulary:
        table["model"]["vocabulary"] = options.vocabulary
    return RunSpec.model_validate(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="tiny", help="a run spec of murmur/configs/ by name, or a TOML file")
    parser.add_argument("--steps", type=int, default=10, help="inner steps that are timed")
    parser.add_argument("--warmup", type=int, default=3, help="inner steps before them, at least 1")
    parser.add_argument("--sequences", type=int, help="sequences of an inner step, instead of the preset's")
    parser.add_argument("--vocabulary", type=int, help="rows of the vocabulary, instead of the preset's")
    parser.add_argument("--micro-sequences", type=int, help="sequences at once, instead of a trial")
    parser.add_argument("--compile", action="store_true", help="on a CPU too")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=["ours", "plain"], help="which, in order")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    spec = chosen(options)
    if options.side:
        sys.stdout.write(json.dumps(measure(options.side, spec, options)) + "\n")
        return
    sides = {}
    for side in options.sides:
        command = [sys.executable, *sys.argv, "--side", side]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        sides[side] = json.loads(done.stdout.splitlines()[-1])
    cuda = torch.cuda.is_available()
    result = {
        "commit": commit(),
        "hardware": torch.cuda.get_device_name()
        if cuda
        else f"{platform.machine()}, {torch.get_num_threads()} threads",
        "torch": torch.__version__,
        "params": spec.layout.num_parameters,
        "preset": options.preset,
        "vocabulary": spec.model.vocabulary,
        "context": spec.model.context,
        "sequences": spec.inner.sequences,
        "unit": "tokens/s",
        **sides,
    }
    sys.stdout.write(json.dumps(result) + "\n")
    losses = [side["first_loss"] for side in sides.values() if "first_loss" in side]
    if max(losses, default=0.0) - min(losses, default=0.0) > 0.01:
        sys.exit(f"the models' first losses differ: {losses}")


if __name__ == "__main__":
    main()

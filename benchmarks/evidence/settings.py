"""What one training run is: every setting that its losses follow from, and the name under which its row is found."""

import json
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from hashlib import sha256
from typing import Any, Literal, Self, get_args

from murmur.protocol.layout import CHUNK
from murmur.protocol.spec import CompressionSpec, DataSpec, InnerSpec, ModelSpec, OuterSpec, TrainingSpec

Method = Literal["ddp", "diloco", "diloco-int8", "sparseloco"]
Optimizer = Literal["adamw", "muon"]
Rule = Literal["mean", "filtered_mean", "unbounded_mean", "trimmed_mean", "krum"]
"""How updates become one step: the first two are the product's, which bounds every norm by the median."""
Guess = Literal["", "lacking", "own"]
"""What a peer trains from while it waits for the selection: nothing, all updates but one, or its own update alone."""
Part = Literal["validation", "held_out"]
State = Literal["", "kept", "fresh"]
"""What the inner optimizer begins a round with; "" is "kept", of runs from before there was a choice."""

PAGE_SEQUENCES = 20
WARM_UP = 0.05
"""Share of all inner steps over which the rate rises; it falls to FINAL of its peak along half a cosine."""
FINAL = 0.1
BYTE_VOCABULARY = 264


def _model(layers: int, width: int, heads: int, context: int) -> ModelSpec:
    return ModelSpec(
        vocabulary=BYTE_VOCABULARY,
        layers=layers,
        width=width,
        heads=heads,
        kv_heads=max(1, heads // 2),
        ffn=3 * width,
        context=context,
    )


SIZES: dict[str, ModelSpec] = {
    "quick": _model(2, 32, 2, 64),
    "0.1M": _model(2, 64, 2, 128),
    "0.3M": _model(3, 96, 2, 128),
    "0.8M": _model(4, 128, 2, 128),
    "3M": _model(4, 256, 4, 128),
    "10M": _model(6, 384, 6, 128),
    "150M": _model(12, 1024, 16, 1024),
}
"""Byte-level models. The name says the parameters; "quick" has 0.03 M."""


@dataclass(frozen=True)
class Setting:
    """One training run.

    peers: R. sequences: of a peer in one inner step. inner_steps: H. steps: inner steps of the whole run, so that all
    runs of equal peers * sequences * steps see equally many tokens. k: values kept of 4096. peak_lr: of the inner
    optimizer. outer_lr: alpha of SparseLoCo, the rate of DiLoCo's Nesterov momentum; DDP has none.

    feedback, quantise: parts of SparseLoCo, to be switched off. rule: aggregation. colluders: so many of the peers
    send an attack in place of work. leave: chance of each peer, after each round, to be replaced by a newcomer. pace:
    peers make between 1 - pace and 1 + pace times H steps. guess, delay: what a peer trains from for that share of the
    inner steps, before it knows the selection. void: every so many rounds one is void.

    part: the text on which losses are taken. corpus: the digest of the training text's index.
    """

    method: Method
    size: str = "0.1M"
    seed: int = 0
    peers: int = 8
    sequences: int = 4
    inner_steps: int = 10
    steps: int = 240
    k: int = 64
    decay: float = 0.95
    optimizer: Optimizer = "adamw"
    state: State = ""
    peak_lr: float = 6e-3
    outer_lr: float = 1.0
    momentum: float = 0.9
    feedback: bool = True
    quantise: bool = True
    rule: Rule = "mean"
    colluders: int = 0
    attack: str = "none"
    leave: float = 0.0
    pace: float = 0.0
    guess: Guess = ""
    delay: float = 0.0
    void: int = 0
    part: Part = "held_out"
    evaluated: int = 256
    points: int = 8
    corpus: str = ""

    def __post_init__(self) -> None:
        if self.size not in SIZES:
            raise ValueError(f"no model size {self.size!r}; there are {', '.join(SIZES)}")
        for name, kind in (
            ("method", Method),
            ("optimizer", Optimizer),
            ("state", State),
            ("rule", Rule),
            ("guess", Guess),
        ):
            if getattr(self, name) not in get_args(kind):
                raise ValueError(f"{name} is {getattr(self, name)!r}, expected one of {get_args(kind)}")
        if self.steps % self.inner_steps:
            raise ValueError(f"{self.steps} steps are no whole number of rounds of {self.inner_steps} inner steps")
        switched = not (self.feedback and self.quantise) or self.rule != "mean" or self.colluders or self.void
        if self.method != "sparseloco" and (switched or self.guess):
            raise ValueError(f"{self.method} has no such switch: error feedback, rule, guess and void are SparseLoCo's")
        if self.method == "ddp" and (self.leave or self.pace):
            raise ValueError("DDP's peers share every step: they can neither leave nor have a pace of their own")
        if self.guess and (self.rule != "mean" or not self.quantise or self.void or self.colluders):
            raise ValueError("a guess is tried with the real codec, rule mean, without void rounds or colluders")
        if not self.quantise and self.rule != "mean":
            raise ValueError("other rules than the mean are tried with the real codec")
        if bool(self.guess) != bool(self.delay):
            raise ValueError("guess and delay belong together")
        if not 0 <= self.colluders < self.peers:
            raise ValueError("some peer has to be honest")

    @property
    def rounds(self) -> int:
        return self.steps // self.inner_steps

    @property
    def model(self) -> ModelSpec:
        return SIZES[self.size]

    @property
    def num_parameters(self) -> int:
        return self.spec(1 << 30).layout.num_parameters

    def key(self) -> dict[str, Any]:
        """All settings, with the model's shape in place of what its name stands for today."""
        found = {"kind": "training"} | asdict(self) | {"model": self.model.model_dump()}
        return found if self.state else {name: value for name, value in found.items() if name != "state"}

    @cached_property
    def id(self) -> str:
        return id_of(self.key())

    def spec(self, num_tokens: int) -> TrainingSpec:
        """The training spec on a training text of so many tokens. Of DDP: one model with everybody's sequences."""
        shared = self.peers if self.method == "ddp" else 1
        inner = InnerSpec(
            steps=self.inner_steps,
            sequences=self.sequences * shared,
            optimizer=self.optimizer,
            state=self.state or "kept",
            peak_lr=self.peak_lr,
            final_lr=FINAL * self.peak_lr,
            warmup_steps=round(WARM_UP * self.steps),
            decay_steps=self.steps,
        )
        return TrainingSpec(
            name="evidence",
            genesis_checkpoint="0" * 64,
            model=self.model,
            compression=CompressionSpec(k=self.k, decay=self.decay),
            inner=inner,
            outer=OuterSpec(alpha=self.outer_lr, aggregate="filtered_mean" if self.rule == "filtered_mean" else "mean"),
            data=DataSpec(
                index="0" * 64,
                num_tokens=num_tokens,
                page_sequences=PAGE_SEQUENCES,
                held_out_sequences=self.evaluated,
            ),
        )

    def but(self, **changes: Any) -> Self:
        return replace(self, **changes)


def id_of(key: dict[str, Any]) -> str:
    """The name of a run: of its settings as canonical JSON."""
    return sha256(json.dumps(key, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:16]


def payload_bytes(setting: Setting) -> int:
    """What one peer uploads for one round, in bytes, one copy of it.

    DDP: an fp32 gradient for each inner step. DiLoCo: an fp32 pseudo-gradient, or int8 with an fp32 scale a chunk.
    SparseLoCo: the sealed payload; without the quantiser each kept value has four bytes in place of two bits.
    """
    spec = setting.spec(1 << 30)
    params = spec.layout.num_parameters
    if setting.method == "ddp":
        return 4 * params * setting.inner_steps
    if setting.method == "diloco":
        return 4 * params
    if setting.method == "diloco-int8":
        return params + 4 * sum(-(-tensor.numel // CHUNK) for tensor in spec.layout)
    if setting.quantise:
        return spec.object_bytes
    regions = [region for tensor in spec.layout for region in tensor.regions]
    kept = sum(region.down * region.across * region.k for region in regions)
    chunks = sum(region.down * region.across for region in regions)
    return spec.object_bytes + 4 * kept - kept // 4 - 2 * chunks

"""Sizes in a run: parameters, FLOPs, and bytes by name. Exact, from the spec. No torch."""

from dataclasses import dataclass
from math import prod
from typing import Literal

from murmur.data.index import BLOCK_BYTES, SHARD_TOKENS, leaves_bytes
from murmur.protocol.spec import ModelSpec, RunSpec, TrainingSpec

FILE_BYTES = 1 << 30
"""A file of saved state has at most this size, unless one tensor is larger: files are written and read concurrently
(murmur/training/checkpoint.py)."""

LOGITS_PER_CHUNK = 1 << 26
"""Logits that murmur/training/model.py holds at once: 256 MiB in fp32. A 262,144-row vocabulary is processed 256
positions at a time."""

Recompute = Literal["none", "selective", "full"]
"""What a layer recomputes for its gradient instead of keeping it. none: nothing. selective: what is cheaper than matrix
products and attention. full: everything, from the layer's input on. Results are the same. Each node chooses."""

FP32, BF16 = 4, 2


def size_words(num_bytes: float) -> str:
    """In the decimal unit that fits."""
    for unit, symbol in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if num_bytes >= unit:
            return f"{num_bytes / unit:.2f} {symbol}"
    return f"{num_bytes:.0f} B"


def layer_parameters(model: ModelSpec) -> int:
    """Return the parameters of one layer."""
    return sum(prod(shape) for name, shape in model.shapes().items() if name.startswith("layers.0."))


def matrix_parameters(model: ModelSpec) -> int:
    """Return the parameters in matrices: all but the gains."""
    return sum(prod(shape) for shape in model.shapes().values() if len(shape) == 2)


def untied_parameters(model: ModelSpec) -> int:
    """Return the parameters with embedding and head counted separately, tied or not, as published counts often do."""
    return sum(prod(shape) for shape in model.model_copy(update={"tie_embeddings": False}).shapes().values())


def flops_per_token(model: ModelSpec) -> int:
    """Return the FLOPs of training on one token, forward and backward, without recomputation.

    6 for each weight of a matrix product (the embedding is a look-up, the head a product), and causal attention: scores
    and weighted values of (T + 1) / 2 positions, 2 FLOPs each, three times over.
    """
    matrices = sum(prod(shape) for name, shape in model.shapes().items() if len(shape) == 2)
    products = matrices if model.tie_embeddings else matrices - model.vocabulary * model.width
    return 6 * products + 6 * model.layers * model.width * (model.context + 1)


@dataclass(frozen=True, slots=True)
class TrainingSizes:
    """Sizes of what a trainer holds and sends, by name, in bytes unless a name says otherwise."""

    spec: TrainingSpec

    @property
    def model(self) -> int:
        """theta, the error feedback, or any other fp32 copy of the parameters."""
        return FP32 * self.spec.layout.num_parameters

    @property
    def optimizer(self) -> int:
        """The optimizer's state: AdamW has two values per parameter, Muon one per matrix entry."""
        muons = self.spec.inner.optimizer == "muon"
        return 2 * self.model - FP32 * matrix_parameters(self.spec.model) * muons

    @property
    def carried(self) -> int:
        """The optimizer's state as far as it is carried from round to round."""
        return self.optimizer if self.spec.inner.state == "kept" else 0

    @property
    def own(self) -> int:
        """A miner's own state: error feedback, where the exchange has it, and the optimizer's state that is carried."""
        return self.carried + (0 if self.spec.exchange == "int8" else self.model)

    @property
    def consensus(self) -> int:
        """The state of every node: theta, and the outer step's momentum."""
        return self.spec.consensus_bytes

    @property
    def payload(self) -> int:
        return self.spec.object_bytes

    @property
    def values(self) -> int:
        """Values in a payload."""
        return sum(region.down * region.across * region.k for tensor in self.spec.layout for region in tensor.regions)

    @property
    def token(self) -> int:
        """A token in the data set."""
        return 2 if self.spec.model.vocabulary <= 1 << 16 else 4

    @property
    def shard(self) -> int:
        """A file of the data set."""
        return SHARD_TOKENS * self.token

    @property
    def trained_shards(self) -> float:
        """Average number of files that a peer's pages of a round touch."""
        return self._touched(self.spec.pages_per_round, self.spec.page_tokens)

    @property
    def _shards(self) -> int:
        return -(-self.spec.data.num_tokens // SHARD_TOKENS)

    def _touched(self, places: int, tokens: int) -> float:
        return min(places * (1 + tokens / SHARD_TOKENS), self._shards)


@dataclass(frozen=True, slots=True)
class MemberSizes(TrainingSizes):
    """Also the sizes of what a cluster's member holds, writes and moves. contributors: its members, all of whom
    contribute."""

    contributors: int

    @property
    def opened(self) -> int:
        """Payloads' worth of updates that an outer step opens: in the int8 exchange, the parts of the mean."""
        return 1 if self.spec.exchange == "int8" else self.contributors


@dataclass(frozen=True, slots=True)
class Sizes(TrainingSizes):
    """Also the sizes of what the nodes of a run on a chain hold, write and move."""

    spec: RunSpec

    @property
    def contributors(self) -> int:
        """Peers that contribute to a full round."""
        return self.spec.gauntlet.contributors

    @property
    def opened(self) -> int:
        """Payloads that an outer step opens."""
        return self.contributors

    @property
    def gathered(self) -> int:
        """Peers that a validator gathers when enough mine to fill the contributors' and reserve places."""
        return self.contributors + self.spec.gauntlet.reserve

    @property
    def evaluated(self) -> int:
        """Gathered peers that a validator evaluates."""
        return min(self.spec.gauntlet.evaluations, self.gathered)

    @property
    def probes(self) -> int:
        """Updates that it probes for that: of the evaluated and of their reference peers."""
        return min(self.gathered, self.evaluated * (1 + self.spec.gauntlet.references))

    @property
    def losses(self) -> int:
        """Sequences whose loss it computes (gauntlet/loss.py).

        theta's on every evaluated peer's pages and on unassigned pages; each probed update's on unassigned pages; every
        evaluated peer's and its reference peers' on its pages.
        """
        rules = self.spec.gauntlet
        asked = (self.evaluated + 1) + self.probes + self.evaluated * (1 + rules.references)
        return rules.sample_sequences * asked

    @property
    def sampled_sequences(self) -> int:
        """Sequences of text that a validator reads: from every evaluated peer's pages and from unassigned pages."""
        return self.spec.gauntlet.sample_sequences * (self.evaluated + 1)

    @property
    def sampled(self) -> float:
        """Average bytes of the data set that it reads for them (murmur/data/shards.py): a list of leaves for every file
        that they touch, and the blocks that hold them."""
        sequence = (self.spec.model.context + 1) * self.token
        blocks = 1 + sequence / BLOCK_BYTES
        return self.evaluated_shards * leaves_bytes(self.shard) + self.sampled_sequences * blocks * BLOCK_BYTES

    @property
    def repeated(self) -> float:
        """Average bytes of the data set that it reads to repeat one peer's round: lists of leaves, and blocks."""
        page = self.spec.page_tokens * self.token
        return self.trained_shards * leaves_bytes(self.shard) + self.spec.pages_per_round * (page + BLOCK_BYTES)

    @property
    def evaluated_shards(self) -> float:
        """Files that a validator's samples of a round touch: pages of every evaluated peer, and as many unassigned
        places as there are sequences."""
        rules, context = self.spec.gauntlet, self.spec.model.context
        pages = min(rules.sample_sequences, self.spec.pages_per_round) * self.evaluated
        assigned = self._touched(pages, self.spec.page_tokens)
        return min(assigned + self._touched(rules.sample_sequences, context), self._shards)

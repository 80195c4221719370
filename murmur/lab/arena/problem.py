"""The cheap language problem: text that differs from page to page, and a softmax regression that learns it.

The model predicts a token from the two before it: logits = bias + lag1[x_t] + lag2[x_{t-1}]. It is convex, has 8,256
parameters in three tensors, and hundreds of peers train it at once in one batch of matrices. The text mixes two tables
common to all pages and one of the page's topic. The common part is learned slowly over a whole run; a page's own part
shows that a peer trained on it.

How strong that is, by sixteen honest peers over 30 rounds of one seed, in rounds 0 to 3, 4 to 11 and 12 to 29: honest
gap 0.119, 0.058, 0.149; its standard deviation over its mean 0.78, 0.92, 0.45 (decision 0009, local network's model:
1.2 and 0.47 in the first two); overlap of honest states 0.36, 0.22, 0.16 on average, 0.54, 0.38, 0.29 at most.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from murmur.protocol.spec import ModelSpec
from murmur.protocol.types import Page
from sparseloco import ops
from sparseloco.outer import Scales
from sparseloco.update import Update

Theta = dict[str, Tensor]
"""fp32 parameters by name."""

VOCABULARY = 64
CONTEXT = 32
TOPICS = 64
TOPIC_SHARE = 0.2
"""Mean probability that a token follows its page's topic instead of the common tables; a page's own is between 0 and
twice that."""

FIRST_LAG_SHARE = 0.6
CONCENTRATION = 0.2
"""Dirichlet parameter of every row of a table, before the common, Zipf-like marginal: few successors are likely."""


class Regression(ModelSpec):
    """The regression's shapes in a run spec's model table, so that all of the real code sees its layout."""

    def shapes(self) -> dict[str, tuple[int, ...]]:
        size = self.vocabulary
        return {"bias.weight": (size,), "lag1.weight": (size, size), "lag2.weight": (size, size)}


class Text:
    """Endless text: every sequence is drawn on demand from `seed` and its position. So a split of a million pages costs
    nothing, and two peers rarely get the same page."""

    def __init__(self, seed: int, page_tokens: int, held_out_sequences: int = 2048) -> None:
        random = np.random.default_rng([seed, 1])
        marginal = 1.0 / np.arange(1, VOCABULARY + 1) ** 0.7
        rows = random.gamma(CONCENTRATION, size=(2 + TOPICS, VOCABULARY, VOCABULARY)) * marginal + 1e-6
        likely = (rows / rows.sum(-1, keepdims=True)).cumsum(-1).reshape(-1, VOCABULARY)
        likely[:, -1] = 1.0
        # One ascending line: the successor of row r at probability u is found by searching for r + u.
        self._line = (likely + np.arange(len(likely))[:, None]).reshape(-1)
        self._salt = np.uint64(seed * 0xD1342543DE82EF95 % 2**64)
        self._page_sequences = page_tokens // CONTEXT
        self._kept: dict[int, npt.NDArray[np.int64]] = {}
        held_out = np.arange(held_out_sequences, dtype=np.uint64) * np.uint64(self._page_sequences) + _FAR
        self.held_out = torch.from_numpy(self._drawn(held_out))

    def keep(self, pages: Sequence[Page]) -> None:
        """Draw the whole pages at once and cache them in place of the previous ones: a round's assignments, which are
        trained on and then evaluated repeatedly."""
        each = self._page_sequences
        numbers = np.concatenate([np.arange(each) + page.first // CONTEXT for page in pages])
        drawn = self._drawn(numbers.astype(np.uint64)).reshape(len(pages), each, CONTEXT)
        self._kept = {page.first // CONTEXT // each: rows for page, rows in zip(pages, drawn, strict=True)}

    def sequences(self, pages: Sequence[Page]) -> Tensor:
        """Return all whole sequences of the pages, int64 [sequences, CONTEXT]."""
        firsts = [np.arange(page.first, page.first + page.num_tokens, CONTEXT) for page in pages]
        numbers = np.concatenate(firsts) // CONTEXT
        if all(index in self._kept for index in {number // self._page_sequences for number in numbers.tolist()}):
            places = [divmod(number, self._page_sequences) for number in numbers.tolist()]
            return torch.from_numpy(np.stack([self._kept[index][row] for index, row in places]))
        return torch.from_numpy(self._drawn(numbers.astype(np.uint64)))

    def _drawn(self, numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        """Return the sequences of these numbers, int64 [sequences, CONTEXT]."""
        page = numbers // np.uint64(self._page_sequences)
        topic = (self._unit(page, 0) * TOPICS).astype(np.int64)
        own_share = self._unit(page, 1) * 2 * TOPIC_SHARE
        places = numbers * np.uint64(4 * CONTEXT)
        tokens = np.empty((len(numbers), CONTEXT), dtype=np.int64)
        tokens[:, :2] = (np.stack([self._unit(places, 2), self._unit(places, 3)], 1) * VOCABULARY).astype(np.int64)
        for at in range(2, CONTEXT):
            source, lag, which = (self._unit(places, 4 * at + part) for part in range(3))
            one, two = tokens[:, at - 1], tokens[:, at - 2]
            row = np.where(lag < FIRST_LAG_SHARE, one, VOCABULARY + two)
            row = np.where(source < own_share, (2 + topic) * VOCABULARY + one, row)
            found = np.searchsorted(self._line, row + which, side="right") - row * VOCABULARY
            tokens[:, at] = np.minimum(found, VOCABULARY - 1)
        return tokens

    def _unit(self, places: npt.NDArray[np.uint64], part: int) -> npt.NDArray[np.float64]:
        """Return numbers in [0, 1) that follow from the seed, the position and the part (splitmix64)."""
        mixed = (places + np.uint64(part)) * np.uint64(0x9E3779B97F4A7C15) ^ self._salt
        mixed = (mixed ^ mixed >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ mixed >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
        return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


_FAR = np.uint64(1 << 40)
"""Held-out sequences begin here, beyond every page."""


def zero_theta() -> Theta:
    """Return theta_0: every token is equally likely."""
    shapes = {"bias.weight": (VOCABULARY,), "lag1.weight": (VOCABULARY,) * 2, "lag2.weight": (VOCABULARY,) * 2}
    return {name: torch.zeros(shape) for name, shape in shapes.items()}


def sequence_losses(theta: Mapping[str, Tensor], sequences: Tensor) -> Tensor:
    """Return the mean loss of every sequence in nats per token, fp32 [sequences]; its first two tokens are only inputs.
    Logits stay small here, so exp needs no shift."""
    one, two, target = (sequences[:, at : at + CONTEXT - 2].reshape(-1) for at in (1, 0, 2))
    logits = theta["lag1.weight"].index_select(0, one).add_(theta["lag2.weight"].index_select(0, two))
    logits.add_(theta["bias.weight"])
    picked = logits.gather(1, target[:, None])[:, 0]
    return logits.exp_().sum(1).log_().sub_(picked).view(len(sequences), -1).mean(1)


@dataclass(frozen=True, slots=True)
class Trained:
    """What a lesson came to: theta at its `end`, and how far each step moved it (before minus after), by tensor
    [steps, ...]. A step's gradient is its move over `rate`."""

    end: Theta
    moves: Theta
    rate: float


def train(
    starts: Sequence[Theta], lessons: Tensor, batches: Sequence[int], rate: float, frozen: str = ""
) -> list[Trained]:
    """Take a step of gradient descent for each batch, for all peers at once.

    `lessons`: int64 [peers, sequences, CONTEXT], taken in order in `batches` of these sizes. The tensor named `frozen`
    is not trained. A peer's result does not depend on the others in the batch.
    """
    peers = len(lessons)
    theta = {name: torch.stack([start[name] for start in starts]) for name in starts[0]}
    path = {name: [values.clone()] for name, values in theta.items()}
    first, second = (theta[name].view(-1, VOCABULARY) for name in ("lag1.weight", "lag2.weight"))
    row = torch.arange(peers)[:, None, None]
    for batch in torch.split(lessons, list(batches), dim=1):
        one, two = ((row * VOCABULARY + batch[..., at : at + CONTEXT - 2]).reshape(-1) for at in (1, 0))
        target = batch[..., 2:].reshape(-1, 1)
        each = target.shape[0] // peers
        logits = first[one].add_(second[two]).view(peers, each, VOCABULARY).add_(theta["bias.weight"][:, None])
        error = logits.softmax(-1).view(-1, VOCABULARY)
        error.scatter_add_(1, target, torch.full_like(target, -1.0, dtype=torch.float32))
        error.mul_(-rate / each)
        for name, table, rows in (("lag1.weight", first, one), ("lag2.weight", second, two)):
            if name != frozen:
                table.index_add_(0, rows, error)
        theta["bias.weight"].add_(error.view(peers, each, VOCABULARY).sum(1))
        for name, values in theta.items():
            path[name].append(values.clone())
    moves = {name: torch.stack(points, dim=1).diff(dim=1).neg_() for name, points in path.items()}
    return [
        Trained(
            {name: values[peer] for name, values in theta.items()},
            {name: values[peer] for name, values in moves.items()},
            rate,
        )
        for peer in range(peers)
    ]


class Prober:
    """The loss that the gauntlet requests (gauntlet/loss.py), at one round's theta."""

    def __init__(self, text: Text, theta: Theta, probe_step: float) -> None:
        self._text, self._theta, self._step = text, theta, probe_step
        self._last: tuple[Update | None, Theta] = (None, theta)
        self._sequences: dict[tuple[Page, ...], Tensor] = {}

    def __call__(self, update: Update | None, factor: Scales, pages: tuple[Page, ...]) -> Sequence[float]:
        if update is not self._last[0]:
            probed = self._theta if update is None else ops.apply_probe(self._theta, update, factor, self._step)
            self._last = (update, probed)
        if pages not in self._sequences:
            self._sequences[pages] = self._text.sequences(pages)
        found: list[float] = sequence_losses(self._last[1], self._sequences[pages]).tolist()
        return found

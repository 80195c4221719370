"""What flows between the ten stations of a round (docs/tour.md), and how large it is: exact, from the spec."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from murmur.protocol.messages import ENVELOPE_BYTES, REVEAL_BYTES, encode_selection, encode_statement
from murmur.protocol.spec import RunSpec
from murmur.protocol.types import DIGEST_BYTES, Commitment, Digest, PeerId, Selection, Vote
from murmur.training.sizes import size_words

ITEM_BYTES = {"uint8": 1, "fp32": 4, "int64": 8, "float64": 8}


@dataclass(frozen=True, slots=True)
class Data:
    """An array that goes into a station or comes out of it."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        return ITEM_BYTES[self.dtype] * prod(self.shape)

    @property
    def size(self) -> str:
        """dtype, shape and bytes."""
        shape = ", ".join(f"{length:,}" for length in self.shape)
        return f"{self.dtype} [{shape}], {size_words(self.num_bytes)}"


def arrows(data: Iterable[Data]) -> str:
    """What goes in, and what comes out, on one line."""
    return "  ->  ".join(f"{one.name} {one.size}" for one in data)


class Peers(NamedTuple):
    """How many peers take part in a round. named: those that a validator's vote names."""

    committed: int
    passed: int
    named: int
    evaluated: int
    contributing: int


def flow(spec: RunSpec, peers: Peers) -> dict[str, tuple[Data, ...]]:
    """By station, in order: what goes in first, what comes out after it. Sizes are those of the encoders."""
    inner, context = spec.inner, spec.model.context
    parameters, records = (spec.layout.num_parameters,), spec.layout.records_bytes
    text = Data("text", "int64", (inner.steps * inner.sequences, context + 1))
    drawn = (spec.gauntlet.sample_sequences * (peers.evaluated + 1), context + 1)
    digest = Digest(bytes(DIGEST_BYTES))
    commits = encode_statement(Commitment(0, digest))
    pairs = ((PeerId(bytes(DIGEST_BYTES)), digest),) * peers.contributing
    selection = encode_selection(Selection(0, digest, digest, digest, pairs))
    names = Data("hotkeys", "uint8", (peers.named, DIGEST_BYTES))
    return {
        "assignment": (Data("block hash and hotkey", "uint8", (2, DIGEST_BYTES)), text),
        "inner round": (text, Data("theta_r", "fp32", parameters)),
        "compress": (Data("Delta", "fp32", parameters), Data("records", "uint8", (records,))),
        "seal": (Data("plaintext", "uint8", (spec.plaintext_bytes,)), Data("object", "uint8", (spec.object_bytes,))),
        "commit": (
            Data("envelope", "uint8", (ENVELOPE_BYTES,)),
            Data("commitment", "uint8", (len(commits),)),
            Data("reveal", "uint8", (REVEAL_BYTES,)),
        ),
        "check": (
            Data("objects", "uint8", (peers.committed, spec.object_bytes)),
            Data("records", "uint8", (peers.passed, records)),
        ),
        "order": (Data("PeerScores", "float64", (peers.passed,)), names),
        "vote": (
            names,
            Data("vote", "uint8", (len(encode_statement(Vote(0, 0, digest, digest))),)),
            Data("selection", "uint8", (len(selection),)),
        ),
        "score": (Data("text", "int64", drawn), Data("LossScores", "float64", (peers.evaluated, 2))),
        "outer step": (
            Data("records", "uint8", (peers.contributing, records)),
            Data("theta", "fp32", parameters),
        ),
    }

"""The trace of a round's inner steps, behind the records of a plaintext (docs/protocol.md section 3): what each step's
gradient and its change of the weights were at some places, by which an auditor's own execution is compared with it.

Places are drawn for each hotkey and round, so that no trace fits another's. A trace has one size for the whole run; the
more steps a round has, the fewer places of each.
"""

from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import numpy.typing as npt
import torch

from murmur.protocol.assignment import Draw
from murmur.protocol.errors import InvalidSubmission
from murmur.protocol.layout import HEAD_BYTES, VALUE_BYTES, Layout, TraceShape
from murmur.protocol.types import Digest, PeerId, Reason

Values = npt.NDArray[np.float32]
Places = dict[str, npt.NDArray[np.int64]]
"""Of each tensor the drawn elements, row-major, ascending; together in layout order they are a trace's places."""


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """What the first steps of a round were: clipped gradients and how far the weights moved (before minus after), fp32
    [steps, places] each. A miner may show fewer steps than the round has: it has made no more."""

    gradients: Values
    moves: Values

    @property
    def steps(self) -> int:
        return len(self.moves)


def places(run: Digest, page_hash: Digest, peer: PeerId, layout: Layout, count: int) -> Places:
    """Draw `count` places for a hotkey's round, whose pages are drawn from the same hash: one of each tensor, the rest
    uniform over all parameters. A place may come twice."""
    draw = Draw("trace", run, page_hash, peer)
    tensors = [tensor for tensor in layout if tensor.numel]
    found = [[draw.below(tensor.numel)] for tensor in tensors]
    ends = list(accumulate(tensor.numel for tensor in tensors))
    rest = np.array(draw.many_below(ends[-1], max(0, count - len(tensors))), dtype=np.int64)
    of = np.searchsorted(ends, rest, side="right")
    for at, (tensor, end) in enumerate(zip(tensors, ends, strict=True)):
        found[at] += (rest[of == at] - (end - tensor.numel)).tolist()
    return {tensor.name: np.sort(np.array(of, dtype=np.int64)) for tensor, of in zip(tensors, found, strict=True)}


def encode(trace: Trace, shape: TraceShape) -> bytes:
    """Return the bytes of a trace: u32 steps; for each step its gradients, then its moves, in bf16; zeros up to the
    shape's size. Little-endian."""
    rows = np.concatenate([trace.gradients, trace.moves], axis=1)
    body = torch.from_numpy(np.ascontiguousarray(rows)).bfloat16().view(torch.int16).numpy().astype("<i2").tobytes()
    return (trace.steps.to_bytes(HEAD_BYTES, "little") + body).ljust(shape.num_bytes, b"\0")


def parse(data: bytes | memoryview, shape: TraceShape) -> Trace:
    """Inverse of `encode`. Raises InvalidSubmission(MALFORMED) for bytes that it would not produce."""
    if len(data) != shape.num_bytes:
        raise InvalidSubmission(Reason.MALFORMED, f"a trace of {len(data)} bytes, expected {shape.num_bytes}")
    steps, width = int.from_bytes(data[:HEAD_BYTES], "little"), 2 * shape.places
    if steps > shape.steps:
        raise InvalidSubmission(Reason.MALFORMED, f"a trace of {steps} steps in a round of {shape.steps}")
    end = HEAD_BYTES + VALUE_BYTES * width * steps
    if any(data[end:]):
        raise InvalidSubmission(Reason.MALFORMED, "a trace goes on behind its last step")
    bits = np.frombuffer(data[HEAD_BYTES:end], dtype="<i2").astype(np.int16)
    rows = torch.from_numpy(bits).view(torch.bfloat16).float().numpy().reshape(steps, width)
    if not np.isfinite(rows).all():
        raise InvalidSubmission(Reason.MALFORMED, "a trace has a value that is not finite")
    return Trace(rows[:, : shape.places], rows[:, shape.places :])

"""The one interface through which the rest of the project calls the codec. It chooses the backend.

The native codec (sparseloco/native.py, on a GPU sparseloco/cuda.py) gives the same bytes as the reference and is used
if it is built; `use` forces one of the two. The tensors' device decides between C++ and CUDA; tensors on several
devices, or on one of another kind, go to the reference.
"""

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from murmur.protocol.errors import ConfigError
from murmur.protocol.layout import DenseLayout, Layout
from murmur.protocol.types import DIGEST_BYTES, Digest, PeerId
from sparseloco import cuda, dense, feedback, kernels, outer, reference, wire
from sparseloco.dense import DenseUpdate
from sparseloco.dense_native import DenseCodec
from sparseloco.native import Codec
from sparseloco.outer import Aggregate, OuterState, Rows, Scales
from sparseloco.update import Records, Update
from sparseloco.wire import Submission

Choice = Literal["auto", "native", "reference"]


@dataclass(slots=True)
class _Chosen:
    """The chosen backend. `codec`: for tensors on the CPU; None: the reference."""

    choice: Choice
    codec: Codec | None
    reason: str


def _choose(choice: Choice) -> _Chosen:
    if choice == "reference":
        return _Chosen(choice, None, "configured")
    try:
        isa = kernels.supported()[-1]
    except kernels.Unavailable as fault:
        if choice == "native":
            raise ConfigError(f"codec native: {fault}") from None
        return _Chosen(choice, None, str(fault))
    return _Chosen(choice, Codec(isa), "configured" if choice == "native" else "built, same bytes as the reference")


_chosen = _choose("auto")


def use(choice: Choice) -> None:
    """Choose the backend for this process. Raises ConfigError for "native" if it cannot run."""
    global _chosen
    _chosen = _choose(choice)


def backend() -> str:
    """Return the name of the backend in use, for a node's first log line: "native (avx2)" or "reference"."""
    return "reference" if _chosen.codec is None else f"native ({_chosen.codec.isa})"


def reason() -> str:
    """Return why this backend is used. If the reference is only a fallback: the missing part and the next step. On a
    machine with a GPU also the backend for tensors there."""
    if _chosen.choice == "reference" or not torch.cuda.is_available():
        return _chosen.reason
    try:
        cuda.library()
    except kernels.Unavailable as fault:
        return f"{_chosen.reason}; for tensors on a GPU the slow reference: {fault}"
    return f"{_chosen.reason}; for tensors on a GPU cuda"


def is_fallback() -> bool:
    """Whether the reference runs only as a fallback: it is dozens of times slower, so a node warns about it."""
    return _chosen.codec is None and _chosen.reason != "configured"


def _codec_for(*groups: Mapping[str, Tensor] | None) -> Codec | None:
    """Return the native codec of the device on which all tensors are; None, the reference, if there is none."""
    devices = {tensor.device for group in groups if group is not None for tensor in group.values()}
    if all(device.type == "cpu" for device in devices):
        return _chosen.codec
    if _chosen.choice == "reference" or len(devices) > 1:
        return None
    (device,) = devices
    return _gpu_codec(device) if device.type == "cuda" else None


def _gpu_codec(device: torch.device) -> Codec | None:
    try:
        return cuda.codec(device)
    except kernels.Unavailable as fault:
        if _chosen.choice == "native":
            raise ConfigError(f"codec native, for tensors on {device}: {fault}") from None
        warnings.warn(f"the codec runs on the slow reference for tensors on {device}: {fault}", stacklevel=4)
        return None


def _require_apart(out: Mapping[str, Tensor] | None, *inputs: Mapping[str, Tensor] | None) -> None:
    """Raise ValueError if a tensor to write to shares memory with another or with an input."""
    if out is None:
        return
    spans: list[tuple[int, int, str | None]] = [(*_span(value), name) for name, value in out.items()]
    spans += [(*_span(value), None) for group in inputs if group is not None for value in group.values()]
    written = read = 0  # ends of the tensors so far; spans in order of their beginnings
    for begin, end, name in sorted((span for span in spans if span[0] < span[1]), key=lambda span: span[:2]):
        if begin < written or (name is not None and begin < read):
            raise ValueError(
                f"a tensor of `out` ({name or 'another'!r}) shares memory with an input or another of `out`; the input "
                "would be lost when this fails half-way. Pass tensors of their own, or no `out`"
            )
        written, read = (max(written, end), read) if name is not None else (written, max(read, end))


def _span(tensor: Tensor) -> tuple[int, int]:
    """Return the first address of a tensor's memory, and the one after its last."""
    begin = tensor.data_ptr()
    if not tensor.numel():
        return begin, begin
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return begin, begin + (last + 1) * tensor.element_size()


def compress(
    theta: Mapping[str, Tensor],
    theta_r: Mapping[str, Tensor],
    error: Mapping[str, Tensor] | None,
    layout: Layout,
    beta: float,
    out: Mapping[str, Tensor] | None = None,
) -> tuple[Update, dict[str, Tensor]]:
    """As reference.compress, the specification. Raises ValueError if a tensor of `out` shares memory with another or
    with an input."""
    _require_apart(out, theta, theta_r, error)
    codec = _codec_for(theta, theta_r, error, out)
    return (codec or reference).compress(theta, theta_r, error, layout, beta, out)


def counted(update: Update) -> Update:
    """Return the update with its level counts, from which its norms follow, if the backend counts them faster."""
    return _chosen.codec.counted(update) if _chosen.codec is not None else update


def parse(plaintext: Records, layout: Layout, trace_bytes: int = 0) -> Update:
    """As wire.parse, or for the dense exchange dense.parse, the specifications. The last `trace_bytes` are the trace,
    which is not looked at."""
    if trace_bytes:
        plaintext = memoryview(plaintext)[:-trace_bytes]
    if isinstance(layout, DenseLayout):
        return (_dense() or dense).parse(plaintext, layout)
    return (_chosen.codec or wire).parse(plaintext, layout)


def parse_submission(peer: PeerId, round: int, plaintext: Records, layout: Layout, trace_bytes: int = 0) -> Submission:
    """As wire.parse_submission, the specification; the same for plaintexts of the dense exchange. The last
    `trace_bytes` are the trace, whose own form is not looked at."""
    if trace_bytes:
        whole = memoryview(plaintext)
        parsed = parse_submission(peer, round, whole[:-trace_bytes], layout)
        return replace(parsed, trace=whole[-trace_bytes:])
    if isinstance(layout, DenseLayout):
        return Submission(peer, round, Digest(bytes(plaintext[:DIGEST_BYTES])), parse(plaintext, layout))
    return (_chosen.codec or wire).parse_submission(peer, round, plaintext, layout)


def outer_step(
    theta: Mapping[str, Tensor],
    updates: Sequence[Update | None],
    state: OuterState,
    *,
    alpha: float,
    aggregate: Aggregate,
    out: Mapping[str, Tensor] | None = None,
) -> tuple[dict[str, Tensor], OuterState, tuple[Scales, ...]]:
    """As outer.outer_step, the specification. Raises ValueError if a tensor of `out` shares memory with another or with
    theta."""
    _require_apart(out, theta)
    codec = _codec_for(theta, out)
    return (codec or outer).outer_step(theta, updates, state, alpha=alpha, aggregate=aggregate, out=out)


def dense_encode(theta: Mapping[str, Tensor], theta_r: Mapping[str, Tensor], layout: DenseLayout) -> DenseUpdate:
    """As dense.encode, the specification. All tensors on the CPU, also for the two functions below."""
    return (_dense() or dense).encode(theta, theta_r, layout)


def dense_mean(updates: Sequence[Update | None], layout: DenseLayout) -> DenseUpdate:
    """As dense.mean, the specification."""
    return (_dense() or dense).mean(updates, layout)


def dense_step(
    theta: Mapping[str, Tensor],
    gradient: Update,
    velocity: Mapping[str, Tensor] | None,
    *,
    alpha: float,
    momentum: float,
    out: Mapping[str, Tensor],
) -> None:
    """As dense.step, the specification. Raises ValueError if a tensor of `out` shares memory with another, with theta
    or velocity."""
    _require_apart(out, theta, velocity)
    (_dense() or dense).step(theta, gradient, velocity, alpha=alpha, momentum=momentum, out=out)


def dense_steps(
    theta: Mapping[str, Tensor],
    layout: DenseLayout,
    parts: Sequence[Update | None],
    velocity: Mapping[str, Tensor] | None,
    *,
    alpha: float,
    momentum: float,
    out: Mapping[str, Tensor],
) -> None:
    """Make the outer step of the int8 exchange, part after part of the mean. None: a part of zeros."""
    begun = Counter[str]()
    for part, found in zip(layout.parts(len(parts)), parts, strict=True):
        spans = {one.name: slice(begun[one.name], begun[one.name] + one.numel) for one in part}
        begun.update({one.name: one.numel for one in part})
        moves = None if velocity is None else _within(velocity, spans)
        mean = found if found is not None else DenseUpdate(part, bytes(part.records_bytes))
        dense_step(_within(theta, spans), mean, moves, alpha=alpha, momentum=momentum, out=_within(out, spans))


def _within(tensors: Mapping[str, Tensor], spans: Mapping[str, slice]) -> dict[str, Tensor]:
    """Return these tensors' values within these spans, as views of one dimension."""
    return {name: tensors[name].view(-1)[span] for name, span in spans.items()}


def _dense() -> DenseCodec | None:
    return None if _chosen.codec is None else DenseCodec(_chosen.codec.isa, _chosen.codec.threads)


def apply_probe(theta: Mapping[str, Tensor], update: Update, factor: Scales, step: float) -> dict[str, Tensor]:
    """As outer.apply_probe, the specification."""
    return (_codec_for(theta) or outer).apply_probe(theta, update, factor, step)


def probe(
    values: Mapping[str, Tensor], update: Update, factor: Scales, step: float, rows: Rows | None = None
) -> Tensor:
    """As outer.probe, the specification."""
    if _on_host(values):
        return (_chosen.codec or outer).probe(values, update, factor, step, rows)
    return outer.probe(values, update, factor, step, rows, (_chosen.codec or outer).moves)


def undo_probe(values: Mapping[str, Tensor], update: Update, kept: Tensor, rows: Rows | None = None) -> None:
    """As outer.undo_probe, the specification."""
    if _on_host(values):
        (_chosen.codec or outer).undo_probe(values, update, kept, rows)
    else:
        outer.undo_probe(values, update, kept, rows, (_chosen.codec or outer).moves)


def restore_to_error_feedback(error: Mapping[str, Tensor], update: Update, sent: Update | None = None) -> None:
    """As feedback.restore_to_error_feedback, the specification."""
    feedback.restore_to_error_feedback(error, update, sent, (_chosen.codec or outer).moves)


def remove_from_error_feedback(error: Mapping[str, Tensor], update: Update) -> None:
    """As feedback.remove_from_error_feedback, the specification."""
    feedback.remove_from_error_feedback(error, update, (_chosen.codec or outer).moves)


def _on_host(values: Mapping[str, Tensor]) -> bool:
    return all(value.device.type == "cpu" for value in values.values())

"""The dense exchange in C++: sparseloco/dense.py's results, bit for bit. CPU tensors only.

It does not decide whether it is used: sparseloco/ops.py does.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from murmur.protocol.layout import CHUNK, DenseLayout
from murmur.protocol.types import DIGEST_BYTES
from sparseloco.dense import TOO_LARGE, DenseUpdate, dense_layout
from sparseloco.floats import NonFinite, destination, require_denormals, tensor_of
from sparseloco.kernels import ISAS, NOT_FINITE, REGION_FIELDS, Call, library, pointers, require_ok, tensor_over
from sparseloco.update import Records, Update
from sparseloco.wire import require_size

_HEIGHT, _K = 1, 1


@dataclass(frozen=True, slots=True)
class DenseCodec:
    """The dense codec for one instruction set and number of threads (0: torch's own). Methods mirror the functions of
    dense.py."""

    isa: str
    threads: int = 0

    def encode(self, theta: Mapping[str, Tensor], theta_r: Mapping[str, Tensor], layout: DenseLayout) -> DenseUpdate:
        require_denormals()
        starts, ends = (
            [_given(group, layout, place) for place in range(len(layout.tensors))] for group in (theta, theta_r)
        )
        records = torch.empty(layout.records_bytes, dtype=torch.uint8)
        call = self._call(layout)
        status = library().murmur_dense_encode(call.plan, pointers(starts), pointers(ends), records.data_ptr())
        if status == NOT_FINITE:
            raise NonFinite(TOO_LARGE)
        require_ok(status)
        return DenseUpdate(layout, records.numpy().data.toreadonly())

    def parse(self, plaintext: Records, layout: DenseLayout) -> DenseUpdate:
        require_size(plaintext, layout)
        update = DenseUpdate(layout, plaintext[DIGEST_BYTES:])
        records, call = tensor_over(update.records), self._call(layout)
        require_ok(library().murmur_dense_validate(call.plan, records.data_ptr()))
        return update

    def mean(self, updates: Sequence[Update | None], layout: DenseLayout) -> DenseUpdate:
        require_denormals()
        present = [tensor_over(update.records) for update in updates if update is not None]
        found = torch.empty(layout.records_bytes, dtype=torch.uint8)
        call = self._call(layout)
        given = (pointers(present), len(present), 1 / len(updates), found.data_ptr())
        require_ok(library().murmur_dense_sum(call.plan, *given))
        return DenseUpdate(layout, found.numpy().data.toreadonly())

    def step(
        self,
        theta: Mapping[str, Tensor],
        gradient: Update,
        velocity: Mapping[str, Tensor] | None,
        *,
        alpha: float,
        momentum: float,
        out: Mapping[str, Tensor],
    ) -> None:
        require_denormals()
        layout, records = dense_layout(gradient), tensor_over(gradient.records)
        before = [_given(theta, layout, place) for place in range(len(layout.tensors))]
        after = [destination(out, tensor) for tensor in layout]
        moving = None if velocity is None else pointers([destination(velocity, tensor) for tensor in layout])
        call = self._call(layout)
        given = (records.data_ptr(), alpha, momentum, pointers(before), moving, pointers(after))
        require_ok(library().murmur_dense_step(call.plan, *given))

    def _call(self, layout: DenseLayout) -> Call:
        """Return the call; keep it until the library has returned, since the plan points into it."""
        threads = self.threads or torch.get_num_threads()
        return Call(*_tables(layout), layout.records_bytes, threads, ISAS.index(self.isa))


def _given(tensors: Mapping[str, Tensor], layout: DenseLayout, place: int) -> Tensor:
    return tensor_of(tensors, layout.tensors[place], torch.float32).contiguous()


@lru_cache(maxsize=4)
def _tables(layout: DenseLayout) -> tuple[Tensor, Tensor]:
    """Return (regions int64 [num, 11] as in struct murmur_region, elements of each tensor int64 [num]): for each tensor
    whole chunks below one another, and the rest."""
    rows: list[tuple[int, ...]] = []
    first = 0
    for number, tensor in enumerate(layout):
        whole, left = divmod(tensor.numel, CHUNK)
        start, record = 0, layout.starts[tensor.name]
        for down, width in ((whole, CHUNK), (1, left)):
            if down and width:
                shape = (down, 1, _HEIGHT, width, _K)
                rows.append((number, first, start, CHUNK, *shape, record, 4 + width))
                first, start, record = first + down, start + down * width, record + down * (4 + width)
    sizes = torch.tensor([tensor.numel for tensor in layout], dtype=torch.int64)
    return torch.tensor(rows, dtype=torch.int64).reshape(-1, REGION_FIELDS), sizes

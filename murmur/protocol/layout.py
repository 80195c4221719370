"""The layout of a model: its tensors in order, their chunks, and the place of each chunk's record in a payload.

Everything here follows from (name, shape) pairs and k alone, without torch, so that the size of a payload is known
before a byte is read (docs/protocol.md sections 2 and 3; chunk sizes: SparseLoCo, arXiv 2508.15706, section 4).

A tensor is seen as a matrix of `rows` x `columns`: 2-D tensors as they are, other ranks flattened by the first
dimension, 1-D tensors as a single row. It is cut into blocks of 64 x 64 (1-D: 1 x 4096), row-major over the tensor;
blocks at the lower and right edge are smaller. One block is one chunk. Blocks of one shape form a `Region`.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from math import prod

CHUNK = 4096
BLOCK = 64
LEVEL_BYTES = 2
SCALE_BYTES = 4
HEAD_BYTES = 4
"""A trace's number of steps."""
VALUE_BYTES = 2
"""A trace's values are bf16: of equal relative precision whatever their size, which differs a thousandfold."""


@dataclass(frozen=True, slots=True)
class TraceShape:
    """The shape of the trace of a round's inner steps (sparseloco/trace.py). `values`: how many of each kind, gradients
    and moves, in the whole trace; 0: there is none. `steps`: of the round."""

    values: int
    steps: int

    @property
    def num_bytes(self) -> int:
        """Fixed for a run, whatever the steps: a payload has one size."""
        return HEAD_BYTES + 2 * VALUE_BYTES * self.values if self.values else 0

    @property
    def places(self) -> int:
        """P: values of either kind that each step shows."""
        return self.values // self.steps


def kept(n: int, k: int) -> int:
    """Return k': how many of a chunk's n >= 1 elements are sent, for k per full chunk of 4096."""
    return min(n, max(1, (n * k + CHUNK // 2) // CHUNK))


def low_bits(n: int, k_kept: int) -> int:
    """Return Elias-Fano's l: low bits stored verbatim for each of k' sorted indices below n."""
    return (n // k_kept).bit_length() - 1


def index_bits(n: int, k_kept: int) -> int:
    """Return the bits of a chunk's index part: unary upper part (ones and one zero a bucket), then k' * l lower
    bits."""
    low = low_bits(n, k_kept)
    return k_kept + ((n + (1 << low) - 1) >> low) + k_kept * low


def record_bytes(n: int, k_kept: int) -> int:
    """Return the bytes of one chunk's record: index bits and 2 code bits a value, padded once to a byte, then two level
    bytes. 82 for a full chunk at k = 64."""
    return (index_bits(n, k_kept) + 2 * k_kept + 7) // 8 + LEVEL_BYTES


@dataclass(frozen=True, slots=True)
class Region:
    """A grid of `down` x `across` blocks of one shape within a tensor.

    Block (i, j) covers rows row + i*height .. and columns column + j*width ..; its record begins at byte
    `offset` + i * `stride` + j * `record_bytes` of the tensor's records; it is chunk number
    `first` + i * `chunk_stride` + j of the tensor.
    """

    row: int
    column: int
    down: int
    across: int
    height: int
    width: int
    k: int
    record_bytes: int
    offset: int
    stride: int
    first: int
    chunk_stride: int

    @property
    def n(self) -> int:
        """Elements of one block."""
        return self.height * self.width


@dataclass(frozen=True)
class TensorLayout:
    """One parameter tensor and its chunks. `offset`: first byte of its records among all records."""

    name: str
    shape: tuple[int, ...]
    k: int
    offset: int
    first_chunk: int

    @property
    def rows(self) -> int:
        return self.shape[0] if len(self.shape) >= 2 else 1

    @property
    def columns(self) -> int:
        return prod(self.shape[1:]) if len(self.shape) >= 2 else prod(self.shape)

    @property
    def numel(self) -> int:
        return prod(self.shape)

    @cached_property
    def regions(self) -> tuple[Region, ...]:
        """At most four, none empty: full blocks, right edge, lower edge, corner."""
        if not self.numel:
            return ()
        block_h, block_w = (BLOCK, BLOCK) if len(self.shape) >= 2 else (1, CHUNK)
        bands = [(0, self.rows // block_h, block_h), (self.rows - self.rows % block_h, 1, self.rows % block_h)]
        spans = [
            (0, self.columns // block_w, block_w),
            (self.columns - self.columns % block_w, 1, self.columns % block_w),
        ]
        bands = [band for band in bands if band[1] and band[2]]
        spans = [span for span in spans if span[1] and span[2]]
        chunk_stride = sum(across for _, across, _ in spans)
        regions: list[Region] = []
        band_offset = band_chunk = 0
        for row, down, height in bands:
            sizes = [record_bytes(height * width, kept(height * width, self.k)) for _, _, width in spans]
            stride = sum(size * across for size, (_, across, _) in zip(sizes, spans, strict=True))
            offset, first = band_offset, band_chunk
            for size, (column, across, width) in zip(sizes, spans, strict=True):
                k_kept = kept(height * width, self.k)
                regions.append(
                    Region(row, column, down, across, height, width, k_kept, size, offset, stride, first, chunk_stride)
                )
                offset, first = offset + size * across, first + across
            band_offset, band_chunk = band_offset + stride * down, band_chunk + chunk_stride * down
        return tuple(regions)

    @cached_property
    def num_chunks(self) -> int:
        return sum(region.down * region.across for region in self.regions)

    @cached_property
    def num_bytes(self) -> int:
        """Bytes of the tensor's records."""
        return sum(region.down * region.across * region.record_bytes for region in self.regions)


@dataclass(frozen=True)
class Layout:
    """All tensors of a model, sorted by name (as UTF-8 bytes), for one k."""

    tensors: tuple[TensorLayout, ...]
    k: int

    @classmethod
    def of(cls, shapes: Mapping[str, tuple[int, ...]] | Iterable[tuple[str, tuple[int, ...]]], k: int) -> "Layout":
        """Return the layout of the named shapes at k values per full chunk, 1 <= k <= 4096. Names are unique."""
        if not 1 <= k <= CHUNK:
            raise ValueError(f"k is {k}; a chunk of {CHUNK} elements keeps 1 to {CHUNK}")
        pairs = sorted(shapes.items() if isinstance(shapes, Mapping) else shapes, key=lambda pair: pair[0].encode())
        if len({name for name, _ in pairs}) != len(pairs):
            raise ValueError("two tensors of a layout have the same name")
        tensors: list[TensorLayout] = []
        offset = first_chunk = 0
        for name, shape in pairs:
            if any(size < 0 for size in shape):
                raise ValueError(f"tensor {name!r} has a negative dimension: {shape}")
            tensor = TensorLayout(name, tuple(shape), k, offset, first_chunk)
            tensors.append(tensor)
            offset, first_chunk = offset + tensor.num_bytes, first_chunk + tensor.num_chunks
        return cls(tuple(tensors), k)

    def __iter__(self) -> Iterator[TensorLayout]:
        return iter(self.tensors)

    @cached_property
    def num_parameters(self) -> int:
        return sum(tensor.numel for tensor in self.tensors)

    @cached_property
    def num_chunks(self) -> int:
        return sum(tensor.num_chunks for tensor in self.tensors)

    @cached_property
    def records_bytes(self) -> int:
        """Bytes of all records; in a plaintext they follow the theta digest."""
        return sum(tensor.num_bytes for tensor in self.tensors)

    def part(self, index: int, count: int) -> "Layout":
        """Return the layout of the `index`-th of a round's `count` payloads: each has all tensors."""
        return self


@dataclass(frozen=True)
class DenseLayout(Layout):
    """The same tensors if every value is sent (sparseloco/dense.py). A tensor's chunks are 4096 consecutive values, the
    last one the rest. A record is an fp32 scale and a byte for each value. `k` is unused.

    A round's payloads are the parts of a mean: consecutive chunks, as many in each as in any other, up to one. Within a
    part, a tensor has one dimension: its values that belong to it."""

    @cached_property
    def starts(self) -> dict[str, int]:
        """First byte of each tensor's records among all records."""
        found, offset = dict[str, int](), 0
        for tensor in self.tensors:
            found[tensor.name] = offset
            offset += dense_bytes(tensor.numel)
        return found

    @cached_property
    def num_chunks(self) -> int:
        return sum(-(-tensor.numel // CHUNK) for tensor in self.tensors)

    @cached_property
    def records_bytes(self) -> int:
        return sum(dense_bytes(tensor.numel) for tensor in self.tensors)

    def part(self, index: int, count: int) -> "DenseLayout":
        return self.parts(count)[index]

    @lru_cache(maxsize=8)  # noqa: B019 - layouts are few, and live as long as the process
    def parts(self, count: int) -> tuple["DenseLayout", ...]:
        """Return the layouts of `count` parts, in order. Parts beyond the number of chunks are empty."""
        borders = [self.num_chunks * part // count for part in range(count + 1)]
        return tuple(self._between(first, last) for first, last in pairwise(borders))

    def _between(self, first: int, last: int) -> "DenseLayout":
        """Return the layout of these chunks."""
        pieces: list[tuple[str, tuple[int, ...]]] = []
        before = 0
        for tensor in self.tensors:
            chunks = -(-tensor.numel // CHUNK)
            begin, end = max(first - before, 0), min(last - before, chunks)
            if begin < end:
                pieces.append((tensor.name, (min(end * CHUNK, tensor.numel) - begin * CHUNK,)))
            before += chunks
        found = Layout.of(pieces, self.k)
        return DenseLayout(found.tensors, found.k)


def dense_bytes(numel: int) -> int:
    """Return the bytes of a tensor's records if every value is sent."""
    return SCALE_BYTES * -(-numel // CHUNK) + numel

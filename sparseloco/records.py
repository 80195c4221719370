"""One chunk's record: bits to integers and back (docs/protocol.md section 3). Only this module knows the bit order.

Bits are numbered from the least significant bit of the record's first byte. For k' sorted indices below n and l =
bit_length(n // k') - 1, in this order:

1. upper part: for each bucket b = 0, 1, .., ceil(n / 2^l) - 1 a one for every index with index >> l == b, then a zero;
2. the lower l bits of every index, in index order, least significant bit first;
3. for every value, in index order: sign bit, magnitude bit;
4. zeros up to a whole byte; then the byte lo, then the byte hi.

Decoding is strict: accepted bytes are always the one encoding of their decoded values. A record cannot contain an index
twice; an index at or above n, or anything else that encoding would not produce, is refused.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from murmur.protocol.errors import InvalidSubmission
from murmur.protocol.layout import LEVEL_BYTES, Region, TensorLayout, index_bits, low_bits
from murmur.protocol.types import Reason
from sparseloco.quantize import Codes

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Chunks:
    """C decoded chunks of one region: `indices` int64 [C, k'] ascending within each row, and their codes."""

    indices: Tensor
    codes: Codes


def window(records: Bytes, tensor: TensorLayout, region: Region) -> Bytes:
    """Return a view [down, across, record_bytes] of a region's records within all records of a layout."""
    start = tensor.offset + region.offset
    end = start + (region.down - 1) * region.stride + region.across * region.record_bytes
    if end > records.size:
        raise ValueError(f"records of {records.size} bytes do not reach the region that ends at {end}")
    return np.lib.stride_tricks.as_strided(
        records[start:end],
        shape=(region.down, region.across, region.record_bytes),
        strides=(region.stride, region.record_bytes, 1),
    )


def encode(chunks: Chunks, region: Region) -> Bytes:
    """Encode C chunks as records, uint8 [C, record_bytes]."""
    indices = chunks.indices.cpu().numpy()
    num_chunks, k = indices.shape
    low, end = low_bits(region.n, k), index_bits(region.n, k)
    bits = np.zeros((num_chunks, 8 * (region.record_bytes - LEVEL_BYTES)), dtype=np.uint8)
    np.put_along_axis(bits, (indices >> low) + np.arange(k), 1, axis=1)
    lower = (indices[:, :, None] >> np.arange(low)) & 1
    bits[:, end - k * low : end] = lower.reshape(num_chunks, k * low)
    bits[:, end : end + 2 * k : 2] = chunks.codes.signs.cpu().numpy()
    bits[:, end + 1 : end + 2 * k : 2] = chunks.codes.magnitudes.cpu().numpy()
    levels = torch.stack((chunks.codes.lo, chunks.codes.hi), dim=1).cpu().numpy()
    return np.concatenate((np.packbits(bits, axis=1, bitorder="little"), levels), axis=1)


def decode(records: Bytes, region: Region) -> Chunks:
    """Inverse of `encode` for uint8 [C, record_bytes]. Raises InvalidSubmission(MALFORMED) for any other bytes."""
    num_chunks, k = records.shape[0], region.k
    low, end = low_bits(region.n, k), index_bits(region.n, k)
    bits = np.unpackbits(records[:, :-LEVEL_BYTES], axis=1, bitorder="little")
    upper = bits[:, : end - k * low]
    _require((upper.sum(axis=1, dtype=np.int64) == k).all(), "a chunk does not hold exactly k' indices")
    _require(not bits[:, end + 2 * k :].any(), "padding bits are not zero")
    position = np.flatnonzero(upper).reshape(num_chunks, k) - upper.shape[1] * np.arange(num_chunks)[:, None]
    lower = bits[:, end - k * low : end].reshape(num_chunks, k, low).astype(np.int64)
    indices = ((position - np.arange(k)) << low) + (lower << np.arange(low)).sum(axis=2)
    _require((indices < region.n).all(), "an index lies outside its chunk")
    _require((indices[:, 1:] > indices[:, :-1]).all(), "indices are not strictly ascending")
    signs, magnitudes = bits[:, end : end + 2 * k : 2], bits[:, end + 1 : end + 2 * k : 2]
    lo, hi = records[:, -2], records[:, -1]
    _require((lo <= hi).all(), "the low level is above the high level")
    _require(not magnitudes[lo == hi].any(), "equal levels must use magnitude bit 0")
    level = np.where(magnitudes, hi[:, None], lo[:, None])
    _require(not signs[level == 0].any(), "a zero level must have sign bit 0")
    return Chunks(torch.from_numpy(indices), Codes(*(_tensor(part) for part in (signs, magnitudes, lo, hi))))


def indices(records: Bytes, n: int, k: int) -> npt.NDArray[np.uint32]:
    """Return the sorted indices of C *valid* records of one size, uint32 [C, k']: several times as fast as `decode`.
    For a record that `decode` would refuse the result is meaningless, or a ValueError."""
    low = low_bits(n, k)
    end = index_bits(n, k) - k * low
    upper = np.unpackbits(records[:, : (end + 7) // 8], axis=1, bitorder="little")[:, :end]
    # numpy lists the ones of bool many times as fast as of bytes.
    found = np.flatnonzero(upper.view(np.bool_)).astype(np.uint32).reshape(-1, k)
    found -= np.arange(0, upper.size, end, dtype=np.uint32)[:, None]
    found -= np.arange(k, dtype=np.uint32)
    found <<= np.uint32(low)
    found |= _fields(records, end + low * np.arange(k), low)
    return found


def signs(records: Bytes, n: int, k: int) -> npt.NDArray[np.uint32]:
    """Return the sign bits of C *valid* records of one size, in index order, uint32 [C, k']."""
    return _fields(records, index_bits(n, k) + 2 * np.arange(k), 1)


def _fields(records: Bytes, start: npt.NDArray[np.int64], width: int) -> npt.NDArray[np.uint32]:
    """Return the numbers of `width` <= 12 bits that begin at the bits `start` of every record, uint32 [C, fields]."""
    size = records.shape[1]
    if size < 4:  # shorter than the words that are read below
        records, size = np.pad(records, ((0, 0), (0, 4 - size))), 4
    records = np.ascontiguousarray(records)
    words = np.ndarray((len(records), size - 3), dtype="<u4", buffer=records, strides=(size, 1))
    # No word begins at the last bytes; the last word contains them in its upper part.
    first = np.minimum(start >> 3, size - 4)
    found: npt.NDArray[np.uint32] = words[:, first]
    found >>= (start - 8 * first).astype(np.uint32)
    found &= np.uint32((1 << width) - 1)
    return found


def _tensor(part: Bytes) -> Tensor:
    return torch.from_numpy(np.array(part))


def _require(holds: Any, otherwise: str) -> None:
    if not holds:
        raise InvalidSubmission(Reason.MALFORMED, otherwise)

"""The 2-bit quantiser: a sign and one of two magnitudes a value, both levels one byte each per chunk.

Level codes (docs/protocol.md section 3): code 0 is zero; code c > 0 is the fp32 with bits (784 + c) << 20, that is 3
mantissa bits, from 1.125 * 2^-29 to 7.5, nothing denormal. Integer arithmetic on fp32 bits only: exp2 and log2 differ
between libraries.

The fit, for the k' kept values v of a chunk in index order, all in fp32, each operation rounded separately:

1. lo = min |v|, hi = max |v|.
2. Four times: split = (lo + hi) * 0.5; the low side is |v| <= split, the high side the rest; each side's level
   becomes its sum divided by its count (as fp32); an empty side keeps its level.
   A sum: value i is added to lane i mod 16, each lane in index order from 0 (values of the other side add +0, which
   changes nothing); then lane j += lane j + 8 for j < 8, then + 4, + 2, + 1.
3. Both levels are rounded to their codes. lo's code never exceeds hi's, although rounding errors may leave lo an ulp
   above hi: a boundary between codes has 5 significant bits, so a count times a boundary is exact, and sums of values
   below a boundary stay below it. With the decoded levels, magnitude bit = |v| > (lo + hi) * 0.5, and 0 when the codes
   are equal.
4. Sign bit = the sign bit of v (so -0.0 is negative), and 0 when the value's level is zero.

Sums of huge values may overflow to infinity: that level saturates at code 255. No operation here can make a NaN.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

LANES = 16
LLOYD_STEPS = 4
_FIRST = 784
_MAGNITUDE = 0x7FFF_FFFF


@dataclass(frozen=True, slots=True)
class Codes:
    """Quantised values of C chunks in canonical form.

    `signs`, `magnitudes`: uint8 [C, k'], 0 or 1; `lo`, `hi`: uint8 [C] level codes.
    """

    signs: Tensor
    magnitudes: Tensor
    lo: Tensor
    hi: Tensor

    def levels(self) -> Tensor:
        """Return the level code of every value, uint8 [C, k']."""
        return torch.where(self.magnitudes.bool(), self.hi[:, None], self.lo[:, None])

    def values(self) -> Tensor:
        """Return the decoded values, fp32 [C, k']."""
        bits = _level_bits(self.levels()) | (self.signs.to(torch.int32) << 31)
        return bits.view(torch.float32)


def level_values(codes: Tensor) -> Tensor:
    """Return fp32 levels of integer codes 0 .. 255."""
    return _level_bits(codes).view(torch.float32)


def level_codes(levels: Tensor) -> Tensor:
    """Return uint8 codes of non-negative fp32 levels (infinity allowed): nearest, halves up; 255 if too large, 0 if
    below code 1."""
    codes = ((levels.view(torch.int32) + (1 << 19)) >> 20) - _FIRST
    return codes.clamp(0, 255).to(torch.uint8)


def fit(values: Tensor) -> Codes:
    """Quantise the kept values of C chunks, finite fp32 [C, k'] in index order, k' >= 1."""
    bits = values.view(torch.int32)
    absolute = (bits & _MAGNITUDE).view(torch.float32)
    lo, hi = absolute.amin(dim=1), absolute.amax(dim=1)
    for _ in range(LLOYD_STEPS):
        high = absolute > _split(lo, hi)[:, None]
        lo, hi = lane_mean(absolute, ~high, lo), lane_mean(absolute, high, hi)
    lo_code, hi_code = level_codes(lo), level_codes(hi)
    high = absolute > _split(level_values(lo_code), level_values(hi_code))[:, None]
    high &= (lo_code != hi_code)[:, None]
    zero = torch.where(high, hi_code[:, None], lo_code[:, None]) == 0
    return Codes(((bits < 0) & ~zero).to(torch.uint8), high.to(torch.uint8), lo_code, hi_code)


def lane_mean(absolute: Tensor, side: Tensor, level: Tensor) -> Tensor:
    """Return the mean of the magnitudes (fp32 [C, k']) on a side (bool [C, k']), summed in the order of step 2 above;
    `level` (fp32 [C]) if the side is empty. fp32 [C]."""
    padded = pad(torch.where(side, absolute, 0.0), (0, -absolute.shape[1] % LANES))
    lanes = padded.view(absolute.shape[0], -1, LANES)
    total = lanes[:, 0]
    for step in range(1, lanes.shape[1]):
        total = total + lanes[:, step]
    width = LANES
    while width > 1:
        width //= 2
        total = total[:, :width] + total[:, width:]
    count = side.sum(dim=1)
    return torch.where(count > 0, total[:, 0] / count.clamp(min=1).to(torch.float32), level)


def _level_bits(codes: Tensor) -> Tensor:
    wide = codes.to(torch.int32)
    return torch.where(wide > 0, (wide + _FIRST) << 20, wide)


def _split(lo: Tensor, hi: Tensor) -> Tensor:
    return (lo + hi) * 0.5

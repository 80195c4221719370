"""A second, naive implementation of the codec and the outer step: chunk by chunk, value by value, in numpy scalars and
Python lists. Written from docs/protocol.md sections 2, 3 and 7; shares no code with sparseloco/ or
murmur/protocol/layout.py.
"""

import struct

import numpy as np

f32 = np.float32


def bits_of(value):
    return struct.unpack("<I", struct.pack("<f", value))[0]


def from_bits(bits):
    return f32(struct.unpack("<f", struct.pack("<I", bits))[0])


def level(code):
    return from_bits(((98 + (code >> 3)) << 23) | ((code & 7) << 20)) if code else f32(0)


def level_code(value):
    return min(255, max(0, ((bits_of(value) + 2**19) >> 20) - 784))


def kept(n, k):
    return min(n, max(1, (n * k + 2048) // 4096))


def chunk_slices(shape):
    """Index expressions of the chunks of a tensor that was reshaped to (rows, columns), in wire order."""
    if len(shape) < 2:
        size = int(np.prod(shape))
        return (1, size), [(slice(0, 1), slice(at, min(at + 4096, size))) for at in range(0, size, 4096)]
    rows, columns = shape[0], int(np.prod(shape[1:]))
    slices = [
        (slice(i, min(i + 64, rows)), slice(j, min(j + 64, columns)))
        for i in range(0, rows, 64)
        for j in range(0, columns, 64)
    ]
    return (rows, columns), slices if rows * columns else []


def lane_sum(values, chosen):
    lanes = [f32(0)] * 16
    for i, value in enumerate(values):
        if chosen[i]:
            lanes[i % 16] = f32(lanes[i % 16] + value)
    for width in (8, 4, 2, 1):
        lanes = [f32(lanes[j] + lanes[j + width]) for j in range(width)]
    return lanes[0]


def quantise(values):
    """(lo code, hi code, [(sign, magnitude)]) of a chunk's kept values."""
    absolute = [f32(abs(value)) for value in values]
    lo, hi = min(absolute), max(absolute)
    for _ in range(4):
        split = f32(f32(lo + hi) * f32(0.5))
        low = [bool(value <= split) for value in absolute]
        high = [not is_low for is_low in low]
        new_lo = f32(lane_sum(absolute, low) / f32(sum(low))) if any(low) else lo
        hi = f32(lane_sum(absolute, high) / f32(sum(high))) if any(high) else hi
        lo = new_lo
    lo_code, hi_code = level_code(lo), level_code(hi)
    split = f32(f32(level(lo_code) + level(hi_code)) * f32(0.5))
    codes = []
    for value, size in zip(values, absolute, strict=True):
        magnitude = int(size > split and lo_code != hi_code)
        sign = bits_of(value) >> 31 if (hi_code if magnitude else lo_code) else 0
        codes.append((sign, magnitude))
    return lo_code, hi_code, codes


def record(n, indices, lo_code, hi_code, codes):
    low = (n // len(indices)).bit_length() - 1
    bits = []
    for bucket in range(-(-n // 2**low)):
        bits += [1 for index in indices if index // 2**low == bucket] + [0]
    for index in indices:
        bits += [(index >> bit) & 1 for bit in range(low)]
    for sign, magnitude in codes:
        bits += [sign, magnitude]
    bits += [0] * (-len(bits) % 8)
    packed = [sum(bits[at + j] << j for j in range(8)) for at in range(0, len(bits), 8)]
    return bytes([*packed, lo_code, hi_code])


def compress(theta, theta_r, error, k, beta):
    """(records, new error, decoded update); all dicts of fp32 arrays by name."""
    records, new_error, decoded = b"", {}, {}
    with np.errstate(over="ignore", under="ignore"):
        for name in sorted(theta):
            shape = theta[name].shape
            acc = (error[name] * f32(beta)).astype(f32) + (theta[name] - theta_r[name])
            matrix, slices = chunk_slices(shape)
            acc = np.array(acc, dtype=f32).reshape(matrix)
            dense = np.zeros(matrix, dtype=f32)
            for where in slices:
                chunk = acc[where].ravel()
                keep = sorted(range(chunk.size), key=lambda i, chunk=chunk: (-abs(float(chunk[i])), i))
                indices = sorted(keep[: kept(chunk.size, k)])
                lo_code, hi_code, codes = quantise([chunk[i] for i in indices])
                records += record(chunk.size, indices, lo_code, hi_code, codes)
                block = np.zeros(chunk.size, dtype=f32)
                for i, (sign, magnitude) in zip(indices, codes, strict=True):
                    size = level(hi_code if magnitude else lo_code)
                    block[i] = -size if sign else size
                dense[where] = block.reshape(dense[where].shape)
            new_error[name] = (acc - dense).reshape(shape)
            decoded[name] = dense.reshape(shape)
    return records, new_error, decoded


def held_positions(shape, records, k):
    """Flat booleans: positions that a tensor's records hold, zero levels included. Decodes the index part alone."""
    matrix, slices = chunk_slices(shape)
    held = np.zeros(matrix, dtype=bool)
    for where in slices:
        n = held[where].size
        num = kept(n, k)
        low = (n // num).bit_length() - 1
        num_bits = num + -(-n // 2**low) + num * low
        size = -(-(num_bits + 2 * num) // 8) + 2
        data, records = records[:size], records[size:]
        bits = [(data[at // 8] >> (at % 8)) & 1 for at in range(num_bits)]
        high, bucket = [], 0
        for bit in bits[: num_bits - num * low]:
            if bit:
                high.append(bucket)
            else:
                bucket += 1
        block = np.zeros(n, dtype=bool)
        for i, bucket in enumerate(high):
            lower = bits[num_bits - num * low + i * low :][:low]
            block[bucket * 2**low + sum(bit << j for j, bit in enumerate(lower))] = True
        held[where] = block.reshape(held[where].shape)
    return held.reshape(shape), records


def aggregate(theta, updates, scales, alpha, k):
    """New theta. updates: (records, decoded dict) or None per contributor; scales: per contributor, per tensor name."""
    remaining = [None if update is None else update[0] for update in updates]
    new_theta = {}
    for name in sorted(theta):
        acc = np.zeros(theta[name].size, dtype=f32)
        for p, update in enumerate(updates):
            if update is None:
                continue
            held, remaining[p] = held_positions(theta[name].shape, remaining[p], k)
            weight = f32(np.float64(alpha) * scales[p][name] / len(updates))
            for j in np.flatnonzero(held):
                acc[j] = f32(acc[j] + f32(weight * update[1][name].flat[j]))
        new = theta[name].ravel().copy()
        for j in range(new.size):
            new[j] = f32(new[j] - acc[j])
        new_theta[name] = new.reshape(theta[name].shape)
    return new_theta

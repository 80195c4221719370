// The codec of docs/protocol.md sections 3 and 7 on a GPU (sm_80 and later): the reference's results, bit for bit.
//
// Tables, tensors, records and results lie in device memory; regions, rules and status codes are those of
// murmur_codec.h, and sparseloco/cuda.py is the caller. Work is queued on the caller's stream and nothing is allocated.
//
// Exactness: built with --fmad=false and without fast math, so that every fp32 operation below is one of the
// specification's, rounded by itself, denormals kept. Floats are added in the specified order by one owner each; atomic
// operations act on integers alone.

#include "../kernels/murmur_codec.h"

namespace {

constexpr uint32_t CHUNK = 4096, SIDE = 64, LANES = 16, LLOYD_STEPS = 4, FIRST_LEVEL = 784;
constexpr uint32_t MAGNITUDE = 0x7FFFFFFF, INFINITE = 0x7F800000;
constexpr uint32_t WARP = 32, EVERY_LANE = 0xFFFFFFFF;
constexpr uint32_t RECORD_WORDS = 516;  // the longest record has 2050 bytes; reading bits touches one word more

typedef unsigned long long Wide;  // the 64-bit integer that atomic operations take

// Regions as murmur_codec.h has them, with blocks of at most 64 x 64 elements, or of one row of at most 4096.
struct Table {
    const murmur_region *regions;
    uint32_t num_regions;
};

struct Compress {
    const float *const *theta;
    const void *const *theta_r;
    const float *const *error;
    float beta;
    float *const *new_error;
    uint8_t *records;
};

struct Aggregate {
    const uint8_t *const *records;
    uint32_t num_payloads, num_tensors;
    const float *weights;
    const float *const *theta;
    float *const *out;
};

// One block: its number, where it lies, and what follows from its n and k. Its rows are seen as at most 64 long.
struct Block {
    uint64_t element, step, record;
    uint32_t number, tensor, n, width, k, low, upper_bits, codes_at, end, bytes;
};

// The block of a number; its n is 0 when there is none.
__device__ void locate(const Table &table, uint32_t number, Block &b) {
    const murmur_region &end = table.regions[table.num_regions - 1];
    b.number = number;
    b.n = 0;
    if (number >= (uint32_t)end.first + (uint32_t)end.down * (uint32_t)end.across) return;
    uint32_t first = 0, last = table.num_regions;
    while (last - first > 1) {
        const uint32_t middle = first + (last - first) / 2;
        (table.regions[middle].first <= number ? first : last) = middle;
    }
    const murmur_region &r = table.regions[first];
    const uint32_t n = (uint32_t)(r.height * r.width), k = (uint32_t)r.k;
    const uint32_t low = 31 - (uint32_t)__clz((int)(n / k)), upper_bits = k + ((n + (1u << low) - 1) >> low);
    b.tensor = (uint32_t)r.tensor;
    b.n = n;
    b.k = k;
    b.low = low;
    b.upper_bits = upper_bits;
    b.codes_at = upper_bits + k * low;
    b.end = upper_bits + k * low + 2 * k;
    b.bytes = (b.end + 7) / 8 + 2;
    const uint32_t place = number - (uint32_t)r.first, across = (uint32_t)r.across;
    const uint32_t down = place / across, right = place % across;
    b.element = r.start + down * r.height * r.row_step + right * r.width;
    b.record = r.record + down * r.record_step + (uint64_t)right * b.bytes;
    b.width = r.height == 1 ? SIDE : (uint32_t)r.width;
    b.step = r.height == 1 ? SIDE : r.row_step;
}

// Whether rows can be read and written four elements at a time; `pointers`: those of all tensors, or-ed.
__device__ bool is_whole(const Block &b, uint64_t pointers) {
    return (b.width | b.n | b.element | b.step) % 4 == 0 && pointers % 16 == 0;
}

__device__ float level_value(uint32_t code) { return code ? __uint_as_float((FIRST_LEVEL + code) << 20) : 0.0f; }

__device__ uint32_t level_code(float level) {
    const int code = (int)((__float_as_uint(level) + (1u << 19)) >> 20) - (int)FIRST_LEVEL;
    return code < 0 ? 0 : code > 255 ? 255 : (uint32_t)code;
}

// Keeps the lowest refused block and its reason.
__device__ void report(Wide *fault, uint32_t number, uint32_t reason) {
    atomicMin(fault, (Wide)number << 8 | reason);
}

// --- compress: 256 threads hold a block in registers, 16 elements each --------------------------------------------

constexpr uint32_t THREADS = 256, WARPS = THREADS / WARP, QUADS = CHUNK / (4 * THREADS);
constexpr uint32_t FIRST_STRIDE = 1u << 18;  // 3 % of a binade: thresholds of neighbouring blocks differ by less

struct Levels {
    uint32_t lo, hi;
};

// Four numbers below 2^16, one for each quad of a thread.
struct Four {
    uint32_t low, high;
    __device__ uint32_t operator[](uint32_t q) const { return (q < 2 ? low : high) >> 16 * (q % 2) & 0xFFFF; }
    __device__ void operator+=(Four other) { low += other.low, high += other.high; }
};

struct Shared {
    float values[CHUNK];  // kept values in index order; later what is left of them
    uint16_t indices[CHUNK];
    uint32_t record[RECORD_WORDS];
    uint32_t counts[2][WARPS];
    Four totals[2][WARPS];
    Block block, next;
    uint32_t guess;  // of the next block's threshold: this one's
    Levels levels;
};

// Thread t holds elements j = 0 .. 3 of quads q = 0 .. 3: row 16 q + t / 16, column 4 (t % 16) + j. That order,
// (q, t, j), is the index order also where a block is smaller and some of these are absent.
struct Held {
    float values[QUADS][4];
    uint32_t present;  // bit 4 q + j
};

// Memory of the size of the model is read once and written once: past the caches (__ldcs, __stcs).
__device__ float4 load(const float *from) { return __ldcs((const float4 *)from); }
__device__ float load_one(const float *from) { return __ldcs(from); }
__device__ float4 load(const uint16_t *from) {  // bf16: the upper half of an fp32
    const uint2 v = __ldcs((const uint2 *)from);
    return {__uint_as_float(v.x << 16), __uint_as_float(v.x & 0xFFFF0000), __uint_as_float(v.y << 16),
            __uint_as_float(v.y & 0xFFFF0000)};
}
__device__ float load_one(const uint16_t *from) { return __uint_as_float((uint32_t)__ldcs(from) << 16); }

// acc = beta * error + (theta - theta_r)
template <class End>
struct Sources {
    const float *theta;
    const End *theta_r;
    const float *error;
    float beta;

    __device__ float sum(float start, float end, float carried) const {
        const float delta = start - end;
        const float decayed = carried * beta;
        return decayed + delta;
    }
};

// The block's acc; absent elements are zero. One whose rows can't be read four elements at a time goes through shared
// memory.
template <class End>
__device__ Held accumulate(Shared &s, const Block &b, const Sources<End> &from, bool whole) {
    const uint32_t row = threadIdx.x / 16, column = 4 * (threadIdx.x % 16);
    Held acc{};
#pragma unroll
    for (uint32_t q = 0; q < QUADS; ++q)
#pragma unroll
        for (uint32_t j = 0; j < 4; ++j) {
            const uint32_t index = (16 * q + row) * b.width + column + j;
            acc.present |= (uint32_t)(column + j < b.width && index < b.n) << (4 * q + j);
        }
    if (whole) {
        float4 start[QUADS]{}, end[QUADS]{}, carried[QUADS]{};
#pragma unroll
        for (uint32_t q = 0; q < QUADS; ++q)  // every load is on its way before the first is needed
            if (acc.present >> 4 * q & 1) {
                const uint64_t at = b.element + (16 * q + row) * b.step + column;
                start[q] = load(from.theta + at), end[q] = load(from.theta_r + at), carried[q] = load(from.error + at);
            }
#pragma unroll
        for (uint32_t q = 0; q < QUADS; ++q) {
            acc.values[q][0] = from.sum(start[q].x, end[q].x, carried[q].x);
            acc.values[q][1] = from.sum(start[q].y, end[q].y, carried[q].y);
            acc.values[q][2] = from.sum(start[q].z, end[q].z, carried[q].z);
            acc.values[q][3] = from.sum(start[q].w, end[q].w, carried[q].w);
        }
    } else {
        for (uint32_t i = threadIdx.x; i < b.n; i += THREADS) {
            const uint64_t at = b.element + i / b.width * b.step + i % b.width;
            s.values[i] = from.sum(load_one(from.theta + at), load_one(from.theta_r + at), load_one(from.error + at));
        }
        __syncthreads();
#pragma unroll
        for (uint32_t q = 0; q < QUADS; ++q)
#pragma unroll
            for (uint32_t j = 0; j < 4; ++j)
                if (acc.present & 1u << (4 * q + j)) acc.values[q][j] = s.values[(16 * q + row) * b.width + column + j];
    }
    return acc;
}

__device__ bool is_finite(const Held &acc) {
    uint32_t largest = 0;
#pragma unroll
    for (uint32_t q = 0; q < QUADS; ++q)
#pragma unroll
        for (uint32_t j = 0; j < 4; ++j) largest = max(largest, __float_as_uint(acc.values[q][j]) & MAGNITUDE);
    return largest < INFINITE;
}

// Sum over the block's threads, the same in all of them. Sums of two neighbouring turns use different memory, so that
// one barrier each is enough.
__device__ uint32_t sum(Shared &s, uint32_t turn, uint32_t mine) {
    uint32_t *counts = s.counts[turn % 2];
    mine = __reduce_add_sync(EVERY_LANE, mine);
    if (threadIdx.x % WARP == 0) counts[threadIdx.x / WARP] = mine;
    __syncthreads();
    uint32_t total = 0;
#pragma unroll
    for (uint32_t warp = 0; warp < WARPS; ++warp) total += counts[warp];
    return total;
}

// How many magnitudes reach a threshold, which is above zero.
__device__ uint32_t reach(const Held &acc, uint32_t threshold) {
    const float least = __uint_as_float(threshold);
    uint32_t count = 0;
#pragma unroll
    for (uint32_t q = 0; q < QUADS; ++q)
#pragma unroll
        for (uint32_t j = 0; j < 4; ++j) count += fabsf(acc.values[q][j]) >= least;
    return count;
}

// Bits of the present elements whose magnitude is at least the threshold.
__device__ uint32_t mark(const Held &acc, uint32_t threshold) {
    uint32_t marks = 0;
#pragma unroll
    for (uint32_t q = 0; q < QUADS; ++q)
#pragma unroll
        for (uint32_t j = 0; j < 4; ++j)
            marks |= (uint32_t)((__float_as_uint(acc.values[q][j]) & MAGNITUDE) >= threshold) << (4 * q + j);
    return marks & acc.present;
}

// For each quad of this thread: how many marked elements of the block stand before it. Has one barrier.
__device__ Four rank(Four *totals, uint32_t marks) {
    const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const Four mine{(uint32_t)(__popc(marks & 0xF) | __popc(marks & 0xF0) << 16),
                    (uint32_t)(__popc(marks & 0xF00) | __popc(marks & 0xF000) << 16)};
    Four before = mine;
#pragma unroll
    for (uint32_t step = 1; step < WARP; step *= 2) {
        const Four other{__shfl_up_sync(EVERY_LANE, before.low, step), __shfl_up_sync(EVERY_LANE, before.high, step)};
        if (lane >= step) before += other;
    }
    if (lane == WARP - 1) totals[warp] = before;
    __syncthreads();
    Four all{};
#pragma unroll
    for (uint32_t other = 0; other < WARPS; ++other) {
        if (other < warp) before += totals[other];
        all += totals[other];
    }
    const uint32_t second = all[0], third = second + all[1], fourth = third + all[2];
    before += {second << 16, third | fourth << 16};
    return {before.low - mine.low, before.high - mine.high};
}

// Bits of the k largest magnitudes, ties to the lowest index. Exact whatever the guess is; a good one saves time. Every
// thread finds the same numbers, so that the barriers inside are met by all.
__device__ uint32_t select(Shared &s, const Held &acc, uint32_t n, uint32_t k, bool *refused) {
    // At least k magnitudes reach `at`, fewer than k reach `above`.
    uint32_t at = 0, above = INFINITE, reach_at = n, reach_above = 0, stride = FIRST_STRIDE;
    uint32_t middle = max(s.guess, 1u), turn = 0;
    uint32_t count = sum(s, turn++, reach(acc, middle) | (uint32_t)!is_finite(acc) << 16);
    *refused = count >> 16;
    if (*refused) return 0;
    while (reach_at != k) {
        if (count >= k)
            at = middle, reach_at = count;
        else
            above = middle, reach_above = count;
        if (reach_at == k || above - at == 1) break;
        // Away from the guess in growing strides until both ends are found, then by halves.
        const uint32_t half = (above - at) / 2;
        const uint32_t step = min(stride, half);
        middle = above == INFINITE ? at + step : at == 0 ? above - step : at + half;
        stride = min(stride * 2, 1u << 30);
        count = sum(s, turn++, reach(acc, middle));
    }
    if (threadIdx.x == 0) s.guess = at;
    uint32_t marks = mark(acc, at);
    if (reach_at != k) {  // `at` is the k-th magnitude, and ties fill up what is left
        const uint32_t over = mark(acc, above), ties = marks & ~over;
        const Four ranks = rank(s.totals[0], ties);
        marks = over;
#pragma unroll
        for (uint32_t q = 0; q < QUADS; ++q) {
            uint32_t place = ranks[q];
#pragma unroll
            for (uint32_t j = 0; j < 4; ++j) {
                const uint32_t bit = ties & 1u << (4 * q + j);
                if (bit && place++ < k - reach_above) marks |= bit;
            }
        }
    }
    return marks;
}

// The two levels of values[0, k), by one warp (sparseloco/quantize.py states the steps): lanes 0 .. 15 sum the low
// side, lanes 16 .. 31 the high side.
__device__ Levels fit(const float *values, uint32_t k) {
    const uint32_t lane = threadIdx.x % WARP;
    const bool sums_high = lane >= LANES;
    uint32_t least = MAGNITUDE, most = 0;
    for (uint32_t i = lane; i < k; i += WARP) {
        const uint32_t magnitude = __float_as_uint(values[i]) & MAGNITUDE;
        least = min(least, magnitude), most = max(most, magnitude);
    }
    float lo = __uint_as_float(__reduce_min_sync(EVERY_LANE, least));
    float hi = __uint_as_float(__reduce_max_sync(EVERY_LANE, most));
    for (uint32_t step = 0; step < LLOYD_STEPS; ++step) {
        const float split = (lo + hi) * 0.5f;
        float total = 0.0f;
        uint32_t count = 0;
        for (uint32_t i = lane % LANES; i < k; i += LANES) {
            const float magnitude = fabsf(values[i]);
            if ((magnitude > split) == sums_high) total = total + magnitude, ++count;
        }
        for (uint32_t width = LANES / 2; width; width /= 2)
            total = total + __shfl_down_sync(EVERY_LANE, total, width, LANES);
        const uint32_t num_high = __reduce_add_sync(EVERY_LANE, sums_high ? count : 0);
        count = sums_high ? num_high : k - num_high;
        const float mean = total / (float)max(count, 1u);
        const float low_mean = __shfl_sync(EVERY_LANE, mean, 0), high_mean = __shfl_sync(EVERY_LANE, mean, LANES);
        if (num_high < k) lo = low_mean;
        if (num_high) hi = high_mean;
    }
    return {level_code(lo), level_code(hi)};
}

// Sets bits of a record; there are at most 16 at once.
__device__ void put(uint32_t *record, uint32_t bit, uint32_t bits) {
    const uint64_t wide = (uint64_t)bits << bit % 32;
    atomicOr(&record[bit / 32], (uint32_t)wide);
    if (wide >> 32) atomicOr(&record[bit / 32 + 1], (uint32_t)(wide >> 32));
}

template <class End>
__global__ void __launch_bounds__(THREADS, 3) compress_kernel(Table table, Compress job, Wide *fault) {
    __shared__ Shared s;
    const uint32_t t = threadIdx.x;
    const Block &b = s.block;
    if (t == 0) {
        locate(table, blockIdx.x, s.next);
        s.guess = 0;
    }
    for (;;) {
        __syncthreads();  // everybody is done with the block before
        if (t == 0) s.block = s.next;
        __syncthreads();
        if (!b.n) return;
        const Sources<End> from{job.theta[b.tensor], (const End *)job.theta_r[b.tensor], job.error[b.tensor], job.beta};
        const bool whole = is_whole(b, (uint64_t)from.theta | (uint64_t)from.theta_r | (uint64_t)from.error |
                                           (uint64_t)job.new_error[b.tensor]);
        Held acc = accumulate(s, b, from, whole);
        bool refused;
        const uint32_t marks = select(s, acc, b.n, b.k, &refused);
        if (refused) {
            if (t == 0) report(fault, b.number, MURMUR_NOT_FINITE);
            return;
        }
        for (uint32_t i = t; i < (b.bytes + 3) / 4; i += THREADS) s.record[i] = 0;
        const Four ranks = rank(s.totals[1], marks);
        const uint32_t width = b.width;
#pragma unroll
        for (uint32_t q = 0; q < QUADS; ++q) {
            uint32_t place = ranks[q], index = (16 * q + t / 16) * width + 4 * (t % 16);
#pragma unroll
            for (uint32_t j = 0; j < 4; ++j, ++index)
                if (marks & 1u << (4 * q + j)) {
                    s.values[place] = acc.values[q][j];
                    s.indices[place++] = (uint16_t)index;
                }
        }
        __syncthreads();
        if (t < WARP) {
            const Levels levels = fit(s.values, b.k);
            if (t == 0) s.levels = levels;
        } else {
            for (uint32_t i = t - WARP; i < b.k; i += THREADS - WARP) {
                const uint32_t index = s.indices[i];
                put(s.record, (index >> b.low) + i, 1);
                put(s.record, b.upper_bits + i * b.low, index & ((1u << b.low) - 1));
            }
            if (t == THREADS - 1) locate(table, b.number + gridDim.x, s.next);
        }
        __syncthreads();
        const Levels levels = s.levels;
        const float lo = level_value(levels.lo), hi = level_value(levels.hi), split = (lo + hi) * 0.5f;
        for (uint32_t i = t; i < b.k; i += THREADS) {
            const float value = s.values[i];
            const bool is_high = fabsf(value) > split && levels.lo != levels.hi;
            const float level = is_high ? hi : lo;
            const bool is_negative = (__float_as_uint(value) >> 31) && level > 0.0f;
            put(s.record, b.codes_at + 2 * i, (uint32_t)is_negative | (uint32_t)is_high << 1);
            s.values[i] = value - (is_negative ? -level : level);
        }
        if (t == 0) put(s.record, 8 * (b.bytes - 2), levels.lo | levels.hi << 8);
        __syncthreads();
        for (uint32_t i = t; i < b.bytes; i += THREADS)
            job.records[b.record + i] = (uint8_t)(s.record[i / 4] >> 8 * (i % 4));
#pragma unroll
        for (uint32_t q = 0; q < QUADS; ++q) {
            uint32_t place = ranks[q];
            const uint32_t here = acc.present >> 4 * q & 0xF;
            float *to = job.new_error[b.tensor] + b.element + (16 * q + t / 16) * b.step + 4 * (t % 16);
#pragma unroll
            for (uint32_t j = 0; j < 4; ++j)
                if (marks & 1u << (4 * q + j)) acc.values[q][j] = s.values[place++];
            const float *from = acc.values[q];
            if (whole) {
                if (here) __stcs((float4 *)to, make_float4(from[0], from[1], from[2], from[3]));
            } else {
#pragma unroll
                for (uint32_t j = 0; j < 4; ++j)
                    if (here & 1u << j) __stcs(to + j, from[j]);
            }
        }
    }
}

// --- decode: one warp a record ------------------------------------------------------------------------------------

// A word of a record at any address, in two halves, so that it can be fetched long before it is needed.
struct Fetched {
    uint32_t first, second, shift;
    __device__ uint32_t word() const { return __funnelshift_r(first, second, shift); }
};

// Whole words are read: those of the payload that hold a byte of the record.
__device__ Fetched fetch(const uint8_t *record, uint32_t bytes, uint32_t number) {
    const uint32_t offset = (uint32_t)((uint64_t)record % 4), words = (offset + bytes + 3) / 4;
    const uint32_t *from = (const uint32_t *)(record - offset);
    return {number < words ? __ldg(from + number) : 0, number + 1 < words ? __ldg(from + number + 1) : 0, 8 * offset};
}

// 32 bits from a place on; `words` has room for one word more.
__device__ uint32_t bits_at(const uint32_t *words, uint32_t bit) {
    return __funnelshift_r(words[bit / 32], words[bit / 32 + 1], bit % 32);
}

struct Decoded {
    uint32_t status, num_high;
    Levels levels;
};

// Strict decoding of one record by a warp; visit(index, code) for every value, the index always below n. The status is
// the same in all lanes: of several reasons the one that murmur_codec.h lists first.
template <class Visit>
__device__ Decoded decode(const uint32_t *words, const Block &b, Visit visit) {
    const uint32_t lane = threadIdx.x % WARP, below = (1u << lane) - 1, mask = (1u << b.low) - 1;
    const uint32_t both = bits_at(words, 8 * (b.bytes - 2));
    const Levels levels{both & 0xFF, both >> 8 & 0xFF};
    uint32_t num_high = 0, ones = 0, reason = ~0u;
    auto refuse = [&reason](uint32_t found) { reason = min(reason, found); };

    for (uint32_t base = 0; base < b.upper_bits; base += 4 * WARP) {  // four bits of the upper part a lane
        const uint32_t position = base + 4 * lane;
        uint32_t four = bits_at(words, position) & 0xF;
        if (position + 4 > b.upper_bits) four &= position < b.upper_bits ? (1u << (b.upper_bits - position)) - 1 : 0;
        // Bit j: whether the bit before bit j is a one, which then stands for an index of the same bucket.
        const uint32_t follows = four << 1 | (position ? bits_at(words, position - 1) & 1 : 0);
        uint32_t i = ones;
#pragma unroll
        for (uint32_t j = 0; j < 4; ++j) {
            const uint32_t lanes = __ballot_sync(EVERY_LANE, four >> j & 1);
            i += (uint32_t)__popc(lanes & below);
            ones += (uint32_t)__popc(lanes);
        }
#pragma unroll
        for (uint32_t j = 0; j < 4; ++j)
            if (four >> j & 1) {
                if (i < b.k) {
                    const uint32_t at = b.upper_bits + i * b.low, lower = bits_at(words, at) & mask;
                    const uint32_t index = (position + j - i) << b.low | lower;
                    const uint32_t code = bits_at(words, b.codes_at + 2 * i) & 3;
                    if (i && follows >> j & 1 && lower <= (bits_at(words, at - b.low) & mask)) refuse(MURMUR_ORDER);
                    if (levels.lo == levels.hi && code & 2) refuse(MURMUR_EQUAL);
                    if (levels.lo == 0 && code == 1) refuse(MURMUR_ZERO);
                    num_high += code >> 1;
                    if (index < b.n)
                        visit(index, code);
                    else
                        refuse(MURMUR_RANGE);
                }
                ++i;
            }
    }
    if (ones != b.k) refuse(MURMUR_COUNT);
    if (b.end % 8 && (bits_at(words, b.end) & ((1u << (8 - b.end % 8)) - 1))) refuse(MURMUR_PADDING);
    if (levels.lo > levels.hi) refuse(MURMUR_LEVELS);
    reason = __reduce_min_sync(EVERY_LANE, reason);
    return {reason == ~0u ? (uint32_t)MURMUR_OK : reason, __reduce_add_sync(EVERY_LANE, num_high), levels};
}

__global__ void __launch_bounds__(WARP)
validate_kernel(Table table, const uint8_t *records, Wide *counts, Wide *fault) {
    __shared__ uint32_t words[RECORD_WORDS];
    const uint32_t lane = threadIdx.x;
    Block b;
    for (locate(table, blockIdx.x, b); b.n; locate(table, b.number + gridDim.x, b)) {
        for (uint32_t i = lane; i < (b.bytes + 3) / 4; i += WARP)
            words[i] = fetch(records + b.record, b.bytes, i).word();
        __syncwarp();
        const Decoded found = decode(words, b, [](uint32_t, uint32_t) {});
        if (found.status != MURMUR_OK) {
            if (lane == 0) report(fault, b.number, found.status);
        } else if (lane < 2) {
            const uint32_t level = lane ? found.levels.hi : found.levels.lo;
            atomicAdd(&counts[b.tensor * 256 + level], (Wide)(lane ? found.num_high : b.k - found.num_high));
        }
        __syncwarp();
    }
}

// --- aggregate: one warp a block, its sums in shared memory -------------------------------------------------------

// The values of one payload go to different elements, and payloads come one after another: no two lanes meet, and the
// order of additions is the payloads'.
template <uint32_t RULE>
__global__ void __launch_bounds__(WARP) aggregate_kernel(Table table, Aggregate job, Wide *fault) {
    __shared__ __align__(16) float acc[CHUNK];
    __shared__ uint32_t words[RECORD_WORDS];
    const uint32_t lane = threadIdx.x;
    for (uint32_t i = lane; i < CHUNK; i += WARP) acc[i] = 0.0f;  // afterwards the move of theta leaves zeros behind
    Block b;
    for (locate(table, blockIdx.x, b); b.n; locate(table, b.number + gridDim.x, b)) {
        Fetched ahead = fetch(job.records[0] + b.record, b.bytes, lane);
        for (uint32_t payload = 0; payload < job.num_payloads; ++payload) {
            const uint8_t *record = job.records[payload] + b.record;
            words[lane] = ahead.word();
            for (uint32_t i = lane + WARP; i < (b.bytes + 3) / 4; i += WARP)
                words[i] = fetch(record, b.bytes, i).word();
            if (payload + 1 < job.num_payloads) ahead = fetch(job.records[payload + 1] + b.record, b.bytes, lane);
            __syncwarp();
            const float weight = job.weights[payload * job.num_tensors + b.tensor];
            const uint32_t both = bits_at(words, 8 * (b.bytes - 2));
            const float lo = level_value(both & 0xFF) * weight, hi = level_value(both >> 8 & 0xFF) * weight;
            const Decoded found = decode(words, b, [&](uint32_t index, uint32_t code) {
                const float size = code & 2 ? hi : lo;
                const float product = code & 1 ? -size : size;
                acc[index] = RULE == MURMUR_PROBE ? product : acc[index] + product;
            });
            if (found.status != MURMUR_OK) {
                if (lane == 0) report(fault, b.number, found.status);
                return;
            }
            __syncwarp();
        }
        const float *theta = job.theta[b.tensor] + b.element;
        float *out = job.out[b.tensor] + b.element;
        if (is_whole(b, (uint64_t)job.theta[b.tensor] | (uint64_t)job.out[b.tensor])) {
            constexpr uint32_t TOGETHER = 8;  // loads on their way at once
            const uint32_t column = 4 * (lane % 16);
            for (uint32_t first = lane / 16; first * b.width < b.n; first += 2 * TOGETHER) {
                float4 v[TOGETHER];
#pragma unroll
                for (uint32_t i = 0; i < TOGETHER; ++i) {
                    const uint32_t row = first + 2 * i;
                    if (column < b.width && row * b.width + column < b.n)
                        v[i] = __ldcs((const float4 *)(theta + row * b.step + column));
                }
#pragma unroll
                for (uint32_t i = 0; i < TOGETHER; ++i) {
                    const uint32_t row = first + 2 * i, index = row * b.width + column;
                    if (column >= b.width || index >= b.n) continue;
                    const float4 total = *(const float4 *)(acc + index);
                    *(float4 *)(acc + index) = {0.0f, 0.0f, 0.0f, 0.0f};
                    const float4 moved = {v[i].x - total.x, v[i].y - total.y, v[i].z - total.z, v[i].w - total.w};
                    __stcs((float4 *)(out + row * b.step + column), moved);
                }
            }
        } else {
            for (uint32_t i = lane; i < b.n; i += WARP) {
                const uint64_t at = i / b.width * b.step + i % b.width;
                __stcs(out + at, __ldcs(theta + at) - acc[i]);
                acc[i] = 0.0f;
            }
        }
    }
}

// --- the host's side ----------------------------------------------------------------------------------------------

// As many blocks of threads as the device holds at once share the table's blocks.
template <class... Parameters>
int launch(void (*kernel)(Table, Parameters...), uint32_t threads, int device, void *stream, Table table,
           Parameters... parameters) {
    if (!table.num_regions) return cudaSuccess;
    int processors, resident;
    cudaError_t error = cudaSetDevice(device);
    if (error == cudaSuccess) error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
    if (error == cudaSuccess)
        error = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                     cudaSharedmemCarveoutMaxShared);
    if (error == cudaSuccess) error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, (int)threads, 0);
    if (error != cudaSuccess) return error;
    cudaLaunchConfig_t how{};
    how.gridDim = dim3((uint32_t)(processors * resident));
    how.blockDim = dim3(threads);
    how.stream = (cudaStream_t)stream;
    return cudaLaunchKernelEx(&how, kernel, table, parameters...);
}

}  // namespace

// Every function queues its work on a stream of a device and returns a cudaError_t. All pointers but `stream` lead to
// device memory; the table of regions is trusted: sparseloco/native.py makes it from a layout. Of payloads, whole
// aligned words are read, those that hold a byte of them. *fault is to be all ones before; where something is refused
// it becomes the lowest such block's number * 256 + its status, and the results are undefined. For the rest see
// murmur_codec.h; here error is never null.
extern "C" {

MURMUR_API uint32_t murmur_cuda_abi(void) { return 1; }

MURMUR_API const char *murmur_cuda_error(int error) { return cudaGetErrorString((cudaError_t)error); }

MURMUR_API int murmur_cuda_compress(int device, void *stream, const murmur_region *regions, uint32_t num_regions,
                                    const float *const *theta, const void *const *theta_r, int theta_r_is_bf16,
                                    const float *const *error, float beta, float *const *new_error, uint8_t *records,
                                    uint64_t *fault) {
    const auto kernel = theta_r_is_bf16 ? compress_kernel<uint16_t> : compress_kernel<float>;
    const Compress job{theta, theta_r, error, beta, new_error, records};
    return launch(kernel, THREADS, device, stream, Table{regions, num_regions}, job, (Wide *)fault);
}

MURMUR_API int murmur_cuda_validate(int device, void *stream, const murmur_region *regions, uint32_t num_regions,
                                    const uint8_t *records, uint64_t *counts, uint64_t *fault) {
    const Table table{regions, num_regions};
    return launch(validate_kernel, WARP, device, stream, table, records, (Wide *)counts, (Wide *)fault);
}

MURMUR_API int murmur_cuda_aggregate(int device, void *stream, const murmur_region *regions, uint32_t num_regions,
                                     const uint8_t *const *records, uint32_t num_payloads, uint32_t num_tensors,
                                     const float *weights, uint32_t rule, const float *const *theta, float *const *out,
                                     uint64_t *fault) {
    const auto kernel = rule == MURMUR_PROBE ? aggregate_kernel<MURMUR_PROBE> : aggregate_kernel<MURMUR_MEAN>;
    const Aggregate job{records, num_payloads, num_tensors, weights, theta, out};
    return launch(kernel, WARP, device, stream, Table{regions, num_regions}, job, (Wide *)fault);
}
}

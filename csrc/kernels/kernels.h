// What the dispatcher (codec.cpp) and the kernels of each instruction set (kernels.inc) share. Private.
#pragma once

#include "murmur_codec.h"

namespace murmur {

constexpr uint32_t CHUNK = 4096;
constexpr uint32_t LANES = 16;
constexpr uint32_t MAX_PAYLOADS = 4096;  // whose inner products are counted together
constexpr uint32_t GROUP = 128;  // blocks that compress reads together

// Values of a block and where they stand in it. One that is full only counts.
template <uint32_t N>
struct List {
    static constexpr uint32_t ROOM = N;
    uint16_t indices[N + 128];
    float values[N + 128];
    uint32_t count;
};
typedef List<384> ShortList;
typedef List<CHUNK> WholeList;

// One record, decoded.
struct Decoded {
    alignas(64) uint16_t indices[CHUNK + 64];
    alignas(64) uint32_t values[CHUNK + 64];  // fp32 or integers
    uint64_t codes[2 * CHUNK / 64 + 2];
    uint32_t lo, hi, num_high;
};

// One thread's memory. Arrays have room for a vector, or a word of candidates, past their end.
struct alignas(64) Scratch {
    float acc[CHUNK + 64];
    ShortList found[GROUP];
    WholeList all;  // of the one block whose first list was of no use
    float values[CHUNK + 64];
    uint32_t magnitudes[CHUNK + 64];
    int32_t numbers[CHUNK + 64];  // one payload's, for inner products
    uint16_t indices[CHUNK + 64];
    Decoded decoded[2];
    // Of a full block: where the ones of its upper part are, and the lower parts of its indices.
    alignas(64) uint8_t places[128 + 64], lows[64];
    uint64_t codes[2 * CHUNK / 64 + 2];
    uint64_t upper[2 * CHUNK / 64 + 2];
    uint8_t record[2 * CHUNK / 8 + 2 * CHUNK / 8 + 64];
    // The running average of the blocks' thresholds (fp32 bits), and how far below it the next one is guessed to be at
    // least: speed only.
    uint32_t typical, slack;
};

// The numbers that follow from a block's n and k (docs/protocol.md section 3).
struct Shape {
    uint32_t n, k, low, buckets, upper_bits, codes_at, end, bytes;

    Shape(uint32_t elements, uint32_t kept) : n(elements), k(kept), low(0) {
        while ((n / k) >> (low + 1)) ++low;
        buckets = (n + (1u << low) - 1) >> low;
        upper_bits = k + buckets;
        codes_at = upper_bits + k * low;
        end = codes_at + 2 * k;
        bytes = (end + 7) / 8 + 2;
    }
};

struct Compress {
    const float *const *theta;
    const void *const *theta_r;
    bool bf16;
    const float *const *error;
    float beta;
    float *const *new_error;
    uint8_t *records;
};

struct Aggregate {
    const uint8_t *const *records;
    uint64_t num_payloads, num_tensors;
    const float *weights;
    uint32_t rule;
    const float *const *theta;
    float *const *out;
};

struct Products {
    const uint8_t *const *records;
    uint64_t num_payloads, num_tensors;
    const int32_t *numbers;
    int64_t *products;
};

struct Probe {
    const murmur_region *regions;
    const uint8_t *records;
    const float *weights;
    const uint64_t *begin, *end;
    float *const *values;
    const uint64_t *places;
    float *kept;
    bool undo;
    int64_t *elements;  // given: list what would be done, moves in `kept`, and change nothing
};

struct DenseEncode {
    const float *const *theta, *const *theta_r;
    uint8_t *records;
};

struct DenseSum {
    const uint8_t *const *records;
    uint64_t num_payloads;
    float weight;
    uint8_t *sum;
};

struct DenseStep {
    const uint8_t *records;
    float alpha, momentum;
    const float *const *theta;
    float *const *velocity;  // null: no momentum
    float *const *out;
};

// Each works on blocks [begin, end) of one region, in order, and stops at the first that fails (*at).
struct Kernels {
    int (*compress)(const murmur_region &, uint64_t begin, uint64_t end, const Compress &, Scratch &, uint64_t *at);
    int (*validate)(const murmur_region &, uint64_t begin, uint64_t end, const uint8_t *records, uint64_t *counts,
                    Scratch &, uint64_t *at);
    int (*aggregate)(const murmur_region &, uint64_t begin, uint64_t end, const Aggregate &, Scratch &, uint64_t *at);
    int (*products)(const murmur_region &, uint64_t begin, uint64_t end, const Products &, Scratch &, uint64_t *at);
    int (*probe)(const murmur_region &, uint64_t begin, uint64_t end, const Probe &, Scratch &, uint64_t *at);
    int (*dense_encode)(const murmur_region &, uint64_t begin, uint64_t end, const DenseEncode &, Scratch &,
                        uint64_t *at);
    int (*dense_validate)(const murmur_region &, uint64_t begin, uint64_t end, const uint8_t *records, uint64_t *at);
    int (*dense_sum)(const murmur_region &, uint64_t begin, uint64_t end, const DenseSum &, Scratch &, uint64_t *at);
    int (*dense_step)(const murmur_region &, uint64_t begin, uint64_t end, const DenseStep &, uint64_t *at);
};

extern const Kernels plain_kernels;
#ifdef __x86_64__
extern const Kernels avx2_kernels, avx512_kernels;
#endif

}  // namespace murmur

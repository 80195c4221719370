/* The codec of docs/protocol.md sections 3 and 7 on raw memory: the contract between the kernels and whoever calls them.
 *
 * Nothing here knows of torch or Python, allocates memory that grows with the model, or keeps a pointer after it
 * returns. Every function first validates its plan and then acts. Results have the same bits for every instruction set
 * and number of threads; sparseloco/reference.py is the specification.
 */
#ifndef MURMUR_CODEC_H
#define MURMUR_CODEC_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MURMUR_ABI 5
#define MURMUR_API __attribute__((visibility("default")))

/* What a function returns. From MURMUR_COUNT on: why a record is malformed. */
enum murmur_status {
    MURMUR_OK = 0,
    MURMUR_BAD_PLAN = 1,   /* the caller's fault; nothing was read or written */
    MURMUR_NOT_FINITE = 2, /* a NaN or an infinity in beta * e + delta; outputs are undefined */
    MURMUR_COUNT = 10,     /* not exactly k ones in the upper part */
    MURMUR_PADDING = 11,   /* padding bits that are not zero */
    MURMUR_RANGE = 12,     /* an index at or above n */
    MURMUR_ORDER = 13,     /* indices that are not strictly ascending */
    MURMUR_LEVELS = 14,    /* lo above hi */
    MURMUR_EQUAL = 15,     /* equal levels with a magnitude bit */
    MURMUR_ZERO = 16,      /* a sign on a zero level */
    MURMUR_SCALE = 17,     /* dense: a scale that is neither 0 nor within 2^-126 .. 2^64 */
    MURMUR_CODE = 18,      /* dense: code -128 */
    MURMUR_SPREAD = 19     /* dense: no code of 127 or -127, or codes in a chunk of zeros */
};

enum murmur_isa { MURMUR_PLAIN = 0, MURMUR_AVX2 = 1, MURMUR_AVX512 = 2 };

enum murmur_rule {
    MURMUR_MEAN = 0, /* out = theta - sum of w * v */
    MURMUR_PROBE = 2 /* one payload: out = theta - w * v, without a sum that starts at +0 */
};

/* A grid of down x across blocks of one shape in a tensor (murmur/protocol/layout.py, Region). Block (i, j) begins at element
 * start + i * height * row_step + j * width; its rows lie row_step elements apart; its record begins at byte
 * record + i * record_step + j * (size of a record). A block is at most 64 wide, or one row. */
typedef struct murmur_region {
    uint64_t tensor;
    uint64_t first; /* blocks of all regions before this one in the table */
    uint64_t start, row_step;
    uint64_t down, across, height, width;
    uint64_t k; /* values kept of the height * width <= 4096 elements of a block */
    uint64_t record, record_step;
} murmur_region;

typedef struct murmur_plan {
    const murmur_region *regions;
    uint64_t num_regions;
    const uint64_t *tensor_elements; /* [num_tensors] */
    uint64_t num_tensors;
    uint64_t records_bytes; /* of all records of one payload */
    void *scratch;          /* threads * murmur_scratch_bytes(), 64-byte aligned */
    uint64_t scratch_bytes;
    uint32_t threads; /* at least 1; the calling thread is one of them */
    uint32_t isa;     /* enum murmur_isa, one that murmur_supports */
} murmur_plan;

MURMUR_API uint32_t murmur_abi(void);
/* Scratch memory of one thread, in bytes. */
MURMUR_API uint64_t murmur_scratch_bytes(void);
/* Whether the calling thread keeps denormal numbers, which its threads inherit: one that flushes them to zero must
 * not compress or aggregate. */
MURMUR_API int murmur_keeps_denormals(void);
/* Whether this build and this processor have the instruction set. */
MURMUR_API int murmur_supports(uint32_t isa);

/* acc = beta * error + (theta - theta_r); the records of its Top-k; new_error = acc - what the records decode to.
 * Arrays are [num_tensors] pointers to contiguous tensors. theta_r is bf16 when theta_r_is_bf16, else fp32; error may
 * be null (zeros); new_error may be error itself. */
MURMUR_API int murmur_compress(const murmur_plan *plan, const float *const *theta, const void *const *theta_r,
                               int theta_r_is_bf16, const float *const *error, float beta, float *const *new_error,
                               uint8_t *records);

/* Strict decoding of strangers' records. records: [num_payloads] pointers. counts: uint64 [num_payloads][num_tensors]
 * [256], to which the number of values of each level code is added. status: for each payload MURMUR_OK, or why it is
 * malformed; its counts are then undefined, and fault has the number of its lowest malformed block in the table. */
MURMUR_API int murmur_validate(const murmur_plan *plan, const uint8_t *const *records, uint64_t num_payloads,
                               uint64_t *counts, int32_t *status, uint64_t *fault);

/* out = theta moved by payloads in the given order. records: [num_payloads] pointers; weights: fp32
 * [num_payloads][num_tensors]. out may be theta itself. A malformed record stops it with its reason, out then being
 * undefined: validate first. */
MURMUR_API int murmur_aggregate(const murmur_plan *plan, const uint8_t *const *records, uint64_t num_payloads,
                                const float *weights, uint32_t rule, const float *const *theta, float *const *out);

/* Exact inner products of payloads in integers: a value counts what `numbers`, int32 [num_payloads][num_tensors][256]
 * of at most 2^15, say of its level code, and its sign. products: int64 [num_tensors][num_payloads][num_payloads], to
 * whose lower triangle and diagonal they are added. At most 4096 payloads. A malformed record stops it with its
 * reason. */
MURMUR_API int murmur_products(const murmur_plan *plan, const uint8_t *const *records, uint64_t num_payloads,
                               const int32_t *numbers, int64_t *products);

/* One payload applied in place and taken back: for the values that it has, value = value - w * v, with what they were
 * before in `kept`; and, with `undo`, value = kept. weights: fp32 [num_tensors]. values: [num_tensors] pointers to
 * elements begin <= element < end of each tensor, [num_tensors] each; others stay as they are. kept: a float for each
 * value of the payload, those of region i from places[i] on. A malformed record stops it with its reason, values then
 * being undefined: validate first. */
MURMUR_API int murmur_probe(const murmur_plan *plan, const uint8_t *records, const float *weights,
                            const uint64_t *begin, const uint64_t *end, float *const *values, const uint64_t *places,
                            float *kept, int undo);

/* What murmur_probe would do, for values in memory that is not the CPU's: of each value of the payload, in the order of
 * `kept`, its place counted from `begin` of its tensor, -1 for one that is not within begin .. end, and w * v. moves
 * of those with -1 are undefined. A malformed record stops it with its reason. */
MURMUR_API int murmur_moves(const murmur_plan *plan, const uint8_t *records, const float *weights,
                            const uint64_t *begin, const uint64_t *end, const uint64_t *places, int64_t *elements,
                            float *moves);

/* The dense exchange (sparseloco/dense.py). Its plans have regions of height 1 whose record is an fp32 scale and one
 * int8 code for each of the block's elements; k is not looked at.
 *
 * The records of theta - theta_r, both [num_tensors] pointers to fp32. MURMUR_NOT_FINITE where a value is not finite, or
 * above 127 * 2^64. */
MURMUR_API int murmur_dense_encode(const murmur_plan *plan, const float *const *theta, const float *const *theta_r,
                                   uint8_t *records);

/* Strict decoding of one payload: why its lowest malformed block is that, or MURMUR_OK. */
MURMUR_API int murmur_dense_validate(const murmur_plan *plan, const uint8_t *records);

/* The records of weight * (payload + payload + ..), added in the given order from +0 on, in fp32. records:
 * [num_payloads] pointers, at most 4096; weight: at most 1. A malformed record stops it with its reason. */
MURMUR_API int murmur_dense_sum(const murmur_plan *plan, const uint8_t *const *records, uint64_t num_payloads,
                                float weight, uint8_t *sum);

/* out = theta - alpha * g with g decoded from records; with `velocity`, which changes in place, Nesterov's:
 * velocity = momentum * velocity + g; out = theta - alpha * (g + momentum * velocity). out may be theta itself. A
 * malformed record stops it with its reason, outputs then being undefined: validate first. */
MURMUR_API int murmur_dense_step(const murmur_plan *plan, const uint8_t *records, float alpha, float momentum,
                                 const float *const *theta, float *const *velocity, float *const *out);

#ifdef __cplusplus
}
#endif
#endif

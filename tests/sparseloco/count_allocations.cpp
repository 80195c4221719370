// Counts calls of malloc and its kind during compress and aggregate, for a small and a large model, with 1 and 2
// threads. Prints lines "threads model count".
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "murmur_codec.h"

static long num_allocations;

extern "C" {
void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);
void *malloc(size_t size) { return __atomic_fetch_add(&num_allocations, 1, __ATOMIC_RELAXED), __libc_malloc(size); }
void *calloc(size_t n, size_t size) {
    return __atomic_fetch_add(&num_allocations, 1, __ATOMIC_RELAXED), __libc_calloc(n, size);
}
void *realloc(void *old, size_t size) {
    return __atomic_fetch_add(&num_allocations, 1, __ATOMIC_RELAXED), __libc_realloc(old, size);
}
void *aligned_alloc(size_t alignment, size_t size) {
    return __atomic_fetch_add(&num_allocations, 1, __ATOMIC_RELAXED), __libc_memalign(alignment, size);
}
}

static long allocations(uint32_t threads, uint64_t across) {
    const uint64_t elements = 64 * 64 * across;
    std::vector<float> theta(elements), theta_r(elements), error(elements);
    for (uint64_t i = 0; i < elements; ++i) theta[i] = (float)(i * 2654435761u % 65536) * 1e-6f;
    std::vector<uint8_t> records(82 * across);
    void *scratch = std::aligned_alloc(64, threads * murmur_scratch_bytes());
    const murmur_region region{0, 0, 0, 64 * across, 1, across, 64, 64, 64, 0, 82 * across};
    const float *theta_at = theta.data();
    const void *theta_r_at = theta_r.data();
    float *error_at = error.data();
    const uint8_t *records_at = records.data();
    const float weight = 1;
    std::vector<uint64_t> counts(256);
    uint64_t fault;
    int32_t status;
    long before = 0;
    for (int round = 0; round < 2; ++round) {  // the first warms the C library's own caches of threads
        before = __atomic_load_n(&num_allocations, __ATOMIC_RELAXED);
        for (uint32_t isa = 0; isa < 3; ++isa) {
            if (!murmur_supports(isa)) continue;
            const murmur_plan plan{&region, 1, &elements, 1, records.size(), scratch,
                                   threads * murmur_scratch_bytes(), threads, isa};
            if (murmur_compress(&plan, &theta_at, &theta_r_at, 0, &error_at, 0.95f, &error_at, records.data()) ||
                murmur_validate(&plan, &records_at, 1, counts.data(), &status, &fault) || status ||
                murmur_aggregate(&plan, &records_at, 1, &weight, MURMUR_MEAN, &theta_at, &error_at))
                std::abort();
        }
    }
    const long found = __atomic_load_n(&num_allocations, __ATOMIC_RELAXED) - before;
    std::free(scratch);
    return found;
}

int main() {
    for (uint32_t threads = 1; threads <= 2; ++threads) {
        std::printf("%u small %ld\n", threads, allocations(threads, 80));
        std::printf("%u large %ld\n", threads, allocations(threads, 2000));
    }
}

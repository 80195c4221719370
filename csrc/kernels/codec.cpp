// The contract of murmur_codec.h: validates a plan, chooses the instruction set, and shares the blocks among threads.

#include <atomic>
#include <cstring>
#include <thread>

#include "kernels.h"

namespace murmur {
namespace {

// Blocks that a thread takes at once. Many: long rows, and guesses that live long enough; few: no thread waits at the
// end.
constexpr uint64_t MOST = 128, LEAST = 16, TURNS = 8;
// The same for validation, which goes through one payload after another.
constexpr uint64_t MOST_VALIDATED = 1024;
constexpr uint32_t MAX_THREADS = 1024;

const Kernels *kernels_for(uint32_t isa) {
    if (!murmur_supports(isa)) return nullptr;
#ifdef __x86_64__
    if (isa == MURMUR_AVX512) return &avx512_kernels;
    if (isa == MURMUR_AVX2) return &avx2_kernels;
#endif
    return &plain_kernels;
}

uint64_t blocks_of(const murmur_region &region) { return region.down * region.across; }

uint64_t blocks_of(const murmur_plan &plan) {
    if (!plan.num_regions) return 0;
    const murmur_region &last = plan.regions[plan.num_regions - 1];
    return last.first + blocks_of(last);
}

// a * b + c, or false when it overflows.
bool multiply_add(uint64_t a, uint64_t b, uint64_t c, uint64_t *result) {
    return !__builtin_mul_overflow(a, b, result) && !__builtin_add_overflow(*result, c, result);
}

// Whether every element and record byte that the region names lies inside its tensor and the records.
bool fits(const murmur_region &r, const murmur_plan &plan, uint64_t first, bool dense) {
    if (r.tensor >= plan.num_tensors || r.first != first) return false;
    if (!r.down || !r.across || !r.height || !r.width || r.height > CHUNK || r.width > CHUNK) return false;
    if (r.height > 1 && r.width > 64) return false;
    const uint64_t n = r.height * r.width;
    if (n > CHUNK || !r.k || r.k > n || (dense && r.height > 1)) return false;
    const uint64_t record = dense ? sizeof(float) + n : Shape((uint32_t)n, (uint32_t)r.k).bytes;
    uint64_t rows, row_end, elements, row_bytes, bytes, blocks;
    return multiply_add(r.across, r.width, 0, &row_end) && (r.down * r.height == 1 || row_end <= r.row_step) &&
           multiply_add(r.down, r.height, 0, &rows) && multiply_add(rows - 1, r.row_step, row_end, &elements) &&
           !__builtin_add_overflow(elements, r.start, &elements) && elements <= plan.tensor_elements[r.tensor] &&
           multiply_add(r.across, record, 0, &row_bytes) && (r.down == 1 || row_bytes <= r.record_step) &&
           multiply_add(r.down - 1, r.record_step, row_bytes, &bytes) &&
           !__builtin_add_overflow(bytes, r.record, &bytes) && bytes <= plan.records_bytes &&
           multiply_add(r.down, r.across, first, &blocks);
}

// dense: whether its records are those of the dense exchange.
bool is_valid(const murmur_plan &plan, bool dense = false) {
    if (!plan.threads || plan.threads > MAX_THREADS || !kernels_for(plan.isa)) return false;
    if ((uintptr_t)plan.scratch % alignof(Scratch) || plan.scratch_bytes / sizeof(Scratch) < plan.threads) return false;
    uint64_t first = 0;
    for (uint64_t i = 0; i < plan.num_regions; ++i) {
        if (!fits(plan.regions[i], plan, first, dense)) return false;
        first += blocks_of(plan.regions[i]);
    }
    return true;
}

const murmur_region *region_at(const murmur_plan &plan, uint64_t block) {
    uint64_t low = 0, high = plan.num_regions;
    while (high - low > 1) {
        const uint64_t middle = low + (high - low) / 2;
        (plan.regions[middle].first <= block ? low : high) = middle;
    }
    return plan.regions + low;
}

struct Lock {
    std::atomic_flag taken = ATOMIC_FLAG_INIT;

    struct Held {
        Lock &lock;
        explicit Held(Lock &given) : lock(given) {
            while (lock.taken.test_and_set(std::memory_order_acquire)) {}
        }
        ~Held() { lock.taken.clear(std::memory_order_release); }
    };
};

// work(region, begin, end, scratch, &at) on all blocks, a grain at a time, on plan.threads threads of which the caller
// is one. Returns the status of the lowest failing block.
template <class Work>
int run(const murmur_plan &plan, Work work, uint64_t most = MOST) {
    const uint64_t num_blocks = blocks_of(plan);
    const uint64_t fair = num_blocks / plan.threads / TURNS;
    const uint64_t grain = fair < LEAST ? LEAST : fair > most ? most : fair;
    const uint64_t useful = (num_blocks + grain - 1) / grain;
    const uint32_t threads = useful < plan.threads ? (uint32_t)(useful ? useful : 1) : plan.threads;
    std::atomic<uint64_t> next{0}, lowest{UINT64_MAX};
    std::atomic<int> status{MURMUR_OK};
    Lock lock;

    auto body = [&](uint32_t thread) {
        Scratch &scratch = static_cast<Scratch *>(plan.scratch)[thread];
        scratch.typical = 0;
        scratch.slack = 1u << 20;
        for (;;) {
            const uint64_t begin = next.fetch_add(grain, std::memory_order_relaxed);
            if (begin >= num_blocks || begin > lowest.load(std::memory_order_relaxed)) return;
            const uint64_t end = begin + grain < num_blocks ? begin + grain : num_blocks;
            const murmur_region *region = region_at(plan, begin);
            for (uint64_t at = begin; at < end; ++region) {
                const uint64_t stop = region->first + blocks_of(*region) < end ? region->first + blocks_of(*region) : end;
                uint64_t failed = 0;
                const int found = work(*region, at - region->first, stop - region->first, scratch, &failed);
                if (found != MURMUR_OK) {
                    const Lock::Held held(lock);
                    if (region->first + failed < lowest.load()) {
                        lowest.store(region->first + failed);
                        status.store(found);
                    }
                    return;
                }
                at = stop;
            }
        }
    };
    struct Team {
        std::thread members[MAX_THREADS];
        uint32_t size = 0;
        ~Team() {
            for (uint32_t i = 0; i < size; ++i) members[i].join();
        }
    };
    {
        Team team;
        for (uint32_t i = 1; i < threads; ++i) {
            try {
                team.members[team.size] = std::thread(body, i);
            } catch (...) {
                break;  // fewer threads than wished: the others do the work
            }
            ++team.size;
        }
        body(0);
    }
    return status.load();
}

int probed(const murmur_plan &plan, const Probe &job) {
    if (!is_valid(plan)) return MURMUR_BAD_PLAN;
    for (uint64_t i = 0; i < plan.num_tensors; ++i)
        if (job.begin[i] > job.end[i] || job.end[i] > plan.tensor_elements[i]) return MURMUR_BAD_PLAN;
    const Kernels *kernels = kernels_for(plan.isa);
    return run(plan, [&](const murmur_region &region, uint64_t from, uint64_t to, Scratch &scratch, uint64_t *at) {
        return kernels->probe(region, from, to, job, scratch, at);
    });
}

}  // namespace
}  // namespace murmur

using namespace murmur;

uint32_t murmur_abi(void) { return MURMUR_ABI; }

uint64_t murmur_scratch_bytes(void) { return sizeof(Scratch); }

int murmur_keeps_denormals(void) {
    volatile float tiny = 0x1p-140f;
    const volatile float half = tiny * 0.5f;
    uint32_t bits;
    const float found = half;
    std::memcpy(&bits, &found, sizeof bits);
    return bits != 0;
}

int murmur_supports(uint32_t isa) {
#ifdef __x86_64__
    const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") &&
                          __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("popcnt");
    if (isa == MURMUR_AVX2) return has_avx2;
    if (isa == MURMUR_AVX512)
        return has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
               __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vbmi2");
#endif
    return isa == MURMUR_PLAIN;
}

int murmur_compress(const murmur_plan *plan, const float *const *theta, const void *const *theta_r,
                    int theta_r_is_bf16, const float *const *error, float beta, float *const *new_error,
                    uint8_t *records) {
    if (!is_valid(*plan)) return MURMUR_BAD_PLAN;
    const Compress job{theta, theta_r, theta_r_is_bf16 != 0, error, beta, new_error, records};
    const Kernels *kernels = kernels_for(plan->isa);
    return run(*plan, [&](const murmur_region &region, uint64_t begin, uint64_t end, Scratch &scratch, uint64_t *at) {
        return kernels->compress(region, begin, end, job, scratch, at);
    });
}

int murmur_validate(const murmur_plan *plan, const uint8_t *const *records, uint64_t num_payloads, uint64_t *counts,
                    int32_t *status, uint64_t *fault) {
    if (!is_valid(*plan)) return MURMUR_BAD_PLAN;
    for (uint64_t i = 0; i < num_payloads; ++i) status[i] = MURMUR_OK, fault[i] = UINT64_MAX;
    const Kernels *kernels = kernels_for(plan->isa);
    Lock lock;
    auto work = [&](const murmur_region &region, uint64_t begin, uint64_t end, Scratch &scratch, uint64_t *) {
        for (uint64_t i = 0; i < num_payloads; ++i) {
            if (__atomic_load_n(&fault[i], __ATOMIC_RELAXED) < region.first + begin) continue;
            uint64_t found[256] = {}, at = 0;
            const int bad = kernels->validate(region, begin, end, records[i], found, scratch, &at);
            if (bad != MURMUR_OK) {
                const Lock::Held held(lock);
                if (region.first + at < fault[i]) {
                    __atomic_store_n(&fault[i], region.first + at, __ATOMIC_RELAXED);
                    status[i] = bad;
                }
                continue;
            }
            uint64_t *own = counts + (i * plan->num_tensors + region.tensor) * 256;
            for (int code = 0; code < 256; ++code)
                if (found[code]) __atomic_fetch_add(&own[code], found[code], __ATOMIC_RELAXED);
        }
        return (int)MURMUR_OK;
    };
    return run(*plan, work, MOST_VALIDATED);
}

int murmur_aggregate(const murmur_plan *plan, const uint8_t *const *records, uint64_t num_payloads,
                     const float *weights, uint32_t rule, const float *const *theta, float *const *out) {
    if (!is_valid(*plan) || (rule != MURMUR_MEAN && rule != MURMUR_PROBE) || (rule == MURMUR_PROBE && num_payloads != 1) || !num_payloads)
        return MURMUR_BAD_PLAN;
    const Aggregate job{records, num_payloads, plan->num_tensors, weights, rule, theta, out};
    const Kernels *kernels = kernels_for(plan->isa);
    return run(*plan, [&](const murmur_region &region, uint64_t begin, uint64_t end, Scratch &scratch, uint64_t *at) {
        return kernels->aggregate(region, begin, end, job, scratch, at);
    });
}

int murmur_products(const murmur_plan *plan, const uint8_t *const *records, uint64_t num_payloads,
                    const int32_t *numbers, int64_t *products) {
    if (!is_valid(*plan) || num_payloads > MAX_PAYLOADS) return MURMUR_BAD_PLAN;
    const Products job{records, num_payloads, plan->num_tensors, numbers, products};
    const Kernels *kernels = kernels_for(plan->isa);
    return run(*plan, [&](const murmur_region &region, uint64_t begin, uint64_t end, Scratch &scratch, uint64_t *at) {
        return kernels->products(region, begin, end, job, scratch, at);
    });
}

int murmur_probe(const murmur_plan *plan, const uint8_t *records, const float *weights, const uint64_t *begin,
                 const uint64_t *end, float *const *values, const uint64_t *places, float *kept, int undo) {
    return probed(*plan, Probe{plan->regions, records, weights, begin, end, values, places, kept, undo != 0, nullptr});
}

int murmur_moves(const murmur_plan *plan, const uint8_t *records, const float *weights, const uint64_t *begin,
                 const uint64_t *end, const uint64_t *places, int64_t *elements, float *moves) {
    return probed(*plan, Probe{plan->regions, records, weights, begin, end, nullptr, places, moves, false, elements});
}

int murmur_dense_encode(const murmur_plan *plan, const float *const *theta, const float *const *theta_r,
                        uint8_t *records) {
    if (!is_valid(*plan, true)) return MURMUR_BAD_PLAN;
    const DenseEncode job{theta, theta_r, records};
    const Kernels *kernels = kernels_for(plan->isa);
    return run(*plan, [&](const murmur_region &region, uint64_t begin, uint64_t end, Scratch &scratch, uint64_t *at) {
        return kernels->dense_encode(region, begin, end, job, scratch, at);
    });
}

int murmur_dense_validate(const murmur_plan *plan, const uint8_t *records) {
    if (!is_valid(*plan, true)) return MURMUR_BAD_PLAN;
    const Kernels *kernels = kernels_for(plan->isa);
    return run(*plan, [&](const murmur_region &region, uint64_t begin, uint64_t end, Scratch &, uint64_t *at) {
        return kernels->dense_validate(region, begin, end, records, at);
    });
}

int murmur_dense_sum(const murmur_plan *plan, const uint8_t *const *records, uint64_t num_payloads, float weight,
                     uint8_t *sum) {
    if (!is_valid(*plan, true) || num_payloads > MAX_PAYLOADS || !(weight >= 0.0f && weight <= 1.0f))
        return MURMUR_BAD_PLAN;
    const DenseSum job{records, num_payloads, weight, sum};
    const Kernels *kernels = kernels_for(plan->isa);
    return run(*plan, [&](const murmur_region &region, uint64_t begin, uint64_t end, Scratch &scratch, uint64_t *at) {
        return kernels->dense_sum(region, begin, end, job, scratch, at);
    });
}

int murmur_dense_step(const murmur_plan *plan, const uint8_t *records, float alpha, float momentum,
                      const float *const *theta, float *const *velocity, float *const *out) {
    if (!is_valid(*plan, true)) return MURMUR_BAD_PLAN;
    const DenseStep job{records, alpha, momentum, theta, velocity, out};
    const Kernels *kernels = kernels_for(plan->isa);
    return run(*plan, [&](const murmur_region &region, uint64_t begin, uint64_t end, Scratch &, uint64_t *at) {
        return kernels->dense_step(region, begin, end, job, at);
    });
}

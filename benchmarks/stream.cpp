// Loops with the memory traffic of the kernels and nothing else: what bench_codec.py measures them against.
#include <cstdint>
#include <thread>
#include <vector>

template <class Work>
static void share(uint64_t n, uint32_t threads, Work work) {
    std::vector<std::thread> others;
    for (uint32_t i = 1; i < threads; ++i) others.emplace_back(work, n / threads * i, n / threads * (i + 1));
    work(0, n / threads);
    for (std::thread &other : others) other.join();
}

// Reads 12 bytes and writes 4 an element, as compress with its error in place.
extern "C" void stream_compress(const float *theta, const float *theta_r, float *error, uint64_t n, uint32_t threads) {
    share(n, threads, [=](uint64_t begin, uint64_t end) {
        for (uint64_t i = begin; i < end; ++i) error[i] = 0.95f * error[i] + (theta[i] - theta_r[i]);
    });
}

// Reads and writes 4 bytes an element, as the outer step in place.
extern "C" void stream_aggregate(float *theta, uint64_t n, uint32_t threads) {
    share(n, threads, [=](uint64_t begin, uint64_t end) {
        for (uint64_t i = begin; i < end; ++i) theta[i] = theta[i] * 0.999f;
    });
}

// Reads 8 bytes and writes 1 a value, as the dense exchange's encoder.
extern "C" void stream_dense_encode(const float *theta, const float *theta_r, uint8_t *codes, uint64_t n,
                                    uint32_t threads) {
    share(n, threads, [=](uint64_t begin, uint64_t end) {
        uint8_t *__restrict to = codes;
        for (uint64_t i = begin; i < end; ++i) to[i] = (uint8_t)(int32_t)(theta[i] - theta_r[i]);
    });
}

// Reads a byte of each payload and writes 1 a value, as the dense exchange's sum. A chunk at a time, so that the loop
// over payloads is outside.
extern "C" void stream_dense_sum(const uint8_t *const *payloads, uint64_t num_payloads, uint8_t *sum, uint64_t n,
                                 uint32_t threads) {
    share(n, threads, [=](uint64_t begin, uint64_t end) {
        for (uint64_t from = begin; from < end; from += 4096) {
            const uint64_t to = from + 4096 < end ? from + 4096 : end;
            uint8_t *__restrict into = sum;
            for (uint64_t p = 0; p < num_payloads; ++p) {
                const uint8_t *__restrict payload = payloads[p];
                for (uint64_t i = from; i < to; ++i) into[i] = (uint8_t)(p ? into[i] + payload[i] : payload[i]);
            }
        }
    });
}

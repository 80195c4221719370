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

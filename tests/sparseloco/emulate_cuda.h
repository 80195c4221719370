// Compiles csrc/cuda/codec.cu with a C++ compiler and runs its kernels on the CPU, so that they can be tested without a
// GPU:  g++ -x c++ -include emulate_cuda.h codec.cu
//
// Blocks run one after another; the threads of a block are fibers that give way at barriers and warp operations, where
// CUDA makes them meet. Between two of these any order of threads must give the same result: emulate_order chooses one.
// Only what the codec uses is here; warp operations take all lanes.
#pragma once

#include <math.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <vector>

#define __global__
#define __device__
#define __shared__ static
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))

struct __align__(16) float4 { float x, y, z, w; };
struct __align__(8) uint2 { uint32_t x, y; };
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
struct dim3 {
    uint32_t x;
    dim3(uint32_t size = 1) : x(size) {}
};
inline dim3 threadIdx, blockIdx, gridDim;

namespace emulated {

constexpr uint32_t WARP = 32, STACK_BYTES = 1 << 16;

struct Barrier {
    uint32_t arrived = 0;
    uint64_t generation = 0;
};

struct Fiber {
    std::unique_ptr<char[]> stack{new char[STACK_BYTES]};
    ucontext_t context;
    jmp_buf resume;
    bool started, finished;
    uint32_t turn;
    const Barrier *waits_for;
    uint64_t generation;
};

struct Warp {
    Barrier barrier;
    uint32_t slots[2][WARP];
};

inline std::vector<Fiber> fibers;
inline std::vector<Warp> warps;
inline Barrier everybody;
inline std::function<void()> body;
inline jmp_buf scheduler;
inline uint32_t current, size, seed;

inline void meet(Barrier &barrier, uint32_t expected) {
    if (++barrier.arrived == expected) {
        barrier.arrived = 0;
        ++barrier.generation;
        return;
    }
    Fiber &fiber = fibers[current];
    fiber.waits_for = &barrier;
    fiber.generation = barrier.generation;
    if (!_setjmp(fiber.resume)) _longjmp(scheduler, 1);
}

inline void enter() {
    body();
    fibers[current].finished = true;
    _longjmp(scheduler, 1);
}

inline __attribute__((noinline)) void resume(uint32_t number) {
    Fiber &fiber = fibers[number];
    current = threadIdx.x = number;
    if (_setjmp(scheduler)) return;
    if (fiber.started) _longjmp(fiber.resume, 1);
    fiber.started = true;
    setcontext(&fiber.context);
}

inline void run_block() {
    everybody = {};
    warps.assign(size / WARP, {});
    while (fibers.size() < size) fibers.emplace_back();
    std::vector<uint32_t> order(size);
    for (uint32_t i = 0; i < size; ++i) {
        Fiber &fiber = fibers[order[i] = i];
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack.get();
        fiber.context.uc_stack.ss_size = STACK_BYTES;
        makecontext(&fiber.context, enter, 0);
        fiber.started = fiber.finished = false;
        fiber.turn = 0;
        fiber.waits_for = nullptr;
    }
    for (uint32_t left = size; left;) {
        for (uint32_t i = seed ? size - 1 : 0; i; --i) {
            seed = seed * 1664525 + 1013904223;
            std::swap(order[i], order[(seed >> 8) % (i + 1)]);
        }
        bool moved = false;
        for (uint32_t number : order) {
            const Fiber &fiber = fibers[number];
            if (fiber.finished || (fiber.waits_for && fiber.waits_for->generation == fiber.generation)) continue;
            resume(number);
            moved = true;
            left -= fiber.finished;
        }
        if (!moved && left) {
            fprintf(stderr, "%u of %u threads wait for a barrier that the others never reach\n", left, size);
            abort();
        }
    }
}

// What every lane of the caller's warp brought.
inline const uint32_t *exchange(uint32_t mask, uint32_t value) {
    if (mask != ~0u) abort();
    Warp &warp = warps[current / WARP];
    uint32_t *slots = warp.slots[fibers[current].turn++ % 2];
    slots[current % WARP] = value;
    meet(warp.barrier, WARP);
    return slots;
}

template <class To, class From>
To same_bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "of one size");
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}

}  // namespace emulated

using std::max;
using std::min;

inline void __syncthreads() { emulated::meet(emulated::everybody, emulated::size); }
inline void __syncwarp() { emulated::exchange(~0u, 0); }
inline float __uint_as_float(uint32_t bits) { return emulated::same_bits<float>(bits); }
inline uint32_t __float_as_uint(float value) { return emulated::same_bits<uint32_t>(value); }
inline int __popc(uint32_t bits) { return __builtin_popcount(bits); }
inline int __clz(int bits) { return bits ? __builtin_clz((uint32_t)bits) : 32; }
inline uint32_t __funnelshift_r(uint32_t low, uint32_t high, uint32_t shift) {
    return (uint32_t)(((uint64_t)high << 32 | low) >> shift % 32);
}

template <class T>
T __ldg(const T *from) { return *from; }
template <class T>
T __ldcs(const T *from) { return *from; }
template <class T>
void __stcs(T *to, T value) { *to = value; }

template <class T>
T __shfl_sync(uint32_t mask, T value, uint32_t from) {
    return emulated::same_bits<T>(emulated::exchange(mask, emulated::same_bits<uint32_t>(value))[from]);
}
template <class T>
T __shfl_up_sync(uint32_t mask, T value, uint32_t by) {
    const uint32_t lane = threadIdx.x % 32;
    return __shfl_sync(mask, value, lane >= by ? lane - by : lane);
}
template <class T>
T __shfl_down_sync(uint32_t mask, T value, uint32_t by, uint32_t width) {
    const uint32_t lane = threadIdx.x % 32;
    return __shfl_sync(mask, value, lane % width + by < width ? lane + by : lane);
}
inline uint32_t __ballot_sync(uint32_t mask, bool holds) {
    const uint32_t *all = emulated::exchange(mask, holds);
    uint32_t bits = 0;
    for (uint32_t lane = 0; lane < 32; ++lane) bits |= all[lane] << lane;
    return bits;
}
inline uint32_t __reduce_add_sync(uint32_t mask, uint32_t value) {
    const uint32_t *all = emulated::exchange(mask, value);
    uint32_t sum = 0;
    for (uint32_t lane = 0; lane < 32; ++lane) sum += all[lane];
    return sum;
}
inline uint32_t __reduce_min_sync(uint32_t mask, uint32_t value) {
    const uint32_t *all = emulated::exchange(mask, value);
    return *std::min_element(all, all + 32);
}
inline uint32_t __reduce_max_sync(uint32_t mask, uint32_t value) {
    const uint32_t *all = emulated::exchange(mask, value);
    return *std::max_element(all, all + 32);
}

template <class T>
T atomicAdd(T *to, T value) {
    const T before = *to;
    *to += value;
    return before;
}
template <class T>
T atomicOr(T *to, T value) {
    const T before = *to;
    *to |= value;
    return before;
}
template <class T>
T atomicMin(T *to, T value) {
    const T before = *to;
    *to = std::min(before, value);
    return before;
}

typedef int cudaError_t;
typedef void *cudaStream_t;
constexpr cudaError_t cudaSuccess = 0;
constexpr int cudaDevAttrMultiProcessorCount = 0, cudaFuncAttributePreferredSharedMemoryCarveout = 0;
constexpr int cudaSharedmemCarveoutMaxShared = 100;
struct cudaLaunchConfig_t {
    dim3 gridDim, blockDim;
    cudaStream_t stream;
};

inline const char *cudaGetErrorString(cudaError_t) { return "emulated"; }
inline cudaError_t cudaSetDevice(int) { return cudaSuccess; }
inline cudaError_t cudaDeviceGetAttribute(int *value, int, int) { return *value = 1, cudaSuccess; }
template <class Kernel>
cudaError_t cudaFuncSetAttribute(Kernel, int, int) { return cudaSuccess; }
template <class Kernel>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, Kernel, int, size_t) {
    return *blocks = 3, cudaSuccess;
}
template <class... Parameters, class... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *how, void (*kernel)(Parameters...), Arguments... arguments) {
    emulated::body = [=] { kernel(arguments...); };
    emulated::size = how->blockDim.x;
    gridDim = how->gridDim;
    for (uint32_t i = 0; i < how->gridDim.x; ++i) {
        blockIdx = i;
        emulated::run_block();
    }
    return cudaSuccess;
}

// 0: ascending; else threads are shuffled, beginning with this seed.
extern "C" __attribute__((visibility("default"))) inline __attribute__((used)) void emulate_order(uint32_t seed) {
    emulated::seed = seed;
}

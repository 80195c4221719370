// The kernels for AVX-512 with its operations on bytes (VBMI, VBMI2: Intel since 2019, AMD since Zen 4).
#ifdef __x86_64__
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,avx2,bmi,bmi2,lzcnt,popcnt"))), apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,avx2,bmi,bmi2,lzcnt,popcnt,prefer-vector-width=512")
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // GCC 12 warns of its own header
#endif
#include <immintrin.h>
#define MURMUR_KERNELS avx512_kernels
#define MURMUR_WIDTH 16
#include "kernels.inc"
#ifdef __clang__
#pragma clang attribute pop
#endif
#endif

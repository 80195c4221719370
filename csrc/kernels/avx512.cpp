// The kernels for AVX-512 (F, BW, DQ, VL: every AVX-512 server since 2017).
#ifdef __x86_64__
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,bmi,bmi2,lzcnt,popcnt"))), apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,bmi,bmi2,lzcnt,popcnt,prefer-vector-width=512")
#endif
#include <immintrin.h>
#define MURMUR_KERNELS avx512_kernels
#define MURMUR_WIDTH 16
#include "kernels.inc"
#ifdef __clang__
#pragma clang attribute pop
#endif
#endif

// The kernels for AVX2. The pragma stands before every include, so that nothing here is compiled for another target.
#ifdef __x86_64__
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,bmi,bmi2,lzcnt,popcnt"))), apply_to = function)
#else
#pragma GCC target("avx2,bmi,bmi2,lzcnt,popcnt")
#endif
#include <immintrin.h>
#define MURMUR_KERNELS avx2_kernels
#define MURMUR_WIDTH 8
#include "kernels.inc"
#ifdef __clang__
#pragma clang attribute pop
#endif
#endif

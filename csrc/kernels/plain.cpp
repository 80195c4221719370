// The kernels for any processor. Vectors are four lanes wide, which every 64-bit target has.
#define MURMUR_KERNELS plain_kernels
#define MURMUR_WIDTH 4
#include "kernels.inc"

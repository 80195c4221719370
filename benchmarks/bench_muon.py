"""How long Muon orthogonalises one matrix on this CPU, with its products in fp32 and in bf16.

    python benchmarks/bench_muon.py

Both alternate in one process on one thread; each figure is the median over rounds.
"""

import sys
import time
from statistics import median

import torch

from murmur.training import muon

SHAPES = ((64, 64), (64, 192), (256, 256), (256, 768), (512, 2048))
ROUNDS = 3
DTYPES = (torch.float32, torch.bfloat16)


def seconds(matrix: torch.Tensor, dtype: torch.dtype) -> float:
    muon.product_dtype = lambda device: dtype
    given = matrix.clone()
    began = time.perf_counter()
    muon.orthogonalised(given)
    return time.perf_counter() - began


def main() -> None:
    torch.set_num_threads(1)
    sys.stdout.write(f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}\n")
    for shape in SHAPES:
        matrix = torch.randn(shape).bfloat16()
        rounds = [[seconds(matrix, dtype) for dtype in DTYPES] for _ in range(ROUNDS)]
        fp32, bf16 = (median(column) * 1e3 for column in zip(*rounds, strict=True))
        sys.stdout.write(f"{shape[0]} x {shape[1]}: fp32 {fp32:.2f} ms, bf16 {bf16:.2f} ms, {bf16 / fp32:.1f} times\n")


if __name__ == "__main__":
    main()

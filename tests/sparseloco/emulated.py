"""The CUDA codec compiled for the CPU (emulate_cuda.h)."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from sparseloco import cuda

SOURCE = Path(__file__).parents[2] / "csrc" / "cuda" / "codec.cu"
HEADER = Path(__file__).parent / "emulate_cuda.h"
FLAGS = ("-std=c++17", "-O2", "-ffp-contract=off", "-U_FORTIFY_SOURCE", "-w", "-shared", "-fPIC")


@contextmanager
def _no_stream(device: torch.device) -> Iterator[int]:
    yield 0


@contextmanager
def emulated(folder: Path) -> Iterator[cuda.Codec]:
    """Compile it into `folder` with g++, and let it stand for the library meanwhile."""
    path = folder / "codec.so"
    words = ["g++", *FLAGS, "-x", "c++", "-include", str(HEADER), str(SOURCE), "-o", str(path)]
    subprocess.run(words, check=True, timeout=170)
    loaded = cuda.load(path)
    before = cuda.library, cuda._stream_of
    cuda.library, cuda._stream_of = (lambda: loaded), _no_stream
    try:
        yield cuda.Codec("emulated", device=torch.device("cpu"))
    finally:
        cuda.library, cuda._stream_of = before

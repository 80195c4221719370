"""The fast readers of valid records against the strict decoder."""

import numpy as np
import pytest
import torch

from murmur.protocol.layout import Region, kept, record_bytes
from sparseloco.quantize import Codes
from sparseloco.records import Chunks, decode, encode, indices, signs


@pytest.mark.parametrize("k", [1, 7, 64, 94, 1000, 4096])
@pytest.mark.parametrize("n", [1, 2, 5, 16, 100, 384, 1000, 4095, 4096])
def test_indices_and_signs_are_those_of_the_decoder(n: int, k: int) -> None:
    random, chunks, k = np.random.default_rng(n + k), 9, kept(n, k)
    region = Region(0, 0, chunks, 1, 1, n, k, record_bytes(n, k), 0, 0, 0, 1)
    drawn = np.stack([np.sort(random.permutation(n)[:k]) for _ in range(chunks)])
    low = torch.full((chunks,), 3, dtype=torch.uint8)
    bits = [torch.from_numpy(random.integers(0, 2, (chunks, k), dtype=np.uint8)) for _ in range(2)]
    records = encode(Chunks(torch.from_numpy(drawn), Codes(*bits, low, low + 9)), region)
    decoded = decode(records, region)
    assert np.array_equal(indices(records, n, k), decoded.indices.numpy())
    assert np.array_equal(signs(records, n, k), decoded.codes.signs.numpy())
    assert np.array_equal(indices(records[::2], n, k), drawn[::2])

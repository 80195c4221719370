"""Ids of a data set, document by document."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def split_by_end(tokens: NDArray[Any], end: int) -> list[list[int]]:
    """Return the ids of each document, without the token that ends it."""
    assert tokens[-1] == end
    return [part[:-1].tolist() for part in np.split(tokens, np.flatnonzero(tokens == end) + 1)[:-1]]

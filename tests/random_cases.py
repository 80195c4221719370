"""How many random cases a test tries: MURMUR_FUZZ_CASES of FULL, which `make check` sets; a tenth unless it is set."""

import os

FULL = 500
CASES = int(os.environ.get("MURMUR_FUZZ_CASES", FULL // 10))
"""Of one fuzzer. `make bench` tries thousands."""


def share(cases: int) -> int:
    """Return how many of these random cases are tried: never more than all."""
    return min(cases, max(1, cases * CASES // FULL))

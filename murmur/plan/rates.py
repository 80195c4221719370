"""A machine's rates per second: stated for a server, or measured by `murmur plan --measure`
(murmur/plan/measure.py)."""

from dataclasses import dataclass
from math import inf

SUSTAINED_FLOPS = 530e12
"""Model FLOP/s of one GPU in the published run: 20 minutes for its round on eight B200, 24 % of their bf16 peak."""


@dataclass(frozen=True, slots=True)
class Rate:
    """Units per second: of one thread (link, GPU), and the maximum of all together."""

    one: float
    most: float = inf

    def seconds(self, amount: float, threads: int) -> float:
        """Return the seconds that `threads` need for `amount`."""
        return amount / min(threads * self.one, self.most)


ONCE = Rate(1.0, 1.0)


@dataclass(frozen=True, slots=True)
class Rates:
    """A machine and its links. Bytes per second unless said otherwise.

    The defaults are a stated server: 64 threads, a disk of 5 GB/s. One thread was measured on an AMD EPYC (the
    comments name the source of each); the figures for 64 threads together are assumed.

    - compute: model FLOP/s of training, one GPU. device: bytes between the host and one GPU.
    - copy: into memory that was used before. fresh: into new memory.
    - hash: sha256. cipher: AES-CTR. write: to a file, with fsync. read: of a file.
    - compress: bytes of the model. apply: bytes of payloads added in an outer step. probe: bytes of payloads added to
      weights or undone.
    - call: exchanges with a bucket or the chain. wait: seconds as such.
    """

    threads: int = 64
    compute: Rate = Rate(SUSTAINED_FLOPS)
    up: Rate = Rate(0.0)
    down: Rate = Rate(0.0)
    device: Rate = Rate(10e9)  # assumed: memory that is not pinned
    copy: Rate = Rate(4e9, 100e9)  # benchmarks/results/round_epyc-2vcpu_2026-11-22.md
    fresh: Rate = Rate(1.5e9, 30e9)  # what sha256 left of 0.35 GB a CPU second, at which an earlier release saved state
    hash: Rate = Rate(1.1e9, 64e9)  # measured, idle core
    cipher: Rate = Rate(3.8e9, 100e9)  # measured in pieces that fit the cache
    write: Rate = Rate(1.5e9, 5e9)  # a core's copy into the system's memory
    read: Rate = Rate(1.3e9, 5e9)  # likewise, of 0.3 GB a CPU second at which state was loaded
    compress: Rate = Rate(3.6e9, 35e9)  # benchmarks/results/codec_epyc-zen4-2vcpu_2026-11-21.md
    apply: Rate = Rate(1.9e9, 60e9)  # the same file: 2,250 cycles for twenty records
    probe: Rate = Rate(90e6, 3e9)  # native; measured, busy core, 16.8 M parameters
    call: Rate = Rate(2.0, 2.0)  # assumed
    wait: Rate = ONCE

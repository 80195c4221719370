"""Substitutes for the outside world: the spec of an arena run, names for hashes, and signatures.

Real: the spec with the protocol's default constants, envelopes, sealing, commitments on time or late. Substitutes:
block hashes are hashes of names. A signature is a hash that only the signer makes here. The in-sync proof covers all of
theta at once instead of 4,096 drawn positions. The spec says Muon, which traced runs need; training is plain gradient
descent, which keeps no state either. Its moves are its gradients times the rate, so they show no more than these do.
Machines differ by a little noise on gradients. No validator looks twice at steps that failed, or lacks time for any.
"""

import json
from hashlib import sha256, sha512

import torch

from gauntlet.checks import CheckFunctions
from murmur.lab.arena.problem import CONTEXT, VOCABULARY, Regression
from murmur.protocol.assignment import Draw, assigned
from murmur.protocol.spec import ClockSpec, DataSpec, GauntletSpec, InnerSpec, RunSpec
from murmur.protocol.types import Digest, Page, PeerId, Pointer, hotkey
from storage.seal import unseal

POINTER = Pointer("https://store.example", "bucket", "key", "secret")
NUM_PAGES = 1 << 20
PAGE_SEQUENCES = 64
RATE = 2.0
"""Learning rate of the inner steps."""
STEPS = 4
PLACES = 512
"""Gradients, and moves, that a trace shows of each step."""
VERIFICATIONS = 6
"""A validator repeats the steps of as many miners in a round: of a quarter of those that contribute or stand by."""


def named(*parts: str | int) -> Digest:
    """Return a digest for a named thing, such as the hash of a block."""
    return Digest(sha256(json.dumps(parts).encode()).digest())


OWNER = PeerId(named("owner"))


def make_spec(seed: int) -> RunSpec:
    """Return the run spec: a run with traces; all other gauntlet, outer and compression constants are the protocol's
    defaults."""
    return RunSpec(
        name="arena",
        chain=named("chain", seed).hex(),
        netuid=1,
        owner=hotkey(OWNER),
        genesis_checkpoint=named("genesis", seed).hex(),
        local=True,
        model=Regression(
            vocabulary=VOCABULARY, layers=1, width=VOCABULARY, heads=1, kv_heads=1, ffn=1, context=CONTEXT
        ),
        inner=InnerSpec(
            steps=STEPS,
            sequences=PAGE_SEQUENCES // STEPS,
            optimizer="muon",
            state="fresh",
            peak_lr=RATE,
            final_lr=RATE,
            warmup_steps=0,
            decay_steps=1,
        ),
        gauntlet=GauntletSpec(trace_values=STEPS * PLACES, verifications=VERIFICATIONS),
        data=DataSpec(
            index=named("data", seed).hex(),
            num_tokens=NUM_PAGES * PAGE_SEQUENCES * CONTEXT + 1,
            page_sequences=PAGE_SEQUENCES,
        ),
        clock=ClockSpec(start_block=9, round_blocks=100, commit=40, reveal=46, words=80),
    )


def pages_of(spec: RunSpec, run: Digest, page_hash: Digest, peer: PeerId) -> tuple[Page, ...]:
    """Return the pages assigned to a hotkey."""
    return assigned(
        run, page_hash, peer, num_pages=spec.num_pages, page_tokens=spec.page_tokens, count=spec.pages_per_round
    )


class Signer:
    """Signs with a hash of the hotkey: enough where no player forges signatures."""

    def __init__(self, peer: PeerId) -> None:
        self.peer = peer

    def sign(self, message: bytes) -> bytes:
        return sha512(self.peer + message).digest()


def _verify(peer: PeerId, message: bytes, signature: bytes) -> bool:
    return signature == sha512(peer + message).digest()


FUNCTIONS = CheckFunctions(_verify, unseal)


def sync_proof(theta: Digest, peer: PeerId) -> Digest:
    """Return the in-sync proof, which a holder of the theta of this digest can make for its own hotkey only."""
    return Digest(sha256(b"in sync" + theta + peer).digest())


def generator(draw: Draw) -> torch.Generator:
    """Return torch's random numbers from a draw."""
    return torch.Generator().manual_seed(draw.words(7))

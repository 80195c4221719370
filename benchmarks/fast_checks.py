"""What the fast checks cost beside hashing and decoding the same bytes, as a validator makes them (gauntlet/checks.py).

    python benchmarks/fast_checks.py

Submissions of a model of a million parameters, really compressed and sealed. Processor time of this one process, the
least of several repeats, in microseconds a submission, so that other work on the machine changes it little. Hashing and
decoding are the sections' Merkle root, the sha256 of the plaintext and the parser. `all` has everything but the chain's
signatures, which stand beside (sr25519), and theta's in-sync proof, which is looked up.

Then how the parts of the search for copies grow with the number of peers, in microseconds a peer.
"""

import argparse
import json
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import sha256
from time import process_time

import numpy as np
import torch
from bittensor.sp_core import Keypair

from gauntlet.checks import CheckFunctions, Expected, Gathered, fast_checks
from gauntlet.sketch import FoundCopies, Sample, Sketch, find_copies
from murmur.chain.keys import HotkeySigner, verify
from murmur.protocol.layout import Layout
from murmur.protocol.merkle import sections_root
from murmur.protocol.messages import ENVELOPE_BYTES, Reveal, parse_envelope, parse_reveal
from murmur.protocol.run import Run
from murmur.protocol.spec import ClockSpec, DataSpec, InnerSpec, ModelSpec, RunSpec
from murmur.protocol.types import Commitment, Digest, Peer, PeerId, Pointer, Slot, Uid, hotkey
from sparseloco import ops
from sparseloco.outer import OuterState
from sparseloco.update import Update
from sparseloco.wire import encode
from storage.seal import seal, unseal

ROUND = 40
COMMON = 1.3
"""Length of what all updates have in common, in lengths of what is each one's own: they overlap by about a third, like
honest ones of the first rounds, and in all rounds alike, which gives the screen more to do than there is."""


def word(*parts: object) -> Digest:
    return Digest(sha256(" ".join(map(str, parts)).encode()).digest())


SPEC = RunSpec(
    name="fast-checks",
    chain="00" * 32,
    netuid=1,
    owner=hotkey(PeerId(word("owner"))),
    genesis_checkpoint="00" * 32,
    local=True,
    model=ModelSpec(vocabulary=2048, layers=4, width=128, heads=4, kv_heads=4, ffn=256, context=64),
    inner=InnerSpec(steps=4, sequences=4, peak_lr=1e-3, final_lr=1e-4, warmup_steps=2, decay_steps=10),
    data=DataSpec(index="00" * 32, num_tokens=50_001, page_sequences=8),
    clock=ClockSpec(start_block=100, round_blocks=100, commit=40, reveal=46, words=80),
)
RUN, CLOCK, THETA, BLOCK_D = Run(SPEC), SPEC.rounds_clock, word("theta"), word("block D")


@dataclass(frozen=True)
class Signer:
    """Signs with a hash."""

    peer: PeerId

    def sign(self, message: bytes) -> bytes:
        return sha256(self.peer + message).digest() * 2


def proof(peer: PeerId) -> Digest:
    return Digest(sha256(b"in sync" + peer).digest())


class Updates:
    """Updates with a common part, one after the other."""

    def __init__(self, layout: Layout) -> None:
        self.layout, self.random = layout, np.random.default_rng(0)
        self.common = self._drawn()
        self.zeros = {name: torch.zeros_like(values) for name, values in self.common.items()}

    def next(self) -> Update:
        mixed = {name: 1e-3 * (own + COMMON * self.common[name]) for name, own in self._drawn().items()}
        return ops.compress(mixed, self.zeros, None, self.layout, 0.95)[0]

    def _drawn(self) -> dict[str, torch.Tensor]:
        draw = self.random.standard_normal
        return {t.name: torch.from_numpy(draw(t.shape, dtype=np.float32)) for t in self.layout}


def gathered(peer: PeerId, uid: int, update: Update) -> Gathered:
    sealed = seal(encode(THETA, update), key=word("key", uid), run=RUN.id, round=ROUND, signer=Signer(peer))
    reveal = Reveal(RUN.id, ROUND, peer, sealed.key, proof(peer))
    signed = Reveal(RUN.id, ROUND, peer, sealed.key, proof(peer), Signer(peer).sign(reveal.signed_part))
    slot = Slot(
        CLOCK.commit_deadline(ROUND) - 1, Pointer("https://s.example", "b", "k", "s"), Commitment(ROUND, sealed.digest)
    )
    return Gathered(Peer(peer, Uid(uid), 0, False, slot=slot), sealed.object, None, signed.encode())


def processor_us(call: Callable[[], object], repeats: int, count: int) -> float:
    """Microseconds of the processor for each of `count` submissions, the least of the repeats."""
    call()
    taken = []
    for _ in range(repeats):
        start = process_time()
        call()
        taken.append(process_time() - start)
    return 1e6 * min(taken) / count


def sketched(sample: Sample, names: list[PeerId], round: int, some: list[Update]) -> list[Sketch]:
    """Sketches under digests that are made up: sha256 is measured by itself."""
    return [
        Sketch(name, round, Digest(bytes([round]) * 2 + name[2:]), sample.excerpt(some[number % len(some)].records))
        for number, name in enumerate(names)
    ]


def checks(items: list[Gathered], past: list[list[Update]], repeats: int) -> dict[str, float]:
    """Parts and the whole of the fast checks, with as many rounds of earlier payloads as `past` has."""
    spec = SPEC.model_copy(update={"gauntlet": SPEC.gauntlet.model_copy(update={"copy_rounds": len(past)})})
    layout, count = SPEC.layout, len(items)
    names = [item.peer.id for item in items]
    objects = [item.payload or b"" for item in items]
    ciphertexts = [memoryview(data)[ENVELOPE_BYTES:] for data in objects]
    reveals = {item.peer.id: parse_reveal(item.reveal or b"") for item in items}
    envelopes = [parse_envelope(data[:ENVELOPE_BYTES]) for data in objects]

    def unsealed() -> list[bytes]:
        sealed = zip(names, envelopes, ciphertexts, strict=True)
        return [unseal(envelope, reveals[name].key, data) for name, envelope, data in sealed]

    opened = unsealed()
    parsed = [ops.parse(plaintext, layout) for plaintext in opened]
    proofs = {name: proof(name) for name in names}
    key = HotkeySigner(Keypair.create_from_uri("//fast-checks"))
    signature = key.sign(b"message")

    def history(sample: Sample) -> list[Sketch]:
        return [one for back, some in enumerate(past, 1) for one in sketched(sample, names, ROUND - back, some)]

    def search() -> None:
        sample = Sample(layout, BLOCK_D)
        current = {one.peer: one for one in sketched(sample, names, ROUND, parsed)}
        assert find_copies(sample, current, history(sample), spec.gauntlet) == FoundCopies({}, {})

    def everything() -> None:
        expected = Expected(spec, RUN.id, ROUND, THETA, CLOCK, proofs.__getitem__, OuterState.initial(layout), BLOCK_D)
        functions = CheckFunctions(lambda peer, message, signature: True, unseal)
        checked = fast_checks(expected, items, functions, history(Sample(layout, BLOCK_D)))
        assert len(checked.passed) == count

    found = {
        "root": processor_us(lambda: [sections_root(ciphertext) for ciphertext in ciphertexts], repeats, count),
        "sha256": processor_us(lambda: [sha256(plaintext).digest() for plaintext in opened], repeats, count),
        "parse": processor_us(lambda: [ops.parse(plaintext, layout) for plaintext in opened], repeats, count),
        "unseal": processor_us(unsealed, repeats, count),
        "norms": processor_us(lambda: [replace(update).norms for update in parsed], repeats, count),
        "digests": processor_us(lambda: [replace(update).digest for update in parsed], repeats, count),
        "copies": processor_us(search, repeats, count),
        "all": processor_us(everything, repeats, count),
        "two signatures": 2 * processor_us(lambda: verify(key.peer, b"message", signature), 100, 1),
    }
    found["over hashing and decoding"] = found["all"] / (found["root"] + found["sha256"] + found["parse"])
    return found


def growth(peers: int, rounds: int, some: list[Update], repeats: int) -> dict[str, float]:
    """The parts of the search for copies, with `some` updates under many names: what they hold does not matter here."""
    sample = Sample(SPEC.layout, BLOCK_D)
    names = [PeerId(word("peer", number)) for number in range(peers)]
    everyone = [one for back in range(rounds + 1) for one in sketched(sample, names, ROUND - back, some)]
    vectors = sample.vectors(everyone)

    def excerpts() -> None:
        for number in range(len(everyone)):
            sample.excerpt(some[number % len(some)].records)

    return {
        "excerpts": processor_us(excerpts, repeats, peers),
        "vectors": processor_us(lambda: sample.vectors(everyone), repeats, peers),
        "products": processor_us(lambda: vectors[:peers] @ vectors.T, repeats, peers),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peers", type=int, default=256)
    parser.add_argument("--rounds", type=int, nargs="*", default=[2, 8], help="of earlier payloads")
    parser.add_argument("--growth", type=int, nargs="*", default=[256, 1024, 4096], help="peers")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    made = Updates(SPEC.layout)
    names = [PeerId(word("peer", number)) for number in range(options.peers)]
    items = [gathered(name, number, made.next()) for number, name in enumerate(names)]
    past = [[made.next() for _ in names] for _ in range(max(options.rounds))]
    about = {"parameters": SPEC.layout.num_parameters, "codec": ops.backend(), "machine": platform.processor()}
    for rounds in options.rounds:
        found = checks(items, past[:rounds], options.repeats)
        told = about | {"peers": options.peers, "rounds": rounds} | {name: round(us, 2) for name, us in found.items()}
        sys.stdout.write(json.dumps(told) + "\n")
        sys.stdout.flush()
    for peers in options.growth:
        parts = growth(peers, 2, past[0], 1 if peers > 1000 else options.repeats)
        sys.stdout.write(
            json.dumps({"peers": peers, "rounds": 2} | {k: round(us, 2) for k, us in parts.items()}) + "\n"
        )
        sys.stdout.flush()


if __name__ == "__main__":
    main()

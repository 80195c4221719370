"""A small run and its peers: miners that really seal real updates, and the chain's snapshots around them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from hashlib import sha256, sha512

import torch

from gauntlet.checks import Checked, CheckFunctions, Expected, Gathered, fast_checks
from gauntlet.evaluation import Evaluation
from gauntlet.remembered import NO_TWINS, Remembered
from gauntlet.sketch import Sample, Sketch
from murmur.protocol.layout import Layout
from murmur.protocol.messages import Envelope, Reveal, parse_envelope
from murmur.protocol.run import Run
from murmur.protocol.spec import ClockSpec, CompressionSpec, DataSpec, GauntletSpec, InnerSpec, ModelSpec, RunSpec
from murmur.protocol.types import Commitment, Digest, LossScore, Peer, PeerId, Pointer, Slot, Uid, hotkey
from sparseloco.outer import OuterState
from sparseloco.reference import compress
from sparseloco.update import Update
from sparseloco.wire import Submission, encode
from storage.seal import Sealed, seal, unseal

POINTER = Pointer("https://store.example", "bucket", "key", "secret")
THETA = Digest(sha256(b"theta").digest())
COMMIT_HASH = Digest(sha256(b"block D").digest())
OWNER = PeerId(bytes([255]) * 32)


def peer_id(number: int) -> PeerId:
    return PeerId(sha256(b"peer %d" % number).digest())


def digest(text: str) -> Digest:
    return Digest(sha256(text.encode()).digest())


def make_spec(**gauntlet) -> RunSpec:
    return RunSpec(
        name="small",
        chain="00" * 32,
        netuid=1,
        owner=hotkey(OWNER),
        genesis_checkpoint="00" * 32,
        local=True,
        model=ModelSpec(vocabulary=64, layers=1, width=16, heads=2, kv_heads=1, ffn=24, context=8),
        compression=CompressionSpec(k=64),
        inner=InnerSpec(steps=4, sequences=4, peak_lr=1e-3, final_lr=1e-4, warmup_steps=2, decay_steps=10),
        data=DataSpec(index="00" * 32, num_tokens=50_001, page_sequences=8),
        clock=ClockSpec(start_block=100, round_blocks=100, commit=40, reveal=46, words=80),
        gauntlet=GauntletSpec(**gauntlet),
    )


SPEC = make_spec()
RUN = Run(SPEC)
CLOCK = SPEC.rounds_clock


@dataclass(frozen=True)
class FakeSigner:
    """Signs with a hash: whoever knows the hotkey can sign, which is all a test needs."""

    peer: PeerId

    def sign(self, message: bytes) -> bytes:
        return sha512(self.peer + message).digest()


def verify(peer: PeerId, message: bytes, signature: bytes) -> bool:
    return signature == sha512(peer + message).digest()


FUNCTIONS = CheckFunctions(verify, unseal)


def proof_of(peer: PeerId) -> Digest:
    return Digest(sha256(b"in sync" + peer).digest())


@cache
def make_update(seed: int, scale: float = 1.0, layout: Layout = SPEC.layout) -> Update:
    """A valid update of independent random content and norm proportional to `scale`."""
    generator = torch.Generator().manual_seed(seed)
    theta = {tensor.name: torch.randn(tensor.shape, generator=generator) * scale * 1e-2 for tensor in layout}
    zeros = {name: torch.zeros_like(values) for name, values in theta.items()}
    return compress(theta, zeros, None, layout, beta=0.95)[0]


def submission(number: int, update: Update, round: int = 0) -> Submission:
    return Submission(peer_id(number), round, THETA, update)


@dataclass(frozen=True)
class Miner:
    """An honest miner's round; tests change one thing of it."""

    number: int
    round: int = 0
    seed: int | None = None
    scale: float = 1.0

    @property
    def id(self) -> PeerId:
        return peer_id(self.number)

    @property
    def signer(self) -> FakeSigner:
        return FakeSigner(self.id)

    @property
    def update(self) -> Update:
        seed = 1000 * self.round + self.number if self.seed is None else self.seed
        return make_update(seed, self.scale)

    def sealed(self, plaintext: bytes | None = None, **changes) -> Sealed:
        plain = encode(THETA, self.update) if plaintext is None else plaintext
        given = {"run": RUN.id, "round": self.round, "signer": self.signer, "key": bytes([self.number]) * 32}
        return seal(plain, **(given | changes))

    def reveal(self, key: bytes, signer: FakeSigner | None = None, **changes) -> bytes:
        unsigned = replace(Reveal(RUN.id, self.round, self.id, key, proof_of(self.id)), **changes)
        signed = replace(unsigned, signature=(signer or self.signer).sign(unsigned.signed_part))
        return signed.encode()

    def peer(self, commitment: Digest | None, block: int | None = None) -> Peer:
        statement = None if commitment is None else Commitment(self.round, commitment)
        at = CLOCK.commit_deadline(self.round) - 1 if block is None else block
        return Peer(self.id, Uid(self.number), 0, False, slot=Slot(at, POINTER, statement))

    def gathered(self, sealed: Sealed | None = None, **changes) -> Gathered:
        sealed = sealed or self.sealed()
        item = Gathered(self.peer(sealed.digest), sealed.object, None, self.reveal(sealed.key))
        return replace(item, **changes)

    def resigned(self, **changes) -> Gathered:
        """The honest round under an envelope with other fields, signed again and committed to."""
        sealed = self.sealed()
        envelope: Envelope = replace(parse_envelope(sealed.envelope), **changes)
        envelope = replace(envelope, signature=self.signer.sign(envelope.signed_part))
        return self.gathered(replace(sealed, envelope=envelope.encode()))


def check(
    items, round: int = 0, outer: OuterState | None = None, functions: CheckFunctions = FUNCTIONS, history=(), **changes
) -> Checked:
    state = outer or OuterState.initial(SPEC.layout)
    expected = Expected(SPEC, RUN.id, round, THETA, CLOCK, proof_of, state, COMMIT_HASH)
    return fast_checks(replace(expected, **changes), items, functions, history)


def sketches(remembered: Mapping[Remembered, bytes], commit_hash: Digest = COMMIT_HASH) -> list[Sketch]:
    """What a validator that remembers these payloads compares with in the round of that commit deadline."""
    sample = Sample(SPEC.layout, commit_hash)
    return [Sketch(p.peer, p.round, p.payload, sample.excerpt(records)) for p, records in remembered.items()]


def checked(passed, rejected=(), committed=None, twins=NO_TWINS) -> Checked:
    """A Checked of peers without submissions, for the fold."""
    everyone = frozenset(passed) | {rejection.peer for rejection in rejected}
    return Checked(
        dict.fromkeys(passed), {r.peer: r for r in rejected}, everyone if committed is None else committed, twins, {}
    )


def evaluation(unassigned: float, gap: float) -> Evaluation:
    """An evaluation with this score on unassigned data and this gap against one reference."""
    return Evaluation(LossScore(unassigned, unassigned), gap, 1)

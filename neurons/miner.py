"""A miner: trains on its pages, compresses what it learned, seals and publishes it, follows the agreed selections.

`python neurons/miner.py` says what it needs. One round reads top to bottom in `Miner.play`; what a round consists of
is docs/protocol.md section 2.
"""

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import TYPE_CHECKING, Any

from node.config import home, load
from node.events import Phase, round_seconds
from node.program import log_to_stderr, run_program
from protocol import keys
from protocol.assignment import assigned
from protocol.errors import ChainError, MurmurError, StorageError
from protocol.messages import Reveal, encode_document
from protocol.types import Commitment, Digest, Page

if TYPE_CHECKING:
    from node.config import NodeConfig
    from node.node import Node
    from node.state import SealedRound
    from sparseloco.update import Update
    from storage.upload import Upload
    from training.parallel import Ranks
    from training.shards import Shards

ABORT_SECONDS = 10.0
PAUSE_SECONDS = 1.0
"""After a round that broke off: what refuses at once must not be asked without end."""

SUMMARY = "Train in a Murmuration run: inner steps, compressed pseudo-gradient, sealed upload, outer step."


class Diverged(MurmurError):
    """Inner training left finite numbers: nothing can be sent this round; the next one starts from theta again."""


@dataclass
class Ahead:
    """An upload that was begun before its object was saved. `object`: the saved file that it is of, None until then."""

    upload: "Upload"
    phase: Phase
    object: Digest | None = None


class Miner:
    """One miner's rounds over a node."""

    def __init__(self, node: "Node", shards: "Shards") -> None:
        self.node, self.shards = node, shards
        self.claims: dict[str, Any] = {}
        self.finished = -1
        """The last round that we have nothing more to say in."""
        self.ahead: Ahead | None = None
        """The upload of what we have sealed, begun before it was saved."""

    def run(self) -> None:
        """Play every round whose commit window is open when we get there, until stopped."""
        from loguru import logger

        self.abort_unfinished()
        while True:
            try:
                self.play(self.open_round())
            except Diverged as fault:
                round = self.node.saved.round
                logger.error("round {round}: {fault}; sending nothing", round=round, fault=str(fault))
                self.node.wait_for(self.node.clock.commit_by(round), "the round to pass")
            except (ChainError, StorageError) as fault:
                # Saved and sealed work is not lost: the next pass takes it up if the round is still open.
                logger.warning("round {round} broke off: {fault}", round=self.node.saved.round, fault=str(fault))
                time.sleep(PAUSE_SECONDS)

    def open_round(self) -> int:
        """The round to play: the one that we have sealed for while its key may still be published, else the first whose
        commit window is open."""
        node, sealed = self.node, self.node.saved.sealed
        unfinished = sealed is not None and self.finished < sealed.round == node.saved.round
        if unfinished and node.head() < node.clock.reveal_by(node.saved.round):
            return node.saved.round
        return node.next_round()

    def play(self, round: int) -> None:
        """One round. Anything that was saved before a crash is taken up where it was."""
        node = self.node
        node.advance(round)
        if node.saved.round != round:
            return  # catch-up went further: `round` is over
        sealed = node.saved.sealed
        if sealed is None or sealed.round != round:
            self.train(round, self.pages(round))
            sealed = self.seal(round, self.compress())
        self.publish(round, sealed)
        self.commit(round, sealed)
        counts = self.counts(round, sealed)
        node.prefetch(round)
        if counts:
            self.reveal(round, sealed)
        self.finished = round
        if counts:
            self.report(round)
        self.clean_up(round)

    def pages(self, round: int) -> tuple[Page, ...]:
        """The pages assigned to us, drawn from the hash of a block before the round's start."""
        node, spec = self.node, self.node.run.spec_at(round)
        header = node.wait_for(node.clock.page_block(round), f"the pages of round {round}")
        return assigned(
            node.run.id,
            header.hash,
            node.me,
            num_pages=spec.num_pages,
            page_tokens=spec.page_tokens,
            count=spec.pages_per_round,
            first_page=spec.inner.first_page,
        )

    def train(self, round: int, pages: Sequence[Page]) -> None:
        """H inner steps from theta; the replica's weights become theta_r."""
        from loguru import logger

        from training.loader import sequences

        node, spec = self.node, self.node.run.spec_at(round)
        with node.timeline.begin("compute") as watch:
            batch = sequences(self.shards.train, pages, spec.model.context)
            meter = node.replica.meter(spec.inner, lambda reading: logger.info("{reading}", reading=str(reading)))
            report = node.replica.inner_round(batch, inner=spec.inner, on_step=meter)
        self.claims = {
            "loss": report.mean_loss if isfinite(report.mean_loss) else None,
            "tokens": report.num_tokens,
            "seconds": {"compute": round_seconds(watch.seconds)},
        }
        node.events.emit("trained", round, **self.claims)
        logger.info(
            "round {round}: loss {loss:.4f}, {rate:.0f} tokens/s, {left:.0f} s before the deadline",
            round=round,
            loss=report.mean_loss,
            rate=report.num_tokens / watch.seconds,
            left=node.seconds_until(node.clock.commit_by(round)),
        )

    def compress(self) -> "Update":
        """Error feedback, Top-k, 2-bit: the update that we send; the error feedback keeps the rest."""
        from sparseloco.floats import NonFinite

        try:
            with self.node.timeline.begin("compress"):
                return self.node.replica.compress()
        except NonFinite as fault:
            raise Diverged(f"training has diverged ({fault})") from None

    def seal(self, round: int, update: "Update") -> "SealedRound":
        """Encrypt, sign and save: the one commit point of the round. A restart publishes these very bytes.

        What is sealed travels at once, while our own state is copied and written, but for the part with the envelope
        and the completion. Those are left to `publish`, so nobody can see anything that is not saved.
        """
        from node.state import SealedRound
        from protocol.merkle import SECTION_BYTES
        from sparseloco import wire
        from storage.seal import Sealing

        node = self.node
        with node.timeline.begin("seal"):
            plaintext = memoryview(wire.encode(node.replica.digest(), update))
            sealing = Sealing(len(plaintext), run=node.run.id, round=round, signer=node.doors.signer)
            upload = self.begin_upload(round, sealing.object)
            for first in range(0, len(plaintext), SECTION_BYTES):
                sealing.add(plaintext[first : first + SECTION_BYTES])
                if upload is not None:
                    upload.ready(sealing.num_final)
            sealing.finish()
        own = node.save_own()
        with node.timeline.begin("save"):
            saved = SealedRound(round, node.store.write(sealing.object), sealing.key)
            node.save(sealed=saved, own=own)
        if self.ahead is not None:
            self.ahead.object = saved.object
        return saved

    def begin_upload(self, round: int, data: bytearray) -> "Upload | None":
        """Begin to upload an object in the making; None where that gains nothing or cannot be."""
        from storage.upload import Upload, has_parts

        node = self.node
        self.abandon_upload()
        try:
            deadline = node.seconds_until(node.clock.commit_by(round))
        except ChainError:
            return None  # not a reason to lose work that is not saved yet
        if not has_parts(len(data)) or deadline <= 0:
            return None
        upload = Upload(node.doors.bucket, keys.payload(node.run.id, round), data, timeout_seconds=deadline)
        self.ahead = Ahead(upload, node.timeline.begin("upload"))
        return upload

    def abandon_upload(self) -> None:
        """What was sent ahead is not what we publish, or comes too late."""
        ahead, self.ahead = self.ahead, None
        if ahead is not None:
            ahead.upload.abandon()
            ahead.phase.end()

    def abort_unfinished(self) -> None:
        """Of uploads that we did not live to finish, the server keeps the parts: they are of no use to anybody."""
        from loguru import logger

        node = self.node
        prefix = keys.payload(node.run.id, 0).removesuffix(f"{0:08d}")
        try:
            node.doors.bucket.abort_unfinished(prefix, timeout_seconds=ABORT_SECONDS)
        except StorageError as fault:
            logger.warning("unfinished uploads of an earlier start may stay in our bucket: {fault}", fault=str(fault))

    def publish(self, round: int, sealed: "SealedRound") -> None:
        """Make the sealed bytes visible before block D: finish the upload that was begun, or, when that is not of these
        bytes or has failed, upload them whole."""
        from storage.exchange import publish

        node = self.node
        if self.ahead is not None and self.ahead.object != sealed.object:
            self.abandon_upload()
        deadline = node.seconds_until(node.clock.commit_by(round))
        if deadline <= 0:
            self.abandon_upload()
            return  # it went up before we committed, or it is worthless
        phase = self.ahead.phase if self.ahead is not None else node.timeline.begin("upload")
        with phase:
            if not self.finish_upload(round, deadline):
                data = node.store.read(sealed.object)
                deadline = max(1.0, node.seconds_until(node.clock.commit_by(round)))
                publish(node.doors.bucket, keys.payload(node.run.id, round), data, timeout_seconds=deadline)
        node.events.emit(
            "published",
            round,
            payload_bytes=node.store.path(sealed.object).stat().st_size,
            seconds={"upload": round_seconds(phase.seconds)},
        )

    def finish_upload(self, round: int, deadline: float) -> bool:
        """Whether the upload that was begun is now visible, whole."""
        from loguru import logger

        ahead, self.ahead = self.ahead, None
        if ahead is None:
            return False
        try:
            ahead.upload.finish(timeout_seconds=deadline)
        except StorageError as fault:
            logger.warning(
                "round {round}: the upload that was begun early failed ({fault}); starting it again",
                round=round,
                fault=str(fault),
            )
            return False
        return True

    def commit(self, round: int, sealed: "SealedRound") -> None:
        """Put the digest of our envelope on chain, unless it stands there or block D has passed."""
        from loguru import logger

        node = self.node
        last = node.clock.commit_by(round)
        statement = Commitment(round, self.envelope_digest(sealed))
        me = node.registered()
        if me is not None and me.slot is not None and me.slot.statement == statement:
            return
        if node.head() >= last:
            logger.warning("round {round}: finished after block {last}, too late to commit", round=round, last=last)
            return
        with node.timeline.begin("commit"):
            block = node.post(statement)
        logger.info(
            "round {round}: committed in block {block}, {margin} blocks before the deadline",
            round=round,
            block=block,
            margin=last - block,
        )
        node.events.emit("committed", round, block=block, in_time=block <= last)

    def counts(self, round: int, sealed: "SealedRound") -> bool:
        """Whether our commitment stands in the state of block D, which is what everybody reads: a second post of ours
        after a restart, or a fork, may have moved it."""
        from gauntlet.checks import commitment

        node, last = self.node, self.node.clock.commit_by(round)
        node.wait_for(last, f"the end of round {round}'s commit window")
        promises = (commitment(peer, round, last) for peer in node.doors.chain.peers(last) if peer.id == node.me)
        return Commitment(round, self.envelope_digest(sealed)) in promises

    def envelope_digest(self, sealed: "SealedRound") -> Digest:
        """sha256 of the sealed object's envelope: what the chain pins."""
        from hashlib import sha256

        from protocol.messages import ENVELOPE_BYTES

        return Digest(sha256(self.node.store.read(sealed.object)[:ENVELOPE_BYTES]).digest())

    def reveal(self, round: int, sealed: "SealedRound") -> None:
        """After block D has a child, publish the key and the proof that we hold theta, before block V."""
        from storage.exchange import publish

        node = self.node
        last = node.clock.commit_by(round)
        node.wait_for(last + 1, f"the block after round {round}'s commit window")
        with node.timeline.begin("reveal"):
            proof = node.replica.sync_proof(node.doors.chain.header(last).hash, node.me)
            unsigned = Reveal(node.run.id, round, node.me, sealed.key, proof)
            reveal = replace(unsigned, signature=node.doors.signer.sign(unsigned.signed_part))
            deadline = max(1.0, node.seconds_until(node.clock.reveal_by(round)))
            publish(node.doors.bucket, keys.reveal(node.run.id, round), reveal.encode(), timeout_seconds=deadline)
        node.events.emit("revealed", round)

    def report(self, round: int) -> None:
        """Our signed claims about the round, in our bucket: shown to people, decided on never."""
        from storage.exchange import publish

        node = self.node
        if not self.claims:
            return  # we came back with the work already sealed: nothing was measured
        document = encode_document("peer", node.run.id, round, self.claims, node.doors.signer)
        key = keys.peer_report(node.run.id, round)
        publish(node.doors.bucket, key, document, timeout_seconds=node.transfer_seconds(1))

    def clean_up(self, round: int) -> None:
        """Delete our objects of the round that just left the retention window."""
        node = self.node
        old = round - node.run.first.checkpoint_rounds - RETAINED_ROUNDS
        if old >= 0:
            for key in (
                keys.payload(node.run.id, old),
                keys.reveal(node.run.id, old),
                keys.peer_report(node.run.id, old),
            ):
                node.doors.bucket.delete(key, timeout_seconds=10.0)


RETAINED_ROUNDS = 8


def main(argv: Sequence[str] | None = None) -> None:
    """Configure, connect, catch up and mine until stopped."""
    config = load("neurons/miner.py", SUMMARY, sys.argv[1:] if argv is None else argv, os.environ)
    log_to_stderr(config.log_level)
    from node.build import on_ranks

    on_ranks(config, lambda ranks: mine(config, ranks))


def mine(config: "NodeConfig", ranks: "Ranks") -> None:
    """Everything between configuration and the end, on the first rank."""
    from node.build import build

    built = build(config, "miner", home(config), ranks)
    Miner(built.node, built.shards).run()


if __name__ == "__main__":
    sys.exit(run_program(main))

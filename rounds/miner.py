"""A miner's rounds: train on the assigned pages, compress, seal and publish what was learned, follow what is agreed.

One round reads top to bottom in `Miner.play`; what a round consists of is docs/protocol.md section 2.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from math import isfinite
from typing import Any

from loguru import logger

from gauntlet.commitment import commitment
from node.beside import beside
from node.checkpoints import kept_from, published_by_most
from node.events import Phase, round_seconds
from node.follower import RETURN_BLOCKS
from node.node import Node
from node.payloads import open_threads
from node.state import SealedRound
from protocol import keys
from protocol.assignment import assigned
from protocol.errors import ChainError, MurmurError, StorageError
from protocol.messages import ENVELOPE_BYTES, Reveal, encode_document
from protocol.ports import Task
from protocol.types import Commitment, Digest, Page
from rounds.answers import Answers
from rounds.stood import Stood
from sparseloco import wire
from sparseloco.floats import NonFinite
from sparseloco.update import Update
from storage.exchange import publish
from storage.mirror import Mirror
from storage.realtime import seconds_until
from storage.seal import Sealing
from storage.upload import Upload, goes_ahead
from training.loader import sequences
from training.meter import Reading
from training.shards import Shards


class Diverged(MurmurError):
    """Inner training left finite numbers: nothing can be sent this round; the next one starts from theta again."""


class Over(MurmurError):
    """The round is over: the run went further than that while we caught up with it."""


class Late(MurmurError):
    """Block D was final before the last inner step: nothing that we send could count. What is trained so far stays out
    of the error feedback too, and the next round begins in time."""


@dataclass
class Ahead:
    """An upload that was begun before its object was saved. `object`: the saved file that it is of, None until then."""

    upload: Upload
    phase: Phase
    object: Digest | None = None


class Miner:
    """One miner's rounds over a node. speculates: whether it begins a round from the selection that it expects for the
    one before (docs/decisions/0059-a-round-in-which-no-gpu-waits.md)."""

    def __init__(self, node: Node, shards: Shards, *, speculates: bool = True) -> None:
        self.node, self.shards, self.speculates = node, shards, speculates
        self.claims: dict[str, Any] = {}
        self.stood = Stood(node)
        self.answers = Answers(node, Mirror(node.doors.bucket, node.run.id, node.time))
        self.finished = -1
        """The last round that we have nothing more to say in."""
        self.aside: Task | None = None
        """What of the last round nothing waits for: claims, cleaning up, how we stood."""
        self.ahead: Ahead | None = None
        """The upload of what we have sealed, begun before it was saved."""
        self.fetching: Task | None = None
        """Brings text of the next round."""

    def run(self) -> None:
        """Play every round whose commit window is open when we get there, until stopped."""

        self.node.abort_unfinished()
        while True:
            round = self.node.held.saved.round
            try:
                self.announce()
                round = self.open_round()
                self.play(round)
            except Over:
                continue
            except (Diverged, Late) as fault:
                logger.error("round {round}: {fault}; sending nothing", round=round, fault=str(fault))
                self.node.held.events.emit("broke_off", round, fault=str(fault))
                self.node.wait_for(self.node.clock.commit_by(round), "the round to pass")
            except (ChainError, StorageError) as fault:
                # Saved and sealed work is not lost: the next pass takes it up if the round is still open.
                self.node.held.events.emit("broke_off", round, fault=str(fault))
                self.node.setbacks.broke_off(round, fault)

    def announce(self) -> None:
        """Publish our bucket on chain, unless we have: before our first commitment, too, others have to be able to read
        what we lack."""
        me = self.node.registered()
        if me is not None and me.slot is None:
            self.node.post(None)

    def open_round(self) -> int:
        """The round to play: the one that we have sealed for while its key may still be published, else the first whose
        commit window is open."""
        node, sealed = self.node, self.node.held.saved.sealed
        unfinished = sealed is not None and self.finished < sealed.round == node.held.saved.round
        if unfinished and node.head() < node.clock.reveal_by(node.held.saved.round):
            return node.held.saved.round
        return node.next_round(node.clock.commit_by)

    def play(self, round: int) -> None:
        """One round. Anything that was saved before a crash is taken up where it was."""
        node = self.node
        if not (self.speculates and node.expect(round - 1)):
            self.follow(round)
        sealed = node.held.saved.sealed
        if sealed is None or sealed.round != round:
            self.train(round, self.pages(round))
            sealed = self.seal(round, self.compress())
        self.promise(round, sealed)
        self.await_others(round)
        counts = self.counts(round, sealed)
        if counts:
            self.reveal(round, sealed)
        self.finished = round
        node.prefetch(round)
        node.held.save_own()
        self.set_aside(round, counts)
        self.fetch_ahead(round + 1)

    def follow(self, round: int) -> None:
        """Hold what the run agreed on for the start of `round`. Raises Over when catch-up went further."""
        self.stood.follow(self.node.advance(round))
        if self.node.held.saved.round != round:
            raise Over
        self.node.look_at_terms(round)

    def set_aside(self, round: int, counts: bool) -> None:
        """Do beside the next round what it does not need."""
        if self.aside is not None:
            self.aside.join()  # its time is up since X

        def beside() -> None:
            try:
                if counts:
                    self.report(round)
                self.clean_up(round)
                self.stood.tell(self.node.seconds_until(self.node.clock.words_by(round)))
            except (ChainError, StorageError) as fault:
                logger.warning("round {round}: {fault}; nothing of it counts", round=round, fault=str(fault))

        self.answers.answer(round)
        self.aside = self.node.time.start(beside, "aside")

    def pages(self, round: int) -> tuple[Page, ...]:
        """The pages assigned to us, drawn from the hash of block D of the round before."""
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

    def fetch_ahead(self, round: int) -> None:
        """Begin to fetch the text of the next round's pages, which are known since D, beside what goes before it."""
        node = self.node
        if self.fetching is not None and self.fetching.is_alive():
            return  # after a round that broke off
        if self.shards.train.is_fetched:
            self.fetching = node.time.start(partial(self._fetch, self.pages(round)), "data")

    def _fetch(self, pages: Sequence[Page]) -> None:
        try:
            self.shards.train.hold(pages)
        except MurmurError as fault:
            logger.warning("text of the next round is not here yet: {fault}; trying again then", fault=str(fault))

    def hold(self, pages: Sequence[Page]) -> None:
        """Have the text of these pages, as far as `fetch_ahead` has not brought it."""
        if not self.shards.train.is_fetched:
            return
        with self.node.held.timeline.begin("data"):
            if self.fetching is not None:
                self.fetching.join()
                self.fetching = None
            self.shards.train.hold(pages)

    def train(self, round: int, pages: Sequence[Page]) -> None:
        """H inner steps from theta; the replica's weights become theta_r. The chain is followed meanwhile: what we have
        begun from and nobody has agreed on yet is confirmed, or changed, as soon as the decision is known.

        Raises Late, and Over when the run went further without us."""
        node, spec, seconds = self.node, self.node.run.spec_at(round), 0.0
        self.hold(pages)
        batch = sequences(self.shards.train, pages, spec.model.context)
        meter = node.held.replica.meter(spec.inner, self.show)
        with node.following(node.clock.commit_by(round)) as late:
            resume = False
            while True:
                with node.held.timeline.begin("compute") as watch:
                    report = node.held.replica.inner_round(
                        batch,
                        inner=spec.inner,
                        on_step=meter,
                        stopped=lambda: late() or node.is_decided(),
                        resume=resume,
                    )
                seconds += watch.seconds
                if (done := report.steps) < spec.inner.steps and late():
                    raise Late(f"too late to commit after inner step {done} of {spec.inner.steps}, {seconds:.0f} s")
                if not node.expects:
                    break
                self.follow(round)
                resume = True
        self.claims = {
            "loss": report.mean_loss if isfinite(report.mean_loss) else None,
            "tokens": report.num_tokens,
            "seconds": {"compute": round_seconds(seconds)},
        }
        node.held.events.emit("trained", round, **self.claims)
        self.stood.losses[round] = self.claims["loss"]
        logger.debug(
            "round {round}: loss {loss:.4f}, {rate:.0f} tokens/s, {left:.0f} s before the deadline",
            round=round,
            loss=report.mean_loss,
            rate=report.num_tokens / seconds,
            left=node.seconds_until(node.clock.commit_by(round)),
        )

    def show(self, reading: Reading) -> None:
        """How training goes, of long rounds: what the last reading says stands in the round's line."""
        last = reading.step == self.node.run.first.inner.steps - 1
        logger.log("DEBUG" if last else "INFO", "{reading}", reading=str(reading))

    def compress(self) -> Update:
        """Error feedback, Top-k, 2-bit: the update that we send; the error feedback keeps the rest."""

        self.node.held.own.hold()
        try:
            with self.node.held.timeline.begin("compress"):
                return self.node.held.replica.compress()
        except NonFinite as fault:
            raise Diverged(f"training has diverged ({fault})") from None

    def seal(self, round: int, update: Update) -> SealedRound:
        """Encrypt, sign and save object and key: the one commit point of the round. A restart publishes these very
        bytes.

        What is sealed travels at once, but for the part with the envelope and the completion. Those are left to
        `publish`, so nobody can see anything that is not saved. What we carry over is written later, beside the rounds.
        """

        node = self.node
        with node.held.timeline.begin("seal"):
            plaintext = memoryview(wire.encode(node.held.replica.digest(), update))
            sealing = Sealing(plaintext, run=node.run.id, round=round, signer=node.doors.signer)
            upload = self.begin_upload(round, sealing.object)

            def add(section: int) -> None:
                end = sealing.add(section)
                if upload is not None:
                    upload.ready(end)

            beside(add, sealing.sections, open_threads(node.run.first), node.time)
            sealing.finish()
        with node.held.timeline.begin("save"):
            saved = SealedRound(round, node.held.store.write(sealing.object), sealing.key)
            node.held.save(sealed=saved)
        if self.ahead is not None:
            self.ahead.object = saved.object
        return saved

    def begin_upload(self, round: int, data: bytearray) -> Upload | None:
        """Begin to upload an object in the making; None where that gains nothing or cannot be."""

        node = self.node
        self.abandon_upload()
        try:
            deadline = node.seconds_until(node.clock.commit_by(round))
        except ChainError:
            return None  # not a reason to lose work that is not saved yet
        if not goes_ahead(node.doors.bucket, len(data)) or deadline <= 0:
            return None
        upload = Upload(
            node.doors.bucket, keys.payload(node.run.id, round), data, timeout_seconds=deadline, time=node.time
        )
        self.ahead = Ahead(upload, node.held.timeline.begin("upload"))
        return upload

    def abandon_upload(self) -> None:
        """What was sent ahead is not what we publish, or comes too late."""
        ahead, self.ahead = self.ahead, None
        if ahead is not None:
            ahead.upload.abandon()
            ahead.phase.end()

    def promise(self, round: int, sealed: SealedRound) -> None:
        """Publish what is sealed, and commit to it beside that: the post waits for blocks, the upload for the link. A
        commitment to what cannot be read is taken back while there is time."""
        faults = list[MurmurError]()

        def post() -> None:
            try:
                self.commit(round, sealed)
            except MurmurError as fault:
                faults.append(fault)

        posting = self.node.time.start(post, "commit")
        try:
            self.publish(round, sealed)
        except StorageError:
            posting.join()
            if self.node.head() < self.node.clock.commit_by(round) and self.stands(self.commitment(round, sealed)):
                self.node.post(None)
            raise
        posting.join()
        if faults:
            raise faults[0]

    def await_others(self, round: int) -> None:
        """Wait for block D, and fetch meanwhile what others have put up: look after half of the time that is left, and
        half of the rest."""
        node, last = self.node, self.node.clock.commit_by(round)
        while (left := last - node.head()) > 0:
            node.prefetch(round)
            node.wait_for(last - left // 2, f"the end of round {round}'s commit window")

    def publish(self, round: int, sealed: SealedRound) -> None:
        """Make the sealed bytes visible before block D: finish the upload that was begun, or, when that is not of these
        bytes or has failed, upload them whole."""

        node = self.node
        if self.ahead is not None and self.ahead.object != sealed.object:
            self.abandon_upload()
        deadline = node.seconds_until(node.clock.commit_by(round))
        if deadline <= 0:
            self.abandon_upload()
            return  # it went up before we committed, or it is worthless
        phase = self.ahead.phase if self.ahead is not None else node.held.timeline.begin("upload")
        with phase:
            if not self.finish_upload(round, deadline):
                data = node.held.store.read(sealed.object)
                deadline = max(1.0, node.seconds_until(node.clock.commit_by(round)))
                publish(
                    node.doors.bucket, keys.payload(node.run.id, round), data, timeout_seconds=deadline, time=node.time
                )
        node.held.events.emit(
            "published",
            round,
            payload_bytes=node.held.store.path(sealed.object).stat().st_size,
            seconds={"upload": round_seconds(phase.seconds)},
        )

    def finish_upload(self, round: int, deadline: float) -> bool:
        """Whether the upload that was begun is now visible, whole."""

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

    def commit(self, round: int, sealed: SealedRound) -> None:
        """Put the digest of our envelope on chain by block D, again while there is time when a fork drops it. One that
        is lost is a round in which we are not selected: what we sent stays out of the error feedback."""

        node = self.node
        last = node.clock.commit_by(round)
        statement = self.commitment(round, sealed)
        block: int | None = None
        while not self.stands(statement):
            late = node.head() >= last
            if block is not None:
                then = "it is too late to commit again, so we are not selected" if late else "committing again"
                told = "round {round}: a fork dropped our commitment of block {block}: {then}"
                logger.warning(told, round=round, block=block, then=then)
                node.held.events.emit("commitment_dropped", round, block=block, again=not late)
            elif late:
                logger.warning("round {round}: finished after block {last}, too late to commit", round=round, last=last)
            if late:
                return
            with node.held.timeline.begin("commit"):
                block = node.post(statement)
            self.stood.margins[round] = last - block
            logger.debug(
                "round {round}: committed in block {block}, {margin} blocks before the deadline",
                round=round,
                block=block,
                margin=last - block,
            )
            node.held.events.emit("committed", round, block=block, in_time=block <= last)
            settled = max(block, min(block + RETURN_BLOCKS, last - 1))
            node.wait_for(settled, f"our commitment for round {round} to be final")

    def stands(self, statement: Commitment) -> bool:
        """Whether this is what our slot says, as of the finalised head."""
        me = self.node.registered()
        return me is not None and me.slot is not None and me.slot.statement == statement

    def counts(self, round: int, sealed: SealedRound) -> bool:
        """Whether our commitment stands in the state of block D, which is what everybody reads: a second post of ours
        after a restart, or a fork, may have moved it."""

        node, last = self.node, self.node.clock.commit_by(round)
        node.wait_for(last, f"the end of round {round}'s commit window")
        promises = (commitment(peer, round, last) for peer in node.doors.chain.peers(last) if peer.id == node.me)
        return self.commitment(round, sealed) in promises

    def commitment(self, round: int, sealed: SealedRound) -> Commitment:
        return Commitment(round, self.envelope_digest(sealed))

    def envelope_digest(self, sealed: SealedRound) -> Digest:
        """sha256 of the sealed object's envelope: what the chain pins."""

        return Digest(sha256(self.node.held.store.read_head(sealed.object, ENVELOPE_BYTES)).digest())

    def reveal(self, round: int, sealed: SealedRound) -> None:
        """Publish the key and the proof that we hold theta, before block V: D is final, so nothing that anybody sealed
        for the round can change any more."""

        node = self.node
        last = node.clock.commit_by(round)
        with node.held.timeline.begin("reveal"):
            proof = node.held.replica.sync_proof(node.doors.chain.header(last).hash, node.me)
            unsigned = Reveal(node.run.id, round, node.me, sealed.key, proof)
            reveal = replace(unsigned, signature=node.doors.signer.sign(unsigned.signed_part))
            deadline = max(1.0, node.seconds_until(node.clock.reveal_by(round)))
            publish(
                node.doors.bucket,
                keys.reveal(node.run.id, round),
                reveal.encode(),
                timeout_seconds=deadline,
                time=node.time,
            )
        node.held.events.emit("revealed", round)

    def report(self, round: int) -> None:
        """Our signed claims about the round, in our bucket: shown to people, decided on never."""

        node = self.node
        if not self.claims:
            return  # we came back with the work already sealed: nothing was measured
        document = encode_document("peer", node.run.id, round, self.claims, node.doors.signer)
        key = keys.peer_report(node.run.id, round)
        publish(node.doors.bucket, key, document, timeout_seconds=node.transfer_seconds(1), time=node.time)

    def clean_up(self, round: int) -> None:
        """Delete our objects, and copies, of rounds that no joiner needs any more: the newest checkpoint that most
        validators show says which. Takes no more than the time in which we wait for the round's decision."""
        node, every = self.node, self.node.run.spec_at(round).checkpoint_rounds
        bucket, until = node.doors.bucket, node.time.now() + node.seconds_until(node.clock.words_by(round))
        last = kept_from(every, round, round)
        try:
            if last and self._objects_before(last, until):
                left = seconds_until(until, node.time) / 2
                before = kept_from(every, round, published_by_most(node, round, left))
                for key in self._objects_before(before, until):
                    bucket.delete(key, timeout_seconds=seconds_until(until, node.time))
                self.answers.mirror.prune(before, timeout_seconds=seconds_until(until, node.time))
        except (ChainError, StorageError) as fault:
            logger.warning("what we no longer need to keep stays in our bucket: {fault}", fault=str(fault))

    def _objects_before(self, round: int, until: float) -> list[str]:
        """Keys of our payloads, keys and claims of earlier rounds, at most 1000 of each, the oldest first."""
        node, found = self.node, list[str]()
        for key_of in (keys.payload, keys.reveal, keys.peer_report):
            prefix = key_of(node.run.id, 0).removesuffix(f"{0:08d}")
            left = seconds_until(until, node.time)
            listed = node.doors.bucket.list(prefix, max_keys=1000, timeout_seconds=left)
            found += [key for key in listed if key < key_of(node.run.id, round)]
        return found

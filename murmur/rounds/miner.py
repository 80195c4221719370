"""A miner's rounds: train on the assigned pages, compress, seal and publish the update, follow the agreed selections.

`Miner.play` is one round from top to bottom; its parts are in docs/protocol.md section 2.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from loguru import logger

from gauntlet.commitment import commitment
from murmur.data.shards import Shards
from murmur.node.chain.follower import RETURN_BLOCKS
from murmur.node.node import Node
from murmur.node.program.process import stop_after
from murmur.node.state.saved import SealedRound
from murmur.node.sync.checkpoints import kept_from, published_by_most
from murmur.node.telemetry.causes import About
from murmur.node.telemetry.trouble import Trouble
from murmur.protocol import keys
from murmur.protocol.assignment import assigned
from murmur.protocol.errors import AccessDenied, ChainError, ConfigError, MurmurError, StorageCause, StorageError
from murmur.protocol.messages import REVEAL_BYTES, Reveal, encode_document
from murmur.protocol.ports import Task
from murmur.protocol.types import Commitment, Page
from murmur.rounds.contribution import Diverged, RoundWork
from murmur.rounds.outcome import Outcomes
from murmur.rounds.repair_answers import RepairAnswers
from murmur.training.recorder import TraceOf
from sparseloco.update import Update
from storage.exchange import cached, publish
from storage.mirror import Mirror
from storage.realtime import seconds_until
from storage.resume import keep

SENDING_MARGIN = 1.5
"""Times the last round's time to send that is kept for it where the steps do not end in time."""


class RoundOver(MurmurError):
    """The round is over: during our catch-up the run moved past it."""


class Late(MurmurError):
    """The commit deadline was final before the last inner step: nothing that we send could count. The training so far
    stays out of the error feedback too, and the next round begins in time."""


class Miner:
    """One miner's rounds on a node. speculates: whether it begins a round from the expected selection of the one before
    (docs/decisions/0059-a-round-in-which-no-gpu-waits.md)."""

    def __init__(self, node: Node, shards: Shards, *, speculates: bool = True) -> None:
        self.node, self.speculates = node, speculates
        self.work = RoundWork(node.state, shards, node.ports.bucket, node.ports.signer, node.time)
        self.outcomes = Outcomes(node)
        self.answers = RepairAnswers(node, Mirror(node.ports.bucket, node.run.id, node.time))
        self.finished = -1
        """The last round in which we have nothing more to publish."""
        self.upload_failed = False
        """Whether our last upload failed: we commit to nothing more before one succeeds."""
        self.sending_seconds = 0.0
        """How long the last round's update took from its last inner step until it was published and committed to."""
        self.came_into: int | None = None
        """The round that was under way when we began, -1 where none was; None before we have looked."""
        self.taken_back = -1
        """The last round whose commitment we took back: we make no second one in it."""
        self.finishing: Task | None = None
        """Work of the last round for which nothing waits: claims, cleaning up, our result."""

    def run(self) -> None:
        """Play every round whose commit window is still open, until stopped."""

        self.node.abort_unfinished()
        while True:
            round = self.node.state.saved.round
            try:
                if self.node.is_out(round):
                    self.sit_out()
                    continue
                self.announce()
                round = self.open_round()
                self.play(round)
                self.node.backoff.passed(round)
            except RoundOver:
                continue
            except (Diverged, Late) as fault:
                self.tell_why(round, fault)
                self.node.state.events.emit("interrupted", round, fault=str(fault))
                self.node.wait_for(self.node.clock.commit_deadline(round), "the round to pass")
            except (ChainError, StorageError) as fault:
                # Saved and sealed work is not lost: the next pass continues with it if the round is still open.
                self.node.state.events.emit("interrupted", round, fault=str(fault))
                self.node.backoff.pause_after(round, fault)

    def tell_why(self, round: int, fault: Diverged | Late) -> None:
        """Say why a round's work is not sent. What is left of the round into which we came may be too short for it."""
        if isinstance(fault, Late) and round == self.came_into:
            told = "round {round}: {fault}: this node came in the middle of it, and takes part from the next round on"
            logger.info(told, round=round, fault=fault)
            return
        self.node.backoff.tell(round, Trouble("diverged" if isinstance(fault, Diverged) else "too_slow", str(fault)))

    def announce(self) -> None:
        """Publish our bucket on chain, unless we have. Even before our first commitment other nodes have to be able to
        read our wanted list."""
        me = self.node.registered()
        if me is not None and me.slot is None:
            self.node.post(None)

    def sit_out(self) -> None:
        """Follow the run for a round in which our hotkey has no place on the subnet: what we trained would not
        count."""
        stop_after(None)
        node = self.node
        round = node.next_round(node.clock.commit_deadline)
        self.outcomes.follow(node.advance(round))
        node.wait_for(node.clock.commit_deadline(round), "this hotkey to be registered")

    def open_round(self) -> int:
        """Return the round to play: the one that we have sealed for while its key may still be published, else the
        first whose commit window is open."""
        node, sealed = self.node, self.node.state.saved.sealed
        if self.came_into is None:
            begins = node.next_round(node.clock.commit_deadline)
            self.came_into = begins if node.head() > node.clock.commit_deadline(begins - 1) else -1
        unfinished = sealed is not None and self.finished < sealed.round == node.state.saved.round
        if unfinished and node.head() < node.clock.reveal_deadline(node.state.saved.round):
            return node.state.saved.round
        stop_after(None)
        return node.next_round(node.clock.commit_deadline)

    def play(self, round: int) -> None:
        """Play one round. Work that was saved before a crash is continued."""
        node = self.node
        if not (self.speculates and node.expect(round - 1)):
            self.follow(round)
        sealed = node.state.saved.sealed
        if sealed is None or sealed.round != round:
            self.train(round, self.pages(round))
            began = node.time.now()
            sealed = self.seal(round, self.compress())
            self.promise(round, sealed)
            self.sending_seconds = node.time.now() - began
        else:
            self.promise(round, sealed)
        self.await_others(round)
        counts = self.counts(round, sealed)
        if counts:
            self.reveal(round, sealed)
        self.finished = round
        stop_after(None)
        node.prefetch(round)
        node.state.save_own()
        self.finish_in_background(round, counts)
        self.work.fetch_ahead(partial(self.pages, round + 1))

    def follow(self, round: int) -> None:
        """Follow the run to its agreed state at the start of `round`. Raises RoundOver if catch-up went further."""
        self.outcomes.follow(self.node.advance(round))
        if self.node.state.saved.round != round:
            raise RoundOver

    def finish_in_background(self, round: int, counts: bool) -> None:
        """Run tasks in the background that the next round does not need, after those of the last one."""
        before = self.finishing

        def finish() -> None:
            if before is not None:
                before.join()
            try:
                self.node.look_around(round, validates=False)
                if counts:
                    self.look_as_a_stranger(round)
                    self.report(round)
                self.clean_up(round)
                self.outcomes.tell(self.node.seconds_until(self.node.clock.vote_deadline(round)))
            except (ChainError, StorageError) as fault:
                logger.warning("round {round}: {fault}; nothing of it counts", round=round, fault=str(fault))

        self.answers.answer(round)
        self.finishing = self.node.time.start(finish, "aside")

    def pages(self, round: int) -> tuple[Page, ...]:
        """Return the pages assigned to us, drawn from the hash of the commit deadline's block of the round before."""
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
        """Make H inner steps from theta; the replica's weights become theta_r. The chain is followed meanwhile: an
        expected selection is confirmed or corrected as soon as the decision is known. Where work is verified, fewer
        steps count as what they are: the round ends while there is time to send them.

        Raises Late, and RoundOver if the run moved past the round without us.
        """
        node, inner = self.node, self.node.run.spec_at(round).inner
        of = self.trace_of(round)
        training = self.work.training(round, pages, inner, of)
        until = node.time.now() + self.seconds_to_commit(round) - SENDING_MARGIN * self.sending_seconds

        def is_last_call() -> bool:
            return of is not None and self.sending_seconds > 0.0 and node.time.now() > until

        with node.following(node.clock.commit_deadline(round)) as late:
            while True:
                done = training.go_on(lambda: late() or node.is_decided() or is_last_call())
                if done < inner.steps and late():
                    took = f"{training.seconds:.0f} s"
                    raise Late(f"too late to commit after inner step {done} of {inner.steps}, {took}")
                if not node.expects:
                    break
                self.follow(round)
                if is_last_call() and node.state.replica.steps:
                    break
        self.outcomes.losses[round] = training.end()["loss"]
        logger.debug(
            "round {round}: loss {loss:.4f}, {rate:.0f} tokens/s, {left:.0f} s before the deadline",
            round=round,
            loss=training.report.mean_loss,
            rate=training.report.num_tokens / training.seconds,
            left=node.seconds_until(node.clock.commit_deadline(round)),
        )

    def trace_of(self, round: int) -> TraceOf | None:
        """Return what our trace's places are drawn from; None where work is not verified."""
        node, places = self.node, self.node.run.spec_at(round).trace.places
        if not places:
            return None
        return TraceOf(node.run.id, node.ports.chain.header(node.clock.page_block(round)).hash, node.me, places)

    def compress(self) -> Update:
        return self.work.compress()

    def seal(self, round: int, update: Update) -> SealedRound:
        return self.work.seal(round, update, partial(self.seconds_to_commit, round))

    def seconds_to_commit(self, round: int) -> float:
        """Return the planned seconds until the round's commit deadline, at least 0."""
        return self.node.seconds_until(self.node.clock.commit_deadline(round))

    def promise(self, round: int, sealed: SealedRound) -> None:
        """Publish the sealed object and commit to it concurrently: the post waits for blocks, the upload for the link.
        A commitment to an object that cannot be read is taken back while there is time.

        After an upload that failed, the commitment of the rounds that follow waits for one that succeeds. Each costs
        the chain's quota for our hotkey, and a bucket may refuse for days.
        """
        if self.taken_back == round:
            return
        if self.upload_failed:
            self.upload_failed = not self.publish(round, sealed)
            if not self.upload_failed:
                self.commit(round, sealed)
            return
        faults = list[MurmurError]()

        def post() -> None:
            try:
                self.commit(round, sealed)
            except MurmurError as fault:
                faults.append(fault)

        posting = self.node.time.start(post, "commit")
        try:
            self.publish(round, sealed)
        except StorageError as fault:
            posting.join()
            if not self.work.is_published(round, sealed):
                self.upload_failed = True
                if self.node.head() < self.node.clock.commit_deadline(round) and self.stands(
                    self.commitment(round, sealed)
                ):
                    self.outcomes.margins.pop(round, None)
                    self.taken_back = round
                    self.node.post(None)
                    stop_after(None)
                raise
            logger.debug(
                "round {round}: published, though the answer was lost ({fault})", round=round, fault=str(fault)
            )
        posting.join()
        if faults:
            raise faults[0]

    def await_others(self, round: int) -> None:
        """Await the commit deadline, and fetch meanwhile the objects that others have published: look after half of the
        time that is left, and half of the rest."""
        node, last = self.node, self.node.clock.commit_deadline(round)
        while (left := last - node.head()) > 0:
            node.prefetch(round)
            node.wait_for(last - left // 2, f"the end of round {round}'s commit window")

    def publish(self, round: int, sealed: SealedRound) -> bool:
        """Make the sealed bytes visible before the commit deadline; return whether there was time."""
        return self.work.publish(round, sealed, partial(self.seconds_to_commit, round))

    def commit(self, round: int, sealed: SealedRound) -> None:
        """Put the digest of our envelope on chain by the commit deadline; if a fork drops it, retry while there is
        time. If the commitment is lost, we are not selected in this round, and our update stays out of the error
        feedback."""

        node = self.node
        last = node.clock.commit_deadline(round)
        statement = self.commitment(round, sealed)
        block: int | None = None
        while not self.stands(statement):
            late = node.head() >= last
            if block is not None and self.is_overwritten(block):
                self.tell_of_other(round, block)
                return
            if block is not None:
                then = "it is too late to commit again, so we are not selected" if late else "committing again"
                told = "round {round}: a fork dropped our commitment of block {block}: {then}"
                logger.warning(told, round=round, block=block, then=then)
                node.state.events.emit("commitment_dropped", round, block=block, again=not late)
            elif late:
                seen = f"finished after block {last}, too late to commit"
                node.backoff.tell(round, Trouble("too_slow", seen))
            if late:
                return
            stop_after(f"the key of round {round} is out: we have committed to it")
            with node.state.timeline.begin("commit"):
                block = node.post(statement)
            self.outcomes.margins[round] = last - block
            logger.info(
                "round {round}: committed in block {block}, {margin} blocks before the deadline",
                round=round,
                block=block,
                margin=last - block,
            )
            node.state.events.emit("committed", round, block=block, in_time=block <= last)
            settled = max(block, min(block + RETURN_BLOCKS, last - 1))
            node.wait_for(settled, f"our commitment for round {round} to be final")

    def stands(self, statement: Commitment) -> bool:
        """Whether our slot has this statement as of the finalised head."""
        me = self.node.registered()
        return me is not None and me.slot is not None and me.slot.statement == statement

    def tell_of_other(self, round: int, block: int) -> None:
        """Say that another process posts with our hotkey. We do not post against it: both would use up its bytes."""
        seen = f"our commitment of block {block} was overwritten"
        self.node.backoff.tell(round, Trouble("other_process", seen))

    def is_overwritten(self, block: int) -> bool:
        """Whether our slot holds what another process has posted, after ours of `block`. A fork leaves an older
        statement; ours may have been taken back by ourselves."""
        me = self.node.registered()
        if me is None or me.slot is None or me.slot.statement is None:
            return False
        return me.slot.block > block and me.slot.statement not in self.node.posted

    def counts(self, round: int, sealed: SealedRound) -> bool:
        """Whether our commitment is in the state of the commit deadline, which all nodes read: a second post of ours
        after a restart, or a fork, may have moved it."""

        node, last = self.node, self.node.clock.commit_deadline(round)
        node.wait_for(last, f"the end of round {round}'s commit window")
        promises = (commitment(peer, round, last) for peer in node.ports.chain.peers(last) if peer.id == node.me)
        counts = self.commitment(round, sealed) in promises
        if not counts and round in self.outcomes.margins and self.is_overwritten(last - self.outcomes.margins[round]):
            self.tell_of_other(round, last - self.outcomes.margins[round])
        return counts

    def commitment(self, round: int, sealed: SealedRound) -> Commitment:
        return Commitment(round, self.work.envelope_digest(sealed))

    def reveal(self, round: int, sealed: SealedRound) -> None:
        """Publish the key and the proof that we hold theta, before the reveal deadline. The commit deadline is final,
        so no object sealed for the round can change any more."""

        node = self.node
        last = node.clock.commit_deadline(round)
        with node.state.timeline.begin("reveal"):
            proof = node.state.replica.sync_proof(node.ports.chain.header(last).hash, node.me)
            unsigned = Reveal(node.run.id, round, node.me, sealed.key, proof)
            reveal = replace(unsigned, signature=node.ports.signer.sign(unsigned.signed_part)).encode()
            keep(cached(node.state.cache, node.me, keys.reveal(node.run.id, round)), reveal)
            self.show(round, reveal)

    def show(self, round: int, reveal: bytes) -> None:
        """Make the key visible."""
        node = self.node
        deadline = max(1.0, node.seconds_until(node.clock.reveal_deadline(round)))
        key = keys.reveal(node.run.id, round)
        publish(node.ports.bucket, key, reveal, timeout_seconds=deadline, time=node.time)
        node.state.events.emit("revealed", round)
        logger.info("round {round}: revealed", round=round)

    def look_as_a_stranger(self, round: int) -> None:
        """Say whether others can read our bucket, by the read key that we publish: only they use it."""
        node, key = self.node, keys.reveal(self.node.run.id, round)
        try:
            theirs = node.ports.open_pointer(node.ports.pointer)
            theirs.get(key, max_bytes=REVEAL_BYTES, timeout_seconds=node.transfer_seconds(1))
        except AccessDenied as fault:
            cause = "bucket_clock" if fault.cause is StorageCause.CLOCK else "read_key_refused"
            node.troubles.tell(round, Trouble(cause, str(fault)))
        except (StorageError, ConfigError) as fault:
            node.troubles.tell(round, Trouble("unread_by_others", str(fault)))
        else:
            node.troubles.mended(round, About.READ_KEY)

    def report(self, round: int) -> None:
        """Publish our signed claims about the round in our bucket: for people; no decision uses them."""

        node = self.node
        if not self.work.claims:
            return  # we restarted with the work already sealed: nothing was measured
        document = encode_document("peer", node.run.id, round, self.work.claims, node.ports.signer)
        key = keys.peer_report(node.run.id, round)
        publish(node.ports.bucket, key, document, timeout_seconds=node.transfer_seconds(1), time=node.time)

    def clean_up(self, round: int) -> None:
        """Delete our objects and copies of rounds that joiners do not need any more: the newest checkpoint that most
        validators show decides. Takes no longer than our wait for the round's decision."""
        node, every = self.node, self.node.run.spec_at(round).checkpoint_rounds
        bucket, until = node.ports.bucket, node.time.now() + node.seconds_until(node.clock.vote_deadline(round))
        last = kept_from(every, round, round)
        try:
            if last and self._objects_before(last, until):
                left = seconds_until(until, node.time) / 2
                before = kept_from(every, round, published_by_most(node, round, left))
                for key in self._objects_before(before, until):
                    bucket.delete(key, timeout_seconds=seconds_until(until, node.time))
                self.answers.mirror.prune(before, timeout_seconds=seconds_until(until, node.time))
        except (ChainError, StorageError) as fault:
            logger.warning("could not delete old objects from our bucket: {fault}", fault=str(fault))

    def _objects_before(self, round: int, until: float) -> list[str]:
        """Return the names of our payloads, keys and claims of earlier rounds, at most 1000 of each, the oldest
        first."""
        node, found = self.node, list[str]()
        for key_of in (keys.payload, keys.reveal, keys.peer_report):
            prefix = key_of(node.run.id, 0).removesuffix(f"{0:08d}")
            left = seconds_until(until, node.time)
            listed = node.ports.bucket.list(prefix, max_keys=1000, timeout_seconds=left)
            found += [key for key in listed if key < key_of(node.run.id, round)]
        return found

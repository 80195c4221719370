"""Pay: a validator's weights on chain when they are due, and whether what was sent came to stand there
(docs/protocol.md section 9).

A subnet may conceal weights at first (commit-reveal): then that the chain took them says nothing, and one that it
refuses to reveal it does not tell anybody. So every row that was sent is read back from where it has to stand.
"""

from loguru import logger

from gauntlet.book import ScoreBook
from gauntlet.report import Paid
from gauntlet.selection import Ranking
from gauntlet.weights import differing, is_due, lasting, weights
from node.node import Node
from node.state import SentWeights
from protocol.errors import STATE_PRUNED, ChainError

UNREAD_KEPT = 64
"""Rows that wait to be read back, at most: more wait only where the chain reveals nothing at all."""


class Pay:
    """What one validator pays the peers."""

    def __init__(self, node: Node) -> None:
        self.node = node

    def pay(self, round: int, book: ScoreBook, ranking: Ranking) -> Paid:
        """Set weights when they are due; what was computed is returned either way. A refusal costs a round's pay, never
        the round."""
        node, spec = self.node, self.node.run.spec_at(round)
        head = node.head()
        peers = node.doors.chain.peers(head)
        uids = lasting(node.doors.chain.peers(node.clock.commit_by(round)), peers)
        by_uid = weights(book, ranking, uids, spec.owner_id, spec.gauntlet)
        shares = {peer.id: by_uid[peer.uid] for peer in peers if peer.uid in by_uid}
        me = next((peer for peer in peers if peer.id == node.me), None)
        if not by_uid or me is None or not is_due(node.run, round, me.last_update, head):
            return Paid(head, None, shares)
        try:
            block = node.set_weights(by_uid)
        except ChainError as fault:
            logger.warning("round {round}: weights were not set: {fault}", round=round, fault=str(fault))
            if fault.code is not None:
                node.held.events.emit("weights_not_taken", round, code=fault.code)
            return Paid(head, None, shares)
        node.held.events.emit("weights", round, block=block, weights={str(uid): w for uid, w in by_uid.items()})
        unread = (*node.held.saved.unread, SentWeights(round, block, by_uid))
        node.held.save(unread=unread[-UNREAD_KEPT:])
        return Paid(head, block, shares)

    def nothing(self) -> Paid:
        """For a round that was not observed: the weights on chain stay as they are."""
        return Paid(self.node.head(), None, {})

    def read_back(self) -> None:
        """Look what became of the rows that were sent, of those that stand by now or never will."""
        held, waiting = self.node.held, list[SentWeights]()
        standing: dict[int, SentWeights] = {}
        for sent in held.saved.unread:
            try:
                block = self.node.doors.chain.stands_from(sent.set_in)
            except ChainError as fault:
                if fault.code != STATE_PRUNED:
                    return  # the next round looks again
                told = "round {round}: its weights cannot be read back: this chain node keeps too few blocks"
                logger.warning(told, round=sent.round)
                continue
            if block is None:
                waiting.append(sent)
            else:
                standing[block] = sent  # of two that one block reveals the later has overwritten the other
        try:
            for block, sent in standing.items():
                self._judge(block, sent)
        except ChainError as fault:
            logger.warning("weights cannot be read back: {fault}; trying again", fault=str(fault))
            return
        if len(waiting) < len(held.saved.unread):
            held.save(unread=tuple(waiting))

    def _judge(self, block: int, sent: SentWeights) -> None:
        """Compare what stands from `block` on with what was sent, and say so."""
        node = self.node
        me = next((peer for peer in node.doors.chain.peers(block) if peer.id == node.me), None)
        wrong = differing(sent.shares, node.doors.chain.weights(block, me.uid)) if me is not None else list(sent.shares)
        if not wrong:
            node.held.events.emit("weights_standing", sent.round, set_in=sent.set_in, block=block)
            return
        if me is None:
            why = "this hotkey was not registered any more"
        elif not me.validates:
            why = "this hotkey had no validator permit by then: it needs more stake"
        else:
            why = (
                "likely the subnet has begun to ask for another version key or for more weights in a row: restart with "
                "the newest release, and ask the subnet's owner"
            )
        logger.warning(
            "round {round}: the chain took our weights in block {set_in}, but from block {block} on, where they should "
            "stand, {count} of them are others, so nobody is paid by them: {why}",
            round=sent.round,
            set_in=sent.set_in,
            block=block,
            count=len(wrong),
            why=why,
        )
        node.held.events.emit(
            "weights_refused", sent.round, set_in=sent.set_in, block=block, uids=[int(uid) for uid in wrong]
        )

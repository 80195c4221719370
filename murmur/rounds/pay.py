"""Pay: set a validator's weights on chain when they are due, and read back whether they took effect (docs/protocol.md
section 9).

With commit-reveal a subnet conceals weights at first. Then it means nothing that the chain took them, and a refusal at
the reveal is not reported. So every row that was sent is read back at the block where it has to take effect.
"""

from collections.abc import Mapping, Sequence

from loguru import logger

from gauntlet.book import ScoreBook
from gauntlet.facts import ChainWeights
from gauntlet.report import Paid
from gauntlet.selection import Ranking
from gauntlet.weights import differing, is_due, lasting, weights
from murmur.node.chain.follower import RETURN_BLOCKS
from murmur.node.chain.weights_status import UnseenReason, row_of
from murmur.node.node import Node
from murmur.node.state.saved import SentWeights
from murmur.node.telemetry.causes import About
from murmur.node.telemetry.trouble import Trouble
from murmur.protocol.errors import STATE_PRUNED, ChainError
from murmur.protocol.types import Uid

REVEAL_BLOCKS = 30
"""Blocks that a reveal may take after its epoch: the beacon's pulse has to reach the chain."""
UNREAD_KEPT = 64
"""Most rows that wait to be read back: more wait only if the chain reveals nothing at all."""

_REFUSED = {"Payment": "weights_unpaid"}
_TOO_EARLY = ("SettingWeightsTooFast", "CommittingWeightsTooFast")


class Pay:
    """Sets one validator's weights."""

    def __init__(self, node: Node) -> None:
        self.node = node

    def pay(self, round: int, book: ScoreBook, ranking: Ranking) -> Paid:
        """Set weights when they are due; return the computed pay either way. A refusal costs a round's pay, never the
        round."""
        node, spec = self.node, self.node.run.spec_at(round)
        head = node.head()
        peers = node.ports.chain.peers(head)
        uids = lasting(node.ports.chain.peers(node.clock.commit_deadline(round)), peers)
        by_uid = weights(book, ranking, uids, spec.owner_id, spec.gauntlet)
        shares = {peer.id: by_uid[peer.uid] for peer in peers if peer.uid in by_uid}
        me = next((peer for peer in peers if peer.id == node.me), None)
        if not by_uid or me is None or not is_due(node.run, round, me.last_update, head):
            return Paid(head, None, shares)
        try:
            block = self._settled(self._set(by_uid, me.last_update), me.last_update)
        except ChainError as fault:
            if fault.code is not None:
                node.state.events.emit("weights_not_taken", round, code=fault.code)
            if fault.code in _TOO_EARLY:
                logger.info("round {round}: weights were not set yet: {fault}", round=round, fault=str(fault))
            else:
                node.troubles.tell(
                    round, Trouble(_REFUSED.get(str(fault.code), "weights_refused"), f"they were not set: {fault}")
                )
            return Paid(head, None, shares)
        node.state.events.emit("weights", round, block=block, weights={str(uid): w for uid, w in by_uid.items()})
        unread = (*node.state.saved.unread, SentWeights(round, block, by_uid))
        node.state.save(unread=unread[-UNREAD_KEPT:])
        return Paid(head, block, shares)

    def _set(self, by_uid: Mapping[Uid, float], before: int) -> int:
        """Set these weights, which are due; return the block in which the chain took them. If the chain's answer was
        lost, the retry comes too early for the chain, and the block is read back. `before`: block of the weights
        before."""
        node = self.node
        try:
            return node.set_weights(by_uid)
        except ChainError as fault:
            if fault.code not in _TOO_EARLY:
                raise
            node.wait_for(node.head() + node.run.first.clock.finality_blocks + RETURN_BLOCKS, "our weights to be final")
            me = node.registered()
            if me is None or me.last_update <= before:
                raise
            return me.last_update

    def _settled(self, block: int, before: int) -> int:
        """Return the final block in which the weights of `block` were set: a fork may have moved them. Raises
        ChainError if the fork dropped them. `before`: block of the weights before."""
        node = self.node
        node.wait_for(block + RETURN_BLOCKS, "our weights to be final")
        me = node.registered()
        if me is None or me.last_update <= before:
            raise ChainError(f"a fork dropped them after block {block}; the next round pays")
        return me.last_update

    def nothing(self) -> Paid:
        """Return the pay of a round that was not observed: the weights on chain stay as they are."""
        return Paid(self.node.head(), None, {})

    def read_back(self) -> None:
        """Check the sent rows that have taken effect by now, or never will."""
        held, waiting = self.node.state, list[SentWeights]()
        for sent in held.saved.unread:
            try:
                row = row_of(self.node.ports.chain, self.node.me, sent.set_in)
                if row is UnseenReason.WAITING:
                    waiting.append(sent)
                elif not isinstance(row, UnseenReason):
                    self._judge(sent, row)
            except ChainError as fault:
                told = "round {round}: its weights cannot be read back from the chain: {fault}"
                logger.warning(told, round=sent.round, fault=str(fault))
                if fault.code != STATE_PRUNED:
                    waiting.append(sent)
        if len(waiting) < len(held.saved.unread):
            held.save(unread=tuple(waiting))
        if waiting:
            self._look_at_reveals(waiting)

    def _look_at_reveals(self, waiting: Sequence[SentWeights]) -> None:
        """Say when rows have not been revealed although they were due."""
        node, round = self.node, self.node.state.saved.round
        try:
            head = node.head()
            subnet = node.ports.chain.subnet(head)
        except ChainError:
            return  # told by the chain's retries
        due = waiting[0].set_in + (subnet.reveal_epochs + 1) * (subnet.tempo + 1) + REVEAL_BLOCKS
        if head <= due:
            node.troubles.mended(round, About.WEIGHTS, "weights_unrevealed")
        else:
            seen = f"those of block {waiting[0].set_in} were due by block {due}, and block {head} is final"
            node.troubles.tell(round, Trouble("weights_unrevealed", seen))

    def _judge(self, sent: SentWeights, row: ChainWeights) -> None:
        """Compare a row on chain with the one that was sent, and emit the result."""
        node, block = self.node, row.block
        wrong = differing(sent.shares, row.now)
        if not wrong:
            node.state.events.emit("weights_standing", sent.round, set_in=sent.set_in, block=block)
            node.troubles.mended(node.state.saved.round, About.WEIGHTS)
            return
        me = next((peer for peer in node.ports.chain.peers(block) if peer.id == node.me), None)
        if me is not None and not me.validates:
            why = "this hotkey had lost its validator permit by then: it needs more stake"
        else:
            why = (
                "the subnet probably asks for another version key or more weights in a row now: update to the "
                "newest release, and ask the subnet's owner"
            )
        seen = f"it took those of block {sent.set_in}, but from block {block} on {len(wrong)} of them differ: {why}"
        node.troubles.tell(node.state.saved.round, Trouble("weights_refused", seen))
        node.state.events.emit(
            "weights_refused", sent.round, set_in=sent.set_in, block=block, uids=[int(uid) for uid in wrong]
        )

"""The round clock, in blocks of the chain (docs/protocol.md section 1). Pure arithmetic: no node's own clock decides.

Round r covers blocks [start + r*N, start + (r+1)*N):

    start             D        V        X              N
    | compute, upload | reveal | votes  | finality lag |
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Clock:
    """Windows of a round; all fields except `start_block` are offsets or lengths in blocks.

    commit: D, the commit deadline: the last block in which a commitment counts. reveal: V, the reveal deadline: keys
    are read until it is final. words (a vote's older name): X, the vote deadline: the last block in which a vote
    counts. round_blocks: N.
    """

    start_block: int
    round_blocks: int
    commit: int
    reveal: int
    words: int

    def start(self, round: int) -> int:
        """Return the first block of the round."""
        return self.start_block + round * self.round_blocks

    def page_block(self, round: int) -> int:
        """Return the block whose hash assigns the round's pages: the commit deadline of the round before. After it no
        peer's work for that round can change, so a miner may begin as soon as it is final. For the first round it is
        the block in the same place."""
        return max(0, self.commit_deadline(round - 1))

    def commit_deadline(self, round: int) -> int:
        """Return the last block whose commitments count."""
        return self.start(round) + self.commit

    def reveal_deadline(self, round: int) -> int:
        """Return the last block for keys: they count if they are readable before the reader's finalised head reaches
        it."""
        return self.start(round) + self.reveal

    def sample_block(self, round: int) -> int:
        """Return the first block after the reveal deadline; its hash draws the evaluation samples."""
        return self.reveal_deadline(round) + 1

    def vote_deadline(self, round: int) -> int:
        """Return the last block whose votes count; the first is the one after the commit deadline."""
        return self.start(round) + self.words

    def decided_before(self, block: int) -> int:
        """Return the newest round whose vote deadline is before `block`; negative before the first one's."""
        return (block - 1 - self.vote_deadline(0)) // self.round_blocks

    def paid_in(self, block: int) -> int:
        """Return the round whose book gave the weights that were set in `block`: the newest whose reveal deadline is
        before it, since a round that is decided early is paid before its vote deadline. Negative before the first one's
        reveal deadline."""
        return (block - 1 - self.reveal_deadline(0)) // self.round_blocks

    def end(self, round: int) -> int:
        """Return the first block of the next round."""
        return self.start(round + 1)

    def window_end(self, block: int) -> int:
        """Return the last block of the window that contains the block after `block`."""
        round = self.round_at(block)
        ends = self.commit_deadline(round), self.reveal_deadline(round), self.vote_deadline(round)
        return next((end for end in ends if end > block), self.commit_deadline(round + 1))

    def round_at(self, block: int) -> int:
        """Return the round that covers `block`; negative before the run's start."""
        return (block - self.start_block) // self.round_blocks

"""Which weights stand: the chain's word, not the validator's."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from murmur.lab.localnet import weights_check
from murmur.lab.localnet.weights_check import Standing
from murmur.protocol.errors import ChainError
from murmur.protocol.types import Header, Peer, PeerId, Uid, hotkey

ONE, TWO = PeerId(b"1" * 32), PeerId(b"2" * 32)


@dataclass
class Chain:
    """A chain on which two validators have uids 0 and 1. `commits`: (validator, block) -> the block that reveals it."""

    final: int = 0
    commits: dict[tuple[PeerId, int], int] = field(default_factory=dict)
    rows: dict[tuple[int, int], dict[int, int]] = field(default_factory=dict)
    """(block, uid) -> the row from then on."""
    refused: set[tuple[PeerId, int]] = field(default_factory=set)
    plain: bool = False
    down: bool = False
    asked: int = 0

    def finalized(self) -> Header:
        if self.down:
            raise ChainError("the chain does not answer")
        self.asked += 1
        return Header(self.final, None, 0.0)  # type: ignore[arg-type]

    def header(self, block: int) -> Any:
        return SimpleNamespace(hash=block.to_bytes(4, "big"))

    def peers(self, block: int) -> list[Peer]:
        last = {peer: max((b for p, b in self.commits if p == peer and b <= block), default=0) for peer in (ONE, TWO)}
        return [Peer(peer, Uid(uid), 1, True, last[peer]) for uid, peer in enumerate((ONE, TWO))]

    def stands_from(self, set_in: int) -> int | None:
        reveal = set_in if self.plain else next((r for (_, b), r in self.commits.items() if b == set_in), set_in)
        return reveal if reveal <= self.final else None

    def weights(self, block: int, uid: Uid) -> Mapping[int, int]:
        return next((row for (b, u), row in sorted(self.rows.items(), reverse=True) if u == uid and b <= block), {})

    def call(self, query: Any) -> Any:
        substrate = SimpleNamespace(query=lambda *_, block_hash: int(block_hash[2:], 16))
        block = query(SimpleNamespace(substrate=substrate))
        opened = [entry for entry, reveal in self.commits.items() if reveal == block and entry not in self.refused]
        other = {"event_id": "NewAccount", "attributes": {"account": hotkey(ONE)}}
        return [
            other,
            *({"event_id": "TimelockedWeightsRevealed", "attributes": (1, hotkey(peer))} for peer, _ in opened),
        ]

    def close(self) -> None:
        pass


@pytest.fixture
def chain(monkeypatch: pytest.MonkeyPatch) -> Chain:
    chain = Chain()
    monkeypatch.setattr(weights_check, "open_chain", lambda *_, **__: chain)
    return chain


def paid(block: int, **weights: float) -> dict[str, Any]:
    return {"event": "weights", "round": 0, "block": block, "weights": {uid[1:]: w for uid, w in weights.items()}}


def look(watch: Standing, *one: dict[str, Any], two: tuple[dict[str, Any], ...] = ()) -> tuple[int, int, int, int]:
    """(set, standing, refused, pending)"""
    events = {ONE: one, TWO: two}
    watch.look(events)
    counts = watch.counts(events)
    names = ("weights_set", "weights_standing", "weights_refused", "weights_pending")
    assert set(counts) == set(names)
    return counts[names[0]], counts[names[1]], counts[names[2]], counts[names[3]]


def test_a_commit_is_pending_until_it_is_revealed_and_then_stands(chain: Chain) -> None:
    watch = Standing("")
    chain.final, chain.commits = 12, {(ONE, 10): 20}
    chain.rows[20, 0] = {0: 0, 5: 21845, 6: 65535}
    event = paid(10, u5=0.25, u6=0.75)
    assert look(watch, event) == (1, 0, 0, 1)
    chain.final = 20
    assert look(watch, event) == (1, 1, 0, 0)


def test_a_row_that_is_another_one_or_that_was_never_revealed_is_refused(chain: Chain) -> None:
    chain.final, chain.commits = 30, {(ONE, 10): 20, (TWO, 11): 20}
    chain.rows[20, 0] = {5: 65535}
    chain.rows[3, 1] = {5: 65535}  # still the one of before: the reveal was refused
    chain.refused = {(TWO, 11)}
    assert look(Standing(""), paid(10, u6=1.0), two=(paid(11, u5=1.0),)) == (2, 0, 2, 0)


def test_of_commits_revealed_together_the_last_is_compared_and_all_are_counted(chain: Chain) -> None:
    chain.final, chain.commits = 30, {(ONE, 10): 20, (ONE, 15): 20}
    chain.rows[20, 0] = {5: 65535}
    events = paid(10, u6=1.0), paid(15, u5=1.0)
    assert look(Standing(""), *events) == (2, 2, 0, 0)
    chain.refused = {(ONE, 10)}
    assert look(Standing(""), *events) == (2, 0, 2, 0), "which of the two was refused is not told"


def test_a_commit_that_the_validator_has_not_told_of_yet_hides_the_one_before(chain: Chain) -> None:
    """Its round was still going on when the weights were counted."""
    chain.final, chain.commits = 30, {(ONE, 10): 20, (ONE, 15): 20}
    chain.rows[20, 0] = {5: 65535}
    assert look(Standing(""), paid(10, u6=1.0)) == (1, 1, 0, 0)


def test_a_block_that_did_not_move_last_update_holds_no_commit(chain: Chain) -> None:
    chain.final, chain.commits = 30, {(ONE, 12): 20}
    chain.rows[20, 0] = {5: 65535}
    assert look(Standing(""), paid(10, u5=1.0)) == (1, 0, 1, 0)


def test_weights_set_in_the_open_stand_at_once(chain: Chain) -> None:
    chain.final, chain.commits, chain.plain = 10, {(ONE, 10): 10}, True
    chain.rows[10, 0] = {5: 65535}
    assert look(Standing(""), paid(10, u5=1.0)) == (1, 1, 0, 0)


def test_a_refusal_that_the_validator_met_counts(chain: Chain) -> None:
    told = {"event": "weights_not_taken", "round": 1, "code": "Payment"}
    assert look(Standing(""), told) == (0, 0, 1, 0)


def test_a_chain_that_is_down_is_asked_again_and_a_settled_one_no_more(chain: Chain) -> None:
    watch = Standing("")
    chain.down = True
    chain.final, chain.commits = 30, {(ONE, 10): 20}
    chain.rows[20, 0] = {5: 65535}
    assert look(watch, paid(10, u5=1.0)) == (1, 0, 0, 1)
    chain.down = False
    assert look(watch, paid(10, u5=1.0)) == (1, 1, 0, 0)
    asked = chain.asked
    assert look(watch, paid(10, u5=1.0)) == (1, 1, 0, 0)
    assert chain.asked == asked

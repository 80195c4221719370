"""What liars say and show is what it is called: a lie that is none tests nothing."""

from types import SimpleNamespace
from typing import Any

import pytest

from gauntlet.agreement import abstention
from gauntlet.average import Average
from gauntlet.book import PeerRecord, ScoreBook
from murmur.lab.simulation import hostile
from murmur.lab.simulation.hostile import LIES, Faces, lie, told
from murmur.lab.simulation.store import Call
from murmur.protocol.errors import ObjectMissing
from murmur.protocol.messages import first_link
from murmur.protocol.spec import GauntletSpec
from murmur.protocol.types import Digest, PeerId, Vote

RUN = Digest(bytes([1]) * 32)
HONEST = Vote(3, 0b1101, Digest(bytes([2]) * 32), Digest(bytes([3]) * 32))
OLD = (Digest(bytes([4]) * 32), Digest(bytes([5]) * 32))
START = Digest(bytes([6]) * 32)


def votes(kind: str, monkeypatch: pytest.MonkeyPatch) -> list[Vote]:
    monkeypatch.setattr(hostile, "lie", lambda run, round: kind)
    return told(HONEST, RUN, START, OLD)


def test_every_lie_is_told_and_each_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {lie(RUN, round) for round in range(200)} == set(LIES)
    said = {kind: tuple(votes(kind, monkeypatch)) for kind in LIES}
    true = {kind for kind, found in said.items() if found == (HONEST,)}
    assert true == {"honest", "says it late"}, "the second one's lie is when it speaks"
    assert len({said[kind] for kind in LIES if kind not in true}) == len(LIES) - len(true)
    assert {len(found) for kind, found in said.items() if kind not in ("silent", "takes back", "contradicts")} == {1}


def test_what_is_said_is_what_the_lie_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    assert votes("silent", monkeypatch) == []
    assert votes("abstains", monkeypatch) == [abstention(3)]
    assert [vote.state_ref for vote in votes("theta_0", monkeypatch)] == [(START, first_link(RUN))]
    assert [vote.state_ref for vote in votes("an old state", monkeypatch)] == [OLD]
    assert [vote.bitmap for vote in votes("one peer", monkeypatch)] == [0b0001]
    first, second = votes("takes back", monkeypatch)
    assert (first, second.state_ref, second.bitmap) == (HONEST, HONEST.state_ref, 0)
    first, second = votes("contradicts", monkeypatch)
    assert (first, second.previous, second.bitmap) == (HONEST, HONEST.previous, HONEST.bitmap)
    assert second.theta != HONEST.theta


def test_a_two_faced_miner_is_seen_at_work_by_its_friend_alone_and_harming_by_the_others() -> None:
    miner, rules = PeerId(bytes([9]) * 32), GauntletSpec()
    books = {name: ScoreBook() for name in ("one", "two", "three")}
    programs: dict[str, Any] = {
        name: SimpleNamespace(scores=SimpleNamespace(book=book)) for name, book in books.items()
    }
    faces = Faces({"miner": "one"}, programs, {"miner": miner}, rules)

    def readers(round: int) -> set[str]:
        found = set()
        for reader in (*books, "miner-2"):
            try:
                faces.answer(Call("miner", reader, "get", f"run/reveal/{round:08d}"))
                found.add(reader)
            except ObjectMissing:
                pass
        return found

    worthless = PeerRecord(first_seen=0, evaluations=3, scores=Average(-1.0, 0.9), gaps=Average(-1.0, 0.9))
    # It harms while anybody but its friend still rates it; what it is seen at is the round's work.
    assert readers(0) == {"two", "three", "miner-2"}
    programs["one"].scores.book = ScoreBook(peers={miner: worthless})
    programs["two"].scores.book = ScoreBook(peers={miner: worthless})
    assert readers(1) == {"two", "three", "miner-2"}
    programs["three"].scores.book = ScoreBook(peers={miner: worthless})
    assert readers(2) == {"one", "miner-2"}
    assert readers(0) == {"two", "three", "miner-2"}, "what it did in a round it did"
    programs["two"] = None
    assert readers(3) == {"one", "miner-2"}, "who is down rates nobody"
    faces.answer(Call("miner", "two", "get", "run/payload/00000003"))
    faces.answer(Call("another", "two", "get", "run/reveal/00000003"))


def test_friends_are_shared_out_among_the_validators() -> None:
    miners = [f"miner-{number}" for number in range(7)]
    friends = Faces.drawn(1, miners, ["one", "two", "three"])
    assert friends.keys() == set(miners)
    counts = sorted(list(friends.values()).count(name) for name in ("one", "two", "three"))
    assert counts == [2, 2, 3]

"""The page over a network that is read from outside: the same rounds as its nodes tell of, and nothing hostile."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from murmur.node.chain.agreement import Agreement
from murmur.node.chain.head_watch import HeadWatch
from murmur.node.fetch.reports import UnreadReason
from murmur.node.observe import history as histories
from murmur.node.observe.history import History
from murmur.node.observe.reader import AsOf
from murmur.node.telemetry.trouble import Trouble
from murmur.page.folder import Folder
from murmur.page.health import health
from murmur.page.live import follower
from murmur.page.live import network as watcher
from murmur.page.live.network import NOT_KEPT, Network
from murmur.page.validators import validators
from murmur.protocol import keys
from murmur.protocol.messages import encode_document, parse_document
from murmur.protocol.types import Digest, Peer, PeerId, Vote, hotkey
from tests.cli.played_network import Forgetful, opened, outside, read_all
from tests.cli.test_watched_page import ROUNDS
from tests.fakes.bucket import Faults, _Object
from tests.fakes.chain import FakeChain, FakeSigner, fake_verify
from tests.network import FakeNetwork

INVENTED = Digest(bytes([7]) * 32)
COMPARED = ("contributing", "void", "decided", "rejected", "standing", "active", "unobserved", "learning")


@pytest.fixture(autouse=True)
def right_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of the network that was played are as old as its files, and are not looked at by their age."""
    monkeypatch.setattr(HeadWatch, "look", lambda watch, head: None)


@pytest.fixture
def roomy(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many events as a test reads at once, without a second thread."""
    monkeypatch.setattr(follower, "QUEUED", 0)


def by_its_nodes(played: FakeNetwork) -> dict[int, dict[str, Any]]:
    """The rounds as a run folder of its nodes tells them."""
    folder = Folder(played.folder.parent)
    for name, member in played.members.items():
        folder.rounds.hotkeys[name] = hotkey(member.peer)
        for event in (json.loads(line) for line in (member.home / "events.jsonl").read_text().splitlines()):
            folder.rounds.take(name, event)
    return {body["round"]: body for body in map(json.loads, folder.rounds.since(0, 1 << 30)[0])}


@pytest.mark.usefixtures("roomy")
def test_it_tells_what_the_nodes_tell_of_themselves(played: FakeNetwork) -> None:
    told, expected = read_all(Network("here", lambda: opened(played))), by_its_nodes(played)
    for number in ROUNDS:
        for field in COMPARED:
            assert told[number][field] == expected[number][field], (number, field)
        assert told[number]["pay"]
        assert told[number]["train_loss"] == pytest.approx(expected[number]["train_loss"])


@pytest.mark.usefixtures("roomy")
def test_the_validators_votes_and_weights_are_those_that_they_tell_of_themselves(played: FakeNetwork) -> None:
    source = Network("here", lambda: opened(played))
    read_all(source)
    rows = validators(source.rounds, 2)
    assert [row["stake"] for row in rows] == [0.75, 0.25]
    for row, name in zip(rows, ("one", "two"), strict=True):
        [said] = [event for event in played[name].events("word_posted") if event["round"] == 2]
        assert row["validator"] == hotkey(played[name].peer)
        assert (row["voted_in"], row["named"], len(row["peers"])) == (said["block"], said["named"], said["named"])
        [state] = [event["theta"] for event in played[name].events("applied") if event["round"] == 1]
        assert (row["vote"], row["theta"], row["last_round"]) == ("names", state, 2)
        assert [row["set_in"]] == [
            event["block"] for event in played[name].events("weights") if event["round"] == 2
        ] or [None]


@pytest.mark.usefixtures("roomy")
@pytest.mark.parametrize(
    ("silent", "why"),
    [(1, "No model was named by more than half of the validators' stake."), (2, "No peer was named by more than half")],
)
def test_why_a_round_was_void_is_read_from_the_chain(silent: int, why: str, played: FakeNetwork) -> None:
    chain = Mute(played.world, PeerId(bytes(32)))
    chain.since, chain.blank = played.clock.commit_deadline(2), silent == 2
    source = Network("here", lambda: opened(played, replace(outside(played), chain=chain)))
    assert read_all(source)[2]["why_void"].startswith(why)
    assert why in health(source)[1]


class Mute(FakeChain):
    """Nobody posts a vote after this block; or (`blank`) all votes name nobody."""

    since = 0
    blank = False

    def peers(self, block: int) -> tuple[Peer, ...]:
        found = super().peers(block)
        if block <= self.since:
            return found
        if not self.blank:
            before = {peer.id: peer.slot for peer in super().peers(self.since)}
            return tuple(replace(p, slot=before[p.id]) if p.validates else p for p in found)
        return tuple(
            replace(p, slot=replace(p.slot, statement=replace(p.slot.statement, bitmap=0)))
            if p.slot is not None and isinstance(p.slot.statement, Vote)
            else p
            for p in found
        )


@pytest.mark.usefixtures("roomy")
def test_pay_is_weighed_by_stake_and_the_larger_one_is_believed_first(played: FakeNetwork) -> None:
    source = Network("here", lambda: opened(played))
    told = read_all(source)[2]
    rows = source.detail(2)
    assert rows is not None
    one, two = hotkey(played["one"].peer), hotkey(played["two"].peer)
    for peer, share in told["pay"].items():
        said = rows["peers"][peer]
        assert share == pytest.approx(0.75 * said[one]["weight"] + 0.25 * said[two]["weight"], abs=1e-6)


@pytest.mark.usefixtures("roomy")
def test_what_the_chain_has_forgotten_comes_from_the_links(played: FakeNetwork) -> None:
    chain = Forgetful(played.world, PeerId(bytes(32)))
    chain.oldest = played.world.final
    told = read_all(Network("here", lambda: opened(played, replace(outside(played), chain=chain))))
    expected = by_its_nodes(played)
    for number in (0, 1):  # the last one's link stands on chain only when the next vote does
        for field in ("contributing", "void", "rejected", "standing", "active"):
            assert told[number][field] == expected[number][field], (number, field)


class Split(FakeChain):
    """One validator names another model from this block on."""

    liar = PeerId(bytes(32))
    since = 0

    def peers(self, block: int) -> tuple[Peer, ...]:
        return tuple(
            replace(peer, slot=replace(peer.slot, statement=replace(peer.slot.statement, theta=INVENTED)))
            if peer.id == self.liar
            and block >= self.since
            and peer.slot is not None
            and isinstance(peer.slot.statement, Vote)
            else peer
            for peer in super().peers(block)
        )


@pytest.mark.usefixtures("roomy")
@pytest.mark.parametrize(("large", "said"), [(0.1, True), (0.3, False)])
def test_a_validator_that_holds_another_model_is_told_of_if_its_stake_is_large(
    large: float, said: bool, played: FakeNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has a quarter of it."""
    monkeypatch.setattr(histories, "LARGE_STAKE", large)
    chain = Split(played.world, PeerId(bytes(32)))
    chain.liar, chain.since = played["two"].peer, played.clock.commit_deadline(2) + 1
    source = Network("here", lambda: opened(played, replace(outside(played), chain=chain)))
    read_all(source)
    state, sentence = health(source)
    assert sentence.startswith("Replicas differ in round 1") is said, sentence
    assert (state == "wrong") is said


class Alone(Forgetful):
    """After this block one validator is silent, and the other names an invented link in its votes."""

    silent = liar = PeerId(bytes(32))
    since = 0

    def peers(self, block: int) -> tuple[Peer, ...]:
        found = super().peers(block)
        if block <= self.since:
            return found
        before = {peer.id: peer.slot for peer in FakeChain.peers(self, self.since)}
        return tuple(
            replace(peer, slot=before[peer.id])
            if peer.id == self.silent
            else replace(peer, slot=replace(peer.slot, statement=replace(peer.slot.statement, previous=INVENTED)))
            if peer.id == self.liar and peer.slot is not None and isinstance(peer.slot.statement, Vote)
            else peer
            for peer in found
        )


@pytest.mark.parametrize("forgotten", [False, True])
def test_the_walk_back_begins_where_the_run_stands_and_not_where_one_says_that_it_does(
    forgotten: bool, played: FakeNetwork
) -> None:
    """A validator that speaks alone in the newest round may name whatever it invents. Of what the chain's node has
    forgotten, what most of the stake names now counts."""
    ports, clock = outside(played), played.clock
    agreed = Agreement(ports.chain)
    after = {round: agreed.outcome(played.run, round).agreed.link for round in ROUNDS}
    chain = Alone(played.world, PeerId(bytes(32)))
    chain.silent, chain.liar, chain.since = played["one"].peer, played["two"].peer, clock.commit_deadline(2)
    history = History(played.run, replace(ports, chain=chain))
    list(history.look())
    if forgotten:
        chain.oldest = chain.finalized().block
        history._agreement = Agreement(chain)
    peers = chain.peers(chain.finalized().block)
    assert history._newest_link(peers) == ((after[0], 1) if forgotten else (after[1], 3))
    chain.silent, chain.liar = PeerId(bytes(32)), played["one"].peer
    if forgotten:  # most of the stake
        peers = chain.peers(chain.finalized().block)
        assert history._newest_link(peers) == (INVENTED, 2)
        assert history._newest_link([]) is None


def test_whoever_keeps_silent_in_the_round_that_is_played_does_not_choose_where_the_walk_begins(
    played: FakeNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The honest ones have voted for the next round, and one that has not names what it has invented."""
    ports, clock = outside(played), played.clock
    head = ports.chain.finalized().block
    newest = clock.decided_before(head + 1)
    stands = Agreement(ports.chain).outcome(played.run, newest).agreed.link

    def saying(peer: Peer, round: int, link: Digest) -> Peer:
        assert peer.slot is not None
        said = Vote(round, 0, INVENTED, link)
        return replace(peer, slot=replace(peer.slot, block=clock.commit_deadline(round) + 1, statement=said))

    now = {
        played["one"].peer: (newest + 1, Digest(bytes([5]) * 32)),
        played["two"].peer: (newest, INVENTED),
    }
    real = type(ports.chain).peers

    def peers(chain: Any, block: int) -> list[Peer]:
        found = real(chain, block)
        return [saying(p, *now[p.id]) if p.id in now and block > clock.vote_deadline(newest) else p for p in found]

    played.world.step()
    monkeypatch.setattr(type(ports.chain), "peers", peers)
    history = History(played.run, ports)
    begun: list[Any] = []

    def older(*place: Any) -> Iterator[Any]:
        begun.append(place)
        return iter(())

    monkeypatch.setattr(history, "_older", older)
    list(history.look())
    assert begun == [(stands, newest + 1)]


def test_a_round_is_told_when_it_is_decided_and_its_reports_when_they_come(played: FakeNetwork) -> None:
    ports, clock = outside(played), played.clock
    then = AsOf(ports.chain, clock.vote_deadline(1))
    history = History(played.run, replace(ports, chain=then))
    first = [(told.event["event"], told.event["round"]) for told in history.look()]
    assert ("agreed", 1) in first
    assert ("agreed", 2) not in first
    report = keys.report(played.run.id, 2)
    held = {name: played.store.buckets[name].pop(report) for name in ("one", "two")}
    try:
        then._block = clock.vote_deadline(2)
        now = [told.event for told in history.look()]
        assert [event["event"] for event in now if event["round"] == 2] == [
            "agreed",
            *(2 * ["word_posted"] + 2 * ["trained"] + 2 * ["unread"]),
        ]
        assert [event for event in history.look() if event.event["round"] == 2] == []
    finally:
        for name, found in held.items():
            played.store.buckets[name][report] = found
    assert [told.event["event"] for told in history.look() if told.event["round"] == 2] == ["reported", "reported"]


def spoilt(played: FakeNetwork, how: str) -> bytes:
    run, two = played.run.id, played["two"]
    data = played.store.buckets["two"][keys.report(run, 2)].data
    body = parse_document(data, "report", run, 2, two.peer, fake_verify)
    if how == "crowd":
        body["peers"] |= {hotkey(FakeSigner(f"nobody-{n}").peer): {"uid": n, "weight": 0.0} for n in range(300)}
    if how == "numbers":
        body["peers"][hotkey(played["miner-1"].peer)]["weight"] = 1e300
    if how == "text":
        body["unobserved"] = "<script>"
    return {"torn": data[:-3], "nothing": b"", "huge": bytes(9 << 20)}.get(
        how, encode_document("report", run, 2, body, two.signer)
    )


@pytest.mark.usefixtures("roomy")
@pytest.mark.parametrize(
    ("how", "code"),
    [
        ("torn", UnreadReason.MALFORMED),
        ("nothing", UnreadReason.MALFORMED),
        ("crowd", UnreadReason.MALFORMED),
        ("numbers", UnreadReason.MALFORMED),
        ("text", UnreadReason.MALFORMED),
        ("huge", UnreadReason.TOO_LARGE),
    ],
)
def test_a_report_that_is_none_is_a_code_and_costs_the_other_nothing(
    how: str, code: str, played: FakeNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoils = _Object(spoilt(played, how), 0.0)
    monkeypatch.setitem(played.store.buckets["two"], keys.report(played.run.id, 2), spoils)
    source = Network("here", lambda: opened(played))
    told, detail = read_all(source), source.detail(2)
    assert detail is not None
    assert detail["unread"] == {hotkey(played["two"].peer): str(code)}
    assert told[2]["rejected"] == by_its_nodes(played)[2]["rejected"]


@pytest.mark.usefixtures("roomy")
def test_a_bucket_that_does_not_answer_is_asked_once_a_round(
    played: FakeNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(played.store.faults, "two", Faults(down=True))
    before = len(played.store.log)
    source = Network("here", lambda: opened(played))
    assert sorted(read_all(source)) == list(ROUNDS)
    source._look()
    keys_asked = [key for bucket, _, key in [*played.store.log][before:] if bucket == "two" and "/report/" in key]
    assert keys_asked == [keys.report(played.run.id, 2)]
    detail = source.detail(2)
    assert detail is not None
    assert detail["unread"] == {hotkey(played["two"].peer): "UNAVAILABLE"}


@pytest.mark.usefixtures("roomy")
def test_hotkeys_that_are_nobodys_are_told_of_up_to_a_bound(
    played: FakeNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A validator may invent some in every round: who is registered always has room."""
    monkeypatch.setattr(histories, "MAX_HOTKEYS", 10)
    run, two = played.run.id, played["two"]
    for number in ROUNDS:
        data = played.store.buckets["two"][keys.report(run, number)].data
        body = parse_document(data, "report", run, number, two.peer, fake_verify)
        invented = [hotkey(FakeSigner(f"nobody-{number}-{n}").peer) for n in range(50)]
        body["peers"] |= {peer: {"uid": 9, "weight": 0.1, "standing": "NOT_SELECTED"} for peer in invented}
        lie = _Object(encode_document("report", run, number, body, two.signer), 0.0)
        monkeypatch.setitem(played.store.buckets["two"], keys.report(run, number), lie)
    told = read_all(Network("here", lambda: opened(played)))
    assert len({peer for body in told.values() for peer in body["pay"]}) <= 10
    assert hotkey(played["miner-4"].peer) in told[2]["rejected"]


@pytest.mark.usefixtures("roomy")
def test_why_is_kept_of_so_many_bytes_of_reports(played: FakeNetwork, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher, "ROWS_BYTES", 2000)
    source = Network("here", lambda: opened(played))
    read_all(source)
    details = [source.detail(number) for number in ROUNDS]
    assert any(NOT_KEPT in detail["unread"].values() for detail in details if detail)
    assert source._rows_bytes == sum(map(len, source._rows.values())) <= 2000
    source.rounds.keep(2)
    assert [one.number for one in source.rounds] == [1, 2]
    assert source.detail(0) is None


def test_a_chain_that_stands_still_is_the_first_that_the_page_says(
    played: FakeNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Trouble("chain_halted", "block 9 has been the last one for 40 s")
    monkeypatch.setattr(HeadWatch, "look", lambda watch, head: told)
    source = Network("here", lambda: opened(played))
    read_all(source)
    assert health(source) == ("wrong", f"the chain: {told}.")

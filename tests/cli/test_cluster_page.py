"""The page over a cluster's bucket, whose documents real members have written: it says what they say of themselves,
costs few requests, survives whatever lies in the bucket, and keeps the token to itself."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from murmur.cluster.group_keys import Group
from murmur.cluster.ledger import Ledger
from murmur.lab.simulation.cluster import BUCKET, SECRET, STEPS
from murmur.lab.simulation.store import Faults, _Object
from murmur.page.cluster import MemberNow
from murmur.page.health import health
from murmur.page.live import cluster as sources
from murmur.page.live import follower
from murmur.page.live.cluster import Cluster
from murmur.page.rounds import Rounds
from murmur.page.server import Page, Watched
from murmur.page.tables import peer_rounds
from murmur.protocol import keys
from murmur.protocol.cluster import GROUP, Amendment, Beat, Claim, Standing
from murmur.protocol.errors import ConfigError, StorageError
from murmur.protocol.types import PeerId
from storage.realtime import REAL, RealTime
from tests.cluster.beats import Beats
from tests.lab.simulation.test_cluster import Watched as Simulated
from tests.lab.simulation.test_cluster import has_records
from tests.page.browser import CHROMIUM, browser

ROUNDS = 8
COMPARED = ("contributing", "void", "train_loss", "loss_range", "steps", "theta", "active", "rejected")


class Clock(RealTime):
    """Time that passes when a test says so."""

    seconds = 0.0

    def now(self) -> float:
        return self.seconds


class Played:
    """A cluster that has played, its store, and what its members said of themselves."""

    def __init__(self, simulated: Simulated) -> None:
        self.simulated, self.cluster = simulated, simulated.cluster
        self.store, self.clock = self.cluster.store, Clock()
        self.store.log = []
        self.objects = self.store.buckets[BUCKET]

    def ledger(self, me: PeerId = GROUP, *, read_only: bool = True) -> Ledger:
        bucket = self.store.bucket(BUCKET, reader="page", read_only=read_only)
        return Ledger(bucket, self.cluster.run, Group(SECRET), me, self.clock)

    def source(self, secrets: tuple[str, ...] = ()) -> Cluster:
        return Cluster(lambda: (self.ledger(), self.cluster.spec), secrets)

    def by_members(self) -> dict[int, dict[str, Any]]:
        """The rounds as the members' own events tell them."""
        rounds = Rounds()
        rounds.hotkeys = {machine.name: machine.id.hex() for machine in self.cluster.machines}
        for name, event, round, fields in self.simulated.events:
            rounds.take(name, {"event": event, "round": round, "time": 1.0, **fields})
        return bodies(rounds)


def bodies(rounds: Rounds) -> dict[int, dict[str, Any]]:
    return {body["round"]: body for body in map(json.loads, rounds.since(0, 1 << 30)[0])}


def read_all(source: Cluster) -> dict[int, dict[str, Any]]:
    while True:
        more = source._look() == 0
        while source.read():
            pass
        if not more:
            return bodies(source.rounds)


@pytest.fixture(autouse=True)
def roomy(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many events as a test reads at once, without a second thread."""
    monkeypatch.setattr(follower, "QUEUED", 0)


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Simulated:
    """Three members play; the second one is frozen in round 2, and its claim comes too late."""
    simulated = Simulated(tmp_path_factory.mktemp("cluster"))
    cluster = simulated.cluster
    serve = cluster.store.before

    def before(call: Any) -> None:
        cluster.store.now = 1.7e9 + cluster.clock.now
        serve(call)

    cluster.store.before = before

    def freeze(machine: Any, event: str, round: int) -> None:
        if (machine.name, event, round) == ("member-2", "trained", 2):
            machine.life.freeze(300.0)

    simulated.hook = freeze
    cluster.begin()
    simulated.play(has_records(simulated, ROUNDS))
    cluster.close()
    cluster.store.before = lambda call: None
    return simulated


@pytest.fixture
def played(once: Simulated) -> Iterator[Played]:
    """Tests may change what lies in the bucket."""
    store = once.cluster.store
    before = dict(store.buckets[BUCKET])
    yield Played(once)
    store.faults.clear()
    objects = store.buckets[BUCKET]
    for key in [key for key in objects if key not in before]:
        objects.pop(key)
    for key, found in before.items():
        objects[key] = found


def test_it_tells_what_the_members_tell_of_themselves(played: Played) -> None:
    told, expected = read_all(played.source()), played.by_members()
    assert sorted(told) == list(range(len(played.simulated.records())))
    for number in range(ROUNDS - 1):
        for field in COMPARED:
            if field != "active" or number != 2:  # who wakes up to a record may have no claim in the bucket
                assert told[number][field] == expected[number][field], (number, field)
        names = {machine.name: machine.id.hex() for machine in played.cluster.machines}
        if expected[number]["closed_by"] is not None:
            assert told[number]["closed_by"] == names[expected[number]["closed_by"]]
    assert all(one["train_loss"] is not None for one in told.values())


def test_how_long_a_round_lasted_follows_from_the_stores_clock(played: Played) -> None:
    told = read_all(played.source())
    assert told[0]["length"] is None
    times = [played.objects[keys.record(played.cluster.run, round)].modified for round in range(ROUNDS)]
    for number in range(1, ROUNDS):
        assert told[number]["length"] == pytest.approx(times[number] - times[number - 1], abs=1e-3)
        updates = played.simulated.records()[number].updates
        shares = sorted(update.seconds / told[number]["length"] for update in updates)
        assert told[number]["computed_range"] == pytest.approx([shares[0], shares[-1]], abs=1e-3)
        size = played.cluster.spec.object_bytes
        assert (told[number]["payload_bytes"], told[number]["sent_bytes"]) == (size, size * len(updates))
        assert told[number]["tokens"] == played.cluster.spec.model.context * sum(
            update.steps * played.cluster.spec.inner.sequences for update in updates
        )


def test_a_claim_that_came_after_the_record_is_late_and_one_from_another_theta_is_apart(played: Played) -> None:
    run, records = played.cluster.run, played.simulated.records()
    newest = len(records) - 1
    late, apart = PeerId(b"\7" * 32), PeerId(b"\x08" * 32)
    theirs = records[newest].updates[0].model_dump(exclude={"member"})
    for peer, theta in ((late, theirs["theta"]), (apart, "ee" * 32)):
        played.ledger(peer, read_only=False).claim(newest, Claim.model_validate(theirs | {"theta": theta}))
    junk = keys.claims(run, newest) + "ab" * 32
    played.objects[junk] = _Object(b"of nobody", 0.0)
    told = read_all(played.source())[newest]
    assert told["rejected"] == {late.hex(): "LATE", apart.hex(): "APART"}
    assert told["active"] == len(records[newest].updates) + 2


def test_records_are_read_once_and_beats_once_a_look(played: Played) -> None:
    source = played.source()
    read_all(source)
    records = sum(1 for key in played.objects if "/record/" in key)
    asked = [key for _, verb, key in played.store.log if verb == "get" and "/record/" in key]
    assert sorted(asked) == [keys.record(played.cluster.run, round) for round in range(records + 1)]
    played.store.log.clear()
    source._look()
    assert not [key for _, _, key in played.store.log if "/beat/" in key]  # it is too early
    played.clock.seconds += 2 * played.cluster.spec.cluster.beat_seconds
    played.store.log.clear()
    source._look()
    asked = sorted(f"{verb} {key.split('/')[1]}" for _, verb, key in played.store.log)
    assert asked == ["get amendment", "get record", "list beat"], "no beat has changed"


def test_a_long_run_is_read_in_portions_the_newest_rounds_of_it(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "PORTION_ROUNDS", 2)
    monkeypatch.setattr(sources, "ROUNDS_KEPT", 5)
    monkeypatch.setattr(Cluster, "rounds_kept", 5)
    whole = sorted(range(len(played.simulated.records())))[-5:]
    told = read_all(played.source())
    assert sorted(told) == whole
    assert told[whole[0]]["length"] is not None


@pytest.mark.parametrize("how", ["garbled", "lost", "huge"])
def test_a_record_that_cannot_be_read_is_a_gap_and_the_newest_one_a_trouble(how: str, played: Played) -> None:
    def spoil(round: int) -> None:
        key = keys.record(played.cluster.run, round)
        if how == "lost":
            played.objects.pop(key)
        else:
            played.objects[key] = _Object(b"<script>" if how == "garbled" else bytes(2 << 20), 0.0)

    count = len(played.simulated.records())
    spoil(4)  # not one of those by which the number of rounds is found
    source = played.source()
    told = read_all(source)
    assert sorted(told) == [round for round in range(count) if round != 4]
    assert source.stage().trouble is None
    if how != "lost":
        spoil(count)
        source._look()
        assert "was not written by this group" in (source.stage().trouble or "")


def beating(played: Played, number: int, name: str) -> Beats:
    ledger = played.ledger(PeerId(bytes([number]) * 32), read_only=False)
    return Beats(ledger, name, f"{number:016x}", round=9)


def states(source: Cluster) -> dict[str, str]:
    return {member.name: member.state for member in source.cluster().members}


def test_a_member_is_alive_silent_or_gone_by_its_beats(played: Played) -> None:
    for key in [key for key in played.objects if "/beat/" in key]:
        played.objects.pop(key)
    one, two, three = (beating(played, number, f"lab-{number}") for number in (1, 2, 3))
    for member in (one, two, three):
        member.beat()
    source = played.source()

    def look(*beating: Beats) -> dict[str, str]:
        for member in beating:
            member.beat(step=member.round.step + 1)
        played.clock.seconds += 10.0
        source._look()
        return states(source)

    assert look() == dict.fromkeys(("lab-1", "lab-2", "lab-3"), "unknown")
    assert look(one, two) == {"lab-1": "alive", "lab-2": "alive", "lab-3": "unknown"}
    two.leave()
    assert look(one) == {"lab-1": "alive", "lab-2": "left", "lab-3": "silent"}
    [first] = [member for member in source.cluster().members if member.name == "lab-1"]
    assert first == MemberNow("01" * 32, "lab-1", "alive", "train", 9, 2)
    for _ in range(40):  # it beats, and never moves on
        one.beat()
        played.clock.seconds += 10.0
        source._look()
    assert states(source)["lab-1"] == "stuck"
    played.ledger(read_only=False).clear(PeerId(bytes([3]) * 32))
    assert "lab-3" not in look()
    assert source.names["03" * 32] == "lab-3"  # its rounds have its name


def test_members_that_only_wait_are_no_sign_that_the_run_goes_on(played: Played) -> None:
    """Of a record that is lost for good, or of a checkpoint that never comes."""
    source, member = played.source(), beating(played, 1, "lab-1")

    def silent_after(phase: str, steps: int) -> float:
        member.beat(standing=Standing(phase), step=member.round.step + steps)
        source._grew -= 1000.0
        played.clock.seconds += 10.0
        source._look()
        return source.stage().silent_seconds

    read_all(source)
    silent_after("train", 1)
    assert silent_after("join", 0) > 900.0
    assert silent_after("train", 0) > 900.0
    assert silent_after("train", 1) < 900.0


def test_a_beat_that_cannot_be_read_changes_nothing_and_junk_is_nobody(played: Played) -> None:
    source = played.source()
    read_all(source)
    before = {member.name for member in source.cluster().members}
    assert before == {"member-1", "member-2", "member-3"}
    beats = keys.beats(played.cluster.run)
    played.objects[beats + "ab" * 32] = _Object(b"<script>", 0.0)
    played.objects[beats + "nonsense"] = _Object(b"{}", 0.0)
    victim = played.cluster.machines[0]
    played.objects[beats + victim.id.hex()] = _Object(bytes(5000), 0.0)
    played.clock.seconds += 10.0
    source._look()
    assert {member.name for member in source.cluster().members} == before


def test_amendments_are_shown_as_they_come_and_the_last_one_ends_the_run(played: Played) -> None:
    source, ledger = played.source(), played.ledger(read_only=False)
    read_all(source)
    changes: Any = {"inner": {"steps": STEPS + 5, "sequences": 3}}
    ledger.amend(1, Amendment(changes=changes))
    source._look()
    [coming] = source.cluster().amendments
    assert (coming.number, coming.from_round, coming.changes, coming.last) == (1, None, changes, False)
    records = played.simulated.records()
    newest = len(records)
    template = records[-1]
    ledger.amend(2, Amendment(last=True))
    for round, count in ((newest, 1), (newest + 1, 2)):
        ledger.close(round, template.model_copy(update={"amendments": count}))
    told = read_all(source)
    one, two = source.cluster().amendments
    assert (one.from_round, two.from_round, two.last) == (newest + 1, newest + 2, True)
    assert source.cluster().closed
    assert source.spec is not None
    assert source.spec.inner.steps == STEPS + 5
    steps = sum(update.steps for update in template.updates)
    context, before = played.cluster.spec.model.context, played.cluster.spec.inner.sequences
    assert [told[round]["tokens"] for round in (newest, newest + 1)] == [
        steps * before * context,
        steps * 3 * context,
    ]
    assert health(source)[0] == "good"
    assert health(source)[1].startswith(f"Ended after {newest + 2} rounds")


def test_a_store_that_is_away_is_said_without_secrets_and_what_was_known_stays(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = played.source(secrets=("the-access-key", SECRET))
    told = read_all(source)
    played.clock.seconds += 10.0

    def away(self: Ledger) -> tuple[dict[PeerId, Beat], set[PeerId]]:
        raise StorageError(f"list: the server answered 500: the-access-key {SECRET}")

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "read_beats", away)
        assert source._look() == follower.RETRY_SECONDS
    state, sentence = health(source)
    assert state == "wrong"
    assert sentence.startswith("list: the server answered 500: *** ***. The page shows older data")
    assert bodies(source.rounds) == told
    source._look()
    assert source.stage().trouble is None


def test_no_answer_holds_a_secret_or_the_key_of_an_update(played: Played) -> None:
    watched = Watched(played.source())
    source = watched.source
    assert isinstance(source, Cluster)
    read_all(source)
    watched.read()
    member = played.simulated.records()[0].updates[0].member.hex()
    answers = [watched.answer(0), watched.short(0, 0), watched.peer(member) or b"", watched.table()]
    answers += [json.dumps(watched.detail(number)).encode() for number in range(ROUNDS)]
    told = b"".join(answers)
    assert SECRET.encode() not in told
    for record in played.simulated.records():
        for update in record.updates:
            assert update.key.encode() not in told
            assert update.envelope.hex().encode() not in told


def test_each_member_has_its_rounds_with_their_loss(played: Played) -> None:
    source = played.source()
    read_all(source)
    for machine in played.cluster.machines:
        expected = [
            (round, update.loss, update.steps, update.seconds)
            for round, record in enumerate(played.simulated.records())
            for update in record.updates
            if update.member == machine.id
        ]
        rows = [row for row in peer_rounds(source.rounds, machine.id.hex()) if row["outcome"] == "contributing"]
        assert [(row["round"], row["loss"], row["steps"], row["seconds"]) for row in rows] == expected


def test_before_the_first_round_it_says_who_is_there(played: Played) -> None:
    for key in [key for key in played.objects if "/record/" in key or "/beat/" in key]:
        played.objects.pop(key)
    source = played.source()
    assert health(source) == ("waiting", "Looking for the run in the cluster's bucket.")
    read_all(source)
    assert health(source) == ("waiting", "No member takes part yet.")
    beating(played, 1, "lab-1").beat()
    played.clock.seconds += 10.0
    read_all(source)
    assert health(source) == ("waiting", "Round 0 is being played by 1 member.")


def test_a_run_that_is_not_there_is_an_error_at_the_start(played: Played) -> None:
    def missing() -> Any:
        raise ConfigError("the bucket holds no run")

    with pytest.raises(ConfigError):
        Cluster(missing).open()
    assert played.store.faults == {}
    played.store.faults[BUCKET] = Faults(down=True)
    source = played.source()
    source._look()
    assert source.stage().trouble is not None
    played.store.faults.clear()
    assert len(read_all(source)) == len(played.simulated.records())


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed: the page was not looked at")
@pytest.mark.parametrize("width", [400, 1400])
def test_in_a_browser_it_is_the_clusters_page(width: int, played: Played) -> None:
    played.clock = REAL  # type: ignore[assignment]
    page = Page(played.source().follow()).begin()
    text = "document.getElementById('{}').textContent"
    newest = len(played.simulated.records()) - 1
    try:
        with browser() as tab:
            tab.open(page.url, width)
            tab.until(f"{text.format('n-round')} === '{newest}'")
            tab.until("document.body.dataset.kind === 'cluster'")
            tab.until("document.querySelectorAll('#work tbody tr').length === 3")
            assert not tab.value("document.documentElement.scrollWidth > innerWidth")
            assert "do not tell" not in tab.value(text.format("phases-note"))
            assert "closed by member-" in tab.value(text.format("work-note"))
            tab.open("about:blank")
            assert tab.complaints == []
    finally:
        page.close()

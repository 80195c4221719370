"""Verified work in a network: validators repeat miners' steps, and pay for what they find."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from gauntlet.book import PeerRecord, ScoreBook
from gauntlet.checks import Checked
from gauntlet.finding import Topic, Verdict
from gauntlet.repetition import Repetition
from gauntlet.selection import Ranking
from murmur.lab.localnet.faults import Thin
from murmur.protocol.errors import ConfigError, StorageError
from murmur.protocol.types import PeerId, hotkey
from murmur.rounds.miner import Miner
from murmur.rounds.validator import Validator
from murmur.rounds.verify import Verifier
from murmur.training.replica import Replica
from tests.network import FakeNetwork
from tests.rounds.test_audit import audits, of, stored, whole_rounds

Networks = Callable[..., FakeNetwork]
TRACED = {"trace_values": 2 * 64, "verifications": 2}


def record(network: FakeNetwork, validator: str, miner: str) -> PeerRecord:
    program = network[validator].program
    return program.scores.book.peers[network[miner].peer]  # type: ignore[union-attr]


def verified(network: FakeNetwork, validator: str, miner: str) -> list[dict[str, Any]]:
    return [e for e in network[validator].events("verified") if e["peer"] == hotkey(network[miner].peer)]


def last_weights(network: FakeNetwork, validator: str) -> dict[str, float]:
    shares = network[validator].events("weights")[-1]["weights"]
    uids = {str(peer.uid): peer.id for peer in network.world.pending_peers}
    names = {member.peer: name for name, member in network.members.items()}
    return {names.get(uids[uid], "owner"): share for uid, share in shares.items()}


def test_honest_steps_are_repeated_bit_for_bit_and_paid_alike(networks: Networks) -> None:
    network = networks(miners=3, validators={"one": 100, "two": 99}, **TRACED)
    network.start()
    network.run_until(12)
    network.assert_agreement()
    for validator in ("one", "two"):
        for miner in ("miner-1", "miner-2", "miner-3"):
            found = verified(network, validator, miner)
            assert len(found) >= 3
            assert all(one["passed"] and one["declared"] == 2 for one in found)
            known = record(network, validator, miner)
            assert known.repeated == len(found) or known.repeated == len(found) - 1, "the last is not folded yet"
            assert known.unproven == 0
            assert known.work == pytest.approx(1 - 0.75**known.repeated)
    shares = last_weights(network, "one")
    assert max(shares.values()) < 2 * min(shares.values())


def test_a_thin_miner_is_found_and_earns_nothing(networks: Networks) -> None:
    network = networks(miners=3, validators={"one": 100}, **TRACED)
    network.start("one", "miner-1", "miner-2")
    network.start("miner-3", role=Thin)
    network.run_until(12)
    network.assert_agreement()
    found = verified(network, "one", "miner-3")
    assert found
    assert not any(one["passed"] for one in found)
    assert record(network, "one", "miner-3").work == 0.0
    assert record(network, "one", "miner-1").work > 0.5
    assert set(last_weights(network, "one")) == {"miner-1", "miner-2"}


def stop_after_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """So slow is the validator that there is time for one step of each in a round."""
    repeat = Replica.repeat

    def slow(self: Replica, *given: Any, **rest: Any) -> Any:
        return repeat(self, *given, **{**rest, "stopped": lambda: True})

    monkeypatch.setattr(Replica, "repeat", slow)


def test_a_slow_validator_goes_on_in_the_next_round_and_looks_at_fewer_miners_whole(
    networks: Networks, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stop_after_each_step(monkeypatch)
    network = networks(miners=3, validators={"one": 100}, **TRACED)
    network.start("one", "miner-1", "miner-2")
    network.start("miner-3", role=Thin)
    whole_rounds(network, 12)
    network.assert_agreement()
    told = network["one"].events("verified")
    # In each round the second step of one, and the first of the next.
    assert [event["round"] for event in told] == list(range(told[-1]["round"] + 1))
    assert len(told) >= 8
    for event in told:
        honest = event["peer"] != hotkey(network["miner-3"].peer)
        assert (event["passed"], event["declared"]) == (honest, 2)
        assert event["confirmed"] == honest, "there is no theta left for a second look"
    assert "verifies_nobody" not in {event["cause"] for event in network["one"].events("trouble")}
    found = [finding for round in range(4, 11) for finding in audits(network, round, tmp_path)["one"].findings]
    assert of(Verdict.DIFFERS, found) == []


def test_what_takes_too_many_rounds_is_given_up(networks: Networks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("murmur.rounds.verify.MOST_ROUNDS", 1)
    stop_after_each_step(monkeypatch)
    network = networks(miners=2, validators={"one": 100}, **TRACED)
    network.start()
    network.run_until(6)
    assert network["one"].events("verified") == []
    assert {event["why"] for event in network["one"].events("unverified")} == {"they take more than 1 rounds here"}
    network.assert_agreement()


def test_a_miner_that_has_time_for_half_of_the_steps_declares_them_and_is_paid_half(networks: Networks) -> None:
    class Slow(Miner):
        """Has to send after its first step."""

        def train(self, round: int, pages: Any) -> None:
            self.sending_seconds = 1e9
            super().train(round, pages)

    network = networks(miners=3, validators={"one": 100}, **TRACED)
    network.start("one", "miner-1", "miner-2")
    network.start("miner-3", role=Slow)
    network.run_until(14)
    network.assert_agreement()
    found = verified(network, "one", "miner-3")
    assert found
    assert all(one["passed"] and one["declared"] == 1 for one in found)
    known = record(network, "one", "miner-3")
    assert known.work == pytest.approx(0.5 * (1 - 0.75**known.repeated))


def test_a_validator_that_cannot_train_says_so_judges_on_and_pays_by_presence(
    networks: Networks, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_small(*_: object, **__: object) -> None:
        raise ConfigError("out of memory: not even one sequence fits")

    monkeypatch.setattr(Replica, "repeat", too_small)
    network = networks(miners=2, validators={"one": 100}, **TRACED)
    network.start()
    network.run_until(7)
    network.assert_agreement()
    assert network["one"].events("verified") == []
    assert "out of memory" in network["one"].events("unverified")[-1]["why"]
    trouble, *_ = network["one"].events("trouble")
    assert (trouble["cause"], trouble["round"]) == ("verifies_nobody", 3)
    assert "out of memory" in trouble["detail"]
    judged = network["one"].events("judged")[-1]
    assert (judged["drawn"], judged["verified"]) == (2, 0)
    assert set(last_weights(network, "one")) == {"miner-1", "miner-2"}


def test_a_miner_that_is_killed_with_its_object_sealed_goes_on_with_it(networks: Networks) -> None:
    network = networks(miners=3, validators={"one": 100, "two": 99}, **TRACED)
    network.start()
    network.run_until(3)
    network.run_blocks(lambda: any(event["round"] == 3 for event in network["miner-1"].events("committed")))
    network.kill("miner-1")
    network.start("miner-1")
    network.run_until(7)
    network.assert_agreement()
    assert hotkey(network["miner-1"].peer) in network["miner-2"].contributing(3)
    assert all(one["passed"] for one in network["one"].events("verified"))


def test_a_run_without_traces_repeats_nothing(networks: Networks) -> None:
    network = networks(miners=2)
    network.start()
    network.run_until(4)
    assert network["validator"].events("verified") == network["validator"].events("unverified") == []


def test_a_validator_that_is_killed_loses_its_open_repetitions_and_no_more(networks: Networks) -> None:
    network = networks(miners=3, validators={"one": 100, "two": 99}, **TRACED)
    network.start()
    network.run_until(5)
    before = record(network, "one", "miner-1").repeated
    network.kill("one")
    network.start("one")
    network.run_until(10)
    network.assert_agreement()
    assert record(network, "one", "miner-1").repeated >= before
    assert all(one["passed"] for one in network["one"].events("verified"))


class Fond(Verifier):
    """Repeats its friend's steps in place of those that are drawn."""

    def draw(self, round: int, checked: Checked, ranking: Ranking, book: ScoreBook) -> None:
        friend = max(checked.passed)
        super().draw(round, checked, replace(ranking, contributing=(friend,), reserve=()), book)


def test_an_audit_names_the_steps_that_were_not_drawn_and_nothing_of_an_honest_validator(
    networks: Networks, tmp_path: Path
) -> None:
    class Partial(Validator):
        verifying = Fond

    network = networks(miners=3, validators={"one": 100, "fond": 99}, **TRACED)
    network.start("one", "miner-1", "miner-2", "miner-3")
    network.start("fond", role=Partial)
    whole_rounds(network, 6)
    found = audits(network, 5, tmp_path)["one"].findings
    assert any("repetition" in row for row in stored(network, "one", 5)["peers"].values())
    assert of(Verdict.DIFFERS, found) == []
    assert Topic.WORK not in {finding.topic for finding in found}
    friend = max(network[f"miner-{number}"].peer for number in (1, 2, 3))
    rounds = [audits(network, round, tmp_path, "fond")["fond"].findings for round in range(2, 6)]
    assert (Topic.WORK, friend) in {one for findings in rounds for one in of(Verdict.DIFFERS, findings)}


class Slanderer(Verifier):
    """States what it once found of the first miner in each report, and that a round had one step for the last one."""

    once: Repetition | None = None

    def take(self) -> Mapping[PeerId, Repetition]:
        found = dict(super().take())
        first, *_, last = sorted(found) if len(found) > 1 else (None, None)
        if first is None or last is None:
            return found
        self.once = self.once or found[first]
        return {
            **found,
            first: self.once,
            last: replace(found[last], steps=1, declared=1, moves=(0.0,), gradients=(0.0,)),
        }


def test_an_audit_names_what_is_stated_twice_and_a_round_of_other_steps(networks: Networks, tmp_path: Path) -> None:
    class Slandering(Validator):
        verifying = Slanderer

    network = networks(miners=2, validators={"one": 100, "liar": 99}, **TRACED)
    network.start("one", "miner-1", "miner-2")
    network.start("liar", role=Slandering)
    whole_rounds(network, 6)
    said = [f.text for round in range(2, 6) for f in audits(network, round, tmp_path, "liar")["liar"].findings]
    assert any("are stated a second time" in text for text in said)
    assert any("1 steps stated for round" in text and "which had 2" in text for text in said)


def test_an_honest_validator_is_not_accused_after_an_amendment(networks: Networks, tmp_path: Path) -> None:
    network = networks(miners=3, validators={"one": 100}, trace_values=128, verifications=3)
    network.start()
    network.run_until(2)
    network.amend(from_round=6, changes={"gauntlet": {"verifications": 1}})
    whole_rounds(network, 9)
    found = [f for round in range(3, 9) for f in audits(network, round, tmp_path, "one")["one"].findings]
    assert of(Verdict.DIFFERS, found) == []
    assert len(verified(network, "one", "miner-1")) >= 4


def test_of_the_rounds_that_a_slow_validator_draws_meanwhile_each_may_be_next(
    networks: Networks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else everybody who sees when it ends knows at which rounds nobody will look."""
    work = Verifier.work

    def busy(self: Verifier, round: int) -> None:
        self._step_seconds = 0.0 if round % 2 else 1e9  # no time in every second round
        work(self, round)

    monkeypatch.setattr(Verifier, "work", busy)
    stop_after_each_step(monkeypatch)
    network = networks(miners=3, validators={"one": 100}, trace_values=128, verifications=1)
    network.start()
    network.run_until(40)
    found = [event["round"] for event in network["one"].events("verified")]
    assert len(found) >= 8
    assert len({later - round for round, later in pairwise(found)}) > 2, "no rhythm that shows"
    assert all(event["passed"] for event in network["one"].events("verified"))


def test_a_failure_stands_unconfirmed_if_the_text_for_a_second_look_cannot_be_had(
    networks: Networks, monkeypatch: pytest.MonkeyPatch
) -> None:
    repeat = Verifier._repeat

    def once(self: Verifier, *given: Any, split: bool = False) -> Any:
        if split:
            raise StorageError("the text is gone")
        return repeat(self, *given, split=split)

    monkeypatch.setattr(Verifier, "_repeat", once)
    network = networks(miners=3, validators={"one": 100}, **TRACED)
    network.start("one", "miner-1", "miner-2")
    network.start("miner-3", role=Thin)
    network.run_until(8)
    found = verified(network, "one", "miner-3")
    assert found
    assert not any(one["passed"] or one["confirmed"] for one in found)
    assert record(network, "one", "miner-3").unproven > 0

"""What the chain, the subnet or the run's owner do to nodes that run: within two rounds every surface names the cause,
and once it is mended the nodes go on by themselves."""

import re
import time
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from murmur.chain import operator
from murmur.chain.adapter import SubtensorChain, open_chain
from murmur.chain.extrinsics import Call
from murmur.chain.keys import create_wallet, open_wallet
from murmur.lab.localnet.plan import NETUID
from tests.chain.admin import set_hyperparameter
from tests.stuck.play import assert_told_everywhere, marks_of, record, until_back, until_told
from tests.stuck.stage import BLOCK_SECONDS, ROUND_SECONDS, Stage

if TYPE_CHECKING:
    from bittensor.wallet import Wallet

pytestmark = pytest.mark.slow

BACK_ROUNDS = 3.0
SHORT_TEMPO = 100


@pytest.fixture
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    stage = Stage(tmp_path_factory.mktemp("chain"), validators=2, miners=2)
    try:
        stage.publish()
        for node in stage.nodes:
            stage.start(node)
        until_back(stage, ["miner-1", "miner-2"], 0.0, 6.0)
        yield stage
    finally:
        stage.close()


def wallet(stage: Stage, name: str) -> "Wallet":
    return open_wallet(name, "default", str(stage.folder / "wallets"))


def chain_of(stage: Stage, name: str = "owner") -> "closing[SubtensorChain]":
    """Open the devnet itself, past all gates."""
    found = re.search(r"chain (ws://\S+),", stage.log("devnet"))
    assert found is not None
    return closing(open_chain(found[1], NETUID, wallet(stage, name)))


def root(stage: Stage, pallet: str, function: str, params: dict[str, Any]) -> None:
    with chain_of(stage) as chain:
        operator.submit(chain, wallet(stage, "owner").coldkey, Call(pallet, function, params), root=True)


def hyperparameter(stage: Stage, name: str, value: int) -> None:
    with chain_of(stage) as chain:
        set_hyperparameter(chain, wallet(stage, "owner"), name, value, root=True)


def assert_told(stage: Stage, name: str, awaited: dict[str, str], marks: dict[str, int], rounds: float = 2.0) -> None:
    seconds = until_told(stage, awaited, marks, rounds)
    for node, cause in awaited.items():
        record(name, cause, seconds[node], assert_told_everywhere(stage, node, cause))


def test_a_hotkey_that_lost_its_place_sits_out_and_is_back_once_it_is_registered_again(stage: Stage) -> None:
    create_wallet("newcomer", "default", str(stage.folder / "wallets"))
    marks = marks_of(stage)
    with chain_of(stage) as chain:
        before = {peer.id: peer.uid for peer in chain.peers(chain.finalized().block)}
        set_hyperparameter(chain, wallet(stage, "owner"), "max_allowed_uids", len(before), root=True)
        operator.transfer(chain, wallet(stage, "owner"), wallet(stage, "newcomer").coldkey.ss58_address, 100 * 10**9)
    with chain_of(stage, "newcomer") as chain:
        operator.register(chain, wallet(stage, "newcomer"))
        time.sleep(2 * BLOCK_SECONDS)
        left = {peer.id for peer in chain.peers(chain.finalized().block)}
    (lost,) = [n for n in stage.nodes if bytes(wallet(stage, n).hotkey.public_key) in before.keys() - left]
    assert_told(stage, "the hotkey loses its place on the subnet", {lost: "not_registered"}, marks)
    posts = len(stage.events(lost, "committed"))
    time.sleep(ROUND_SECONDS)
    assert len(stage.events(lost, "committed")) == posts, "it commits to what cannot count"
    hyperparameter(stage, "max_allowed_uids", len(before) + 1)
    with chain_of(stage, lost) as chain:
        operator.register(chain, wallet(stage, lost))
    if lost.startswith("miner"):
        until_back(stage, [lost], time.time(), BACK_ROUNDS)
    else:
        stage.wait_for("mend", lambda: stage.events(lost, "mended"), 3 * ROUND_SECONDS)


def test_two_processes_with_one_hotkey_are_told(stage: Stage) -> None:
    home = stage.folder / "nodes" / "miner-1-again"
    home.mkdir()
    text = re.sub(r"(?m)^metrics_port = .*$", "", stage.config("miner-1").read_text())
    (home / "node.toml").touch(0o600)
    (home / "node.toml").write_text(text.replace(str(stage.home("miner-1")), str(home)))
    marks = marks_of(stage)
    stage.start("miner-1", program="again", config=home / "node.toml")
    assert_told(stage, "two processes with one hotkey", {"miner-1": "other_process"}, marks, 4.0)
    stage.stop("again")
    until_back(stage, ["miner-1"], time.time(), BACK_ROUNDS)


def test_a_validator_that_loses_its_permit_is_told_at_the_epoch(stage: Stage) -> None:
    hyperparameter(stage, "tempo", SHORT_TEMPO)
    marks = marks_of(stage)
    hyperparameter(stage, "max_allowed_validators", 1)
    with chain_of(stage) as chain:
        stage.wait_for("epoch", lambda: _permitted(stage, chain) == 1, 3 * SHORT_TEMPO * BLOCK_SECONDS)
        loser = next(n for n in ("validator-1", "validator-2") if not _holds_permit(stage, chain, n))
    assert_told(stage, "a validator loses its permit", {loser: "no_permit"}, marks)
    hyperparameter(stage, "max_allowed_validators", 8)
    stage.wait_for("mend", lambda: stage.events(loser, "mended"), 3 * ROUND_SECONDS + SHORT_TEMPO * BLOCK_SECONDS)


def test_weights_that_the_chain_refuses_are_told(stage: Stage) -> None:
    marks = marks_of(stage)
    root(stage, "AdminUtils", "sudo_set_stake_threshold", {"min_stake": 10**18})
    # Two of three rounds set no weights.
    assert_told(stage, "too little stake for weights", {"validator-1": "weights_refused"}, marks, 4.0)
    root(stage, "AdminUtils", "sudo_set_stake_threshold", {"min_stake": 0})


def test_weights_that_are_never_revealed_are_told(stage: Stage) -> None:
    hyperparameter(stage, "tempo", SHORT_TEMPO)
    marks = marks_of(stage)
    stage.fault(("chain", "never-reveals"))
    due = (2 * (SHORT_TEMPO + 1) + 30) * BLOCK_SECONDS / ROUND_SECONDS
    assert_told(stage, "weights are never revealed", {"validator-1": "weights_unrevealed"}, marks, due + 2 * 2.0)


def test_a_hotkey_that_has_used_up_its_bytes_is_told_and_goes_on_with_more(stage: Stage) -> None:
    marks = marks_of(stage)
    root(stage, "Commitments", "set_max_space", {"new_limit": 100})
    assert_told(stage, "the chain's quota of posts is used up", {"miner-1": "posts_used_up"}, marks)
    root(stage, "Commitments", "set_max_space", {"new_limit": 3100})
    until_back(stage, ["miner-1", "miner-2"], time.time(), BACK_ROUNDS)


def test_a_coldkey_without_money_is_told_and_the_node_goes_on_once_it_has_some(stage: Stage) -> None:
    marks = marks_of(stage)
    with chain_of(stage, "miner-1") as chain:
        own = wallet(stage, "miner-1")
        rao = operator.balance(chain, own.coldkey.ss58_address)
        operator.transfer(chain, own, wallet(stage, "owner").coldkey.ss58_address, rao - 100_000 - 300_000)
    assert_told(stage, "the coldkey has no money for fees", {"miner-1": "no_money"}, marks)
    with chain_of(stage) as chain:
        operator.transfer(chain, wallet(stage, "owner"), own.coldkey.ss58_address, 10**9)
    until_back(stage, ["miner-1"], time.time(), BACK_ROUNDS)


def test_an_owner_that_publishes_another_run_is_told_in_a_line(stage: Stage) -> None:
    marks = marks_of(stage)
    stage.publish("other", 2000, "--replace")
    assert_told(stage, "the owner publishes another run", {"miner-1": "run_replaced"}, marks)
    assert "Traceback" not in stage.log("miner-1")
    assert len(stage.log("miner-1")[marks["miner-1"] :].splitlines()) < 30


def test_an_owner_whose_bucket_cannot_be_read_is_told_once_it_has_amended(stage: Stage) -> None:
    marks = marks_of(stage)
    stage.murmur("run", "amend", "run", "--yes", "--config", str(stage.folder / "owner.toml"), "--from-round", "40",
                 "--set", "gauntlet.reserve=0")  # fmt: skip
    stage.fault(("owner", "store-gone"))
    assert_told(stage, "the owner's bucket is away", {"miner-1": "owner_unread"}, marks, 3.0)
    stage.mend()
    stage.wait_for("mend", lambda: stage.events("miner-1", "mended"), 2 * ROUND_SECONDS)


def _holds_permit(stage: Stage, chain: SubtensorChain, name: str) -> bool:
    key = bytes(wallet(stage, name).hotkey.public_key)
    return any(peer.validates for peer in chain.peers(chain.finalized().block) if bytes(peer.id) == key)


def _permitted(stage: Stage, chain: SubtensorChain) -> int:
    return sum(_holds_permit(stage, chain, name) for name in ("validator-1", "validator-2"))

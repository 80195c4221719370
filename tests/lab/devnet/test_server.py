"""The JSON-RPC surface where the SDK does not go: bad requests, missing things, slow and vanished clients."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from websockets.sync.client import connect
from websockets.sync.connection import Connection

from murmur.lab.devnet import launch
from murmur.lab.devnet.launch import Admin
from murmur.protocol.errors import ChainError
from tests.lab.devnet.conftest import ALICE, genesis


@pytest.fixture(scope="module")
def admin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Admin]:
    devnet = launch.start(tmp_path_factory.mktemp("server"), genesis(), step=True, finality_lag_blocks=2)
    yield devnet.admin()
    devnet.stop()


@pytest.fixture(scope="module")
def connection(admin: Admin) -> Iterator[Connection]:
    with connect(admin.url) as connection:
        yield connection


def refusal(admin: Admin, method: str, *params: Any) -> ChainError:
    with pytest.raises(ChainError) as raised:
        admin.request(method, *params)
    return raised.value


def test_unknown_methods_and_wrong_parameters_have_their_json_rpc_codes(admin: Admin) -> None:
    assert refusal(admin, "chain_conquer").code == "-32601"
    for method, params in (
        ("chain_getHeader", ["not hex"]),
        ("chain_getHeader", ["0x00", "more"]),
        ("chain_getBlockHash", [-1]),
        ("chain_getBlockHash", [1 << 40]),
        ("chain_getBlockHash", ["0x" + "f" * 20]),
        ("state_getStorage", []),
        ("state_getStorage", [5]),
        ("state_queryStorageAt", [[None]]),
        ("state_queryStorageAt", [True]),
        ("state_getKeysPaged", ["0x", "many"]),
        ("account_nextIndex", ["nobody"]),
        ("devnet_step", [-1]),
        ("devnet_reorg", [1000]),
        ("devnet_finality", ["soon"]),
    ):
        assert refusal(admin, method, *params).code == "-32602", method


def test_unknown_blocks_are_null_or_an_error_as_on_a_node(admin: Admin) -> None:
    nowhere = "0x" + "ab" * 32
    assert admin.request("chain_getHeader", nowhere) is None
    assert admin.request("chain_getBlock", nowhere) is None
    assert admin.request("chain_getBlockHash", 10_000) is None
    assert "Header was not found" in str(refusal(admin, "state_getStorage", "0x00", nowhere))


def test_runtime_calls_that_do_not_exist_or_fit_are_refused(admin: Admin) -> None:
    assert "is not found" in str(refusal(admin, "state_call", "Nothing_at_all", "0x"))
    assert "bad arguments" in str(refusal(admin, "state_call", "SubnetInfoRuntimeApi_get_metagraph", "0x01"))
    assert admin.request("state_call", "SubnetInfoRuntimeApi_get_metagraph", "0x0900") == "0x00"  # no such subnet
    assert admin.request("state_call", "Metadata_metadata_at_version", "0x0e000000") == "0x00"


def test_keys_are_paged_in_order_without_gaps(admin: Admin) -> None:
    everything = admin.request("state_getKeysPaged", "0x", 1000, None, None)
    pages, start = [], None
    while page := admin.request("state_getKeysPaged", "0x", 7, start, None):
        pages += page
        start = page[-1]
    assert pages == everything == sorted(everything)
    assert len(everything) > 20


def test_a_subscription_is_answered_before_it_speaks_and_falls_silent_when_ended(admin: Admin) -> None:
    final = admin.step(3)["finalized"]
    with connect(admin.url) as connection:
        connection.send(json.dumps({"id": 5, "method": "chain_subscribeFinalizedHeads", "params": []}))
        subscription = json.loads(connection.recv(5))["result"]
        admin.step(2)
        updates = [json.loads(connection.recv(5))["params"] for _ in range(3)]
        assert {update["subscription"] for update in updates} == {subscription}
        assert [update["result"]["number"] for update in updates] == [hex(final + index) for index in range(3)]
        connection.send(json.dumps({"id": 6, "method": "chain_unsubscribeFinalizedHeads", "params": [subscription]}))
        assert json.loads(connection.recv(5)) == {"jsonrpc": "2.0", "id": 6, "result": True}
        admin.step(3)
        with pytest.raises(TimeoutError):
            connection.recv(0.2)


def test_clients_that_vanish_do_not_stop_the_chain(admin: Admin) -> None:
    for _ in range(3):
        connection = connect(admin.url)
        connection.send(json.dumps({"id": 1, "method": "chain_subscribeNewHeads", "params": []}))
        connection.recv(5)
        connection.socket.close()
    before = admin.info()["head"]
    assert admin.step(3)["head"] == before + 3


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8), lambda v: st.lists(v, max_size=3), max_leaves=6
)
METHODS = (
    *("account_nextIndex", "author_submitExtrinsic", "author_submitAndWatchExtrinsic", "author_unwatchExtrinsic"),
    *("chain_getBlock", "chain_getBlockHash", "chain_getHeader", "chain_unsubscribeNewHeads"),
    *("state_call", "state_getKeysPaged", "state_getRuntimeVersion", "state_getStorage", "state_queryStorageAt"),
)
methods = st.sampled_from(METHODS)
hexes = st.binary(max_size=40).map(lambda data: "0x" + data.hex())
requests = st.one_of(
    st.text(max_size=20),
    json_values.map(json.dumps),
    st.fixed_dictionaries(
        {"id": json_values, "method": methods, "params": st.lists(json_values | hexes, max_size=4)}
    ).map(json.dumps),
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(request_text=requests)
def test_every_request_gets_an_answer_and_none_breaks_the_server(connection: Connection, request_text: str) -> None:
    connection.send(request_text)
    answer = json.loads(connection.recv(10))
    assert ("result" in answer) != ("error" in answer)
    connection.send(json.dumps({"id": "still here", "method": "account_nextIndex", "params": [ALICE.ss58_address]}))
    assert json.loads(connection.recv(10)) == {"jsonrpc": "2.0", "id": "still here", "result": 0}

"""One boto3 client and one TLS context for all buckets: each request goes to its own endpoint, with its own
signature."""

import socket
import ssl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from murmur.protocol.errors import NotSupported, StorageError
from murmur.protocol.types import Pointer, PublicPointer
from storage import client, transport
from storage.s3 import S3Bucket, open_pointer
from tests.storage.hostile import Hostile, Script, hostile, response, says
from tests.storage.s3_cases import SECRET, get

WRONG_REGION = b"<Error><Code>AuthorizationHeaderMalformed</Code><Region>elsewhere-1</Region></Error>"


@pytest.fixture(autouse=True)
def nothing_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_shared_client", None)
    monkeypatch.setattr(transport, "_shared_context", None)


def answers(body: bytes) -> Script:
    return says("200 OK", f"Content-Length: {len(body)}", 'ETag: "e"', body=body)


def bucket_of(server: Hostile, access_key: str) -> S3Bucket:
    return open_pointer(Pointer(server.endpoint, "bucket", access_key, SECRET), local=True)


def test_new_pointers_make_no_new_client_and_no_new_tls_context(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each client took 28 ms under a lock, and a megabyte: 256 hotkeys may post new pointers in every round."""
    made: list[str] = []
    open_client, create_context = client._open_client, ssl.create_default_context
    monkeypatch.setattr(client, "_open_client", lambda: made.append("client") or open_client())
    monkeypatch.setattr(ssl, "create_default_context", lambda: made.append("context") or create_context())
    pointers = [Pointer(f"https://127.0.0.1:{1000 + n}", "bucket", f"key{n}", SECRET) for n in range(256)]
    with ThreadPoolExecutor(64) as pool:
        opened = list(pool.map(lambda pointer: open_pointer(pointer, local=True), pointers))
    assert len({id(bucket) for bucket in opened}) == 256
    assert sorted(made) == ["client", "context"]


@pytest.fixture
def servers() -> Iterator[list[Hostile]]:
    with ExitStack() as stack:
        yield [stack.enter_context(hostile(answers(b"%d" % number))) for number in range(4)]


def test_requests_at_the_same_time_reach_their_own_servers_with_their_own_keys(servers: list[Hostile]) -> None:
    buckets = [bucket_of(server, f"access{number}") for number, server in enumerate(servers)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda number: get(buckets[number % 4]), range(80)))
    assert found == [b"%d" % (number % 4) for number in range(80)]
    for number, server in enumerate(servers):
        host = server.endpoint.removeprefix("http://").encode()
        assert len(server.requests) == 20
        for request in server.requests:
            assert f"Credential=access{number}/".encode() in request
            assert b"Host: " + host in request


def test_a_public_bucket_beside_a_signed_one_is_asked_without_a_signature(servers: list[Hostile]) -> None:
    signed, public = bucket_of(servers[0], "access"), open_pointer(PublicPointer(servers[1].endpoint), local=True)
    for _ in range(2):
        assert (get(signed), get(public)) == (b"0", b"1")
    assert all(b"Authorization" in request for request in servers[0].requests)
    assert not any(b"Authorization" in request for request in servers[1].requests)


def test_a_server_that_names_another_region_is_not_asked_again_and_says_nothing_of_other_servers(
    servers: list[Hostile],
) -> None:
    """boto3 would ask for the region and keep it, for every bucket of that name."""

    def elsewhere(connection: socket.socket, head: bytes) -> None:
        size = f"Content-Length: {len(WRONG_REGION)}"
        connection.sendall(response("400 Bad Request", size, "Content-Type: application/xml", body=WRONG_REGION))

    with hostile(elsewhere) as liar:
        with pytest.raises(StorageError):
            get(bucket_of(liar, "access"))
        assert len(liar.requests) == 1
    assert get(bucket_of(servers[0], "access")) == b"0"
    assert b"/auto/s3/aws4_request" in servers[0].requests[0]


@pytest.fixture
def strange_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / ".aws").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):  # of the suite
        monkeypatch.delenv(name)
    return tmp_path / ".aws"


@pytest.mark.parametrize(
    ("variables", "config"),
    [
        ({"AWS_PROFILE": "work"}, ""),
        ({"AWS_DEFAULTS_MODE": "nonsense", "AWS_RETRY_MODE": "bad", "AWS_MAX_ATTEMPTS": "x"}, ""),
        ({"AWS_CA_BUNDLE": "/nowhere", "AWS_USE_FIPS_ENDPOINT": "true", "AWS_USE_DUALSTACK_ENDPOINT": "true"}, ""),
        ({"AWS_ENDPOINT_URL_S3": "nonsense", "AWS_REQUEST_CHECKSUM_CALCULATION": "x"}, ""),
        ({"AWS_S3_US_EAST_1_REGIONAL_ENDPOINT": "bad", "AWS_S3_USE_ARN_REGION": "x"}, ""),
        ({"AWS_ACCESS_KEY_ID": "half"}, ""),
        ({}, "[default]\ns3 =\n  use_accelerate_endpoint = true\n"),
        ({}, "not an ini file"),
        ({}, "[default]\nregion = nowhere\nsignature_version = s3v2\n"),
    ],
)
def test_the_machines_own_settings_for_aws_change_nothing(
    variables: dict[str, str],
    config: str,
    servers: list[Hostile],
    strange_home: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    for file in ("config", "credentials"):
        (strange_home / file).write_text(config)
    assert get(bucket_of(servers[0], "access")) == b"0"
    assert b"Credential=access/" in servers[0].requests[0]
    assert b"/auto/s3/aws4_request" in servers[0].requests[0]


def test_a_store_of_one_region_only_is_refused_with_the_remedy() -> None:
    size = f"Content-Length: {len(WRONG_REGION)}"
    with hostile(says("400 Bad Request", size, "Content-Type: application/xml", body=WRONG_REGION)) as server:
        with pytest.raises(NotSupported, match="use a store that takes any") as told:
            get(bucket_of(server, "access"))
        assert "elsewhere-1" not in str(told.value)

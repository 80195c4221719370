"""Pointers to addresses that are not public, and TLS: the bucket connects only where it may."""

import socket
import ssl
import time
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address, IPv6Address, ip_network
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st

from murmur.protocol.errors import ConfigError, StorageError
from murmur.protocol.types import Pointer
from storage import transport
from storage.s3 import open_bucket, open_pointer
from tests.storage.hostile import Hostile, Script, hostile, says
from tests.storage.s3_cases import SECRET, SHORT, SLACK, bucket_at, get
from tests.storage.test_s3 import byte_a_second, endless_without_length, silent, slow_header


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.1.2.3", "192.168.0.1", "172.16.5.5", "169.254.169.254", "100.64.0.1", "0.0.0.0"),
        *("224.0.0.1", "240.0.0.1", "255.255.255.255", "[::1]", "[::]", "[fe80::1]", "[fc00::1]", "[ff02::1]"),
        *("[fec0::1]", "[fec0:0:0:ffff::1]", "[::10.0.0.1]", "[64:ff9b:1::a00:1]", "[4000::1]"),
        *("[::ffff:10.0.0.1]", "[64:ff9b::a9fe:a9fe]", "[2002:a9fe:a9fe::]", "localhost", "2130706433", "0x7f.1"),
    ],
)
def test_a_pointer_to_an_address_that_is_not_public_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="not public"):
        open_pointer(Pointer(f"https://{address}", "bucket", "access", SECRET), local=False)


@given(st.ip_addresses())
def test_no_special_address_counts_as_public(address: IPv4Address | IPv6Address) -> None:
    special = ("is_private", "is_loopback", "is_link_local", "is_multicast", "is_reserved", "is_unspecified")
    if transport.is_public(str(address)) and address not in ip_network("64:ff9b::/96"):
        assert not any(getattr(address, name, False) for name in (*special, "is_site_local"))


@given(st.integers(0, 2**118 - 1))
def test_a_site_local_address_is_private(within: int) -> None:
    assert not transport.is_public(str(IPv6Address((0xFEC0 << 112) | within)))


@given(st.ip_addresses(v=4))
def test_a_nat64_address_is_as_public_as_what_it_wraps(address: IPv4Address) -> None:
    wrapped = IPv6Address((0x64FF9B << 96) | int(address))
    assert transport.is_public(str(wrapped)) == transport.is_public(str(address))


@pytest.mark.parametrize(
    "endpoint",
    [
        "http://store.example",
        "ftp://store.example",
        "https://",
        "https://user:word@store.example",
        "https://store.example/path",
        "https://store.example?query",
        "https://store.example#part",
        "https://store.example:port",
        "https://[store",
        "file:///etc/passwd",
    ],
)
def test_a_pointer_that_is_not_plain_https_is_refused(endpoint: str) -> None:
    with pytest.raises(ConfigError):
        open_pointer(Pointer(endpoint, "bucket", "access", SECRET), local=False)


@pytest.mark.parametrize(
    "name", ["", "ab", "a/b", "../x", "arn:aws:s3:us-east-1:1:accesspoint/a", "x--use1-az4--x-s3", "UPPER", "a" * 64]
)
def test_a_bucket_name_that_means_something_else_is_refused(name: str) -> None:
    with pytest.raises(ConfigError):
        open_pointer(Pointer("http://127.0.0.1:9", name, "access", SECRET), local=True)


def test_a_name_that_turns_private_after_it_was_checked_is_not_connected_to(monkeypatch: pytest.MonkeyPatch) -> None:
    with hostile(says("200 OK", "Content-Length: 0")) as server:
        port = int(server.endpoint.rpartition(":")[2])
        public = [(int(socket.AF_INET), "8.8.8.8", ("8.8.8.8", port))]
        private = [(int(socket.AF_INET), "127.0.0.1", ("127.0.0.1", port))]
        answers = iter([public, private])
        monkeypatch.setattr(transport, "resolve", lambda host, port: next(answers))
        bucket = open_pointer(Pointer(f"https://rebind.example:{port}", "bucket", "access", SECRET), local=False)
        with pytest.raises(StorageError, match="not public"):
            get(bucket)
        assert server.requests == []


def test_one_private_address_among_public_ones_is_enough_to_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    mixed = [(int(socket.AF_INET), ip, (ip, 443)) for ip in ("8.8.8.8", "10.0.0.1")]
    monkeypatch.setattr(transport, "resolve", lambda host, port: mixed)
    with pytest.raises(ConfigError, match="not public"):
        open_pointer(Pointer("https://mixed.example", "bucket", "access", SECRET), local=False)


# --- TLS ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext:
    """A server context for `localhost` and `store.test`, whose issuer this process trusts while the test runs."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.DNSName("store.test")]), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    (tmp_path / "cert.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (tmp_path / "key.pem").write_bytes(key.private_bytes(*form))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
    monkeypatch.setattr(transport, "_shared_context", None)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    return context


def test_an_object_comes_over_tls(tls: ssl.SSLContext) -> None:
    with hostile(says("200 OK", "Content-Length: 5", 'ETag: "e"', body=b"hello"), tls=tls) as server:
        assert get(bucket_at(server)) == b"hello"


@pytest.mark.parametrize("script", [byte_a_second, slow_header, silent, endless_without_length])
def test_the_deadline_holds_over_tls(tls: ssl.SSLContext, script: Script) -> None:
    with hostile(script, tls=tls) as server:
        began = time.monotonic()
        with pytest.raises(StorageError):
            get(bucket_at(server), seconds=SHORT)
        assert time.monotonic() - began < SHORT + SLACK


def test_a_handshake_that_never_ends_is_cut_off() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    with listener:
        port = listener.getsockname()[1]
        bucket = open_bucket(f"https://localhost:{port}", "bucket", "access", SECRET, local=True)
        began = time.monotonic()
        with pytest.raises(StorageError):
            get(bucket, seconds=SHORT)
        assert time.monotonic() - began < SHORT + SLACK


def test_a_certificate_of_an_unknown_issuer_is_refused(tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    monkeypatch.setattr(transport, "_shared_context", None)
    answer = says("200 OK", "Content-Length: 5", 'ETag: "e"', body=b"hello")
    with hostile(answer, tls=tls) as server, pytest.raises(StorageError):
        get(bucket_at(server), seconds=SHORT)


def test_a_certificate_for_another_host_is_refused(tls: ssl.SSLContext) -> None:
    answer = says("200 OK", "Content-Length: 5", 'ETag: "e"', body=b"hello")
    with hostile(answer, tls=tls) as server:
        elsewhere = bucket_at(Hostile(server.endpoint.replace("localhost", "127.0.0.1")))
        with pytest.raises(StorageError):
            get(elsewhere, seconds=SHORT)

"""Canonical bytes of a bucket's pointer, the first field of a slot (murmur/protocol/messages.py), and the one spelling
of its endpoint."""

import re
from ipaddress import IPv4Address, IPv6Address

from murmur.protocol.errors import ConfigError, InvalidMessage
from murmur.protocol.types import Pointer, PublicPointer

WIRE_VERSION = 1
POINTER_MAX_BYTES = 200

_R2, _URL, _PUBLIC = 1, 2, 3
_R2_HOST = ".r2.cloudflarestorage.com"
_PRINTABLE = frozenset(range(0x21, 0x7F))
_ENDPOINT = re.compile(r"(https?)://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,5}))?")
"""Scheme, host and port, as all URL parsers read them alike."""
_SCHEME_PORTS = {"https": 443, "http": 80}
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
"""The last part of a host that resolvers read as an IPv4 address, which they take in many spellings."""


def encode_pointer(pointer: Pointer | PublicPointer) -> bytes:
    """Encode a pointer in at most 200 bytes, or raise ConfigError. R2 account ids and keys (hex) are packed to half
    their length."""
    if (plain := _plain_endpoint(pointer.endpoint)) != pointer.endpoint:
        what = "public URL" if isinstance(pointer, PublicPointer) else "endpoint"
        wants = "https://HOST[:PORT] and nothing else, without a slash at the end" if plain is None else plain
        raise ConfigError(f"the bucket's {what} must be {wants}")
    encoded = bytes([WIRE_VERSION]) + _pointer_body(pointer)
    if len(encoded) > POINTER_MAX_BYTES:
        raise ConfigError(
            f"the bucket pointer takes {len(encoded)} bytes on chain, at most {POINTER_MAX_BYTES} fit: "
            "use a shorter endpoint, bucket name or read key"
        )
    return encoded


def _pointer_body(pointer: Pointer | PublicPointer) -> bytes:
    if isinstance(pointer, PublicPointer):
        return bytes([_PUBLIC]) + _text(pointer.endpoint)
    account = pointer.endpoint.removeprefix("https://").removesuffix(_R2_HOST)
    packed_r2 = (
        pointer.endpoint == f"https://{account}{_R2_HOST}"
        and _is_hex(account, 16)
        and _is_hex(pointer.access_key, 16)
        and _is_hex(pointer.secret_key, 32)
    )
    if packed_r2:
        body = bytes.fromhex(account + pointer.access_key + pointer.secret_key)
        return bytes([_R2]) + _text(pointer.bucket) + body
    fields = (pointer.bucket, pointer.access_key, pointer.secret_key, pointer.endpoint)
    return bytes([_URL]) + b"".join(_text(field) for field in fields)


def parse_pointer(data: bytes) -> Pointer | PublicPointer:
    if not 2 <= len(data) <= POINTER_MAX_BYTES or data[0] != WIRE_VERSION:
        raise InvalidMessage("pointer: unknown version or length")
    kind, rest = data[1], data[2:]
    if kind == _PUBLIC:
        return PublicPointer(_take_endpoint(rest))
    if kind == _URL:
        bucket, rest = _take_text(rest)
        access, rest = _take_text(rest)
        secret, rest = _take_text(rest)
        pointer = Pointer(_take_endpoint(rest), bucket, access, secret)
        if encode_pointer(pointer) != data:
            raise InvalidMessage("pointer: not in canonical form")
        return pointer
    if kind == _R2:
        bucket, rest = _take_text(rest)
        if len(rest) != 64:
            raise InvalidMessage("pointer: an R2 pointer ends in 64 bytes of account and keys")
        account, access, secret = rest[:16].hex(), rest[16:32].hex(), rest[32:].hex()
        return Pointer(f"https://{account}{_R2_HOST}", bucket, access, secret)
    raise InvalidMessage("pointer: unknown kind")


def _take_endpoint(data: bytes) -> str:
    """Return the last text of a pointer."""
    endpoint, rest = _take_text(data)
    if rest:
        raise InvalidMessage("pointer: bytes after the endpoint")
    if _plain_endpoint(endpoint) != endpoint:
        raise InvalidMessage("pointer: the endpoint is not a plain http(s) URL in its one spelling")
    return endpoint


def _plain_endpoint(text: str) -> str | None:
    """Return the one spelling of an endpoint; None if it is no scheme, host and port. Requests are counted by
    endpoint, so a server must not have several: capitals, a dot at the end, zeros, the scheme's own port."""
    found = _ENDPOINT.fullmatch(text)
    if found is None:
        return None
    scheme, host, digits = found[1], _plain_host(found[2].lower()), found[3]
    port = _SCHEME_PORTS[scheme] if digits is None else int(digits)
    if host is None or not 0 < port < 1 << 16:
        return None
    return f"{scheme}://{host}" if port == _SCHEME_PORTS[scheme] else f"{scheme}://{host}:{port}"


def _plain_host(host: str) -> str | None:
    try:
        if host.startswith("["):
            address = IPv6Address(host[1:-1])
            return f"[{address}]" if address.ipv4_mapped is None else str(address.ipv4_mapped)
        labels = host.removesuffix(".").split(".")
        if not all(labels):
            return None
        return str(IPv4Address(".".join(labels))) if _NUMBER.fullmatch(labels[-1]) else ".".join(labels)
    except ValueError:
        return None


def _is_hex(text: str, num_bytes: int) -> bool:
    return len(text) == 2 * num_bytes and all(c in "0123456789abcdef" for c in text)


def _text(text: str) -> bytes:
    if not 1 <= len(text) <= 255 or not _PRINTABLE.issuperset(map(ord, text)):
        raise ConfigError("bucket name, keys and endpoint must be 1 to 255 printable ASCII characters without spaces")
    return bytes([len(text)]) + text.encode()


def _take_text(data: bytes) -> tuple[str, bytes]:
    if not data or len(data) < 1 + data[0] or data[0] == 0:
        raise InvalidMessage("pointer: truncated")
    text = data[1 : 1 + data[0]]
    if not _PRINTABLE.issuperset(text):
        raise InvalidMessage("pointer: not printable ASCII")
    return text.decode(), data[1 + data[0] :]

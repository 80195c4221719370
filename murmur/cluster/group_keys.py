"""What makes a cluster's members a group: one token. Its secret tags the documents that members write and wraps the
keys of their updates. It never goes to the store. A store that lies can delay the run. It can forge nothing and read no
update; theta_0, checkpoints and the data set lie there in clear.
"""

import base64
import binascii
import hmac
import secrets
from hashlib import sha256
from pathlib import Path
from typing import Annotated

from pydantic import Field

from murmur.homes import expanded
from murmur.protocol.cluster import GROUP
from murmur.protocol.errors import ConfigError, InvalidMessage
from murmur.protocol.fields import HexDigest, Table
from murmur.protocol.messages import KEY_BYTES, canonical_json, parse_json
from murmur.protocol.ports import Signer
from murmur.protocol.types import Digest, PeerId

_PREFIX = "murmur1."
_CHECK_BYTES = 4
_Text = Annotated[str, Field(min_length=1, max_length=512)]


class Token(Table):
    """Makes its holder a member: the run's bucket, the bucket's key, the run, and the group's secret."""

    endpoint: _Text
    bucket: _Text
    access_key: _Text
    secret_key: Annotated[str, Field(min_length=1, max_length=512, repr=False)]
    run: HexDigest
    secret: Annotated[HexDigest, Field(repr=False)]
    local: bool = False

    def encode(self) -> str:
        """Return the token as one line of letters."""
        data = canonical_json(self.model_dump(mode="json"))
        return _PREFIX + base64.urlsafe_b64encode(data + sha256(data).digest()[:_CHECK_BYTES]).decode()

    @property
    def run_id(self) -> Digest:
        return Digest(bytes.fromhex(self.run))


def read_token(path: Path) -> str:
    """The token in this file. Raises ConfigError."""
    try:
        return expanded(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as fault:
        why = fault.strerror if isinstance(fault, OSError) else "it is not text"
        raise ConfigError(f"cannot read the token file {path}: {why}") from None


def is_token(text: str) -> bool:
    """Whether this is meant as a token, valid or not."""
    return text.strip().startswith(_PREFIX)


def parse_token(text: str) -> Token:
    """Inverse of `Token.encode`. Raises ConfigError, whose text never repeats the input, since that is a secret."""
    line = text.strip()
    try:
        token = Token.model_validate(parse_json(base64.urlsafe_b64decode(line.removeprefix(_PREFIX))[:-_CHECK_BYTES]))
    except (binascii.Error, ValueError, InvalidMessage):
        token = None
    if token is None or token.encode() != line:
        raise ConfigError("the token is invalid or incomplete: ask for it again (murmur cluster invite)")
    return token


def new_secret() -> str:
    """Draw a new group's secret, as hexadecimal digits."""
    return secrets.token_bytes(32).hex()


class Group:
    """Tags, verifies and wraps by the secret that only members have."""

    def __init__(self, secret: str) -> None:
        self._secret = bytes.fromhex(secret)

    @property
    def mark(self) -> bytes:
        """The sha256 of the secret, which may be public."""
        return sha256(b"group" + self._secret).digest()

    def signer(self, member: PeerId = GROUP) -> Signer:
        """Return a signer that tags as this member, or as the group."""
        return _Tagger(self, member)

    def verify(self, peer: PeerId, message: bytes, signature: bytes) -> bool:
        """Whether a member has tagged this message as `peer`."""
        return hmac.compare_digest(self.tag(peer, message), signature)

    def tag(self, peer: PeerId, message: bytes) -> bytes:
        """Return the HMAC-SHA512: 64 bytes, the length of a signature."""
        return hmac.digest(self._secret, b"tag" + peer + message, "sha512")

    def wrap(self, key: bytes, envelope: Digest) -> bytes:
        """Wrap a sealing key so that only members can read it; wrapping twice returns the key. envelope: digest of the
        envelope of the object that the key opens."""
        if len(key) != KEY_BYTES:
            raise ValueError(f"a key of {len(key)} bytes")
        pad = hmac.digest(self._secret, b"key" + envelope, "sha256")
        return bytes(one ^ other for one, other in zip(key, pad, strict=True))


class _Tagger:
    """A Signer by the group's secret."""

    def __init__(self, group: Group, peer: PeerId) -> None:
        self._group = group
        self.peer = peer

    def sign(self, message: bytes) -> bytes:
        return self._group.tag(self.peer, message)

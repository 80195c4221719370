"""What makes a cluster's members a group: one token, whose secret tags what they write and wraps the keys of what they
seal. It never goes to the store: a store that lies can hold a run up, and neither read nor forge anything.
"""

import base64
import binascii
import hmac
import secrets
from hashlib import sha256
from typing import Annotated

from pydantic import Field

from protocol.cluster import GROUP
from protocol.errors import ConfigError, InvalidMessage
from protocol.messages import KEY_BYTES, canonical_json, parse_json
from protocol.ports import Signer
from protocol.spec import HexDigest, Table
from protocol.types import Digest, PeerId

_PREFIX = "murmur1."
_CHECK_BYTES = 4
_Text = Annotated[str, Field(min_length=1, max_length=512)]


class Token(Table):
    """Whoever holds it is a member: where the run's bucket is, its key, the run, and the group's secret."""

    endpoint: _Text
    bucket: _Text
    access_key: _Text
    secret_key: Annotated[str, Field(min_length=1, max_length=512, repr=False)]
    run: HexDigest
    secret: Annotated[HexDigest, Field(repr=False)]
    local: bool = False

    def encode(self) -> str:
        """One line of letters."""
        data = canonical_json(self.model_dump(mode="json"))
        return _PREFIX + base64.urlsafe_b64encode(data + sha256(data).digest()[:_CHECK_BYTES]).decode()

    @property
    def run_id(self) -> Digest:
        return Digest(bytes.fromhex(self.run))


def parse_token(text: str) -> Token:
    """Inverse of `Token.encode`. Raises ConfigError, which never repeats what was given: it is a secret."""
    line = text.strip()
    try:
        token = Token.model_validate(parse_json(base64.urlsafe_b64decode(line.removeprefix(_PREFIX))[:-_CHECK_BYTES]))
    except (binascii.Error, ValueError, InvalidMessage):
        token = None
    if token is None or token.encode() != line:
        raise ConfigError("the token is invalid or incomplete: ask for it again (murmur cluster invite)")
    return token


def new_secret() -> str:
    """Of a new group, as hexadecimal digits."""
    return secrets.token_bytes(32).hex()


class Group:
    """What only members can write and read."""

    def __init__(self, secret: str) -> None:
        self._secret = bytes.fromhex(secret)

    @property
    def mark(self) -> bytes:
        """What everybody may see of the secret: its sha256."""
        return sha256(b"group" + self._secret).digest()

    def signer(self, member: PeerId = GROUP) -> Signer:
        """Tags as this member, or as the group."""
        return _Tagger(self, member)

    def verify(self, peer: PeerId, message: bytes, signature: bytes) -> bool:
        """Whether a member has tagged this as `peer`."""
        return hmac.compare_digest(self.tag(peer, message), signature)

    def tag(self, peer: PeerId, message: bytes) -> bytes:
        """HMAC-SHA512, 64 bytes as a signature has."""
        return hmac.digest(self._secret, b"tag" + peer + message, "sha512")

    def wrap(self, key: bytes, envelope: Digest) -> bytes:
        """A sealing key for members' eyes; twice, and it is the key again. envelope: of the object that it opens."""
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

"""Keys: sign with a hotkey, verify signatures, open and create wallets on disk.

It never prompts without a terminal, never prints or logs a mnemonic, and never needs the coldkey: a node runs with the
hotkey's file alone. Source: docs/protocol.md sections 3 and 4 (what is signed); bittensor 11.3 keyfiles.
"""

import os
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from murmur.homes import expanded
from murmur.protocol.errors import ConfigError
from murmur.protocol.types import DIGEST_BYTES, SIGNATURE_BYTES, PeerId

if TYPE_CHECKING:
    from bittensor.wallet import Wallet as Wallet

DEFAULT_WALLETS_PATH = "~/.bittensor/wallets"

_SR25519 = 1
_TRIAL = b"murmur: does this key sign?"


class HotkeySigner:
    """The Signer port over a sr25519 keypair. Signatures are randomised: two of one message differ."""

    def __init__(self, keypair: Any) -> None:
        """`keypair` is a `bittensor.sp_core.Keypair` that holds its secret, such as `open_wallet(...).hotkey`: one that
        does not sign is refused. Raises ConfigError."""
        if keypair.crypto_type != _SR25519:
            raise ConfigError(
                "the hotkey is not a sr25519 key, the only kind that peers verify: create one with "
                "`btcli wallet new-hotkey`"
            )
        self._keypair = keypair
        self._peer = PeerId(bytes(keypair.public_key))
        try:
            signs = verify(self._peer, _TRIAL, self.sign(_TRIAL))
        except ValueError:  # no private key
            signs = False
        if not signs:
            raise ConfigError(
                "the hotkey's file does not hold its private key, so nothing that this node says can be signed: it "
                "may be a copy of the public half (NAMEpub.txt). Copy the hotkey's own file from its backup, or restore"
                " it with `btcli wallet regen-hotkey`"
            )

    @property
    def peer(self) -> PeerId:
        return self._peer

    def sign(self, message: bytes) -> bytes:
        """Return 64 signature bytes over `message`."""
        return bytes(self._keypair.sign(message))


def verify(peer: PeerId, message: bytes, signature: bytes) -> bool:
    """Whether `signature` is the peer's sr25519 signature over `message`; about 50 us. Never raises.

    A signature over `<Bytes>message</Bytes>`, the form of browser wallets, is accepted too: it binds the key to the
    same message.
    """
    if len(peer) != DIGEST_BYTES or len(signature) != SIGNATURE_BYTES:
        return False
    try:
        # The SDK's own native module: importing the whole SDK takes a second, and read-only callers need no more.
        keypair = import_module("bittensor_core").Keypair(public_key=bytes(peer), crypto_type=_SR25519)
        return bool(keypair.verify(bytes(message), bytes(signature)))
    except ValueError:
        # 32 bytes that are no curve point: a stranger may claim any PeerId.
        return False


def require_sdk() -> None:
    """Raise ConfigError where Bittensor's SDK is not installed: only the chain needs it."""
    if find_spec("bittensor") is None:
        raise ConfigError(
            "a run on a chain needs Bittensor's SDK, which is not installed: pip install -c constraints.txt "
            "-e '.[chain]'. A cluster needs none (murmur cluster)"
        )


def open_wallet(name: str, hotkey: str, path: str = DEFAULT_WALLETS_PATH) -> "Wallet":
    """Open the wallet with its hotkey unlocked. The coldkey's files may be absent: only an operator's calls need them.

    The password of an encrypted hotkey comes from the environment variable that Bittensor's tools use, or from the
    terminal when there is one. Otherwise raises ConfigError with the next step.
    """
    require_sdk()
    from bittensor.sp_core import KeyfileError, WrongPasswordError
    from bittensor.wallet import Wallet as Wallet

    wallet = _wallet(Wallet, name, hotkey, path)
    keyfile = wallet.hotkey_file
    _require_readable(Path(keyfile.path))
    if not keyfile.exists_on_device():
        raise ConfigError(
            f"no hotkey {hotkey!r} in wallet {name!r}: {keyfile.path} does not exist. Create it with "
            f"`btcli wallet new-hotkey --wallet-name {name} --hotkey {hotkey} --wallet-path {path}`, "
            "or name another wallet in the node's configuration"
        )
    variable = keyfile.env_var_name()
    if keyfile.is_encrypted() and not os.environ.get(variable) and not sys.stdin.isatty():
        raise ConfigError(
            f"{keyfile.path} is encrypted and there is no terminal to ask for its password: "
            f"set {variable}, or use a hotkey without a password"
        )
    try:
        wallet.unlock_hotkey()
    except (KeyfileError, WrongPasswordError, ValueError, OSError):
        # The SDK's own message is left out: it may quote the file's content.
        raise ConfigError(
            f"{keyfile.path} does not hold a usable hotkey: wrong password, or the file is damaged "
            "(restore it with `btcli wallet regen-hotkey`)"
        ) from None
    return wallet


def _require_readable(path: Path) -> None:
    """Raise ConfigError with the remedy where this user may not read the file, or not enter a folder above it."""
    try:
        with path.open("rb"):
            return
    except PermissionError:
        folders = reversed(path.parents)
        closed = next((one for one in folders if not os.access(one, os.X_OK, effective_ids=True)), path)
    except OSError:
        return  # there is none: said by who needs it
    owner, user = closed.stat().st_uid, os.geteuid()
    if owner == user:
        fix = f"`chmod {700 if closed.is_dir() else 600} {quote(str(closed))}`"
    else:
        fix = (
            f"it belongs to uid {owner}: run the node as that user. For a container set USER_ID={owner} in its env "
            "file, and build the image again"
        )
    raise ConfigError(f"{closed} cannot be read by this user (uid {user}): {fix}")


def create_wallet(name: str, hotkey: str, path: str) -> "Wallet":
    """Return a wallet with unencrypted keys for a local network; existing keys are kept. Prints nothing."""
    from bittensor.wallet import Wallet as Wallet

    wallet = _wallet(Wallet, name, hotkey, path)
    if not wallet.coldkey_file.exists_on_device():
        wallet.create_new_coldkey(use_password=False, suppress=True)
    if not wallet.hotkey_file.exists_on_device():
        wallet.create_new_hotkey(use_password=False, suppress=True)
    return open_wallet(name, hotkey, path)


def _wallet(kind: "type[Wallet]", name: str, hotkey: str, path: str) -> "Wallet":
    for value in (name, hotkey):
        if not value or "/" in value or value in (".", ".."):
            raise ConfigError(f"{value!r} is not a wallet or hotkey name: give the plain name, without a path")
    return kind(name=name, hotkey=hotkey, path=str(expanded(path)))

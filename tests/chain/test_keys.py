"""Keys: signatures between strangers, and wallets that never prompt."""

import io
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from bittensor.sp_core import Keypair
from hypothesis import example, given
from hypothesis import strategies as st

from murmur.chain.keys import HotkeySigner, create_wallet, open_wallet, verify
from murmur.protocol.errors import ConfigError
from murmur.protocol.types import PeerId, hotkey

ALICE = Keypair.create_from_uri("//Alice")


def test_a_signature_verifies_for_its_peer_and_message_only() -> None:
    signer, other = HotkeySigner(ALICE), HotkeySigner(Keypair.create_from_uri("//Bob"))
    signature = signer.sign(b"message")
    assert len(signature) == 64
    assert verify(signer.peer, b"message", signature)
    assert not verify(signer.peer, b"Message", signature)
    assert not verify(other.peer, b"message", signature)
    assert not verify(signer.peer, b"message", signature[:-1] + bytes([signature[-1] ^ 1]))


def test_the_peer_is_the_hotkeys_public_key() -> None:
    assert HotkeySigner(ALICE).peer == bytes(ALICE.public_key)
    assert hotkey(HotkeySigner(ALICE).peer) == ALICE.ss58_address


def test_two_signatures_of_one_message_differ_and_both_verify() -> None:
    signer = HotkeySigner(ALICE)
    first, second = signer.sign(b"m"), signer.sign(b"m")
    assert first != second
    assert verify(signer.peer, b"m", first)
    assert verify(signer.peer, b"m", second)


@given(st.binary(max_size=80), st.binary(max_size=40), st.binary(max_size=130))
@example(bytes(32), b"", bytes(64))
@example(b"\xff" * 32, b"", b"\xff" * 64)
@example(bytes(ALICE.public_key), b"", b"\xff" * 64)
def test_verify_never_raises_on_garbage_of_any_length(peer: bytes, message: bytes, signature: bytes) -> None:
    assert verify(PeerId(peer), message, signature) is False


@given(st.binary(min_size=32, max_size=32), st.binary(min_size=64, max_size=64))
def test_verify_never_raises_on_garbage_of_the_right_length(peer: bytes, signature: bytes) -> None:
    assert verify(PeerId(peer), b"message", signature) is False


def test_a_key_of_another_scheme_is_refused() -> None:
    ed25519 = Keypair.create_from_uri("//Alice", 0)
    with pytest.raises(ConfigError, match="sr25519"):
        HotkeySigner(ed25519)


def test_a_created_wallet_opens_again_with_the_same_keys(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    wallet = create_wallet("miner", "one", str(tmp_path))
    again = create_wallet("miner", "one", str(tmp_path))
    sibling = create_wallet("miner", "two", str(tmp_path))
    assert again.hotkey.ss58_address == open_wallet("miner", "one", str(tmp_path)).hotkey.ss58_address
    assert wallet.coldkey.ss58_address == again.coldkey.ss58_address == sibling.coldkey.ss58_address
    assert sibling.hotkey.ss58_address != wallet.hotkey.ss58_address
    printed = capfd.readouterr()
    assert printed.out == printed.err == "", "a mnemonic may have been printed"
    assert stat.S_IMODE((tmp_path / "miner" / "hotkeys" / "one").stat().st_mode) == 0o600


def test_a_node_opens_a_wallet_that_holds_nothing_but_the_hotkey(tmp_path: Path) -> None:
    address = create_wallet("miner", "one", str(tmp_path)).hotkey.ss58_address
    for leftover in ("coldkey", "coldkeypub.txt", "hotkeys/onepub.txt"):
        (tmp_path / "miner" / leftover).unlink()
    assert open_wallet("miner", "one", str(tmp_path)).hotkey.ss58_address == address


def test_a_missing_hotkey_names_the_file_and_the_command(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        open_wallet("miner", "one", str(tmp_path))
    assert str(tmp_path / "miner" / "hotkeys" / "one") in str(caught.value)
    assert "btcli wallet new-hotkey --wallet-name miner --hotkey one" in str(caught.value)


OWNER = 54321


@pytest.fixture
def wallets() -> Iterator[Path]:
    """Of another user than the one of the tests, in a folder that all may enter."""
    if os.geteuid():
        pytest.skip("only root can be another user")
    with TemporaryDirectory() as folder:
        create_wallet("miner", "one", folder)
        for path in (Path(folder), *Path(folder).rglob("*")):
            os.chown(path, OWNER, OWNER)
            path.chmod(0o755)
        yield Path(folder)


def refused(wallets: Path, user: int) -> str:
    """What this user is told."""
    os.seteuid(user)
    try:
        with pytest.raises(ConfigError) as caught:
            open_wallet("miner", "one", str(wallets))
    finally:
        os.seteuid(0)
    return str(caught.value)


@pytest.mark.parametrize("closed", ["miner/hotkeys/one", "miner/hotkeys", "."])
def test_a_hotkey_of_another_user_is_not_called_missing_and_names_the_user_to_be(wallets: Path, closed: str) -> None:
    """In a container this is the usual fault: its user has another number."""
    (wallets / closed).chmod(0o700)
    told = refused(wallets, OWNER + 1)
    assert f"{wallets / closed} cannot be read by this user (uid {OWNER + 1})" in told
    assert f"USER_ID={OWNER}" in told
    assert "new-hotkey" not in told


@pytest.mark.parametrize(("closed", "mode"), [("miner/hotkeys/one", 600), ("miner/hotkeys", 700)])
def test_a_hotkey_that_its_owner_may_not_read_is_given_to_him_by_chmod(wallets: Path, closed: str, mode: int) -> None:
    (wallets / closed).chmod(0)
    assert f"`chmod {mode} {wallets / closed}`" in refused(wallets, OWNER)


@pytest.mark.parametrize("name", ["", "a/b", "..", "."])
def test_a_wallet_name_that_is_a_path_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="plain name"):
        open_wallet(name, "one", str(tmp_path))
    with pytest.raises(ConfigError, match="plain name"):
        open_wallet("miner", name, str(tmp_path))


@pytest.fixture
def locked(tmp_path: Path) -> str:
    """A wallet whose hotkey's file says that it is encrypted; returns the variable that its password may come from."""
    wallet = create_wallet("miner", "one", str(tmp_path))
    (tmp_path / "miner" / "hotkeys" / "one").write_bytes(b"$NACL" + bytes(64))
    return str(wallet.hotkey_file.env_var_name())


def test_an_encrypted_hotkey_without_a_terminal_names_the_variable_and_does_not_prompt(
    tmp_path: Path, locked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(locked, raising=False)
    monkeypatch.setattr("sys.stdin", io.StringIO("never read"))
    with pytest.raises(ConfigError, match=locked):
        open_wallet("miner", "one", str(tmp_path))


def test_a_damaged_hotkey_is_a_config_error_that_does_not_quote_it(tmp_path: Path) -> None:
    path = tmp_path / "miner" / "hotkeys" / "one"
    create_wallet("miner", "one", str(tmp_path))
    path.write_text('{"secretPhrase": "abandon abandon zoo"}')
    with pytest.raises(ConfigError, match="damaged") as caught:
        open_wallet("miner", "one", str(tmp_path))
    assert "zoo" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_a_hotkey_without_its_private_half_is_refused_before_it_has_to_sign(tmp_path: Path) -> None:
    path = tmp_path / "miner" / "hotkeys" / "one"
    create_wallet("miner", "one", str(tmp_path))
    public = json.loads(path.read_text())
    path.write_text(json.dumps({name: public[name] for name in ("ss58Address", "publicKey", "accountId")}))
    with pytest.raises(ConfigError, match="private key"):
        HotkeySigner(open_wallet("miner", "one", str(tmp_path)).hotkey)

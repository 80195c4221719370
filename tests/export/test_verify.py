"""The proof: what is changed anywhere is found, and what cannot be proved is not said to be."""

import json
import os
import shutil
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from murmur.data.tokenizer import BYTES, byte_tokenizer
from murmur.export.origin import parse_origin
from murmur.export.tokenizer import run_tokenizer
from murmur.export.verify import Differs, prove_by_digest, prove_by_export, read_export
from murmur.protocol.errors import ConfigError
from murmur.protocol.spec import build
from murmur.protocol.types import Digest
from tests.export.conftest import Made, quiet

Damage = Callable[[Path], None]


def flip(path: Path, place: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1 << bit
    path.write_bytes(data)


def change(name: str, **fields: object) -> Damage:
    """Fields of a JSON file changed, in the form that an export writes."""

    def damage(folder: Path) -> None:
        table = json.loads((folder / name).read_bytes()) | fields
        (folder / name).write_bytes(json.dumps(table, indent=2, ensure_ascii=False).encode() + b"\n")

    return damage


def doubled_key(folder: Path) -> None:
    """A header of the same length in which one name comes twice: readers differ in which they take."""
    path = folder / "model.safetensors"
    data = path.read_bytes()
    first, second = b"model.layers.0.self_attn.k_proj", b"model.layers.0.self_attn.v_proj"
    path.write_bytes(data.replace(first, second, 1))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shard_bytes", [20_000, 5_000_000_000])
def test_a_whole_export_is_read_with_a_card_that_people_wrote(
    dtype: str, shard_bytes: int, made: Made, tmp_path: Path
) -> None:
    origin = made(tmp_path / "out", dtype, shard_bytes=shard_bytes)
    (tmp_path / "out" / "README.md").write_text("ours")
    (tmp_path / "out" / ".gitattributes").write_text("")
    assert read_export(tmp_path / "out", quiet).origin == origin


@pytest.mark.parametrize("place", [-1, -1000, 3000])
def test_one_flipped_bit_is_found(place: int, made: Made, tmp_path: Path) -> None:
    for number, dtype in enumerate(("float32", "bfloat16")):
        folder = tmp_path / dtype
        made(folder, dtype)
        flip(folder / "model.safetensors", place, bit=number)
        with pytest.raises(Differs, match=r"the tensors hash to|is not a file of these tensors"):
            read_export(folder, quiet)


@pytest.mark.parametrize(
    "damage",
    [
        change("config.json", rope_theta=10_000.0),
        change("config.json", auto_map={"AutoModelForCausalLM": "evil.Model"}),
        change("generation_config.json", eos_token_id=1),
        change("tokenizer_config.json", chat_template="{{ x }}"),
        lambda folder: flip(folder / "tokenizer.json", 200),
        lambda folder: flip(folder / "murmur.json", 20),
        lambda folder: (folder / "config.json").unlink(),
        lambda folder: (folder / "model.safetensors").unlink(),
        lambda folder: (folder / "adapter_config.json").write_text("{}"),
        lambda folder: (folder / "pytorch_model.bin").write_bytes(b""),
        lambda folder: (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes() + b"\0"),
        lambda folder: (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:-9]),
        doubled_key,
        change("murmur.json", round=4, extra=1),
        change("murmur.json", end=3),
        change("murmur.json", shard_bytes=1000),
        change("murmur.json", tensors="00" * 32),
        change("murmur.json", theta="00" * 32),
        change("murmur.json", outer={"rounds": 8, "averages": ["nonsense"], "whole": "0x0p+0"}),
        change("murmur.json", outer={"rounds": 8, "averages": [], "whole": "0x0p+0"}),
    ],
)
def test_whatever_is_changed_in_the_folder_is_found(damage: Damage, made: Made, tmp_path: Path) -> None:
    made(tmp_path / "out")
    damage(tmp_path / "out")
    with pytest.raises((Differs, ConfigError)):
        read_export(tmp_path / "out", quiet)


@pytest.mark.parametrize("name", ["murmur.json", "config.json", "tokenizer.json", "model.safetensors"])
@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to(path.name), lambda path: path.mkdir()])
def test_what_is_no_file_is_not_waited_for(name: str, make: Damage, made: Made, tmp_path: Path) -> None:
    made(tmp_path / "out")
    (tmp_path / "out" / name).unlink()
    make(tmp_path / "out" / name)
    with pytest.raises((Differs, ConfigError), match=r"is not a file|is not an export"):
        read_export(tmp_path / "out", quiet)


def test_files_that_are_links_are_read(made: Made, tmp_path: Path) -> None:
    """As the hub's library keeps what it has fetched."""
    made(tmp_path / "kept")
    (tmp_path / "out").mkdir()
    for path in (tmp_path / "kept").iterdir():
        (tmp_path / "out" / path.name).symlink_to(path)
    assert read_export(tmp_path / "out", quiet).theta == read_export(tmp_path / "kept", quiet).theta


def test_a_model_that_no_memory_holds_is_refused_at_once(made: Made, tmp_path: Path) -> None:
    """A stranger's spec is a run of its own: whatever it says of sizes, nothing is made by it but sums."""
    made(tmp_path / "out")
    table = json.loads((tmp_path / "out" / "murmur.json").read_bytes())
    table["spec"]["model"] |= {"vocabulary": 2**32 - 1, "width": 2**31, "ffn": 2**32 - 1, "layers": 4096}
    table["spec"]["clock"] |= {"upload_mbps": 1e30, "download_mbps": 1e30}
    change("murmur.json", spec=table["spec"], run=build(table["spec"], "it").digest.hex())(tmp_path / "out")
    with pytest.raises(Differs, match="the tensors of its model"):
        read_export(tmp_path / "out", quiet)


def test_a_spec_that_was_changed_is_another_run(made: Made, tmp_path: Path) -> None:
    origin = made(tmp_path / "out")
    table = json.loads(origin.to_bytes())
    table["spec"]["model"]["rope_theta"] = 10_000.0
    with pytest.raises(ConfigError, match="not the digest of its spec"):
        parse_origin(json.dumps(table).encode())


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b'{"version": 1}', b"[" * 100_000, b"\xff"])
def test_what_is_no_origin_is_refused(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "murmur.json").write_bytes(data)
    with pytest.raises(ConfigError, match=r"murmur\.json is not an export's"):
        read_export(tmp_path, quiet)
    with pytest.raises(ConfigError, match="is not an export"):
        read_export(tmp_path / "none", quiet)


def test_an_fp32_export_is_proved_by_the_digest_and_a_bf16_one_is_not(made: Made, tmp_path: Path) -> None:
    theta = Digest(bytes.fromhex(made(tmp_path / "whole").theta))
    made(tmp_path / "half", "bfloat16")
    whole, half = read_export(tmp_path / "whole", quiet), read_export(tmp_path / "half", quiet)
    shown = list(prove_by_digest(whole, theta))
    assert len(shown) == 2
    assert shown[1].startswith("unchecked: whether that is a state of this run")
    with pytest.raises(Differs):
        list(prove_by_digest(whole, Digest(bytes(32))))
    with pytest.raises(ConfigError, match="low bits"):
        list(prove_by_digest(half, theta))


def test_a_bf16_export_is_proved_by_the_fp32_one_of_the_same_state(made: Made, tmp_path: Path) -> None:
    made(tmp_path / "whole", shard_bytes=20_000)
    made(tmp_path / "half", "bfloat16")
    whole, half = read_export(tmp_path / "whole", quiet), read_export(tmp_path / "half", quiet)
    assert "as bfloat16" in next(iter(prove_by_export(half, whole, quiet)))
    with pytest.raises(ConfigError, match="only an fp32 export"):
        list(prove_by_export(whole, half, quiet))


def test_a_bf16_export_with_another_tokenizer_is_not_proved_by_the_fp32_one(made: Made, tmp_path: Path) -> None:
    """Its murmur.json agrees with its files, and its tensors are right."""
    made(tmp_path / "whole")
    made(tmp_path / "half", "bfloat16")
    half = tmp_path / "half"
    config = byte_tokenizer().config.replace(b"assistant", b"assistent")
    (half / "tokenizer_config.json").write_bytes(config)
    digest = sha256(config).hexdigest()
    (half / "tokenizer.json").write_bytes(run_tokenizer(BYTES, digest, half).data)
    change("murmur.json", tokenizer_config=digest)(half)
    forged, whole = read_export(half, quiet), read_export(tmp_path / "whole", quiet)
    with pytest.raises(Differs, match="its tokenizer"):
        list(prove_by_export(forged, whole, quiet))


def test_a_bf16_export_of_other_values_under_the_same_name_is_found(made: Made, tmp_path: Path) -> None:
    """Its murmur.json agrees with its tensors, and names the right theta: only the fp32 values tell."""
    right = made(tmp_path / "whole")
    made(tmp_path / "half", "bfloat16", seed=2)
    change("murmur.json", theta=right.theta)(tmp_path / "half")
    whole, half = read_export(tmp_path / "whole", quiet), read_export(tmp_path / "half", quiet)
    with pytest.raises(Differs, match="the tensors hash to"):
        list(prove_by_export(half, whole, quiet))
    shutil.rmtree(tmp_path / "half")
    made(tmp_path / "half", "bfloat16", seed=2)
    with pytest.raises(Differs, match="another state"):
        list(prove_by_export(read_export(tmp_path / "half", quiet), whole, quiet))

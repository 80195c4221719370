"""Saved state comes back bit for bit, and hostile files are CheckpointCorrupt."""

import json
import tracemalloc
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from murmur.protocol.errors import CheckpointCorrupt
from murmur.protocol.types import Digest
from murmur.training import checkpoint
from murmur.training.checkpoint import TensorState, blobs, load, load_tensors, manifest_path, save, tensors_path

TENSORS = {
    "b": torch.tensor([[1.5, -0.0, 3.0], [float("inf"), 1e-45, -2.0]]),
    "a": torch.arange(5, dtype=torch.float32),
    "empty": torch.empty(0, 3),
    "c.ä": torch.ones(1),
}
SHAPES = {name: tuple(tensor.shape) for name, tensor in TENSORS.items()}


def encoded() -> bytes:
    data: bytes = safetensors.torch.save(TENSORS)
    return data


def with_header(header: bytes, data: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header + data


def parts() -> tuple[dict[str, Any], bytes]:
    whole = encoded()
    length = int.from_bytes(whole[:8], "little")
    return json.loads(whole[8 : 8 + length]), whole[8 + length :]


def rebuilt(header: Any, data: bytes) -> bytes:
    return with_header(json.dumps(header).encode(), data)


def same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> bool:
    return found.keys() == expected.keys() and all(
        torch.equal(found[name].view(torch.int32), expected[name].view(torch.int32)) for name in expected
    )


def read(data: bytes, folder: Path) -> dict[str, torch.Tensor]:
    """The tensors of a file that holds `data`, under its digest."""
    (folder / "x").write_bytes(data)
    return load_tensors(folder / "x", SHAPES, digest=Digest(sha256(data).digest()))


def test_tensors_come_back_bit_for_bit_and_the_library_reads_the_same(tmp_path: Path) -> None:
    digest = save(tmp_path, TensorState(TENSORS, {}))
    (file, path), (manifest, _) = blobs(tmp_path, digest)
    assert file == sha256(path.read_bytes()).digest()
    assert manifest == digest
    assert same(dict(load(tmp_path, digest, SHAPES).tensors), TENSORS)
    assert same(safetensors.torch.load(path.read_bytes()), TENSORS)
    assert len(list(tmp_path.iterdir())) == 2


def test_what_is_loaded_can_be_written_to_and_outlives_its_file(tmp_path: Path) -> None:
    digest = save(tmp_path, TensorState(TENSORS, {}))
    (_, path), _ = blobs(tmp_path, digest)
    before = path.read_bytes()
    tensors = load(tmp_path, digest, SHAPES).tensors
    tensors["a"].add_(1.0)
    assert path.read_bytes() == before
    path.unlink()
    assert torch.equal(tensors["a"], TENSORS["a"] + 1.0)


@pytest.mark.parametrize("threads", [1, 3])
def test_the_same_tensors_give_the_same_bytes_in_any_order_and_layout_on_any_number_of_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    digest = save(tmp_path, TensorState(TENSORS, {}))
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    scattered = {name: torch.stack([tensor, tensor], -1)[..., 0] for name, tensor in reversed(TENSORS.items())}
    assert save(tmp_path, TensorState(scattered, {})) == digest
    monkeypatch.setattr(checkpoint, "FILE_BYTES", 24)
    several = save(tmp_path, TensorState(scattered, {}))
    assert same(dict(load(tmp_path, several, SHAPES).tensors), TENSORS)


def test_saving_copies_nothing_of_the_model(tmp_path: Path) -> None:
    model = {f"layers.{number}": torch.full((1 << 20,), float(number)) for number in range(8)}
    save(tmp_path, TensorState({"a": torch.zeros(1)}, {}))
    tracemalloc.start()
    digest = save(tmp_path, TensorState(model, {}))
    found = load(tmp_path, digest, dict.fromkeys(model, (1 << 20,)))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert same(dict(found.tensors), model)
    assert peak < 1 << 20


def test_the_rebuilt_file_is_accepted_unchanged(tmp_path: Path) -> None:
    """So that each hostile change below is what is refused."""
    for padding in (b"", b" ", b"  "):  # wherever its data begins
        header, data = parts()
        assert same(read(with_header(json.dumps(header).encode() + padding, data), tmp_path), TENSORS)


def hostile() -> dict[str, bytes]:
    header, data = parts()
    whole = encoded()
    length = int.from_bytes(whole[:8], "little")

    def changed(name: str, **fields: Any) -> bytes:
        return rebuilt({**header, name: {**header[name], **fields}}, data)

    twice = json.dumps(header)[:-1] + f', "a": {json.dumps(header["a"])}}}'
    without = {name: entry for name, entry in header.items() if name != "empty"}
    begin, end = header["a"]["data_offsets"]
    return {
        "nothing": b"",
        "three bytes": whole[:3],
        "length only": whole[:8],
        "truncated header": whole[:20],
        "truncated data": whole[:-1],
        "trailing byte": whole + b"\0",
        "giant header claimed": (1 << 40).to_bytes(8, "little") + whole[8:],
        "header claimed past any integer": b"\xff" * 8 + whole[8:],
        "giant header present": with_header(json.dumps(header).encode().ljust(1 << 20), data),
        "claims 2^40 elements": changed("a", shape=[1 << 40]),
        "extra tensor": rebuilt(
            {**header, "z": {"dtype": "F32", "shape": [0], "data_offsets": [len(data), len(data)]}}, data
        ),
        "missing tensor": rebuilt(without, data),
        "metadata": rebuilt({"__metadata__": {"x": "y"}, **header}, data),
        "duplicate key": with_header(twice.encode(), data),
        "wrong shape": changed("b", shape=[3, 2]),
        "another rank": changed("b", shape=[6]),
        "wrong dtype": changed("a", dtype="I32"),
        "bfloat16": changed("a", dtype="BF16"),
        "overlapping data": changed("b", data_offsets=[0, 24]),
        "offsets reversed": changed("a", data_offsets=[end, begin]),
        "negative offset": changed("a", data_offsets=[-4, end]),
        "boolean shape": changed("c.ä", shape=[True]),
        "fractional shape": changed("a", shape=[5.0]),
        "additional field": changed("a", comment="x"),
        "entry is a list": rebuilt({**header, "a": []}, data),
        "header is a list": rebuilt([header], data),
        "not JSON": with_header(b"{" + b"x" * (length - 1), data),
        "not UTF-8": with_header(b"\xff" * length, data),
        "deep nesting": with_header(b"[" * 1500, data),
        "huge integer": with_header(json.dumps(header).replace("[5]", "[" + "9" * 1200 + "]", 1).encode(), data),
        "pickle": b"\x80\x04\x95" + whole[3:],
    }


@pytest.mark.parametrize("kind", hostile())
def test_a_hostile_tensors_file_is_corrupt(kind: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointCorrupt):
        read(hostile()[kind], tmp_path)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_mutated_bytes_are_the_same_tensors_or_corrupt(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    mutated = bytearray(encoded())
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, 400)) % len(mutated)
        mutated[place] = data.draw(st.integers(0, 255))
    try:
        found = read(bytes(mutated), tmp_path_factory.getbasetemp())
    except CheckpointCorrupt:
        return
    assert {name: tuple(tensor.shape) for name, tensor in found.items()} == SHAPES


def test_another_digest_and_a_missing_file_are_corrupt(tmp_path: Path) -> None:
    read(encoded(), tmp_path)
    other = Digest(bytes(31) + b"\1")
    with pytest.raises(CheckpointCorrupt, match="does not hash"):
        load_tensors(tmp_path / "x", SHAPES, digest=other)
    with pytest.raises(CheckpointCorrupt, match="missing"):
        load_tensors(tmp_path / "y", SHAPES, digest=other)


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "x").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(CheckpointCorrupt, match="larger"):
        load_tensors(tmp_path / "x", SHAPES, digest=Digest(bytes(32)))


def test_a_saved_state_comes_back_from_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "FILE_BYTES", 24)
    facts = {"rounds": 3, "averages": ["0x1.8p-3"]}
    digest = save(tmp_path, TensorState(TENSORS, facts))
    assert len(blobs(tmp_path, digest)) == 4
    found = load(tmp_path, digest, SHAPES)
    assert same(dict(found.tensors), TENSORS)
    assert found.facts == facts
    assert save(tmp_path, TensorState(dict(reversed(TENSORS.items())), facts)) == digest


def test_missing_files_are_fetched_by_digest_and_cap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "FILE_BYTES", 24)
    digest = save(tmp_path / "there", TensorState(TENSORS, {}))
    theirs = dict(blobs(tmp_path / "there", digest))
    asked: list[Digest] = []

    def fetch(wanted: Digest, max_bytes: int, path: Path) -> None:
        asked.append(wanted)
        data = theirs[wanted].read_bytes()
        assert len(data) <= max_bytes
        path.write_bytes(data)

    assert same(dict(load(tmp_path / "here", digest, SHAPES, fetch=fetch).tensors), TENSORS)
    assert sorted(asked) == sorted(theirs)
    load(tmp_path / "here", digest, SHAPES, fetch=fetch)
    assert len(asked) == len(theirs)


def test_fetched_garbage_is_corrupt(tmp_path: Path) -> None:
    digest = save(tmp_path / "there", TensorState(TENSORS, {}))

    def garbage(_: Digest, max_bytes: int, path: Path) -> None:
        path.write_bytes(b"x" * min(max_bytes, 100))

    with pytest.raises(CheckpointCorrupt):
        load(tmp_path / "here", digest, SHAPES, fetch=garbage)


FILE = {"sha256": "00" * 32, "num_bytes": 5, "tensors": ["a"]}


@pytest.mark.parametrize(
    "manifest",
    [
        b"",
        b"[]",
        b"{}",
        b"[" * 100_000,
        json.dumps({"version": 2, "facts": {}, "files": [FILE]}).encode(),
        json.dumps({"version": 1, "facts": [], "files": [FILE]}).encode(),
        json.dumps({"version": 1, "facts": {}, "files": {}}).encode(),
        json.dumps({"version": 1, "facts": {}, "files": [FILE, FILE]}).encode(),
        json.dumps({"version": 1, "facts": {}, "files": []}).encode(),
        json.dumps({"version": 1, "facts": {}, "files": [FILE | {"tensors": ["z"]}]}).encode(),
        json.dumps({"version": 1, "facts": {}, "files": [FILE | {"tensors": [["a"]]}]}).encode(),
        json.dumps({"version": 1, "facts": {}, "files": [FILE | {"tensors": "a"}]}).encode(),
        json.dumps({"version": 1, "facts": {}, "files": [FILE | {"sha256": "../../etc/passwd"}]}).encode(),
        json.dumps({"version": 1, "facts": {}, "files": [FILE | {"sha256": 7}]}).encode(),
        json.dumps({"version": 1, "facts": {}, "files": [FILE | {"path": "/etc/passwd"}]}).encode(),
        json.dumps({"version": 1, "facts": {}, "files": ["a"]}).encode(),
    ],
)
def test_a_hostile_manifest_is_corrupt(manifest: bytes, tmp_path: Path) -> None:
    digest = Digest(sha256(manifest).digest())
    manifest_path(tmp_path, digest).write_bytes(manifest)
    with pytest.raises(CheckpointCorrupt):
        load(tmp_path, digest, {"a": (5,)})


def test_a_changed_file_or_manifest_is_corrupt(tmp_path: Path) -> None:
    digest = save(tmp_path, TensorState(TENSORS, {}))
    (file, path), _ = blobs(tmp_path, digest)
    assert path == tensors_path(tmp_path, file)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(CheckpointCorrupt, match="does not hash"):
        load(tmp_path, digest, SHAPES)
    manifest_path(tmp_path, digest).write_bytes(b"{}")
    with pytest.raises(CheckpointCorrupt, match="does not hash"):
        load(tmp_path, digest, SHAPES)


def test_only_fp32_is_saved(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="fp32"):
        save(tmp_path, TensorState({"a": torch.zeros(3, dtype=torch.float64)}, {}))
    assert list(tmp_path.iterdir()) == []

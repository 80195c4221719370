"""The library in C++ alone: where it is missing, what it allocates, and what mutated records may not make it touch."""

import subprocess
from pathlib import Path

import pytest

from sparseloco import kernels, native, wire
from sparseloco.update import Update
from tests.sparseloco.test_native import ISAS, verdict
from tests.sparseloco.test_wire import FUZZ_LAYOUT, VALID, WIDE_LAYOUT

KERNELS = Path(__file__).parents[2] / "csrc" / "kernels"
CORPUS = sorted((Path(__file__).parent / "corpus").iterdir())
"""Records of the two layouts of fuzz_decoder.cpp: valid ones, and what libFuzzer found on its way."""


@pytest.mark.parametrize("content", [None, b"not a library"])
def test_a_library_that_is_missing_or_broken_is_unavailable(content, tmp_path, monkeypatch):
    path = tmp_path / "murmur_codec.so"
    if content is not None:
        path.write_bytes(content)
    monkeypatch.setattr(kernels, "LIBRARY", path)
    with pytest.raises(kernels.Unavailable, match="make native"):
        kernels.library.__wrapped__()


FLAGS = ("-std=c++17", "-O2", "-g", "-ffp-contract=off", "-pthread", f"-I{KERNELS}")


def built(tmp_path, source, *parts):
    """A test program with these parts, or a skip where no compiler is."""
    program = tmp_path / source.stem
    try:
        subprocess.run(["g++", *FLAGS, str(source), *map(str, parts), "-o", str(program)], check=True, timeout=170)
    except FileNotFoundError:
        pytest.skip("no C++ compiler")
    return program


def test_the_hot_path_allocates_nothing_and_more_threads_only_their_own_start(tmp_path):
    library = kernels.LIBRARY  # as nodes load it; its calls of malloc are answered by the program's own
    program = built(tmp_path, Path(__file__).parent / "count_allocations.cpp", library, f"-Wl,-rpath,{library.parent}")
    output = subprocess.run([program], capture_output=True, text=True, check=True, timeout=60).stdout
    found = {tuple(line.split()[:2]): int(line.split()[2]) for line in output.splitlines()}
    assert found["1", "small"] == found["1", "large"] == 0
    assert found["2", "small"] == found["2", "large"] > 0


def test_the_fuzzers_corpus_is_judged_as_by_the_reference():
    valid = [plaintext[32:] for plaintext in VALID]
    assert valid == [path.read_bytes() for path in CORPUS if path.name[0].isdigit()]
    judged = set()
    for path in CORPUS:
        records = path.read_bytes()
        layout = WIDE_LAYOUT if len(records) == WIDE_LAYOUT.records_bytes else FUZZ_LAYOUT
        expected = verdict(wire.parse, bytes(32) + records, layout)
        for isa in ISAS:
            found = verdict(native.Codec(isa, 1).parse, bytes(32) + records, layout)
            assert found[0] == expected[0], path.name
        judged.add(isinstance(expected[0], Update))
    assert judged == {True, False}


@pytest.mark.slow
def test_mutated_records_never_touch_memory_that_is_not_theirs(tmp_path):
    flags = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    program = built(tmp_path, Path(__file__).parent / "fuzz_decoder.cpp", *sorted(KERNELS.glob("*.cpp")), *flags)
    command = [str(program), "200000", *map(str, CORPUS)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert result.returncode == 0, result.stderr
    accepted, refused = map(int, result.stdout.split())
    assert accepted > 100
    assert refused > 100_000

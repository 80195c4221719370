"""The presets in murmur/configs/: each is a run spec but for what only one network can know."""

from pathlib import Path

import pytest

from murmur.configs.presets import FOLDER
from murmur.plan import presets
from murmur.protocol.errors import ConfigError
from tests.specs import to_toml, toy_spec, toy_table


@pytest.mark.parametrize("name", presets.names())
def test_a_preset_makes_a_valid_run(name: str) -> None:
    run = presets.read(name)
    assert run.first.layout.num_chunks
    assert run.first.name == name


def test_the_tiny_preset_has_the_size_that_one_counts_by_hand() -> None:
    spec = presets.read("tiny").first
    layer = 64 + 64 * 64 + 2 * 32 * 64 + 64 * 64 + 64 + 3 * 64 * 192
    assert spec.layout.num_parameters == 264 * 64 + 2 * layer + 64 == 115_520
    full_chunks = 264 // 64 + 2 * (1 + 1 + 1 + 3 * 3)
    odd_bytes = spec.layout.records_bytes - 82 * full_chunks
    assert 0 < odd_bytes < 200
    assert spec.object_bytes == 204 + 32 + spec.layout.records_bytes + 4 + 4 * 512 * 20
    assert spec.pages_per_round == 1


@pytest.mark.parametrize("name", presets.names())
def test_a_peers_round_is_one_contiguous_run(name: str) -> None:
    assert presets.read(name).first.pages_per_round == 1


def test_a_whole_spec_is_read_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "Run 7.toml"
    path.write_text(to_toml(toy_table()))
    assert presets.read(str(path)).first == toy_spec()


def test_amendments_of_a_preset_follow_one_another(tmp_path: Path) -> None:
    path = tmp_path / "draft.toml"
    amendments = "".join(
        f"[[amendments]]\nfrom_round = {r}\nchanges = {{ outer = {{ alpha = 0.{r} }} }}\n" for r in (3, 8)
    )
    path.write_text((FOLDER / "tiny.toml").read_text() + amendments)
    run = presets.read(str(path))
    assert [run.spec_at(round).outer.alpha for round in (0, 2, 3, 7, 8)] == [1.0, 1.0, 0.3, 0.3, 0.8]
    assert run.first.name == "draft"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[model", "is not valid TOML"),
        ("", "model: Field required"),
        ("data = 3", "data: "),
        ("clock = 3", "clock: "),
        ("amendments = 3", "(whole): "),
        ("amendments = [3]", "0: "),
    ],
)
def test_a_file_that_is_no_spec_is_refused_with_its_name(text: str, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "broken.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as refusal:
        presets.read(str(path))
    assert str(path) in str(refusal.value)
    assert expected in str(refusal.value)


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(
        ConfigError,
        match=r"no spec 'covenant'.*150m, 1b, 8b, covenant-72b, covenant-72b-110, intellect-10b, parts, tiny",
    ):
        presets.read("covenant")


def test_covenant_on_slow_links_is_the_same_run_by_another_clock() -> None:
    run, slow = presets.read("covenant-72b"), presets.read("covenant-72b-110")
    others = {"clock", "checkpoint_rounds", "name"}
    assert slow.first.model_dump(exclude=others) == run.first.model_dump(exclude=others)
    assert [a.model_dump(exclude={"previous"}) for a in slow.amendments] == [
        a.model_dump(exclude={"previous"}) for a in run.amendments
    ]
    assert run.amendments

"""`murmur arena` end to end: JSON of the agreed form, a picture, a table, and clear refusals."""

import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from murmur.cli.arena import add_arguments
from murmur.cli.main import main
from murmur.lab.arena.attack import Expected

ROUNDS = {"type": ["number", "null"], "minimum": 0}
SCHEMA = {
    "type": "object",
    "required": ["clean_loss_progress", "honest_excluded", "rows"],
    "properties": {
        "clean_loss_progress": {"type": "number"},
        "honest_excluded": {"type": "number", "minimum": 0, "maximum": 1},
        "rows": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": [
                    "attack",
                    "class",
                    "policy",
                    "rounds_to_ejection_median",
                    "rounds_to_ejection_p90",
                    "weight_share_vs_honest",
                    "loss_progress",
                ],
                "properties": {
                    "class": {"enum": [expected.value for expected in Expected]},
                    "policy": {"enum": ["ours", "published"]},
                    "rounds_to_ejection_median": ROUNDS,
                    "rounds_to_ejection_p90": ROUNDS,
                    "weight_share_vs_honest": {"type": "number", "minimum": 0},
                    "loss_progress": {"type": "number"},
                },
            },
        },
    },
}
TINY = ["--peers", "26", "--rounds", "4", "--validators", "2"]


def test_a_tiny_arena_writes_json_a_table_and_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["arena", *TINY, "--attack", "noise", "--attack", "zeros", "--json", "--folder", str(tmp_path / "run")]
    assert main(words) == 0
    told = capsys.readouterr()
    body = json.loads(told.out)
    jsonschema.validate(body, SCHEMA)
    assert [(row["attack"], row["policy"]) for row in body["rows"]] == [
        ("noise", "ours"),
        ("noise", "published"),
        ("zeros", "ours"),
        ("zeros", "published"),
    ]
    assert json.loads((tmp_path / "run" / "arena.json").read_text()) == body
    assert (tmp_path / "run" / "standard.png").read_bytes().startswith(b"\x89PNG")
    assert "| zeros |" in (tmp_path / "run" / "arena.md").read_text()
    assert "run 6 of 6" in told.err


def test_all_attacks_together_in_one_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["arena", "--suite", "together", *TINY, "--policy", "ours", "--attack", "noise", "--attack", "late"]
    assert main([*words, "--folder", str(tmp_path / "run")]) == 0
    shown = capsys.readouterr().out
    assert "noise" in shown
    assert "at once" in shown
    body = json.loads((tmp_path / "run" / "arena.json").read_text())
    jsonschema.validate(body, SCHEMA)
    assert {row["attack"] for row in body["rows"]} == {"noise", "late"}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--peers", "5"], "--peers is 5"),
        (["--peers", "257"], "expected 27 to 256"),
        (["--rounds", "1"], "--rounds is 1"),
        (["--validators", "0"], "--validators is 0"),
        (["--attack", "lying-validator", "--validators", "1"], "lying-validator"),
    ],
)
def test_numbers_that_make_no_run_are_refused(
    words: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["arena", *words]) == 2
    assert expected in capsys.readouterr().err


def test_a_folder_in_use_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "old").write_text("kept")
    assert main(["arena", "--folder", str(tmp_path)]) == 2
    assert "not empty" in capsys.readouterr().err


def test_help_imports_neither_torch_nor_numpy() -> None:
    script = (
        "import sys; from murmur.cli.main import main\n"
        "try: main(['arena', '--help'])\n"
        "except SystemExit: pass\n"
        "sys.exit(' '.join({'torch', 'numpy', 'matplotlib', 'rich'} & set(sys.modules)) or 0)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, timeout=60)
    assert add_arguments.__module__ == "murmur.cli.arena"

"""`murmur evaluate` on tasks in local files. What needs the extra `post` is skipped without it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from murmur.cli.main import main
from murmur.data.tokenizer import byte_tokenizer
from murmur.export import evaluate
from murmur.protocol.errors import ConfigError
from tests.export.conftest import Made

CHOICE = """
task: toy_choice
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
output_type: multiple_choice
test_split: test
fewshot_split: test
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{answer}}}}"
metric_list:
  - metric: acc
    aggregation: mean
    higher_is_better: true
"""
PERPLEXITY = """
task: toy_perplexity
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
output_type: loglikelihood_rolling
test_split: test
doc_to_text: ""
doc_to_target: "{{{{question}}}}"
metric_list:
  - metric: byte_perplexity
"""


def test_tasks_are_presets_names_and_shots() -> None:
    assert evaluate.PRESETS["small"].items() < evaluate.PRESETS["base"].items()
    assert evaluate.parse_tasks("base") == dict.fromkeys(evaluate.PRESETS["base"], 0)
    chat = evaluate.parse_tasks("chat")
    assert (chat["arc_challenge"], chat["hellaswag"], chat["minerva_math"], chat["mmlu"]) == (25, 10, 4, 5)
    assert evaluate.parse_tasks("a,b:3,base")["b"] == 3
    assert evaluate.parse_tasks("a")["a"] is None
    for wrong in ("", ",", "a:x", "a:-1"):
        with pytest.raises(ConfigError, match="--tasks"):
            evaluate.parse_tasks(wrong)


def test_what_is_missing_is_said(
    made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["evaluate", str(tmp_path), "--tasks", "base"]) == 2
    assert "is not an export: it has no murmur.json" in capsys.readouterr().err
    made(tmp_path / "half")
    (tmp_path / "half" / "tokenizer.json").unlink()
    assert main(["evaluate", str(tmp_path / "half"), "--tasks", "base"]) == 2
    assert "does not match its own description: tokenizer.json is missing" in capsys.readouterr().err
    made(tmp_path / "out")
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    assert main(["evaluate", str(tmp_path / "out"), "--tasks", "base"]) == 2
    assert "pip install -c constraints.txt -e '.[post]'" in capsys.readouterr().err


def test_a_table_has_a_line_for_every_metric() -> None:
    metrics = {"acc,none": 0.5, "acc_stderr,none": 0.25, "exact_match,strict": 1.0}
    shown = evaluate.table({"results": {"toy": {"shots": 5, "metrics": metrics}}}).splitlines()
    assert shown[1].split() == ["toy", "5", "acc", "0.5000", "0.2500"]
    assert shown[2].split() == ["toy", "5", "exact_match", "(strict)", "1.0000"]
    assert len(shown) == 3


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    """A folder with two tasks."""
    folder = tmp_path / "tasks"
    folder.mkdir()
    rows = [{"question": f"{n} and {n} is", "choices": [f" {n}", f" {2 * n}"], "answer": n % 2} for n in range(12)]
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, text in (("choice", CHOICE), ("perplexity", PERPLEXITY)):
        (folder / f"{name}.yaml").write_text(text.format(data=data))
    return folder


@pytest.mark.slow  # lm-eval reads thousands of tasks at its start: 15 s of CPU, three times
def test_results_are_those_of_lm_evals_own_command(
    made: Made, tasks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("lm_eval", "transformers", "accelerate"):
        pytest.importorskip(package, reason="the extra `post` is not installed")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    folder = tmp_path / "out"
    made(folder)
    words = ["evaluate", str(folder), "--include", str(tasks), "--tasks"]
    assert main([*words, "toy_choice:2,toy_perplexity", "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    ours = body["results"]
    assert (body["round"], ours["toy_choice"]["shots"]) == (3, 2)
    assert main([*words, "toy_choice:2"]) == 0
    assert "toy_choice" in capsys.readouterr().out
    assert main([*words, "toy_chioce"]) == 2
    assert "did you mean toy_choice?" in capsys.readouterr().err
    for wrong, told in (
        (["--include", str(tmp_path / "none")], "none is not a folder of tasks"),
        (["--limit", "0"], "--limit is 0, expected 1 or more"),
        (["--batch", "0"], "--batch is 0, expected 1 or more"),
    ):
        assert main([*words, "toy_choice", *wrong]) == 2
        assert told in capsys.readouterr().err
    config = json.loads(byte_tokenizer().config) | {"chat_template": "{{ raise_exception('never') }}"}
    made(tmp_path / "odd", config=json.dumps(config).encode())
    assert main(["evaluate", str(tmp_path / "odd"), *words[2:], "toy_choice", "--chat"]) == 2
    assert "does not fit a task's questions: never" in capsys.readouterr().err
    (tmp_path / "rows.jsonl").rename(tmp_path / "moved.jsonl")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "other"))
    for name in ("toy_choice", "piqa"):
        assert main([*words, name]) == 2
        assert "cannot load the data of a task" in capsys.readouterr().err
    (tmp_path / "moved.jsonl").rename(tmp_path / "rows.jsonl")
    theirs = {}
    for name, shots in (("toy_choice", ["--num_fewshot", "2"]), ("toy_perplexity", [])):
        place = ["--include_path", str(tasks), "--tasks", name, "--output_path", str(tmp_path / name)]
        model = ["--model", "hf", "--model_args", f"pretrained={folder},dtype=auto", "--device", "cpu"]
        subprocess.run(
            [sys.executable, "-m", "lm_eval", "run", *model, "--batch_size", "1", *place, *shots],
            check=True,
            timeout=300,
            env=os.environ,
            capture_output=True,
        )
        (result,) = (tmp_path / name).rglob("results_*.json")
        theirs[name] = json.loads(result.read_text())["results"][name]
    for name, entry in ours.items():
        assert entry["metrics"]
        for key, value in entry["metrics"].items():
            assert theirs[name][key] == pytest.approx(value, abs=1e-12)

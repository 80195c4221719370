"""`murmur sft` on toy chats: rows, order, both stages, going on. What needs the extra `post` is skipped without it."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from murmur.cli.main import main
from murmur.data.shards import Shards
from murmur.data.tokenizer import byte_tokenizer
from murmur.export import recipes
from murmur.export.folder import write
from murmur.export.recipes import Recipe
from murmur.export.states import Named
from murmur.export.tokenizer import run_tokenizer
from murmur.protocol.errors import ConfigError
from murmur.protocol.messages import first_link
from tests.export.conftest import Made, quiet, state_of
from tests.specs import toy_spec

EXTRA = "the extra `post` is not installed"
pytestmark = pytest.mark.filterwarnings("ignore")
SHORT = """
betas = [0.9, 0.95]
weight_decay = 0.01
clip = 1.0
save_steps = 2
held_out_rows = 4

[[stages]]
context = 48
sequences = 4
steps = 6
warmup = 0.2
epochs = 2.0
peak_lr = 3e-3

[[stages]]
context = 64
sequences = 4
replay = 0.25
steps = 4
warmup_steps = 1
first_lr = 1e-3
peak_lr = 2e-3
linear_from = 2
"""


def chats(count: int, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Greetings: what is asked for stands in the question."""
    draw = random.Random(seed)
    for _ in range(count):
        name = draw.choice(["Ada", "Bo", "Cleo", "Dan"])
        yield {
            "messages": [
                {"role": "user", "content": f"Greet {name}."},
                {"role": "assistant", "content": f"Good day, {name}!"},
            ]
        }


def write_rows(path: Path, rows: Iterator[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def base(tmp_path: Path, data_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An export whose tokenizer has turns, of a run over `data_folder`."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    shards = Shards.open(data_folder)
    spec = toy_spec({"data.index": shards.digest.hex()})
    folder = tmp_path / "base"
    folder.mkdir()
    tokenizer = run_tokenizer(shards.index.tokenizer, shards.index.tokenizer_config, data_folder)
    named = Named(3, first_link(spec.digest), None)
    write(folder, spec.digest, spec, named, state_of(spec), tokenizer, "float32", 5_000_000_000, quiet)
    return folder


# --- rows and their order ----------------------------------------------------------------------------------------


def turns(base: Path) -> Any:
    pytest.importorskip("transformers", reason=EXTRA)
    from transformers import AutoTokenizer

    from murmur.export.chat_turns import open_turns

    return open_turns(AutoTokenizer.from_pretrained(base))


def test_the_labels_are_the_assistants_turns_with_their_ends(base: Path) -> None:
    found = turns(base)
    from murmur.export.chat_rows import chat_of

    asked = [("user", "Hé"), ("assistant", "one ü"), ("user", "b"), ("assistant", "two")]
    (example,), _ = found.examples(
        chat_of({"messages": [{"role": role, "content": content} for role, content in asked]})
    )
    assert bytes(token for token in example["labels"] if 0 <= token < 256).decode() == "one ütwo"
    assert [token for token in example["labels"] if token >= 256] == [258, 258]
    assert all(label in (-100, token) for label, token in zip(example["labels"], example["input_ids"], strict=True))
    assert found.ends == [258]


def test_every_epoch_has_every_row_once_and_every_step_its_replay(
    base: Path, data_folder: Path, tmp_path: Path
) -> None:
    found = turns(base)
    import numpy as np
    from datasets import load_from_disk

    from murmur.export.chat import Mix, held_out, read_rows, tokenised

    path = write_rows(tmp_path / "rows.jsonl", ({"messages": [*row["messages"]]} for row in chats(30)))
    tokenised(read_rows(str(path), tmp_path / "cache"), found, str(path), tmp_path / "chat", 0.0)
    rows = load_from_disk(str(tmp_path / "chat"))
    out = held_out(30, 4)
    assert len(out) == 3
    trained = np.setdiff1d(np.arange(30), out)
    stage = Recipe.model_validate(recipes.tomllib.loads(SHORT)).stages[1]
    train = Shards.open(data_folder).train
    mix = Mix(stage, 2, rows, trained, train)
    epochs = [int(row) for row in (mix._order(epoch)[at] for epoch in (0, 1) for at in range(27))]
    assert sorted(epochs[:27]) == sorted(epochs[27:]) == sorted(trained)
    assert epochs[:27] != epochs[27:]
    again = Mix(stage, 2, rows, trained, train)
    places = range(4 * stage.sequences)
    assert [again.example(place) for place in reversed(places)][::-1] == [mix.example(place) for place in places]
    for place in places:
        example = mix.example(place)
        if place % 4 == 3:
            assert example["labels"] == example["input_ids"]
            assert len(example["input_ids"]) == 64
            assert bytes(token for token in example["input_ids"] if token < 256)
        else:
            assert -100 in example["labels"]


def test_rows_of_the_hub_are_those_of_a_file(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = turns(base)
    import datasets

    from murmur.export.chat import digest, read_rows, tokenised

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "hf"))
    (tmp_path / "hub").mkdir()
    digests = []
    for source in (str(write_rows(tmp_path / "hub" / "train.jsonl", chats(9))), f"hf:{tmp_path / 'hub'}"):
        out = tmp_path / f"chat-{len(digests)}"
        tokenised(read_rows(source, tmp_path / "cache"), found, source, out, 0.0)
        digests.append(digest(datasets.load_from_disk(str(out))))
    assert digests[0] == digests[1]
    with pytest.raises(ConfigError, match="cannot load the data set hf:"):
        read_rows(f"hf:{tmp_path / 'nothing'}", tmp_path / "cache")


# --- what stands in the way --------------------------------------------------------------------------------------


def test_what_is_missing_is_said(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["sft", str(base), "--data", "x.jsonl", "--recipe"]
    assert main([*words, "nobodys"]) == 2
    assert "is neither a recipe (covenant-72b, toy) nor a TOML file" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "trl", None)
    monkeypatch.delitem(sys.modules, "murmur.export.sft", raising=False)
    monkeypatch.delitem(sys.modules, "murmur.export.trainer", raising=False)
    assert main([*words, "toy"]) == 2
    assert "pip install -c constraints.txt -e '.[post]'" in capsys.readouterr().err


def test_what_cannot_be_tuned_is_refused_with_the_reason(
    base: Path,
    made: Made,
    data_folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("trl", reason=EXTRA)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    config = json.loads(byte_tokenizer().config)
    del config["chat_template"]
    made(tmp_path / "plain", config=json.dumps(config).encode())
    data = str(write_rows(tmp_path / "rows.jsonl", chats(30)))
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    for file in base.iterdir():
        (damaged / file.name).write_bytes(file.read_bytes())
    weights = bytearray((damaged / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (damaged / "model.safetensors").write_bytes(weights)
    stranger = tmp_path / "stranger"
    shutil.copytree(base, stranger)
    table = json.loads((stranger / "tokenizer_config.json").read_bytes())
    table |= {"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": ["evil.Evil", None]}}
    (stranger / "tokenizer_config.json").write_text(json.dumps(table))
    half = tmp_path / "half"
    shutil.copytree(base, half)
    (half / "tokenizer.json").unlink()
    replay = ["--replay", str(data_folder)]
    short = tmp_path / "short.toml"
    short.write_text(SHORT)
    for words, told in (
        ((tmp_path, "--data", data, *replay), "is not an export: it has no murmur.json"),
        ((tmp_path / "plain", "--data", data, *replay), "has no turn tokens"),
        ((base, "--data", data), "give the folder of its data set as --replay"),
        ((base, "--data", data, "--replay", str(tmp_path)), "no data set in"),
        ((base, "--data", str(tmp_path / "none"), *replay), "is not there: expected a JSONL file"),
        ((base, "--data", data, *replay, "--batch", "3"), "choose others"),
        ((damaged, "--data", data, *replay), "does not match its own description"),
        ((stranger, "--data", data, *replay), "does not match its own description: "),
        ((half, "--data", data, *replay), "does not match its own description: "),
        ((base, "--data", data, *replay, "--device", "cuda"), "torch finds no GPU"),
        ((base, "--data", data, *replay, "--out", str(base / "tuned")), "is inside the export"),
        ((base, "--data", data, *replay, "--out", str(data_folder)), "exists already"),
    ):
        assert main(["sft", *map(str, words), "--recipe", str(short)]) == 2
        assert told in capsys.readouterr().err
    assert not (base / "tuned.partial").exists()


# --- training ----------------------------------------------------------------------------------------------------


class Broken(Exception):
    """Ends a fine-tuning in the middle."""


def steps_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "training.jsonl").read_text().splitlines()]


def test_both_stages_run_and_one_that_was_broken_off_goes_on_the_same(
    base: Path, data_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("trl", reason=EXTRA)
    transformers = pytest.importorskip("transformers", reason=EXTRA)
    from murmur.export import trainer

    (tmp_path / "short.toml").write_text(SHORT)
    data = write_rows(tmp_path / "rows.jsonl", chats(30))
    words = ["sft", str(base), "--data", str(data), "--recipe", str(tmp_path / "short.toml"), "--device", "cpu"]
    words += ["--replay", str(data_folder), "--out"]
    good = data.read_text()
    data.write_text(good + "nonsense\n")
    assert main([*words, str(tmp_path / "one")]) == 1
    assert (
        "1 of 31 rows cannot be used, more than 0.10% (--max-bad).\n  1 not JSON: line 31 " in capsys.readouterr().err
    )
    assert main([*words, str(tmp_path / "bad"), "--max-bad", "0.1"]) == 0
    assert capsys.readouterr().out.startswith("left out 1 rows: not JSON\nbefore: ")
    data.write_text(good)
    assert main([*words, str(tmp_path / "one")]) == 0
    text = capsys.readouterr().out
    assert steps_of(tmp_path / "bad") == steps_of(tmp_path / "one")
    tuned = [json.loads((tmp_path / name / "sft.json").read_bytes()) for name in ("bad", "one")]
    assert [each["bad"] for each in tuned] == [{"not JSON": 1}, {}]
    assert "30 rows, without 1 bad ones." in (tmp_path / "bad" / "README.md").read_text()
    assert [line.split(":")[0] for line in text.splitlines()[:3]] == ["before", "after stage 1", "after stage 2"]
    assert "asked '<|start_of_turn|>user\\nGreet" in text

    write_line, broken = trainer.Kept.on_log, [(1, 3), (2, 4)]

    def breaks(self: Any, args: Any, state: Any, control: Any, **more: Any) -> None:
        write_line(self, args, state, control, **more)
        if broken and (self._number, state.global_step) == broken[0]:
            broken.pop(0)
            raise Broken

    save_whole, unsaved = trainer.StageTrainer.save_whole, [1]

    def breaks_at_the_end(self: Any, folder: Path, dtype: Any) -> None:
        if unsaved:
            unsaved.pop()
            raise Broken
        save_whole(self, folder, dtype)

    monkeypatch.setattr(trainer.Kept, "on_log", breaks)
    monkeypatch.setattr(trainer.StageTrainer, "save_whole", breaks_at_the_end)
    for _ in range(3):
        with pytest.raises(Broken):
            main([*words, str(tmp_path / "two")])
    # What was saved in part is not gone on from.
    torn = tmp_path / "two.partial" / "work" / "stage-2" / "checkpoint-3"
    torn.mkdir()
    assert main([*words, str(tmp_path / "two"), "--batch", "2"]) == 2
    assert "was begun with another sequences" in capsys.readouterr().err
    data.write_text(good + good)
    assert main([*words, str(tmp_path / "two")]) == 2
    assert "was begun with other rows than" in capsys.readouterr().err
    data.write_text(good)
    assert main([*words, str(tmp_path / "two")]) == 0
    # Whoever goes on is told all of it.
    assert capsys.readouterr().out.splitlines()[:3] == text.splitlines()[:3]
    one, two = steps_of(tmp_path / "one"), steps_of(tmp_path / "two")
    assert one == two
    recipe = recipes.recipe(str(tmp_path / "short.toml"))
    expected = [
        (n, s + 1, stage.schedule(27).lr(s)) for n, stage in enumerate(recipe.stages, 1) for s in range(stage.steps)
    ]
    assert [(row["stage"], row["step"]) for row in one] == [(number, step) for number, step, _ in expected]
    assert [row["lr"] for row in one] == pytest.approx([lr for _, _, lr in expected], rel=1e-12)
    weights = "model.safetensors"
    assert (tmp_path / "one" / weights).read_bytes() == (tmp_path / "two" / weights).read_bytes()
    assert not list(tmp_path.glob("*.partial"))

    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "two")
    assert model.config.max_position_embeddings == 64
    assert model.generation_config.eos_token_id == [258, 256]
    assert "**This is not the run's theta" in (tmp_path / "two" / "README.md").read_text()
    assert main(["export", "--verify", str(tmp_path / "two")]) == 2
    assert "is a fine-tuned model (murmur sft)" in capsys.readouterr().err


@pytest.mark.parametrize("when", ["before", "within"])
def test_a_loss_that_is_not_finite_ends_it_with_its_step(
    when: str,
    base: Path,
    data_folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("trl", reason=EXTRA)
    from torch import nn

    from murmur.export import trainer

    def strict(text: str) -> None:
        raise AssertionError(text)

    class Broken(trainer.Kept):
        def on_step_begin(self, args: Any, state: Any, control: Any, *, model: nn.Module, **_: Any) -> None:
            if state.global_step == (2 if when == "within" else -1):
                with_nan(model)

    def with_nan(model: nn.Module) -> None:
        next(model.parameters()).data.fill_(float("nan"))

    monkeypatch.setattr("murmur.export.sft.Kept", Broken)
    if when == "before":
        opened = trainer.AutoModelForCausalLM.from_pretrained

        def spoilt(*words: Any, **more: Any) -> Any:
            model = opened(*words, **more)
            with_nan(model)
            return model

        monkeypatch.setattr(trainer.AutoModelForCausalLM, "from_pretrained", spoilt)
    (tmp_path / "short.toml").write_text(SHORT)
    data = write_rows(tmp_path / "rows.jsonl", chats(30))
    words = ["sft", str(base), "--data", str(data), "--recipe", str(tmp_path / "short.toml"), "--device", "cpu"]
    words += ["--replay", str(data_folder), "--out", str(tmp_path / "out")]
    assert main(words) == 1
    told = {"before": "held-out chats' loss is nan after step 0", "within": "stage 1, step 3: loss is nan"}[when]
    assert told in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    for path in [*(tmp_path / "out.partial").rglob("*.json"), *(tmp_path / "out.partial").rglob("*.jsonl")]:
        for line in path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]:
            json.loads(line, parse_constant=strict)
    if when == "within":
        assert len(steps_of(tmp_path / "out.partial")) == 2
        monkeypatch.undo()
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        assert main(words) == 0  # from the last good checkpoint
        assert len(steps_of(tmp_path / "out")) == 10


def test_whoever_is_killed_while_the_rest_goes_has_the_model(
    base: Path, data_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("trl", reason=EXTRA)
    from murmur.export import sft

    (tmp_path / "short.toml").write_text(SHORT)
    data = write_rows(tmp_path / "rows.jsonl", chats(30))
    words = ["sft", str(base), "--data", str(data), "--recipe", str(tmp_path / "short.toml"), "--device", "cpu"]
    words += ["--replay", str(data_folder), "--out", str(tmp_path / "out")]

    def breaks(path: Path, ignore_errors: bool = False) -> None:
        if path.parent == tmp_path / "out.partial":
            assert path.stat().st_mode & 0o700 == 0o700, "only root could remove what is in it"
            (path / "measured.json").unlink()
            shutil.rmtree(path / "stage-1")
            raise Broken
        shutil.rmtree(path, ignore_errors=ignore_errors)

    with monkeypatch.context() as patch:
        patch.setattr(sft, "rmtree", breaks)
        with pytest.raises(Broken):
            main(words)
    capsys.readouterr()
    weights = (tmp_path / "out.partial" / "model.safetensors").read_bytes()
    assert main([*words, "--batch", "2"]) == 2
    assert "was begun with another sequences" in capsys.readouterr().err
    assert main(words) == 0
    assert "stage" not in "".join(capsys.readouterr())
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == weights
    assert sorted(path.name for path in (tmp_path / "out").iterdir() if path.is_dir()) == []
    assert len({path.stat().st_mode for path in (tmp_path / "out").iterdir()}) == 1
    assert len(steps_of(tmp_path / "out")) == 10


@pytest.mark.slow  # 160 steps, in four processes that import TRL
def test_the_held_out_loss_falls_by_half_whoever_is_killed(base: Path, data_folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("trl", reason=EXTRA)
    data = write_rows(tmp_path / "rows.jsonl", chats(200))
    words = ["sft", str(base), "--data", str(data), "--recipe", "toy", "--replay", str(data_folder), "--device", "cpu"]

    def start(out: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "murmur", *words, "--out", str(tmp_path / out)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ)

    whole = start("whole")
    text, _ = whole.communicate(timeout=500)
    assert whole.returncode == 0
    measured = json.loads((tmp_path / "whole" / "sft.json").read_bytes())["measured"]
    assert measured[-1]["loss"] < measured[0]["loss"] / 2
    assert measured[0]["answer"] != measured[-1]["answer"]
    # Replayed text has not driven out what stage 1 has taught.
    assert measured[2]["loss"] < 1.05 * measured[1]["loss"]
    assert [one["answer"].startswith("Good day, ") for one in measured] == [False, True, True]
    assert measured[-1]["answer"].endswith("!<|end_of_turn|>")
    assert measured[-1]["answer"] in text
    for lines in (40, 130):
        process, log = start("killed"), tmp_path / "killed.partial" / "training.jsonl"
        deadline = time.monotonic() + 300
        while (not log.exists() or log.read_bytes().count(b"\n") < lines) and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        process.stdout and process.stdout.close()
    last = start("killed")
    last.communicate(timeout=500)
    assert last.returncode == 0
    assert steps_of(tmp_path / "whole") == steps_of(tmp_path / "killed")
    assert steps_of(tmp_path / "whole")[0]["lr"] == 0.0


@pytest.mark.slow  # three processes that import TRL
def test_two_processes_learn_what_one_does(base: Path, data_folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("trl", reason=EXTRA)
    (tmp_path / "short.toml").write_text(SHORT)
    data = write_rows(tmp_path / "rows.jsonl", chats(30))
    words = ["sft", str(base), "--data", str(data), "--recipe", str(tmp_path / "short.toml"), "--device", "cpu"]
    words += ["--replay", str(data_folder), "--out"]
    for out, ranks in (("one", []), ("two", ["-m", "murmur", "torchrun", "--nproc-per-node", "2"])):
        command = [sys.executable, *ranks, "-m", "murmur", *words, str(tmp_path / out)]
        subprocess.run(command, check=True, timeout=500, env=os.environ)
    for one, two in zip(steps_of(tmp_path / "one"), steps_of(tmp_path / "two"), strict=True):
        assert (one["step"], one["lr"]) == (two["step"], two["lr"])
        assert one["loss"] == pytest.approx(two["loss"], abs=1e-4)

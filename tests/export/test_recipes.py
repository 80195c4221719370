"""Recipes of fine-tuning: schedules against transformers' and the published figures; what they cost, by hand."""

import json
from pathlib import Path

import pytest

from murmur.cli.main import main
from murmur.export import recipes
from murmur.export.cost import cost
from murmur.export.recipes import Stage
from murmur.plan.rates import Rate
from murmur.protocol.errors import ConfigError

PUBLISHED_ROWS = 53_293 * 256
"""1.5 epochs of so many rows are a cosine that stands at 2.97e-6 after 36,500 steps."""


def test_the_first_stage_is_transformers_own_cosine() -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers", reason="the extra `post` is not installed")
    stage = Stage(context=8, sequences=4, steps=100, peak_lr=5e-6, warmup=0.03, epochs=1.5)
    schedule = stage.schedule(1000)
    assert (schedule.horizon, schedule.steps, schedule.warmup) == (375, 100, 11)
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=5e-6)
    theirs = transformers.get_cosine_schedule_with_warmup(optimizer, schedule.warmup, schedule.horizon)
    for step in range(100):
        assert schedule.lr(step) == pytest.approx(theirs.get_last_lr()[0], rel=1e-12)
        optimizer.step()
        theirs.step()


def test_the_published_points_of_both_stages_are_met() -> None:
    first, second = (stage.schedule(PUBLISHED_ROWS) for stage in recipes.recipe("covenant-72b").stages)
    assert (first.steps, second.steps) == (36_500, 20_500)
    assert (first.lr(0), first.lr(first.warmup)) == (0.0, 5e-6)
    assert first.warmup == pytest.approx(0.03 * first.horizon, abs=1)
    assert first.lr(36_500 - 1) == pytest.approx(2.97e-6, rel=1e-3)
    assert (second.lr(0), second.lr(25)) == (2.97e-6, 3.57e-6)
    turn = second.lr(10_100)
    assert second.lr(10_099) == pytest.approx(turn, rel=1e-3)
    assert second.lr(15_300) == pytest.approx(turn / 2, rel=1e-12)
    assert second.lr(20_500) == 0.0
    assert all(second.lr(step) >= second.lr(step + 1) for step in range(25, 20_500))


def test_the_stages_are_those_that_were_published() -> None:
    found = recipes.recipe("covenant-72b")
    assert (found.betas, found.weight_decay, found.clip) == ([0.9, 0.95], 0.01, 1.0)
    assert [(stage.context, stage.sequences) for stage in found.stages] == [(4096, 256), (8192, 256)]
    assert [stage.replay_sequences for stage in found.stages] == [0, 51]


def test_few_rows_end_the_first_stage_with_its_cosine() -> None:
    schedule = recipes.recipe("covenant-72b").stages[0].schedule(2560)
    assert (schedule.steps, schedule.horizon) == (15, 15)
    assert schedule.lr(14) < 0.02 * schedule.peak


def test_a_recipe_of_ones_own_is_a_file_and_a_wrong_one_is_refused(tmp_path: Path) -> None:
    text = recipes.__file__ and Path(recipes.__file__).with_name("recipes.toml").read_text(encoding="utf-8")
    own = tmp_path / "own.toml"
    begin, end = text.index("betas", text.index("[toy]")), None
    own.write_text(text[begin:end].replace("toy.", ""))
    assert recipes.recipe(str(own)) == recipes.recipe("toy")
    for change, told in (
        (("steps = 120", "steps = 0"), "steps"),
        (("warmup = 0.03", ""), "either warmup or warmup_steps"),
        (("replay = 0.0625", "replay = 0.99"), "leaves no sequence"),
        (("clip = 1.0", "clop = 1.0"), "clop"),
        (("betas = [0.9, 0.95]", "betas = [0.9"), "not TOML"),
    ):
        own.write_text(text[begin:end].replace("toy.", "").replace(*change))
        with pytest.raises(ConfigError, match=told):
            recipes.recipe(str(own))
    with pytest.raises(ConfigError, match="neither a recipe"):
        recipes.recipe("covenant")


# --- what it costs -----------------------------------------------------------------------------------------------


def test_covenants_memory_time_and_disk_are_those_of_arithmetic_by_hand(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "--spec", "covenant-72b", "--gpus", "8", "--gpu-memory", "192", "--sft", "covenant-72b"]
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    parameters = 70_599_843_840
    head = 262_144 * 8192
    layer = 2 * 8192 * 8192 + 2 * 8192 * 1024 + 3 * 8192 * 28_672
    assert 80 * (layer + 2 * 8192) + head + 8192 == parameters
    for stage, context, steps in zip(found["stages"], (4096, 8192), (36_500, 20_500), strict=True):
        tokens = steps * 256 * context
        flops = tokens * (6 * (80 * layer + head) + 6 * 80 * 8192 * (context + 1))
        assert (stage["tokens"], stage["flops"]) == (tokens, flops)
        assert stage["seconds"] == pytest.approx(flops / (8 * 530e12))
        gpu = stage["gpu"]
        assert gpu["parameters"] == gpu["gradients"] == 4 * parameters // 8
        assert gpu["adam_moments"] == 2 * 4 * parameters // 8
        assert stage["gpu_bytes"] == sum(gpu.values())
        # Every layer's input in bf16, for all layers.
        assert gpu["activations"] > 80 * 2 * 8192 * context
        assert 0.95 * 192e9 > stage["gpu_bytes"] > 16 * parameters / 8
    # In the first stage a step is fullest when the head's gradient is made, in fp32 and bf16.
    assert found["stages"][0]["gpu"]["gradients_in_use"] == 6 * head
    assert found["seconds"] == pytest.approx(sum(stage["seconds"] for stage in found["stages"]))
    assert found["disk_bytes"] == (3 * 12 + 4 + 2) * parameters
    assert found["host_bytes"] == pytest.approx(4 * parameters, rel=0.02)


def test_what_a_person_sees_fits_and_what_does_not_fit_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "--spec", "covenant-72b", "--sft", "covenant-72b", "--gpu-memory"]
    assert main([*words, "192"]) == 0
    text = capsys.readouterr().out
    assert "IT FITS." in text
    assert max(map(len, text.splitlines())) <= 100
    assert main([*words, "80"]) == 1
    assert "REFUSED:" in capsys.readouterr().out
    assert main([*words, "192", "--gpus", "7"]) == 1
    assert "7" in capsys.readouterr().out
    assert main(["plan", "--spec", "tiny", "--sft", "nobodys"]) == 2


def test_the_fewest_gpus_are_enough_and_one_less_is_not() -> None:
    from murmur.plan import presets

    spec, recipe = presets.read("covenant-72b").first, recipes.recipe("covenant-72b")
    needed = [stage.gpus_needed or 0 for stage in cost(spec, recipe, 8, 80 * 10**9, Rate(530e12)).stages]
    for number, gpus in enumerate(needed):
        assert cost(spec, recipe, gpus, 80 * 10**9, Rate(530e12)).stages[number].sequences_at_once
        assert not cost(spec, recipe, gpus - 1, 80 * 10**9, Rate(530e12)).stages[number].sequences_at_once

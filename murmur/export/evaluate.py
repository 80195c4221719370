"""`murmur evaluate`: an export's worth on tasks, by lm-eval's own evaluator. Needs the extra `post`.

The model is opened once; tasks of equally many shots are one call. Seeds, prompts and metrics are lm-eval's, so its own
command line gives the same numbers.
"""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from importlib.metadata import version
from pathlib import Path
from typing import Any

from murmur.export.origin import Origin
from murmur.protocol.errors import ConfigError

MISSING = "murmur evaluate needs the extra `post`, which is not installed: pip install -c constraints.txt -e '.[post]'"
PRESETS: Mapping[str, Mapping[str, int]] = {
    "small": dict.fromkeys(("arc_easy", "piqa", "hellaswag"), 0),
    "base": dict.fromkeys(
        ("arc_challenge", "arc_easy", "piqa", "openbookqa", "hellaswag", "winogrande", "mmlu"),
        0,
    ),
    "chat": {
        "arc_challenge": 25,
        "hellaswag": 10,
        "bbh_cot_fewshot": 3,
        "minerva_math": 4,
        "gsm8k": 5,
        "mmlu": 5,
        "mmlu_pro": 5,
        "winogrande": 5,
    },
}
"""Task to shots: the published tables' numbers of shots (Covenant-72B, arXiv 2603.08163), for base and chat models; and
what of the first tells soonest, and in the shortest time, that a run learns."""


def parse_tasks(text: str) -> dict[str, int | None]:
    """`small`, `base`, `chat`, or names with commas, each as NAME or NAME:SHOTS; None: as many shots as the task says
    itself. Raises ConfigError."""
    tasks: dict[str, int | None] = {}
    for part in filter(None, text.split(",")):
        if part in PRESETS:
            tasks |= PRESETS[part]
            continue
        name, colon, shots = part.partition(":")
        if colon and not shots.isdecimal():
            raise ConfigError(f"--tasks: {part!r} is not NAME:SHOTS")
        tasks[name] = int(shots) if colon else None
    if not tasks:
        raise ConfigError(f"--tasks names no task: give {', '.join(PRESETS)}, or lm-eval's names of tasks")
    return tasks


def require() -> None:
    """Raises ConfigError without the extra."""
    try:
        import lm_eval  # noqa: F401
    except ImportError as fault:
        raise ConfigError(f"{MISSING} ({fault})") from None


def evaluate(
    folder: Path,
    origin: Origin,
    tasks: Mapping[str, int | None],
    *,
    include: Path | None = None,
    limit: int | None = None,
    batch: int = 1,
    device: str | None = None,
    chat: bool = False,
) -> dict[str, Any]:
    """What the export in `folder` achieves, as an object for JSON: `results` by task, and groups of tasks, each with
    `shots` and `metrics`. include: a folder with tasks of one's own. limit: of documents of a task. chat: with the
    tokenizer's chat template. Raises ConfigError for unknown tasks and without the extra."""
    require()
    for name, value in (("--limit", limit), ("--batch", batch)):
        if value is not None and value < 1:
            raise ConfigError(f"{name} is {value}, expected 1 or more")
    from jinja2 import TemplateError
    from lm_eval import simple_evaluate

    manager = _manager(tasks, include)
    model = _model(folder, batch, device)
    if chat and model.tokenizer.chat_template is None:
        raise ConfigError(f"the tokenizer of {folder} has no chat template: this is a base model, leave out --chat")
    results: dict[str, Any] = {}
    for shots in sorted(set(tasks.values()), key=lambda shots: -1 if shots is None else shots):
        try:
            found = simple_evaluate(
                model=model,
                tasks=[name for name, wanted in tasks.items() if wanted == shots],
                num_fewshot=shots,
                limit=limit,
                apply_chat_template=chat,
                task_manager=manager,
                log_samples=False,
            )
        except OSError as fault:
            raise ConfigError(
                f"lm-eval cannot load the data of a task ({fault}). It fetches them from the Hugging Face hub, "
                "or reads the files of your own task"
            ) from None
        except TemplateError as fault:
            raise ConfigError(f"the chat template of {folder} does not fit a task's questions: {fault}") from None
        for name, metrics in found["results"].items():
            numbers = {key: value for key, value in metrics.items() if isinstance(value, float | int)}
            results[name] = {"shots": found["n-shot"].get(name), "metrics": numbers}
    return {
        "run": origin.run,
        "round": origin.round,
        "theta": origin.theta,
        "dtype": origin.dtype,
        "lm_eval": version("lm_eval"),
        "limit": limit,
        "results": results,
    }


def _model(folder: Path, batch: int, device: str | None) -> Any:
    """lm-eval's model of an export."""
    import torch
    from lm_eval.models.huggingface import HFLM

    class Model(HFLM):  # type: ignore[misc]
        add_bos_token: bool | None

        def loglikelihood_rolling(self, *given: Any, **more: Any) -> Any:
            """lm-eval itself begins such a text, so with the tokenizer's own token there would be two."""
            own, self.add_bos_token = self.add_bos_token, False
            try:
                return super().loglikelihood_rolling(*given, **more)
            finally:
                self.add_bos_token = own

    chosen = device or ("cuda" if torch.cuda.is_available() else "cpu")  # lm-eval takes no None
    return Model(pretrained=str(folder), dtype="auto", batch_size=batch, device=chosen)


def _manager(tasks: Iterable[str], include: Path | None) -> Any:
    """lm-eval's TaskManager, which knows all of these tasks. Raises ConfigError."""
    from lm_eval.tasks import TaskManager

    if include is not None and not include.is_dir():
        raise ConfigError(f"--include: {include} is not a folder of tasks")
    manager = TaskManager(include_path=str(include) if include is not None else None)
    for name in tasks:
        if name not in manager.all_tasks:
            close = get_close_matches(name, manager.all_tasks, n=1)
            raise ConfigError(f"lm-eval has no task {name[:80]!r}" + (f"; did you mean {close[0]}?" if close else ""))
    return manager


def table(found: Mapping[str, Any]) -> str:
    """The results for people: a line for every metric."""
    rows = [("task", "shots", "metric", "value", "error")]
    for name, entry in found["results"].items():
        for key, value in entry["metrics"].items():
            metric, _, how = key.partition(",")
            if metric.endswith("_stderr") or metric == "sample_len":
                continue
            error = entry["metrics"].get(f"{metric}_stderr,{how}")
            shown = metric if how in ("", "none") else f"{metric} ({how})"
            spread = f"{error:.4f}" if isinstance(error, float) else ""
            shots = "" if entry["shots"] is None else str(entry["shots"])
            rows.append((name, shots, shown, f"{value:.4f}", spread))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join(lines) + "\n"

"""Who runs the tasks of a step: datatrove's executors for this machine, for Slurm, and for Ray."""

import os
import subprocess
import sys
import time
from hashlib import sha256
from pathlib import Path

from datatrove.data import DocumentsPipeline
from datatrove.executor.local import LocalPipelineExecutor
from datatrove.executor.ray import RayPipelineExecutor
from datatrove.executor.slurm import SlurmPipelineExecutor
from datatrove.pipeline.base import PipelineStep

from murmur.data import place
from murmur.data.gather import Gather, Plan, WriteIndex
from murmur.data.job import FAULT, Job
from murmur.data.proof import Proof
from murmur.data.reader import Reader
from murmur.data.recipe import Execution
from murmur.data.scatter import Scatter
from murmur.protocol.errors import ConfigError

_LOOK_SECONDS = 2.0
_LATE_SECONDS = 30.0
"""A shared folder shows what another machine wrote after a while."""
_MOST_JOBS = 1000
"""Slurm's own limit of an array, less one."""


class Reason(PipelineStep):  # type: ignore[misc]
    """The last of a pipeline's steps: whoever waits for the task finds there why it failed."""

    type, name = "reason", "the reason of a failure"

    def __init__(self, job: Job) -> None:
        super().__init__()
        self.job = job

    def run(self, data: DocumentsPipeline = None, rank: int = 0, world_size: int = 1) -> DocumentsPipeline:
        try:
            yield from data or ()
        except ConfigError as fault:
            place.write(self.job.work / FAULT, str(fault).encode(errors="backslashreplace"))
            raise


def pipeline(job: Job, step: str) -> list[PipelineStep]:
    reader = Reader(job)
    match step:
        case "proof":
            steps = [Proof(job, reader)]
        case "text":
            steps = [reader, Scatter(job, reader)]
        case "plan":
            steps = [Plan(job)]
        case "shards":
            steps = [Gather(job)]
        case _:
            steps = [WriteIndex(job)]
    return [*steps, Reason(job)]


def run(job: Job, execution: Execution, step: str, first: int, tasks: int) -> None:
    """Run these tasks of a step, but for those that are done. A step of one task runs here. Raises ConfigError."""
    num_tasks, steps, log = job.steps[step], pipeline(job, step), job.log(step)
    if execution.kind == "local" or num_tasks == 1:
        LocalPipelineExecutor(
            steps, tasks=num_tasks, workers=1, logging_dir=log, local_tasks=tasks, local_rank_offset=first
        ).run()
    elif execution.kind == "slurm":
        _run_on_slurm(job, execution, step, steps, num_tasks)
    else:
        import ray

        ray.init(log_to_driver=False, ignore_reinit_error=True)
        executor = RayPipelineExecutor(
            steps,
            tasks=num_tasks,
            workers=execution.workers or -1,
            logging_dir=log,
            mem_per_cpu_gb=execution.memory_gb,
        )
        executor.run()
        _require_done(executor, job, step)


class _Slurm(SlurmPipelineExecutor):  # type: ignore[misc]
    def launch_merge_stats(self) -> None:
        """Nobody reads its statistics: no job of Slurm's for them."""


def _run_on_slurm(job: Job, execution: Execution, step: str, steps: list[PipelineStep], num_tasks: int) -> None:
    name, environment = _slurm_name(job), Path(sys.executable).parent
    executor = _Slurm(
        steps,
        tasks=num_tasks,
        workers=execution.workers or -1,
        tasks_per_job=-(-num_tasks // _MOST_JOBS),
        time=execution.time,
        partition=execution.partition,
        mem_per_cpu_gb=execution.memory_gb,
        job_name=name,
        qos="",
        env_command=f"export PATH={environment}:$PATH PYTHONUTF8=1 TOKENIZERS_PARALLELISM=false",
        sbatch_args={"dependency": "singleton"},  # jobs of a build that was cut short end first
        with_srun=False,
        logging_dir=job.log(step),
    )
    try:
        executor.run()
    except subprocess.CalledProcessError:
        words = ["sbatch", "--test-only", f"{job.log(step)}/launch_script.slurm"]
        told = subprocess.run(words, capture_output=True, check=False).stderr.decode(errors="replace").strip()
        raise ConfigError(f"Slurm takes no such job. {told}") from None
    try:
        while executor.job_id != -1 and executor.get_incomplete_ranks() and not (job.work / FAULT).exists():
            words = ["squeue", "--noheader", "--me", "--name", name]
            queue = subprocess.run(words, capture_output=True, check=False)
            if queue.returncode == 0 and not queue.stdout.strip():
                break
            time.sleep(_LOOK_SECONDS)
        _require_done(executor, job, step)
    finally:
        cancel(job, execution)


def cancel(job: Job, execution: Execution) -> None:
    """End the build's jobs that outlive this process."""
    if execution.kind == "slurm":
        subprocess.run(["scancel", "--me", "--name", _slurm_name(job)], capture_output=True, check=False)


def _slurm_name(job: Job) -> str:
    return f"murmur-{sha256(os.fsencode(str(job.out))).hexdigest()[:12]}"


def _require_done(executor: SlurmPipelineExecutor | RayPipelineExecutor, job: Job, step: str) -> None:
    until = time.monotonic() + _LATE_SECONDS
    while left := executor.get_incomplete_ranks():
        if (job.work / FAULT).exists() or time.monotonic() > until:
            break
        time.sleep(_LOOK_SECONDS)
    if left and not (job.work / FAULT).exists():
        raise ConfigError(
            f"{len(left)} of {job.steps[step]} tasks of the step {step!r} did not end: their logs are in "
            f"{job.log(step)}. If they were killed for memory or time, give the executor more of it, and the same "
            "command again"
        )

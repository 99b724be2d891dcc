"""A run as a task of a worker: on the device of its slot, stopped between batches, and resumed."""

from pathlib import Path
from typing import Any

from lib.config.base import build
from lib.finetune.config import TrainConfig
from lib.schedule.runtime.worker_process import Job


def finetune(job: Job, config: dict[str, Any], folder: str) -> dict[str, Any]:
    """Train ``config`` in ``folder`` on the job's device, from its last checkpoint if there is one; return the summary.

    The members of a gang share each batch.

    Reports ``{"metrics": {...}}`` twice a second at most, and after each evaluation with its ``split``.
    """
    from lib.finetune import run
    from lib.schedule.runtime.tasks import together

    checked = build(TrainConfig, config, "config")
    with together(job) as (processes, device):
        return run.train(checked, Path(folder), device, job.threads, processes, check=job.check,
                         report=lambda values: job.report({"metrics": values}))

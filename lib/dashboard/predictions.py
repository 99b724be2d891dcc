"""How long a run takes on a device type: by earlier runs, a budget, cost models, or a guess."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from lib.config.base import build
from lib.errors import InputError, one_line
from lib.measure import worker
from lib.schedule.expected import EarlierRuns, Expected, budget, expected_s
from lib.schedule.run.jobs_file import NOTEBOOK
from lib.schedule.run.queue import QueueJob

GUESS_S = 600.0
START_S = 10.0  # of a fine-tune's task until its first step
ADVICE_TIMEOUT_S = 60.0


class Predictions:
    """Predicted seconds of jobs, learned from those that end; quick but for ``advise``.

    ``processors`` are those of the device types that there are: ``cpu`` or ``cuda``, and a name.
    """

    def __init__(self) -> None:
        self.processors: dict[str, tuple[str, str]] = {}
        self._earlier = EarlierRuns()
        self._advised: dict[str, dict[str, Expected]] = {}  # by job class and processor

    def learn(self, job: QueueJob, device_type: str, seconds: float) -> None:
        """Learn how long a job took at its first attempt."""
        self._earlier.add(job.job_class, device_type, seconds)
        if job.task == NOTEBOOK:
            self._earlier.add(job.arguments["path"], device_type, seconds)

    def advise(self, job: QueueJob) -> None:
        """Ask the cost models, once per processor, how long a fine-tune takes: it takes seconds."""
        known = self._advised.setdefault(job.job_class, {})
        processors = sorted({(kind, name) for kind, name in self.processors.values()
                             if name not in known})
        if "config" not in job.arguments or not processors:
            return
        unknown = Expected(GUESS_S, "a guess: no cost model knows this processor")
        advised = {name: unknown for _, name in processors}
        try:
            steps = worker.call(steps_s, job.arguments["config"], processors,
                                timeout_s=ADVICE_TIMEOUT_S, environment={"CUDA_VISIBLE_DEVICES": ""})
            for name, (seconds, source) in steps.items():
                advised[name] = Expected(START_S + seconds / job.devices,
                                         f"{source}, with {START_S:g} s to start")
        except Exception as error:  # whatever a network may raise: it runs all the same, by a guess
            readable = isinstance(error, InputError | worker.WorkerLostError)
            reason = str(error) if readable else one_line(error)
            advised = dict.fromkeys(advised, Expected(GUESS_S, f"a guess: {reason}"))
        known |= advised

    def of(self, job: QueueJob, device_type: str) -> Expected:
        """Predict the seconds of a job on a device type. Raises InputError for wrong parameters."""
        sources = [self._earlier.of(job.job_class)]
        if job.task == NOTEBOOK:
            known = budget(job.arguments["path"], job.arguments["parameters"])
            sources += [lambda _: known, self._earlier.of(job.arguments["path"])]
        _, processor = self.processors.get(device_type, ("", ""))
        advised = self._advised.get(job.job_class, {}).get(processor)
        return expected_s(device_type, [*sources, lambda _: advised], GUESS_S)

    def seconds(self, job: QueueJob, device_type: str) -> float:
        """Predict the seconds of a job on a device type."""
        return self.of(job, device_type).seconds

    def placement(self, job: QueueJob, device_type: str) -> str:
        """Say what is predicted for a job on its device type, and on the others."""
        here = self.of(job, device_type)
        text = f"predicted {here.seconds:,.3g} s on {device_type} ({here.source})"
        others = [name for name in self.processors if name != device_type and (
            job.device_types is None or name in job.device_types)]
        compared = [f"{name} {self.seconds(job, name):,.3g} s" for name in others[:5]]
        return "; ".join([text, *compared])


def steps_s(config: Mapping[str, Any],
            processors: Sequence[tuple[str, str]]) -> dict[str, tuple[float, str]]:
    """Return by processor the seconds of a fine-tune's steps and evaluations, and their source.

    Processors without a cost model are left out. A step includes loader, copy, forward, backward
    and optimizer; starting and saving are not included. It is for a process of its own. Raises
    InputError where data or network are missing here.
    """
    from lib.finetune import data, models
    from lib.finetune.config import TrainConfig
    from lib.predict import registry

    checked = build(TrainConfig, {**config, "load_pretrained": False}, "config")
    names, facts = data.names_and_facts(checked)
    network = models.network(checked, facts)
    opened = data.open_data(checked, network.inputs, names)
    batches = {split: math.ceil(len(indices) / checked.batch_size)
               for split, indices in opened.indices.items()}
    counts = {"train": batches["train"] * checked.epochs,
              "infer": batches["val"] * checked.epochs + batches.get("test", 0)}
    loops = {kind: models.captured(checked, device_type=kind) for kind, _ in processors}
    advised = {}
    for kind, name in processors:
        try:
            vendor = "cpu" if kind == "cpu" else registry.vendor_of(name)
            predictor = registry.predictor(vendor, checked.precision)
        except InputError:
            continue
        if predictor is None:  # a CPU without a model of this element type
            continue
        steps = {mode: loops[kind].step(predictor, mode) for mode in counts}
        ms = {mode: step.predicted_ms for mode, step in steps.items()}
        words = (f"{counts['train']:,} steps of {ms['train']:,.3g} ms, {counts['infer']:,} "
                 f"evaluated batches of {ms['infer']:,.3g} ms, {predictor.source(steps['train'].passes)}")
        advised[name] = sum(counts[mode] * ms[mode] for mode in counts) / 1e3, words
    return advised

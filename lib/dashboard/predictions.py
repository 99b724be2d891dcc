"""How long a run takes on a device type: by earlier runs, a budget, cost models, or a guess."""

from collections.abc import Sequence
from math import inf

from lib.dashboard import advice, inventory
from lib.errors import InputError, one_line
from lib.measure import worker
from lib.schedule.expected import (
    GUESS_SIGMA,
    MODEL_SIGMA,
    EarlierRuns,
    Expected,
    budget,
    expected_s,
)
from lib.schedule.run.jobs_file import NOTEBOOK
from lib.schedule.run.queue import QueueJob
from lib.schedule.run.slots import Slot

GUESS_S = 600.0
START_S = 10.0  # of a fine-tune's task until its first step
ADVICE_TIMEOUT_S = 60.0


class Predictions:
    """Predicted seconds of jobs, learned from those that end; quick but for ``advise``."""

    def __init__(self) -> None:
        self._processors: dict[str, tuple[str, str]] = {}  # by device type
        self._earlier = EarlierRuns()
        self._advised: dict[str, dict[str, tuple[float, str]]] = {}  # by job class and processor

    def learn(self, job: QueueJob, device_type: str, seconds: float) -> None:
        """Learn how long a job took at its first attempt."""
        self._earlier.add(job.job_class, device_type, seconds)
        if job.task == NOTEBOOK:
            self._earlier.add(job.arguments["path"], device_type, seconds)

    def know(self, slots: Sequence[Slot]) -> None:
        """Take the slots that there are now."""
        types = {slot.device_type for slot in slots}
        self._processors = {name: inventory.processor(name) for name in types}

    def needs_advice(self, job: QueueJob) -> bool:
        """Return whether a job is a fine-tune of which the cost models were not asked yet."""
        return "config" in job.arguments and job.job_class not in self._advised

    def advise(self, job: QueueJob) -> None:
        """Ask the cost models how long a fine-tune takes: it takes seconds."""
        config = job.arguments["config"]
        processors = sorted(set(self._processors.values()))
        try:
            self._advised[job.job_class] = worker.call(
                advice.advise, config, processors, timeout_s=ADVICE_TIMEOUT_S,
                environment={"CUDA_VISIBLE_DEVICES": ""})
        except Exception as error:  # whatever a network may raise: it runs all the same, by a guess
            readable = isinstance(error, InputError | worker.WorkerLostError)
            reason = str(error) if readable else one_line(error)
            self._advised[job.job_class] = {name: (inf, reason) for _, name in processors}

    def _by_model(self, job: QueueJob, device_type: str) -> Expected:
        _, processor = self._processors.get(device_type, ("", ""))
        unknown = inf, "no cost model knows this processor"
        advised_s, source = self._advised.get(job.job_class, {}).get(processor, unknown)
        if advised_s == inf:
            return Expected(GUESS_S, f"a guess: {source}", GUESS_SIGMA)
        seconds = START_S + advised_s / job.devices
        return Expected(seconds, f"{source}, with {START_S:g} s to start", MODEL_SIGMA)

    def of(self, job: QueueJob, device_type: str) -> Expected:
        """Predict the seconds of a job on a device type. Raises InputError for wrong parameters."""
        sources = [self._earlier.of(job.job_class), lambda name: self._by_model(job, name)]
        if job.task == NOTEBOOK:
            notebook = job.arguments["path"]
            known = budget(notebook, job.arguments["parameters"])
            sources = [self._earlier.of(job.job_class), lambda _: known, self._earlier.of(notebook)]
        return expected_s(device_type, sources, GUESS_S)

    def seconds(self, job: QueueJob, device_type: str) -> float:
        """Predict the seconds of a job on a device type."""
        return self.of(job, device_type).seconds

    def placement(self, job: QueueJob, device_type: str) -> str:
        """Say what is predicted for a job on its device type, and on the others."""
        here = self.of(job, device_type)
        text = f"predicted {here.seconds:,.3g} s on {device_type} ({here.source})"
        others = [name for name in self._processors if name != device_type and (
            job.device_types is None or name in job.device_types)]
        compared = [f"{name} {self.seconds(job, name):,.3g} s" for name in others[:5]]
        return "; ".join([text, *compared])

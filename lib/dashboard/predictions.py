"""How long a run takes on a device: by earlier runs, by cost models, or by a guess called a guess."""

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from functools import partial
from math import inf, log
from statistics import median, stdev
from typing import NamedTuple

from sqlalchemy import select
from sqlalchemy.orm import Session

from lib.dashboard import advice
from lib.dashboard import tables as db
from lib.dashboard.inventory import Device
from lib.errors import InputError, one_line
from lib.measure import worker
from lib.schedule import durations

GUESS_S = 600.0
START_S = 10.0  # of a fine-tune's worker until its first step
ADVICE_TIMEOUT_S = 60.0
REMEMBERED = 9  # earlier runs that count
# standard deviations of the log of a time by what predicts it, until four runs show theirs
SIGMA_RUNS, SIGMA_MODEL, SIGMA_GUESS = 0.15, 0.4, 1.0
ENOUGH_RUNS, LEAST_SIGMA, LEAST_S = 4, 0.05, 1e-3

Hardware = tuple[str, str, int]  # kind and name of a processor, threads


class Prediction(NamedTuple):
    """Seconds (inf: it cannot run there), their source, and the standard deviation of their log."""

    seconds: float
    source: str
    sigma: float = 0.0


class Predictions:
    """Predicted times of runs on devices, learned from the runs that end; quick but for ``advise``."""

    def __init__(self) -> None:
        recent = partial(deque, maxlen=REMEMBERED)
        self._seconds: dict[tuple[str, Hardware], deque[float]] = defaultdict(recent)
        self._factors: dict[Hardware, deque[float]] = defaultdict(recent)  # measured over predicted
        self._advised: dict[str, dict[str, tuple[float, str]]] = {}  # by configuration and processor

    def measure(self, run: db.Run, device: Device, seconds: float) -> None:
        """Learn how long a run took from its start to its end, at its first attempt."""
        for key in _alike(run):
            self._seconds[key, _hardware(device)].append(seconds)
        advised_s, _ = self._advice(run, device)
        if advised_s < inf and _devices(run) == 1:
            self._factors[_hardware(device)].append(seconds / (START_S + advised_s))

    def recall(self, session: Session, agent_id: str, devices: Iterable[Device]) -> None:
        """Learn from the runs of this machine that ended well before at their first attempt."""
        here = {device.slot.name: device for device in devices}
        ended = select(db.Run).where(db.Run.state == db.FINISHED, db.Run.attempt == 1,
                                     db.Run.agent_id == agent_id, db.Run.device.in_(here))
        latest = session.scalars(ended.order_by(db.Run.finished_at.desc()).limit(1000)).all()
        for run in reversed(latest):
            self.measure(run, here[run.device], (run.finished_at - run.started_at).total_seconds())

    def advise(self, run: db.Run, devices: Iterable[Device]) -> None:
        """Ask the cost models how long a fine-tune takes, once per configuration: it takes seconds.

        A run without an answer in time gets a guess.
        """
        processors = sorted({device.processor for device in devices})
        if run.config.kind != "finetune" or run.config.config_hash in self._advised:
            return
        missing = "no cost model knows this processor"
        try:
            advised = worker.call(advice.advise, run.config.config_json, processors,
                                  timeout_s=ADVICE_TIMEOUT_S, environment={"CUDA_VISIBLE_DEVICES": ""})
        except Exception as error:  # whatever a network may raise: it runs all the same
            readable = isinstance(error, InputError | worker.WorkerLostError)
            advised, missing = {}, str(error) if readable else one_line(error)
        self._advised[run.config.config_hash] = {name: (inf, missing) for _, name in processors} | advised

    def _advice(self, run: db.Run, device: Device) -> tuple[float, str]:
        return self._advised.get(run.config.config_hash, {}).get(device.model, (inf, "no earlier run"))

    def of(self, run: db.Run, device: Device) -> Prediction:
        """Predict the time of a run on a device."""
        if run.gpu_indices and device.gpu not in run.gpu_indices:
            return Prediction(inf, "it may not run there")
        for key, name in _alike(run).items():
            if times := self._seconds.get((key, _hardware(device))):
                source = f"the median of {len(times)} earlier runs of this {name}"
                return Prediction(max(LEAST_S, median(times)), source, _sigma(times, SIGMA_RUNS))
        config = run.config.config_json
        if run.config.kind == "notebook":
            if budget := durations.by_budget(config["notebook"], config["parameters"]):
                return Prediction(*budget, SIGMA_RUNS)
            return Prediction(GUESS_S, "a guess: it has no budget, and did not run there", SIGMA_GUESS)
        advised_s, source = self._advice(run, device)
        if advised_s == inf:
            return Prediction(GUESS_S, f"a guess: {source}", SIGMA_GUESS)
        factors = self._factors[_hardware(device)]
        factor, devices = median(factors) if factors else 1.0, _devices(run)
        source += f", and {START_S:g} s to start"
        if factors:
            source += f", times {factor:.3g} as {len(factors)} other fine-tunes took there"
        if devices > 1:
            source += f", shared by {devices} devices as if that cost nothing"
        seconds = factor * (START_S + advised_s / devices)
        return Prediction(max(LEAST_S, seconds), source, _sigma(factors, SIGMA_MODEL))

    def placement(self, run: db.Run, device: Device, others: Iterable[Device]) -> dict[str, object]:
        """Return the predicted time of a run on its device, and the times elsewhere, as columns."""
        here = self.of(run, device)
        elsewhere = {other.type: self.of(run, other).seconds for other in others if other.type != device.type}
        compared = [f"{name} {seconds:,.3g} s" for name, seconds in elsewhere.items() if seconds < inf]
        text = f"predicted {here.seconds:,.3g} s on {device.type} ({here.source})"
        return {"predicted_s": here.seconds, "placement": "; ".join([text, *compared[:5]])}


def _sigma(times: Sequence[float], usual: float) -> float:
    """Return the standard deviation of the logs of times, where they are enough to tell."""
    return max(LEAST_SIGMA, stdev(map(log, times))) if len(times) >= ENOUGH_RUNS else usual


def _hardware(device: Device) -> Hardware:
    return (*device.processor, device.slot.threads)


def _devices(run: db.Run) -> int:
    return run.config.config_json.get("devices", 1)


def _alike(run: db.Run) -> dict[str, str]:
    """Return the keys by which earlier runs are alike, the closest first, with what they identify."""
    alike = {run.config.config_hash: "configuration"}
    if run.config.kind == "notebook":
        alike[run.config.config_json["notebook"]] = "notebook"
    return alike

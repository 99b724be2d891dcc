"""How long a run should take on each device type: by earlier runs, by cost models, or by a guess that is called a guess."""

from collections import defaultdict, deque
from collections.abc import Sequence
from functools import partial
from math import inf, log
from statistics import median, stdev
from typing import Any

import pandas as pd
from sqlalchemy import select
from sqlalchemy.orm import Session

from lib.dashboard import advice
from lib.dashboard import database as db
from lib.dashboard.agents.fleet import AgentSlot
from lib.dashboard.agents.messages import Device
from lib.errors import InputError, one_line
from lib.measure import worker
from lib.schedule import durations
from lib.schedule.runtime.journal import Spec

_GUESS_S = 600.0
_LAST = 9  # earlier runs that count
_PATIENCE_S = 60.0
_START_S = 10.0  # of a fine-tune's worker until its first step, before any was measured here
_SPREADS = {"runs": 0.15, "budget": 0.15, "model": 0.4, "guess": 1.0}  # of log times, by what predicts; assumed, until
_ENOUGH, _LEAST_SPREAD = 4, 0.05  # so many runs show theirs
_LONG = 3  # times that: from then on a run tells how far its steps were mispredicted


class Predictions:
    """Predicted times of runs on device types (``agent/cpu``, ``agent/cuda:0``); every method is quick but ``advise``."""

    def __init__(self) -> None:
        self._runs: dict[str, db.Run] = {}
        self._places: dict[str, AgentSlot] = {}
        self._advised: dict[str, dict[str, tuple[float, str]]] = {}
        # by processor and threads: seconds of runs that are alike; advised and measured seconds of fine-tunes
        self._latest: dict[tuple[str, Any], deque[float]] = defaultdict(partial(deque, maxlen=_LAST))
        self._measured: dict[Any, deque[tuple[float, float]]] = defaultdict(partial(deque, maxlen=_LAST))

    def add(self, run: db.Run) -> None:
        """Take a waiting run."""
        self._runs[run.id] = run

    def drop(self, run_id: str) -> None:
        """Forget a run that has ended, and the advice on its configuration if no other run has it."""
        dropped = self._runs.pop(run_id, None)
        if dropped and all(run.config.config_hash != dropped.config.config_hash for run in list(self._runs.values())):
            self._advised.pop(dropped.config.config_hash, None)

    def waiting(self) -> list[str]:
        """Return the runs that have not ended."""
        return list(self._runs)

    def place(self, device_type: str, slot: AgentSlot) -> bool:
        """Take a slot of a device type; return whether its processor is a new one."""
        new = all(slot.device.processor != place.device.processor for place in self._places.values())
        self._places = {**self._places, device_type: slot}  # another dict: threads go through it
        return new

    def measure(self, run_id: str, device_type: str, seconds: float) -> None:
        """Take the seconds of a whole run."""
        run, place = self._runs.get(run_id), self._places.get(device_type)
        if run and place:
            self._add_time(run, place.device, seconds)
            advised_s, _ = self._advice(run, place.device)
            if advised_s < inf and _devices(run) == 1:
                self._measured[_hardware(place.device)].append((advised_s, seconds))

    def _advice(self, run: db.Run, device: Device) -> tuple[float, str]:
        return self._advised.get(run.config.config_hash, {}).get(device.model, (inf, "nothing was run like it"))

    def _add_time(self, run: db.Run, device: Device, seconds: float) -> None:
        for digest in _alike(run):
            self._latest[digest, _hardware(device)].append(seconds)

    def recall(self, session: Session, attempts: pd.DataFrame) -> None:
        """Take the runs that finished before at their first attempt, the newest last.

        ``attempts``: those of the queue's journal, whose times do not depend on when the database was reached.
        """
        first = attempts[(attempts["status"] == "done") & (attempts["attempt"] == 1)].set_index("job_id")
        seconds = (first["end_s"] - first["start_s"]).to_dict()
        finished = select(db.Run).where(db.Run.state == db.FINISHED, db.Run.attempt == 1, db.Run.agent_id.is_not(None))
        runs = session.scalars(finished.order_by(db.Run.finished_at.desc()).limit(1000))
        for run in reversed(runs.all()):
            for device in run.agent.slots:
                if device["name"] == run.device and run.id in seconds:
                    self._add_time(run, Device(**device), seconds[run.id])

    def advise(self, run_id: str) -> None:
        """Ask the cost models how long a fine-tune takes, once per configuration and set of processors; it takes some seconds.

        Without an answer for ``_PATIENCE_S`` the run gets a guess.
        """
        if not (run := self._runs.get(run_id)):
            return
        processors = sorted({place.device.processor for place in self._places.values()})
        digest = run.config.config_hash
        if run.config.kind == "finetune" and not {name for _, name in processors} <= self._advised.get(digest, {}).keys():
            try:
                advised = worker.call(advice.advise, run.config.config_json, processors, timeout_s=_PATIENCE_S,
                                      environment={"CUDA_VISIBLE_DEVICES": ""})
            except Exception as error:  # whatever a network may raise: it runs all the same, by a guess
                known = isinstance(error, InputError | worker.WorkerLostError)  # their messages are sentences
                advised = {name: (inf, str(error) if known else one_line(error)) for _, name in processors}
            self._advised[digest] = {name: (inf, "no model is of it") for _, name in processors} | advised

    def seconds(self, spec: Spec, device_type: str) -> float:
        """Return the seconds of a run on a device type; inf where it may not run. Raises InputError for an unknown run."""
        return self._predict(spec.job_id, device_type)[0]

    def spread(self, spec: Spec, device_type: str) -> float:
        """Return the standard deviation of the log time of a run on a device type."""
        return self._predict(spec.job_id, device_type)[2]

    def _predict(self, run_id: str, device_type: str) -> tuple[float, str, float]:
        """Return the seconds, their source, and the standard deviation of their log."""
        run, place = self._runs.get(run_id), self._places.get(device_type)
        if not run:
            raise InputError("there is no such run in the database")
        if not place:
            return inf, "no agent has it", 0.0
        device, config = place.device, run.config.config_json
        if run.only_agent_id not in (None, place.agent_id) or (
                run.gpu_indices and getattr(device.gpu, "index", None) not in run.gpu_indices):
            return inf, "it may not run there", 0.0
        for digest, name in _alike(run).items():
            if times := self._latest.get((digest, _hardware(device))):
                words = f"by {len(times)} earlier run{'s' * (len(times) > 1)} of this {name}"
                return max(1e-3, median(times)), words, _spread(times, "runs")
        if run.config.kind == "notebook" and (budget := durations.by_budget(config["notebook"], config["parameters"])):
            return *budget, _SPREADS["budget"]
        advised_s, source = self._advice(run, device)
        if advised_s == inf:
            return _GUESS_S, f"a guess: {source}", _SPREADS["guess"]
        pairs = self._measured[_hardware(device)]
        ratio = median([(s - _START_S) / advised for advised, s in pairs if advised >= _LONG * _START_S] or [1.0])
        start_s = max(0.0, median([s - ratio * advised for advised, s in pairs] or [_START_S]))
        words = f"{source}, {ratio:,.3g} times as long" if ratio != 1 else source
        if (devices := _devices(run)) > 1:
            advised_s, words = advised_s / devices, f"{words}, shared by {devices} devices as if that cost nothing"
        by = f"by {len(pairs)} other fine-tune{'s' * (len(pairs) > 1)} there" if pairs else "assumed"
        spread = _spread([s / (start_s + ratio * advised) for advised, s in pairs], "model")
        return max(1e-3, start_s + ratio * advised_s), f"{words}, and {start_s:,.3g} s to start, {by}", spread

    def source(self, run_id: str, device_type: str) -> str:
        """Return what the predicted time of a run rests on, in brackets; empty where the run or the device type is gone."""
        return f" ({self._predict(run_id, device_type)[1]})" if run_id in self._runs and device_type in self._places else ""

    def placement(self, run_id: str, device_type: str) -> dict[str, Any]:
        """Return the predicted time of a run on a device type, and those elsewhere, as columns of Run."""
        seconds, source, _ = self._predict(run_id, device_type)
        elsewhere = {name: self._predict(run_id, name)[0] for name in self._places if name != device_type}
        compared = ", ".join([f"{name} {other_s:,.3g} s" for name, other_s in elsewhere.items() if other_s < inf][:5])
        text = f"predicted {seconds:,.3g} s on {device_type} ({source})" + (f"; {compared}" if compared else "")
        return {"predicted_s": seconds, "placement": text}


def _spread(times: Sequence[float], usual: str) -> float:
    """Return the standard deviation of the logs of times, where they are enough to tell."""
    return max(_LEAST_SPREAD, stdev(map(log, times))) if len(times) >= _ENOUGH else _SPREADS[usual]


def _hardware(device: Device) -> tuple[tuple[str, str], int]:
    return device.processor, device.threads


def _devices(run: db.Run) -> int:
    return run.config.config_json.get("devices", 1)


def _alike(run: db.Run) -> dict[str, str]:
    """Return the digests by which earlier runs are alike, the closest first, with what they identify."""
    notebook = {run.config.config_json["notebook"]: "notebook"} if run.config.kind == "notebook" else {}
    return {run.config.config_hash: "configuration", **notebook}

"""How long a run should take where: by earlier runs, by advice, or by a guess that is said to be one."""

from collections import defaultdict
from dataclasses import dataclass
from math import inf
from statistics import median
from typing import Any

import pandas as pd
from sqlalchemy import select
from sqlalchemy.orm import Session

from lib.dashboard import advice
from lib.dashboard import database as db
from lib.dashboard.agents.messages import Device
from lib.errors import InputError, one_line
from lib.measure import worker
from lib.schedule import durations
from lib.schedule.runtime.journal import Spec

GUESS_S = 600.0
_LAST = 9  # earlier runs that count
_PATIENCE_S = 60.0


@dataclass(frozen=True)
class Place:
    """Where a device type is: an agent, and one of its devices of that type."""

    agent_id: str
    agent: str
    device: Device

    @property
    def processor(self) -> tuple[str, str]:
        """Return the kind of its processor, and its name."""
        return ("cuda" if self.device.gpu else "cpu"), self.device.model


@dataclass(frozen=True)
class _Wanted:
    """What is to be known of a run to predict it."""

    kind: str
    config: dict[str, Any]
    digest: str
    only_agent_id: str | None
    gpu_indices: tuple[int, ...]

    @property
    def alike(self) -> tuple[str, ...]:
        """Return by what earlier runs are like it, from the most to the least: the configuration, then the notebook."""
        return (self.digest, *([self.config["notebook"]] if self.kind == "notebook" else []))


class Predictions:
    """What is known of runs and of device types (``agent/cpu``, ``agent/cuda:0``); every method is quick but ``advise``."""

    def __init__(self) -> None:
        self._runs: dict[str, _Wanted] = {}
        self._places: dict[str, Place] = {}
        self._measured: dict[tuple[str, tuple[str, str], int], list[float]] = defaultdict(list)
        self._advised: dict[str, dict[str, tuple[float, str]]] = {}
        self._ratios: dict[tuple[tuple[str, str], int], list[float]] = defaultdict(list)  # measured over advised

    def add(self, run: db.Run) -> None:
        """Take a run that waits."""
        self._runs[run.id] = _wanted(run)

    def drop(self, run_id: str) -> None:
        """Forget a run that has ended, and what was advised of its configuration if no other run has that."""
        dropped = self._runs.pop(run_id, None)
        if dropped and all(wanted.digest != dropped.digest for wanted in list(self._runs.values())):
            self._advised.pop(dropped.digest, None)

    def waiting(self) -> list[str]:
        """Return the runs that have not ended."""
        return list(self._runs)

    def place(self, device_type: str, place: Place) -> bool:
        """Take where a device type is; return whether its processor is a new one."""
        new = all(place.processor != other.processor for other in self._places.values())
        self._places = {**self._places, device_type: place}  # another one: threads go through it
        return new

    def measure(self, run_id: str, device_type: str, seconds: float) -> None:
        """Take how long a whole run took."""
        wanted, place = self._runs.get(run_id), self._places.get(device_type)
        if wanted and place:
            self._keep(wanted, place.processor, place.device.threads, seconds)
            advised_s = self._advised.get(wanted.digest, {}).get(place.device.model, (inf, ""))[0]
            if advised_s < inf:
                ratios = self._ratios[place.processor, place.device.threads]
                ratios.append(seconds / advised_s)
                del ratios[:-_LAST]

    def _keep(self, wanted: _Wanted, processor: tuple[str, str], threads: int, seconds: float) -> None:
        for alike in wanted.alike:
            times = self._measured[alike, processor, threads]
            times.append(seconds)
            del times[:-_LAST]

    def recall(self, session: Session, attempts: pd.DataFrame) -> None:
        """Take the runs that ended before: those that were done at once, by the journal's times and the agents' devices."""
        devices = {(agent.name, device["name"]): Device(**device) for agent in session.scalars(select(db.Agent))
                   for device in agent.slots}
        done = attempts[(attempts["status"] == "done") & (attempts["attempt"] == 1)].set_index("job_id")
        for run in session.scalars(select(db.Run).where(db.Run.state == db.FINISHED)
                                   .order_by(db.Run.finished_at.desc()).limit(1000)):
            if run.id in done.index:
                row = done.loc[run.id]
                if device := devices.get(tuple(row["device"].split("/", 1))):
                    place = Place("", "", device)
                    self._keep(_wanted(run), place.processor, device.threads, float(row["end_s"] - row["start_s"]))

    def advise(self, run_id: str) -> None:
        """Ask the cost models how long a fine-tune takes, once a configuration and set of processors; this takes some seconds.

        A run that has ended meanwhile is left alone; one of which nothing is heard for ``_PATIENCE_S`` gets a guess.
        """
        if not (wanted := self._runs.get(run_id)):
            return
        processors = sorted({place.processor for place in self._places.values()})
        before = self._advised.get(wanted.digest, {})
        if wanted.kind == "finetune" and not {name for _, name in processors} <= set(before):
            try:
                advised = worker.call(advice.advise, wanted.config, processors, environment={"CUDA_VISIBLE_DEVICES": ""},
                                      timeout_s=_PATIENCE_S)
            except Exception as error:  # whatever a network may raise: it runs all the same, by a guess
                advised = {name: (inf, one_line(error)) for _, name in processors}
            self._advised[wanted.digest] = {name: (inf, "no model is of it") for _, name in processors} | advised

    def seconds(self, spec: Spec, device_type: str) -> float:
        """Return the seconds of a run on a device type; inf where it may not run. Raises InputError for an unknown run."""
        return self._predict(spec.job_id, device_type)[0]

    def _predict(self, run_id: str, device_type: str) -> tuple[float, str]:
        """Return the seconds, and from what they are known."""
        wanted, place = self._runs.get(run_id), self._places.get(device_type)
        if not wanted:
            raise InputError("there is no such run in the database")
        if not place:
            return inf, "no agent has it"
        gpu = place.device.gpu
        if wanted.only_agent_id not in (None, place.agent_id) or wanted.gpu_indices and (
                not gpu or gpu.index not in wanted.gpu_indices):
            return inf, "it may not run there"
        for alike in wanted.alike:
            if times := self._measured.get((alike, place.processor, place.device.threads)):
                return max(1e-3, median(times)), f"by {len(times)} earlier runs of this {_NAMES[alike == wanted.digest]}"
        config = wanted.config
        if wanted.kind == "notebook" and (budget := durations.by_budget(config["notebook"], config["parameters"])):
            return budget
        advised_s, source = self._advised.get(wanted.digest, {}).get(place.device.model, (inf, "nothing was run like it"))
        if advised_s == inf:
            return GUESS_S, f"a guess: {source}"
        if ratios := self._ratios.get((place.processor, place.device.threads)):
            ratio = median(ratios)
            return max(1e-3, ratio * advised_s), f"{source}, {ratio:,.3g} times as long by {len(ratios)} other fine-tunes there"
        return max(1e-3, advised_s), source

    def placement(self, run_id: str, device_type: str) -> dict[str, Any]:
        """Return how long a run should take on a device type, and how that compares with the others, as columns of Run."""
        there = {name: self._predict(run_id, name) for name in list(self._places)}
        seconds, source = there.get(device_type) or self._predict(run_id, device_type)
        others = [f"{name} {other:,.3g} s" for name, (other, _) in there.items() if name != device_type and other < inf]
        text = f"predicted {seconds:,.3g} s on {device_type} ({source})" + (f"; {', '.join(others[:5])}" if others else "")
        return {"predicted_s": seconds, "placement": text}


_NAMES = {True: "configuration", False: "notebook"}


def _wanted(run: db.Run) -> _Wanted:
    return _Wanted(run.config.kind, run.config.config_json, run.config.config_hash, run.only_agent_id, tuple(run.gpu_indices))

"""A list of commands run one after another. Each call continues where the previous call stopped."""

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from lib import files, paths, store
from lib.errors import InputError, choices, death

_LEAST_S = 30.0  # what is worth starting a step for that takes the time it is given
_LATE_S, _LATE = 60.0, 0.5  # a step is ended so long after its time, in s and as a share of it
_ENDED = "ended after"
_KILLED_S = 20.0  # from the interruption of a step to its end by force


def absent(packages: Iterable[str]) -> list[str]:
    """Return those packages (names as pip knows them) that this Python lacks."""
    names = {re.sub(r"[-_.]+", "-", package.metadata["Name"] or "").lower() for package in metadata.distributions()}
    return [package for package in packages if re.sub(r"[-_.]+", "-", package).lower() not in names]


def require(packages: Iterable[str]) -> None:
    """Raise InputError that names the packages this Python lacks, with the versions of requirements.txt."""
    if missing := absent(packages):
        pins = dict(re.findall(r"(?m)^([\w.-]+)(?:\[\w+\])?(==[\w.]+)", (paths.ROOT / "requirements.txt").read_text()))
        raise InputError(f"{sys.executable} lacks {choices(missing)}; install: pip install "
                         + " ".join(name + pins.get(name, "") for name in missing))


class Walk:
    """The steps of one machine: what was done in earlier calls, and what is still to do; kept in ``folder``/steps.json."""

    def __init__(self, steps: Mapping[str, Any], folder: Path, values: Mapping[str, object]):
        self._steps, self._values, self._folder, self._path = steps, values, files.folder(folder), folder / "steps.json"
        self._records: dict[str, dict] = store.read_json(self._path) if self._path.is_file() else {}

    def run(self, deadline: float) -> dict[str, str]:
        """Run what is not done yet until ``deadline`` (monotonic, s); return why a step is not done, by its name."""
        left: dict[str, str] = {}
        for name, step in self._steps.items():
            record = self._records.get(name, {"status": "", "seconds": 0.0})
            if record["status"] == "done":
                continue
            if missing := absent(step.needs):
                left[name] = f"left out: this Python lacks {choices(missing)}"
            elif not (seconds := self._seconds(step, record["seconds"], deadline - time.monotonic())):
                left[name] = "no time left in this call"
            else:
                self._carry_out(name, step, record, seconds, deadline)
                if record["status"] != "done":
                    left[name] = record["status"]
            print(f"{name}: {left.get(name, 'done')}", flush=True)
        return left

    @staticmethod
    def _is_timed(step) -> bool:
        return "{seconds}" in step.command or "{total}" in step.command

    def _seconds(self, step, before_s: float, left_s: float) -> float:
        """Return how long a step may take in this call, s; 0 where it should wait for the next one."""
        if not self._is_timed(step):
            return step.minutes * 60 if left_s >= step.minutes * 60 else 0.0
        given_s = min(step.minutes * 60 - before_s, left_s)
        return given_s if given_s >= _LEAST_S else 0.0

    def _carry_out(self, name: str, step, record: dict, seconds: float, deadline: float) -> None:
        """Run one step, and write down how it ended and what it took."""
        total_s, begin = round(record["seconds"] + seconds), time.monotonic()
        words = shlex.split(step.command.format(**self._values, seconds=round(seconds), total=total_s))
        log = self._folder / f"{name}.log"
        timed = self._is_timed(step)
        failure = call(words, log, min(deadline - begin, seconds * (1 + _LATE)) + _LATE_S, step.until)
        if timed and failure.startswith(_ENDED):
            failure = ""  # it keeps what it measured, and had its time
        spent_s = record["seconds"] + (0 if failure else max(seconds if timed else 0, time.monotonic() - begin))
        is_part = timed and step.minutes * 60 - spent_s >= _LEAST_S
        record |= {"seconds": spent_s, "command": shlex.join(words),
                   "status": f"{failure} (see {log})" if failure else "to be continued" if is_part else "done"}
        self._records[name] = record
        store.write_json(self._records, self._path)


def call(words: list[str], log: Path, most_s: float, until: str = "", output: Path | None = None) -> str:
    """Run a module of this Python, its output added to ``log``; return why it failed, or nothing.

    It is interrupted, which is no failure, as soon as a new file fits ``until`` within data/; after ``most_s`` it is ended.
    ``output``: see LIB_OUTPUT.
    """
    environment = {**os.environ, **({"LIB_OUTPUT": str(output)} if output else {})}
    before, ended = _fitting(until), ""
    with open(log, "a", encoding="utf-8") as file:
        print(f"$ {shlex.join(words)}", file=file, flush=True)
        process = subprocess.Popen([sys.executable, "-m", *words], cwd=paths.ROOT, env=environment, stdin=subprocess.DEVNULL,
                                   stdout=file, stderr=subprocess.STDOUT, start_new_session=True,
                                   preexec_fn=_heed_interrupts)  # noqa: PLW1509 - this process has no threads
        try:
            begin = time.monotonic()
            while process.poll() is None and not ended:
                time.sleep(0.1)
                ended = "until" if _fitting(until) - before else "late" if time.monotonic() > begin + most_s else ""
            if ended:
                os.killpg(process.pid, signal.SIGINT)
                process.wait(_KILLED_S)
        except subprocess.TimeoutExpired:
            pass
        finally:  # also what it started and left behind
            if process.poll() is None or ended:
                _kill(process)
    if ended == "until":
        return ""
    return f"{_ENDED} {most_s:.0f} s" if ended else process.returncode and f"failed: it {death(process.returncode)}" or ""


def _heed_interrupts() -> None:
    """Undo that a background job ignores the interrupt (nohup, cron): a step is told to end by it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _kill(process: subprocess.Popen) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _fitting(pattern: str) -> set[Path]:
    return set(paths.DATA.glob(pattern)) if pattern else set()

"""A worker process whose standard output and error are read line by line, numbered by attempt."""

import os
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from lib.measure import worker
from lib.schedule.runtime import worker_process
from lib.schedule.runtime.workers import Limits, ProcessWorker, Slot

_CHUNK, _CHUNKS, _LONGEST_LINE = 65_536, 16, 4_000  # bytes of a read, reads at a time, characters


def _serve(pipe: Connection, log: Connection, *arguments: Any) -> None:
    """Serve tasks in a process that writes to ``log`` whatever it, and what it starts, would print."""
    for stream in (1, 2):
        os.dup2(log.fileno(), stream)
    log.close()
    worker_process.serve(pipe, *arguments)


def _visible(line: bytes) -> str:
    """Return a line as it would look on a terminal: what a carriage return went back over is left out."""
    return line.rstrip(b"\r").rpartition(b"\r")[2].decode(errors="replace").replace("\0", "")


class LoggedWorker(ProcessWorker):
    """A worker process; what it prints comes as its reports ``{"log": [n, line]}``, in order, before the attempt's end."""

    def __init__(self, slot: Slot, limits: Limits):
        self.log, log = Pipe(duplex=False)
        os.set_blocking(self.log.fileno(), False)
        self.process = worker.Worker(
            _serve, log, slot.name, slot.cores, slot.threads, limits.beat_s, slot.warm_up, name=f"slot {slot.name}",
            environment={**dict.fromkeys(worker_process.THREADS, str(slot.threads)), "PYTHONUNBUFFERED": "1"})
        log.close()
        self.pipe, self.dead = self.process.pipe, False
        self._text, self._token, self._lines = b"", "", 0

    def send(self, *message: Any) -> None:
        """Send it a message; one that died is noticed by its messages."""
        if message[0] == "run":
            self._text, self._token, self._lines = b"", message[1], 0
        super().send(*message)

    def messages(self, log: bool = True) -> list[tuple[Any, ...]]:
        """Return the messages since the last call, with the lines of its ``log`` unless these shall wait."""
        messages = [] if self.dead else super().messages()
        self.dead |= any(message[0] == "died" for message in messages)
        ends = [message for message in messages if message[0] not in ("heartbeat", "report")]
        lines = self._read(bool(ends)) if (log or ends) else []
        return [*(message for message in messages if message not in ends), *lines, *ends]

    def _read(self, last: bool) -> list[tuple[Any, ...]]:
        """Return the whole lines that are there; the ``last`` may be without its end."""
        for _ in range(_CHUNKS):
            if not self.log:
                break
            try:
                chunk = os.read(self.log.fileno(), _CHUNK)
            except BlockingIOError:
                break
            if not chunk:  # nobody is left to write
                self.log.close()
                self.log = None
            self._text += chunk
        *lines, self._text = self._text.split(b"\n")
        if self._text and (last or len(self._text) > _LONGEST_LINE):
            lines, self._text = [*lines, self._text], b""
        return [self.line(_visible(line)) for line in lines] if self._token else []

    def line(self, text: str) -> tuple[Any, ...]:
        """Return the report of the log's next line."""
        self._lines += 1
        text = text if len(text) <= _LONGEST_LINE else f"{text[:_LONGEST_LINE]} ... ({len(text):,} characters)"
        return "report", self._token, {"log": [self._lines, text]}

    def shut_down(self) -> None:
        """End it at once."""
        super().shut_down()
        if self.log:
            self.log.close()

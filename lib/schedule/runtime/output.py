"""The lines that a worker process prints during an attempt: numbered, in order, and all before the attempt's end."""

import os
import sys
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

Message = tuple[Any, ...]  # of a worker, or to it: see ``worker_process``
LONGEST = 8192  # characters of a line; a longer one comes in pieces
_OUTCOMES = ("done", "failed", "stopped", "refused", "died")
_MOST = 2**20  # bytes that are taken at once: more than a pipe holds


def redirect(output: Connection) -> None:
    """Let this process, a worker, and its children print to ``output``."""
    for stream, number in ((sys.stdout, 1), (sys.stderr, 2)):
        stream.flush()
        os.dup2(output.fileno(), number)
        stream.reconfigure(line_buffering=True)
    output.close()


class Output:
    """The leading process's end: reports ``{"log": [n, line]}`` of attempts, n from 1; other lines go to its stderr.

    A worker flushes its output before it sends an outcome. So when that is here, all lines before it are in the pipe.
    """

    def __init__(self):
        self.pipe, self.theirs = get_context("spawn").Pipe(duplex=False)
        self._rest, self._token, self._number = b"", "", 0

    def started(self) -> Connection:
        """Note that the worker has its end of the pipe; return the end that becomes readable."""
        self.theirs.close()
        os.set_blocking(self.pipe.fileno(), False)
        return self.pipe

    def begin(self, token: str) -> None:
        """Note that an attempt begins: the lines from now on are those of the attempt."""
        self._lines(last=True)
        self._token, self._number = token, 0

    def merged(self, messages: list[Message]) -> list[Message]:
        """Return a worker's messages with the lines that it printed; those of an attempt are before its outcome."""
        ready = self._lines()
        for message in messages:
            if message[0] in _OUTCOMES:
                ready += self._lines(last=True)
                self._token = ""
            ready.append(message)
        return ready

    def _read(self) -> bytes:
        try:
            return os.read(self.pipe.fileno(), _MOST)
        except BlockingIOError:
            return b""

    def _lines(self, last: bool = False) -> list[Message]:
        """Return the lines that have ended, or also the ``last``, each without what a carriage return overwrote."""
        *whole, self._rest = (self._rest + self._read()).split(b"\n")
        if self._rest and (last or len(self._rest) > 4 * LONGEST):
            whole, self._rest = [*whole, self._rest], b""
        pieces = []
        for line in whole:
            shown = line.rstrip(b"\r").rpartition(b"\r")[2].decode(errors="replace")
            pieces += [shown[start:start + LONGEST] for start in range(0, max(1, len(shown)), LONGEST)]
        if not self._token:
            sys.stderr.writelines(f"{piece}\n" for piece in pieces)
            return []
        first = self._number + 1
        self._number += len(pieces)
        return [("report", self._token, {"log": [number, piece]}) for number, piece in enumerate(pieces, first)]

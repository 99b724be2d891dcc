"""The lines that a worker process prints during an attempt: numbered, in order, and all before the attempt's end.

Standard output and error of the worker and of its children are one pipe. The worker marks there where an attempt begins and
ends, through a second descriptor, so a task may close or redirect its standard output.
"""

import os
import re
import sys
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

LONGEST = 8192  # characters of a line; a longer one comes in pieces
_MARK = re.compile(rb"\0(begin|end) ([^\0\n]*)\n")  # any other NUL is text
_MARK_SO_FAR = re.compile(rb"\0(b|be|beg|begi|begin|e|en|end|(begin|end) [^\0\n]*)?")
_OUTCOMES = ("done", "failed", "stopped", "refused")
_MOST = 2**20  # bytes that are taken at once


def redirect(output: Connection) -> Callable[[str, str], None]:
    """Let this process, a worker, print to ``output``; return the function that marks the begin or end of an attempt there."""
    marks = os.dup(output.fileno())  # children do not inherit it
    for stream, number in ((sys.stdout, 1), (sys.stderr, 2)):
        stream.flush()
        os.dup2(output.fileno(), number)
        stream.reconfigure(line_buffering=True)
    output.close()

    def mark(event: str, token: str) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        os.write(marks, f"\0{event} {token}\n".encode())

    return mark


class Output:
    """The leading process's end: reports ``{"log": [n, line]}`` of attempts, n from 1; other lines go to its stderr."""

    def __init__(self):
        self.pipe, self.theirs = get_context("spawn").Pipe(duplex=False)
        self._rest, self._token, self._number, self._ended = b"", "", 0, set()
        self._waiting: list[tuple[Any, ...]] = []

    def started(self) -> Connection:
        """Note that the worker has its end of the pipe; return the end that becomes readable."""
        self.theirs.close()
        os.set_blocking(self.pipe.fileno(), False)
        return self.pipe

    def merged(self, messages: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """Return a worker's messages with the lines that it printed; an outcome waits for all lines before it."""
        self._waiting += messages
        ready = list(self._reports())
        while self._waiting:
            event, *content = self._waiting[0]
            if event in _OUTCOMES:
                if content[0] not in self._ended:
                    break
                self._ended.remove(content[0])
            elif event == "died" and self._rest:
                ready += self._lines(b"\n")
            ready.append(self._waiting.pop(0))
        return ready

    def _reports(self) -> Iterator[tuple[Any, ...]]:
        """Read what there is, and note where attempts begin and end."""
        text, done = self._rest + self._read(), 0
        cut = text.rfind(b"\0")
        if cut < 0 or not _MARK_SO_FAR.fullmatch(text, cut):
            cut = len(text)
        self._rest = b""
        for mark in _MARK.finditer(text, 0, cut):
            yield from self._lines(text[done:mark.start()])
            yield from self._lines(b"\n") if self._rest else ()
            done, (event, token) = mark.end(), mark.groups()
            if event == b"begin":
                self._token, self._number = token.decode(errors="replace"), 0
            else:
                self._token = ""
                self._ended.add(token.decode(errors="replace"))
        yield from self._lines(text[done:cut])
        self._rest += text[cut:]  # the begin of a mark whose rest is still to come

    def _read(self) -> bytes:
        text, part = b"", b"."
        while part and len(text) < _MOST:
            try:
                part = os.read(self.pipe.fileno(), 2**16)
            except BlockingIOError:
                break
            text += part
        return text

    def _lines(self, text: bytes) -> Iterator[tuple[Any, ...]]:
        """Yield the lines that end in ``text``, each without what a carriage return overwrote; keep the rest."""
        *whole, self._rest = (self._rest + text).split(b"\n")
        if len(self._rest) > 4 * LONGEST:
            whole, self._rest = [*whole, self._rest], b""
        for line in whole:
            shown = line.rstrip(b"\r").rpartition(b"\r")[2].decode(errors="replace")
            for start in range(0, max(1, len(shown)), LONGEST):
                if self._token:
                    self._number += 1
                    yield "report", self._token, {"log": [self._number, shown[start:start + LONGEST]]}
                else:
                    print(shown[start:start + LONGEST], file=sys.stderr)

    def close(self) -> None:
        """Close this end of the pipe."""
        self.pipe.close()

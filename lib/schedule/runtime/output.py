"""What a worker process prints: lines of its attempts, numbered, in order with its messages, and all before an attempt's end.

The worker's standard output and error are one pipe, which what it starts inherits. It marks there where an attempt begins and
ends, by ways of its own: a task that closes or redirects its standard output changes nothing.
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
    """Let this process, a worker, print to ``output``; return what marks there that an attempt begins or ends."""
    marks = os.dup(output.fileno())  # as descriptors of Python are, not inherited
    for stream, number in ((sys.stdout, 1), (sys.stderr, 2)):
        stream.flush()
        os.dup2(output.fileno(), number)
        stream.reconfigure(line_buffering=True)
    output.close()

    def mark(what: str, token: str) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        os.write(marks, f"\0{what} {token}\n".encode())

    return mark


class Output:
    """The leading process's end: reports ``{"log": [n, line]}`` of attempts, n from 1; other lines go to its own stderr."""

    def __init__(self):
        self.pipe, self.theirs = get_context("spawn").Pipe(duplex=False)
        self._rest, self._token, self._number, self._ended = b"", "", 0, set()
        self._held: list[tuple[Any, ...]] = []

    def started(self) -> Connection:
        """Note that the worker has its end; return what becomes readable."""
        self.theirs.close()
        os.set_blocking(self.pipe.fileno(), False)
        return self.pipe

    def merged(self, messages: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """Return a worker's messages with the lines that it printed; an outcome waits until all lines before it are here."""
        self._held += messages
        ready = list(self._reports())
        while self._held and (self._held[0][0] not in _OUTCOMES or self._held[0][1] in self._ended):
            if self._held[0][0] == "died" and self._rest:
                ready += self._lines(b"\n")
            if self._held[0][0] in _OUTCOMES:
                self._ended.discard(self._held[0][1])
            ready.append(self._held.pop(0))
        return ready

    def _reports(self) -> Iterator[tuple[Any, ...]]:
        """Read what there is; note where attempts begin and end."""
        text, done = self._rest + self._read(), 0
        cut = text.rfind(b"\0")
        if cut < 0 or not _MARK_SO_FAR.fullmatch(text, cut):
            cut = len(text)
        self._rest = b""
        for mark in _MARK.finditer(text, 0, cut):
            yield from self._lines(text[done:mark.start()])
            yield from self._lines(b"\n") if self._rest else ()
            done, (what, token) = mark.end(), mark.groups()
            if what == b"begin":
                self._token, self._number = token.decode(errors="replace"), 0
            else:
                self._token = ""
                self._ended.add(token.decode(errors="replace"))
        yield from self._lines(text[done:cut])
        self._rest += text[cut:]  # the rest of the mark is still to come

    def _read(self) -> bytes:
        text = b""
        while len(text) < _MOST:
            try:
                part = os.read(self.pipe.fileno(), 2**16)
            except BlockingIOError:
                return text
            if not part:
                return text
            text += part
        return text

    def _lines(self, text: bytes) -> Iterator[tuple[Any, ...]]:
        """Yield the lines that end in ``text``, each as the last that a carriage return left of it; keep the rest."""
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
        """Close this end."""
        self.pipe.close()

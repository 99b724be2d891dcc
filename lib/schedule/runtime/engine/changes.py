"""Changes that any thread posts, and the engine's thread makes, in their order."""

import threading
from collections import deque
from collections.abc import Callable
from multiprocessing import Pipe


class Changes:
    """Changes that are still to be made; ``bell`` becomes readable when there are new ones."""

    def __init__(self):
        self._posted, self._rung = deque(), threading.Event()
        self.bell, self._ring = Pipe(duplex=False)

    def post(self, change: Callable[[], None]) -> None:
        """Add a change, from any thread."""
        self._posted.append(change)
        if not self._rung.is_set():
            self._rung.set()
            self._ring.send_bytes(b".")

    def make(self) -> bool:
        """Make all changes, in one thread at a time; return whether there were any. One that raises is the next to be made."""
        made = False
        while self._posted:
            change = self._posted.popleft()
            try:
                change()
            except Exception:
                self._posted.appendleft(change)  # such as a full disk: the next run makes it
                raise
            made = True
        return made

    def heard(self) -> None:
        """Silence the bell, once it was heard."""
        self._rung.clear()  # first: who rings from now on is heard by the next wait
        self.bell.recv_bytes()

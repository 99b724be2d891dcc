"""The door of users' networks (``module:Class``): modules that fail or misbehave while they are imported, built or run."""

import contextlib
import itertools
import sys

from lib.work import networks
from lib.work.graph import capture
from tests.doors import SAME, WRONG, Door, LetThroughError, pass_through, pick

NUMBER = itertools.count()
LINEAR = tuple(f"aten.{name}.default" for name in ("view", "t", "addmm", "_unsafe_view"))  # what every network that works runs
LINES = {
    SAME: ["pass", "print('hello')", "import os; os.write(1, b'raw')", "import os; os.system('echo shell')",
           "import warnings; warnings.warn('look')", "import torch; torch.set_num_threads(1)"],
    WRONG: ["raise ValueError('two\\nlines')", "raise SystemExit", "import sys; sys.exit(0)", "raise BaseException('all')",
            "raise Exception", "raise MemoryError", "None.x", "import no_such_module", "raise RecursionError",
            "raise GeneratorExit", "raise StopIteration", "raise OSError(28, 'No space left on device')",
            "raise UnicodeDecodeError('a', b'', 0, 1, 'r')"]}
MODULE = """import torch
{on_import}
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        {on_build}
        self.layer = torch.nn.Linear(4, 4)
    def forward(self, x):
        {on_run}
        return self.layer(x)
"""


def _attempt(data, folder):
    kind = pick(data, sorted(LINES), "kind")
    slots = dict.fromkeys(("on_import", "on_build", "on_run"), "pass")
    text = MODULE.format(**{**slots, pick(data, slots, "slot"): pick(data, LINES[kind], "line")})
    module = f"users_module_{next(NUMBER)}"
    (folder / f"{module}.py").write_text(text)
    before, stdout = list(sys.path), sys.stdout

    def operators():
        return tuple(op.name for op in capture.of_network(networks.network(f"{module}:Net", 2, "3x4x4")).ops)

    try:
        with contextlib.chdir(folder):
            outcome = pass_through(operators, kind, f"a users' module:\n{text}", LINEAR)
    finally:
        sys.path[:] = before
        sys.modules.pop(module, None)
    if sys.stdout is not stdout:
        raise LetThroughError(f"standard output is another one afterwards:\n{text}")
    return outcome


DOOR = Door("users' networks", _attempt)

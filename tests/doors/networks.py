"""The door of users' networks (``module:Class``): modules that fail while they are imported, built or run, or misbehave."""

import contextlib
import itertools
import sys
from pathlib import Path

from hypothesis import strategies as st

from tests.doors import SAME, WRONG, Door, LetThroughError, pass_through

NUMBER = itertools.count()
LINEAR = tuple(f"aten.{name}.default" for name in ("view", "t", "addmm", "_unsafe_view"))  # what every network that works runs
FAILURES = [
    "raise ValueError('no')",
    "raise SystemExit",
    "import sys; sys.exit(0)",
    "import os; os.abort if 0 else exit(3)",
    "1 / 0",
    "raise KeyError('k')",
    "raise BaseException('all')",
    "raise MemoryError",
    "[][1]",
    "None.x",
    "assert False",
    "undefined_name",
    "import no_such_module",
    "raise RecursionError",
    "raise ValueError('two\\nlines')",
    "raise OSError(28, 'No space left on device')",
    "def f(): return f()\n{indent}f()",
    "raise Exception",
    "raise GeneratorExit",
    "raise StopIteration",
    "raise UnicodeDecodeError('a', b'', 0, 1, 'r')",
]
PRINTS = [
    "print('hello')",
    "import sys; sys.stdout.write('x')",
    "import os; os.write(1, b'raw')",
    "import os; os.system('echo shell')",
    "import warnings; warnings.warn('look')",
    "import torch; torch.set_num_threads(1)",
    "pass",
]
MODULE = """import torch
{on_import}
class Net(torch.nn.Module):
    def __init__(self{arguments}):
        super().__init__()
        {on_build}
        self.layer = torch.nn.Linear(4, 4)
    def forward(self, x):
        {on_run}
        return {result}
"""
RESULTS = {
    "self.layer(x)": SAME,
    "(self.layer(x), x)": SAME,
    "{'y': self.layer(x)}": SAME,
    "None": WRONG,
    "'text'": WRONG,
    "1": WRONG,
    "self.layer(x).sum().item()": WRONG,
    "self.no_such_layer(x)": WRONG,
    "x.view(7)": WRONG,
    "[]": WRONG,
    "object()": WRONG,
}
NO_MODULES = [
    "class Net(:\n",
    "Net = 1\n",
    "def Net(): return 1\n",
    "def Net(): return None\n",
    "class Net: pass\n",
    "",
    "\0",
    "import",
    "def Other(): pass\n",
    "Net = print\n",
    "class Net(Exception): pass\n",
    "\tNet = 1\n  x = 2\n",
    "Net = lambda x: x\n",
    "import torch\nNet = torch.jit.script(torch.nn.Linear(4, 4))\n",
    "import torch\ndef Net(): return torch.nn.Identity()\n",
]


def _source(data: st.DataObject) -> tuple[str, str]:
    """Draw a module; return what it is, and its text."""
    how = data.draw(st.sampled_from(["right", "fails", "result", "no class", "needs arguments"]), label="how")
    slots = {"on_import": "", "on_build": "pass", "on_run": "pass", "arguments": "", "result": "self.layer(x)"}
    kind, slot = SAME, data.draw(st.sampled_from(["on_import", "on_build", "on_run"]), label="slot")
    if how == "no class":
        return WRONG, data.draw(st.sampled_from(NO_MODULES), label="module")
    if how == "right":
        slots[slot] = data.draw(st.sampled_from(PRINTS), label="prints")
    elif how == "fails":
        failure = data.draw(st.sampled_from(FAILURES), label="failure")
        kind, slots[slot] = WRONG, failure.replace("{indent}", "" if slot == "on_import" else "        ")
    elif how == "result":
        slots["result"] = data.draw(st.sampled_from(sorted(RESULTS)), label="result")
        kind = RESULTS[slots["result"]]
    else:
        kind, slots["arguments"] = WRONG, ", size"
    return kind, MODULE.format(**slots)


def _operators(name: str) -> tuple[str, ...]:
    """Resolve, build and capture a network; return its operators."""
    from lib.work import networks
    from lib.work.graph import capture

    graph = capture.of_network(networks.network(name, 2, "3x4x4"))
    return tuple(op.name for op in graph.ops)


def _attempt(data: st.DataObject, folder: Path) -> str:
    kind, text = _source(data)
    module = f"users_module_{next(NUMBER)}"
    (folder / f"{module}.py").write_text(text, encoding="utf-8")
    before, stdout = list(sys.path), sys.stdout
    try:
        with contextlib.chdir(folder):
            outcome = pass_through(lambda: _operators(f"{module}:Net"), kind, f"a users' module:\n{text}", LINEAR)
    finally:
        sys.path[:] = before
        sys.modules.pop(module, None)
    if sys.stdout is not stdout:
        raise LetThroughError(f"standard output is another one afterwards:\n{text}")
    return outcome


DOOR = Door("users' networks", _attempt)

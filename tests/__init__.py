"""Tests, one file per module or theme."""

import contextlib
import io
import os
import subprocess
import sys
import time

import pytest
from hypothesis import HealthCheck, settings

from lib import paths
from lib.errors import InputError

# Measurements and images of others that a clone does not have; what needs them skips and says so.
SHARED = paths.ROOT.parent / "shared"
XRAYS = SHARED / "data/medmnist/pneumoniamnist.npz"

# Laws: 25 fixed examples on every change, 200 random ones every night. A law whose examples take long asks for FEW.
settings.register_profile("suite", max_examples=25, derandomize=True, deadline=None, database=None,
                          suppress_health_check=list(HealthCheck))
settings.register_profile("nightly", settings.get_profile("suite"), max_examples=200, derandomize=False, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "suite"))
FEW = settings(max_examples=settings().max_examples // 5)


in_both_modes = pytest.mark.parametrize("mode", ["infer", "train"])


def real_pass(model, mode, *placed, autocast=None, **named):
    """Run a network for real, forward and, where it trains, backward; return its first output."""
    import torch

    from lib.work.graph import capture

    with torch.set_grad_enabled(mode == "train"):
        with torch.autocast("cpu", autocast, enabled=autocast is not None):
            output = capture.first_tensor(model(*placed, **named))
            loss = capture.default_loss(output) if mode == "train" else None
        if loss is not None:
            loss.backward()
    return output


def until(condition, within_s=30.0):
    """Return what a condition gives once that is true; fail where it takes too long."""
    end = time.monotonic() + within_s
    while not (value := condition()):
        assert time.monotonic() < end, "this has not come true in time"
        time.sleep(0.01)
    return value


def nightly(*values):
    """Return the values of a parametrised test that runs every night alone."""
    return pytest.param(*values, marks=pytest.mark.nightly)


def advice_on(devices, *config, power_limit_w=0.0, clock_mhz=0, **more):
    """Return the advice on a run for one device or several, perhaps under a power limit or at a clock."""
    from lib.predict.advice import advise
    from lib.work.run_config import DeviceCondition, RunConfig

    several = [devices] if isinstance(devices, str) else devices
    return advise.advise(RunConfig(*config, **more), several, DeviceCondition(power_limit_w=power_limit_w, clock_mhz=clock_mhz))


def refused(words):
    """Expect an InputError with these words (a regular expression); such an error is one line by itself."""
    return pytest.raises(InputError, match=words)


def row(table, **values):
    """Return a table of one row: what is not in ``values`` is the least that its column allows."""
    import pandas as pd

    from lib import tables

    least = {name: values.get(name, (c.of or ("x",))[0] if c.kind == "str" else False if c.kind == "bool" else 1.0)
             for name, c in tables.TABLES[table].items()}
    return pd.DataFrame([least])


def with_value(tree, path, value):
    """Return a copy of a tree of mappings and lists with another value at a path."""
    if not path:
        return value
    tree = tree.copy()
    tree[path[0]] = with_value(tree[path[0]] if len(path) > 1 else None, path[1:], value)
    return tree


def python(*words, status=0, cwd=paths.ROOT, **environment):
    """Run Python in a process of its own, which ends with a status (None: any); return what ``subprocess.run`` does."""
    ran = subprocess.run([sys.executable, *map(str, words)], cwd=cwd, env={**os.environ, **environment}, check=False,
                         capture_output=True, text=True)
    assert status in (None, ran.returncode), ran.stdout + ran.stderr
    return ran


def written(folder, contents):
    """Write files into a folder, texts or bytes by their names; return the folder."""
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def write_power_log(log, path):
    """Write a power log as an INA3221 gives it, at 5 V; return its path."""
    from datetime import UTC, datetime

    from lib.measure.energy.power_log import STAMP

    path.write_text("".join(f"{datetime.fromtimestamp(at_s, UTC).strftime(STAMP)},5000,{power_w * 200:.3f}\n"
                            for at_s, power_w in zip(log.at_s, log.power_w, strict=True)))
    return path


def notebook(path, *cells):
    """Write a notebook of some cells, the first of which declares its parameters; return its path."""
    import nbformat

    codes = [nbformat.v4.new_code_cell(cell) for cell in cells]
    codes[0].metadata["tags"] = ["parameters"]
    about = {"kernelspec": {"name": "python3", "display_name": "Python 3"}, "language_info": {"name": "python"}}
    nbformat.write(nbformat.v4.new_notebook(cells=codes, metadata=about), path)
    return path


def called(*words):
    """Run a command line in this process; return exit status, standard output and error."""
    from lib.cli.main import main

    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as error:
        try:
            status = main([*map(str, words)])
        except SystemExit as end:
            status = int(end.code or 0)
    return status, out.getvalue(), error.getvalue()


def output_of(*words, status=0):
    """Return what a command line prints to standard output; it ends with this status."""
    ended, out, error = called(*words)
    assert ended == status, (ended, out, error)
    return out


def refusal(*words):
    """Return the line with which a command line is refused: all that it prints."""
    status, out, error = called(*words)
    assert status == 2 and out == "" and error.count("\n") == 1 and error.startswith("error: "), (status, out, error)
    return error

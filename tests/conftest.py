"""What the tests share: a home of their own for everything that is measured or built."""

import math
import multiprocessing.util
import os
import resource
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from unittest import mock

import pytest

from lib import locks, paths
from tests import write_power_log

# Two test workers share the cores; a pool of threads each would make them wait for one another at every barrier.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("LIB_BATCH", "1")
temporary = multiprocessing.util.get_temp_dir()  # for good: names of sockets in the folder of a test would be too long
os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{temporary}/mlflow.db"  # one for all tests: it takes seconds to make
os.environ["LIB_METER"] = "none"  # tests that look at energies bring their own meter, with known power, or have a card


LONGEST = ("test_notebooks", "test_cluster", "test_profiles", "test_sweep")  # begun first, no worker waits for them at the end


def pytest_ignore_collect(collection_path, config):
    """Do not import files of slow tests for ``make check``."""
    if "not slow" in config.option.markexpr and collection_path.name.startswith("test_"):
        return "\npytestmark = pytest.mark.slow\n" in collection_path.read_text() or None
    return None


def pytest_collection_modifyitems(items):
    """Put the files that take longest first, and skip what needs a CUDA device where there is none."""
    items.sort(key=lambda item: LONGEST.index(item.path.stem) if item.path.stem in LONGEST else len(LONGEST))
    import torch  # after the number of its threads is set

    no_card = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
    for item in items:
        if item.get_closest_marker("cuda"):
            item.add_marker(no_card)


def home_paths(root):
    """Return the paths that ``LIB_OUTPUT=root`` would give, in a checkout into which nothing was fetched."""
    with mock.patch.dict(os.environ, LIB_OUTPUT=str(root)):
        moved = runpy.run_path(paths.__file__)
    return {name: moved[name] for name in vars(paths) if name.isupper()} | {"FETCHED": moved["MEDMNIST"]}


@pytest.fixture(autouse=True)
def _card(request):
    """Give the card to a test on it alone, as tests of other workers would share its time, and let its real meter be found."""
    if not request.node.get_closest_marker("cuda"):
        yield
        return
    with locks.device("card of the tests", 3600.0), mock.patch.dict(os.environ):
        os.environ.pop("LIB_METER", None)
        yield


@pytest.fixture
def home(tmp_path, monkeypatch):
    """Give one test a home; nothing of the checkout is written."""
    for name, path in home_paths(tmp_path).items():
        monkeypatch.setattr(paths, name, path)
    monkeypatch.setenv("LIB_OUTPUT", str(tmp_path))
    monkeypatch.setenv("LIB_LOCKS", str(tmp_path / "locks"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def metered(tmp_path, monkeypatch):
    """Have every process here meter 40 W, for ten minutes: a constant log, played again."""
    import numpy as np

    from lib.measure.energy import meters, power_log

    log = power_log.PowerLog(np.arange(1e9, 1e9 + 600, 0.02), np.full(30_000, 40.0))
    path = write_power_log(log, tmp_path / "power_log.log")
    monkeypatch.setenv(meters.CHOICE, str(path))
    return 40.0


class Clock:
    """A clock that only moves when told; work takes ``factor`` times as long from ``slow_from`` on."""

    now, slow_from, factor = 1000.0, math.inf, 1.0

    @property
    def spent_s(self):
        return self.now - 1000

    def work(self, seconds):
        self.now += seconds * (self.factor if self.spent_s > self.slow_from else 1.0)


@pytest.fixture
def clock(monkeypatch):
    """Put a clock in the place of the machine's own, on a machine where others hold all cores."""
    from lib import store
    from lib.measure import disturbance

    store.git_state()  # waits for a process, by the real clock
    made = Clock()
    monkeypatch.setattr(time, "monotonic", lambda: made.now)
    monkeypatch.setattr(time, "perf_counter", lambda: made.now)
    monkeypatch.setattr(time, "perf_counter_ns", lambda: round(made.now * 1e9))
    monkeypatch.setattr(time, "sleep", made.work)
    monkeypatch.setattr(disturbance.LoadWatch, "reading", lambda self: disturbance.Load(1.0, 1.0, 2.0, 0.0, 0.0))
    return made


@pytest.fixture
def quiet(monkeypatch):
    """Skip the wait for a quiet machine: these tests look at what is written, not at how fast it was."""
    from lib.measure import disturbance

    monkeypatch.setattr(disturbance, "wait_for_quiet", lambda *_, **__: disturbance.Load(0.5, 0.0, 0.0, 0.0, 0.0))


@pytest.fixture
def networks_here(monkeypatch):
    """Measure networks in this process."""
    from lib.measure.networks import campaign, end_to_end

    for module in (campaign, end_to_end):
        monkeypatch.setattr(module, "in_a_process", lambda cases, device, case_s, _: end_to_end._measure(cases, device, case_s))


@pytest.fixture
def with_card(monkeypatch):
    """Have this machine a CPU and a card."""
    from lib.measure import machine

    monkeypatch.setattr(machine, "devices", lambda: ["cpu", "cuda:0"])


@contextmanager
def busy_neighbours(count):
    """Keep ``count`` processes busy that are no children of this one, as a stranger's would be."""
    loop = "import time\nend = time.time() + 300\nwhile time.time() < end: pass"
    starter = (f"import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', {loop!r}], "
               "stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).pid)")
    words = [sys.executable, "-c", starter]
    pids = [int(subprocess.run(words, capture_output=True, check=True).stdout) for _ in range(count)]
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)


@contextmanager
def full_disk(most_bytes):
    """Let no file grow beyond so many bytes: what a disk does that is full in the middle of a write."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.fixture
def chromium():
    """Return the path of a Chromium, or skip."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not browser:
        pytest.skip("no Chromium here (apt-get install chromium): the page cannot be looked at")
    return browser

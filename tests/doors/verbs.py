"""The door of the command line (``python -m lib VERB``): every verb with odd numbers, names, paths and files."""

import contextlib
from pathlib import Path
from unittest import mock

from lib import paths
from tests import called
from tests.conftest import home_paths
from tests.doors import ANY, SAME, WRONG, Door, LetThroughError, pick

NO_NUMBERS = ["nan", "inf", "-inf", "-1", "-0.5", "x", "", "1e999", "1_", "0x10", "None", "٣x", "1,5"]
NAMES = ["", "x", "../x", "/abs/x", "a,b", ",", "cpu,cpu", "cuda:99", "gpu", "-x", "<b>", "\n", "🙂", "x" * 3000,
         "None", "$(id)", ":X", "x:", "../x:Y", "a b:C", "os:system", "lib:no", "resnet5000", "%s", "{0}", "."]
SCHEDULE = "schedule --times times.csv --devices devices.csv"
NUMBERS = [  # options of which no number above is one
    "compare a b --threshold", "measure matrix --dry-run --repeats", "measure matrix --dry-run --budget-s",
    "measure networks --dry-run --rounds", "measure networks --dry-run --case-s", "calibrate --budget-s",
    "advise resnet18 --batch-size",
    "run-jobs jobs.csv --slots", "data check --size"]
TEXTS = [  # where a name stands for {}
    "{}", "advise {}", "advise resnet18 --device {}", "advise resnet18 --dtype {}", "advise resnet18 --mode {}",
    "compare {} {}", "compare {} a", "measure matrix --dry-run --device {}", "measure matrix --dry-run --cells {}",
    "measure matrix --dry-run -p {} 1", "measure matrix --dry-run -p device {}", "measure networks --dry-run --networks {}",
    "measure networks --dry-run --plan {}", "run {} --dry-run", "run --dry-run --workloads {}", "run --dry-run --devices {}",
    "run --dry-run -p {} 1", "run --page --executed {} --out page.html", "import {} x", "data unpack {}",
    "import neusight {}",
    "import pytorch-scheduler {}", "schedule --times {} --devices {}", f"{SCHEDULE} --policy {{}}",
    f"{SCHEDULE} --objective {{}}", "run-jobs {}",
    "run-jobs jobs.csv --policy {}", "data check {}", "data {}", "data push {}",
    "data push . --remote-dir {}", "data pull {} --local there", "data pull .@{} --local there", "calibrate --device {}",
    "calibrate --dtype {}", "calibrate --networks {}", "calibrate --device t4 --networks {}", "models --train {}"]
FILES = ["schedule --times {0} --devices {1}", "run-jobs {0}", "compare {0} {1}", "data unpack {0}", "import neusight {0}",
         "import pytorch-scheduler {0}"]
ODD_ID = b"job_id,workload_id,steps\n../x,W1,1\n"  # a job as good as any: what is written for it has a safe name
CONTENTS = [b"", b"\n", b"x", b"\0", b"\xff\xfe", b"job_id,cpu\n", b"job_id,workload_id,steps\na,W1,inf\n",
            b"PK\x03\x04", b"PAR1", b"{}", b"null", b"{", b"a,a\n1,1\n", ODD_ID,
            b"job_id,notebook\na,../../etc/passwd\n", b"device,type\nd,cpu\n", b"\x1f\x8b", b"[" * 3000, b"a" * 100_000]
INPUTS = {"times.csv": b"job_id,cpu\na,1\nb,2\n", "devices.csv": b"device,type\nd,cpu\n",
          "jobs.csv": b"job_id,workload_id,steps\na,W1,1\n"}


def _arguments(data):
    """Draw a command line, and write its odd files here; return what it is, and its words."""
    how = pick(data, ["as it should be", "number", "text", "file"], "how")
    if how == "as it should be":
        return SAME, [*SCHEDULE.split(), "--json"]
    if how == "number":
        *words, option = pick(data, NUMBERS, "option").split()
        return WRONG, [*words, f"{option}={pick(data, NO_NUMBERS)}"]
    if how == "text":
        name = pick(data, NAMES, "name")
        return ANY, [word.replace("{}", name) for word in pick(data, TEXTS, "words").split()]
    words, names = pick(data, FILES, "words"), ["file0.csv", "file1.csv"]
    contents = [pick(data, CONTENTS, "content") for _ in names]
    for name, content in zip(names, contents, strict=True):
        Path(name).write_bytes(content)
    good = words.startswith("run-jobs") and contents[0] == ODD_ID
    return SAME if good else WRONG, words.format(*names).split()


def _attempt(data, folder):
    inner = folder / "inner"
    inner.mkdir()
    for name, content in INPUTS.items():
        (inner / name).write_bytes(content)
    with contextlib.chdir(inner), mock.patch.multiple(paths, **home_paths(folder / "home")):
        kind, words = _arguments(data)
        before = {path: path.read_bytes() for path in inner.iterdir()}
        status, out, error = called(*words)
    shown = " ".join(words)[:300]
    if status not in (0, 2) or (kind == WRONG and status == 0) or (kind == SAME and status != 0):
        raise LetThroughError(f"{shown}: status {status}, {out[:200]!r}, {error[:300]!r}")
    if status == 2 and (len(error.strip().splitlines()) != 1 or not error.startswith("error: ")):
        raise LetThroughError(f"{shown}: no one line of error, but {error[:600]!r}")
    if any(not path.is_file() or path.read_bytes() != content for path, content in before.items()):
        raise LetThroughError(f"{shown}: an input was changed")
    if any(path.name not in ("home", "inner") for path in folder.iterdir()):
        raise LetThroughError(f"{shown}: something was written outside")
    return "refused" if status else "read"


DOOR = Door("command line", _attempt)

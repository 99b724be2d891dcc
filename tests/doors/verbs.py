"""The door of the command line (``python -m lib VERB``): odd numbers, names, paths and files."""

import contextlib
from pathlib import Path
from unittest import mock

from lib import paths
from tests import called
from tests.conftest import home_paths
from tests.doors import ANY, SAME, WRONG, Door, LetThroughError, pick

NO_NUMBERS = ["nan", "inf", "-1", "-0.5", "x", "", "1e999", "1_", "0x10", "None", "٣x", "1,5"]
NAMES = ["", "x", "../x", "/abs/x", "a,b", ",", "cpu,cpu", "cuda:99", "gpu", "-x", "<b>", "\n",
         "🙂", "x" * 3000, "None", "$(id)", ":X", "x:", "../x:Y", "os:system", "lib:no",
         "resnet5000", "%s", "{0}", "."]
SCHEDULE = "schedule --times times.csv --devices devices.csv"
NUMBERS = [  # options of which no number above is one
    "compare a b --threshold", "measure matrix --dry-run --repeats",
    "measure networks --dry-run --rounds", "calibrate --budget-s", "advise resnet18 --batch-size",
    "run-jobs jobs.csv --slots", "data check --size"]
TEXTS = [  # where a name stands for {}
    "{}", "advise {}", "advise resnet18 --device {}", "advise resnet18 --dtype {}",
    "compare {} a", "measure matrix --dry-run --device {}", "measure matrix --dry-run --cells {}",
    "measure matrix --dry-run -p {} 1", "measure matrix --dry-run -p device {}",
    "measure networks --dry-run --models {}", "measure networks --dry-run --plan {}",
    "run {} --dry-run", "run --dry-run --workloads {}", "run --dry-run --devices {}",
    "run --dry-run -p {} 1", "import {} x", "data unpack {}", "import neusight {}",
    "schedule --times {} --devices {}", f"{SCHEDULE} --policy {{}}",
    f"{SCHEDULE} --objective {{}}", "run-jobs {}", "data check {}", "data {}", "data push {}",
    "data pull {} there", "calibrate --device {}", "calibrate --dtype {}",
    "calibrate --device t4 --networks {}", "models --train {}"]
FILES = ["schedule --times {0} --devices {1}", "run-jobs {0}", "compare {0} {1}",
         "data unpack {0}", "import neusight {0}", "import pytorch-scheduler {0}"]
ODD_ID = b"job_id,workload_id,steps\n../x,W1,1\n"  # a good job: its files have safe names
CONTENTS = [b"", b"\n", b"x", b"\0", b"\xff\xfe", b"job_id,cpu\n",
            b"job_id,workload_id,steps\na,W1,inf\n", b"PK\x03\x04", b"PAR1", b"{}", b"{",
            b"a,a\n1,1\n", ODD_ID, b"job_id,notebook\na,../../etc/passwd\n",
            b"device,type\nd,cpu\n", b"\x1f\x8b", b"[" * 3000, b"a" * 100_000]
INPUTS = {"times.csv": b"job_id,cpu\na,1\nb,2\n", "devices.csv": b"device,type\nd,cpu\n",
          "jobs.csv": b"job_id,workload_id,steps\na,W1,1\n"}


def _arguments(data):
    """Draw a command line and write its odd files here; return its kind and its words."""
    kind = pick(data, ["right", "number", "text", "file"], "kind")
    if kind == "right":
        return SAME, [*SCHEDULE.split(), "--json"]
    if kind == "number":
        *words, option = pick(data, NUMBERS, "option").split()
        return WRONG, [*words, f"{option}={pick(data, NO_NUMBERS)}"]
    if kind == "text":
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
    shown, expected = " ".join(words)[:300], {SAME: (0,), WRONG: (2,), ANY: (0, 2)}
    if status not in expected[kind]:
        raise LetThroughError(f"{shown}: status {status}, {out[:200]!r}, {error[:300]!r}")
    if status == 2 and (error.strip().count("\n") or not error.startswith("error: ")):
        raise LetThroughError(f"{shown}: no one line of error, but {error[:600]!r}")
    if any(not path.is_file() or path.read_bytes() != text for path, text in before.items()):
        raise LetThroughError(f"{shown}: an input was changed")
    if any(path.name not in ("home", "inner") for path in folder.iterdir()):
        raise LetThroughError(f"{shown}: something was written outside")
    return "refused" if status else "read"


DOOR = Door("command line", _attempt)

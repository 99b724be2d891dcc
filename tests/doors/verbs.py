"""The door of the command line (``python -m lib VERB``): every verb with odd numbers, names, paths and files."""

import contextlib
import io
from pathlib import Path
from unittest import mock

from hypothesis import strategies as st

from lib import paths
from lib.cli.main import main
from tests.conftest import home_paths
from tests.doors import ANY, SAME, WRONG, Door, LetThroughError, csv_texts

NO_NUMBERS = ["nan", "inf", "-inf", "-1", "-0.5", "x", "", "1e999", "1_", "0x10", "None", "٣x", "1,5"]
NAMES = [
    "",
    "x",
    "../x",
    "/abs/x",
    "a,b",
    ",",
    "W1,W1",
    "cpu,cpu",
    "cuda:99",
    "gpu",
    "-x",
    "<b>",
    "\n",
    "🙂",
    "x" * 3000,
    "None",
    "W1;ls",
    "$(id)",
    ":X",
    "x:",
    "../x:Y",
    "a b:C",
    "os:system",
    "lib:no",
    "json:loads",
    "resnet5000",
    "%s",
    "{0}",
    ".",
]
SHAPES = ["5x224x224", "3x224", "3x0x224", "-1", "3x", "x", "3x-1x3", "3x1e3x3", "1000000000x1", "3 x 224 x 224 x", "nan"]

# verb, what stands before; option -> values that are wrong for it
NUMBERS = {
    "compare": (["a", "b"], ["--threshold"]),
    "matrix": (["--dry-run"], ["--repeats", "--budget-s"]),
    "networks": (["--dry-run"], ["--rounds", "--case-s", "--budget-s"]),
    "calibrate": ([], ["--budget-s"]),
    "advise": (["resnet18"], ["--batch-size"]),
    "contention": ([], ["--rounds", "--slots"]),
    "run-jobs": (["jobs.csv"], ["--slots"]),
    "data": (["check"], ["--size"]),
}
TEXTS = {
    "advise": [["{}"], ["resnet18", "--device", "{}"], ["resnet18", "--dtype", "{}"], ["resnet18", "--mode", "{}"]],
    "compare": [["{}", "{}"], ["{}", "a"]],
    "matrix": [
        ["--dry-run", "--device", "{}"],
        ["--dry-run", "--cells", "{}"],
        ["--dry-run", "-p", "{}", "1"],
        ["--dry-run", "-p", "device", "{}"],
    ],
    "networks": [["--dry-run", "--networks", "{}"], ["--dry-run", "--plan", "{}"]],
    "run": [
        ["{}", "--dry-run"],
        ["--dry-run", "--workloads", "{}"],
        ["--dry-run", "--devices", "{}"],
        ["--dry-run", "-p", "{}", "1"],
    ],
    "report": [["--executed", "{}", "--out", "page.html"]],
    "import": [["{}", "x"], ["bundle", "{}"], ["neusight", "{}"], ["gavel", "{}"], ["pytorch-scheduler", "{}"]],
    "schedule": [
        ["--times", "{}", "--devices", "{}"],
        ["--times", "times.csv", "--devices", "devices.csv", "--policy", "{}"],
        ["--times", "times.csv", "--devices", "devices.csv", "--objective", "{}"],
    ],
    "run-jobs": [["{}"], ["jobs.csv", "--policy", "{}"]],
    "contention": [["--workloads", "{}"]],
    "data": [
        ["check", "{}"],
        ["{}"],
        ["push", "{}"],
        ["push", ".", "--remote-dir", "{}"],
        ["pull", "{}", "--local", "there"],
        ["pull", ".@{}", "--local", "there"],
    ],
    "calibrate": [["--device", "{}"], ["--dtype", "{}"], ["--networks", "{}"], ["--device", "t4", "--networks", "{}"]],
    "models": [["--train", "{}"]],
    "{}": [[]],
}
FILES = {
    "schedule": ["--times", "{0}", "--devices", "{1}"],
    "run-jobs": ["{0}"],
    "compare": ["{0}", "{1}"],
    "bundle": ["bundle", "{0}"],
    "neusight": ["neusight", "{0}"],
    "pytorch-scheduler": ["pytorch-scheduler", "{0}"],
    "gavel": ["gavel", "{0}"],
}
ODD_ID = b"job_id,workload_id,steps\n../x,W1,1\n"  # a job as good as any: what is written for it has a safe name
CONTENTS = [
    b"",
    b"\n",
    b"x",
    b"\0",
    b"\xff\xfe",
    b"job_id\n",
    b"job_id,cpu\n",
    b"job_id,workload_id,steps\na,W1,inf\n",
    b"PK\x03\x04",
    b"PAR1",
    b"{}",
    b"[]",
    b"null",
    b"{",
    b"a,a\n1,1\n",
    ODD_ID,
    b"job_id,notebook\na,../../etc/passwd\n",
    b"device,type\nd,cpu\n",
    b"\x1f\x8b",
    b"[" * 3000,
    b"a" * 100_000,
]
WHOLE = {
    "times.csv": [["job_id", "cpu"], ["a", "1"], ["b", "2"]],
    "devices.csv": [["device", "type"], ["d", "cpu"]],
    "jobs.csv": [["job_id", "workload_id", "steps"], ["a", "W1", "1"]],
}


def _arguments(data: st.DataObject, folder: Path) -> tuple[str, list[str]]:
    """Draw a command line; return what it is, and its words."""
    how = data.draw(st.sampled_from(["as it should be", "number", "text", "shape", "file", "over a file"]), label="how")
    if how == "as it should be":
        return SAME, ["schedule", "--times", "times.csv", "--devices", "devices.csv", "--json"]
    if how == "number":
        verb = data.draw(st.sampled_from(sorted(NUMBERS)), label="verb")
        before, options = NUMBERS[verb]
        return WRONG, [verb, *before, f"{data.draw(st.sampled_from(options))}={data.draw(st.sampled_from(NO_NUMBERS))}"]
    if how == "text":
        verb = data.draw(st.sampled_from(sorted(TEXTS)), label="verb")
        name = data.draw(st.sampled_from(NAMES), label="name")
        words = data.draw(st.sampled_from(TEXTS[verb]), label="words")
        return ANY, [verb.format(name), *(word.replace("{}", name) for word in words)]
    if how == "shape":
        return WRONG, [
            "advise",
            "resnet18",
            "--batch-size",
            "1",
            f"--input={data.draw(st.sampled_from(SHAPES), label='shape')}",
        ]
    if how == "over a file":
        option = data.draw(st.sampled_from(["--out", "--trace"]))
        target = data.draw(st.sampled_from(["times.csv", "devices.csv", "no/folder/x.csv", "."]), label="target")
        return WRONG, ["schedule", "--times", "times.csv", "--devices", "devices.csv", option, target]
    verb = data.draw(st.sampled_from(sorted(FILES)), label="verb")
    contents = [data.draw(st.sampled_from(CONTENTS), label="content") for _ in range(2)]
    for number, content in enumerate(contents):
        (folder / f"file{number}.csv").write_bytes(content)
    kind = SAME if (verb, contents[0]) == ("run-jobs", ODD_ID) else WRONG
    words = [word.format("file0.csv", "file1.csv") for word in FILES[verb]]
    return kind, [*(["import"] if words[0] == verb else [verb]), *words]


def call(words: list[str]) -> tuple[int, str, str]:
    """Run a command line in this process; return exit status, standard output and error."""
    out, error = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        try:
            status = main(words)
        except SystemExit as end:
            status = int(end.code or 0)
    return status, out.getvalue(), error.getvalue()


def _attempt(data: st.DataObject, folder: Path) -> str:
    inner = folder / "inner"
    inner.mkdir()
    for name, rows in WHOLE.items():
        (inner / name).write_bytes(csv_texts.written(rows))
    kind, words = _arguments(data, inner)
    before = {path: path.read_bytes() for path in inner.iterdir()}
    with contextlib.chdir(inner), mock.patch.multiple(paths, **home_paths(folder / "home")):
        status, out, error = call(words)
    shown = " ".join(words)[:300]
    if status not in (0, 2) or (kind == WRONG and status == 0) or (kind == SAME and status != 0):
        raise LetThroughError(f"{shown}: status {status}, {out[:200]!r}, {error[:300]!r}")
    if status == 2 and (len(error.strip().splitlines()) != 1 or not error.startswith("error: ")):
        raise LetThroughError(f"{shown}: no one line of error, but {error[:600]!r}")
    if any(not path.is_file() or path.read_bytes() != content for path, content in before.items()):
        raise LetThroughError(f"{shown}: an input was changed")
    if sorted(path.name for path in folder.iterdir() if path.name != "home") != ["inner"]:
        raise LetThroughError(f"{shown}: something was written outside")
    return "refused" if status else "read"


DOOR = Door("command line", _attempt)

"""The door of what people write to have jobs scheduled: times, devices, jobs, energy (``problem_files.read``)."""

from dataclasses import astuple
from pathlib import Path

from hypothesis import strategies as st

from lib.schedule import problem_files
from tests.doors import SAME, WRONG, Door, csv_texts, pass_through

SECONDS = st.floats(0.001, 1e6).map(lambda value: f"{value:.6g}")
NO_ID = ["", "NA", "NaN", "nan", "null", "None", "N/A", " "]
NO_TIME = ["0", "-1", "nan", "inf", "-inf", "x", "1e999", "1,5", "NA"]


def _tables(data: st.DataObject) -> dict[str, csv_texts.Rows]:
    """Draw a problem that can be scheduled, as the rows of its five files."""
    types = data.draw(st.lists(st.sampled_from(["cpu", "cuda:0", "gpu-x", "v100"]), min_size=1, max_size=3, unique=True))
    ids = data.draw(
        st.lists(
            st.from_regex(r"[a-z0-9][a-z0-9._-]{0,6}", fullmatch=True).filter(lambda name: name not in NO_ID),
            min_size=1,
            max_size=5,
            unique=True,
        )
    )
    counts = [data.draw(st.integers(1, 3)) for _ in types]
    times = [["job_id", *types], *([name, *(data.draw(SECONDS) for _ in types)] for name in ids)]
    actual = [["job_id", *types], *([name, *(data.draw(SECONDS) for _ in types)] for name in ids)]
    devices = [
        ["device", "type", "count", "memory_mb"],
        *(
            [f"d{number}", name, str(count), data.draw(st.sampled_from(["", "1000"]))]
            for number, (name, count) in enumerate(zip(types, counts, strict=True))
        ),
    ]
    jobs = [
        ["job_id", "arrival_s", "deadline_s", "memory_mb"],
        *([name, data.draw(st.sampled_from(["0", "1.5", ""])), data.draw(st.sampled_from(["", "100"])), "10"] for name in ids),
    ]
    joules = st.one_of(st.just(""), st.floats(0, 1e9).map(lambda value: f"{value:.6g}"))
    sources = st.sampled_from(["", "measured", "modelled", "assumed"])
    energy = [["job_id", *types, "source"], *([name, *(data.draw(joules) for _ in types), data.draw(sources)] for name in ids)]
    return {"times": times, "devices": devices, "jobs": jobs, "actual": actual, "energy": energy}


def _wrong(tables: dict[str, csv_texts.Rows], data: st.DataObject) -> str:
    """Make one cell or row of one file wrong; return what was done."""
    which = data.draw(st.sampled_from(sorted(tables)), label="file")
    rows = tables[which]
    row = data.draw(st.integers(1, len(rows) - 1), label="row")
    what = data.draw(st.sampled_from(["no id", "doubled", "no number", "a column less", "no row"]), label="what")
    if what == "no id":
        rows[row][0] = data.draw(st.sampled_from(NO_ID))
    elif what == "doubled":
        rows.append(list(rows[row]))
    elif what == "no number" and which in ("times", "actual"):
        rows[row][data.draw(st.integers(1, len(rows[0]) - 1))] = data.draw(st.sampled_from(NO_TIME))
    elif what == "no number" and which == "energy":
        rows[row][data.draw(st.integers(1, len(rows[0]) - 1))] = data.draw(st.sampled_from(["-1", "nan", "inf", "x", "NA"]))
    elif what == "no number" and which == "devices":
        rows[row][2] = data.draw(st.sampled_from(["-1", "1.5", "x", "nan", "1e9", "99999999"]))
    elif what == "no number":
        rows[row][data.draw(st.sampled_from([1, 3]))] = data.draw(st.sampled_from(["-1", "x", "inf", "nan", "NA"]))
    elif what == "a column less":
        least = {"jobs": 0}.get(which, data.draw(st.integers(0, 1)))  # other columns of jobs may be left out
        tables[which] = [line[:least] + line[least + 1 :] for line in rows]
    else:
        del rows[1:]
    return f"{which}: {what}"


def _read(folder: Path) -> tuple:
    """Return a problem as its arrays, jobs and devices in the order of their names."""
    problem = problem_files.read(*(folder / f"{name}.csv" for name in ("times", "devices", "jobs", "actual", "energy")))
    return (problem.predicted_s, problem.actual_s, *astuple(problem.energy), *astuple(problem.jobs), *astuple(problem.fleet))


def _attempt(data: st.DataObject, folder: Path) -> str:
    tables = _tables(data)
    for name, rows in tables.items():
        (folder / f"{name}.csv").write_bytes(csv_texts.written(rows))
    expected = _read(folder)
    how = data.draw(st.sampled_from([*csv_texts.SHAPES, "columns in another order", *["a wrong cell"] * 6]), label="how")
    kind, what = WRONG, how
    if how == "a wrong cell":
        what = _wrong(tables, data)
        contents = {name: csv_texts.written(rows) for name, rows in tables.items()}
    else:
        which = data.draw(st.sampled_from(sorted(tables)), label="file")
        kind, change = csv_texts.SHAPES.get(how, (SAME, _reordered))
        contents = {which: change(tables[which], data)}
    for name, content in contents.items():
        (folder / f"{name}.csv").write_bytes(content)
    return pass_through(lambda: _read(folder), kind, what, expected)


def _reordered(rows: csv_texts.Rows, data: st.DataObject) -> bytes:
    order = data.draw(st.permutations(range(len(rows[0]))), label="order")
    return csv_texts.written([[row[column] for column in order] for row in rows])


DOOR = Door("problems of scheduling", _attempt)

"""The door of what people write to have jobs scheduled: times, devices, jobs, energy (``problem_files.read``)."""

from dataclasses import astuple
from functools import partial

from hypothesis import strategies as st

from lib.schedule import problem_files
from tests.doors import Door, csv_texts, pass_through, pick

SECONDS = st.floats(0.001, 1e6).map("{:.6g}".format)
JOULES = st.just("") | st.floats(0, 1e9).map("{:.6g}".format)
NO_ID = ["", " "]
NO_TIME = ["0", "-1", "nan", "inf", "x", "1e999", "1,5"]
NO_NUMBER = {"times": NO_TIME, "actual": NO_TIME, "energy": ["-1", "nan", "inf", "x"], "devices": ["-1", "1.5", "x", "1e9"],
             "jobs": ["-1", "x", "inf", "nan"]}


def _tables(data):
    """Draw a problem that can be scheduled, as the rows of its five files."""
    types = data.draw(st.lists(st.sampled_from(["cpu", "cuda:0", "gpu-x", "v100"]), min_size=1, max_size=3, unique=True))
    name = st.from_regex(r"[a-z0-9][a-z0-9._-]{0,6}", fullmatch=True).filter(lambda name: name not in NO_ID)
    ids = data.draw(st.lists(name, min_size=1, max_size=5, unique=True))

    def of_jobs(header, *cells):
        return [["job_id", *header], *([name, *data.draw(st.tuples(*cells))] for name in ids)]

    sampled = st.sampled_from
    devices = [[f"d{number}", name, pick(data, "123"), pick(data, ["", "1000"])] for number, name in enumerate(types)]
    return {"times": of_jobs(types, *[SECONDS] * len(types)), "actual": of_jobs(types, *[SECONDS] * len(types)),
            "devices": [["device", "type", "count", "memory_mb"], *devices],
            "jobs": of_jobs(["arrival_s", "deadline_s", "memory_mb"], sampled(["0", "1.5", ""]), sampled(["", "100"]),
                            st.just("10")),
            "energy": of_jobs([*types, "source"], *[JOULES] * len(types), sampled(["", "measured", "modelled", "assumed"]))}


def _wrong(file, rows, how, data):
    """Return the rows of a file with a wrong cell or row."""
    row = pick(data, rows[1:], "row")
    if how == "no id":
        row[0] = pick(data, NO_ID)
    elif how == "doubled":
        rows.append(list(row))
    elif how == "no number":
        row[pick(data, {"devices": [2], "jobs": [1, 3]}.get(file, range(1, len(row))))] = pick(data, NO_NUMBER[file])
    elif how == "a column less":
        return csv_texts.without(rows, 0 if file == "jobs" else pick(data, [0, 1]))  # jobs may lack the others
    return rows[:1] if how == "no row" else rows


def _reordered(rows, data):
    order = data.draw(st.permutations(range(len(rows[0]))), label="order")
    return csv_texts.written([[row[column] for column in order] for row in rows])


def _attempt(data, folder):
    paths = {name: folder / f"{name}.csv" for name in ("times", "devices", "jobs", "actual", "energy")}

    def read():
        problem = problem_files.read(*paths.values())
        return problem.predicted_s, problem.actual_s, problem.energy, astuple(problem.jobs), astuple(problem.fleet)

    tables = _tables(data)
    for name, rows in tables.items():
        paths[name].write_bytes(csv_texts.written(rows))
    expected, file = read(), pick(data, sorted(tables), "file")
    how, kind, content = csv_texts.drawn(tables[file], data, {how: partial(_wrong, file, tables[file], how, data) for how in (
        "no id", "doubled", "no number", "a column less", "no row")})
    if how == "as it is":
        content = _reordered(tables[file], data)
    paths[file].write_bytes(content)
    return pass_through(read, kind, f"{file}: {how}", expected)


DOOR = Door("problems of scheduling", _attempt)

"""Tables and files: strict, append-safe, never overwritten, readable after any death."""

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib import files, input_tables, locks, paths, store, tables
from lib.tables.column import number
from tests import refused
from tests.conftest import full_disk

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\r\n\x00"), min_size=1)
HEADER = ",".join(tables.columns("overheads"))


def overhead_row(value=1.0, what="launch"):
    return ["cpu", what, value, value, 3, "how", "h", "s"]


def appended(path, rows, table="overheads"):
    """Write rows one by one to a new file."""
    path.unlink(missing_ok=True)
    with closing(store.Appender(path, table)) as file:
        for row in rows:
            file.append(row)
    return path


@pytest.fixture
def frame():
    return pd.DataFrame([overhead_row()], columns=tables.columns("overheads"))


def test_the_dictionary_in_data_readme_is_the_schemas():
    page = (paths.ROOT / "data/README.md").read_text()
    assert page == tables.with_dictionary(page), "write it: python -m lib data dictionary --write"


def test_the_first_31_profile_columns_are_the_original_ones_in_order():
    original = ("run_id workload_id dataset model task_type split epoch batch_idx global_step batch_size channels dim1 dim2 "
                "dim3 device_type device_index num_workers precision data_time_ms forward_time_ms backward_time_ms "
                "step_time_ms data_time_pct forward_time_pct backward_time_pct images_per_sec loss lr cuda_mem_alloc_mb "
                "cuda_mem_reserved_mb wall_time_s").split()
    assert tables.columns("profile")[:31] == original


@given(rows=st.lists(st.tuples(st.floats(0, 1e9), TEXT), min_size=1, max_size=8))
def test_rows_come_back_as_they_were_written(tmp_path, rows):
    back = store.read(appended(tmp_path / "a.csv", [overhead_row(*row) for row in rows]), "overheads")
    assert back["median_us"].tolist() == pytest.approx([value for value, _ in rows])
    assert back["what"].tolist() == [text for _, text in rows]


@given(cut=st.integers(1, 400))
def test_a_file_torn_anywhere_gives_its_whole_rows(tmp_path, cut):
    path = appended(tmp_path / "a.csv", map(overhead_row, range(8)))
    content = path.read_bytes()
    kept = content[: max(len(content) - cut, content.index(b"\n") + 1)]
    path.write_bytes(kept)
    assert len(store.read(path, "overheads")) == kept.count(b"\n") - 1


def test_nothing_is_overwritten(tmp_path, frame):
    path = store.write(frame, tmp_path / "a.csv", "overheads")
    with refused("not overwritten"):
        store.write(frame, path, "overheads")
    with pytest.raises(FileExistsError):
        store.Appender(path, "overheads")


def test_a_table_that_does_not_fit_is_not_written(tmp_path, frame):
    with refused("n in row 1 is .*0.*: it takes a whole number of 1 or more"):
        store.write(frame.assign(n=0), tmp_path / "a.csv", "overheads")
    assert not (tmp_path / "a.csv").exists()


def test_a_full_disk_is_one_line_and_keeps_the_rows(tmp_path):
    words = r"cannot be written \(short write: the disk is full\); what was written before is kept"
    with full_disk(4096), refused(words):
        appended(tmp_path / "full.csv", map(overhead_row, range(10**6)))
    assert (tmp_path / "full.csv").read_bytes().endswith(b"\n"), "nothing of the last line"
    assert len(store.read(tmp_path / "full.csv", "overheads")) > 50


def test_damaged_json_is_refused(tmp_path):
    (tmp_path / "a.json").write_text("{")
    with refused("a.json is not readable JSON"):
        store.read_json(tmp_path / "a.json")


def test_line_breaks_in_a_text_become_spaces_so_that_a_line_is_a_row(tmp_path):
    path = appended(tmp_path / "a.csv", [overhead_row(what="one\r\ntwo\nthree\rfour")])
    assert path.read_bytes().count(b"\n") == 2
    assert store.read(path, "overheads")["what"].tolist() == ["one two three four"]


@pytest.mark.parametrize("text, what", [
    (f"{HEADER}\ncpu,launch,1,1,3,how,h,s,more\n", "line 2 has 9 fields, the header has 8"),
    (f"{HEADER},what\ncpu,launch,1,1,3,how,h,s,x\n", "column what is there twice"),
    ("a,b\n1,2\n", r"a.csv is no overheads table: missing columns \[.*, unknown columns \[a, b\]"),
    (f"{HEADER.replace('median_us', 'median_su')}\n",
     r"unknown columns \[median_su\]; it takes: .*; did you mean median_us\?"),
    (f"{HEADER},sauce\n", r"is no overheads table: unknown columns \[sauce\]; it takes"),
    (f"{HEADER}\ncpu,launch,True,1,3,how,h,s\n", "median_us in row 1 is .*True.*: it takes a finite number"),
    ("", "has no header"), (f"{HEADER}\ncpu,\udcff\n", "byte 66 is no UTF-8"),
    (f'{HEADER}\ncpu,"launch,1,1,3,how,h,s\n', "line 2: unexpected end of data"),
    (f"{HEADER}\ncpu,launch,1_0,1,3,how,h,s\n", "median_us in row 1 is '1_0': it takes a finite number"),
    (f"{HEADER}\ncpu,launch,1,1,1.5,how,h,s\n", "n in row 1 is .*1.5.*: it takes a whole number"),
    (HEADER + "\ncpu,launch,1,1,3,how,h,s" * 3 + '\ncpu,launch,"1,5",1,3,how,h,s\n',
     "in row 4 is '1,5': it takes a finite number")])
def test_a_csv_that_does_not_fit_its_table_is_refused(tmp_path, text, what):
    (tmp_path / "a.csv").write_text(text, errors="surrogateescape")
    with refused(what):
        store.read(tmp_path / "a.csv", "overheads")


@pytest.mark.parametrize("place", ["there.csv", "no/folder.csv", "folder", "dangling"])
def test_a_users_output_is_a_new_file_in_a_folder_that_is_there(tmp_path, monkeypatch, place):
    monkeypatch.chdir(tmp_path)
    Path("there.csv").write_text("input")
    Path("folder").mkdir()
    Path("dangling").symlink_to("nowhere")
    with refused(r"is not overwritten|there is no folder|is a folder"):
        files.check_new(Path(place))
    with refused(r"is not overwritten|there is no folder|is a folder"):
        files.create(Path(place), b"x")
    assert Path("there.csv").read_text() == "input"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dangling", "folder", "there.csv"], "nothing is left behind"


def test_a_device_that_is_being_measured_is_not_measured_again(home):
    with locks.device("cpu"), refused("device cpu is being measured by another process"), \
            locks.device("cpu", timeout_s=0.0):
        pass
    assert [path.stat().st_mode & 0o777 for path in (home / "locks").iterdir()] == [0o666], "for every user"


def test_locks_of_devices_lie_where_everybody_may_open_them(monkeypatch, tmp_path):
    tmp_path.chmod(0o1777)
    monkeypatch.setenv("LIB_LOCKS", str(tmp_path))
    assert locks.host_folder() == tmp_path
    assert tmp_path.stat().st_mode & 0o7777 == 0o1777, "a folder that somebody named keeps its mode"
    monkeypatch.delenv("LIB_LOCKS")
    monkeypatch.setattr(locks, "_SHARED", (str(tmp_path),))
    folder = locks.host_folder()
    assert folder.parent == tmp_path and folder.stat().st_mode & 0o7777 == 0o777


def test_a_table_comes_through_a_pipe_and_no_device_is_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with ThreadPoolExecutor(1) as pool:
        pool.submit((tmp_path / "pipe").write_text, "job_id,steps\na,2\n")
        table = input_tables.read(tmp_path / "pipe", tables.TABLES["jobs"])
    assert table[["job_id", "steps"]].to_numpy().tolist() == [["a", 2]]
    for place in (Path("/dev/null"), tmp_path):
        with refused("is no file"):
            input_tables.read(place, tables.TABLES["jobs"])


def test_a_device_is_not_replaced_by_a_file():
    with refused("is no regular file"):
        files.replace(Path("/dev/null"), b"x")


def people(tmp_path, text):
    (tmp_path / "people.csv").write_text(text)
    return input_tables.read(tmp_path / "people.csv", tables.TABLES["jobs"])


@pytest.mark.parametrize("text, what", [
    ("job_id,steps\na,1\n,1\n", "job_id in row 2 is empty: it takes a text"),
    ("job_id,steps\na,1\na,2\n", "job_id 'a' in row 2 is there twice"),
    ("job_id,steps\na,1e300\n", r"steps of 'a' is '1e300': it takes a whole number of 1 or more, at most 1e\+12, or nothing"),
    ("job_id,arrival_s\na,Infinity\n", "arrival_s of 'a' is 'Infinity'"),
    ("job_id,devices\nN/A,1\n", "job_id 'N/A' in row 1 stands for an empty cell"),
    ("job_id,devices\na,0\n", r"devices of 'a' is '0': it takes a whole number of 1 or more, at most 1e\+12, or nothing$"),
    ("job_id,steps\n<NA>,1\n", "job_id '<NA>' in row 1 stands for an empty cell"),
    ("job_id,steps\na\u200b,1\n", "in row 1 holds characters that are not printed"),
    ("job_id,steps\n\u00e9,1\ne\u0301,2\n", "in row 2 is there twice"),
    ("job_id;steps\na;1,5\n", "is separated by semicolons: save it separated by commas")])
def test_a_wrong_cell_of_a_table_that_people_write_is_refused_with_its_row(tmp_path, text, what):
    with refused(what):
        people(tmp_path, text)


def test_a_type_that_stands_for_an_empty_cell_is_blamed_on_its_own_table(tmp_path):
    (tmp_path / "devices.csv").write_text("device,type\nd,NA\n")
    with refused("devices.csv: type 'NA' in row 1 stands for an empty cell"):
        input_tables.read(tmp_path / "devices.csv", tables.TABLES["devices"])


def test_a_text_that_is_no_utf_8_is_refused_with_the_place(tmp_path):
    (tmp_path / "people.csv").write_bytes(b"job_id\n\xff\n")
    with refused("people.csv is not a readable CSV: byte 7 is no UTF-8"):
        input_tables.read(tmp_path / "people.csv", tables.TABLES["jobs"])


def test_a_table_that_people_write_is_read_with_its_blanks_and_quotes(tmp_path):
    table = people(tmp_path, '\n job_id , steps,workload_id\n\n a b ,2,"W1"\nc, "3", W2\n')
    assert table[["job_id", "steps", "workload_id"]].to_numpy().tolist() == [["a b", 2, "W1"], ["c", 3, "W2"]]


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_file_holds_rows_alone_and_no_notes_of_the_run(suffix):
    table = pd.DataFrame({"a": [1]})
    table.attrs["left_out"] = {"/home/somebody/secret.csv: no label": 1}
    assert b"somebody" not in store.encoded(table, suffix) and table.attrs


def test_damaged_parquet_and_parquet_of_other_columns_is_refused(tmp_path, frame):
    for name, other, words in (("more", frame.assign(sauce=1), r"unknown columns \[sauce\]"),
                               ("less", frame.drop(columns="n"), r"missing columns \[n\]")):
        other.to_parquet(tmp_path / f"{name}.parquet", index=False)
        with refused(words):
            store.read(tmp_path / f"{name}.parquet", "overheads")
    (tmp_path / "torn.parquet").write_bytes(store.encoded(frame, ".parquet")[:-9])
    with refused("torn.parquet is not readable Parquet"):
        store.read(tmp_path / "torn.parquet", "overheads")


OLDER = {"runs": "*/runs/*.csv", "networks": "*/networks/networks.parquet", "sweep": "*/sweeps/*/sweep.parquet"}


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize("table", OLDER)
def test_a_file_of_an_older_version_is_read_with_what_came_since_at_its_defaults(tmp_path, table, suffix):
    """As the version before wrote it: the columns that came since are not there."""
    frame = store.read(next(paths.REFERENCE.glob(OLDER[table])), table)
    later = [name for name, column in tables.TABLES[table].items() if column.default is not None]
    before = store.encoded(frame.drop(columns=later), suffix)
    path = tmp_path / f"older{suffix}"
    path.write_bytes(before)
    frame = store.read(path, table)
    assert list(frame) == tables.columns(table), "new columns come last"
    for column, default in (("energy_reason", tables.NO_ENERGY), ("energy_method", "not measured"), ("energy_n", 0)):
        assert (frame[column] == default).all()
    assert frame[["power_w", "idle_w"]].isna().all(axis=None)
    assert path.read_bytes() == before, "and the file stays as it is"


def test_no_row_is_appended_to_a_file_of_an_older_version(tmp_path, monkeypatch):
    path = appended(tmp_path / "cells.csv", [], "cells")
    before = path.read_bytes()
    monkeypatch.setitem(tables.TABLES, "cells", {**tables.TABLES["cells"], "more": number("more", default=0.0)})
    with refused(r"cells.csv is no cells table: missing columns \[more\]"):
        store.Appender(path, "cells", resume=True)
    assert path.read_bytes() == before
    assert list(store.read(path, "cells")) == tables.columns("cells")

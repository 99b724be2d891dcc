"""Tables and files: strict, append-safe, never overwritten, readable after any death."""

import errno
import io
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lib import columns, csv_files, files, input_tables, locks, paths, store, tables
from lib.errors import InputError

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\r\n\x00"), min_size=1)


def overhead_row(value=1.0, what="launch"):
    return ["cpu", what, value, value, 3, "how", "h", "s"]


def test_the_dictionary_in_data_readme_is_the_schemas():
    assert tables.dictionary().strip() in (paths.ROOT / "data" / "README.md").read_text()


def test_the_first_31_profile_columns_are_the_original_ones_in_order():
    original = ("run_id workload_id dataset model task_type split epoch batch_idx global_step batch_size channels dim1 dim2 "
                "dim3 device_type device_index num_workers precision data_time_ms forward_time_ms backward_time_ms "
                "step_time_ms data_time_pct forward_time_pct backward_time_pct images_per_sec loss lr cuda_mem_alloc_mb "
                "cuda_mem_reserved_mb wall_time_s").split()
    assert tables.columns("profile")[:31] == original
    assert tables.columns("profile")[31:] == ("loader_wait_ms h2d_ms optimizer_ms pipelined_ms energy_j peak_rss_mb threads "
                                              "warmup sync data_source hardware_id software_id tf32").split()


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30, deadline=None)
@given(rows=st.lists(st.tuples(st.floats(0, 1e9), TEXT), min_size=1, max_size=8))
def test_rows_come_back_as_they_were_written(tmp_path, rows):
    path = tmp_path / f"{time.monotonic_ns()}.csv"
    file = store.Appender(path, "overheads")
    for value, text in rows:
        file.append(overhead_row(value, text))
    file.close()
    back = store.read(path, "overheads")
    assert back["median_us"].tolist() == pytest.approx([value for value, _ in rows])
    assert back["what"].tolist() == [text for _, text in rows]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None)
@given(cut=st.integers(1, 400))
def test_a_file_torn_anywhere_gives_its_whole_rows(tmp_path, cut):
    path = tmp_path / f"{time.monotonic_ns()}.csv"
    file = store.Appender(path, "overheads")
    for number in range(8):
        file.append(overhead_row(number))
    file.close()
    content = path.read_bytes()
    kept = content[: max(len(content) - cut, content.index(b"\n") + 1)]
    path.write_bytes(kept)
    assert len(store.read(path, "overheads")) == kept.count(b"\n") - 1


def test_nothing_is_overwritten(tmp_path):
    path = tmp_path / "a.csv"
    frame = pd.DataFrame([overhead_row()], columns=tables.columns("overheads"))
    store.write(frame, path, "overheads")
    with pytest.raises(InputError, match="not overwritten"):
        store.write(frame, path, "overheads")
    with pytest.raises(FileExistsError):
        store.Appender(path, "overheads")


@pytest.mark.parametrize(("change", "words"), [
    (lambda f: f.drop(columns="n"), ["missing columns", "n"]),
    (lambda f: f.assign(sauce=1), ["unknown", "sauce"]),
    (lambda f: f.assign(median_us=-1.0), ["median_us", "-1.0"]),
    (lambda f: f.assign(median_us=float("inf")), ["median_us", "inf"]),
    (lambda f: f.assign(n=0), ["n", "0"]),
    (lambda f: f.assign(n="many"), ["many"]),
])
def test_tables_are_strict(tmp_path, change, words):
    frame = change(pd.DataFrame([overhead_row()], columns=tables.columns("overheads")))
    with pytest.raises(InputError) as error:
        store.write(frame, tmp_path / "a.csv", "overheads")
    assert not (tmp_path / "a.csv").exists()
    for word in words:
        assert word in str(error.value)


def test_foreign_and_empty_files_are_named(tmp_path):
    for content in (b"", b"a,b\n1,2\n", b"\xff\xfe\x00"):
        path = tmp_path / "x.csv"
        path.write_bytes(content)
        with pytest.raises(InputError, match="x.csv"):
            store.read(path, "overheads")
    with pytest.raises(InputError, match="profile, runs, ceilings, overheads"):
        tables.columns("dinner")


def test_a_killed_writer_loses_no_whole_row(tmp_path):
    program = textwrap.dedent("""
        import sys
        from pathlib import Path
        from lib import store
        file = store.Appender(Path(sys.argv[1]), "overheads")
        for number in range(10**9):
            file.append(["cpu", "launch", number, number, 3, "how" * 50, "h", "s"])
            if number == 100:
                print("ready", flush=True)
    """)
    path = tmp_path / "killed.csv"
    process = subprocess.Popen([sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"ready\n"
    time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    rows = store.read(path, "overheads")
    assert rows["median_us"].tolist() == list(range(len(rows)))
    assert len(rows) > 100


def test_a_full_disk_is_one_line_and_keeps_the_rows(tmp_path):
    program = textwrap.dedent("""
        import resource, signal, sys
        from pathlib import Path
        from lib import store
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        file = store.Appender(Path(sys.argv[1]), "overheads")
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        for number in range(10**6):
            file.append(["cpu", "launch", number, number, 3, "how", "h", "s"])
    """)
    path = tmp_path / "full.csv"
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert done.stderr.strip().splitlines()[-1].startswith("lib.errors.InputError")
    assert "cannot be written (short write: the disk is full); what was written before is kept" in done.stderr
    assert len(store.read(path, "overheads")) > 50


def test_json_is_replaced_in_one_step(tmp_path):
    path = tmp_path / "a.json"
    store.write_json({"a": 1}, path)
    with pytest.raises(TypeError):
        store.write_json({"a": object()}, path)
    assert store.read_json(path) == {"a": 1}
    assert list(tmp_path.iterdir()) == [path]
    path.write_text("{")
    with pytest.raises(InputError, match="a.json"):
        store.read_json(path)


def test_fresh_names_count_up():
    assert store.fresh_name("a", lambda name: name in {"a", "a-v2"}) == "a-v3"
    assert store.fresh_name("a", lambda name: False) == "a"


def test_line_breaks_in_a_text_become_spaces_so_that_a_line_is_a_row(tmp_path):
    file = store.Appender(tmp_path / "a.csv", "overheads")
    file.append(overhead_row(what="one\r\ntwo\nthree\rfour"))
    file.close()
    assert (tmp_path / "a.csv").read_bytes().count(b"\n") == 2
    assert store.read(tmp_path / "a.csv", "overheads")["what"].tolist() == ["one two three four"]


def test_a_file_has_one_writer_at_a_time(tmp_path):
    file = store.Appender(tmp_path / "a.csv", "overheads", resume=True)
    with pytest.raises(InputError, match="is being written by another process"):
        store.Appender(tmp_path / "a.csv", "overheads", resume=True)
    file.close()
    store.Appender(tmp_path / "a.csv", "overheads", resume=True).close()


HEADER = ",".join(tables.columns("overheads"))


@pytest.mark.parametrize(("text", "what"), [
    (f"{HEADER}\ncpu,launch,1,1,3,how,h,s,more\n", "line 2 has 9 fields, the header has 8"),
    (f"{HEADER}\ncpu,launch,1,1,3,how,h\n", "line 2 has 7 fields, the header has 8"),
    (f"{HEADER},what\ncpu,launch,1,1,3,how,h,s,x\n", "column what is there twice"),
    (f"{HEADER},\ncpu,launch,1,1,3,how,h,s,\n", "column 9 has no name"),
    ("\n\n", "has no header"), ("", "has no header"), (f"{HEADER}\ncpu,\0\n", "zero bytes"),
    (f'{HEADER}\ncpu,"launch,1,1,3,how,h,s\n', "line 2: unexpected end of data")])
def test_a_csv_whose_rows_do_not_fit_its_header_is_refused(tmp_path, text, what):
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(InputError, match=what):
        store.read(tmp_path / "a.csv", "overheads")


@pytest.mark.parametrize("place", ["there.csv", "no/folder.csv", "folder", "dangling", "."])
def test_a_users_output_is_a_new_file_in_a_folder_that_is_there(tmp_path, monkeypatch, place):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.csv").write_text("input")
    (tmp_path / "folder").mkdir()
    (tmp_path / "dangling").symlink_to("nowhere")
    with pytest.raises(InputError, match=r"is not overwritten|there is no folder|is a folder"):
        files.check_new(Path(place))
    if place in ("there.csv", "dangling"):
        with pytest.raises(InputError, match="is not overwritten"):
            files.create(Path(place), b"x")
    assert (tmp_path / "there.csv").read_text() == "input"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dangling", "folder", "there.csv"], "nothing is left behind"


def test_a_stream_is_written_to_and_stays_what_it_is(tmp_path):
    assert files.create(files.check_new(Path("/dev/null")), b"x").is_char_device()
    os.mkfifo(tmp_path / "pipe")
    with subprocess.Popen(["cat", str(tmp_path / "pipe")], stdout=subprocess.PIPE) as reader:
        files.create(files.check_new(tmp_path / "pipe"), b"through")
        assert reader.communicate()[0] == b"through"
    assert (tmp_path / "pipe").is_fifo()


def test_the_locks_of_devices_do_not_depend_on_the_temporary_folder(tmp_path, monkeypatch):
    monkeypatch.delenv("LIB_LOCKS", raising=False)
    before = locks.host_folder()
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert locks.host_folder() == before
    assert before.stat().st_mode & 0o777 == 0o777, "every user of the host may take them"


@pytest.mark.parametrize(("column", "text", "what"), [("warmup", "x", "True or False"), ("warmup", "1", "True or False"),
                                                      ("batch_size", "1.5", "whole number"), ("epoch", "", "epoch")])
def test_a_cell_of_another_type_is_refused_and_not_converted(tmp_path, column, text, what):
    reference = next((paths.REFERENCE).glob("*/profiles/*.csv"))
    lines = reference.read_text().splitlines()[:3]
    cells = lines[1].split(",")
    cells[tables.columns("profile").index(column)] = text
    (tmp_path / "a.csv").write_text("\n".join([lines[0], ",".join(cells), ""]))
    with pytest.raises(InputError, match=what):
        store.read(tmp_path / "a.csv", "profile")


def test_a_number_that_is_none_is_an_empty_field_and_older_files_are_read(tmp_path):
    file = store.Appender(tmp_path / "repeats.csv", "repeats")
    none = float("nan")
    row = ["a", 0, none, 0, 0, none, 0.0, 0.1, 0.0, 0.0, none, "failed", "why", none, none, "", ""]
    file.append(row)
    file.close()
    assert "nan" not in (tmp_path / "repeats.csv").read_text()
    (tmp_path / "older.csv").write_text((tmp_path / "repeats.csv").read_text().replace(",,", ",nan,"))
    for name in ("repeats.csv", "older.csv"):
        assert store.read(tmp_path / name, "repeats")[["latency_ms", "spread_ms"]].isna().all(axis=None)


@pytest.mark.parametrize(("cells", "what"), [
    ("True,1,3", "holds .*True.*, it takes a number"), ("1_0,1,3", "'1_0', it takes a number"), ("1,1,1e300", "fails in_range"),
    (f"1,1,{10**25}", "too large"), ("1,1,True", "it takes a whole number"), ("nan,1,3", "'nan', it takes a number"),
    ("Infinity,1,3", "inf"), ("1e999,1,3", "inf")])
def test_what_is_no_number_is_not_made_one(tmp_path, cells, what):
    (tmp_path / "a.csv").write_text(f"{HEADER}\ncpu,launch,{cells},how,h,s\n")
    with pytest.raises(InputError, match=what):
        store.read(tmp_path / "a.csv", "overheads")


def people(tmp_path, text, table="jobs"):
    (tmp_path / "people.csv").write_text(text)
    return input_tables.read(tmp_path / "people.csv", tables.TABLES[table])


@pytest.mark.parametrize(("text", "what"), [
    ("job_id,steps\na,1\n,1\n", "row 2 below the header has no job_id"), ("job_id\na\n \n", "row 2 below .* has no job_id"),
    *[(f"job_id,steps\na,1\n{word},1\n", f"row 2 below the header: job_id '{word}' stands for an empty cell")
      for word in ("NA", "N/A", "NaN", "nan", "null", "None")],
    ("job_id,steps\na,1\nb,1\n a ,1\n", "row 3 below the header: job_id 'a' is there twice"),
    ('job_id,steps\n"a\nb",1\n', "row 1 below the header: job_id .* not printed"), ("job_id\na\u202eb\n", "not printed"),
    ('job_id,workload_id\na,"W\x1b[31m1"\n', "row 1 below the header: workload_id .* not printed"),
    ("job_id,steps\na,1e300\n", "steps of 'a' is '1e300': it is a whole number of at most"),
    ("job_id,steps\na,1.5\n", "steps of 'a' is '1.5'"), ("job_id,arrival_s\na,Infinity\n", "arrival_s of 'a' is 'Infinity'"),
    ("job_id,arrival_s\na,NaN\n", "arrival_s of 'a' is 'NaN'"), ("job_id,arrival_s\na,-1e999\n", "of 'a' is '-1e999'"),
    ("job_id,steps\na,1,7\n", "line 2 has 3 fields, the header has 2"), ("job_id,steps,steps\na,1,7\n", "steps is there twice"),
    ('job_id,steps,arrival_s\n1, "2,3"\n', "line 2 has 2 fields, the header has 3")])
def test_a_wrong_cell_of_a_table_that_people_write_is_refused_with_its_row(tmp_path, text, what):
    with pytest.raises(InputError, match=what) as error:
        people(tmp_path, text)
    assert "\n" not in str(error.value)


def test_a_table_that_people_write_is_read_with_its_blanks_and_quotes(tmp_path):
    table = people(tmp_path, '\n job_id , steps,workload_id\n\n a b ,2,"W1"\nc, "3", W2\n')
    assert table["job_id"].tolist() == ["a b", "c"]
    assert table["steps"].tolist() == [2, 3]
    assert table["workload_id"].tolist() == ["W1", "W2"]
    key = tables.TABLES["jobs"][0]
    with pytest.raises(InputError, match="nothing else can have that name"):
        input_tables.read(tmp_path / "people.csv", (key, tables.Column("job_id", "float", "a device type")))


def test_actual_times_name_a_job_once_and_their_columns_do_not_shift(tmp_path):
    from lib.schedule import problem_files

    (tmp_path / "d.csv").write_text("device,type,count\nc,cpu,1\n")
    (tmp_path / "times.csv").write_text("job_id,cpu\n100,1\n101,2\n")
    for text, what in (("job_id,cpu\n100,1\n101,2\n100,3\n", "actual.csv: row 3 below the header: job_id '100' is there twice"),
                       ("job_id,cpu\n100,101,5\n101,100,7\n", "actual.csv: line 2 has 3 fields, the header has 2")):
        (tmp_path / "actual.csv").write_text(text)
        with pytest.raises(InputError, match=what):
            problem_files.read(tmp_path / "times.csv", tmp_path / "d.csv", actual=tmp_path / "actual.csv")


def test_people_name_devices_without_naming_one_twice(tmp_path):
    from lib.schedule import problem_files

    (tmp_path / "d.csv").write_text("device,type,count\nc,cpu,2\nc[0],cpu,1\n")
    with pytest.raises(InputError, match=r"two devices would be called 'c\[0\]'"):
        problem_files.read_fleet(tmp_path / "d.csv")
    (tmp_path / "d.csv").write_text("device,type,count\nc,cpu,9e18\nd,cpu,9e18\n")
    with pytest.raises(InputError, match="count of 'c' is '9e18'"):
        problem_files.read_fleet(tmp_path / "d.csv")


@pytest.fixture(scope="module")
def parquet():
    return store.encoded(pd.DataFrame([overhead_row()] * 50, columns=tables.columns("overheads")), ".parquet")


@pytest.mark.parametrize("length", [0, 4, 12, 0.5, 0.9, -1])
def test_parquet_that_is_cut_short_is_refused_in_one_line(tmp_path, parquet, length):
    (tmp_path / "a.parquet").write_bytes(parquet[: int(len(parquet) * length) if isinstance(length, float) else length])
    with pytest.raises(InputError, match=r"a\.parquet is not readable Parquet") as error:
        store.read(tmp_path / "a.parquet", "overheads")
    assert "\n" not in str(error.value)


def test_a_changed_bit_of_parquet_never_passes_for_a_measurement(tmp_path, parquet):
    (tmp_path / "b.parquet").write_bytes(parquet)
    expected = store.read(tmp_path / "b.parquet", "overheads")
    for at in range(4, len(parquet) - 8, 37):
        damaged = bytearray(parquet)
        damaged[at] ^= 0x10
        (tmp_path / "a.parquet").write_bytes(damaged)
        try:
            assert store.read(tmp_path / "a.parquet", "overheads").equals(expected), f"byte {at}"
        except InputError as error:
            assert "\n" not in str(error)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_text_of_two_lines_is_a_quote_that_did_not_end(tmp_path, suffix):
    path, frame = tmp_path / f"t{suffix}", pd.DataFrame([overhead_row()], columns=tables.columns("overheads"))
    path.write_bytes(store.encoded(frame.assign(what="launch,1.0\nlaunch"), suffix))
    with pytest.raises(InputError, match=r"column 'what', value 'launch,1.0\\nlaunch' fails one line"):
        store.read(path, "overheads")


def test_parquet_of_other_columns_and_of_too_many_rows_is_refused_by_its_footer(tmp_path, monkeypatch):
    frame = pd.DataFrame([overhead_row()], columns=tables.columns("overheads"))
    for name, other in (("more", frame.assign(sauce=1)), ("less", frame.drop(columns="n"))):
        other.to_parquet(tmp_path / f"{name}.parquet")
    with pytest.raises(InputError, match=r"unknown \[sauce\]"):
        store.read(tmp_path / "more.parquet", "overheads")
    with pytest.raises(InputError, match=r"missing \(or doubled\) columns \[n\]"):
        store.read(tmp_path / "less.parquet", "overheads")
    assert list(store.read_parquet(tmp_path / "more.parquet", ["n", "sauce"], others=True)) == ["n", "sauce"]
    (tmp_path / "folder.parquet").mkdir()
    with pytest.raises(InputError, match="is no file"):
        store.read(tmp_path / "folder.parquet", "overheads")
    pd.concat([frame] * 2000).to_parquet(tmp_path / "large.parquet", index=False)
    monkeypatch.setattr(csv_files, "LARGEST_MB", 0.01)
    with pytest.raises(InputError, match="holds 2,000 rows"):
        store.read(tmp_path / "large.parquet", "overheads")


def test_json_that_names_something_twice_is_refused(tmp_path):
    (tmp_path / "a.json").write_text('{"a": {"b": 1, "b": 2}}')
    with pytest.raises(InputError, match="'b' is there twice"):
        store.read_json(tmp_path / "a.json")


def test_csv_files_gives_rows_and_frames_alike(tmp_path):
    (tmp_path / "a.csv").write_text('\nname,value\n"x, y",1\n\nz,2\n')
    assert list(csv_files.rows(csv_files.text(tmp_path / "a.csv"), tmp_path)) == [["name", "value"], ["x, y", "1"], ["z", "2"]]
    assert csv_files.frame(tmp_path / "a.csv").to_dict("list") == {"name": ["x, y", "z"], "value": [1, 2]}


def test_an_error_is_one_printable_line_of_readable_length():
    error = InputError("file\n\x1b[31m" + "x" * 100_000 + " here; there are: a, b")
    assert str(error).startswith("file \\x1b[31mxxx")
    assert str(error).endswith("here; there are: a, b")
    assert len(str(error)) < 2100


def test_wide_headers_and_many_names_are_read_in_one_pass(tmp_path):
    wide = tmp_path / "wide.csv"
    wide.write_text(",".join(f"c{number}" for number in range(200_000)) + "\n")
    with pytest.raises(InputError, match="has 200,000 columns; a table has at most 10,000"):
        csv_files.read(wide)
    path = tmp_path / "names.json"
    path.write_text("{" + ",".join(f'"{number}":1' for number in range(300_000)) + ',"z":1,"z":2}')
    begin = time.monotonic()
    with pytest.raises(InputError, match="'z' is there twice"):
        store.read_json(path)
    assert time.monotonic() - begin < 30, "pairs are not compared with each other"


@pytest.mark.parametrize(("sign", "name"), [(";", "semicolons"), ("\t", "tabs")])
def test_another_separator_is_named(tmp_path, sign, name):
    path = tmp_path / "t.csv"
    path.write_text(f"job_id{sign}steps\na{sign}1,5\n")
    with pytest.raises(InputError, match=f"is separated by {name}: save it separated by commas"):
        input_tables.read(path, tables.TABLES["jobs"])


def test_what_has_no_end_is_not_read_to_its_end(monkeypatch):
    monkeypatch.setattr(csv_files, "_LARGEST_PIPE_MB", 1.0)
    with pytest.raises(InputError, match="/dev/zero gives more than 1 MB"):
        csv_files.read(Path("/dev/zero"))


def test_half_a_character_is_no_json(tmp_path):
    path = tmp_path / "half.json"
    for text, good in (('{"a\\ud800": 1}', False), ('["\\ud83d\\ude42"]', True), ('[["x\\uDFFF"]]', False)):
        path.write_text(text)
        if good:
            assert store.read_json(path) == ["🙂"]
        else:
            with pytest.raises(InputError, match="is not readable JSON"):
                store.read_json(path)


def test_one_name_in_two_spellings_of_unicode_is_there_twice(tmp_path):
    with pytest.raises(InputError, match="'café' is there twice"):
        people(tmp_path, "job_id,steps\ncaf\u00e9,1\ncafe\u0301,2\n")


def test_locks_of_devices_lie_where_everybody_may_open_them(monkeypatch, tmp_path):
    monkeypatch.delenv("LIB_LOCKS", raising=False)
    monkeypatch.setattr(locks, "_HOST", (str(tmp_path),))
    tmp_path.chmod(0o1777)
    folder = locks.host_folder()
    assert folder.parent == tmp_path and folder.stat().st_mode & 0o7777 == 0o777, "not sticky: Linux protects files there"
    folder.chmod(0o700)
    assert locks.host_folder().stat().st_mode & 0o7777 == 0o777


@pytest.mark.parametrize(("number", "words"), [(errno.ENOSPC, "free some space there"), (errno.EACCES, "permission"),
                                               (errno.EISDIR, "what was written before is kept$")])
def test_advice_fits_what_was_refused(number, words):
    with pytest.raises(InputError, match=words), files.writing(Path("x")):
        raise OSError(number, os.strerror(number))


OLDER = {"runs": "*/runs/*.csv", "networks": "*/networks/networks.parquet", "sweep": "*/sweeps/*/sweep.parquet"}


def older_file(folder, table, suffix, change=lambda frame: frame):
    """Write a table as the version before wrote it, by hand: the columns that came since are not there."""
    frame = store.read(next(paths.REFERENCE.glob(OLDER[table])), table)
    since = [column.name for column in tables.TABLES[table] if column.since > 1]
    path = folder / f"older{suffix}"
    path.write_bytes(store.encoded(change(frame.drop(columns=since)), suffix))
    return path


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize("table", OLDER)
def test_a_file_of_an_older_version_is_read_with_what_came_since_at_its_defaults(tmp_path, table, suffix):
    path = older_file(tmp_path, table, suffix)
    before = path.read_bytes()
    frame = store.read(path, table)
    assert list(frame) == tables.columns(table), "new columns come last"
    assert (frame["energy_reason"] == tables.NO_ENERGY).all()
    assert (frame["energy_method"] == "not measured").all()
    assert (frame["energy_n"] == 0).all()
    assert frame[["power_w", "idle_w"]].isna().all(axis=None)
    assert path.read_bytes() == before, "and the file stays as it is"
    written = store.write(frame, tmp_path / f"newer{suffix}", table)
    pd.testing.assert_frame_equal(store.read(written, table), frame)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize(("change", "what"), [
    (lambda frame: frame.assign(power_w=1.0), "missing"),  # some of the new columns: no version had that
    (lambda frame: frame.drop(columns="hardware_id"), "missing"), (lambda frame: frame.assign(more=1), "unknown"),
    (lambda frame: frame.rename(columns={"verdict": "Verdict"}), "Verdict")])
def test_whatever_no_version_wrote_is_refused(tmp_path, suffix, change, what):
    with pytest.raises(InputError, match=what):
        store.read(older_file(tmp_path, "networks", suffix, change), "networks")


def test_tables_grow_at_their_end_and_say_what_older_files_hold():
    for table, content in tables.TABLES.items():
        since = [column.since for column in content]
        assert since == sorted(since), f"{table}: a new column is appended"
        assert all(column.default is not None for column in content if column.since > 1), table
        defaults = pd.DataFrame({c.name: [c.default] for c in content if c.since > 1})
        if len(defaults.columns):
            later = tuple(column for column in content if column.since > 1)
            assert len(columns.validated(defaults, later, table, "the defaults")) == 1


def test_no_row_is_appended_to_a_file_of_an_older_version(tmp_path, monkeypatch):
    path = tmp_path / "cells.csv"
    store.Appender(path, "cells").close()
    before = path.read_bytes()
    grown = (*tables.CELLS, columns.Column("more", "float", "more", empty=True, since=2, default=float("nan")))
    monkeypatch.setitem(tables.TABLES, "cells", grown)
    with pytest.raises(InputError, match=r"missing columns \[more\]"):
        store.Appender(path, "cells", resume=True)
    assert path.read_bytes() == before
    assert list(store.read(path, "cells")) == tables.columns("cells")


@pytest.mark.parametrize(("column", "cell", "words"), [
    ("latency_ms", "1,5", r"holds '1,5', it takes a number \(at index 3"), ("latency_ms", "0x10", "holds '0x10'"),
    ("pin", "", r"holds nan, it takes True or False \(at index 3"), ("pin", "yes", "holds 'yes', it takes True or False")])
def test_the_cell_that_is_wrong_is_the_one_that_is_named(column, cell, words):
    own = (columns.Column("latency_ms", "float", "a time"), columns.Column("pin", "bool", "a switch"))
    frame = pd.DataFrame({"latency_ms": ["1.5"] * 5, "pin": ["True"] * 5})
    frame.loc[3, column] = cell
    text = io.StringIO(frame.to_csv(index=False))
    with pytest.raises(InputError, match=words):
        columns.validated(pd.read_csv(text, keep_default_na=False, na_values={"pin": [""]}), own, "t", "the file")

"""Tables and files: strict, append-safe, never overwritten, readable after any death."""

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

from lib import files, locks, paths, store, tables
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
                                              "warmup sync data_source hardware_id software_id").split()


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
    assert before.stat().st_mode & 0o1777 == 0o1777, "every user of the host may take them"


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
    row = ["a", 0, float("nan"), 0, 0, float("nan"), 0.0, 0.1, 0.0, 0.0, float("nan"), "failed", "why"]
    file.append(row)
    file.close()
    assert "nan" not in (tmp_path / "repeats.csv").read_text()
    (tmp_path / "older.csv").write_text((tmp_path / "repeats.csv").read_text().replace(",,", ",nan,"))
    for name in ("repeats.csv", "older.csv"):
        assert store.read(tmp_path / name, "repeats")[["latency_ms", "spread_ms"]].isna().all(axis=None)

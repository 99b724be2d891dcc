"""Versions of data: what is pushed comes back bit by bit; remotes that fail, torn manifests and other people lose nothing."""

import os
import re
import subprocess
import sys
import uuid
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lib import store
from lib.cli.main import main
from lib.errors import InputError
from lib.work import data_versions, remote


class Failing(MemoryFileSystem):
    """A remote that breaks after some calls; ``torn`` says that a write then leaves its first half."""

    protocol, store, pseudo_dirs = "failing", {}, [""]
    left, torn = None, False

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.removeprefix("failing:/"))

    def _call(self):
        if Failing.left is not None:
            Failing.left -= 1
            if Failing.left < 0:
                raise ConnectionError("the line broke\nhere")

    def info(self, path, **options):
        self._call()
        return super().info(path, **options)

    def ls(self, path, **options):
        self._call()
        return super().ls(path, **options)

    def cat_file(self, path, **options):
        self._call()
        return super().cat_file(path, **options)

    def pipe_file(self, path, value, **options):
        try:
            self._call()
        except ConnectionError:
            if Failing.torn:
                super().pipe_file(path, value[: len(value) // 2], **options)
            raise
        super().pipe_file(path, value, **options)


fsspec.register_implementation("failing", Failing, clobber=True)
FILES = {"a.csv": b"x,y\n1,2\n3,4\n", "resnet/dense.csv": b"x\n1\n", "resnet/power_log.log": b"1 2 3\n", "empty.json": b""}


@pytest.fixture
def address():
    """Give a remote of its own that never fails before it is told to."""
    Failing.left, Failing.torn = None, False
    yield f"failing://{uuid.uuid4().hex}"
    Failing.left, Failing.torn = None, False


def written(folder, contents):
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def contents(folder):
    """Return the files of a folder by name, hidden ones left out."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*"))
            if path.is_file() and not any(part.startswith(".") for part in path.relative_to(folder).parts)}


NAMES = st.from_regex(r"[a-z][a-z0-9.-]{0,6}(/[a-z][a-z0-9]{0,4})?", fullmatch=True)


@pytest.mark.parametrize("kind", ["local", "memory"])
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.dictionaries(NAMES.map("{}_x".format), st.binary(max_size=50), min_size=1, max_size=6), more=st.binary())
def test_what_is_pushed_comes_back(tmp_path, kind, data, more):
    work = tmp_path / uuid.uuid4().hex
    (work / "far").mkdir(parents=True)
    target = str(work / "far") if kind == "local" else f"memory://{work.name}"
    here, there = written(work / "here", data), work / "there"
    first = data_versions.push(here, f"{target}@b", "lab/x", "a source")
    assert set(first.carried) <= set(data)
    assert contents((data_versions.pull(there, f"{target}@b", "lab/x"), there)[1]) == data
    assert data_versions.pull(there, f"{target}@b", "lab/x").carried == ()
    assert data_versions.push(here, f"{target}@b", "lab/x").manifest == first.manifest
    written(there, {"more_x.bin": more})
    second = data_versions.push(there, f"{target}@b", "lab/x").manifest
    assert (first.manifest.number, second.number, first.manifest.source) == (1, 2, "a source")
    data_versions.pull(here, f"{target}@b", "lab/x")
    assert contents(here) == {**data, "more_x.bin": more}
    data_versions.pull(work / "old", f"{target}@b", "lab/x", version=1)
    assert contents(work / "old") == data


def test_a_manifest_says_rows_digests_source_and_utc(tmp_path, address):
    manifest = data_versions.push(written(tmp_path / "d", FILES), address, source="lab").manifest
    rows = {"a.csv": 2, "resnet/dense.csv": 1, "resnet/power_log.log": None, "empty.json": None}
    assert {entry.name: entry.rows for entry in manifest.files} == rows
    assert manifest.written_utc.endswith("+00:00")
    assert all(re.fullmatch("[0-9a-f]{64}", entry.sha256) for entry in manifest.files)


@pytest.mark.parametrize("torn", [False, True])
def test_a_push_that_fails_anywhere_leaves_the_last_version_and_goes_on(tmp_path, address, torn):
    changed, failed = {"a.csv": b"x,y\n5,6\n", "b.csv": b"x\n7\n"}, 0
    for calls in range(100):
        here, target = written(tmp_path / f"d{calls}", FILES), f"{address}/{calls}"
        data_versions.push(here, target)
        written(here, changed)
        Failing.left, Failing.torn = calls, torn
        try:
            data_versions.push(here, target)
            break
        except InputError as error:
            failed += 1
            assert re.fullmatch(r"failing://\w+/\d+ failed: ConnectionError: the line broke; what is there is.*", str(error))
        finally:
            Failing.left = None
        data_versions.pull(tmp_path / f"p{calls}", target)
        assert contents(tmp_path / f"p{calls}") == FILES
        data_versions.push(here, target)
        data_versions.pull(tmp_path / f"p{calls}", target)
        assert contents(tmp_path / f"p{calls}") == {**FILES, **changed}
    assert failed >= 10


def test_a_pull_that_fails_anywhere_changes_nothing_and_goes_on(tmp_path, address, monkeypatch):
    data_versions.push(written(tmp_path / "d", FILES), address)
    there, fetched = tmp_path / "there", []
    read = remote.Remote.read
    monkeypatch.setattr(remote.Remote, "read", lambda self, name, most: (fetched.append(name), read(self, name, most))[1])
    for calls in range(100):
        Failing.left = calls
        try:
            data_versions.pull(there, address)
        except InputError as error:
            assert "the line broke" in str(error)
            assert contents(there) == {}
        else:
            break
    assert calls >= 6
    assert contents(there) == FILES
    assert not (there / data_versions.SCRATCH).exists()
    objects = [name for name in fetched if name.startswith("objects/")]
    assert len(objects) < 2.5 * len(FILES)  # a file that is here already is not fetched again


def test_somebody_elses_version_is_pulled_before_one_is_pushed(tmp_path, address):
    data_versions.push(written(tmp_path / "a", FILES), address)
    data_versions.pull(tmp_path / "b", address)
    written(tmp_path / "b", {"b.csv": b"x\n1\n"})
    data_versions.push(tmp_path / "b", address)
    written(tmp_path / "a", {"a.csv": b"x,y\n9,9\n"})
    with pytest.raises(InputError, match="branch main has a version that .* does not come from"):
        data_versions.push(tmp_path / "a", address)
    with pytest.raises(InputError, match="does not come from"):
        data_versions.push(written(tmp_path / "c", {"c.csv": b"x\n"}), address)


def test_of_two_pushes_at_once_one_is_refused(tmp_path, address, monkeypatch):
    """The other one pushes between this one's look at the branch and its manifest."""
    data_versions.push(written(tmp_path / "a", FILES), address)
    data_versions.pull(tmp_path / "b", address)
    written(tmp_path / "a", {"of_a.csv": b"x\n1\n"})
    written(tmp_path / "b", {"of_b.csv": b"x\n1\n"})
    create = remote.Remote.create

    def late(self, name, content):
        monkeypatch.setattr(remote.Remote, "create", create)
        data_versions.push(tmp_path / "b", address)
        return create(self, name, content)

    monkeypatch.setattr(remote.Remote, "create", late)
    with pytest.raises(InputError, match="does not come from"):
        data_versions.push(tmp_path / "a", address)
    data_versions.pull(tmp_path / "a", address)
    assert data_versions.push(tmp_path / "a", address).manifest.number == 3
    data_versions.pull(tmp_path / "c", address)
    assert contents(tmp_path / "c") == {**FILES, "of_a.csv": b"x\n1\n", "of_b.csv": b"x\n1\n"}


def test_local_files_that_differ_are_named_and_stay(tmp_path, address):
    data_versions.push(written(tmp_path / "a", FILES), address)
    mine = {"a.csv": b"of my own", "resnet/dense.csv": FILES["resnet/dense.csv"]}
    written(tmp_path / "b", mine)
    with pytest.raises(InputError, match=r"1 files differ from version 1 of main and are not overwritten: a\.csv;"):
        data_versions.pull(tmp_path / "b", address)
    assert contents(tmp_path / "b") == mine


def test_a_file_edited_since_it_was_pulled_is_never_overwritten(tmp_path, address):
    data_versions.push(written(tmp_path / "a", FILES), address)
    data_versions.pull(tmp_path / "b", address)
    written(tmp_path / "a", {"a.csv": b"x,y\n0,0\n", "resnet/dense.csv": b"x\n2\n"})
    data_versions.push(tmp_path / "a", address)
    written(tmp_path / "b", {"a.csv": b"edited"})
    with pytest.raises(InputError, match=r"not overwritten: a\.csv;"):
        data_versions.pull(tmp_path / "b", address)
    assert contents(tmp_path / "b") == {**FILES, "a.csv": b"edited"}
    written(tmp_path / "b", {"a.csv": FILES["a.csv"]})
    data_versions.pull(tmp_path / "b", address)
    assert contents(tmp_path / "b") == contents(tmp_path / "a")


def test_a_file_that_a_version_lacks_does_not_come_back_by_a_folder_that_had_it(tmp_path, address):
    data_versions.push(written(tmp_path / "a", FILES), address)
    data_versions.pull(tmp_path / "b", address)
    written(tmp_path / "b", {"own.csv": b"x\n1\n"})
    for name in ("resnet/dense.csv", "resnet/power_log.log"):
        (tmp_path / "a" / name).unlink()
    data_versions.push(tmp_path / "a", address)
    transfer = data_versions.pull(tmp_path / "b", address)
    assert transfer.notes == ("removed, as version 2 of main lacks them: resnet/dense.csv, resnet/power_log.log",)
    left = {name: content for name, content in FILES.items() if not name.startswith("resnet")}
    assert contents(tmp_path / "b") == {**left, "own.csv": b"x\n1\n"}
    assert not (tmp_path / "b" / "resnet").exists()
    data_versions.push(tmp_path / "b", address)
    data_versions.pull(tmp_path / "c", address)
    assert contents(tmp_path / "c") == {**left, "own.csv": b"x\n1\n"}
    data_versions.pull(tmp_path / "c", address, version=1)
    assert contents(tmp_path / "c") == FILES, "the other way too"


def test_a_file_that_was_edited_is_not_removed_and_one_that_no_version_named_neither(tmp_path, address):
    data_versions.push(written(tmp_path / "a", FILES), address)
    data_versions.pull(tmp_path / "b", address)
    (tmp_path / "a" / "a.csv").unlink()
    data_versions.push(tmp_path / "a", address)
    written(tmp_path / "b", {"a.csv": b"edited\n", "b.csv": b"x\n"})
    with pytest.raises(InputError, match=r"1 files differ from version 2 of main and are not overwritten: a\.csv;"):
        data_versions.pull(tmp_path / "b", address)
    assert contents(tmp_path / "b") == {**FILES, "a.csv": b"edited\n", "b.csv": b"x\n"}
    (tmp_path / "b" / "a.csv").rename(tmp_path / "b" / "c.csv")
    data_versions.pull(tmp_path / "b", address)
    assert contents(tmp_path / "b") == {**{name: content for name, content in FILES.items() if name != "a.csv"},
                                        "b.csv": b"x\n", "c.csv": b"edited\n"}


@pytest.mark.parametrize("after", range(6))
def test_a_pull_that_was_cut_short_anywhere_leaves_nothing_that_the_next_version_lacks(tmp_path, address, monkeypatch, after):
    """A death while files are put in place: some are of the version before, some of the one after."""
    data_versions.push(written(tmp_path / "a", FILES), address)
    data_versions.pull(tmp_path / "b", address)
    (tmp_path / "a" / "empty.json").unlink()
    data_versions.push(written(tmp_path / "a", {"a.csv": b"x,y\n2,2\n", "b.csv": b"x\n2\n", "c.csv": b"x\n3\n"}), address)
    steps, calls = ("_remove", "_put", "_record_as"), []

    def dying(step):
        whole = getattr(data_versions, step)

        def call(*arguments):
            if len(calls) == after:
                raise KeyboardInterrupt
            calls.append(step)
            return whole(*arguments)
        return call

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        for step in steps:
            patch.setattr(data_versions, step, dying(step))
        data_versions.pull(tmp_path / "b", address)
    for name in ("b.csv", "resnet/dense.csv"):
        (tmp_path / "a" / name).unlink()
    data_versions.push(written(tmp_path / "a", {"a.csv": b"x,y\n3,3\n"}), address)
    data_versions.pull(tmp_path / "b", address)
    assert contents(tmp_path / "b") == contents(tmp_path / "a")
    assert not (tmp_path / "b" / data_versions.SCRATCH).exists()


def test_a_folder_is_one_remote_by_whatever_path(tmp_path, monkeypatch):
    (tmp_path / "far").mkdir()
    (tmp_path / "link").symlink_to("far")
    here = written(tmp_path / "here", FILES)
    data_versions.push(here, str(tmp_path / "far"))
    monkeypatch.chdir(tmp_path)
    targets = ("far", "./far/", "here/../far", "link", f"file://{tmp_path}/far", str(tmp_path / "far"))
    for number, target in enumerate(targets, 2):
        written(here, {"a.csv": f"x\n{number}\n".encode()})
        assert data_versions.push(here, target).manifest.number == number


def version_file(folder, number):
    return folder / "branches" / "main" / f"{number:06}.json"


@pytest.fixture
def local(tmp_path):
    """Give a local remote with one version, and its manifest's path."""
    (tmp_path / "far").mkdir()
    data_versions.push(written(tmp_path / "here", FILES), str(tmp_path / "far"))
    return version_file(tmp_path / "far", 1)


@pytest.mark.parametrize("length", [0, 1, 100, -1, -2])
def test_a_torn_manifest_is_no_version(tmp_path, local, length):
    whole = local.read_bytes().replace(b'"number": 1', b'"number": 2')
    version_file(tmp_path / "far", 2).write_bytes(whole[:length])
    transfer = data_versions.pull(tmp_path / "there", str(tmp_path / "far"))
    assert transfer.manifest.number == 1
    assert "version 2 of main is torn" in transfer.notes[0]
    with pytest.raises(InputError, match="branch main has no whole version 2; its manifests are: 1, 2"):
        data_versions.pull(tmp_path / "there", str(tmp_path / "far"), version=2)
    written(tmp_path / "here", {"a.csv": b"x,y\n"})
    assert data_versions.push(tmp_path / "here", str(tmp_path / "far")).manifest.number == 3


@pytest.mark.parametrize("name", ["../out", "/etc/out", "a/../../out", "a//out", ".version.json", ".pull/x", "a/.hidden",
                                  "a\\..\\b", "", "x" * 200, "a\nb", "/".join("abcdefghijkl")])
def test_a_name_that_leaves_the_folder_is_refused(tmp_path, local, name):
    content = store.read_json(local)
    content["files"][0]["name"] = name
    store.write_json(content, local)
    with pytest.raises(InputError, match="name = ") as error:
        data_versions.pull(tmp_path / "in" / "there", str(tmp_path / "far"))
    assert len(str(error.value).splitlines()) == 1
    assert not (tmp_path / "in").exists()


@pytest.mark.parametrize(("change", "words"), [
    ({"bytes": 10**10}, "less than or equal to 1000000000"), ({"sha256": "x"}, "sha256"), ({"rows": -1}, "rows"),
    ({"name": "A.CSV/b"}, "is there twice"), ({"name": "resnet/dense.csv"}, "is there twice"), ({"more": 1}, "unknown name")])
def test_manifests_that_do_not_fit_are_refused(tmp_path, local, change, words):
    content = store.read_json(local)
    content["files"][1].update(change)
    store.write_json(content, local)
    with pytest.raises(InputError, match=words):
        data_versions.pull(tmp_path / "there", str(tmp_path / "far"))
    assert not (tmp_path / "there").exists()


@pytest.mark.parametrize(("damage", "words"), [(lambda path: path.write_bytes(b"x" * path.stat().st_size), "is damaged"),
                                               (lambda path: path.write_bytes(b"x" * 10**5), "100,000 bytes"),
                                               (Path.unlink, "is missing")])
def test_a_damaged_object_is_never_put_in_place(tmp_path, local, damage, words):
    entry = next(one for one in store.read_json(local)["files"] if one["name"] == "a.csv")
    damage(tmp_path / "far" / "objects" / entry["sha256"])
    with pytest.raises(InputError, match=words):
        data_versions.pull(tmp_path / "there", str(tmp_path / "far"))
    assert contents(tmp_path / "there") == {}


def test_a_folder_that_is_a_link_is_not_written_through(tmp_path, local):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "resnet").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="resnet/dense.csv, resnet/power_log.log"):
        data_versions.pull(tmp_path / "there", str(tmp_path / "far"))
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_what_cannot_be_part_of_a_version_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    (tmp_path / "far").mkdir()
    for name, content, words in (("torn.csv", b"a,b\n1\n", "line 2 has 1 fields"), ("a b", b"", "cannot be part of a version"),
                                 ("t.parquet", b"PAR1", "not readable Parquet"), ("large", b"x" * 20, "a file .* at most")):
        with monkeypatch.context() as patch:
            if name == "large":
                patch.setattr(data_versions, "FILE_MB", 0.00001)
            with pytest.raises(InputError, match=words):
                data_versions.push(written(tmp_path / f"of {name}", {name: content}), str(tmp_path / "far"))
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "passwd").symlink_to("/etc/passwd")
    with pytest.raises(InputError, match="is a link"):
        data_versions.push(tmp_path / "links", str(tmp_path / "far"))
    (tmp_path / "none").mkdir()
    with pytest.raises(InputError, match="holds 0 files"):
        data_versions.push(tmp_path / "none", str(tmp_path / "far"))
    written(tmp_path / "own", {"x": b"", "far/y": b""})
    with pytest.raises(InputError, match="pushed into itself"):
        data_versions.push(tmp_path / "own", str(tmp_path / "own" / "far"))
    assert list((tmp_path / "far").iterdir()) == []


def test_a_full_disk_is_one_line_and_the_last_version_stays(tmp_path, local):
    program = ("import signal, sys\nfrom pathlib import Path\nfrom lib.work import data_versions\n"
               "from tests.conftest import full_disk\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
               "with full_disk(4096): getattr(data_versions, sys.argv[1])(Path(sys.argv[2]), sys.argv[3])")

    def run(*words):
        return subprocess.run([sys.executable, "-c", program, *map(str, words)], capture_output=True, text=True, check=False)

    written(tmp_path / "here", {"large": os.urandom(10_000)})
    failed = run("push", tmp_path / "here", tmp_path / "far")
    assert "cannot be written (File too large)" in failed.stderr.splitlines()[-1]
    data_versions.pull(tmp_path / "there", str(tmp_path / "far"))
    assert contents(tmp_path / "there") == FILES
    data_versions.push(tmp_path / "here", str(tmp_path / "far"))
    failed = run("pull", tmp_path / "there", tmp_path / "far")
    assert "cannot be written (File too large)" in failed.stderr.splitlines()[-1]
    assert contents(tmp_path / "there") == FILES
    data_versions.pull(tmp_path / "there", str(tmp_path / "far"))
    assert contents(tmp_path / "there") == contents(tmp_path / "here")


@pytest.mark.parametrize(("text", "parts"), [
    ("far", ("far", "main")), ("far@b", ("far", "b")), ("a@b/c", ("a@b/c", "main")), ("s3://b@v1", ("s3://b@v1", "main")),
    ("s3://b/@v1", ("s3://b/", "v1")), ("s3://b/x@v1.2", ("s3://b/x", "v1.2")),
    ("sftp://me@host/x", ("sftp://me@host/x", "main")), ("sftp://me@host/x@y", ("sftp://me@host/x", "y"))])
def test_remote_and_branch_are_told_apart(text, parts):
    assert data_versions.split(text) == parts


@pytest.mark.parametrize("text", ["", "@b", "x@", "x@ b", "x@../b", "x@.b"])
def test_what_is_no_remote_is_refused(text):
    with pytest.raises(InputError):
        data_versions.pull(Path("nowhere"), text)


@pytest.mark.parametrize(("words", "line"), [
    (["push", "foo://x"], "Protocol not known: foo"), (["push", "no/such/folder"], "there is no such folder; make it first"),
    (["pull", "s3://bucket/x"], "Install s3fs to access S3"), (["pull", "far@other"], "has no branch other; it has: main"),
    (["pull", "far", "--remote-dir", "../x"], "is no folder in far"), (["pull", "far", "--version", "9"], "no whole version 9"),
    (["push", "x" * 3000], "File name too long"), (["push", "far", "--local", "nowhere"], "nowhere: there is no such folder"),
    (["pull", "sftp://me:secret@host"], "sftp://***@host")])
def test_the_verb_says_in_one_line_what_is_wrong(tmp_path, local, monkeypatch, capsys, words, line):
    monkeypatch.chdir(tmp_path)
    assert main(["data", *words]) == 2
    error = capsys.readouterr().err
    assert line in error
    assert "secret" not in error
    assert len(error.splitlines()) == 1


def test_the_verb_carries_a_folder_there_and_back(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "far").mkdir()
    written(tmp_path / "here", FILES)
    assert main(["data", "push", "far@lab", "--local", "here", "--remote-dir", "a/b", "--source", "the lab's board"]) == 0
    assert "version 1 of lab" in (shown := capsys.readouterr().out)
    assert "4 files, 0.0 MB, 4 of them pushed; source: the lab's board" in shown
    assert main(["data", "pull", "far@lab", "--local", "there", "--remote-dir", "a/b"]) == 0
    assert "4 of them pulled" in capsys.readouterr().out
    assert contents(tmp_path / "there") == FILES


def test_a_version_after_which_there_can_be_none_is_refused(tmp_path):
    remote = tmp_path / "remote"
    (remote / "branches" / "main").mkdir(parents=True)
    (remote / "branches" / "main" / "999999.json").touch()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.txt").write_text("1")
    with pytest.raises(InputError, match="holds a version 999999, after which there can be none"):
        data_versions.push(tmp_path / "data", str(remote))

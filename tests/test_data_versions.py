"""Versions of data: what is pushed comes back bit by bit; remotes that fail, torn manifests and other people lose nothing."""

import hashlib
import math
import os
import re
import uuid
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given
from hypothesis import strategies as st

from lib import store
from lib.errors import InputError
from lib.work import data_versions, remote
from lib.work.data_versions import pull, push
from tests import output_of, refusal, refused, written
from tests.conftest import full_disk


class Failing(MemoryFileSystem):
    """A remote that breaks after some calls; ``torn`` says that a write then leaves its first half."""

    protocol, store, pseudo_dirs = "failing", {}, [""]
    left, torn = math.inf, False

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.removeprefix("failing:/"))

    def __getattribute__(self, name):
        method = super().__getattribute__(name)

        def call(path, *value, **options):
            Failing.left -= 1
            if Failing.left >= 0:
                return method(path, *value, **options)
            if Failing.torn and name == "pipe_file":
                method(path, value[0][: len(value[0]) // 2], **options)
            raise ConnectionError("the line broke\nhere")

        return call if name in ("info", "ls", "cat_file", "pipe_file") else method


fsspec.register_implementation("failing", Failing, clobber=True)
FILES = {"a.csv": b"x,y\n1,2\n3,4\n", "resnet/dense.csv": b"x\n1\n", "resnet/power_log.log": b"1 2 3\n", "empty.json": b""}


def contents(folder):
    """Return the files of a folder by name, hidden ones left out."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*"))
            if path.is_file() and not any(part.startswith(".") for part in path.relative_to(folder).parts)}


@pytest.fixture
def address():
    """Give a remote of its own that never fails before it is told to."""
    Failing.left, Failing.torn = math.inf, False
    return f"failing://{uuid.uuid4().hex}"


@pytest.fixture
def pair(tmp_path, address):
    """Give two folders that have the first version of a remote."""
    a, b = written(tmp_path / "a", FILES), tmp_path / "b"
    push(a, address)
    pull(b, address)
    return a, b


NAMES = st.from_regex(r"[a-z][a-z0-9.-]{0,6}(/[a-z][a-z0-9]{0,4})?", fullmatch=True)


@given(data=st.dictionaries(NAMES.map("{}_x".format), st.binary(max_size=50), min_size=1, max_size=6), more=st.binary())
@pytest.mark.slow
def test_what_is_pushed_comes_back(tmp_path, data, more):
    work = tmp_path / uuid.uuid4().hex
    (work / "far").mkdir(parents=True)
    target = f"{work / 'far'}@b"
    here, there = written(work / "here", data), work / "there"
    first = push(here, target, "lab/x", "a source")
    assert set(first.carried) <= set(data)
    pull(there, target, "lab/x")
    assert contents(there) == data
    assert pull(there, target, "lab/x").carried == ()
    assert push(here, target, "lab/x").manifest == first.manifest
    written(there, {"more_x.bin": more})
    second = push(there, target, "lab/x").manifest
    assert first.manifest.number == 1 and second.number == 2 and first.manifest.source == "a source"
    pull(here, target, "lab/x")
    assert contents(here) == {**data, "more_x.bin": more}
    pull(work / "old", target, "lab/x", version=1)
    assert contents(work / "old") == data


@pytest.mark.slow
def test_an_s3_compatible_bucket_is_a_remote(tmp_path, monkeypatch):
    pytest.importorskip("s3fs", reason="s3:// needs: pip install -e '.[s3]'")
    server = pytest.importorskip("moto.server", reason="the local S3 server: pip install 'moto[server]==5.2.5'")
    import boto3

    served = server.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    served.start()
    try:
        address, configured = "http://{}:{}".format(*served.get_host_and_port()), {}
        fsspec.config.set_conf_env(configured, {  # as docs/measuring.md tells
            "FSSPEC_S3_ENDPOINT_URL": address, "FSSPEC_S3_KEY": "token", "FSSPEC_S3_SECRET": "token"})
        monkeypatch.setitem(fsspec.config.conf, "s3", configured["s3"])
        boto3.client("s3", endpoint_url=address, aws_access_key_id="token", aws_secret_access_key="token",
                     region_name="us-east-1").create_bucket(Bucket="repository")
        here, there = written(tmp_path / "a", FILES), tmp_path / "b"
        assert push(here, "s3://repository/@lab").manifest.number == 1
        pull(there, "s3://repository/@lab")
        assert contents(there) == FILES
    finally:
        served.stop()


@pytest.mark.parametrize("torn", [False, True])
def test_a_push_that_fails_anywhere_leaves_the_last_version_and_goes_on(tmp_path, address, torn):
    changed = {"a.csv": b"x,y\n5,6\n", "b.csv": b"x\n7\n"}
    for calls in range(100):
        here, there, target = written(tmp_path / f"d{calls}", FILES), tmp_path / f"p{calls}", f"{address}/{calls}"
        push(here, target)
        written(here, changed)
        Failing.left, Failing.torn = calls, torn
        try:
            push(here, target)
            break
        except InputError as error:
            assert re.fullmatch(r"failing://\w+/\d+ failed: ConnectionError: the line broke; what is there is.*", str(error))
        finally:
            Failing.left = math.inf
        pull(there, target)
        assert contents(there) == FILES
        push(here, target)
        pull(there, target)
        assert contents(there) == {**FILES, **changed}
    assert calls >= 10


def test_a_pull_that_fails_anywhere_changes_nothing_and_goes_on(tmp_path, address):
    push(written(tmp_path / "d", FILES), address)
    there = tmp_path / "there"
    for calls in range(100):
        Failing.left = calls
        try:
            pull(there, address)
            break
        except InputError as error:
            assert "the line broke" in str(error)
            assert contents(there) == {}
    assert calls >= 6
    assert contents(there) == FILES
    assert not (there / data_versions.SCRATCH).exists()


def test_of_two_pushes_at_once_one_is_refused(pair, tmp_path, address, monkeypatch):
    """The other one pushes between this one's look at the branch and its manifest."""
    of_a, of_b, create = {"of_a.csv": b"x\n1\n"}, {"of_b.csv": b"x\n1\n"}, remote.Remote.create
    a, b = (written(folder, more) for folder, more in zip(pair, (of_a, of_b), strict=True))

    def late(self, name, content):
        monkeypatch.setattr(remote.Remote, "create", create)
        push(b, address)
        return create(self, name, content)

    monkeypatch.setattr(remote.Remote, "create", late)
    for _ in range(2):  # the second one finds the other's version there
        with refused("branch main has a version that .* does not come from"):
            push(a, address)
    pull(a, address)
    assert push(a, address).manifest.number == 3
    pull(tmp_path / "c", address)
    assert contents(tmp_path / "c") == {**FILES, **of_a, **of_b}


def test_files_that_differ_in_a_folder_that_was_never_pulled_into_are_named_and_stay(pair, tmp_path, address):
    mine = {"a.csv": b"of my own", "resnet/dense.csv": FILES["resnet/dense.csv"]}
    with refused(r"1 files differ from version 1 of main and are not overwritten: a\.csv;"):
        pull(written(tmp_path / "c", mine), address)
    assert contents(tmp_path / "c") == mine


def test_a_file_that_a_version_lacks_is_removed_unless_it_was_edited_or_no_version_named_it(pair, tmp_path, address):
    a, b = pair
    for name in FILES.keys() - {"empty.json"}:
        (a / name).unlink()
    push(a, address)
    written(b, edited := {"a.csv": b"x\n9\n", "own.csv": b"x\n1\n"})
    with refused(r"1 files differ from version 2 of main and are not overwritten: a\.csv;"):
        pull(b, address)
    assert contents(b) == {**FILES, **edited}
    (b / "a.csv").rename(b / "c.csv")
    notes = pull(b, address).notes
    assert notes == ("removed, as version 2 of main lacks them: resnet/dense.csv, resnet/power_log.log",)
    assert not (b / "resnet").exists()
    left = {"empty.json": b"", "c.csv": edited["a.csv"], "own.csv": edited["own.csv"]}
    push(b, address)
    pull(tmp_path / "c", address)
    assert contents(b) == contents(tmp_path / "c") == left, "what it lacked does not come back"


@pytest.mark.parametrize("after", range(6))
def test_a_pull_that_was_cut_short_anywhere_leaves_nothing_that_the_next_version_lacks(pair, address, monkeypatch, after):
    """A death while files are put in place: some are of the version before, some of the one after."""
    a, b = pair
    (a / "empty.json").unlink()
    push(written(a, {"a.csv": b"x,y\n2,2\n", "b.csv": b"x\n2\n", "c.csv": b"x\n3\n"}), address)
    calls = []

    def dying(step):
        whole = getattr(data_versions, step)

        def call(*arguments):
            if len(calls) == after:
                raise KeyboardInterrupt
            calls.append(step)
            return whole(*arguments)
        return call

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        for step in ("_remove", "_put", "_write_record"):
            patch.setattr(data_versions, step, dying(step))
        pull(b, address)
    (a / "b.csv").unlink()
    push(written(a, {"a.csv": b"x,y\n3,3\n"}), address)
    pull(b, address)
    assert contents(b) == contents(a)
    assert not (b / data_versions.SCRATCH).exists()


def version_file(folder, number):
    return folder / f"branches/main/{number:06}.json"


@pytest.fixture
def local(tmp_path, monkeypatch):
    """Give a local remote ``far``, which has the first version of the folder ``here``; it is named from beside them."""
    (tmp_path / "far").mkdir()
    push(written(tmp_path / "here", FILES), str(tmp_path / "far"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "far"


@pytest.mark.parametrize("length", [0, -2])
def test_a_torn_manifest_is_no_version(tmp_path, local, length):
    whole = version_file(local, 1).read_bytes().replace(b'"number": 1', b'"number": 2')
    version_file(local, 2).write_bytes(whole[:length])
    transfer = pull(tmp_path / "there", "far")
    assert transfer.manifest.number == 1
    assert "version 2 of main is torn" in transfer.notes[0]
    with refused("branch main has no whole version 2; its manifests are: 1, 2"):
        pull(tmp_path / "there", "far", version=2)
    assert push(written(tmp_path / "here", {"a.csv": b"x,y\n"}), "far").manifest.number == 3


@pytest.mark.parametrize("change, words", [
    *(({"name": name}, "name = ") for name in ("../out", "/etc/out", "a/../../out", ".version.json", "a\\..\\b", "a\nb")),
    ({"bytes": 10**10}, "less than or equal to 1000000000"), ({"sha256": "x"}, "sha256"), ({"rows": -1}, "rows"),
    ({"name": "A.CSV/b"}, "is there twice"), ({"more": 1}, "unknown name")])
def test_manifests_that_do_not_fit_and_names_that_leave_the_folder_are_refused(tmp_path, local, change, words):
    content = store.read_json(version_file(local, 1))
    content["files"][1].update(change)
    store.write_json(content, version_file(local, 1))
    with refused(words):
        pull(tmp_path / "in/there", "far")
    assert not (tmp_path / "in").exists()


@pytest.mark.parametrize("damage, words", [(lambda path: path.write_bytes(b"x" * path.stat().st_size), "is damaged"),
                                               (Path.unlink, "is missing")])
def test_a_damaged_object_is_never_put_in_place(tmp_path, local, damage, words):
    damage(local / "objects" / hashlib.sha256(FILES["a.csv"]).hexdigest())
    with refused(words):
        pull(tmp_path / "there", "far")
    assert contents(tmp_path / "there") == {}


def test_a_folder_that_is_a_link_is_not_written_through(tmp_path, local):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "there").mkdir()
    (tmp_path / "there/resnet").symlink_to(tmp_path / "elsewhere")
    with refused("resnet/dense.csv, resnet/power_log.log"):
        pull(tmp_path / "there", "far")
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_what_cannot_be_part_of_a_version_is_refused_before_anything_is_written(tmp_path, local, monkeypatch):
    monkeypatch.setattr(data_versions, "FILE_MB", 0.0002)
    before, folders = contents(local), {"links": "is a link", "none": "holds 0 files", "": "pushed into itself"}
    for name, content, words in (("torn.csv", b"a,b\n1\n", "line 2 has 1 fields"), ("a b", b"", "cannot be part of a version"),
                                 ("large", bytes(201), "a file .* at most")):
        written(tmp_path / name, {name: content})
        folders[name] = words
    for name in ("links", "none"):
        (tmp_path / name).mkdir()
    (tmp_path / "links/passwd").symlink_to("/etc/passwd")
    for folder, words in folders.items():
        with refused(words):
            push(tmp_path / folder, "far")
    assert contents(local) == before


def test_a_full_disk_is_one_line_and_the_last_version_stays(tmp_path, local):
    here, there = written(tmp_path / "here", {"large": os.urandom(10_000)}), tmp_path / "there"
    with full_disk(4096), refused(r"cannot be written \(File too large\)"):
        push(here, "far")
    pull(there, "far")
    assert contents(there) == FILES
    push(here, "far")
    with full_disk(4096), refused(r"cannot be written \(File too large\)"):
        pull(there, "far")
    assert contents(there) == FILES
    pull(there, "far")
    assert contents(there) == contents(here)


@pytest.mark.parametrize("words, line", [
    ("pull x@", "is no REMOTE[@branch]"), ("push foo://x", "Protocol not known: foo"),
    ("push no/such/folder", "there is no such folder; make it first"),
    ("pull gcs://bucket/x", "install gcsfs to access Google Storage"),
    ("pull far@other", "has no branch other; it has: main"), ("pull far --remote-dir ../x", "is no folder in far"),
    ("pull far --version 9", "no whole version 9"), ("push far --local nowhere", "nowhere: there is no such folder"),
    ("pull sftp://me:secret@host", "sftp://***@host")])
def test_the_verb_says_in_one_line_what_is_wrong(local, words, line):
    error = refusal("data", *words.split())
    assert line in error and "secret" not in error


def test_the_verb_carries_a_folder_there_and_back(tmp_path, local):
    where = "far@lab", "--remote-dir", "a/b", "--local"
    shown = output_of("data", "push", *where, "here", "--source", "the lab's board")
    assert "version 1 of lab" in shown
    assert re.search(r"4 files, [\d.]+ kB, 4 of them pushed; source: the lab's board", shown)
    assert "4 of them pulled" in output_of("data", "pull", *where, "there")
    assert contents(tmp_path / "there") == FILES
    manifest = store.read_json(local / "a/b/branches/lab/000001.json")
    assert {entry["name"]: entry["rows"] for entry in manifest["files"]} == {
        "a.csv": 2, "resnet/dense.csv": 1, "resnet/power_log.log": None, "empty.json": None}

"""Copies of a folder at a URL: what is pushed comes back; interrupted, damaged and unsafe copies are refused."""

import math
import uuid
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from lib.errors import InputError
from lib.work.data_copy import LISTING, pull, push
from tests import output_of, refusal, refused, written

FILES = {"a.csv": b"x,y\n1,2\n3,4\n", "resnet/dense.csv": b"x\n1\n", "resnet/power_log.log": b"1 2 3\n", "empty.json": b""}


class Failing(MemoryFileSystem):
    """A store whose connection breaks after some calls."""

    protocol, store, pseudo_dirs = "failing", {}, [""]
    left = math.inf

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.removeprefix("failing:/"))

    def __getattribute__(self, name):
        method = super().__getattribute__(name)

        def call(*values, **options):
            Failing.left -= 1
            if Failing.left < 0:
                raise ConnectionError("the line broke\nhere")
            return method(*values, **options)

        return call if name in ("rm_file", "put_file", "makedirs", "pipe_file", "cat_file", "get_file") else method


fsspec.register_implementation("failing", Failing, clobber=True)


def contents(folder):
    """Return the files of a folder by name, without hidden ones and the listing."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*"))
            if path.is_file() and path.name != LISTING and not path.name.startswith(".")}


@pytest.fixture
def url():
    """Give a store that never fails before it is told to."""
    Failing.left = math.inf
    return f"failing://{uuid.uuid4().hex}"


@pytest.fixture
def copied(tmp_path):
    """Give two folders with the same copy, made through a third one."""
    here, far, there = written(tmp_path / "here", {**FILES, ".hidden/x": b"1"}), tmp_path / "far", tmp_path / "there"
    assert output_of("data", "push", here, far).startswith("4 files")
    assert output_of("data", "pull", far, there).startswith("4 files")
    assert contents(there) == contents(far) == FILES, "hidden files stay here"
    return here, far, there


def test_an_update_is_pulled_and_files_that_were_edited_are_named_and_stay(copied):
    here, far, there = copied
    push(written(here, {"a.csv": b"new", "b.csv": b"more"}), str(far))
    written(there, {"resnet/dense.csv": b"of my own", "c.csv": b"another"})
    with refused("resnet/dense.csv differs from the copy and is not overwritten; move it away"):
        push(written(here, {"resnet/dense.csv": b"x\n2\n"}), str(far))
        pull(str(far), there)
    assert (there / "a.csv").read_bytes() == FILES["a.csv"], "nothing was changed"
    (there / "resnet/dense.csv").unlink()
    pull(str(far), there)
    assert contents(there) == {**FILES, "a.csv": b"new", "b.csv": b"more", "resnet/dense.csv": b"x\n2\n", "c.csv": b"another"}


def test_a_push_that_breaks_anywhere_is_never_taken_for_a_copy_and_goes_on(tmp_path, url):
    here = written(tmp_path / "here", FILES)
    for calls in range(100):
        Failing.left = calls
        try:
            push(here, f"{url}/{calls}")
            break
        except InputError as error:
            assert "the line broke; no complete copy is there: push again" in str(error)
        Failing.left = math.inf
        with refused("holds no complete copy of a folder"):
            pull(f"{url}/{calls}", tmp_path / "there")
        push(here, f"{url}/{calls}")
    assert calls > 2 * len(FILES)


def test_a_pull_that_breaks_anywhere_leaves_no_torn_file_and_no_listing_and_goes_on(tmp_path, url):
    push(written(tmp_path / "here", FILES), url)
    for calls in range(100):
        Failing.left = calls
        try:
            pull(url, tmp_path / "there")
            break
        except InputError as error:
            assert "the line broke" in str(error)
        assert contents(tmp_path / "there").items() <= FILES.items() and not (tmp_path / "there" / LISTING).exists()
    assert calls >= 2 and contents(tmp_path / "there") == FILES, "each pull went on where the last one ended"


@pytest.mark.parametrize("damage, words", [
    (lambda far: (far / "a.csv").write_bytes(b"x" * 12), "a.csv is damaged there; push it again"),
    (lambda far: (far / "a.csv").unlink(), "a.csv cannot be copied: FileNotFoundError"),
    *((lambda far, name=name: (far / LISTING).write_text(f"{'0' * 64}  {name}\n"), "leads out of the folder")
      for name in ("../out", "/etc/out", "a/../../out")),
    *((lambda far, text=text: (far / LISTING).write_bytes(text), "far holds no complete copy of a folder: .*" + words)
      for text, words in ((b"<html>", "a line '<html>', which is no SHA-256"), (b"\xff", "UnicodeDecodeError"),
                          (b"", "line ''"))),
    (lambda far: (far / LISTING).write_text(f"{'0' * 64}  a/.git/hooks/x\n"), "'a/.git/hooks/x' is hidden")])
def test_damaged_copies_and_names_that_leave_the_folder_are_refused(tmp_path, copied, damage, words):
    damage(copied[1])
    with refused(words):
        pull(str(copied[1]), tmp_path / "new")
    assert "a.csv" not in contents(tmp_path / "new")


def test_any_printable_name_is_copied_and_one_of_control_characters_is_refused(tmp_path):
    here = written(tmp_path / "here", {"a\u2028b.csv": b"1", "ä b": b"2"})
    assert list(push(here, str(tmp_path / "far"))) == list(pull(str(tmp_path / "far"), tmp_path / "there"))
    with refused(r"here holds 'a\\nb', whose name has control characters"):
        push(written(here, {"a\nb": b""}), str(tmp_path / "far"))
    (tmp_path / "there" / LISTING).write_bytes(b"\xff")
    with refused("checksums.sha256 is damaged: .*; remove it"):
        pull(str(tmp_path / "far"), tmp_path / "there")


def test_links_are_neither_copied_nor_followed(copied):
    here, far, _ = copied
    (here / "passwd").symlink_to("/etc/passwd")
    push(here, str(far))
    assert not (far / "passwd").exists()
    new = written(here.parent / "new", {"elsewhere/x": b""})
    (new / "resnet").symlink_to("/tmp")
    with refused("leads out of the folder"):
        pull(str(far), new)


@pytest.mark.slow
def test_a_bucket_of_an_s3_server_is_a_url(tmp_path, monkeypatch):
    pytest.importorskip("s3fs", reason="s3:// needs: pip install -e '.[s3]'")
    server = pytest.importorskip("moto.server", reason="the local S3 server: pip install 'moto[server]==5.2.5'")
    import boto3

    served = server.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    served.start()
    try:
        address, configured = "http://{}:{}".format(*served.get_host_and_port()), {}
        fsspec.config.set_conf_env(configured, {  # as docs/layer_power.md says
            "FSSPEC_S3_ENDPOINT_URL": address, "FSSPEC_S3_KEY": "token", "FSSPEC_S3_SECRET": "token"})
        monkeypatch.setitem(fsspec.config.conf, "s3", configured["s3"])
        boto3.client("s3", endpoint_url=address, aws_access_key_id="token", aws_secret_access_key="token",
                     region_name="us-east-1").create_bucket(Bucket="repository")
        push(written(tmp_path / "a", FILES), "s3://repository/lab")
        pull("s3://repository/lab", tmp_path / "b")
        assert contents(tmp_path / "b") == FILES
    finally:
        served.stop()


@pytest.mark.parametrize("words, line", [
    (["push", "here", "foo://x"], "Protocol not known: foo"), (["push", "none", "far"], "none holds no files"),
    (["pull", "nowhere", "new"], "nowhere holds no complete copy of a folder"),
    (["pull", "sftp://me:secret@host", "new"], "sftp://***@host")])
def test_the_verb_says_in_one_line_what_is_wrong(copied, monkeypatch, words, line):
    monkeypatch.chdir(copied[0].parent)
    error = refusal("data", *words)
    assert line in error and "secret" not in error
    assert not Path("new").exists()

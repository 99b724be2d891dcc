"""Datasets: real classes on real and synthetic files, odd last batches, damaged files."""

import hashlib
import io
import pickle
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from lib import __main__, paths, tables
from lib.config import definitions
from lib.config.definitions import Workload
from lib.errors import InputError
from lib.work import datasets, medmnist_files, workloads


def small(dataset="organmnist3d", size=28, **more):
    return Workload(id="X", dataset=dataset, size=size, model="cnn3d", batch_size=4, **more)


@pytest.mark.parametrize(("dataset", "size", "native", "resized"), [
    ("pathmnist", 28, 28, 28), ("pathmnist", 64, 64, 28), ("chestmnist", 112, 128, 28), ("chestmnist", 224, 224, 28),
    ("chestmnist", 300, 224, 28), ("organmnist3d", 28, 28, 28), ("organmnist3d", 64, 64, 28), ("organmnist3d", 100, 64, 28)])
def test_native_sizes(dataset, size, native, resized):
    assert medmnist_files.native_size(dataset, size, "native") == native
    assert medmnist_files.native_size(dataset, size, "resized") == resized


@pytest.mark.parametrize("workload", [definitions.workload(name) for name in ("W1", "W4", "W6")], ids=lambda w: w.id)
def test_synthetic_files_are_read_by_the_real_classes(home, workload):
    opened = datasets.open_splits(workload, "auto", "native")
    facts = datasets.facts(workload)
    assert opened.data_source == "synthetic"
    assert "SYNTHETIC" in opened.note
    for split, real in zip(medmnist_files.SPLITS, facts.samples, strict=True):
        dataset = opened.splits[split]
        assert type(dataset).__module__ == "medmnist.dataset"
        assert datasets.length(dataset) % 64 == real % 64 or datasets.length(dataset) == real
        image, label = dataset[0]
        assert image.shape == (facts.channels, *[workload.size] * facts.spatial)
        assert image.dtype == torch.float32
        assert -1 <= image.min() <= image.max() <= 1
        assert label.shape == ((facts.classes,) if facts.multi_label else (1,))


def test_synthetic_files_are_the_same_everywhere(tmp_path):
    one, two = (medmnist_files.synthesise("organmnist3d", 28, tmp_path / name) for name in "ab")
    with np.load(one) as a, np.load(two) as b:
        assert all(np.array_equal(a[key], b[key]) for key in a)


@pytest.mark.slow
def test_the_odd_last_batch_is_kept(home):
    opened = datasets.open_splits(definitions.workload("W4"), "synthetic", "native")
    test = opened.splits["test"]
    assert datasets.length(test) % 32 == 22433 % 32 == 1
    part = datasets.bounded(test, 2, 32, seed=1)
    assert len(part) == 2 * 32 + 1
    assert len(set(part.indices)) == len(part)
    assert len(datasets.bounded(test, 0, 32, seed=1)) == datasets.length(test)
    assert len(datasets.bounded(test, 10**6, 32, seed=1)) == datasets.length(test)


def test_resizing_in_3d_and_augmentation(home):
    workload = small(size=36)
    opened = datasets.open_splits(workload, "synthetic", "resized", augment=True)
    torch.manual_seed(0)
    first, second = opened.splits["train"][0][0], opened.splits["train"][0][0]
    assert first.shape == (1, 36, 36, 36)
    assert not torch.equal(first, second)
    assert torch.equal(opened.splits["val"][0][0], opened.splits["val"][0][0])


def test_missing_truncated_and_wrong_files_are_named(home):
    workload = definitions.workload("W6")
    good = medmnist_files.synthesise("organmnist3d", 28)
    path = paths.MEDMNIST / "organmnist3d.npz"
    path.parent.mkdir(parents=True)
    path.write_bytes(good.read_bytes()[:-1000])
    with pytest.raises(InputError, match=r"organmnist3d\.npz is damaged or truncated"):
        datasets.open_splits(workload, "auto", "native")
    body = bytearray(good.read_bytes())
    body[len(body) // 2] ^= 0xFF
    path.write_bytes(body)
    with pytest.raises(InputError, match=r"organmnist3d\.npz is damaged"):
        datasets.open_splits(workload, "auto", "native")
    arrays = dict(np.load(good))
    np.savez(path, **{**arrays, "val_images": arrays["val_images"][:, :20]})
    with pytest.raises(InputError, match=r"val has images .*20.*needs images \(n, 28, 28, 28\)"):
        datasets.open_splits(workload, "auto", "native")
    np.savez(path, **{key: value for key, value in arrays.items() if key != "test_labels"})
    with pytest.raises(InputError, match="test has images"):
        datasets.open_splits(workload, "auto", "native")
    path.write_text("not a zip")
    with pytest.raises(InputError, match="damaged"):
        datasets.open_splits(workload, "auto", "native")
    with pytest.raises(InputError, match="data fetch organmnist3d --size 64"):
        medmnist_files.check_file(paths.MEDMNIST / "organmnist3d_64.npz", "organmnist3d", 64)


def test_a_download_that_fails_says_why(home, monkeypatch):
    def refuse(*_, **__):
        raise OSError("no route to host")

    monkeypatch.setattr("torchvision.datasets.utils.download_url", refuse)
    with pytest.raises(InputError, match=r"cannot fetch organmnist3d\.npz from https://.*no route to host.*by hand"):
        datasets.open_splits(definitions.workload("W6"), "medmnist", "native")
    with pytest.raises(InputError, match="there are: 28, 64"):
        medmnist_files.fetch("organmnist3d", 224)
    with pytest.raises(InputError, match="pathmnist"):
        medmnist_files.fetch("nosuchmnist", 28)


def test_unknown_datasets_and_wrong_sources():
    with pytest.raises(InputError, match="no dataset 'catmnist'; there are: imagefolder, pathmnist"):
        workloads.prepare(small("catmnist"))
    with pytest.raises(InputError, match="does not fit"):
        datasets.open_splits(small(), "imagefolder", "native")


def test_an_image_folder(home, tmp_path):
    from PIL import Image

    for split in medmnist_files.SPLITS:
        for kind in ("cat", "dog"):
            folder = tmp_path / "pets" / split / kind
            folder.mkdir(parents=True)
            for number in range(3):
                Image.new("L" if number else "RGB", (40, 30), number * 80).save(folder / f"{number}.png")
    workload = Workload(id="P", dataset="imagefolder", folder=str(tmp_path / "pets"), size=32, model="simple_cnn", batch_size=2)
    task, opened = workloads.prepare(workload), datasets.open_splits(workload, "auto", "native")
    assert (task.facts.classes, task.facts.channels, opened.data_source) == (2, 3, "imagefolder")
    image, label = opened.splits["train"][5]
    assert image.shape == (3, 32, 32)
    assert label.tolist() == [1]
    with pytest.raises(InputError, match="train, val, test"):
        workloads.prepare(workload.model_copy(update={"folder": str(tmp_path / "none")}))


def test_the_real_xrays_open(xrays):
    workload = Workload(id="R", dataset="pneumoniamnist", size=28, model="simple_cnn", batch_size=64)
    opened = datasets.open_splits(workload, "auto", "native")
    assert opened.data_source == "unofficial"
    assert "UNOFFICIAL" in opened.note
    assert [datasets.length(opened.splits[split]) for split in medmnist_files.SPLITS] == [3882, 524, 624]
    assert not medmnist_files.is_official(xrays, "pneumoniamnist", 28)


@pytest.fixture
def volumes(home):
    """Return a way to write a file where organmnist3d lies: a few images, some arrays changed; the path is returned."""
    size, path = {"train": 6, "val": 2, "test": 2}, paths.MEDMNIST / "organmnist3d.npz"
    path.parent.mkdir(parents=True)
    arrays = {f"{split}_{part}": np.zeros((size[split], *((28, 28, 28) if part == "images" else (1,))), np.uint8)
              for split in medmnist_files.SPLITS for part in ("images", "labels")}

    def write(save=np.savez, **changed):
        save(path, **{**arrays, **changed})
        return path
    return write


def test_a_file_that_medmnist_did_not_publish_is_marked(volumes, monkeypatch):
    path = volumes()
    opened = datasets.open_splits(small(), "auto", "native")
    assert opened.data_source == "unofficial"
    assert opened.note.startswith("UNOFFICIAL images: organmnist3d.npz is not the file that MedMNIST published")
    for table in ("profile", "runs"):
        assert "unofficial" in next(column.of for column in tables.TABLES[table] if column.name == "data_source")
    with pytest.raises(InputError, match=r"organmnist3d\.npz is not the file .* use data_source=auto"):
        datasets.open_splits(small(), "medmnist", "native")
    monkeypatch.setattr(medmnist_files, "is_official", lambda *_: True)
    assert datasets.open_splits(small(), "auto", "native").data_source == "medmnist"
    assert datasets.open_splits(small(), "medmnist", "native").note == f"Real MedMNIST images: {path.name}."


def test_the_checksum_is_that_of_the_file_that_is_there_now(volumes, monkeypatch):
    path = volumes()
    monkeypatch.setitem(medmnist_files.info()["organmnist3d"], "MD5", hashlib.md5(path.read_bytes()).hexdigest())
    assert medmnist_files.is_official(path, "organmnist3d", 28)
    volumes(train_images=np.ones((6, 28, 28, 28), np.uint8))
    assert not medmnist_files.is_official(path, "organmnist3d", 28)


NO_IMAGES = {"test_images": np.zeros((0, 28, 28, 28), np.uint8), "test_labels": np.zeros((0, 1), np.uint8)}


@pytest.mark.parametrize(("changed", "what"), [
    ({"train_labels": np.array([["a"]] * 6)}, r"train has .* labels \(6, 1\) <U1; .* of whole numbers"),
    ({"train_labels": np.array([["1"]] * 6, "S1")}, "of whole numbers"), ({"val_labels": np.full((2, 1), np.nan)}, "float64"),
    ({"test_labels": np.ones((2, 1), bool)}, "of whole numbers"), ({"test_labels": np.ones((2, 1), "M8[s]")}, "of whole"),
    ({"train_labels": np.array([[0]] * 5 + [[11]])}, r"label 5 of train is \[11\]; organmnist3d has 0 to 10"),
    ({"val_labels": np.array([[-1], [0]])}, r"label 0 of val is \[-1\]"),
    ({"test_labels": np.array([[2**63 - 1]] * 2)}, r"label 0 of test is \[9223372036854775807\]"),
    ({"train_labels": np.array([[{}]] * 6)}, "train_labels holds Python objects, not numbers; they are never loaded"),
    ({"train_labels": np.zeros((6, 2), np.uint8)}, r"labels \(6, 2\)"),
    ({"train_labels": np.zeros(6, np.uint8)}, r"labels \(6,\)"), ({"val_images": np.zeros((2, 28, 28, 28))}, "float64"),
    ({"val_images": np.zeros((2, 28, 28), np.uint8)}, r"\(2, 28, 28\)"), (NO_IMAGES, r"test has images \(0, 28"),
    ({"test_images": np.uint8(3)}, r"test has images \(\)")])
def test_labels_and_images_are_checked_when_the_file_is_read(volumes, changed, what):
    path = volumes(**changed)
    with pytest.raises(InputError, match=what) as error:
        datasets.open_splits(small(), "auto", "native")
    assert str(path) in str(error.value)
    assert "pickle" not in str(error.value) and "\n" not in str(error.value)


def test_labels_of_several_kinds_are_zero_or_one(home):
    path = medmnist_files.synthesise("chestmnist", 28)
    arrays = dict(np.load(path))
    arrays["val_labels"][3, 7] = 2
    np.savez(path, **arrays)
    with pytest.raises(InputError, match=r"label 3 of val is \[.*2.*\]; chestmnist has 0 to 1"):
        medmnist_files.check_file(path, "chestmnist", 28)


def replaced(path, **members):
    """Write an npz again with some members replaced by these bytes."""
    with zipfile.ZipFile(path) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in {**contents, **{f"{name}.npy": content for name, content in members.items()}}.items():
            archive.writestr(name, content)


def header(shape, write=np.lib.format.write_array_header_1_0):
    with io.BytesIO() as file:
        write(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
        return file.getvalue()


@pytest.mark.parametrize(("content", "what"), [
    (header((10**11, 28, 28, 28)), r"train_images states shape \(100000000000, 28, 28, 28\), for which it is too short"),
    (header((6, 28, 28, 28)) + bytes(10**7), "for which it is too short or too long"),
    (header((6, 28, 28, 28), np.lib.format.write_array_header_2_0), "format of .npy that MedMNIST does not use"),
    (b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + b" " * 10**6, "format of .npy that MedMNIST does not use"),
    (pickle.dumps([1]), "magic string"), (b"text", "magic string|header"), (b"", "header|magic"),
    (b"\x93NUMPY\x01\x00\x10\x00" + b"(" * 16, "TokenError")])
def test_an_array_that_is_none_is_refused_in_one_line(volumes, content, what):
    replaced(volumes(), train_images=content)
    with pytest.raises(InputError, match=f"damaged or truncated .*({what})") as error:
        datasets.open_splits(small(), "auto", "native")
    assert "pickle" not in str(error.value) and "\n" not in str(error.value)


def test_a_file_that_is_no_npz_is_refused_without_advice(volumes):
    path = volumes()
    for content in (b"", b"text", pickle.dumps({"train_images": 1}), b"\x93NUMPY\x01\x00", path.read_bytes()[:-30]):
        path.write_bytes(content)
        with pytest.raises(InputError, match="damaged or truncated") as error:
            datasets.open_splits(small(), "auto", "native")
        assert "pickle" not in str(error.value) and "\n" not in str(error.value)
    path.unlink()
    path.mkdir()
    assert datasets.open_splits(small(), "auto", "native").data_source == "synthetic"


def test_a_file_that_was_fetched_is_found_wherever_output_goes(volumes, monkeypatch, tmp_path, capsys):
    path = volumes()
    monkeypatch.setattr(paths, "FETCHED", path.parent)
    monkeypatch.setattr(paths, "MEDMNIST", tmp_path / "task" / "medmnist")
    opened = datasets.open_splits(small(), "auto", "native")
    assert opened.data_source == "unofficial" and datasets.length(opened.splits["train"]) == 6
    assert __main__.main(["data", "check", "organmnist3d", "--size", "28"]) == 0
    assert capsys.readouterr().out.startswith(f"{path}: ")
    path.unlink()
    assert datasets.open_splits(small(), "auto", "native").data_source == "synthetic"
    assert medmnist_files.located("organmnist3d", 28).parent == paths.MEDMNIST, "where it would be fetched to"


def test_images_that_do_not_fit_into_memory_are_refused_before_they_are_read(volumes, monkeypatch):
    volumes(np.savez_compressed)
    monkeypatch.setattr(medmnist_files.psutil, "virtual_memory", lambda: SimpleNamespace(available=10 * 28**3 - 1))
    with pytest.raises(InputError, match=r"organmnist3d\.npz holds 0\.0 GB of images; 0\.0 GB of memory are free"):
        datasets.open_splits(small(), "auto", "native")


@pytest.mark.parametrize(("name", "size", "words"), [("../x", "28", "no MedMNIST dataset"), ("organmnist3d", "224", "28, 64")])
def test_only_what_medmnist_published_is_checked(volumes, capsys, name, size, words):
    volumes().rename(paths.MEDMNIST / "organmnist3d_224.npz")
    assert __main__.main(["data", "check", "organmnist3d", name, "--size", size]) == 2
    assert words in capsys.readouterr().err


def test_fetching_overwrites_no_other_file_and_leaves_no_half_one(volumes, monkeypatch, capsys):
    path = volumes()
    before = path.read_bytes()
    assert __main__.main(["data", "fetch", "organmnist3d", "--size", "28"]) == 1
    assert "is there already and is not the file that MedMNIST published" in capsys.readouterr().err
    assert path.read_bytes() == before
    path.unlink()

    def half(url, root, name, md5):
        (Path(root) / name).write_bytes(before[:100])
        raise RuntimeError("File not found or corrupted.")

    monkeypatch.setattr("torchvision.datasets.utils.download_url", half)
    with pytest.raises(InputError, match=r"cannot fetch organmnist3d\.npz .* corrupted"):
        medmnist_files.fetch("organmnist3d", 28)
    assert list(path.parent.iterdir()) == [], "what was not whole is not there"

"""Datasets: real classes on real and synthetic files, odd last batches, damaged files."""

import io
import pickle
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms

from lib import paths
from lib.config import definitions
from lib.config.definitions import Workload
from lib.work import datasets, medmnist_files, workloads
from lib.work.medmnist_files import SPLITS
from tests import called, output_of, refused


def small(dataset="organmnist3d", size=28, **more):
    return Workload(id="X", dataset=dataset, size=size, model="cnn3d", batch_size=4, **more)


def opened(workload=None, source="auto", resolution="native", **how):
    return datasets.open_splits(workload or small(), source, resolution, **how)


@pytest.fixture(scope="module")
def synthetic_files(tmp_path_factory):
    return tmp_path_factory.mktemp("synthetic")


@pytest.fixture
def synthetic(home, synthetic_files, monkeypatch):
    """Let synthetic files be made once for all tests here."""
    monkeypatch.setattr(paths, "SYNTHETIC", synthetic_files)
    return synthetic_files


@pytest.mark.parametrize("dataset, native", [("chestmnist", [28, 128, 224]), ("organmnist3d", [28, 64, 64])])
def test_native_sizes(dataset, native):
    sizes = (28, 112, 300)
    assert [medmnist_files.native_size(dataset, size, "native") for size in sizes] == native
    assert {medmnist_files.native_size(dataset, size, "resized") for size in sizes} == {28}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["W1", "W4", "W6"])
def test_synthetic_files_are_read_by_the_real_classes(synthetic, name):
    workload = definitions.workload(name)
    read, facts = opened(workload), datasets.facts(workload)
    assert read.data_source == "synthetic" and "SYNTHETIC" in read.note
    for split, real in zip(SPLITS, facts.samples, strict=True):
        dataset = read.splits[split]
        assert type(dataset).__module__ == "medmnist.dataset"
        assert datasets.length(dataset) % 64 == real % 64 or datasets.length(dataset) == real
        image, label = dataset[0]
        assert image.shape == (facts.channels, *[workload.size] * facts.spatial)
        assert image.dtype == torch.float32
        assert -1 <= image.min() <= image.max() <= 1
        assert label.shape == ((facts.classes,) if facts.multi_label else (1,))


@pytest.mark.slow
def test_the_odd_last_batch_is_kept(synthetic):
    test = opened(definitions.workload("W4"), "synthetic").splits["test"]
    whole = datasets.length(test)
    assert whole % 32 == 22433 % 32 == 1
    assert [len(datasets.bounded(test, batches, 32, seed=1)) for batches in (2, 0, 10**6)] == [2 * 32 + 1, whole, whole]


@pytest.mark.slow
def test_synthetic_files_are_the_same_everywhere(synthetic, tmp_path):
    one = medmnist_files.synthesise("organmnist3d", 28).rename(tmp_path / "one.npz")
    two = medmnist_files.synthesise("organmnist3d", 28)
    with np.load(one) as a, np.load(two) as b:
        assert all(np.array_equal(a[key], b[key]) for key in a)


def test_resizing_in_3d_and_augmentation(synthetic):
    splits = opened(small(size=36), "synthetic", "resized", augment=True).splits
    torch.manual_seed(0)
    (first, second), (third, fourth) = ([splits[split][0][0] for _ in range(2)] for split in ("train", "val"))
    assert first.shape == (1, 36, 36, 36)
    assert not torch.equal(first, second)
    assert torch.equal(third, fourth)


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match="No module named 'medmnist'"):
        medmnist_files.info.__wrapped__()


def test_unknown_datasets_and_wrong_sources():
    with refused("no dataset 'catmnist'; there are: imagefolder, pathmnist"):
        workloads.prepare(small("catmnist"))
    for folder, words in (("", "imagefolder needs 'folder:', a folder with"), ("nowhere", "nowhere/train is no folder; ")):
        with refused(words):
            opened(small("imagefolder", folder=folder))


def test_an_image_folder(tmp_path):
    for place in (f"{split}/{kind}" for split in SPLITS for kind in ("cat", "dog")):
        (tmp_path / place).mkdir(parents=True)
        for number in range(3):
            Image.new("L" if number else "RGB", (40, 30), number * 80).save(tmp_path / place / f"{number}.png")
    workload = small("imagefolder", 32, folder=str(tmp_path))
    task, read = workloads.prepare(workload), opened(workload)
    assert task.facts.classes == 2 and task.facts.channels == 3 and read.data_source == "imagefolder"
    image, label = read.splits["train"][5]
    assert image.shape == (3, 32, 32) and label.tolist() == [1]
    cropped = opened(workload, random_crop=True).splits
    recipe = transforms.Compose([transforms.RandomResizedCrop(32), transforms.RandomHorizontalFlip(), transforms.ToTensor(),
                                 transforms.Normalize((0.5,) * 3, (0.5,) * 3)])
    path, _ = cropped["train"].imgs[0]
    Image.effect_noise((40, 30), 90).save(path)
    for seed in range(4):
        torch.manual_seed(seed)
        cut = cropped["train"][0][0]
        torch.manual_seed(seed)
        torch.testing.assert_close(cut, recipe(Image.open(path).convert("RGB")), msg="as torchvision's ImageNet example does")


def test_the_real_xrays_open(xrays):
    read = opened(small("pneumoniamnist"))
    assert read.data_source == "unofficial" and "UNOFFICIAL" in read.note
    assert [datasets.length(read.splits[split]) for split in SPLITS] == [3882, 524, 624]
    assert not medmnist_files.is_official(xrays, "pneumoniamnist", 28)


@pytest.fixture
def volumes(home):
    """Return a way to write a file where organmnist3d lies: a few images, some arrays changed (None: left out)."""
    path = paths.MEDMNIST / "organmnist3d.npz"
    path.parent.mkdir(parents=True)
    arrays = {f"{split}_{part}": np.zeros((size, *shape), np.uint8) for split, size in zip(SPLITS, (6, 2, 2), strict=True)
              for part, shape in (("images", (28, 28, 28)), ("labels", (1,)))}

    def write(save=np.savez, **changed):
        save(path, **{name: array for name, array in {**arrays, **changed}.items() if array is not None})
        return path
    return write


def refused_file(path, what):
    """Assert that a file is refused in a line that names it, and recommends no pickle."""
    with refused(what) as error:
        opened()
    assert str(path) in str(error.value) and "pickle" not in str(error.value)


def test_a_file_that_medmnist_did_not_publish_is_marked(volumes, monkeypatch):
    path = volumes()
    read = opened()
    assert read.data_source == "unofficial"
    assert read.note.startswith("UNOFFICIAL images: organmnist3d.npz is not the file that MedMNIST published")
    with refused(r"organmnist3d\.npz is not the file .* use data_source=auto"):
        opened(source="medmnist")
    monkeypatch.setattr(medmnist_files, "is_official", lambda *_: True)
    assert opened().data_source == "medmnist"
    assert opened(source="medmnist").note == f"Real MedMNIST images: {path.name}."


@pytest.mark.parametrize("changed, what", [
    ({"val_labels": np.full((2, 1), np.nan)}, "float64"),
    ({"train_labels": np.array([[0]] * 5 + [[11]])}, r"label 5 of train is \[11\]; organmnist3d has 0 to 10"),
    ({"train_labels": np.array([[{}]] * 6)}, "train_labels holds Python objects, not numbers; they are never loaded"),
    ({"test_labels": None}, r"labels \(\) None"),
    ({"val_images": np.zeros((2, 20, 28, 28), np.uint8)}, r"images \(2, 20, 28, 28\).* needs images \(n, 28, 28, 28\)")])
def test_labels_and_images_are_checked_when_the_file_is_read(volumes, changed, what):
    refused_file(volumes(**changed), what)


def test_labels_of_several_kinds_are_zero_or_one(tmp_path):
    labels = np.zeros((4, 14), np.uint8)
    labels[3, 7] = 2
    parts = {"labels": labels, "images": np.zeros((4, 28, 28), np.uint8)}
    np.savez(tmp_path / "a.npz", **{f"{split}_{part}": array for split in SPLITS for part, array in parts.items()})
    with refused(r"label 3 of train is \[.*2.*\]; chestmnist has 0 to 1"):
        medmnist_files.check_file(tmp_path / "a.npz", "chestmnist", 28)


def header(shape):
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
    return file.getvalue()


@pytest.mark.parametrize("content, what", [
    (header((10**11, 28, 28, 28)), r"train_images states shape \(100000000000, 28, 28, 28\), for which it is too short"),
    (b"\x93NUMPY\x02\x00\xff\xff\xff\xff", "format of .npy that MedMNIST does not use"),
    (pickle.dumps([1]), "magic string")])
def test_an_array_that_is_none_is_refused(volumes, content, what):
    path = volumes(train_images=None)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("train_images.npy", content)
    refused_file(path, f"damaged or truncated .*({what})")


def test_a_file_that_is_no_npz_is_refused_without_advice(volumes):
    path = volumes()
    whole = path.read_bytes()
    middle = len(whole) // 2
    changed = whole[:middle] + bytes([whole[middle] ^ 0xFF]) + whole[middle + 1:]
    for content in (b"", pickle.dumps({"train_images": 1}), whole[:-30], changed):
        path.write_bytes(content)
        refused_file(path, "damaged or truncated")
    path.unlink()
    path.mkdir()
    assert opened().data_source == "synthetic"


def test_a_file_that_was_fetched_is_found_wherever_output_goes(volumes, synthetic, monkeypatch, tmp_path):
    path = volumes()
    monkeypatch.setattr(paths, "FETCHED", path.parent)
    monkeypatch.setattr(paths, "MEDMNIST", tmp_path / "task/medmnist")
    assert opened().data_source == "unofficial"
    assert output_of("data", "check", "organmnist3d", "--size", "28").startswith(f"{path}: ")
    path.unlink()
    assert opened().data_source == "synthetic"


def test_images_that_do_not_fit_into_memory_are_refused_before_they_are_read(volumes, monkeypatch):
    monkeypatch.setattr(medmnist_files.psutil, "virtual_memory", lambda: SimpleNamespace(available=10 * 28**3 - 1))
    refused_file(volumes(np.savez_compressed), r"organmnist3d\.npz holds 0\.0 GB of images; 0\.0 GB of memory are free")


@pytest.mark.parametrize("name, size, status, words", [
    ("../x", "28", 2, "no MedMNIST dataset"), ("organmnist3d", "64", 1, "data fetch organmnist3d --size 64")])
def test_only_what_medmnist_published_is_checked(volumes, name, size, status, words):
    volumes().rename(paths.MEDMNIST / "organmnist3d_224.npz")
    ended, _, error = called("data", "check", "organmnist3d", name, "--size", size)
    assert ended == status and words in error


def test_what_cannot_be_fetched_says_why_and_leaves_nothing(home, monkeypatch):
    def half(url, root, name, md5):
        (Path(root) / name).write_bytes(b"half")
        raise failure

    monkeypatch.setattr("torchvision.datasets.utils.download_url", half)
    for failure in (OSError("no route to host"), RuntimeError("File not found or corrupted.")):
        with refused(rf"cannot fetch organmnist3d\.npz from https://.*{failure}.*by hand"):
            opened(source="medmnist")
    assert list(paths.MEDMNIST.iterdir()) == []
    with refused("there are: 28, 64"):
        medmnist_files.fetch("organmnist3d", 224)


def test_fetching_overwrites_no_other_file(volumes):
    path = volumes()
    before = path.read_bytes()
    status, _, error = called("data", "fetch", "organmnist3d", "--size", "28")
    assert status == 1 and "is there already and is not the file that MedMNIST published" in error
    assert path.read_bytes() == before

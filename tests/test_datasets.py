"""Datasets: MedMNIST's own classes on synthetic files, odd last batches, folders, wrong files."""

import hashlib
from pathlib import Path

import pytest
import torch
from PIL import Image
from torchvision import transforms

from lib import paths
from lib.config import definitions
from lib.config.definitions import Workload
from lib.work import datasets, medmnist_files, synthetic, workloads
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
def made_once(home, synthetic_files, monkeypatch):
    """Let synthetic files be made once for all tests here."""
    monkeypatch.setattr(paths, "SYNTHETIC", synthetic_files)


@pytest.mark.parametrize("dataset, native", [
    ("chestmnist", [28, 128, 224]), ("organmnist3d", [28, 64, 64])])
def test_native_sizes(dataset, native):
    sizes = (28, 112, 300)
    assert [medmnist_files.native_size(dataset, size, "native") for size in sizes] == native
    assert {medmnist_files.native_size(dataset, size, "resized") for size in sizes} == {28}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["W1", "W4", "W6"])
def test_synthetic_files_are_read_by_the_real_classes(made_once, name):
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


def test_resizing_in_3d_and_augmentation(made_once):
    splits = opened(small(size=36), "synthetic", "resized", augment=True).splits
    torch.manual_seed(0)
    first, second = splits["train"][0][0], splits["train"][0][0]
    assert first.shape == (1, 36, 36, 36)
    assert not torch.equal(first, second)
    assert torch.equal(splits["val"][0][0], splits["val"][0][0])


def test_unknown_datasets_and_wrong_sources():
    with refused("no dataset 'catmnist'; there are: imagefolder, pathmnist"):
        workloads.prepare(small("catmnist"))
    for folder, words in (("", "imagefolder needs 'folder:', a folder with"),
                          ("nowhere", "nowhere/train is no folder; ")):
        with refused(words):
            opened(small("imagefolder", folder=folder))
    with refused("random_crop is of pictures, and organmnist3d holds volumes"):
        opened(random_crop=True)


def test_an_image_folder(tmp_path):
    for place in (f"{split}/{kind}" for split in SPLITS for kind in ("cat", "dog")):
        (tmp_path / place).mkdir(parents=True)
        for number in range(3):
            picture = Image.new("L" if number else "RGB", (40, 30), number * 80)
            picture.save(tmp_path / place / f"{number}.png")
    workload = small("imagefolder", 32, folder=str(tmp_path))
    task, read = workloads.prepare(workload), opened(workload)
    assert task.facts.classes == 2 and task.facts.channels == 3
    assert read.data_source == "imagefolder"
    image, label = read.splits["train"][5]
    assert image.shape == (3, 32, 32) and label.tolist() == [1]
    cropped = opened(workload, random_crop=True).splits
    recipe = transforms.Compose([
        transforms.RandomResizedCrop(32), transforms.RandomHorizontalFlip(), transforms.ToTensor(),
        transforms.Normalize((0.5,) * 3, (0.5,) * 3)])  # of torchvision's ImageNet example
    path, _ = cropped["train"].imgs[0]
    Image.effect_noise((40, 30), 90).save(path)
    for seed in range(4):
        torch.manual_seed(seed)
        cut = cropped["train"][0][0]
        torch.manual_seed(seed)
        torch.testing.assert_close(cut, recipe(Image.open(path).convert("RGB")))


def test_a_damaged_stand_in_is_one_line(home):
    path = synthetic.write_stand_in("organmnist3d", 28)
    path.write_bytes(path.read_bytes()[:-30])
    with refused("organmnist3d.* is damaged: .*; remove it"):
        opened(source="synthetic")


@pytest.fixture
def published(home, made_once, monkeypatch):
    """Put a file where organmnist3d lies, and take its MD5 for the published one."""
    path = paths.MEDMNIST / "organmnist3d.npz"
    path.parent.mkdir(parents=True)
    path.write_bytes(synthetic.write_stand_in("organmnist3d", 28).read_bytes())
    with open(path, "rb") as file:
        md5 = hashlib.file_digest(file, "md5").hexdigest()
    monkeypatch.setitem(medmnist_files.info()["organmnist3d"], "MD5", md5)
    return path


@pytest.mark.parametrize("source", ["auto", "medmnist"])
def test_a_published_file_is_read(published, source):
    read = opened(source=source)
    assert read.data_source == "medmnist"
    assert read.note == f"Real MedMNIST images: {published.name}."
    assert output_of("data", "check", "organmnist3d", "--size", "28").startswith(f"{published}: ")


@pytest.mark.parametrize("content", [b"", b"other", None])
def test_a_file_that_medmnist_did_not_publish_is_refused(published, content):
    content = published.read_bytes()[:-30] if content is None else content
    published.write_bytes(content)
    for source in ("auto", "medmnist"):
        with refused(r"organmnist3d\.npz is damaged or not the file that MedMNIST published .*; "
                     "move it away and get the published one: python -m lib data fetch organmnist"):
            opened(source=source)
    status, _, error = called("data", "fetch", "organmnist3d", "--size", "28")
    assert status == 1 and "is damaged or not the file" in error
    assert published.read_bytes() == content


def test_a_fetched_file_is_found_wherever_output_goes(published, monkeypatch, tmp_path):
    monkeypatch.setattr(paths, "FETCHED", published.parent)
    monkeypatch.setattr(paths, "MEDMNIST", tmp_path / "task/medmnist")
    assert opened().data_source == "medmnist"
    published.unlink()
    assert opened().data_source == "synthetic"


@pytest.mark.parametrize("name, size, status, words", [
    ("../x", "28", 2, "no MedMNIST dataset"), ("organmnist3d", "224", 2, "there are: 28, 64"),
    ("organmnist3d", "64", 1, "is missing; get it with: python -m lib data fetch organmnist3d")])
def test_only_what_medmnist_published_is_checked(home, name, size, status, words):
    ended, _, error = called("data", "check", name, "--size", size)
    assert ended == status and words in error


@pytest.mark.parametrize("failure", [OSError("no route to host"), RuntimeError("corrupted")])
def test_a_failed_download_says_why_and_leaves_nothing(home, monkeypatch, failure):
    def half(url, root, filename, md5):
        (Path(root) / filename).write_bytes(b"half")
        raise failure

    monkeypatch.setattr("torchvision.datasets.utils.download_url", half)
    with refused(rf"cannot fetch organmnist3d\.npz from https://.*{failure}.*by hand"):
        opened(source="medmnist")
    assert list(paths.MEDMNIST.iterdir()) == []

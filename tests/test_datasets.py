"""Datasets: real classes on real and synthetic files, odd last batches, damaged files."""

import numpy as np
import pytest
import torch

from lib import paths
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

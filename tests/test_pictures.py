"""Folders of pictures, in workloads and in fine-tuning: their files and the values of each mode."""

import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from lib import paths
from lib.config.definitions import Workload
from lib.errors import InputError
from lib.finetune import data as run_data
from lib.finetune import finetune, models
from lib.finetune.config import TrainConfig
from lib.work import datasets, pictures, workloads
from tests import cut_training, refused

RAMP = np.linspace(0, 65535, 48).round().astype(np.uint16).reshape(6, 8)
IN_8_BITS = np.rint(RAMP / 257)


def saved(path, values, orientation=0, **how):
    picture = Image.fromarray(values) if isinstance(values, np.ndarray) else values
    if orientation:
        how["exif"] = picture.getexif()
        how["exif"][0x0112] = orientation
    picture.save(path, **how)
    return path


@pytest.fixture
def workload(tmp_path):
    cut_training.pictures(tmp_path / "pets", {"train": 4, "val": 2})
    return Workload(id="own", dataset="imagefolder", size=16, model="simple_cnn", batch_size=2,
                    folder=str(tmp_path / "pets"))


def opened_by_both(workload):
    """Return the splits of a folder as a workload has them, and as a fine-tune has them."""
    config = TrainConfig(root=workload.folder, model_flavour="simple_cnn",
                         loss_name="cross_entropy", load_pretrained=False)
    names, facts = run_data.names_and_facts(config)
    tuned = run_data.open_data(config, models.network(config, facts).inputs, names)
    return datasets.open_splits(workload, "auto", "native").splits, tuned.splits


def tensor_of(images, number):
    return images[number][0]


@pytest.mark.parametrize("name, values", [
    ("grey.png", RAMP), ("grey.tif", RAMP), ("grey.pgm", RAMP),
    ("big_endian.tif", Image.frombytes("I;16B", (8, 6), RAMP.astype(">u2").tobytes()))])
def test_pictures_of_many_bits_are_scaled_by_their_range(tmp_path, name, values):
    path = tmp_path / name
    if path.suffix == ".pgm":
        path.write_bytes(b"P5 8 6 65535\n" + RAMP.astype(">u2").tobytes())
    else:
        saved(path, values)
    read = pictures.read(path)
    assert read.mode == "RGB" and np.array_equal(np.asarray(read), np.stack([IN_8_BITS] * 3, -1))


@pytest.mark.parametrize("mode, colour, suffix, shown", [
    ("L", 9, ".png", (9, 9, 9)), ("1", 1, ".png", (255, 255, 255)), ("P", 0, ".png", (0, 0, 0)),
    ("LA", (100, 50), ".png", (100, 100, 100)), ("RGBA", (9, 8, 7, 0), ".png", (9, 8, 7)),
    ("RGBX", (9, 8, 7, 0), ".tif", (9, 8, 7)), ("CMYK", (0, 255, 255, 0), ".tif", (255, 0, 0)),
    ("YCbCr", (9, 128, 128), ".tif", (9, 9, 9))])
def test_pictures_of_other_modes(tmp_path, mode, colour, suffix, shown):
    path = saved(tmp_path / f"picture{suffix}", Image.new(mode, (3, 2), colour))
    assert pictures.read(path).getpixel((0, 0)) == shown


@pytest.mark.parametrize("name, values", [
    ("l.png", IN_8_BITS.astype(np.uint8)), ("l.tif", IN_8_BITS.astype(np.uint8)),
    ("i16.png", RAMP), ("i16.tif", RAMP)])
def test_pictures_are_turned_as_their_exif_says(tmp_path, name, values):
    path = saved(tmp_path / name, values, orientation=6)
    assert np.array_equal(np.asarray(pictures.read(path))[..., 0], np.rot90(IN_8_BITS, -1))


@pytest.mark.parametrize("name, values, words", [
    ("wide.tif", np.full((2, 2), 700, np.int32), "it holds floats or integers of 32 bits"),
    ("floats.tif", np.zeros((2, 2), np.float32), "it holds floats or integers"),
    ("dark.png", np.full((2, 2), 4095, np.uint16), "its largest value is 4095 of 65535, so 8 bits"),
    ("empty.jpg", b"", "cannot be read: Pillow knows no picture of this kind; "),
    ("cut.png", b"\x89PNG\r\n\x1a\n\0\0", "cannot be read: .*; replace or remove the file"),
    ("huge.png", Image.new("1", (20_000, 10_000)), "cannot be read: DecompressionBombError: ")])
def test_a_picture_that_cannot_be_read_is_one_line_with_its_name(tmp_path, name, values, words):
    path = tmp_path / name
    path.write_bytes(values) if isinstance(values, bytes) else saved(path, values)
    with refused(f"{name} .*{words}"):
        pictures.read(path)


def test_hidden_files_and_what_macos_adds_belong_to_no_folder(workload, tmp_path):
    train = tmp_path / "pets/train"
    for folder in (".ipynb_checkpoints", "__MACOSX/cat", "cat/.ipynb_checkpoints", "cat/__MACOSX",
                   "cat/@eaDir", "cat/more"):
        (train / folder).mkdir(parents=True)
        (train / folder / "0.png").write_bytes(b"no picture")
    for name in ("._0.png", ".hidden.png", ".DS_Store", "notes.txt"):
        (train / "cat" / name).write_bytes(b"no picture")
    saved(train / "cat/more/0.png", RAMP)
    saved(train / "cat/PHOTO.JPG", Image.new("L", (4, 4)))
    for splits in opened_by_both(workload):
        assert {split: len(images) for split, images in splits.items()} == {"train": 10, "val": 4}
        for number in range(len(splits["train"])):
            assert tensor_of(splits["train"], number).isfinite().all()
    assert workloads.prepare(workload).facts.classes == 2


def test_classes_are_those_of_train(workload, tmp_path):
    for path in (tmp_path / "pets/val/cat").iterdir():
        path.unlink()
    assert opened_by_both(workload)[0]["val"].labels.tolist() == [[1], [1]], "a dog stays class 1"
    (tmp_path / "pets/val/fox").mkdir()
    with refused("own: .*val has classes that train/ has not: fox; train/ has: cat, dog"):
        datasets.open_splits(workload, "auto", "native")
    (tmp_path / "pets/train/fox").mkdir()
    with refused("train has no pictures .* in fox; add some, or remove the folder"):
        opened_by_both(workload)


def test_a_folder_without_val_is_refused_before_a_run_has_its_folder(workload, tmp_path, home):
    shutil.rmtree(tmp_path / "pets/val")
    config = TrainConfig(root=workload.folder, model_flavour="simple_cnn", loss_name="cross_entropy",
                         load_pretrained=False)
    with refused("val is no folder; a folder of pictures has train/ and val/"):
        finetune.finetune(config)
    assert not paths.TRAINING.exists()


def test_the_central_square_is_taken():
    wide = Image.fromarray(np.arange(12, dtype=np.uint8).reshape(2, 6))
    assert np.asarray(pictures.central_square(wide)).tolist() == [[2, 3], [8, 9]]


def test_an_error_in_a_worker_of_a_loader_is_one_line_as_well(workload, tmp_path):
    (tmp_path / "pets/train/cat/0.png").write_bytes(b"no picture")
    images = datasets.open_splits(workload, "auto", "native").splits["train"]
    with pytest.raises(InputError) as error:
        next(iter(torch.utils.data.DataLoader(images, 2, num_workers=1)))
    assert str(error.value) == (f"{images.imgs[0][0]} cannot be read: Pillow knows no picture of "
                                "this kind; replace or remove the file")

"""Files of cost models: what is damaged, of wrong shapes or types, or not what its name says is one line, never an answer."""

import base64
import gzip
import json
import operator
from functools import cache, reduce

import numpy as np
import pytest

from lib import paths
from lib.errors import InputError
from lib.predict import model_file, registry
from lib.predict.operators.cost_model import CostModel
from tests import advice_on, output_of, refused, with_value

CPU, GPU = next(registry.SHIPPED.glob("cpu-*_fp32.json.gz")), registry.SHIPPED / "a100-sxm-80gb_bf16.json.gz"
GEMM, CONVOLUTION = "gemm forward", "convolution forward"


@cache
def content(device):
    """Return what the file of a device's model holds, of few parts."""
    whole = json.loads(gzip.decompress((CPU if device == "cpu" else GPU).read_bytes()))
    return {**whole, "parts": {name: whole["parts"][name] for name in (GEMM, CONVOLUTION) if name in whole["parts"]}}


def packed(model):
    return gzip.compress(json.dumps(model).encode(), compresslevel=1)


def write(path, model):
    path.write_bytes(packed(model))
    return path


def refuse(path, words):
    """Load a model, which is refused in a line that names its file."""
    with pytest.raises(InputError) as error:
        registry.load(path)
    assert str(path) in str(error.value) and words in str(error.value)


def edited(device, place, value):
    """Return a model in which ``place``, names and numbers between slashes, is ``value``, or what a function makes of it."""
    model = content(device)
    path = tuple(int(key) if key.isdecimal() else key for key in place.split("/"))
    if callable(value):
        value = value(reduce(operator.getitem, path, model))
    return with_value(model, path, value)


def shorter(array):
    """Return the entry of an array without its last row, bytes and shape alike."""
    values = np.frombuffer(base64.b64decode(array["data"]), array["dtype"]).reshape(array["shape"])
    return model_file.stored(values[..., :-1])


def nan(array):
    return model_file.stored(np.full(array["shape"], np.nan, array["dtype"]))


backwards, without_last = operator.itemgetter(slice(None, None, -1)), operator.itemgetter(slice(-1))


PART = f"parts/{GEMM}"
FIT = f"{PART}/regressor"
WRONG = [
    ("device", "../t4", "device = '../t4'"),
    ("facts/peak_gbps", "48", "facts.peak_gbps = '48' should be a valid number"),
    ("facts/sweeps", ["../../etc"], "facts.sweeps.0 = '../../etc' is no folder below data/reference"),
    ("parts", {}, "parts = {}"), ("more", 1, "unknown name 'more'"), ("scaling", 1, "scaling = 1 is nothing that a file has"),
    (f"{PART}/halves", [0.1], "1 intervals do not fit edges"), (f"{PART}/edges_ms", backwards, "have to grow"),
    (f"{PART}/families", {"bmm": {"edges_ms": [1.0], "halves": [0.1]}}, "1 intervals do not fit edges [1.0], which"),
    (f"parts/{CONVOLUTION}/families", {"conv3d": {"edges_ms": [], "halves": [0.1]}}, "['op'] are none of its features"),
    (f"{PART}/ranges/m", [3.0, 1.0], "the lower limit is above the upper one"),
    (f"{PART}/features", backwards, "it has other terms or features than"),
    (f"{FIT}/costs", without_last, "7 terms have 6 costs"), (f"{FIT}/known/colour", [1.0], "known values of no feature"),
    (f"{FIT}/names", without_last, "trees split on column"),
    (f"{FIT}/form", "pickle", "does not match any of the expected tags"),
    (f"{FIT}/quantiles", [0.1, -0.1], "the lower limit is above the upper one"),
    (f"{FIT}/trees/value", nan, "holds numbers that are not finite"),
    (f"{FIT}/trees/value/data", "AAAA", "3 bytes are no <f4 of shape ("),
    (f"{FIT}/trees/value/dtype", "O", "dtype = 'O'"), (f"{FIT}/trees/value/shape", [10**30], "trees.value"),
    ("parts", lambda old: {"gemm sideways": old[GEMM]}, "no pass 'sideways'; there are: forward, backward"),
    ("compositions/infer kept/rates", {"sum_ms": 1.0}, "a composition has other rates than sum_ms, moved_ms, fresh_mb"),
    ("resident/default/rates", {"first_use": 1.0}, "resident memory has other rates than first_use, weights_mb, infer_peak_mb")]
WRONG_TREES = [
    ("chip/item", 0, "chip.item = 0"), (f"{FIT}/trees/feature", shorter, "are no trees"),
    (f"{FIT}/trees/roots", lambda old: model_file.stored(np.array([10**9], np.int32)), "begins at no"),
    (f"{FIT}/trees/feature", lambda old: model_file.stored(np.zeros(old["shape"], np.int16)), "no child")]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("device, place, value, words", [
    *[("cpu", *one) for one in WRONG], *[("gpu", *one) for one in WRONG_TREES]])
def test_a_file_with_a_wrong_entry_is_one_line(device, place, value, words, tmp_path):
    refuse(write(tmp_path / (CPU if device == "cpu" else GPU).name, edited(device, place, value)), words)


def test_what_is_no_such_file_is_one_line(tmp_path, monkeypatch):
    path, whole = tmp_path / "m.json.gz", CPU.read_bytes()
    texts = [gzip.compress(text) for text in (b"", b"[1, 2]", b"null", b"{}", b"\xff", b"[" * 100_000)]
    for torn in (whole[:1000], whole[:-9], whole[:5000] + b"\0" * 90 + whole[5090:], b"", gzip.decompress(whole), *texts):
        path.write_bytes(torn)
        with refused("m.json.gz is no cost model, or is damaged"):
            CostModel.load(path)
    with refused("is missing"):
        CostModel.load(tmp_path / "none.json.gz")
    monkeypatch.setattr(model_file, "_MOST_BYTES", 10_000_000)
    path.write_bytes(gzip.compress(b" " * 100_000_000))
    with refused("holds more than 10 MB: it is no cost model"):
        CostModel.load(path)


def test_a_model_that_could_not_be_read_back_is_not_written(tmp_path):
    model = CostModel.load(CPU)
    model.parts[GEMM].halves = [float("nan")]
    with refused("is not written: parts.gemm forward.halves"):
        model.save(tmp_path / "m.json.gz")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name, device, other, words", [
    ("a100-sxm-80gb_fp16", "gpu", {}, "holds a bf16 model of a100-sxm-80gb, not what its name says"),
    ("cpu-other-2c-12345678_fp32", "cpu", {"device": "cpu-other-2c-12345678"}, "was fitted on other hardware, ea2da3d4"),
    ("t4_fp32", "cpu", {"device": "t4"}, "is named as that of a GPU, and holds that of another device type"),
    ("t4_fp7", "cpu", {}, "does not have a model's name")])
def test_a_file_is_what_its_name_says(name, device, other, words, tmp_path):
    refuse(write(tmp_path / f"{name}.json.gz", content(device) | other), words)


@pytest.mark.parametrize("fact", ["dtype", "launch_ms", "peak_gflops"])
def test_a_model_without_the_facts_that_predict_is_refused(fact, tmp_path):
    facts = {name: value for name, value in content("gpu")["facts"].items() if name != fact}
    path = write(tmp_path / GPU.name, {**content("gpu"), "facts": facts})
    refuse(path, f"lacks the facts {fact}, which predictions need; train it again")


def test_a_broken_file_among_others_does_not_vanish(home):
    broken = paths.MODELS / "cpu-mine-1c-00000000_bf16.json.gz"
    paths.MODELS.mkdir(parents=True)
    broken.write_bytes(b"x")
    out = output_of("models", status=1)
    assert str(broken) in out and "is no cost model, or is damaged" in out and "a100-sxm-80gb" in out
    with refused("cpu-mine-1c-00000000_bf16.json.gz is no cost model"):
        registry.predictor("cpu", "bf16")
    assert len(advice_on("cpu", "simple_cnn", 1, "3x28x28").table), "the others answer"
    with refused("a device is named twice: t4, cpu, t4"):
        registry.for_devices(["t4", "cpu", "t4"], "fp32")

"""Files of cost models: what is damaged, of wrong shapes or types, or not what its name says is one line, never an answer."""

import base64
import copy
import gzip
import json
import random
import warnings

import numpy as np
import pytest

from lib import paths
from lib.cli.main import main
from lib.errors import InputError
from lib.predict import model_file, registry
from lib.predict.advice.advise import advise
from lib.predict.advice.query import Query
from lib.predict.networks import resident
from lib.predict.operators.cost_model import CostModel
from lib.work.graph import spaces

CPU = next(registry.SHIPPED.glob("cpu-*_fp32.json.gz"))
GPU = registry.SHIPPED / "a100-sxm-80gb_bf16.json.gz"
GEMM, CONVOLUTION = "gemm forward", "convolution forward"


def content_of(path):
    return json.loads(gzip.decompress(path.read_bytes()))


@pytest.fixture(scope="module")
def contents():
    """Give what the files of a CPU's and of a GPU's model hold, of few parts."""
    cpu, gpu = content_of(CPU), content_of(GPU)
    cpu["parts"] = {name: cpu["parts"][name] for name in (GEMM, CONVOLUTION)}
    gpu["parts"] = {GEMM: gpu["parts"][GEMM]}
    return {"cpu": cpu, "gpu": gpu}


def write(content, path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(json.dumps(content).encode(), compresslevel=1))
    return path


def changed(content, place, value):
    """Return a copy in which ``place``, a path of keys, is ``value``, or what a function makes of it."""
    content = copy.deepcopy(content)
    holder = content
    for key in place[:-1]:
        holder = holder[key]
    old = holder.get(place[-1]) if isinstance(holder, dict) else holder[place[-1]]
    holder[place[-1]] = value(old) if callable(value) else value
    return content


def shorter(array):
    """Return the entry of an array without its last row, bytes and shape alike."""
    values = np.frombuffer(base64.b64decode(array["data"]), array["dtype"]).reshape(array["shape"])
    return model_file.Array.plain(values[..., :-1])


def nan(array):
    return model_file.Array.plain(np.full(array["shape"], np.nan, array["dtype"]))


PART, REGRESSOR = ("parts", GEMM), ("parts", GEMM, "regressor")
WRONG = [
    ("cpu", ("device",), 7, "device = 7 should be a valid string"), ("cpu", ("device",), "../t4", "device = '../t4'"),
    ("cpu", ("facts",), [], "facts = [] should be an object"), ("cpu", ("facts", "dtype"), "int8", "facts.dtype = 'int8'"),
    ("cpu", ("facts", "peak_gbps"), "48", "facts.peak_gbps = '48' should be a valid number"),
    ("cpu", ("facts", "peak_gflops"), float("nan"), "peak_gflops"), ("cpu", ("facts", "launch_ms"), -1.0, "launch_ms = -1.0"),
    ("cpu", ("facts", "sweeps"), ["../../etc"], "facts.sweeps.0 = '../../etc' is no folder below data/reference"),
    ("cpu", ("parts",), {}, "parts = {}"), ("cpu", ("chip",), 3, "chip = 3"), ("gpu", ("chip", "item"), 0, "chip.item = 0"),
    ("cpu", ("schema",), "4", "schema = '4'"), ("cpu", ("more",), 1, "unknown name 'more'"),
    ("cpu", (*PART, "halves"), [0.1], "1 intervals do not fit edges"),
    ("cpu", (*PART, "edges_ms"), lambda old: old[::-1], "have to grow"),
    ("cpu", (*PART, "families"), {"bmm": {"edges_ms": [1.0], "halves": [0.1]}}, "1 intervals do not fit edges (1.0,), which"),
    ("cpu", ("parts", CONVOLUTION, "families"), {"conv3d": {"edges_ms": [], "halves": [0.1]}},
     "['op'] are none of its features"),
    ("cpu", (*PART, "halves"), lambda old: [-value for value in old], "greater than or equal to 0"),
    ("cpu", (*PART, "ranges", "m"), [3.0, 1.0], "the lower limit is above the upper one"),
    ("cpu", (*PART, "ranges", "weight"), [1.0, 3.0], "['weight'] are none of its features"),
    ("cpu", (*PART, "features"), lambda old: old[::-1], "it has other terms or features than this program makes of operators"),
    ("cpu", (*REGRESSOR, "terms"), lambda old: old[::-1], "it has other terms or features"),
    ("cpu", (*REGRESSOR, "costs"), lambda old: old[:-1], "7 terms have 6 costs"),
    ("cpu", (*REGRESSOR, "names"), lambda old: old[:-1], "its networks take 30 inputs, its features make"),
    ("cpu", (*REGRESSOR, "known", "op"), lambda old: old[:-1], "gemm forward: its networks take 30 inputs, its features"),
    ("cpu", (*REGRESSOR, "known", "colour"), [1.0], "known values of no feature"),
    ("cpu", (*REGRESSOR, "form"), "pickle", "does not match any of the expected tags"),
    ("cpu", (*REGRESSOR, "scale", 0), 0.0, "greater than 0"), ("cpu", (*REGRESSOR, "bounds"), [1.0, -1.0], "the lower limit"),
    ("cpu", (*REGRESSOR, "centre"), lambda old: old[:-1], "do not follow one another from 29 inputs to 1"),
    ("cpu", (*REGRESSOR, "layers", 0, 0), shorter, "do not follow one another"),
    ("cpu", (*REGRESSOR, "layers", 1, 1), shorter, "do not follow one another"),
    ("cpu", (*REGRESSOR, "layers"), lambda old: old[:1], "at least 2 items"),
    ("cpu", (*REGRESSOR, "layers", 2, 0), nan, "holds numbers that are not finite"),
    ("cpu", (*REGRESSOR, "layers", 2, 0, "data"), "AAAA", "3 bytes are no <f4 of shape (1, 64, 1)"),
    ("cpu", (*REGRESSOR, "layers", 2, 0, "data"), "\u00e4", "0 bytes are no <f4"),
    ("cpu", (*REGRESSOR, "layers", 2, 0, "dtype"), "O", "dtype = 'O'"),
    ("cpu", (*REGRESSOR, "layers", 2, 0, "shape"), [-1, 64, 1], "shape.0 = -1"),
    ("cpu", (*REGRESSOR, "layers", 2, 0, "shape"), [10**30, 64, 1], "layers.2.0"),
    ("cpu", (*PART, "correction"), {"names": ["m"]}, "correction.centre is missing"),
    ("cpu", (*PART, "correction"), {"names": ["m"], "centre": [0.0], "scale": [1.0], "points": [[0.0, 1.0]], "weights": [1.0],
                                    "mean": 0.0, "signal": 1.0, "length": 1.0}, "are not of the same features"),
    ("cpu", ("parts",), lambda old: {"gemm sideways": old[GEMM]}, "there is no pass 'sideways'; there are: forward, backward"),
    ("cpu", ("parts",), lambda old: {"fft forward": old[GEMM]}, "there is no group 'fft'; there are: convolution"),
    ("cpu", ("parts",), lambda old: {"memory forward": old[GEMM]}, "it has other terms or features"),
    ("cpu", ("compositions", "infer kept", "half"), float("inf"), "half"),
    ("gpu", (*REGRESSOR, "trees", "value"), nan, "not finite"), ("gpu", (*REGRESSOR, "trees", "roots"), shorter, None),
    ("gpu", (*REGRESSOR, "trees", "feature"), shorter, "are no trees"),
    ("gpu", (*REGRESSOR, "quantiles"), [2, 1], "the lower"),
    ("gpu", (*REGRESSOR, "trees", "ensembles"), 0, "ensembles = 0"),
    ("gpu", (*REGRESSOR, "trees", "roots"), lambda old: model_file.Array.plain(np.array([10**9], np.int32)), "begins at no"),
    ("gpu", (*REGRESSOR, "trees", "feature"), lambda old: model_file.Array.plain(np.zeros(old["shape"], np.int16)), "no child"),
]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("device", "place", "value", "words"), WRONG)
def test_a_file_with_a_wrong_entry_is_one_line(contents, device, place, value, words, tmp_path):
    path = write(changed(contents[device], place, value), tmp_path / "model.json.gz")
    if words is None:  # one tree less is a model as well
        CostModel.load(path)
        return
    with pytest.raises(InputError) as error:
        CostModel.load(path)
    assert str(path) in str(error.value) and words in str(error.value)
    assert "\n" not in str(error.value) and len(str(error.value)) < 1500


def test_what_is_no_such_file_is_one_line(tmp_path, monkeypatch):
    path, whole = tmp_path / "m.json.gz", CPU.read_bytes()
    torn = [whole[:1000], whole[:-9], whole[:5000] + b"\0" * 90 + whole[5090:], b"", gzip.compress(b"[1, 2]"),
            gzip.compress(b"7"), gzip.compress(b"\xff"), gzip.compress(b"[" * 100_000), gzip.compress(b'{"schema": null}')]
    for content in torn:
        path.write_bytes(content)
        with pytest.raises(InputError, match="m.json.gz is no cost model, or is damaged") as error:
            CostModel.load(path)
        assert "\n" not in str(error.value)
    with pytest.raises(InputError, match="is missing"):
        CostModel.load(tmp_path / "none.json.gz")
    monkeypatch.setattr(model_file, "_MOST_BYTES", 10_000_000)
    path.write_bytes(gzip.compress(b" " * 100_000_000))
    with pytest.raises(InputError, match="holds more than 10 MB: it is no cost model"):
        CostModel.load(path)


def test_a_model_that_could_not_be_read_back_is_not_written(tmp_path):
    model = CostModel.load(CPU)
    model.parts[GEMM].halves = [float("nan")]
    with pytest.raises(InputError, match="is not written: parts.gemm forward.halves"):
        model.save(tmp_path / "m.json.gz")
    assert not list(tmp_path.iterdir())


NAMES = [("t4_fp32", "gpu", {}, "holds a bf16 model of a100-sxm-80gb, not what its name says"),
         ("a100-sxm-80gb_fp16", "gpu", {}, "holds a bf16 model of a100-sxm-80gb, not what its name says"),
         ("cpu-other-2c-12345678_fp32", "cpu", {"device": "cpu-other-2c-12345678"}, "was fitted on other hardware, ea2da3d4"),
         ("t4_fp32", "cpu", {"device": "t4"}, "is named as that of a GPU, and holds that of another device type"),
         ("model", "cpu", {}, "is named as no model is, <device>_<element type>.json.gz"),
         ("t4_fp7", "cpu", {}, "is named as no model is")]


@pytest.mark.parametrize(("name", "device", "other", "words"), NAMES)
def test_a_file_is_what_its_name_says(contents, name, device, other, words, tmp_path):
    path = write(contents[device] | other, tmp_path / f"{name}.json.gz")
    with pytest.raises(InputError) as error:
        registry.load(path)
    assert str(path) in str(error.value) and words in str(error.value)


@pytest.mark.parametrize("fact", ["dtype", "latency_type", "launch_ms", "hardware_id", "peak_gflops", "peak_gbps"])
def test_a_model_without_the_facts_that_predict_is_refused(contents, fact, tmp_path):
    facts = {name: value for name, value in contents["gpu"]["facts"].items() if name != fact}
    with pytest.raises(InputError, match=f"lacks the facts {fact}, without which nothing is predicted; train it again"):
        registry.load(write(contents["gpu"] | {"facts": facts}, tmp_path / GPU.name))


def test_a_composition_has_the_rates_of_its_terms(contents, tmp_path):
    content = changed(contents["cpu"], ("compositions", "infer kept", "rates"), {"sum_ms": 1.0})
    with pytest.raises(InputError, match="a composition has other rates than sum_ms, moved_ms, fresh_mb"):
        registry.load(write(content, tmp_path / CPU.name))


def test_resident_memory_has_the_rates_of_its_terms(contents, tmp_path):
    content = changed(contents["cpu"], ("resident", "default", "rates"), {"first_use": 1.0})
    with pytest.raises(InputError, match="resident memory has other rates than first_use, weights_mb, infer_peak_mb"):
        registry.load(write(content, tmp_path / CPU.name))


def test_rates_of_an_earlier_release_are_taken_by_todays_names(contents, tmp_path):
    """What was always 0 is no rate any more; where it was not, the composition is of terms that there are none of."""
    def earlier(modules):
        content = changed(contents["cpu"], ("compositions", "infer kept", "rates", "modules"), modules)
        rates = content["resident"]["default"]["rates"]
        rates["taken_mb"] = rates.pop("blocks_mb")
        return write(content, tmp_path / CPU.name)

    model, today = registry.load(earlier(0.0)), registry.load(CPU)
    assert model.compositions == today.compositions and model.resident == today.resident
    assert set(model.resident["default"]["rates"]) == set(resident.TERMS)
    with pytest.raises(InputError, match="other rates than sum_ms, moved_ms, fresh_mb"):
        registry.load(earlier(0.001))


@pytest.mark.parametrize("wrong", [0.0, -1.0, "fast"])
def test_an_efficiency_that_is_none_is_refused(contents, wrong, tmp_path):
    content = changed(contents["cpu"], ("efficiencies", "infer", "conv"), wrong)
    with pytest.raises(InputError, match="efficiencies"):
        registry.load(write(content, tmp_path / CPU.name))


def test_what_was_learned_of_networks_is_saved_with_a_model(contents, tmp_path):
    model = registry.load(write(contents["cpu"], tmp_path / CPU.name))
    again = CostModel.load(model.save(tmp_path / "again.json.gz"))
    assert again.efficiencies == model.efficiencies and again.resident == model.resident
    assert set(model.efficiencies) == {"infer", "train"} and set(model.resident) == {"default", "kept"}
    assert model.borrowed().efficiencies == model.efficiencies, "another machine's kinds of operators run among others alike"


def test_a_broken_file_among_others_does_not_vanish(home, capsys):
    paths.MODELS.mkdir(parents=True)
    broken = paths.MODELS / "cpu-mine-1c-00000000_bf16.json.gz"
    broken.write_bytes(b"x")
    assert main(["models"]) == 1
    out = capsys.readouterr().out
    assert str(broken) in out and "is no cost model, or is damaged" in out and "a100-sxm-80gb" in out
    with pytest.raises(InputError, match="cpu-mine-1c-00000000_bf16.json.gz is no cost model"):
        registry.predictor("cpu", "bf16")
    assert len(advise(Query("simple_cnn", 1, "3x28x28"), ["cpu"]).table), "the others answer"
    with pytest.raises(InputError, match="a device is named twice: t4, cpu, t4"):
        registry.for_devices(["t4", "cpu", "t4"], "fp32")


ODD = (None, True, -1, 0, 1e308, "", "x", [], {}, [[]], [None], float("nan"), float("-inf"), 2**70)


def places(value, path=()):
    """Yield the path of every entry of a file's content, arrays in base64 as one."""
    yield path
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(min(3, len(value))):
            yield from places(value[key], (*path, key))


def test_whatever_an_entry_becomes_it_is_an_answer_or_a_line(contents, tmp_path):
    """Every entry in turn becomes something odd: the model is refused in one line, or still predicts positive numbers."""
    draw, config = random.Random(0), spaces.config("matmul", {"gemm_m": 64, "gemm_k": 64, "gemm_n": 64, "layout": "nn"})
    refused = 0
    for content in contents.values():
        one = content | {"parts": {GEMM: content["parts"][GEMM]}}
        for place in draw.sample(list(places(one))[1:], 50):
            path = write(changed(one, place, draw.choice(ODD)), tmp_path / "m.json.gz")
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    model = CostModel.load(path)
                    predicted_ms, low_ms, high_ms = model.predict_one(config.op, dict(config.parameters), 5e5, 5e4)
            except InputError as error:
                refused += 1
                assert "\n" not in str(error)
                continue
            assert 0 <= low_ms <= predicted_ms <= high_ms, place
    assert refused > 60

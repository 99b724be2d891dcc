"""The door of model files (``CostModel.load``): a CPU's and a GPU's, their JSON changed somewhere, or their bytes damaged."""

import gzip
import json
import warnings
from functools import cache

import pandas as pd

from lib.predict import registry
from lib.predict.operators.cost_model import CostModel
from tests.doors import ANY, SAME, Door, damaged, pass_through, pick
from tests.doors.definitions import HOWS, altered

FILES = {"cpu": next(registry.SHIPPED.glob("cpu-*_fp32.json.gz")), "gpu": registry.SHIPPED / "a100-sxm-80gb_bf16.json.gz"}
GEMM, CONVOLUTION = "gemm forward", "convolution forward"
PRODUCT = pd.DataFrame({"op": ["matmul"], "pass": "forward", "gemm_m": 64, "gemm_n": 64, "gemm_k": 64, "flops": 2 * 64.0**3,
                        "bytes": 3 * 4 * 64.0**2})


@cache
def content(device):
    """Return what the file of a device's model holds, of few parts."""
    whole = json.loads(gzip.decompress(FILES[device].read_bytes()))
    return {**whole, "parts": {name: whole["parts"][name] for name in (GEMM, CONVOLUTION) if name in whole["parts"]}}


def packed(model):
    """Return the bytes of a model's file."""
    return gzip.compress(json.dumps(model).encode(), compresslevel=1)


def _predicted(path):
    """Load a model, and return its prediction of a product of matrices."""
    with warnings.catch_warnings(action="ignore"):
        model = CostModel.load(path)
        ((ms, low_ms, high_ms),) = model.predict(PRODUCT)[["predicted_ms", "low_ms", "high_ms"]].to_numpy()
    assert 0 <= low_ms <= ms <= high_ms
    return ms, low_ms, high_ms


def _attempt(data, folder):
    device, how = pick(data, sorted(FILES)), pick(data, [*HOWS, "bytes"], "how")
    parts, place = content(device)["parts"], ()
    model = {**content(device), "parts": {GEMM: parts[GEMM]}}
    path, kind = folder / FILES[device].name, HOWS.get(how, ANY)
    path.write_bytes(packed(model))
    expected = _predicted(path)
    if how in HOWS and kind != SAME:
        model, place = altered(model, how, data, 3)
    path.write_bytes(packed(model) if how in HOWS else damaged(packed(model), data))
    kind = ANY if {"facts", "scores"} & {*place} else kind
    return pass_through(lambda: _predicted(path), kind, f"a model file, {how} at {place}", expected)


DOOR = Door("model files", _attempt)

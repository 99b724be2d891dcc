"""GPUs that work together: what they exchange, what their host launches, how both are learned, and answers about them."""

import numpy as np
import pandas as pd
import pytest

from lib.predict import parallel
from lib.predict.advice import questions

COSTS = parallel.Costs(0.5, 0.0, 0.0, {"train": 0.1, "infer": 0.05}, 0.2)
TERMS = {"mode": "train", "gpus": 4, "gbps": 20.0, "weights_mb": 100.0, "gradients_mb": 100.0, "forward_operators": 40}
ONE = {"predicted_ms": 60.0, "low_ms": 50.0, "high_ms": 72.0}


@pytest.mark.parametrize("scheme, change, predicted_ms", [
    ("ddp", {}, 60 + 3.93),  # all but the last bucket is hidden
    ("ddp", {"gbps": 1.0}, 60 + 300 - 40),  # a ring moves each byte twice but for a share of 1/4: 150 MB at 0.5 GB/s
    ("ddp", {"gradients_mb": 0.0}, 60),  # inference
    ("data_parallel", {"forward_operators": 0}, 60 + 20),
    ("data_parallel", {"gbps": np.inf, "forward_operators": 1600}, np.hypot(60, 800))])
def test_times_of_both_schemes(scheme, change, predicted_ms):
    times = parallel.times(scheme, ONE, TERMS | change, COSTS)
    assert times["predicted_ms"] == pytest.approx(predicted_ms)
    assert times["high_ms"] >= predicted_ms * np.exp(0.2) and times["low_ms"] <= predicted_ms * np.exp(-0.2)


def exchanges():
    links = pd.DataFrame([(device, gpus, 16.0, mb) for device in ("t4", "p4") for gpus in (2, 8) for mb in (0.4, 60.0, 120.0)],
                         columns=["device", "gpus", "gbps", "mb"])
    return links.assign(licence="MIT",
                        measured_ms=parallel.all_reduce_ms(links["mb"], links, COSTS) + 1e-3 * (links["device"] == "p4"))


def test_costs_are_learned_from_what_they_predict():
    networks = pd.DataFrame([TERMS | {"mode": mode, "gpus": gpus, "alone_ms": 30.0} for mode in ("train", "infer")
                             for gpus in (2, 3)])
    passes = dict.fromkeys(parallel.ENDS, networks["alone_ms"])
    networks["licence"], networks["passes_ms"] = "MIT", parallel.times("data_parallel", passes, networks, COSTS)["predicted_ms"]
    learned = parallel.learn(exchanges(), networks)
    assert learned.host_ms == pytest.approx(COSTS.host_ms, rel=1e-2) and learned.efficiency == pytest.approx(0.5, rel=1e-2)
    assert learned.half == pytest.approx(0, abs=1e-3) and parallel.learn(exchanges(), networks[:0]) is None


def test_a_table_answers_for_the_gpus_of_each_row():
    wrong = {"gpus '2.5'": (8, 2.5, "ddp", "t4"), "17 GPUs cannot share a batch of 34": (34, 17, "ddp", "t4"),
             "2 GPUs cannot share a batch of 9": (9, 2, "ddp", "t4"), "2 GPUs) for: cpu": (8, 2, "ddp", "cpu"),
             "there are: ddp, data_parallel": (8, 2, "ring", "t4")}
    rows = pd.DataFrame([(8, 2, "ddp", "t4"), (4, 1, "ddp", "t4"), *wrong.values()],
                        columns=["batch_size", "gpus", "parallel", "device"]).assign(model="resnet18", mode="train")
    both, alone, *failed = questions.answer(questions.from_table(rows)).to_dict("records")
    assert both["memory_mb"] == alone["memory_mb"] + both["gradients_mb"], "buckets"
    assert both["images_per_sec"] < 2 * alone["images_per_sec"] and both["scaling_efficiency"] < 1
    assert both["predicted_ms"] == pytest.approx(alone["predicted_ms"] + both["parallel_ms"])
    assert both["out_of_range"], "no network was measured so"
    assert all(words in row["error"] for words, row in zip(wrong, failed, strict=True))

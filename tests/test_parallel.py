"""Training on several GPUs: what they exchange, how its cost is learned, and answers about them."""

import numpy as np
import pandas as pd
import pytest

from lib.predict import parallel
from lib.predict.advice import questions

COSTS = parallel.Costs(0.5, 0.1, 0.0)
ONE = {"predicted_ms": 60.0, "low_ms": 50.0, "high_ms": 72.0}


@pytest.mark.parametrize("gradients_mb, gbps, predicted_ms", [
    (100.0, 20.0, 60 + 3.93),  # all but the last bucket is hidden
    (100.0, 1.0, 60 + 300 - 40),  # a ring moves each byte twice but for a share of 1/4: 150 MB at 0.5 GB/s
    (0.0, 20.0, 60)])  # inference
def test_the_exchange_adds_what_the_backward_pass_does_not_hide(gradients_mb, gbps, predicted_ms):
    times = parallel.times(ONE, gradients_mb, 4, gbps, COSTS)
    assert times["predicted_ms"] == pytest.approx(predicted_ms)
    assert times["high_ms"] >= predicted_ms * np.exp(0.2) and times["low_ms"] <= predicted_ms * np.exp(-0.2)


def test_costs_are_learned_from_what_they_predict():
    links = pd.DataFrame([(device, gpus, 16.0, mb) for device in ("t4", "p4") for gpus in (2, 8) for mb in (0.4, 60.0, 120.0)],
                         columns=["device", "gpus", "gbps", "mb"])
    exact_ms = parallel.all_reduce_ms(links["mb"], links["gpus"], links["gbps"], parallel.Costs(0.5, 0.0, 0.0))
    learned = parallel.learn(links.assign(licence="MIT", measured_ms=exact_ms * np.where(links["device"] == "p4", 1.2, 1.0)))
    assert learned.efficiency == pytest.approx(0.5 / 1.2 ** 0.5, rel=1e-2) and learned.source == "MIT"
    assert learned.spread == pytest.approx(np.log(1.2) / 2, rel=1e-2) and learned.latency_ms == pytest.approx(0, abs=1e-3)


def test_a_table_answers_for_the_gpus_of_each_row():
    wrong = {"gpus '2.5'": (8, 2.5, "t4"), "17 GPUs cannot share a batch of 34": (34, 17, "t4"),
             "2 GPUs cannot share a batch of 9": (9, 2, "t4"), "2 GPUs) for: cpu": (8, 2, "cpu")}
    rows = pd.DataFrame([(8, 2, "t4"), (4, 1, "t4"), *wrong.values()],
                        columns=["batch_size", "gpus", "device"]).assign(model="resnet18", mode="train")
    both, alone, *failed = questions.answer(questions.from_table(rows)).to_dict("records")
    assert both["memory_mb"] == alone["memory_mb"] + both["gradients_mb"], "buckets"
    assert both["images_per_sec"] < 2 * alone["images_per_sec"] and both["scaling_efficiency"] < 1
    assert both["predicted_ms"] == pytest.approx(alone["predicted_ms"] + both["parallel_ms"])
    assert both["out_of_range"], "no network was measured so"
    assert all(words in row["error"] for words, row in zip(wrong, failed, strict=True))

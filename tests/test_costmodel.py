"""Operator models: one row and a table, ranges, files, fine-tuning; and what they refuse."""

import numpy as np
import pandas as pd
import pytest

from lib import paths, store
from lib.predict import registry
from lib.predict.analytic.scaling import Scaling
from lib.predict.operators import cost_model, fitting, inputs
from lib.predict.operators.fine_tuning import farthest_first, fine_tuned
from lib.predict.operators.validation import usable
from lib.predict.scores import score
from lib.work.graph import spaces
from tests import refused


@pytest.fixture(scope="module")
def swept():
    """Give the reference sweep of the CPU."""
    return store.read(next(paths.REFERENCE.glob("*/sweeps/all_kernel_warm/sweep.parquet")), "sweep")


@pytest.fixture(scope="module")
def products(swept):
    return swept[swept["op"].isin(("linear", "matmul")) & (swept["pass"] == "forward")].reset_index(drop=True)


@pytest.fixture(scope="module")
def model(products):
    return fitting.fit(products.iloc[::2], {"source": "test"})


@pytest.mark.parametrize("op", spaces.load_sweeps().spaces)
def test_a_prediction_of_one_is_that_of_a_table(op, swept):
    """On the CPU that was measured, and on another one that is predicted from it."""
    shipped, rows = registry.shipped_cpu("fp32"), swept[(swept["op"] == op) & (swept["status"] == "ok")].head(20)
    terms, x = inputs.frames(rows, None)
    assert np.isfinite(x.to_numpy()).all() and (terms.to_numpy() >= 0).all()
    for whole in (shipped, shipped.scaled(Scaling(2.0, 0.5, 1.5, 100.0, 30.0), Scaling(3.0, 0.5, 1.5, 100.0, 30.0))):
        expected = whole.predict(rows)["predicted_ms"].to_numpy()
        alone = pd.concat([whole.predict(rows.iloc[[place]]) for place in range(len(rows))])
        assert alone["predicted_ms"].to_numpy() == pytest.approx(expected, rel=1e-5)


@pytest.mark.slow
def test_a_question_outside_of_what_was_learned_is_said_to_be_so(model, products):
    learned = usable(products.iloc[::2])
    known, answer = learned.iloc[[0]], model.predict(learned)
    assert not answer["out_of_range"].any() and answer.eval("0 < low_ms <= predicted_ms <= high_ms").all()
    huge = model.predict(known.assign(gemm_m=10**6, flops=known["flops"] * 1e4, bytes=known["bytes"] * 1e3))
    assert huge["out_of_range"].all() and np.isfinite(huge["predicted_ms"]).all()
    assert model.predict(known.assign(layout="tt"))["out_of_range"].all()
    with refused("was not trained on convolution forward; it has: gemm forward"):
        model.predict(known.assign(op="conv2d"))


def test_a_saved_model_says_the_same(model, products, tmp_path):
    path = model.save(tmp_path / "cpu.json.gz")
    again = cost_model.CostModel.load(path)
    pd.testing.assert_frame_equal(again.predict(products), model.predict(products))
    assert again.facts == model.facts
    assert model.save(tmp_path / "again.json.gz").read_bytes() == path.read_bytes()


@pytest.mark.parametrize("content, words", [
    ('{"schema": 99}', "model.json is a cost model of schema 99, .* update the"),
    ('{"schema": 1, "parts": {}}', "of schema 1, this program reads schema 4: train it again with: python -m lib models")])
def test_files_of_other_releases(tmp_path, content, words):
    (tmp_path / "model.json").write_text(content)
    with refused(words):
        cost_model.CostModel.load(tmp_path / "model.json")


def test_tables_that_one_model_cannot_learn_from(products):
    ok = products[products["status"] == "ok"].head(60).assign(verdict="stable")
    with refused("rows have no positive time, the first is"):
        fitting.fit(ok.assign(latency_ms=np.where(np.arange(60) == 3, 0.0, ok["latency_ms"])))
    with refused("one model answers for one value of hardware_id"):
        fitting.fit(ok.assign(hardware_id=["a", "b"] * 30))
    with refused("too few rows: a part needs 40, there are {'gemm forward': 30}"):
        fitting.fit(ok.head(30))


def test_a_few_points_teach_another_device(model, products):
    """A device 2.5 times as slow, more so for large products, is learned from 60 points far from one another."""
    rows = usable(products).reset_index(drop=True)
    other = rows.assign(latency_ms=rows["latency_ms"] * 2.5 * (rows["flops"] / 1e6) ** 0.03, hardware_id="other")
    chosen = farthest_first(inputs.frames(rows, None)[1].to_numpy(), 60)
    assert len(set(chosen)) == 60
    taught, unseen = fine_tuned(model, other.iloc[chosen]), other.drop(index=chosen)
    before, after = (score(unseen["latency_ms"].to_numpy(), one.predict(unseen)["predicted_ms"].to_numpy())["median"]
                     for one in (model, taught))
    assert before > 50 and after < 20 and taught.parts["gemm forward"].rows == 60

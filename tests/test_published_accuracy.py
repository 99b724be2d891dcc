"""The accuracy published of the reference machine's model is that of the shipped model, on networks that it never saw."""

import numpy as np
import pandas as pd
import pytest

from lib import store
from lib.predict import network_training, registry, training
from lib.predict.evaluation import evaluate
from lib.predict.networks import resident, work
from lib.work import networks


@pytest.fixture(scope="module")
def published():
    """Give networks with their terms and predictions as published."""
    return pd.read_csv(training.reference_machine() / "predictions/networks.csv")


@pytest.fixture(scope="module")
def model():
    return registry.shipped_cpu("fp32")


def test_the_shipped_model_learned_from_the_published_networks(published, model):
    learned = network_training.learned(published)
    assert {mode: pytest.approx(one.efficiencies, rel=1e-6) for mode, one in learned.items()} == model.efficiencies
    fits = {**network_training.compositions(learned), **resident.learned(published)}
    assert {name: (pytest.approx(one.rates, rel=1e-6), pytest.approx(one.half, rel=1e-6)) for name, one in fits.items()} == {
        name: (one.rates, one.half) for name, one in {**model.compositions, **model.resident}.items()}
    assert set(model.resident) == {"default", "kept"}


@pytest.mark.slow
def test_published_predictions_and_scores_come_from_the_published_terms(published):
    columns = ["predicted_ms", "low_ms", "high_ms", "shipped_ms"]
    again = network_training.composed(published.drop(columns=columns))
    assert again[columns].to_numpy() == pytest.approx(published[columns].to_numpy(), rel=1e-6)
    scores = store.read(training.reference_machine() / "predictions/scores.parquet", "scores")
    mine = scores[scores["kind"].isin(("network", "memory"))].reset_index(drop=True)
    fresh = evaluate.network_scores(published)
    assert fresh["mape"].to_numpy() == pytest.approx(mine["mape"].to_numpy(), rel=1e-6)
    assert fresh["n"].tolist() == mine["n"].tolist()


@pytest.mark.slow
def test_no_network_is_predicted_by_a_composition_fitted_to_its_family(published):
    """Times of a family are falsified: predictions of its validating networks stay, those of other families move."""
    own, validating = published["family"] == "resnet", ~published["tuning"]
    assert (own & validating).any() and (own & ~validating).any()
    false = published.assign(latency_ms=published["latency_ms"].where(~own, 3 * published["latency_ms"]))
    again = network_training.composed(false)
    same = np.isclose(again["predicted_ms"], published["predicted_ms"], rtol=1e-6)
    assert same[own & validating].all()
    assert not same[~own & validating].all()


def test_validating_networks_are_not_tuning_networks(published):
    assert set(published["network"][published["tuning"]]) == set(network_training.TUNING)
    assert not set(published["network"][~published["tuning"]]) & set(network_training.TUNING)
    assert networks.family("resnext50_32x4d") == networks.family("resnet18") == "resnet"
    assert networks.family("W1") == "W1"


@pytest.mark.parametrize("name, mode, batch", [("squeezenet1_0", "infer", 1), ("W1", "train", 16),
                                                     ("resnet34", "infer", 8)])
def test_the_shipped_model_predicts_what_was_published(published, model, name, mode, batch):
    """From the network itself: captured, predicted operator by operator, composed; with freed memory retained."""
    row = published[(published["network"] == name) & (published["mode"] == mode) & (published["batch_size"] == batch)
                    & (published["memory"] == "kept")].iloc[0]
    one = registry.Predictor(model.device, "fp32", model)
    answer = one.estimate(work.captured(networks.network(name, batch), mode), "kept")
    assert answer.predicted_ms == pytest.approx(row["shipped_ms"], rel=1e-4)
    assert answer.outside == pytest.approx(row["outside"], abs=1e-4)


@pytest.mark.slow
def test_published_predictions_of_operators_are_of_held_out_shapes(model):
    """Every usable row of a family that is scored has one prediction, by the fold that left it out."""
    table, names = training.reference_sweeps(training.reference_machine())
    rows = store.read(training.reference_machine() / "predictions/operators.parquet", "held_out")
    rows, unusable = rows[rows["usable"]], rows[~rows["usable"]]
    assert len(unusable) > 1000 and not set(unusable["case"]) & set(table["config"])
    assert names == model.facts["sweeps"]
    assert not rows["case"].duplicated().any()
    assert set(rows["case"]) <= set(table["config"])
    measured = table.set_index("config")["latency_ms"].reindex(rows["case"]).to_numpy()
    assert rows["measured"].to_numpy(float) == pytest.approx(measured, rel=1e-6), "in single precision"
    assert len(rows) >= 0.97 * sum(part.rows for part in model.parts.values())

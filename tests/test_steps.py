"""Whole steps: their parts, what these cost, the file that holds it, and what is learned from collected profiles."""

import json
import math
import shutil
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lib import paths, store
from lib.config.definitions import load_scenarios
from lib.config.notebooks import ProfileParams
from lib.measure import archive
from lib.measure.training import profile_run
from lib.predict import registry, steps
from lib.predict.advice import advise_text
from lib.predict.evaluation import profiled_steps
from lib.predict.networks import step, work
from lib.predict.networks.composition import Estimate, Provenance
from lib.predict.networks.step import STEP_PHASES, Costs, Step, StepModel, StepPart
from lib.predict.registry import Predictor
from lib.predict.steps import Recipe
from lib.schedule import scenarios
from lib.work import networks
from lib.work.graph import capture, counts
from tests import advice_on, output_of, refusal, refused, with_value

pytestmark = pytest.mark.slow

SHIPPED = min((registry.SHIPPED / "steps").glob("cpu-*.json"))
CPU = f"cpu@{SHIPPED.stem.removeprefix('cpu-')}"  # the machine of the reference, whichever this one is
ms = st.floats(1e-3, 1e4)


@pytest.fixture(scope="module")
def cpu():
    model = registry.shipped_cpu("fp32")
    return Predictor("cpu", "fp32", model, model.device, shipped=True)


@pytest.fixture(scope="module")
def t4():
    return registry.for_devices(["t4"], "fp32", shipped=True)[0]


@pytest.fixture(scope="module")
def w1():
    return work.captured(networks.network("W1"), "train")


@pytest.mark.cuda
def test_a_profiled_step_of_a_gpu_lies_in_the_interval_of_its_prediction(home, w1):
    """Once its parts are learned there; before, the copy and the optimizer are within three times of what was assumed."""
    device = registry.vendor_of(torch.cuda.get_device_name(0))
    for name in ("W1", "W3", "W6"):
        profile_run.profile(ProfileParams(workload=name, device="cuda:0", data_source="synthetic"))
    gpu = registry.for_devices([device], "fp32")[0]
    before = steps.predict(replace(gpu, shipped=True), w1, steps.loading("W1", w1))
    profiled_steps.learn_all("measure")
    table = profiled_steps.published(steps.path_of(device), "measure")
    ours = table[(table["learner"] == profiled_steps.OURS) & (table["workload"] == "W1")].iloc[0]
    assert ours["low_ms"] < ours["measured_ms"] < ours["high_ms"]
    after = steps.predict(gpu, w1, steps.loading("W1", w1))
    for name in ("h2d", "optimizer"):
        assert 1 / 3 < after.parts[name].predicted_ms / before.parts[name].predicted_ms < 3


@given(st.tuples(*[ms] * 5), st.floats(1, 3), st.floats(1, 3))
def test_a_step_is_the_sum_of_its_parts_and_no_surer_than_its_passes(sizes, spread, passes_spread):
    parts = {name: StepPart(size, size / spread, size * spread) for name, size in zip(STEP_PHASES, sizes, strict=True)}
    passes_ms = parts["forward"].predicted_ms + parts["backward"].predicted_ms
    passes = Estimate(passes_ms, passes_ms / passes_spread, passes_ms * passes_spread, 0, Provenance(), pd.DataFrame)
    whole = Step(parts, passes, 1.0)
    assert (whole.predicted_ms, whole.beside_ms) == pytest.approx((sum(sizes), sum(sizes) - passes_ms))
    assert 0 < whole.low_ms <= whole.predicted_ms * (1 + 1e-9)
    assert whole.high_ms - whole.predicted_ms >= (passes.high_ms - passes_ms) * (1 - 1e-9)
    assert whole.high_ms <= sum(sizes) * spread + passes.high_ms
    assert whole.parts[whole.longest].predicted_ms == max(sizes)


@pytest.mark.parametrize("optimizer, moved", [("adam", 72), ("adamw", 80)])
def test_an_optimizer_moves_so_many_bytes_a_parameter(optimizer, moved):
    """Operator by operator: Adam's eight read and write 18 numbers, its weight decay two more."""
    ops = capture.optimizer_ops(1_000_000, optimizer)
    assert sum(map(counts.compulsory_bytes, ops)) == pytest.approx(1e6 * moved, rel=1e-3)


def test_a_gpu_updates_many_parameters_by_one_kernel(w1):
    each, together = (w1.update("adam", many) for many in (False, True))
    assert each.calls == 8 * len(w1.trained) and together.calls == 8
    assert together.bytes == pytest.approx(each.bytes, rel=1e-3)
    assert w1.update("adam", True, itemsize=2).bytes == pytest.approx(2 * together.bytes, rel=1e-3), "its state is in 32 bits"


def costs_known(seed, rates):
    """Return terms with the times that known rates give, and the group of each row."""
    draw = np.random.default_rng(seed)
    terms = pd.DataFrame({name: draw.uniform(1, 50, 24) for name in rates})
    return terms, terms.to_numpy() @ list(rates.values()), np.arange(24) % 6


@pytest.mark.parametrize("name, rates", [
    ("loader_wait", {"batches": 0.3, "samples": 0.03, "mb": 0.4, "resized_mb": 1.2}),
    ("optimizer", {"operators_ms": 1.0, "calls": 0.004})])
def test_costs_are_the_rates_that_made_the_times(name, rates):
    fitted = step.fit(name, *costs_known(0, rates), "test")
    assert fitted.rates == pytest.approx(rates, rel=1e-6)
    assert fitted.half == pytest.approx(0, abs=1e-6) and fitted.groups == 6 and fitted.scores["mape"] < 1e-4
    assert fitted.predict(dict.fromkeys(rates, 2.0)).predicted_ms == pytest.approx(2 * sum(rates.values()))


def test_an_interval_is_that_of_groups_left_out_and_one_group_says_nothing_of_others():
    """A group that is twice as slow as all others lies inside of the interval, though it was fitted too."""
    terms, measured, groups = costs_known(1, {"batches": 0.1, "mb": 0.2})
    assert step.fit("h2d", terms, np.where(groups == 3, 2 * measured, measured), groups, "test").half > math.log(1.6)
    with refused("two workloads or more of different models, not to 1"):
        step.fit("h2d", terms, measured, np.zeros(24), "test")


def test_workers_hide_the_loader_and_accumulation_shares_the_optimizer(cpu, t4, w1):
    load = steps.loading("W1", w1)
    plain = steps.predict(t4, w1, load)
    wait_ms = plain.parts["loader_wait"].predicted_ms
    assert plain.memory_mb == pytest.approx(w1.memory_mb + 8 * sum(w1.trained) / 1e6), "and what Adam keeps"
    assert steps.predict(t4, w1, load, Recipe(num_workers=1)).predicted_ms == pytest.approx(
        max(plain.predicted_ms - wait_ms, wait_ms))
    assert steps.predict(cpu, w1, load, Recipe(num_workers=4)).parts["loader_wait"].predicted_ms == 0
    every, fourth = (steps.predict(cpu, w1, load, Recipe(grad_accum_steps=count)).parts["optimizer"] for count in (1, 4))
    assert fourth.predicted_ms == pytest.approx(every.predicted_ms / 4)


# ------------------------------------------------------------------------------------------------- where steps are shown

@pytest.fixture(scope="module")
def answer():
    return advice_on([CPU, "t4"], "W1", mode="train")


def test_advice_of_training_is_of_whole_steps(answer):
    table = answer.table.set_index("device")
    parts = table[[f"{name}_ms" for name in STEP_PHASES]]
    assert parts.sum(axis=1).to_numpy() == pytest.approx(table["predicted_ms"].to_numpy())
    measured = store.read(next(paths.REFERENCE.glob("*/runs/run_W1_*_cpu.csv")), "runs")["step_median_ms"][0]
    assert table["measured_ms"][CPU] == measured and math.isnan(table["measured_ms"]["t4"])
    assert table["low_ms"][CPU] < measured < table["high_ms"][CPU]
    text = advise_text.text(answer)
    for words in ("loader ms", "optimizer ms", "loader wait: as on cpu-", "a link of 6 GB/s, assumed (t4)"):
        assert words in text
    assert "forward and backward measured on this machine's CPU" in advise_text.verdict(answer, 20.0)


def test_a_loader_that_takes_most_of_a_step_bounds_it(monkeypatch):
    slow, real = Costs({"batches": 1e4, "samples": 0.0, "mb": 0.0, "resized_mb": 0.0}, 0.1, 3, "test"), steps.costs_of
    monkeypatch.setattr(steps, "costs_of", lambda *given: {**real(*given), "loader_wait": slow})
    table = advice_on([CPU, "t4"], "W1", mode="train").table
    assert table["bound"].tolist() == ["loader", "loader"]


def test_the_scheduler_compares_steps_with_the_same_parts_and_takes_a_profile_of_the_same_batch_for_measured():
    kinds, _ = load_scenarios()
    smaller = kinds["W1"].model_copy(update={"id": "smaller", "batch_size": 32})
    times = scenarios.class_times(["cpu", "t4"], [kinds["W1"], smaller, kinds["mobilenet_v2 infer"]])
    of_cpu = times[times["device"] == "cpu"].set_index("job_class")["source"].str.startswith("measured")
    assert of_cpu["W1"] and not of_cpu["smaller"]
    table = times.dropna(subset=scenarios.PHASE_COLUMNS).set_index(["job_class", "device"])
    assert set(table.index) == {("W1", "t4"), ("smaller", "cpu"), ("smaller", "t4")}, "not measured, and not inference"
    assert table[scenarios.PHASE_COLUMNS].sum(axis=1).to_numpy() == pytest.approx(table["step_ms"].to_numpy(), rel=1e-5)


# ------------------------------------------------------------------------------------------------- profiles, files

def test_what_ships_follows_from_the_reference_profiles():
    """The costs, and what they say of steps left out, are those that the committed profiles give again."""
    runs = steps.plain(archive.runs("replay"))
    (predictor,) = registry.for_devices([profiled_steps.device_of(runs, "replay")], "fp32", shipped=True)
    profiles = profiled_steps.gather(runs, "replay", predictor)
    shipped, again = StepModel.load(SHIPPED), profiled_steps.learn(profiles, SHIPPED.stem)
    assert steps.own_files(predictor)[0] == SHIPPED and again.runs == shipped.runs
    for name, costs in again.costs.items():
        assert costs.rates == pytest.approx(shipped.costs[name].rates, rel=1e-4)
        assert (costs.half, costs.groups) == pytest.approx((shipped.costs[name].half, shipped.costs[name].groups), rel=1e-4)
    ours = [table[table["learner"] == profiled_steps.OURS].reset_index(drop=True) for table in (
        profiled_steps.left_out(profiles, predictor), profiled_steps.published(SHIPPED, "replay"))]
    beside = ["run_id", "split", "measured_ms", "loader_wait_ms", "h2d_ms", "optimizer_ms"]
    pd.testing.assert_frame_equal(*(table[beside] for table in ours), rtol=1e-4)
    phases_ms = ours[1][[f"{name}_ms" for name in STEP_PHASES]]
    assert ours[1]["predicted_ms"].to_numpy() == pytest.approx(phases_ms.sum(axis=1).to_numpy())


def as_of(workload, hardware_id, folder, run=None, rows=None):
    """Put the reference's profile of a workload into a folder of data as another machine's, changed in its run and rows."""
    for kind, schema, changed in (("runs", "runs", run), ("profiles", "profile", rows)):
        for path in sorted(paths.REFERENCE.glob(f"*/{kind}/run_{workload}_*_cpu*.csv")):
            table = store.read(path, schema).assign(hardware_id=hardware_id, **changed or {})
            store.write(table, folder / kind / path.name, schema)


def as_gpu(workload, card="Tesla T4", hardware_id="here", folder=None, copy_ms=1.5):
    """Put the reference's profile of a workload there as if it were of a GPU that copies for so long."""
    as_of(workload, hardware_id, folder or paths.DATA, {"backend": "cuda", "device_name": card},
          {"device_type": "cuda", "device_index": 0, "h2d_ms": copy_ms})


def test_steps_of_an_imported_cpu_rest_on_its_own_model(home, w1):
    """In a folder that is not called as the machine calls itself."""
    for name in ("W1", "W3", "W6"):
        as_of(name, "feedbeef", paths.IMPORTED / "box-v2", rows={"loader_wait_ms": 77.0})
    with refused("cpu@box-v2: no fp32 model of cpu@box-v2; .* models --train box-v2"):
        profiled_steps.learn_all("measure")
    shipped, name = registry.shipped_cpu("fp32"), "cpu-box-v2-feedbeef"
    twice = {case: replace(one, rates={term: 2 * rate for term, rate in one.rates.items()})
             for case, one in shipped.compositions.items()}
    replace(shipped, device=name, facts=shipped.facts | {"hardware_id": "feedbeef", "sweeps": []}, compositions=twice).save(
        registry.path_of(name, "fp32", paths.IMPORTED / "box-v2/trained"))
    path, = profiled_steps.learn_all("measure")
    assert path == paths.IMPORTED / "box-v2/trained/steps" / f"{name}.json"
    (box,) = registry.for_devices(["box-v2"], "fp32")
    whole = steps.predict(box, w1, steps.loading("W1", w1))
    assert whole.parts["loader_wait"].source == f"profiles of {name}"
    table = profiled_steps.published(path, "measure")
    ours = table[(table["learner"] == profiled_steps.OURS) & (table["workload"] == "W1")]
    assert ours["forward_ms"].to_numpy() == pytest.approx(whole.parts["forward"].predicted_ms), "by its own model"


def test_steps_are_learned_from_profiles_of_equal_gpus_of_several_machines_and_unknown_ones_are_left_out(home, t4, w1):
    for name in ("W1", "W3", "W6"):
        as_gpu(name)
        as_gpu(name, hardware_id="there", folder=paths.IMPORTED / "other", copy_ms=3.0)
    as_gpu("W1", "Abacus 9000", "third", paths.IMPORTED / "third")
    path = paths.MODELS / "steps/t4.json"
    assert str(path) in output_of("models", "--train", "profiles") and json.loads(path.read_text())["source"] == "profiles"
    model = StepModel.load(path)
    assert model.device == "t4" and model.hardware_id == "here there" and len(model.runs) == 6
    assert model.costs["h2d"].groups == 3
    copy = steps.predict(replace(t4, shipped=False), w1, steps.loading("W1", w1)).parts["h2d"]
    assert copy.predicted_ms == pytest.approx(1.8, rel=0.05), "of 1.5 and 3.0, by least squares of relative errors"
    assert copy.source == "profiles of t4"


def test_too_few_profiles_are_one_line(home):
    words = "models", "--train", "profiles"
    assert "none was collected" in refusal(*words)
    as_gpu("W1")
    assert "three architectures or more, there are: simple_cnn" in refusal(*words)


def test_runs_that_are_not_of_the_plain_loop_teach_nothing():
    runs = archive.runs("replay")
    assert len(steps.measured_ms(runs))
    for changed in ({"num_workers": 2}, {"verdict": "unusable"}, {"arch": "resnet18"}, {"precision": "bf16"},
                    {"grad_accum_steps": 2}, {"augment": True}, {"random_crop": True}, {"channels_last": True},
                    {"resolution": "resized"}, {"workload_id": "gone"}, {"optimizer": "sgd"}):
        assert steps.plain(runs.assign(**changed)).empty, changed
        assert steps.measured_ms(runs.assign(**changed)) == {}, "nor are they shown beside its prediction"


def test_predictions_without_their_profiles_are_refused(tmp_path):
    path = shutil.copy(SHIPPED.with_suffix(".csv"), tmp_path / "one.csv")
    table = store.read(path, "steps")
    store.write(table.assign(run_id="run_W0"), path, "steps", derived=True)
    with refused("predicts steps of run_W0, of which there are no profiles"):
        profiled_steps.published(path, "replay")


@pytest.mark.parametrize("place, value", [
    ("schema", 3), ("source", "guesses"), ("device", "../t4"), ("costs", {}), ("code", "import os"),
    ("costs.h2d.rates", {"mb": 1.0}), ("costs.h2d.rates.mb", float("inf")), ("costs.loader_wait.groups", 0)])
def test_a_damaged_file_is_one_line(place, value, tmp_path):
    path, content = tmp_path / SHIPPED.name, with_value(json.loads(SHIPPED.read_text()), place.split("."), value)
    for text in (json.dumps(content), "{", "null"):
        path.write_text(text)
        with refused(str(path)):
            StepModel.load(path)


def test_without_any_costs_of_a_cpu_the_reason_is_named(home, monkeypatch, cpu, w1):
    monkeypatch.setattr(registry, "SHIPPED", home / "nothing")
    with refused("no costs of a CPU's loader in .*models --train profiles"):
        steps.predict(cpu, w1, steps.loading("W1", w1))

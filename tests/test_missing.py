"""Every figure and every sentence bears tables without rows, and with one: a busy machine may leave no more."""

import ast
import importlib
import warnings
from functools import cache

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest

from lib import paths, store
from lib.missing import Missing, MissingError, needs
from lib.report.notebook import Notebook
from lib.tables import columns

mpl.use("agg")
EVERYWHERE = sorted((paths.ROOT / "lib").rglob("*.py"))


def public(path):
    return [node for node in ast.parse(path.read_text()).body
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")]


def module(path):
    return ".".join(path.relative_to(paths.ROOT).with_suffix("").parts)


def discovered():
    """Return module and name of every figure (in a file of figures, without a declared result) and of every sentence."""
    return sorted((module(path), node.name) for path in EVERYWHERE for node in public(path)
                  if (path.stem in ("figures", "gantt") and node.returns is None)
                  or (node.name.endswith("_words") and ast.unparse(node.returns) == "str"))


def subject(where):
    """Return the study that a module belongs to, or its own name."""
    parts = where.split(".")
    return parts[2] if parts[1] == "studies" else parts[-1]


def reference(pattern, table):
    return store.read(next(iter(sorted(paths.REFERENCE.glob(pattern)))), table)


def sweep_rows():
    table = reference("*/sweeps/*/sweep.parquet", "sweep")
    return table[(table["status"] == "ok") & (table["gflops"] > 0)].head(40).reset_index(drop=True)


def runs():
    return store.read_all(sorted(paths.REFERENCE.glob("*/runs/*.csv")), "runs")


def profile_rows():
    (path,) = sorted(paths.REFERENCE.glob("*/profiles/*W2*_train.csv"))[:1]
    return store.read(path, "profile")


def ceiling_rows():
    return reference("*/ceilings/ceilings_cpu*.csv", "ceilings")


def roof_rows():
    return pd.DataFrame({"device": "cpu", "source": "measured", "dtype": ["fp32", "bf16"], "level": "RAM",
                         "peak_gflops": [100.0, 200.0], "peak_gbps": 10.0, "ridge_point": [10.0, 20.0]})


def point_rows():
    return reference("*/points/points_cpu_fp32*.csv", "points")


def layer_tables():
    from lib.studies.layer_power import tables

    return tables


def layer_study():
    from lib.studies.layer_power import study

    return study


@cache
def recorded():
    return layer_study()._read(next(iter(sorted(paths.REFERENCE.glob("*/layer_power/raw_data/*")))))


def windows_of():
    return layer_tables().windows(recorded())


def recovered_rows():
    return layer_study().recovered(recorded()).sort_values("windows", ascending=False, ignore_index=True)


def recorded_layer_rows():
    from lib.tensorrt.recordings import dataset

    return dataset.read_training(next(iter(sorted(paths.REFERENCE.glob("*/layer_power/training_data"))))).head(20)


def learner_rows():
    study = layer_study()
    return pd.DataFrame({"kind": "dense", "model": [study.OURS, "mean", "roofline", study.ORIGINAL], "n": 12,
                         "mape": [0.1, 3.0, 0.5, 0.4]})


def network_rows():
    return pd.DataFrame({"network": ["a", "b"], "measured_ms": [1.0, 2.0], "predicted_ms": [1.1, 1.9], "low_ms": [0.8, 1.0],
                         "high_ms": [2.0, 3.0], "error": [0.1, -0.05]})


def trial_rows():
    return pd.DataFrame({"kind": ["dense", "dense", "pooling"], "trial": [0, 1, 0], "value": [0.3, 0.2, 0.5]})


def predicted_rows():
    from lib.tensorrt.models import predictions, trained_models

    models = trained_models.load(trained_models.SHIPPED_DEVICE, (trained_models.SHIPPED,))
    return predictions.of_engine(recorded().engine, models)


def total_rows():
    return pd.DataFrame({"network": ["a", "b"], "batch_size": 1, "input": "3x8x8", "params": [10, 20],
                         "flops_forward": [1e6, 2e6], "flops_backward": [2e6, np.nan], "backward_over_forward": [2.0, np.nan],
                         "activation_mb": [1.0, 2.0], "parameter_mb": [0.1, 0.2], "flops_per_byte": [3.0, 4.0],
                         "uncounted": ["", "sort"]})


def group_rows():
    return pd.DataFrame({"network": ["a", "a"], "group": ["convolution", "pooling"], "flops": [9.0, 1.0], "bytes": [4.0, 6.0]})


def layer_rows():
    return pd.DataFrame({"layer": ["x", "y"], "group": ["convolution", "pooling"], "flops_forward": [1e6, 1e3],
                         "bytes_forward": [1e4, 1e4]})


def score_rows():
    return pd.DataFrame({"kind": "operator", "family": ["f", "f", "g", "g"], "learner": ["mean", "this model"] * 2,
                         "mape": [50.0, 5.0, 60.0, 6.0], "median": 4.0, "cover": 90.0, "n": 10})


def prediction_rows():
    return pd.DataFrame({"family": ["f", "g"], "kind": "operator", "latency_ms": [1.0, 2.0], "predicted_ms": [1.1, 1.9],
                         "relative_error": [0.1, -0.7], "network": ["a", "b"], "mode": "infer", "batch_size": 1,
                         "tuning": [True, False], "low_ms": 0.9, "high_ms": 2.1, "memory": "default", "status": "ok",
                         "verdict": "stable", "tensors_mb": [1.0, 2.0], "peak_mb": [1.1, 2.0], "memory_mb": [3.0, 4.0],
                         "rss_mb": 5.0, "rss_predicted_mb": 5.5, "rss_low_mb": 4.0, "rss_high_mb": 7.0, "replayed_mb": 0.0,
                         "device": ["cpu", "gpu"], "out_of_range": False, "measured_ms": [1.0, np.nan],
                         "from_ms": 0.5, "to_ms": 2.0, "median": 3.0})


def error_rows():
    return pd.DataFrame({"device": "gpu", "what": "networks", "kind": ["CNN", "hybrid"], "mode": "infer", "condition": "c",
                         "mape_pct": [9.0, 12.0], "median_pct": 5.0, "bias_pct": 1.0, "coverage_pct": [80.0, 90.0], "n": 20,
                         "left_out": "families", "source": "timm"})


def result_rows():
    return pd.DataFrame({"mix": "m", "policy": ["hybrid", "first-come", "hybrid, blind"], "ratio": [1.0, 1.2, 1.1],
                         "room": 0.3, "headroom": 0.9, "load": [0.5, 0.9, 0.9], "mean_jct_s": 2.0, "p99_jct_s": 3.0,
                         "sigma": 0.3, "drift": 0.2, "over_blind": [0.9, 1.1, 1.0], "front": True, "energy_j": [1e6, 2e6, 3e6],
                         "energy_source": "assumed", "makespan_s": [9.0, 8.0, 7.0],
                         "over_perfect": 1.1, "known": ["nothing", "the mean", "every pair"],
                         "error": 0.1, "host_cores": 1.0, "cores": ["ignored", "counted", "counted"]})


def epoch_rows():
    return pd.DataFrame({"epoch": [0, 1], "train_loss": [2.0, 1.0], "monitored": [0.5, np.nan], "images_per_sec": 100.0,
                         "train_s": 9.0, "energy_j": [np.nan, 3.0]})


def metric_rows():
    return pd.DataFrame({"metric": ["acc@1", "auroc_macro", "loss"], "val": [0.5, 0.9, 1.0], "test": [0.4, np.nan, np.nan]})


def device_rows():
    return pd.DataFrame({"device": ["cpu", "gpu"], "source": "predicted", "predicted_ms": [9.0, 2.0], "low_ms": 1.0,
                         "high_ms": 20.0, "measured_ms": [10.0, np.nan], "images_per_sec": 100.0})


def resume_rows():
    return pd.DataFrame({"what": ["weights", "losses"], "compared": [10, 20], "different": [0, 2]})


def pair_rows():
    return pd.DataFrame({"workload_id": ["W1", "W1"], "device_type": "cpu", "beside": ["nothing", "W1"],
                         "beside_type": ["", "cpu"], "step_ms": 1.0, "slowdown": [1.0, 1.4]})


def job_rows():
    return pd.DataFrame({"job_id": ["j1", "j2"], "device": ["cpu[0]", "cpu[1]"], "start_s": 0.0, "end_s": [1.0, 2.0],
                         "attempt": 1, "status": ["done", "failed"], "job_class": ["a", "b"], "predicted_s": [1.0, 2.0],
                         "actual_s": [1.1, 2.0]})


def compared_rows():
    return pd.DataFrame({"label": ["a", "b"], "measured_ms": 9.0, "roof_ms": 3.0, "operators_roof_ms": 4.0,
                         "memory_bound_pct": [10.0, 20.0], "over_operators": 2.0})


def check_rows():
    return pd.DataFrame({"network": ["a", "b"], "quantity": "parameters", "source": "torchinfo", "ours": [10.0, 20.0],
                         "theirs": [10.0, np.nan], "difference": [0.0, np.nan], "rest": [0.0, np.nan], "explanation": ""})


def throughput_rows():
    return pd.DataFrame({"env": "e", "workload_id": ["W1", "W2"], "arch": "net", "backend": "cpu", "batch_size": 8,
                         "precision": "fp32", "n": [1, 2], "mean": [10.0, 20.0], "std": [np.nan, 1.0]})


def metered_runs():
    return runs().assign(image_j=2.0, power_w=20.0, idle_w=[5.0, *[np.nan] * (len(runs()) - 1)], energy_method="rapl counter",
                         energy_n=40, energy_disagreement=[0.02, *[np.nan] * (len(runs()) - 1)], energy_reason="")


def looped_rows():
    return sweep_rows().assign(energy_j=[1e-3, 2e-3, *[np.nan] * 38], power_w=20.0, idle_w=[5.0, *[np.nan] * 39],
                               energy_method="rapl counter", energy_disagreement=[-0.02, *[np.nan] * 39],
                               energy_reason="a reason")


def steps_table(rows):
    from lib.studies.profile import tables

    return tables.phase_table(rows)


def side_by_side(rows):
    from lib.studies.profile import tables

    return tables.side_by_side(runs()[lambda table: table["run_id"].isin(rows["run_id"])], rows)


def one_run(rows):
    return rows.iloc[0] if len(rows) else runs().iloc[0].to_dict() | {"step_n": 0}


def sweep_of(rows):
    from lib.measure.operators import aggregate

    return aggregate.Sweep(rows, pd.DataFrame(columns=columns("repeats")), paths.ROOT, "")


def ceilings_of(rows):
    from lib.measure import ceilings

    return ceilings.Ceilings(rows, reference("*/ceilings/overheads_cpu*.csv", "overheads"), {}, "")


def roof_of(rows):
    from lib.predict.analytic import roofline

    return roofline.roofs(ceiling_rows().assign(verdict="stable" if len(rows) else "unusable"))[0]


def roofline_of(rows):
    from lib.studies.roofline import study

    nothing, roof = rows.iloc[:0], roof_of(ceiling_rows())
    return study.Study([roof], [], rows, nothing, rows, nothing, runs(), {}, "", ())


def batches(rows):
    from lib.studies.complexity import tables

    return tables.intensity_by_batch(rows)


def evaluated_of(rows):
    from lib.studies.cost_model.study import Evaluation

    scores = score_rows().assign(kind="network", family=["kept memory", "default memory"] * 2)
    return Evaluation(paths.ROOT, scores.head(len(rows)), rows, rows.assign(tuning=False), "")


def record_of(rows):
    from types import SimpleNamespace

    return SimpleNamespace(jobs=lambda: rows, schedule=rows, makespan_s=3.0, simulated_s=2.9,
                           facts={"contention": None, "notes": []}, ends=rows)


# How each figure and sentence is called: a function that makes its arguments from its rows, and what makes the rows.
CALLS = {
    "machine.ceilings": (lambda rows: (rows, rows), ceiling_rows),
    "profile.phases_over_time": (lambda rows: (rows,), profile_rows),
    "profile.phase_stack": (lambda rows: (steps_table(rows), "task_type"), profile_rows),
    "profile.throughput_and_memory": (lambda rows: (rows,), profile_rows),
    "profile.throughput_by_workload": (lambda rows: (rows,), runs),
    "sweep.latency_over_work": (lambda rows: (rows,), sweep_rows),
    "sweep.rates": (lambda rows: (rows,), sweep_rows),
    "sweep.agreement": (lambda rows: (rows,), sweep_rows),
    "roofline.roofs": (lambda rows: (rows,), roof_rows),
    "roofline.roofline": (lambda rows: (roof_rows(), rows), point_rows),
    "roofline.shares": (lambda rows: (rows,), point_rows),
    "roofline.throughput": (lambda rows: (rows,), throughput_rows),
    "complexity.work_by_network": (lambda rows: (rows,), total_rows),
    "complexity.shares_by_kind": (lambda rows: (rows,), group_rows),
    "complexity.intensity_by_layer": (lambda rows: (rows,), layer_rows),
    "complexity.memory": (lambda rows: (rows,), total_rows),
    **{f"cost_model.{name}": (lambda rows: (rows,), prediction_rows)
       for name in ("parity", "by_size", "networks", "memory", "devices")},
    "cost_model.trust": (lambda rows: (rows,), error_rows),
    "cost_model.learners": (lambda rows: (rows,), score_rows),
    "cost_model.learning_curve": (lambda rows: (rows,), lambda: pd.DataFrame({
        "points": [10, 100], "mape": [9.0, 5.0], "mape_low": 4.0, "mape_high": 10.0, "median": 3.0})),
    "cost_model.effects": (lambda rows: (rows,), lambda: pd.DataFrame({"feature": ["a", "b"], "added_mape": [1.0, 2.0]})),
    "gantt.gantt": (lambda rows: ({"one": rows},), job_rows),
    "scheduler_eval.against_bound": (lambda rows: (rows,), result_rows),
    "scheduler_eval.lines": (lambda rows: (rows, "load", "ratio", "load", "ratio", "policy", "xy"), result_rows),
    "scheduler_eval.pareto": (lambda rows: (rows,), result_rows),
    "scheduler_eval.contention": (lambda rows: (rows,), pair_rows),
    "scheduler_eval.parity": (lambda rows: (rows,), job_rows),
    "profile.phase_words": (lambda rows: (steps_table(rows),), profile_rows),
    "profile.warm_up_words": (lambda rows: (rows,), profile_rows),
    "profile.run_words": (lambda rows: (one_run(rows),), runs),
    "profile.learned_words": (lambda rows: (runs().iloc[0], steps_table(rows)), profile_rows),
    "profile.profiled_words": (lambda rows: (one_run(rows), 10.0), runs),
    "profile.energy_words": (lambda rows: (one_run(rows),), metered_runs),
    "profile.comparison_words": (lambda rows: (side_by_side(rows),), profile_rows),
    "sweep.sweep_words": (lambda rows: (sweep_of(rows),), sweep_rows),
    "sweep.work_words": (lambda rows: (rows,), sweep_rows),
    "sweep.energy_words": (lambda rows: (rows,), looped_rows),
    "sweep.spread_words": (lambda rows: (rows,), sweep_rows),
    "sweep.learned_words": (lambda rows: (rows, rows), sweep_rows),
    "machine.learned_words": (lambda rows: (ceilings_of(rows),), ceiling_rows),
    "machine.clock_words": (lambda rows: (rows,), lambda: reference("*/ceilings/overheads_cpu*.csv", "overheads")),
    "roofline.roof_words": (lambda rows: (roof_of(rows),), ceiling_rows),
    "roofline.bound_words": (lambda rows: (rows, "points"), point_rows),
    "roofline.ideal_words": (lambda rows: (rows,), compared_rows),
    "roofline.learned_words": (lambda rows: (roofline_of(rows), compared_rows().head(len(rows)), "fp64"), point_rows),
    "roofline.operator_words": (lambda rows: (rows, rows), point_rows),
    "complexity.ratio_words": (lambda rows: (rows,), total_rows),
    "complexity.share_words": (lambda rows: (rows,), group_rows),
    "complexity.growth_words": (lambda rows: (batches(rows),), total_rows),
    "complexity.farthest_words": (lambda rows: (rows,), check_rows),
    "complexity.uncounted_words": (lambda rows: (rows,), total_rows),
    "complexity.trust_words": (lambda rows: (rows,), check_rows),
    "complexity.explained_words": (lambda rows: (rows,), check_rows),
    "cost_model.family_words": (lambda rows: (rows,), score_rows),
    "cost_model.trust_words": (lambda rows: (rows,), error_rows),
    "cost_model.final_words": (lambda rows: (rows,), lambda: error_rows().assign(what="networks, final set")),
    "cost_model.far_families_words": (lambda rows: (rows,), lambda: error_rows().assign(what="networks of one family")),
    "cost_model.flagged_words": (lambda rows: (rows,), lambda: error_rows().assign(what="networks, out of range")),
    "cost_model.step_words": (lambda rows: (rows,), lambda: score_rows().assign(kind="step")),
    "cost_model.whole_step_words": (lambda rows: (rows,), lambda: store.read(next(paths.REFERENCE.glob("models/steps/*.csv")),
                                                                             "steps")),
    "cost_model.curve_words": (lambda rows: (rows, "f"), lambda: pd.DataFrame({"points": [10, 20], "mape": [9.0, 5.0]})),
    "cost_model.weak_words": (lambda rows: (rows,), prediction_rows),
    "cost_model.shipped_words": (lambda rows: (rows,), lambda: pd.DataFrame({
        "network": ["a", "b"], "published_ms": 1.0, "shipped_ms": [1.0, 1.2], "same": [True, False]})),
    **{f"cost_model.{name}": (lambda rows: (evaluated_of(rows),), prediction_rows)
       for name in ("network_words", "composition_words", "memory_words")},
    **{f"scheduler_eval.{name}": (lambda rows: (rows,), result_rows)
       for name in ("bound_words", "completion_words", "load_words", "adversarial_words", "pareto_words", "published_words")},
    "scheduler_eval.noise_words": (lambda rows: (rows, rows, rows), result_rows),
    "scheduler_eval.contention_words": (lambda rows: (rows, result_rows().assign(policy="hybrid"), result_rows()), pair_rows),
    "scheduler_eval.scenario_words": (
        lambda rows: (list(rows.itertuples()),), lambda: pd.DataFrame({"id": ["a"], "note": ["b"]})),
    "layer_power.power_log": (lambda rows: (rows, windows_of(), "title"), lambda: layer_tables().samples(recorded())),
    "layer_power.mapping": (lambda rows: (rows,), recovered_rows),
    "layer_power.layers_by_kind": (lambda rows: (rows,), recorded_layer_rows),
    "layer_power.errors": (lambda rows: (rows,), learner_rows),
    "layer_power.networks": (lambda rows: (rows,), network_rows),
    "layer_power.search": (lambda rows: (rows,), trial_rows),
    "layer_power.engine_words": (lambda rows: (rows,), lambda: layer_tables().by_kind(recorded())),
    "layer_power.coverage_words": (lambda rows: (rows,), lambda: recorded().layerwise),
    "layer_power.recovered_words": (lambda rows: (rows,), recovered_rows),
    "layer_power.score_words": (lambda rows: (rows,), learner_rows),
    "layer_power.total_words": (lambda rows: (rows,), network_rows),
    "layer_power.energy_words": (lambda rows: (rows, "a", "synthetic"), lambda: layer_tables().energy(recorded())),
    "layer_power.prediction_words": (lambda rows: (rows,), predicted_rows),
    "layer_power.search_words": (lambda rows: (rows,), trial_rows),
    "layer_power.learned_words": (lambda rows: (rows, network_rows()), learner_rows),
    "finetune.learning": (lambda rows: (rows,), lambda: reference("*/finetune/*/history.csv", "history")),
    "finetune.predictions": (lambda rows: (rows,), device_rows),
    "finetune.learning_words": (lambda rows: (rows, "val_acc@1"), epoch_rows),
    "finetune.energy_words": (lambda rows: (rows,), epoch_rows),
    "finetune.metric_words": (lambda rows: (rows,), metric_rows),
    "finetune.confusion_words": (lambda rows: (rows,), lambda: pd.DataFrame(
        {"truth": ["a", "b"], "predicted": ["b", "a"], "samples": [3, 1], "share_pct": [30.0, 10.0]})),
    "finetune.predicted_words": (lambda rows: (rows,), device_rows),
    "finetune.resume_words": (lambda rows: (rows,), resume_rows),
    "finetune.learned_words": (lambda rows: (epoch_rows(), rows, steps_table(profile_rows()), device_rows(), resume_rows(),
                                             "val_loss"), metric_rows),
    "scheduler_eval.real_words": (lambda rows: (record_of(rows),), job_rows),
}


@pytest.mark.parametrize(("where", "name"), discovered(), ids=lambda value: value.split(".")[-1])
def test_no_rows_are_one_line_and_one_row_is_enough(where, name):
    function = getattr(importlib.import_module(where), name)
    given, make = CALLS[f"{subject(where)}.{name}"]
    rows = make()
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)  # numpy: a mean of nothing
        warnings.simplefilter("error", UserWarning)  # matplotlib: limits without extent, a legend without entries
        assert drawn(function, given(rows))
        nothing = function(*given(rows.iloc[:0]))
        assert str(nothing)
        assert "nan" not in str(nothing)
        for number in range(min(len(rows), 4)):
            drawn(function, given(rows.iloc[number:number + 1].reset_index(drop=True)))


def drawn(function, arguments):
    """Call a figure or a sentence; a figure is drawn and closed, a sentence holds no nan."""
    import matplotlib.pyplot as plt

    result = function(*arguments)
    if isinstance(result, str):
        assert result
        assert "nan" not in result
        return not isinstance(result, Missing)
    result.canvas.draw()
    plt.close(result)
    return True


@needs("rows", "more")
def total(table, more=None, threshold=0):
    """Return a sum, as a sentence would say it."""
    some = table[table["x"] > threshold]
    if some.empty:
        raise MissingError(f"rows above {threshold}")
    return f"{some['x'].sum():g}"


def test_what_is_missing_is_named():
    full, empty = pd.DataFrame({"x": [1.0, 2.0]}), pd.DataFrame({"x": []})
    assert total(full, more=empty) == "3"
    assert total(empty) == "Nothing to show: no rows."
    assert isinstance(total(empty), Missing)
    assert total(full, threshold=5) == "Nothing to show: no rows above 5."
    with pytest.raises(KeyError):
        total(pd.DataFrame({"y": [1.0]}))


def test_a_notebook_shows_one_line_where_something_is_missing(home, monkeypatch):
    lines, nb = [], Notebook("01_machine", None)
    monkeypatch.setattr(nb, "say", lines.append)
    nb.figure(Missing("Nothing to show: no roofs."), "roofs", "The roofs.", "Measure them.")
    nb.table(pd.DataFrame(columns=["a"]), "A table.")
    assert lines == ["*The roofs.* Nothing to show: no roofs. Measure them.", "*A table.* Nothing to show: no rows. "]
    assert not list(paths.FIGURES.glob("**/*"))
    nb.record("a rate", np.nan, "GB/s", 0.1)
    assert nb._keys["a rate"] == {"value": "not measured", "unit": "", "tolerance": None}

"""Every figure and every sentence bears tables without rows, and with one: a busy machine may leave no more."""

import ast
import importlib
import warnings
from functools import cache
from types import SimpleNamespace

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from lib import paths, store
from lib.measure import ceilings
from lib.measure.operators import aggregate
from lib.missing import Missing, MissingError, needs
from lib.predict.analytic import roofline
from lib.report.notebook import Notebook
from lib.studies.complexity.tables import intensity_by_batch
from lib.studies.cost_model.study import Evaluation
from lib.studies.layer_power import study as layer_study
from lib.studies.layer_power import tables as layer_tables
from lib.studies.profile import tables as steps
from lib.studies.roofline import study as roofline_study
from lib.tables import columns
from lib.tensorrt.models import predictions, trained_models
from lib.tensorrt.recordings import dataset

mpl.use("agg")
NAN = np.nan


def discovered():
    """Return module and name of every figure (in a file of figures, without a declared result) and of every sentence."""
    for path in sorted((paths.ROOT / "lib").rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            public = isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
            if public and ((path.stem in ("figures", "gantt") and node.returns is None)
                           or (node.name.endswith("_words") and ast.unparse(node.returns) == "str")):
                yield ".".join(path.relative_to(paths.ROOT).with_suffix("").parts), node.name


def reference(pattern, table):
    return store.read(min(paths.REFERENCE.glob(pattern)), table)


@cache
def recorded():
    source, *_ = dataset.models(min(paths.REFERENCE.glob("*/layer_power/raw_data"))).values()
    return layer_study._read(source)


def sweep():
    table = reference("*/sweeps/*/sweep.parquet", "sweep")
    return table[(table["status"] == "ok") & (table["gflops"] > 0)].head(40).reset_index(drop=True)


def runs():
    return store.read_all(sorted(paths.REFERENCE.glob("*/runs/*.csv")), "runs")


def metered(rows):
    """Return rows with energies, of which the first two alone have one, and the first an idle power and a disagreement."""
    once = pd.Series(1.0, rows.index[:1])
    return rows.assign(image_j=2.0, power_w=20.0, energy_j=pd.Series(2e-3, rows.index[:2]), idle_w=5.0 * once, energy_n=40,
                       energy_method="rapl counter", energy_disagreement=-0.02 * once, energy_reason="a reason")


def recovered():
    return layer_study.recovered(recorded()).sort_values("windows", ascending=False, ignore_index=True)


def predicted_layers():
    return predictions.of_engine(recorded().engine, trained_models.load(trained_models.SHIPPED_DEVICE,
                                                                        (trained_models.SHIPPED,)))


def table(numbers=(), gaps=(), **others):
    """Return rows whose ``numbers`` are 1 and 2, whose ``gaps`` are a number and none, and what ``others`` say."""
    return {**dict.fromkeys(numbers, [1.0, 2.0]), **dict.fromkeys(gaps, [1.0, NAN]), **others}


# What makes rows: a function, or the columns themselves, two rows or more.
MADE = {
    "profile": lambda: store.read(min(paths.REFERENCE.glob("*/profiles/*W2*_train.csv")), "profile"),
    "ceilings": lambda: reference("*/ceilings/ceilings_cpu*.csv", "ceilings"),
    "overheads": lambda: reference("*/ceilings/overheads_cpu*.csv", "overheads"),
    "points": lambda: reference("*/points/points_cpu_fp32*.csv", "points"),
    "history": lambda: reference("*/finetune/*/history.csv", "history"),
    "whole steps": lambda: reference("models/steps/*.csv", "steps"),
    "layers recorded": lambda: dataset.read_training(min(paths.REFERENCE.glob("*/layer_power/training_data"))).head(20),
    "roofs": table(["peak_gflops", "peak_gbps", "ridge_point"], device="cpu", source="measured", dtype=["fp32", "bf16"],
                   level="RAM"),
    "learners": {"kind": "dense", "model": [layer_study.OURS, "mean", "roofline", layer_study.ORIGINAL], "n": 12,
                 "mape": [0.1, 3.0, 0.5, 0.4]},
    "networks": table(["measured_ms", "predicted_ms", "low_ms", "high_ms"], network=["a", "b"], error=[0.1, -0.05]),
    "trials": {"kind": ["dense", "dense", "pooling"], "trial": [0, 1, 0], "value": [0.3, 0.2, 0.5]},
    "totals": table(["flops_forward", "activation_mb", "parameter_mb", "flops_per_byte"],
                    ["flops_backward", "backward_over_forward"], network=["a", "b"], batch_size=1, uncounted=["", "sort"]),
    "groups": table(["flops", "bytes"], network="a", group=["convolution", "pooling"]),
    "layers": table(["flops_forward", "bytes_forward"], layer=["x", "y"], group=["convolution", "pooling"]),
    "scores": {"kind": "operator", "family": ["f", "f", "g", "g"], "learner": ["mean", "this model"] * 2,
               "mape": [50.0, 5.0, 60.0, 6.0], "median": 4.0, "cover": 90.0, "n": 10},
    "predictions": table(
        ["latency_ms", "predicted_ms", "low_ms", "high_ms", "tensors_mb", "peak_mb", "memory_mb", "rss_mb", "rss_predicted_mb",
         "rss_low_mb", "rss_high_mb", "replayed_mb", "from_ms", "to_ms", "median"], ["measured_ms"], kind="operator",
        family=["f", "g"], relative_error=[0.1, -0.7], network=["a", "b"], mode="infer", batch_size=1, tuning=[True, False],
        memory="default", status="ok", verdict="stable", device=["cpu", "gpu"], out_of_range=False),
    "errors": table(["mape_pct", "median_pct", "bias_pct", "coverage_pct"], device="gpu", what="networks", mode="infer",
                    kind=["CNN", "hybrid"], condition="c", n=20, left_out="families", source="timm"),
    "results": {"mix": "m", "policy": ["hybrid", "first-come", "hybrid, blind"], "ratio": [1.0, 1.2, 1.1], "room": 0.3,
                "headroom": 0.9, "load": [0.5, 0.9, 0.9], "mean_jct_s": 2.0, "p99_jct_s": 3.0, "sigma": 0.3, "drift": 0.2,
                "over_blind": [0.9, 1.1, 1.0], "front": True, "energy_j": [1e6, 2e6, 3e6], "energy_source": "assumed",
                "makespan_s": [9.0, 8.0, 7.0], "over_perfect": 1.1, "known": ["nothing", "the mean", "every pair"],
                "error": 0.1, "host_cores": 1.0, "cores": ["ignored", "counted", "counted"]},
    "curve": table(["points", "mape", "mape_low", "mape_high", "median"]),
    "effects": table(["added_mape"], feature=["a", "b"]),
    "shipped": table(["published_ms", "shipped_ms"], network=["a", "b"], same=[True, False]),
    "scenarios": {"id": ["a"], "note": ["b"]},
    "confusion": {"truth": ["a", "b"], "predicted": ["b", "a"], "samples": [3, 1], "share_pct": [30.0, 10.0]},
    "epochs": table(["train_loss", "images_per_sec", "train_s"], ["monitored", "energy_j"], epoch=[0, 1]),
    "metrics": {"metric": ["acc@1", "auroc_macro", "loss"], "val": [0.5, 0.9, 1.0], "test": [0.4, NAN, NAN]},
    "devices": table(["predicted_ms", "low_ms", "high_ms", "images_per_sec"], ["measured_ms"], device=["cpu", "gpu"],
                     source="predicted"),
    "resumed": {"what": ["weights", "losses"], "compared": [10, 20], "different": [0, 2]},
    "pairs": table(["step_ms", "slowdown"], workload_id="W1", device_type="cpu", beside=["nothing", "W1"],
                   beside_type=["", "cpu"]),
    "jobs": table(["end_s", "predicted_s", "actual_s"], job_id=["j1", "j2"], device=["cpu[0]", "cpu[1]"], start_s=0.0,
                  attempt=1, status=["done", "failed"], job_class=["a", "b"]),
    "compared": table(["measured_ms", "roof_ms", "operators_roof_ms", "memory_bound_pct", "over_operators"], label=["a", "b"]),
    "checks": table(["ours"], ["theirs", "difference", "rest"], network=["a", "b"], quantity="parameters", source="torchinfo",
                    explanation=""),
    "throughputs": table(["mean"], env="e", workload_id=["W1", "W2"], arch="net", backend="cpu", batch_size=8,
                         precision="fp32", n=[1, 2], std=[NAN, 1.0]),
}


@cache
def rows_of(made):
    """Return the rows that a function or an entry of MADE gives."""
    made = MADE.get(made, made)
    return made() if callable(made) else pd.DataFrame(made)


def errors_of(what):
    return lambda: rows_of("errors").assign(what=what)


def one_run(rows):
    return rows.iloc[0] if len(rows) else rows_of(runs).iloc[0].to_dict() | {"step_n": 0}


def side_by_side(rows):
    return steps.side_by_side(rows_of(runs)[lambda table: table["run_id"].isin(rows["run_id"])], rows)


def roof_of(rows):
    return roofline.roofs(rows_of("ceilings").assign(verdict="stable" if len(rows) else "unusable"))[0]


def roofline_of(rows):
    nothing, roof = rows.iloc[:0], roof_of(rows_of("ceilings"))
    return roofline_study.Study([roof], [], rows, nothing, rows, nothing, rows_of(runs), {}, "", ())


def evaluated_of(rows):
    scores = rows_of("scores").assign(kind="network", family=["kept memory", "default memory"] * 2)
    return Evaluation(paths.ROOT, scores.head(len(rows)), rows, rows.assign(tuning=False), "")


def record_of(rows):
    return SimpleNamespace(jobs=lambda: rows, schedule=rows, makespan_s=3.0, simulated_s=2.9,
                           facts={"contention": None, "notes": []}, ends=rows)


# The figures and sentences that are given some rows alone.
ALONE = {
    "profile": ["profile.phases_over_time", "profile.throughput_and_memory", "profile.warm_up_words"],
    runs: ["profile.throughput_by_workload"],
    sweep: ["sweep.latency_over_work", "sweep.rates", "sweep.agreement", "sweep.work_words", "sweep.spread_words"],
    lambda: metered(rows_of(sweep)): ["sweep.energy_words"],
    "overheads": ["machine.clock_words"],
    "roofs": ["roofline.roofs"],
    "points": ["roofline.shares"],
    "throughputs": ["roofline.throughput"],
    "compared": ["roofline.ideal_words"],
    "totals": ["complexity.work_by_network", "complexity.memory", "complexity.ratio_words", "complexity.uncounted_words"],
    "groups": ["complexity.shares_by_kind", "complexity.share_words"],
    "layers": ["complexity.intensity_by_layer"],
    "checks": ["complexity.farthest_words", "complexity.trust_words", "complexity.explained_words"],
    "predictions": ["cost_model.parity", "cost_model.by_size", "cost_model.networks", "cost_model.memory", "cost_model.devices",
                    "cost_model.weak_words"],
    "errors": ["cost_model.trust", "cost_model.trust_words"],
    errors_of("networks, final set"): ["cost_model.final_words"],
    errors_of("networks of one family"): ["cost_model.far_families_words"],
    errors_of("networks, out of range"): ["cost_model.flagged_words"],
    "scores": ["cost_model.learners", "cost_model.family_words"],
    lambda: rows_of("scores").assign(kind="step"): ["cost_model.step_words"],
    "curve": ["cost_model.learning_curve"],
    "effects": ["cost_model.effects"],
    "whole steps": ["cost_model.whole_step_words"],
    "shipped": ["cost_model.shipped_words"],
    "results": ["scheduler_eval.against_bound", "scheduler_eval.pareto", "scheduler_eval.bound_words",
                "scheduler_eval.completion_words", "scheduler_eval.load_words", "scheduler_eval.adversarial_words",
                "scheduler_eval.pareto_words", "scheduler_eval.published_words"],
    "pairs": ["scheduler_eval.contention"],
    "jobs": ["scheduler_eval.parity"],
    recovered: ["layer_power.mapping", "layer_power.recovered_words"],
    "layers recorded": ["layer_power.layers_by_kind"],
    "learners": ["layer_power.errors", "layer_power.score_words"],
    "networks": ["layer_power.networks", "layer_power.total_words"],
    "trials": ["layer_power.search", "layer_power.search_words"],
    lambda: layer_tables.by_kind(recorded()): ["layer_power.engine_words"],
    lambda: recorded().layerwise: ["layer_power.coverage_words"],
    predicted_layers: ["layer_power.prediction_words"],
    "history": ["finetune.learning"],
    "devices": ["finetune.predictions", "finetune.predicted_words"],
    "epochs": ["finetune.energy_words"],
    "metrics": ["finetune.metric_words"],
    "confusion": ["finetune.confusion_words"],
    "resumed": ["finetune.resume_words"],
}
# Those that are given more, or what is made of the rows.
CALLS = {
    "machine.ceilings": ("ceilings", lambda rows: (rows, rows)),
    "machine.learned_words": ("ceilings", lambda rows: (ceilings.Ceilings(rows, rows_of("overheads"), {}, ""),)),
    "profile.phase_stack": ("profile", lambda rows: (steps.phase_table(rows), "task_type")),
    "profile.phase_words": ("profile", lambda rows: (steps.phase_table(rows),)),
    "profile.learned_words": ("profile", lambda rows: (rows_of(runs).iloc[0], steps.phase_table(rows))),
    "profile.comparison_words": ("profile", lambda rows: (side_by_side(rows),)),
    "profile.run_words": (runs, lambda rows: (one_run(rows),)),
    "profile.profiled_words": (runs, lambda rows: (one_run(rows), 10.0)),
    "profile.energy_words": (lambda: metered(rows_of(runs)), lambda rows: (one_run(rows),)),
    "sweep.sweep_words": (sweep, lambda rows: (
        aggregate.Sweep(rows, pd.DataFrame(columns=columns("repeats")), paths.ROOT, ""),)),
    "sweep.learned_words": (sweep, lambda rows: (rows, rows)),
    "roofline.roofline": ("points", lambda rows: (rows_of("roofs"), rows)),
    "roofline.roof_words": ("ceilings", lambda rows: (roof_of(rows),)),
    "roofline.bound_words": ("points", lambda rows: (rows, "points")),
    "roofline.operator_words": ("points", lambda rows: (rows, rows)),
    "roofline.learned_words": ("points", lambda rows: (roofline_of(rows), rows_of("compared").head(len(rows)), "fp64")),
    "complexity.growth_words": ("totals", lambda rows: (intensity_by_batch(rows),)),
    "cost_model.curve_words": ("curve", lambda rows: (rows, "f")),
    **{f"cost_model.{name}": ("predictions", lambda rows: (evaluated_of(rows),))
       for name in ("network_words", "composition_words", "memory_words")},
    "gantt.gantt": ("jobs", lambda rows: ({"one": rows},)),
    "scheduler_eval.lines": ("results", lambda rows: (rows, "load", "ratio", "load", "ratio", "policy", "xy")),
    "scheduler_eval.noise_words": ("results", lambda rows: (rows, rows, rows)),
    "scheduler_eval.contention_words": ("pairs", lambda rows: (rows, rows_of("results").assign(policy="hybrid"),
                                                               rows_of("results"))),
    "scheduler_eval.scenario_words": ("scenarios", lambda rows: (list(rows.itertuples()),)),
    "scheduler_eval.real_words": ("jobs", lambda rows: (record_of(rows),)),
    "layer_power.power_log": (lambda: layer_tables.samples(recorded()),
                              lambda rows: (rows, layer_tables.windows(recorded()), "title")),
    "layer_power.energy_words": (lambda: layer_tables.energy(recorded()), lambda rows: (rows, "a", "synthetic")),
    "layer_power.learned_words": ("learners", lambda rows: (rows, rows_of("networks"))),
    "finetune.learning_words": ("epochs", lambda rows: (rows, "val_acc@1")),
    "finetune.learned_words": ("metrics", lambda rows: (
        rows_of("epochs"), rows, steps.phase_table(rows_of("profile")), rows_of("devices"), rows_of("resumed"), "val_loss")),
    **{name: (made, lambda rows: (rows,)) for made, names in ALONE.items() for name in names},
}


@pytest.mark.parametrize(("where", "name"), sorted(discovered()), ids=lambda value: value.split(".")[-1])
@pytest.mark.slow
def test_no_rows_are_one_line_and_one_row_is_enough(where, name):
    function, parts = getattr(importlib.import_module(where), name), where.split(".")
    made, given = CALLS[f"{parts[2] if parts[1] == 'studies' else parts[-1]}.{name}"]
    rows = rows_of(made)
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
    nb.record("a rate", NAN, "GB/s", 0.1)
    assert nb._keys["a rate"] == {"value": "not measured", "unit": "", "tolerance": None}

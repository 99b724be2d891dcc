"""Every figure, and all numbers of sentences, bear tables without rows, and with one: a busy machine may leave no more."""

import ast
import importlib
import inspect
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
from lib.report.sentences import write
from lib.studies import profile as steps
from lib.studies.complexity import intensity_by_batch
from lib.studies.layer_power import study as layer_study
from lib.studies.layer_power import tables as layer_tables
from lib.studies.roofline import study as roofline_study
from lib.tables import columns
from lib.tensorrt.models import predictions, training
from lib.tensorrt.recordings import dataset

mpl.use("agg")
NAN = np.nan


def discovered():
    """Return module and name of every figure (without a declared result) and of all numbers of sentences."""
    for path in [paths.ROOT / "lib/report/gantt.py", *sorted((paths.ROOT / "lib/studies").rglob("*.py"))]:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_") and (
                    not node.returns or ast.unparse(node.returns) == "Numbers"):
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
    return layer_tables.recovered(recorded())


def predicted_layers():
    return predictions.of_engine(recorded().engine, training.load_models(training.SHIPPED_DEVICE,
                                                                        (training.SHIPPED,)))


def table(numbers, gaps="", **others):
    """Return rows in which the columns of ``numbers`` are 1 and 2, those of ``gaps`` a number and none, and ``others``."""
    return {**dict.fromkeys(numbers.split(), [1.0, 2.0]), **dict.fromkeys(gaps.split(), [1.0, NAN]), **others}


# Two rows with what figures and sentences read of most tables; the second lacks what is not always measured.
ANY = table(
    "peak_gflops peak_gbps ridge_point predicted_ms low_ms high_ms flops_forward activation_mb parameter_mb "
    "flops_per_byte flops bytes bytes_forward latency_ms tensors_mb peak_mb memory_mb rss_mb rss_predicted_mb rss_low_mb "
    "rss_high_mb replayed_mb from_ms to_ms median mape_pct median_pct bias_pct coverage_pct points mape mape_low "
    "mape_high added_mape published_ms shipped_ms train_loss images_per_sec train_s step_ms slowdown end_s predicted_s "
    "actual_s roof_ms operators_roof_ms memory_bound_pct over_operators ours mean",
    "measured_ms flops_backward backward_over_forward monitored energy_j theirs difference rest std",
    device=["cpu", "gpu"], source="measured", dtype=["fp32", "bf16"], level="RAM", network=["a", "b"], error=[0.1, -0.05],
    batch_size=1, uncounted=["", "sort"], group=["convolution", "pooling"], kind=["CNN", "hybrid"], family=["f", "g"],
    relative_error=[0.1, -0.7], mode="infer", tuning=[True, False], first_use=[True, False], memory="default",
    out_of_range=False, status="ok", verdict="stable", what="networks", condition="c", n=20, left_out="families",
    feature=["a", "b"], same=[True, False], epoch=[0, 1], workload_id="W1", device_type="cpu", beside=["nothing", "W1"],
    beside_type=["", "cpu"], env="e", arch="net", backend="cpu", precision="fp32", job_id=["j1", "j2"], start_s=0.0, attempt=1,
    job_class=["a", "b"])
# What makes rows: a function, or the columns themselves, two rows or more.
MADE = {
    "profile": lambda: store.read(min(paths.REFERENCE.glob("*/profiles/*W2*_train.csv")), "profile"),
    "ceilings": lambda: reference("*/ceilings/ceilings_cpu*.csv", "ceilings"),
    "overheads": lambda: reference("*/ceilings/overheads_cpu*.csv", "overheads"),
    "points": lambda: reference("*/points/points_cpu_fp32*.csv", "points"),
    "history": lambda: reference("*/finetune/*/history.csv", "history"),
    "layers recorded": lambda: dataset.read_training(min(paths.REFERENCE.glob("*/layer_power/training_data"))).head(20),
    "rows": ANY,
    "learners": {"kind": "dense", "model": [layer_study.OURS, "mean", "roofline", layer_study.ORIGINAL], "n": 12,
                 "mape": [0.1, 3.0, 0.5, 0.4]},
    "trials": {"kind": ["dense", "dense", "pooling"], "trial": [0, 1, 0], "value": [0.3, 0.2, 0.5]},
    "scores": {"kind": "operator", "family": ["f", "f", "g", "g"], "learner": ["mean", "this model"] * 2,
               "mape": [50.0, 5.0, 60.0, 6.0], "median": 4.0, "cover": 90.0, "n": 10},
    "results": {"mix": "m", "policy": ["hybrid", "first-come", "hybrid, blind"], "ratio": [1.0, 1.2, 1.1], "room": 0.3,
                "headroom": 0.9, "load": [0.5, 0.9, 0.9], "mean_jct_s": 2.0, "p99_jct_s": 3.0, "sigma": 0.3, "drift": 0.2,
                "over_blind": [0.9, 1.1, 1.0], "over_better": 1.0, "over_first": 1.0, "front": True,
                "energy_j": [1e6, 2e6, 3e6], "energy_source": "assumed",
                "makespan_s": [9.0, 8.0, 7.0], "over_perfect": 1.1},
    "jobs": ANY | {"device": ["cpu[0]", "cpu[1]"], "status": ["done", "failed"]},
    "metrics": {"metric": ["acc@1", "auroc_macro", "loss"], "val": [0.5, 0.9, 1.0], "test": [0.4, NAN, NAN]},
}


@cache
def rows_of(made):
    """Return the rows that a function or an entry of MADE gives."""
    made = MADE.get(made, made)
    return made() if callable(made) else pd.DataFrame(made)


def side_by_side(rows):
    return steps.side_by_side(rows_of(runs)[lambda table: table["run_id"].isin(rows["run_id"])], rows)


def roof_of(rows):
    return roofline.roofs(rows_of("ceilings").assign(verdict="stable" if len(rows) else "unusable"))[0]


def roofline_of(rows):
    nothing, roof = rows.iloc[:0], roof_of(rows_of("ceilings"))
    return roofline_study.Study([roof], [], rows, nothing, rows, nothing, rows_of(runs), {}, "", ())


def record_of(rows):
    return SimpleNamespace(jobs=lambda: rows, schedule=rows, makespan_s=3.0, simulated_s=2.9,
                           facts={"notes": []}, ends=rows)


# The figures and numbers of which each argument without a default is the same rows.
ALONE = {
    "ceilings": "machine.ceilings",
    "profile": "profile.phases_over_time, profile.throughput_and_memory, profile.settling",
    runs: "profile.throughput_by_workload",
    sweep: "sweep.latency_over_work, sweep.rates, sweep.agreement",
    "overheads": "machine.clock",
    "points": "roofline.shares",
    "rows": "roofline.roofs, roofline.throughput, roofline.compared, complexity.work_by_network, complexity.memory, "
            "complexity.ratios, complexity.shares_by_kind, complexity.shares, complexity.intensity_by_layer, "
            "complexity.comparisons, scheduler_eval.parity, layer_power.networks, "
            "finetune.predictions, finetune.predicted",
    "results": "scheduler_eval.against_bound, scheduler_eval.pareto, scheduler_eval.near_bound, scheduler_eval.trade, "
               "scheduler_eval.together, scheduler_eval.waiting, scheduler_eval.wrong, scheduler_eval.best",
    recovered: "layer_power.mapping, layer_power.recovered_numbers",
    "layers recorded": "layer_power.layers_by_kind",
    "learners": "layer_power.errors",
    "trials": "layer_power.search",
    predicted_layers: "layer_power.prediction_numbers",
    "history": "finetune.learning figure",
    "metrics": "finetune.worth",
}
# Those that are given more, or what is made of the rows.
CALLS = {
    **{name: ("ceilings", lambda rows: (ceilings.Ceilings(rows, rows_of("overheads"), {}, ""),))
       for name in ("machine.reached", "machine.unlisted")},
    "profile.phase_stack": ("profile", lambda rows: (steps.phase_table(rows), "task_type")),
    "profile.phases": ("profile", lambda rows: (steps.phase_table(rows),)),
    "profile.comparison": ("profile", lambda rows: (side_by_side(rows), rows)),
    "profile.run_numbers": (lambda: metered(rows_of(runs)), lambda rows: (
        (rows if len(rows) else metered(rows_of(runs)).assign(step_n=0)).iloc[0],)),
    "sweep.numbers": (lambda: metered(rows_of(sweep)), lambda rows: (
        aggregate.Sweep(rows, pd.DataFrame(columns=columns("repeats")), paths.ROOT, "", ""),)),
    "roofline.roofline": ("points", lambda rows: (rows_of("rows"), rows)),
    "roofline.ceilings": ("ceilings", lambda rows: (roof_of(rows),)),
    "roofline.bounds": ("points", lambda rows: (rows, "points")),
    "roofline.operators": ("points", lambda rows: (roofline_of(rows),)),
    "roofline.against_vendor": ("points", lambda rows: (roofline_of(rows), "fp64")),
    "complexity.growth": ("rows", lambda rows: (intensity_by_batch(rows),)),
    "gantt.gantt": ("jobs", lambda rows: ({"one": rows},)),
    "scheduler_eval.lines": ("results", lambda rows: (rows, "load", "ratio", "load", "ratio", "policy", "xy")),
    "scheduler_eval.real": ("jobs", lambda rows: (record_of(rows),)),
    "layer_power.power_log": (lambda: layer_tables.samples(recorded()),
                              lambda rows: (rows, layer_tables.windows(recorded()), "title")),
    "layer_power.recording_numbers": (lambda: layer_tables.energy(recorded()), lambda rows: (
        SimpleNamespace(recorded=recorded(), refused=()), layer_tables.by_kind(recorded()), rows)),
    "layer_power.score_numbers": ("learners", lambda rows: (rows, rows_of("rows").head(len(rows)))),
    "finetune.learning": ("rows", lambda rows: (rows, "val_acc@1")),
    **{name: (made, None) for made, names in ALONE.items() for name in names.split(", ")},
}


@pytest.mark.parametrize("where, name", sorted(discovered()), ids=lambda value: value.split(".")[-1])
@pytest.mark.slow
def test_no_rows_are_one_line_and_one_row_is_enough(where, name):
    """Numbers have the same names whatever rows there are, so that a sentence without one is left out, and none fails."""
    function, parts = getattr(importlib.import_module(where), name), where.split(".")
    key = f"{parts[2] if parts[1] == 'studies' else parts[-1]}.{name}"
    made, given = CALLS[f"{key} figure" if parts[-1] == "figures" and f"{key} figure" in CALLS else key]
    rows = rows_of(made)
    needed = [one for one in inspect.signature(function).parameters.values() if one.default is one.empty]
    given = given or (lambda rows: [rows] * len(needed))
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)  # numpy: a mean of nothing
        warnings.simplefilter("error", UserWarning)  # matplotlib: limits without extent, a legend without entries
        names = drawn(function, given(rows))
        assert names
        for number in range(-1, min(len(rows), 4)):
            some = rows.iloc[:0] if number < 0 else rows.iloc[number:number + 1].reset_index(drop=True)
            assert drawn(function, given(some)) in (names, None)


def drawn(function, arguments):
    """Call a figure, which is drawn and closed, or a function of numbers; return names and columns, None without rows."""
    result = function(*arguments)
    if isinstance(result, Missing):
        assert result.startswith("Nothing to show: no ")
        return None
    if isinstance(result, dict):
        return {(name, *(value if isinstance(value, pd.DataFrame) else ())) for name, value in result.items()}
    result.canvas.draw()
    plt.close(result)
    return "figure"


@pytest.mark.parametrize("sentences, told", [
    ("A {whole} of {part:.1f}.", "A 3 of 1.5."),
    (["One.", "{nan} is left out.", "{none} too.", "{infinite:.0f} too.", "Two."], "One.\nTwo."),
    ({"yes": "It is {whole}.", "else": "It is not."}, "It is 3."),
    ({"no": "It is."}, ""),
    ("Rows: {rows}.", "Rows: a 1, small; b 2, large."),
    ("{bullets}", "- a\n- b"),
    ("No {nothing} rows.", ""),
    ("{text}", "{whole} <b>"),
    ("{table.size} rows, {table.n.median:.1f} {table.most_n.name} {table.first.name}", "2 rows, 1.5 b a"),
    (["{nothing.n.max}", "{nothing.most_n.name}", "{nothing.last.name}"], ""),
    ({"nothing.size": "some", "else": "{item.x} {text.upper}"}, "1 {whole} <b>")])
def test_a_sentence_holds_its_numbers_or_is_left_out(sentences, told):
    table = pd.DataFrame({"name": ["a", "b"], "n": [1, 2], "large": [False, True]})
    numbers = {"whole": 3, "part": 1.49999, "nan": NAN, "none": None, "infinite": np.float32("inf"), "yes": 1,
               "no": np.False_, "rows": table, "bullets": table.to_dict("records"), "nothing": table.iloc[:0],
               "text": "{whole} <b>", "item": {"x": 1}, "table": table}
    kinds = {"large": "{name} {n}, large", "else": "{name} {n}, small"}
    assert write(sentences, numbers, rows=kinds, bullets="- {name}", nothing="{name}") == told
    with pytest.raises(KeyError):
        write("{unheard}", numbers)


def test_runs_that_are_all_unusable_still_have_key_numbers():
    """As on a busy machine, where the only run of a workload is left out of the comparison."""
    rows = rows_of("profile").iloc[:0]
    numbers = steps.shared_numbers(steps.comparison(side_by_side(rows), rows))
    assert numbers["stable runs"][0] == "0 of 0" and np.isnan(numbers["largest loader share"][0])


@needs("rows")
def total(table, threshold=0):
    """Return a sum, as a sentence would say it."""
    some = table[table["x"] > threshold]
    if some.empty:
        raise MissingError(f"rows above {threshold}")
    return f"{some['x'].sum():g}"


def test_what_is_missing_is_named():
    full, empty = pd.DataFrame({"x": [1.0, 2.0]}), pd.DataFrame({"x": []})
    assert total(full) == "3"
    assert total(empty) == "Nothing to show: no rows."
    assert isinstance(total(empty), Missing)
    assert total(full, threshold=5) == "Nothing to show: no rows above 5."
    with pytest.raises(KeyError):
        total(pd.DataFrame({"y": [1.0]}))


def test_a_notebook_shows_one_line_where_something_is_missing(home, monkeypatch):
    lines, nb = [], Notebook("01_machine", SimpleNamespace(source="replay"))
    assert nb.say(["{a}", "{b}."], Missing("Nothing to show: no rows."), {"b": 1}) == "1."
    assert nb.say("{a}", Missing("Nothing to show: no rows."), {"b": 1}) == "Nothing to show: no rows."
    assert nb.say("{a}", {"a": NAN}) == "Nothing to show: nothing usable was measured."
    monkeypatch.setattr(nb, "say", lines.append)
    nb.figure(Missing("Nothing to show: no roofs."), "roofs", "The roofs.", "Measure them.")
    nb.table(pd.DataFrame(columns=["a"]), "A table.")
    assert lines == ["*The roofs.* Nothing to show: no roofs. Measure them.", "*A table.* Nothing to show: no rows. "]
    assert not list(paths.FIGURES.glob("**/*"))
    nb.record({"a rate": (NAN, "GB/s", 0.1), "rows": (3, "", 0.0)})
    assert nb._keys == {"a rate": {"value": "not measured", "unit": "", "tolerance": None},
                        "rows": {"value": 3.0, "unit": "", "tolerance": 0.0}}

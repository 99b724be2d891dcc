"""The roofline: laws of the roof, points that are honest, and the mixtures that are refused."""

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.text import Text

from lib import paths, store, tables
from lib.config import definitions
from lib.config.notebooks import MachineParams, RooflineParams
from lib.errors import InputError
from lib.measure import archive, ceilings
from lib.measure.budget import Budget
from lib.measure.operators import isolated
from lib.measure.training import matrix
from lib.predict.analytic import roofline
from lib.predict.analytic.roofline import Roof
from lib.studies.roofline import figures, findings, study
from lib.studies.roofline import tables as shown
from lib.work.graph.ops import Op, TensorSpec

CPU = Roof("cpu", "fp32", "measured", "hw", 500.0, {"L2": 200.0, "RAM": 50.0}, {"L2": 2.0}, 2.0)
BF16 = Roof("cpu", "bf16", "measured", "hw", 1000.0, {"L2": 200.0, "RAM": 50.0}, {"L2": 2.0}, 2.0)
rates = st.floats(1e-3, 1e6)


def work(**more):
    row = {"label": "a", "env": "hw", "arch": "net", "backend": "cpu", "batch_size": 4, "precision": "fp32", "elapsed_sec": 0.1,
           "bytes_source": "compulsory", "kind": "network", "family": "net", "calls": 10, "occurrences": 1, "flops": 1e9,
           "bytes": 1e8, "level": "", "roof_dtype": "fp32", "verdict": "stable", "hardware_id": "hw", "software_id": "sw"}
    return pd.DataFrame([{**row, **more}])


@given(rates, rates, rates, rates)
def test_the_roof_is_below_both_ceilings_and_never_falls(peak, bandwidth, ai, more):
    roof = Roof("cpu", "fp32", "measured", "hw", peak, {"RAM": bandwidth})
    assert roof.attainable(ai) <= peak
    assert roof.attainable(ai) <= ai * bandwidth
    assert roof.attainable(ai) <= roof.attainable(ai + more)
    assert roof.attainable(roof.ridge_point()) == pytest.approx(peak)
    assert (roof.bound(ai) == "compute") == (ai >= roof.ridge_point())


@settings(max_examples=60)
@given(st.floats(1e6, 1e12), st.floats(1e4, 1e10), st.floats(1e-6, 10.0))
def test_a_point_is_never_above_its_roof_unless_it_is_listed(flops, moved, seconds):
    point = roofline.points(work(flops=flops, bytes=moved, elapsed_sec=seconds), [CPU])
    listed = len(findings.above(point))
    row = point.iloc[0]
    assert listed == (row.attained_gflops > row.attainable_gflops)
    assert row.ai == pytest.approx(flops / moved), "the time has no part in the intensity"
    assert row.attained_gflops == pytest.approx(flops / seconds / 1e9), "and nothing is clipped"
    assert row.below_roof == pytest.approx(row.attainable_gflops / row.attained_gflops)


def test_levels_launches_and_the_sum_of_operators():
    assert [CPU.level_of(size) for size in (1e6, 3e6)] == ["L2", "RAM"]
    assert CPU.bound(100.0, elapsed_s=1e-5) == "launch"
    assert CPU.bound(100.0, elapsed_s=1e-3, calls=100) == "launch"
    assert CPU.bound(100.0, elapsed_s=1e-3) == "compute"
    assert CPU.bound(3.0, "L2") == "compute"
    assert CPU.bound(3.0) == "RAM"
    with pytest.raises(InputError, match="L2, RAM"):
        CPU.gbps("L3")
    parts = np.array([[500e9, 0.0], [0.0, 50e9]])
    assert roofline.each_at_its_roof(parts, CPU) == pytest.approx(2.0), "one computes while the other waits"
    assert roofline.memory_share(parts, CPU) == pytest.approx(0.5)
    table = shown.by_level(roofline.points(work(), [CPU]), [CPU])
    assert table[["L2", "RAM"]].iloc[0].tolist() == [500.0, 500.0]


@pytest.mark.parametrize(("change", "reason"), [
    ({"bytes": math.nan}, "without bytes"), ({"bytes": 0}, "without bytes"), ({"flops": 0}, "without FLOPs"),
    ({"elapsed_sec": 0}, "without time"), ({"verdict": "unusable"}, "unusable"), ({"roof_dtype": "fp64"}, "without roof")])
def test_what_makes_no_point_is_counted(change, reason):
    points = roofline.points(work(**change), [CPU])
    assert points.empty
    assert points.attrs["left out"] == {reason: 1}
    assert list(points) == tables.columns("points")


def test_points_fit_their_table_and_each_dtype_has_its_own_roof():
    both = pd.concat([work(), work(label="b", precision="bf16", roof_dtype="bf16", batch_size=0)], ignore_index=True)
    points = tables.validate(roofline.points(both, [CPU, BF16]), "points", "here")
    assert points["peak_gflops"].tolist() == [500.0, 1000.0]
    assert points["images_per_sec"].tolist()[0] == pytest.approx(40)
    assert math.isnan(points["images_per_sec"][1])
    assert shown.by_family(points)["n"].tolist() == [2]


def test_mixtures_are_refused():
    other = Roof("cpu", "fp32", "measured", "other", 100.0, {"RAM": 10.0})
    two = pd.concat([work(), work(hardware_id="other")], ignore_index=True)
    with pytest.raises(InputError, match="several machines are not mixed: hw, other"):
        roofline.points(two, [CPU, other])
    assert roofline.points(two, [CPU, other], axis="hardware_id")["peak_gflops"].tolist() == [500.0, 100.0]
    with pytest.raises(InputError, match="cannot be set against the roof of other"):
        roofline.points(work(), [other])
    vendor = roofline.roofs(roofline.vendor_ceilings(definitions.vendor_device("t4")))
    with pytest.raises(InputError, match="not mixed"):
        roofline.points(work(), [CPU, *vendor])
    with pytest.raises(InputError, match="one vendor's device"):
        roofline.points(work(), [*vendor, *roofline.roofs(roofline.vendor_ceilings(definitions.vendor_device("l4")))])
    assert roofline.points(work(), vendor).attrs["left out"] == {"without roof": 1}, "a GPU's roof judges no CPU's point"
    assert len(roofline.points(work(backend="cuda"), vendor)) == 1


def test_vendor_ceilings_are_a_table_of_their_own():
    table = tables.validate(roofline.vendor_ceilings(definitions.vendor_device("rtx-4090-laptop")), "ceilings", "here")
    assert set(table["source"]) == {"vendor"}
    result = {roof.dtype: roof for roof in roofline.roofs(table)}
    desktop = definitions.vendor_device("rtx-4090")
    assert result["fp32"].peak_gflops < desktop.peak_gflops["fp32"] / 2
    assert math.isnan(result["fp32"].launch_us)
    measured = table.assign(source="measured")
    with pytest.raises(InputError, match="several: measured, vendor"):
        roofline.roofs(pd.concat([table, measured]))
    with pytest.raises(InputError, match="no device 'gtx'"):
        definitions.vendor_device("gtx")


def test_vendor_rates_are_dense_and_ordered():
    for device in definitions.load_devices().values():
        rate = device.peak_gflops
        assert rate.get("fp16", 1e9) >= rate["fp32"], device.id
        assert rate.get("bf16", rate.get("fp16")) == rate.get("fp16"), device.id
        if "tf32" in rate:
            assert rate["bf16"] / rate["tf32"] == pytest.approx(2.0, rel=0.02), f"{device.id}: tf32 is half of bf16"


def reference():
    result = ceilings.replay_ceilings(MachineParams(source="replay"))
    return result, roofline.roofs(result.table, result.overheads)


def test_roofs_of_the_reference_and_of_a_disturbed_machine():
    result, roofs = reference()
    best = result.best[result.best["level"] == "compute"].set_index("dtype")["peak_gflops"]
    assert {roof.dtype: roof.peak_gflops for roof in roofs} == best.to_dict()
    assert roofs[0].last == "RAM"
    assert not roofs[0].doubtful
    noisy = roofline.roofs(result.table.assign(verdict="unusable"))
    assert set(noisy[0].doubtful) == {"L2", "L3", "RAM", noisy[0].dtype}
    assert "Doubtful" in findings.roof_words(noisy[0])
    with pytest.raises(InputError, match="01_machine"):
        roofline.roofs(result.table[result.table["level"] == "compute"])


def test_training_steps_of_the_reference_runs():
    result, roofs = reference()
    runs = archive.runs("replay")
    chosen, left = study.newest(runs[runs["workload_id"].isin(["W1", "W6"])], roofs[0], result.table["software_id"][0])
    assert left == {"runs of other software": 0, "unusable runs": 0}
    rows, parts, skipped = study.step_rows(chosen.assign(grad_accum_steps=[1, 2]))
    assert skipped == []
    assert rows["label"].tolist() == ["W1", "W6"]
    assert rows["flops"].iloc[0] == pytest.approx(parts["W1"][:, 0].sum())
    points = roofline.points(rows, roofs)
    assert (points["below_roof"] > 1).all()
    assert "None lies above" in findings.bound_words(points, "training steps")
    assert newest_of_other_software(runs, roofs)["runs of other software"] == len(runs)
    once = study.step_rows(chosen.assign(grad_accum_steps=1))[0]
    assert once["bytes"].iloc[1] > rows["bytes"].iloc[1], "the optimizer runs half as often"


def newest_of_other_software(runs, roofs):
    return study.newest(runs, roofs[0], "other")[1]


def test_a_step_of_mixed_precision_is_estimated_and_a_strange_workload_is_told():
    runs = archive.runs("replay").query("workload_id == 'W6'").assign(precision="bf16")
    rows, _, _ = study.step_rows(runs)
    assert (rows["bytes_source"].tolist(), rows["roof_dtype"].tolist()) == (["estimated"], ["bf16"])
    rows, _, skipped = study.step_rows(runs.assign(workload_id="W99"))
    assert rows.empty
    assert "no workload 'W99'" in skipped[0]
    cuda = runs.assign(precision="fp32", tf32=True, workload_id="pathmnist-28", arch="simple_cnn", batch_size=8)
    rows, _, _ = study.step_rows(cuda)
    assert (rows["roof_dtype"].tolist(), rows["label"].tolist()) == (["tf32"], ["simple_cnn b8"])


def test_networks_and_operators_are_timed_and_read_back(home, quiet, monkeypatch):
    monkeypatch.setattr(paths, "REFERENCE", home / "reference")
    monkeypatch.setattr(isolated, "OPERATORS", 6)
    frame, facts = isolated.measure_work(["simple_cnn"], 2, "fp32", "cpu", 0.2)
    frame = frame.assign(verdict="noisy")
    assert frame["kind"].value_counts().to_dict() == {"operator": 6, "network": 1}
    assert frame["family"].nunique() >= 4, "every family has its costliest"
    here = facts["hardware_id"]
    roof = Roof("cpu", "fp32", "measured", here, 1e6, {"RAM": 1e6})
    points = roofline.points(frame, [roof])
    path = isolated.save_points(points, facts)
    folder = home / "reference" / "box"
    (folder / "runs").mkdir(parents=True)
    (folder / "points").mkdir()
    for file in path.parent.iterdir():
        file.rename(folder / "points" / file.name)
    stored, note = isolated.stored_points("cpu", "fp32", here)
    pd.testing.assert_frame_equal(roofline.points(stored, [roof])[roofline.WORK], stored[roofline.WORK])
    assert "points_cpu_fp32.csv" in note
    assert isolated.stored_points("cpu", "bf16", here)[0].empty
    assert "these operators take" in findings.operator_words(*(points[points["kind"] == k] for k in ("operator", "network")))


@pytest.mark.slow
def test_the_study_replays_and_every_figure_draws():
    result = study.study(RooflineParams(source="replay", vendor="t4"))
    assert len(result.steps) == 7
    assert len(result.networks) == 3
    assert not {"network", "step"} & set(result.operators["kind"])
    compared = study.against_operators(result)
    assert (compared["operators_roof_ms"] >= compared["roof_ms"] * (1 - 1e-9)).all(), "the sum of roofs is the tighter bound"
    table = shown.roofs(result.roofs)
    for figure in (figures.roofs(table), figures.roofline(table[table["dtype"] == "fp32"], result.whole),
                   figures.shares(result.operators), figures.throughput(matrix.throughput(result.runs))):
        figure.canvas.draw()
    text = findings.learned_words(result, study.against_operators(result), "fp32")
    assert len(text.splitlines()) == 4
    assert "nan" not in text
    bare = study.study(RooflineParams(source="replay", dtype="fp64"))
    assert bare.networks.empty
    assert "no points of networks and operators on cpu in fp64" in bare.note
    assert findings.learned_words(bare, study.against_operators(bare), "fp64").startswith("- The ridge point of fp64 lies at")
    with pytest.raises(InputError, match="it has: resnet50 b1"):
        study.study(RooflineParams(source="replay", models="alexnet"))


def test_labels_keep_apart():
    points = roofline.points(pd.concat([work(label=f"point {n}", flops=1e9 * (1 + n / 50)) for n in range(8)]), [CPU])
    figure = figures.roofline(shown.roofs([CPU]), points)
    figure.canvas.draw()
    boxes = [Text.get_window_extent(text) for text in figure.axes[0].texts]
    assert len(boxes) >= 8
    assert not any(a.overlaps(b) for n, a in enumerate(boxes) for b in boxes[:n])


def test_what_is_written_in_place_is_touched_once():
    def spec(storage):
        return TensorSpec((4, 4), (4, 1), storage=storage)

    assert isolated.footprint(Op("aten.relu_.default", (spec(0),), outputs=(spec(0),))) == 64
    assert isolated.footprint(Op("aten.relu.default", (spec(0),), outputs=(spec(1),))) == 128
    assert isolated.footprint(Op("aten.relu.default", (spec(-1),), outputs=(spec(-1),))) == 128


def test_without_points_the_words_still_say_so(home):
    nothing = pd.DataFrame(columns=tables.columns("points"))
    assert "nothing usable" in findings.bound_words(nothing, "networks")
    assert findings.operator_words(nothing, nothing) == "Nothing to show: no timed operators."
    assert shown.by_level(nothing, [CPU]).empty
    store.write(roofline.points(work(), [CPU]), home / "points.csv", "points")
    assert len(store.read(home / "points.csv", "points")) == 1


def test_an_operator_that_the_device_lacks_is_told_and_a_network_is_refused():
    import torch

    def broken():
        raise RuntimeError("not implemented for this backend\nmore")

    def item(kind, build):
        return isolated.Item({"kind": kind, "label": f"my {kind}"}, build)

    fine = item("operator", lambda: lambda: None)
    samples, failed = isolated._timed([fine, item("operator", broken)], torch.device("cpu"), Budget(0.01))
    assert [len(part) > 0 for part in samples] == [True, False]
    assert failed == ["my operator does not run on cpu: not implemented for this backend"]
    with pytest.raises(InputError, match="my network does not run on cpu"):
        isolated._timed([item("network", broken)], torch.device("cpu"), Budget(0.01))

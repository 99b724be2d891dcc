"""The roofline: laws of the roof, points that are honest, and what is refused."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib import paths, tables
from lib.config import definitions
from lib.config.notebooks import MachineParams, RooflineParams
from lib.measure import archive, ceilings
from lib.measure.operators import isolated
from lib.predict.analytic import roofline, roofline_points
from lib.predict.analytic.roofline import Roof
from tests import refused

CPU = Roof("cpu", "fp32", "measured", "hw", 500.0, {"L2": 200.0, "RAM": 50.0}, {"L2": 2.0}, 2.0)
BF16 = replace(CPU, dtype="bf16", peak_gflops=1000.0)
OTHER = Roof("cpu", "fp32", "measured", "other", 100.0, {"RAM": 10.0})
rates = st.floats(1e-3, 1e6)


def points(*rows, roofs=(CPU,)):
    """Set rows of work, each by what is not usual in it, against roofs."""
    usual = {"label": "a", "env": "hw", "arch": "net", "backend": "cpu", "batch_size": 4, "precision": "fp32", "calls": 10,
             "elapsed_sec": 0.1, "bytes_source": "compulsory", "kind": "network", "family": "net", "occurrences": 1,
             "flops": 1e9, "bytes": 1e8, "level": "", "roof_dtype": "fp32", "verdict": "stable", "hardware_id": "hw",
             "software_id": "sw"}
    return roofline.points(pd.DataFrame([{**usual, **row} for row in rows or ({},)]), roofs)


def vendor(name):
    return roofline.vendor_ceilings(definitions.vendor_device(name))


@given(rates, rates, rates, rates)
def test_the_roof_is_below_both_ceilings_and_never_falls(peak, bandwidth, ai, more):
    roof = replace(CPU, peak_gflops=peak, peak_gbps={"RAM": bandwidth})
    assert roof.attainable(ai) <= peak
    assert roof.attainable(ai) <= ai * bandwidth
    assert roof.attainable(ai) <= roof.attainable(ai + more)
    assert roof.attainable(roof.ridge_point()) == pytest.approx(peak)
    assert (roof.bound(ai) == "compute") == (ai >= roof.ridge_point())


@given(st.floats(1e6, 1e12), st.floats(1e4, 1e10), st.floats(1e-6, 10.0))
def test_a_point_above_its_roof_is_shown_there(flops, moved, seconds):
    point = points({"flops": flops, "bytes": moved, "elapsed_sec": seconds})
    row = point.iloc[0]
    assert (row.below_roof < 1) == (row.attained_gflops > row.attainable_gflops)
    assert row.ai == pytest.approx(flops / moved), "the time has no part in the intensity"
    assert row.attained_gflops == pytest.approx(flops / seconds / 1e9), "and nothing is clipped"
    assert row.below_roof == pytest.approx(row.attainable_gflops / row.attained_gflops)


@pytest.mark.parametrize("change, reason", [
    ({"bytes": 0}, "without bytes"), ({"flops": 0}, "without FLOPs"),
    ({"elapsed_sec": 0}, "without time"), ({"verdict": "unusable"}, "unusable"), ({"roof_dtype": "fp64"}, "without roof")])
def test_what_makes_no_point_is_counted(change, reason):
    made = points(change)
    assert len(made) == 0 and made.attrs["left out"] == {reason: 1} and list(made) == tables.columns("points")


def test_points_fit_their_table_and_each_dtype_has_its_own_roof():
    both = points({}, {"label": "b", "precision": "bf16", "roof_dtype": "bf16", "batch_size": 0}, roofs=[CPU, BF16])
    assert tables.validate(both, "points", "here")["peak_gflops"].tolist() == [500.0, 1000.0]
    assert both["images_per_sec"].tolist() == pytest.approx([40, math.nan], nan_ok=True)


def test_mixtures_are_refused():
    two, t4 = ({}, {"hardware_id": "other"}), roofline.roofs(vendor("t4"))
    with refused("several machines are not mixed: hw, other"):
        points(*two, roofs=[CPU, OTHER])
    for roofs, words in (([OTHER], "cannot be set against the roof of other"), ([CPU, *t4], "not mixed"),
                         ([*t4, *roofline.roofs(vendor("l4"))], "one vendor's device")):
        with refused(words):
            points(roofs=roofs)
    assert points(roofs=t4).attrs["left out"] == {"without roof": 1}, "a GPU's roof judges no CPU's point"
    assert len(points({"backend": "cuda"}, roofs=t4)) == 1


def test_vendor_ceilings_are_a_table_of_their_own():
    table = tables.validate(vendor("rtx-4090-laptop"), "ceilings", "here")
    fp32, desktop = roofline.roofs(table)[0], definitions.vendor_device("rtx-4090")
    assert set(table["source"]) == {"vendor"} and fp32.dtype == "fp32"
    assert fp32.peak_gflops < desktop.peak_gflops["fp32"] / 2
    assert math.isnan(fp32.launch_us)
    with refused("several: measured, vendor"):
        roofline.roofs(pd.concat([table, table.assign(source="measured")]))
    with refused("no device 'gtx'"):
        vendor("gtx")


def test_vendor_rates_are_dense_and_ordered():
    for device in definitions.load_devices().values():
        rate = device.peak_gflops
        assert rate.get("fp16", 1e9) >= rate["fp32"], device.id
        assert rate.get("bf16", rate.get("fp16")) == rate.get("fp16"), device.id
        if "tf32" in rate:
            assert rate["bf16"] / rate["tf32"] == pytest.approx(2.0, rel=0.02), f"{device.id}: tf32 is half of bf16"


@pytest.fixture(scope="module")
def reference():
    return ceilings.replay_ceilings(MachineParams(source="replay"))


def test_roofs_of_a_disturbed_machine(reference):
    noisy = roofline.roofs(reference.table.assign(verdict="unusable"))[0]
    assert set(noisy.doubtful) == {"L2", "L3", "RAM", noisy.dtype}
    assert roofline.roof_table([noisy])["doubtful"].all()
    l2 = roofline.roof_table([replace(CPU, doubtful=("L2",))]).set_index("level")
    assert l2["doubtful"].to_dict() == {"L2": True, "RAM": False}
    assert l2["ridge_point"].to_dict() == {"L2": 2.5, "RAM": 10.0}
    with refused("01_machine"):
        roofline.roofs(reference.table[reference.table["level"] == "compute"])


@pytest.mark.slow
def test_training_steps_of_the_reference_runs(reference):
    """What they attain is recorded by the replayed notebook."""
    roof, runs = roofline.roofs(reference.table)[0], archive.runs("replay")
    chosen, left = roofline_points.newest_runs(runs, roof, reference.table["software_id"][0])
    assert left == []
    assert roofline_points.newest_runs(runs, roof, "other")[1] == [f"{len(runs)} runs of other software"]
    w6 = chosen[chosen["workload_id"] == "W6"]
    several = pd.concat([w6, w6.assign(grad_accum_steps=2), w6.assign(precision="bf16", workload_id="W99")])
    rows, _, (reason,) = roofline_points.step_work(several)
    assert "no workload 'W99'" in reason
    assert rows["bytes"][0] > rows["bytes"][1], "the optimizer runs half as often"
    labelled = pd.concat([w6.assign(label="a/cnn3d/b4/fp32", timestamp="2000"), w6])
    of_environments, _ = roofline_points.newest_runs(labelled, roof, reference.table["software_id"][0])
    work, _, _ = roofline_points.step_work(of_environments)
    assert work["env"].tolist() == ["a", w6["hardware_id"].item()], "each environment has its points"


def test_networks_and_operators_are_timed_and_read_back(home, quiet, monkeypatch):
    monkeypatch.setattr(paths, "REFERENCE", home / "reference")
    monkeypatch.setattr(isolated, "OPERATORS", 6)
    frame, facts = isolated.measure_work(["simple_cnn"], 2, "fp32", "cpu", 0.2)
    assert frame["kind"].value_counts().to_dict() == {"operator": 6, "network": 1}
    assert frame["family"].nunique() >= 4, "every family has its costliest"
    here = facts["hardware_id"]
    roof = replace(CPU, hardware_id=here)
    made = roofline.points(frame.assign(verdict="noisy"), [roof])
    isolated.save_points(made, facts)
    (home / "reference/box/runs").mkdir(parents=True)
    paths.POINTS.rename(home / "reference/box/points")
    stored, note = isolated.stored_points("cpu", "fp32", here)
    pd.testing.assert_frame_equal(roofline.points(stored, [roof])[roofline.WORK], stored[roofline.WORK])
    assert "points_cpu_fp32.csv" in note
    assert isolated.stored_points("cpu", "bf16", here)[0].empty


@pytest.mark.slow
def test_points_are_collected_beside_a_vendors_device(monkeypatch):
    runs = archive.runs("replay").query("workload_id == 'W1'")
    monkeypatch.setattr(archive, "runs", lambda source, reference: runs)
    result = roofline_points.collect(RooflineParams(source="replay", vendor="t4", models="resnet50"))
    assert tables.validate(result.points, "points", "here")["kind"].value_counts().to_dict() == {
        "operator": 17, "step": 1, "network": 1}
    for row in result.points[result.points["kind"] != "operator"].itertuples():
        compute, memory = (result.parts[row.label] / (row.peak_gflops * 1e9, row.peak_gbps * 1e9)).T
        one_roof = row.flops / row.attainable_gflops / 1e9
        assert np.maximum(compute, memory).sum() >= one_roof * (1 - 1e-9), "the sum of the operators is the tighter bound"
    assert set(result.vendor["source"]) == {"vendor"} and set(result.vendor["dtype"]) >= {"fp32", "fp16"}
    bare = roofline_points.collect(RooflineParams(source="replay", dtype="fp64"))
    assert set(bare.points["kind"]) == {"step"} and "no points of networks and operators on cpu in fp64" in bare.note
    with refused("it has: resnet50 b1"):
        roofline_points.collect(RooflineParams(source="replay", models="alexnet"))

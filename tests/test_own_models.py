"""A machine's own models: which of its rows and ceilings train them, what completes them, and which are of this machine."""

from dataclasses import replace

import pytest

from lib import files, paths, store
from lib.measure import machine
from lib.predict import registry, training
from lib.predict.operators.cost_model import CostModel
from lib.predict.training import Target
from lib.predict.transfer_cpu import Host, identity, scaled
from tests import refused

COMMITTED = training.reference_machine()
BOX = Target(hardware_id="feedbeef", threads=2)


@pytest.fixture(scope="module")
def rows():
    table = store.read(COMMITTED / "sweeps/conv2d_kernel_cold/sweep.parquet", "sweep")
    return table[(table["status"] == "ok") & (table["verdict"] == "stable")].head(200).assign(hardware_id="feedbeef")


def _sweep(folder, table, name="s"):
    store.write(table, folder / "sweeps" / name / "sweep.parquet", "sweep")
    devices = {device: {"hardware": {"gpus": [{"name": "Tesla T4"}]}} for device in set(table["device"])}
    store.write_meta(folder / "sweeps" / name / "sweep.parquet", "sweep", started_utc=store.utc_now(), devices=devices)


@pytest.mark.slow
def test_the_state_and_threads_with_the_most_rows_train_and_are_not_mixed(tmp_path, rows):
    several = (rows.head(45), rows.head(100).assign(cache="warm"), rows.iloc[40:160].assign(threads=1))
    for number, table in enumerate(several):
        _sweep(tmp_path, table, f"s{number}")
    (target,) = training.targets(tmp_path)
    assert target.cache == "cold" and target.threads == 1
    assert len(training.reference_sweeps(tmp_path, target)[0]) == 120
    assert len(training.reference_sweeps(tmp_path, replace(target, threads=2))[0]) == 45
    with refused("one model answers for one value of threads, the table has 1, 2"):
        training.reference_sweeps(tmp_path, replace(target, threads=0))
    with refused("has no measured fp32 ceilings of cpu; measure them with 01_machine"):
        training.roof_of(tmp_path, BOX)


def test_what_a_machine_did_not_sweep_is_scaled_to_it(rows):
    """It swept GEMMs alone, and is half as fast as the machine whose model ships."""
    shipped = registry.shipped_cpu("fp32")
    facts = shipped.facts | {"hardware_id": "feedbeef", "peak_gflops": shipped.facts["peak_gflops"] / 2, "gbps_by_mb": {},
                             "peak_gbps": shipped.facts["peak_gbps"] / 2, "core_us": 2 * shipped.facts["core_us"],
                             "first_touch_ms_per_mb": None}

    def convolved_ms(model):
        return model.predict(rows[rows["pass"] == "forward"])["predicted_ms"].to_numpy()

    swept = CostModel("cpu-box-feedbeef", facts, {"gemm forward": shipped.parts["gemm forward"]})
    model = training._completed(swept, BOX)
    assert convolved_ms(model) == pytest.approx(2 * convolved_ms(shipped))
    assert not model.parts["gemm forward"].scaling and model.parts["convolution forward"].origin == shipped.device
    for case, fitted in shipped.compositions.items():
        assert model.compositions[case].rates["fresh_mb"] == pytest.approx(2 * fitted.rates["fresh_mb"])


def test_a_model_trained_on_what_was_measured_here_is_this_machines(home):
    folder = paths.IMPORTED / "box"
    here = Host(**identity(), peak_gflops=50.0, peak_gbps=10.0, first_touch_ms_per_mb=None)
    model = scaled(registry.shipped_cpu("fp32"), here)
    model.device = registry.cpu_name(folder.name, machine.ids()["hardware_id"])
    path = model.save(registry.path_of(model.device, "fp32", files.folder(folder / "trained")))
    predictor = registry.predictor("cpu", "fp32")
    assert predictor.origin == "" and predictor.model.device == model.device
    assert registry.machine_files(folder)["cpu", "fp32"] == path

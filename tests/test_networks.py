"""Whole networks measured in processes of their own: rounds, resuming, failures as rows, the verb."""

import json
import os
import re
import signal

import numpy as np
import pytest

from lib import paths, store
from lib.config import definitions
from lib.measure import machine
from lib.measure.networks import campaign, end_to_end, visits_file
from lib.predict.networks import work
from lib.work import networks
from lib.work.run_config import RunConfig
from tests import called, output_of, refusal, refused

pytestmark = pytest.mark.usefixtures("home")  # with locks of its own: others may measure meanwhile
PAIR = [(RunConfig("simple_cnn", 4, "3x28x28", mode), "default") for mode in ("infer", "train")]
IDS = {"threads": 1, "hardware_id": "h", "software_id": "s"}


@pytest.fixture
def raw(tmp_path):
    """Return where visits are written."""
    return tmp_path / "visits.jsonl"


def result(case=PAIR[0][0], slow=0, **changed):
    """Return the result of eight passes, of which so many ran on a slow processor."""
    values = {"samples_ms": [1.0] * (8 - slow) + [9.0] * slow, "reference_kernel_ms": [1.0] * (8 - slow) + [2.0] * slow}
    return visits_file.Result(case=case, rss_mb=1.0, tensors_mb=2.0, **values | changed)


def visit(device="cpu", **changed):
    """Return a visit to one case."""
    return visits_file.Visit(round=0, network="simple_cnn", memory="default", device=device, results=[result(**changed)],
                             identity=IDS)


@pytest.fixture
def pretended(home, monkeypatch):
    """Measure nothing: each visit has the same passes."""
    monkeypatch.setattr(campaign, "in_a_process", lambda cases, *_: ([result(case) for case in cases], IDS))


@pytest.mark.cuda
def test_a_network_on_this_card_is_a_row_with_its_energy(raw):
    table, _ = campaign.measure([(RunConfig("resnet18", 1), "default")], "cuda:0", rounds=1, case_s=0.3, raw=raw)
    row = table.iloc[0]
    assert (row["status"], row["device"], row["hardware_id"]) == ("ok", "cuda:0", machine.ids()["hardware_id"]), row["reason"]
    assert 0.05 < row["latency_ms"] < 100 and row["n"] >= 5
    assert np.isfinite(row[["idle_w", "power_w", "energy_j"]].astype(float)).all(), row["energy_reason"]


def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)


def die_at_batch_3(cases, *_):
    if any(case.batch_size == 3 for case in cases):
        die()
    return [result(case) for case in cases], IDS


def test_a_case_that_ends_the_process_fails_alone(monkeypatch):
    monkeypatch.setattr(end_to_end, "_measure", die_at_batch_3)
    cases = [RunConfig("simple_cnn", size, "3x28x28") for size in (3, 4)]
    results, identity = end_to_end.in_a_process(cases, "cpu", end_to_end.MeasureOptions())
    assert [(result.case.batch_size, result.reason.partition(":")[0]) for result in results] == [
        (3, "the worker was killed (signal 9)"), (4, "")]
    assert identity == IDS


@pytest.mark.slow
def test_networks_are_measured_in_processes_of_their_own_whose_deaths_are_rows_until_the_next_call(raw, tmp_path, monkeypatch):
    wanted = [*PAIR, (RunConfig("alexnet", 1, "3x8x8"), "default")]
    with monkeypatch.context() as patched:
        patched.setattr(end_to_end, "_measure", die)
        lost, _ = campaign.measure(wanted, rounds=1, case_s=0.05, raw=raw)
    assert set(lost["status"] + " " + lost["reason"]) == {"failed the worker was killed (signal 9): out of memory?"}
    table, identity = campaign.measure(wanted, rounds=1, case_s=0.05, raw=raw)
    table = table.sort_values(["network", "mode"], ignore_index=True)
    assert table["status"].tolist() == ["failed", "ok", "ok"]
    assert re.match(r"model 'alexnet' does not run: .* Output size is too small \(alexnet.py, line \d+\)", table["reason"][0])
    assert (table["n"][1:] >= 5).all() and (table["latency_ms"][1:] > 0).all()
    captured = work.captured(networks.network("simple_cnn", 4, "3x28x28"), "infer")
    assert captured.peak_bytes / 1e6 == pytest.approx(table["tensors_mb"][1], rel=0.1)
    assert table["tensors_mb"][2] > table["tensors_mb"][1] > 0
    campaign.write(table, tmp_path / "networks.parquet", **identity)
    assert store.read_json(tmp_path / "networks.meta.json")["hardware_id"] == table["hardware_id"][1]


@pytest.mark.slow
def test_networks_have_the_energy_of_a_known_power(raw, metered, networks_here):
    (first, _), (again, _) = (campaign.measure(PAIR[:1], rounds=1, case_s=0.05, raw=raw, energy_s=0.7) for _ in range(2))
    (none, _) = campaign.measure(PAIR[:1], rounds=1, case_s=0.05, energy_s=0)
    assert none["energy_j"].isna().all() and none["energy_reason"].tolist() == ["energy_s is 0"]
    (row,) = first.to_dict("records")
    assert row["power_w"] == row["idle_w"] == pytest.approx(metered)
    assert row["energy_n"] >= 10 and row["energy_reason"] == "" and row["energy_j"] > 0
    assert again["energy_j"].tolist() == [row["energy_j"]], "visits keep their energies"


@pytest.mark.parametrize("slow, expected", [
    (3, [1.0, 5, "stable", ""]), (4, [5.0, 8, "unusable", "fewer than five passes on a processor as fast as usual"])])
def test_slow_passes_do_not_count_where_five_others_exist(slow, expected):
    table = campaign.summarise([visit(slow=slow)], IDS, "cpu")
    assert table[["latency_ms", "n", "verdict", "reason"]].iloc[0].tolist() == expected


def test_after_a_torn_line_the_next_visits_are_whole(raw, pretended):
    campaign.measure(PAIR, rounds=1, raw=raw)
    whole = raw.read_text()
    raw.write_text(whole + whole[:40])
    campaign.measure(PAIR, rounds=3, raw=raw)
    assert [json.loads(line)["round"] for line in raw.read_text().splitlines()] == [0, 1, 2]
    assert raw.read_text().startswith(whole)


def test_visits_to_another_device_or_of_other_cases_are_not_taken_for_these(raw, pretended, with_card):
    for wanted, device, expected in ((PAIR, "cpu", "cpu"), (PAIR, "auto", "cuda:0"), (PAIR[:1], "cpu", "cpu")):
        table, _ = campaign.measure(wanted, device, rounds=1, raw=raw)
        assert table["device"].tolist() == [expected] * len(wanted)
    assert [json.loads(line)["device"] for line in raw.read_text().splitlines()] == ["cpu", "cuda:0", "cpu"]


@pytest.mark.parametrize("line, words", [
    ("{", "line 2 is no visit"), ('{"round": 0}', "line 2: network is missing"), ("\x00\xff", "line 2 is no visit"),
    (visit().line.decode().replace('"energy": null', '"energy": {"energy_j": "much"}').strip(),
     "line 2: results.0.energy.energy_j = 'much' should be a valid number.*results.0.energy.power_w is missing")])
def test_a_file_of_visits_that_holds_something_else_is_refused_and_kept(raw, pretended, line, words):
    campaign.measure(PAIR, rounds=1, raw=raw)
    content = raw.read_bytes() + line.encode() + b"\n"
    raw.write_bytes(content)
    with refused(words):
        campaign.measure(PAIR, rounds=2, raw=raw)
    assert raw.read_bytes() == content


def test_the_default_campaign_is_that_of_the_reference():
    wanted = {(one.network, one.mode, one.batch_size, one.dtype, memory)
              for one, memory in campaign.cases(definitions.load_campaign())}
    for path in paths.REFERENCE.glob("*/networks/networks.parquet"):
        table = store.read(path, "networks")
        assert set(table[["network", "mode", "batch_size", "dtype", "memory"]].itertuples(index=False, name=None)) == wanted


def test_the_verb(home, pretended):
    plan = home / "plan.yaml"
    plan.write_text("{rounds: 1, case_s: 0.05, sets: [{networks: [W6, W7], modes: [infer], batch_sizes: [1], memory: [kept]}]}")
    command = "measure", "networks", "--plan", plan, "--models", "W6", "--name", "mine"
    assert output_of(*command, "--dry-run") == "W6 infer b1 torch fp32, memory kept\n"
    assert "1 of 1 cases" in output_of(*command)
    table = store.read(paths.NETWORKS / "mine/networks.parquet", "networks")
    assert table[["network", "memory", "status"]].to_numpy().tolist() == [["W6", "kept", "ok"]]
    refused_line = refusal("measure", "networks", "--plan", plan, "--models", "W9")
    assert "no network 'W9' in the plan; there are: W6, W7" in refused_line
    plan.write_text(plan.read_text().replace("W7", "resnet51"))
    assert "no model 'resnet51'; there are: W1" in refusal(*command), "before anything is measured"
    plan.write_text(plan.read_text().replace("resnet51", "W7").replace("modes", "runtimes: [openvin], modes"))
    assert f"{plan}: no runtime 'openvin'; there are: torch, onnxruntime, openvino; did you mean openvino?" in refusal(*command)
    plan.write_text(plan.read_text().replace("[openvin]", "[torch, openvino]"))
    status, elsewhere, error = called(*map(str, command), "--dry-run", "--device", "cuda:0")
    assert (status, elsewhere) == (0, "W6 infer b1 torch fp32, memory default\n"), "also where that GPU is not here"
    assert error == "cases left out that only a CPU can run, by runtime, int8, threads or processes: 1\n"
    plan.write_text(plan.read_text().replace("[torch, openvino]", "[openvino]"))
    assert "each of these cases runs on a CPU alone, none on cuda:0" in refusal(*command, "--dry-run", "--device", "cuda:0")


def test_the_heap_of_the_host_is_no_condition_of_a_gpu(pretended, with_card):
    table, _ = campaign.measure([(PAIR[0][0], memory) for memory in ("default", "kept")], "cuda", rounds=1)
    assert table[["memory", "status"]].to_numpy().tolist() == [["default", "ok"]]

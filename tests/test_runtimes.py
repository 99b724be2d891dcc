"""Networks in ONNX Runtime and OpenVINO, compiled, in int8, on fewer threads and side by side: measured, refused, told."""

import builtins
import re
import subprocess
import sys
import time
from dataclasses import replace
from operator import attrgetter

import numpy as np
import pandas as pd
import pytest
import torch

from lib.config.base import build
from lib.config.definitions import Campaign
from lib.errors import InputError
from lib.measure import machine, worker
from lib.measure.networks import campaign, end_to_end, visits_file
from lib.measure.networks import runtimes as engines
from lib.measure.networks.case import Case, program
from lib.measure.networks.end_to_end import Conditions, in_a_process
from lib.measure.worker import call
from lib.predict import held_out, registry, runtime_training
from lib.predict.advice import advise, advise_text, suggestions
from lib.predict.advice.query import Answer, CapturedQuery, Query
from lib.predict.advice.snippets import snippet
from lib.predict.evaluation import runtime_choices
from lib.predict.networks import gains, runtimes
from lib.predict.networks.composition import Composition
from lib.predict.networks.runtimes import EAGER, TERMS, RuntimeCondition
from tests import refused

SMALL = ("simple_cnn", "infer", 2, "3x28x28")
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Give a folder of exported networks."""
    return tmp_path_factory.mktemp("prepared")


def passes(case, folder):
    """Prepare a case twice; return the shapes of both outputs, seconds of the first, whether files were kept, what reports."""
    first, prepare_s = program(case, CPU, folder)
    files = {path: path.stat().st_mtime_ns for path in folder.glob("*.onnx")}
    again, _ = program(case, CPU, folder)
    shapes = [[out.shape for out in run()] for run in (first, again)]
    reports = [name for name, loaded in sys.modules.items() if name.startswith("openvino_telemetry") and loaded]
    return shapes, prepare_s, files == {path: path.stat().st_mtime_ns for path in folder.glob("*.onnx")}, reports


@pytest.mark.parametrize(("runtime", "dtype"), [(runtime, dtype) for runtime in engines.TYPES for dtype in ("fp32", "int8")])
def test_a_runtime_computes_what_torch_does_and_finds_what_was_exported(folder, runtime, dtype):
    shapes, prepare_s, kept, reports = call(passes, Case(*SMALL, dtype, runtime=runtime), folder)
    assert shapes == [[(2, 1000)]] * 2 and prepare_s > 0 and kept
    assert not reports  # from a process of its own, which takes a core beside the first passes


def test_a_pass_that_computes_something_else_has_no_time(folder, monkeypatch):
    monkeypatch.setitem(engines._LOADERS, "onnxruntime", lambda *_: lambda: [np.zeros((2, 1000), np.float32)])
    with refused("outputs differ from those of torch in fp32 by 1 of their size, more than 0.01"):
        program(Case(*SMALL, runtime="onnxruntime"), CPU, folder)


@pytest.mark.parametrize(("case", "words"), [
    (Case(*SMALL, "int8"), "torch has no int8 networks; use the runtime onnxruntime or openvino"),
    (Case(*SMALL, "bf16", runtime="onnxruntime"), "onnxruntime has no bf16 here; it has fp32, int8"),
    (Case(*SMALL, runtime="tvm"), "no runtime 'tvm'; there are: onnxruntime, openvino"),
    (Case("simple_cnn", "train", 2, "3x28x28", runtime="openvino"), "openvino only infers"),
    (Case(*SMALL, compiled=True, runtime="openvino"), "compiles in its own way")])
def test_what_a_runtime_lacks_is_said(case, words):
    with refused(words):
        program(case, CPU)


def test_a_package_that_is_missing_is_named(folder, monkeypatch):
    program(Case(*SMALL, runtime="onnxruntime"), CPU, folder)
    whole = builtins.__import__

    def without(name, *more):
        if name == "openvino":
            raise ModuleNotFoundError("No module named 'openvino'", name="openvino")
        return whole(name, *more)

    monkeypatch.setattr(builtins, "__import__", without)
    with refused("openvino needs the package openvino: pip install openvino"):
        program(Case(*SMALL, runtime="openvino"), CPU, folder)


def prepared_late(case):
    """Prepare a case that takes longer than it may, in a process of its own, as campaigns do."""
    end_to_end.program = lambda *_: time.sleep(9)
    begin = time.monotonic()
    try:
        end_to_end._prepared(case, CPU, Conditions(prepare_s=0.1))
    except InputError as error:
        return str(error), time.monotonic() - begin


def test_an_export_that_takes_too_long_is_stopped():
    reason, seconds = call(prepared_late, Case(*SMALL, compiled=True))
    assert reason == "it was not exported or compiled within 0 s" and seconds < 5


@pytest.mark.slow
@pytest.mark.usefixtures("home")
def test_threads_and_processes_side_by_side_are_conditions_and_failures_are_rows(tmp_path):
    cases = [Case(*SMALL, threads=1), Case(*SMALL, threads=1, instances=2), Case(*SMALL, threads=64, instances=2)]
    one, two, many = in_a_process(cases, "cpu", Conditions(0.1, folder=tmp_path))[0]
    assert not one.reason and len(one.samples_ms) >= 5
    assert "need more cores than the" in many.reason
    if "need more cores" not in two.reason:  # a machine of one core
        assert len(two.samples_ms) >= 10 and two.rss_mb > one.rss_mb


def test_each_network_of_a_set_has_its_share_of_the_cases_and_all_are_covered():
    part = {"networks": ["resnet18", "alexnet", "vgg11"], "modes": ["infer"], "batch_sizes": [1, 8], "memory": ["default"],
            "runtimes": ["onnxruntime", "openvino"], "threads": [0, 1], "every": 3}
    wanted = campaign.cases(build(Campaign, {"rounds": 1, "case_s": 1.0, "sets": [part]}, "plan"))
    by_network = {name: {(case.batch_size, case.runtime, case.threads) for case, _ in wanted if case.network == name}
                  for name in part["networks"]}
    assert sorted(map(len, by_network.values())) == [2, 3, 3] and len(set.union(*by_network.values())) == 8


def test_rates_of_kinds_are_found_from_sums_and_conditions_alike_lend_theirs():
    """A condition of few networks has nearly the rates of the one that it is alike, at its own common factor."""
    draw = np.random.default_rng(0)
    terms = pd.DataFrame(draw.dirichlet(np.full(len(TERMS), 0.4), 150), columns=list(TERMS))
    rates, base = np.exp(draw.normal(-0.5, 0.4, len(TERMS))), RuntimeCondition("openvino", False, "fp32", 0, 1)
    few, first = replace(base, threads=1), base.alike
    fitted = runtimes.learn({first: terms.assign(latency_ms=terms @ rates), base: terms.assign(latency_ms=terms @ rates),
                             few: terms.head(3).assign(latency_ms=terms.head(3) @ rates * 1.7)})
    assert [*fitted[base].values()][:-1] == pytest.approx(rates[:-1], rel=0.15), "fresh memory apart"
    test = terms.tail(50)
    assert (test @ list(fitted[few].values())).to_numpy() == pytest.approx((test @ rates * 1.7).to_numpy(), rel=0.25)


def test_each_condition_leads_to_one_that_was_measured_first():
    for way in runtimes.shipped().conditions:
        before = [way]
        while before[-1].alike:
            before.append(before[-1].alike)
        assert len(before) < 6 and before[-1].words in ("torch fp32", "onnxruntime fp32")


@pytest.fixture
def like_the_reference(monkeypatch):
    """Let this machine compute by the instructions, and on as many cores, as the one whose networks ran in runtimes."""
    known = runtimes.Runtimes.load(min(runtimes.FOLDER.glob("*.json")))
    monkeypatch.setattr(runtimes, "shipped", lambda: known)
    monkeypatch.setattr(machine, "instructions", lambda dtype: known.instructions.get(dtype, ()))
    monkeypatch.setattr(worker, "usable_cores", lambda: known.threads)


def cpu_answer(*network, **how):
    """Return the answer of this CPU."""
    return Answer(CapturedQuery(Query(*network, **how)), registry.for_devices(["cpu"], "fp32", shipped=True)[0])


def estimated(**how):
    return cpu_answer("squeezenet1_1", 1, **how).estimate


def test_advice_names_the_best_runtimes_and_what_they_take(like_the_reference):
    usual = cpu_answer("squeezenet1_1", 1)
    changes = [change for change in suggestions.changes(usual) if change.options]
    assert 1 <= len(changes) <= 4 and any(change.settings["dtype"] != "int8" for change in changes)
    best = changes[0]
    asked = cpu_answer("squeezenet1_1", 1, **{name: best.settings[name] for name in best.settings})
    assert asked.uses_runtime
    row = asked.columns
    assert row["images_per_sec"] == pytest.approx(best.predicted_gain * usual.columns["images_per_sec"], rel=1e-6)
    assert row["low_ms"] < row["predicted_ms"] < row["high_ms"]
    assert row["prepare_s"] > 0 and "families left out errs by" in row["held_out"]
    assert not [change for change in suggestions.changes(asked) if change.what == best.what]


def test_each_condition_that_is_suggested_is_answered_as_it_was_suggested(like_the_reference, monkeypatch):
    """Eager torch in bf16 too, on a CPU for whose instructions no gain of bf16 is known: it was suggested and refused."""
    way, files = RuntimeCondition("torch", False, "bf16", 0, 1), map(runtimes.Runtimes.load, runtimes.FOLDER.glob("*.json"))
    known = next(file for file in files if way in file.conditions)
    monkeypatch.setattr(gains, "serves", lambda dtype: False)
    monkeypatch.setattr(runtimes, "shipped", lambda: known)
    monkeypatch.setattr(machine, "instructions", lambda dtype: known.instructions.get(dtype, ()))
    monkeypatch.setattr(runtimes, "known", lambda: (way,))
    query = Query("squeezenet1_1", 1, dtype="bf16")
    (cpu,) = advise.for_networks(["cpu"], "bf16", query.is_by_runtime)
    usual = Answer(CapturedQuery(replace(query, dtype="fp32")), replace(cpu, dtype="fp32"))
    suggested = {change.what: change for change in suggestions.changes(usual)}
    assert "bf16 (autocast)" not in suggested and suggested["torch bf16"].options == "--dtype bf16"
    rates = [answer.columns["images_per_sec"] for answer in (usual, Answer(CapturedQuery(query), cpu))]
    assert rates[1] / rates[0] == pytest.approx(suggested["torch bf16"].predicted_gain)
    assert not replace(query, mode="train").is_by_runtime


def test_what_was_not_measured_on_a_cpu_like_this_one_is_refused_by_name(like_the_reference, monkeypatch):
    with refused("no networks were measured in this condition .*openvino fp32 train"):
        advise.advise(Query("squeezenet1_1", 1, mode="train", runtime="openvino"), ["cpu"])
    with refused("no networks were measured on a CPU in torch int8; there are: "):
        estimated(dtype="int8")
    monkeypatch.setattr(worker, "usable_cores", lambda: 64)
    with refused("threads and processes were measured on a CPU with 2 cores, and this one has 64"):
        estimated(threads=1, runtime="openvino")
    monkeypatch.setattr(machine, "instructions", lambda dtype: ("avx512_vnni",) if dtype == "int8" else ())
    with refused("measured in int8 on a CPU with no instructions for it, and this one has avx512_vnni"):
        estimated(dtype="int8", runtime="openvino")
    assert not [change for change in suggestions.changes(cpu_answer("squeezenet1_1", 1)) if "int8" in change.what]
    with refused("no runtime 'tvm'; there are: torch, onnxruntime, openvino"):
        CapturedQuery(Query("squeezenet1_1", 1, runtime="tvm"))


def test_times_are_compared_at_the_processors_usual_speed(tmp_path):
    """Cores far apart delay passes on all threads, in each visit of the first network; not those of a thread alone."""
    def result(case, ms, kernel_ms):
        return visits_file.Result(case=case, samples_ms=[ms] * 6, reference_kernel_ms=[kernel_ms] * 6)

    names = ["resnet18", "mobilenet_v2", "squeezenet1_1", "alexnet", "googlenet", "mnasnet1_0", "densenet121", "vgg11"]
    slow = {(place, number): 1.3 if place == 0 or (place + number) % 3 == 0 else 1.0
            for place in range(len(names)) for number in range(9)}
    visits = [visits_file.Visit(round=number, network=names[place], memory="default", device="cpu", results=[
        result(Case(names[place], "infer", 1), 5.0 * factor ** 0.8, 0.2 * factor),
        result(Case(names[place], "infer", 1, threads=1), 9.0, 0.2 * factor)],
        identity={"threads": 2, "hardware_id": "a", "software_id": "b"}) for (place, number), factor in slow.items()]
    raw = tmp_path / "visits.jsonl"
    raw.write_bytes(b"".join(visit.line for visit in visits))
    table = campaign.summarise(visits, visits[0].identity, "cpu").set_index(["network", "threads"], drop=False)
    ms = runtime_training.at_usual_speed(table.reset_index(drop=True), raw)["latency_ms"].set_axis(table.index)
    assert table["latency_ms"]["resnet18", 2] > 6.1 and ms["resnet18", 2] == pytest.approx(5.0, rel=0.05)
    assert ms.xs(2, level="threads").drop("resnet18").to_numpy() == pytest.approx(5.0, rel=0.01)
    assert ms.xs(1, level="threads").to_numpy() == pytest.approx(9.0, rel=0.05)


def test_committed_predictions_give_the_scores_of_the_file_and_the_choices():
    ran = runtime_choices.rows()
    for path in runtimes.FOLDER.glob("*.json"):
        rows = held_out.load(path).query("usable")
        for way, fitted in runtimes.Runtimes.load(path).conditions.items():
            part = rows[rows["condition"] == way.words]
            error_pct = (part["predicted"] / part["measured"] - 1).abs().mean() * 100
            assert len(part) >= 3 and error_pct == pytest.approx(fitted.scores["mape"], rel=1e-4), way.words
    chosen = runtime_choices.choices(ran)
    assert (chosen["regret_pct"] >= 0).all()
    for _, scores in runtime_choices.summary(chosen).set_index("choice").groupby("machine")["regret_pct"]:
        assert scores["predicted"] < scores["always openvino fp32"] < scores["always torch eager"]
    for rule in runtime_choices.RULES:  # in the cases where its condition ran
        regrets = chosen[chosen[rule].notna()].groupby("device")[["regret_pct", rule]].mean()
        assert len(regrets) >= 2 and (regrets["regret_pct"] <= regrets[rule]).all(), rule


def test_a_cpu_is_answered_from_the_one_whose_instructions_are_its_own(monkeypatch):
    monkeypatch.setattr(machine, "name", lambda: "another")
    for known in map(runtimes.Runtimes.load, sorted(runtimes.FOLDER.glob("*.json"))):
        runtimes.shipped.cache_clear()
        monkeypatch.setattr(machine, "instructions", lambda dtype, known=known: known.instructions.get(dtype, ()))
        assert runtimes.shipped().machine == known.machine
    runtimes.shipped.cache_clear()


def test_bf16_in_a_runtime_is_answered_by_a_cpu_without_a_model_of_it(monkeypatch):
    monkeypatch.setattr(machine, "name", lambda: "another")
    zen = runtimes.Runtimes.load(runtimes.FOLDER / "cpu-amd-epyc-2c-ea2da3d4.json")
    monkeypatch.setattr(machine, "instructions", lambda dtype: zen.instructions.get(dtype, ()))
    monkeypatch.setattr(registry, "has_cpu", lambda dtype: dtype == "fp32")
    runtimes.shipped.cache_clear()
    in_fp32, in_bf16 = (advise.advise(Query("squeezenet1_1", 1, runtime="openvino", dtype=dtype), ["cpu"]).table
                        for dtype in ("fp32", "bf16"))
    runtimes.shipped.cache_clear()
    assert in_bf16["predicted_ms"].item() < in_fp32["predicted_ms"].item()


def test_rates_of_another_machine_are_where_learning_begins():
    draw = np.random.default_rng(0)
    terms = pd.DataFrame(draw.dirichlet(np.full(len(TERMS), 0.4), 60), columns=list(TERMS))
    rates, way = np.exp(draw.normal(-0.5, 0.6, len(TERMS))), RuntimeCondition("onnxruntime", False, "fp32", 0, 1)
    elsewhere = {way: dict(zip(TERMS, rates.tolist(), strict=True))}
    few = {way: terms.head(2).assign(latency_ms=terms.head(2) @ rates * 1.5)}
    fitted, alone = ((terms @ list(runtimes.learn(few, before)[way].values()) / (terms @ rates * 1.5)).to_numpy()
                     for before in (elsewhere, {}))
    assert np.abs(np.log(fitted)).mean() < 0.15 < np.abs(np.log(alone)).mean()


def a_machine(name, table, rates, **instructions):
    """Return rows of a machine whose times are exact sums at ``rates`` by condition, and the file of these rates."""
    parts = [table.assign(way=way, latency_ms=table[list(TERMS)] @ list(by_term.values())) for way, by_term in rates.items()]
    fitted = {way: Composition(by_term, 0.1, 20) for way, by_term in rates.items()}
    file = runtimes.Runtimes(name, 2, instructions, fitted, 0.1, (0.0, 1e12))
    return pd.concat(parts, ignore_index=True).assign(call_ms=0.0), file


def test_a_cpu_that_taught_nothing_is_predicted_from_its_eager_time_and_the_ratios_of_the_one_like_it():
    """A machine three times as slow with the same ratios is predicted; in int8 only where instructions are the same."""
    draw, count = np.random.default_rng(1), 60
    table = pd.DataFrame(draw.dirichlet(np.full(len(TERMS), 0.4), count), columns=list(TERMS)).assign(
        network=[f"net{number}" for number in range(count)], family=[f"family{number % 20}" for number in range(count)],
        mode="infer", batch_size=1, usable=True)
    ways = (EAGER, RuntimeCondition("onnxruntime", False, "fp32", 0, 1), RuntimeCondition("onnxruntime", False, "int8", 0, 1))
    usual = {way: dict(zip(TERMS, np.exp(draw.normal(-0.3, 0.4, len(TERMS))).tolist(), strict=True)) for way in ways}
    slow = {way: {name: rate * 3 for name, rate in rates.items()} for way, rates in usual.items()}
    machines = {"usual": a_machine("usual", table, usual), "slow": a_machine("slow", table, slow),
                "vnni": a_machine("vnni", table, usual, int8=("avx512_vnni",))}
    rows, files = ({name: pair[place] for name, pair in machines.items()} for place in (0, 1))
    lent = runtime_training.elsewhere(rows, files)
    assert set(zip(lent["device"], [way.dtype for way in lent["way"]], strict=True)) == {
        ("usual", "fp32"), ("usual", "int8"), ("slow", "fp32"), ("slow", "int8"), ("vnni", "fp32")}
    exact = lent[lent["way"] == ways[1]]
    assert len(exact) == 3 * count and np.abs(np.log(exact["predicted"] / exact["latency"])).median() < 0.1
    unusable = rows | {"vnni": rows["vnni"].assign(usable=rows["vnni"]["way"] != EAGER)}
    assert "vnni" not in set(runtime_training.elsewhere(unusable, files)["device"]), "its eager times are not to be relied on"


def a_call(**changes):
    return runtimes.call_cost(replace(EAGER, **changes))


def test_a_call_costs_what_an_empty_network_takes(monkeypatch):
    """On one machine: 4.2 us in torch, 14.3 compiled, 4.8 in ONNX Runtime, 10 to 11 in OpenVINO with its tensors set once."""
    monkeypatch.setattr(machine, "name", lambda: "another")
    costs_us = [a_call(**how)[0] * 1e3 for how in ({}, {"compiled": True}, {"runtime": "onnxruntime"}, {"runtime": "openvino"},
                                                   {"runtime": "openvino", "threads": 1})]
    assert costs_us == pytest.approx([4.17, 14.32, 4.79, 11.0, 10.2], abs=0.1)
    rows = pd.read_csv(runtimes.CALLS)
    own = rows[rows["network"] == "Empty"].assign(machine="this", low_ms=1.0)
    monkeypatch.setattr(runtimes, "_empty_passes", lambda: pd.concat([own, rows[rows["network"] == "Empty"]]))
    assert a_call() == ((1.0 + 0.00417) / 2, f"this, {rows['machine'][0]}"), "no machine is this one: the median of all"
    monkeypatch.setattr(machine, "name", lambda: "this")
    assert a_call() == (1.0, "this")
    with refused("calls.csv has no empty network in onnxruntime bf16; measure it with: python -m benchmarks runtime_calls"):
        a_call(runtime="onnxruntime", dtype="bf16")


@pytest.mark.parametrize(("network", "shape", "within"), [
    ("Linear", "16", 1.7), ("Policy", "24", 1.8), ("SmallCnn", "3x28x28", 2.2)])
def test_small_networks_are_predicted_with_the_cost_of_a_call(monkeypatch, network, shape, within):
    """Within the factor of the times in calls.csv, with confidence D and in the range; eager torch within 1.5."""
    known = runtimes.Runtimes.load(runtimes.FOLDER / "cpu-amd-epyc-2c-ea2da3d4.json")
    monkeypatch.setattr(runtimes, "shipped", lambda: known)
    monkeypatch.setattr(machine, "instructions", lambda dtype: known.instructions.get(dtype, ()))
    monkeypatch.setattr(worker, "usable_cores", lambda: known.threads)
    rows = pd.read_csv(runtimes.CALLS).query("network == @network and batch_size == 1")
    usual, measured_ms = cpu_answer(f"benchmarks.runtime_calls:{network}", 1, input_shape=shape), {}
    for row in rows.itertuples():
        way = RuntimeCondition(row.runtime, row.compiled, row.dtype, row.threads, 1)
        measured_ms[way] = row.low_ms
        found = usual.estimate if way == EAGER else usual.runtime(way)
        factor = max(row.low_ms / found.predicted_ms, found.predicted_ms / row.low_ms)
        assert factor < (1.5 if way == EAGER else within), way.words
        if way != EAGER:
            assert found.low_ms < row.low_ms < found.high_ms and found.is_outside, way.words
            assert advise_text.grade({**vars(found), "source": "", "out_of_range": True}) == "D"
            assert "GFLOPs lie outside of the 0.095 to 122 of these networks; a call costs" in found.evidence
            assert found.evidence.endswith(f" us (an empty network on {row.machine})")
    first = max((change for change in suggestions.changes(usual) if change.options), key=attrgetter("predicted_gain"))
    way = RuntimeCondition(**first.settings)
    alone = replace(way, instances=1, threads=0 if way.instances == 1 else 1)
    assert measured_ms[alone] / way.instances < measured_ms[EAGER], "what is suggested first is not slower"


def test_the_cost_of_a_call_is_in_every_eager_answer_and_named(monkeypatch):
    known = runtimes.Runtimes.load(runtimes.FOLDER / "cpu-amd-epyc-2c-ea2da3d4.json")
    monkeypatch.setattr(runtimes, "shipped", lambda: known)
    usual, other = (cpu_answer("benchmarks.runtime_calls:Linear", 1, input_shape="16", layout=layout)
                    for layout in ("contiguous", "channels_last"))
    without = registry.for_devices(["cpu"], "fp32", shipped=True)[0].estimate(usual.work)
    assert usual.estimate.predicted_ms - without.predicted_ms == pytest.approx(0.00417)
    gain = usual.gain("fp32", "channels_last").gain
    assert other.estimate.predicted_ms - without.predicted_ms / gain == pytest.approx(0.00417), "no layout changes it"
    assert usual.columns["bound"] == "launch" and "a call costs 4.17 us of it (an empty network on" in usual.columns["held_out"]
    assert "a call costs" not in cpu_answer("squeezenet1_1", 1).columns["held_out"]


def test_an_answer_from_another_cpu_is_as_wide_as_errors_there_were(monkeypatch):
    file, half = runtimes.shipped(), {}
    work = cpu_answer("squeezenet1_1", 1)
    for name in (file.machine, "another"):
        monkeypatch.setattr(machine, "name", lambda name=name: name)
        monkeypatch.setattr(runtimes, "shipped", lambda: replace(file, elsewhere_half=2.0))
        monkeypatch.setattr(runtimes.Runtimes, "refusal", lambda *_: "")
        found = work.runtime(RuntimeCondition("onnxruntime", False, "fp32", 0, 1))
        half[found.is_borrowed] = np.log(found.high_ms / found.predicted_ms)
    assert half[False] < 1 < 2 < half[True]


def test_ranges_hold_on_cpus_that_were_left_out():
    rows = held_out.load(runtimes.OUTSIDERS)
    rows = rows.assign(inside=rows["measured"].between(rows["low"], rows["high"]))
    inside = rows.groupby(["source", "device"])["inside"].mean()
    own = inside[held_out.PROJECT]
    assert len(own) == len(list(runtimes.FOLDER.glob("*.json"))) and own.between(0.85, 0.99).all()
    assert len(inside) - len(own) >= 6 and 0.85 < inside.mean() < 0.95, "each device has one vote"


@pytest.mark.slow
@pytest.mark.parametrize("how", [
    {"runtime": "openvino"}, {"runtime": "onnxruntime", "dtype": "int8"}, {"layout": "channels_last"}])
def test_the_program_that_is_told_runs_and_prints_its_time(tmp_path, how):
    text = snippet(Query("squeezenet1_1", 1, "", **how))
    assert ("set_input_tensor" in text) == ("openvino" in text) and "infer([" not in text, "tensors are set once, as measured"
    done = subprocess.run([sys.executable, "-c", text], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert re.fullmatch(r"[0-9.]+ ms", done.stdout.splitlines()[-1])


def test_programs_are_told_of_known_libraries_alone():
    assert "timm.create_model(\"resnet50\")" in snippet(Query("timm:resnet50"))
    side_by_side = snippet(Query("resnet18", instances=2, threads=1)).splitlines()[0]
    assert side_by_side == "# side by side: taskset -c 0-0 python run.py & taskset -c 1-1 python run.py"
    for query in (Query("W1"), Query("resnet18", mode="train")):
        with pytest.raises(InputError, match="--code is for inference of networks of torchvision and timm"):
            snippet(query)
    for how in ({"dtype": "bf16"}, {"compiled": True}, {"layout": "channels_last"}):
        with refused("onnxruntime runs networks in fp32, int8; --channels-last and --compile are of torch"):
            snippet(Query("resnet18", runtime="onnxruntime", **how))
    with refused("torch runs networks in fp32, bf16, fp16"):
        snippet(Query("resnet18", dtype="int8"))

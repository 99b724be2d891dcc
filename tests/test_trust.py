"""Which answer can be trusted: one table of errors on what was held out, and the line that is quoted of it beside an answer."""

import math
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from torch import nn

from lib.cli.main import main
from lib.errors import InputError
from lib.measure import archive
from lib.predict import network_training, registry
from lib.predict.advice import advise
from lib.predict.advice.query import CapturedQuery, Query
from lib.predict.composed import answers as composed_answers
from lib.predict.composed import held_out as families
from lib.predict.composed import model_file, rows
from lib.predict.composed.features import Condition
from lib.predict.gains import model_file as cpu_gains
from lib.predict.networks import kinds, work
from lib.predict.questions import answers, questions
from lib.predict.transfer_cpu import CALIBRATED
from lib.predict.trust import held_out, quote
from lib.studies.cost_model import findings, tables
from lib.work import networks
from lib.work.networks import Network

CPU = "amd-epyc-2c-ea2da3d4"
EAGER = "eager-amp_fp16-nchw-2.9.1"
SHIPPED = model_file.FOLDER


@pytest.fixture(scope="module")
def table():
    return held_out.table()


def one(table, **values):
    rows_of = table[np.logical_and.reduce([table[name] == value for name, value in values.items()])]
    assert len(rows_of) == 1, rows_of
    return rows_of.iloc[0]


class Mixer(nn.Module):
    """Patches, a layer norm, and linear layers over both axes: neither convolution nor attention."""

    def __init__(self):
        super().__init__()
        self.patches, self.norm = nn.Conv2d(3, 8, 4, 4), nn.LayerNorm(8)
        self.over_channels, self.over_patches = nn.Linear(8, 8), nn.Linear(64, 64)

    def forward(self, x):
        x = self.norm(self.patches(x).flatten(2).transpose(1, 2))
        return self.over_patches(self.over_channels(x).transpose(1, 2)).mean(2)


class Attention(nn.Module):
    """Patches, and products of activations without a softmax, as linear attention has them."""

    def __init__(self, window=4):
        super().__init__()
        self.patches = nn.Conv2d(3, 8, window, 4, window // 2 - 2)

    def forward(self, x):
        x = self.patches(x).flatten(2)
        return (x @ (x.transpose(1, 2) @ x)).mean(2)


@pytest.mark.parametrize(("build", "kind"), [
    ("resnet18", "CNN"), ("mobilenet_v3_small", "CNN"), ("convnext_tiny", "CNN"), ("vit_b_32", "transformer"),
    (Mixer, "other"), (Attention, "transformer"), (lambda: Attention(8), "hybrid"),
    (lambda: nn.Sequential(nn.Conv2d(3, 8, 1, 2), nn.ReLU()), "other")])
def test_kinds_are_of_what_is_computed_and_the_same_of_both_forms_of_work(build, kind):
    shape = (2, 3, 224, 224) if isinstance(build, str) else (2, 3, 32, 32)
    network = networks.network(build, 2) if isinstance(build, str) else Network("own", build, shape)
    assert kinds.of_work(work.captured(network, "infer").table) == kind
    assert kinds.of_work(work.captured(network, "infer", device="cuda:0").table) == kind
    assert kinds.of_rows(rows.of_network(network)) == kind


def test_tokens_alone_make_a_transformer_and_recurrence_none():
    layer = Network("layer", lambda: nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), (2, 5, 16))
    assert kinds.of_work(work.captured(layer, "infer").table) == "transformer"

    class Recurrent(nn.LSTM):
        def forward(self, x):
            return super().forward(x)[0]
    assert kinds.of_work(work.captured(Network("lstm", lambda: Recurrent(8, 8), (2, 5, 8)), "infer").table) == "other"


def test_every_held_out_network_of_a_reference_machine_has_its_kind():
    """One without: run python -m lib models --train cpu, which writes kinds.csv."""
    networks_of = held_out.machine_networks(archive.machine_folder(CPU))
    assert (networks_of["kind"] != "").all()
    for name in ("alexnet", "vit_b_32"):
        captured = work.captured(networks.network(name, 1), "infer")
        assert set(networks_of.loc[networks_of["network"] == name, "kind"]) == {kinds.of_work(captured.table)}


def test_errors_of_networks_on_a_cpu_are_those_of_its_predictions(table):
    predicted = pd.read_csv(archive.machine_folder(CPU) / "predictions" / "networks.csv")
    unseen = predicted[~predicted["tuning"] & (predicted["status"] == "ok") & ~predicted["network"].str.match("W[0-9]")]
    case = unseen[(unseen["mode"] == "train") & (unseen["memory"] == "kept") & (unseen["batch_size"] == 8)]
    usable = case[case["verdict"] != "unusable"]
    error = usable["predicted_ms"] / usable["latency_ms"] - 1
    row = one(table, device=CPU, what="networks", kind="all", mode="train", condition="batch 8, retained heap")
    assert row["mape_pct"] == pytest.approx(np.abs(error).mean() * 100)
    assert row["bias_pct"] == pytest.approx(error.mean() * 100)
    inside = (usable["low_ms"] <= usable["latency_ms"]) & (usable["latency_ms"] <= usable["high_ms"])
    assert row["coverage_pct"] == pytest.approx(inside.mean() * 100)
    assert row["n"] == len(usable)
    every = one(table, device=CPU, what=held_out.EVERY_NETWORK, mode="train", condition="batch 8, retained heap")
    assert every["n"] == len(case)
    of_kinds = table[(table["device"] == CPU) & (table["what"] == "networks") & (table["mode"] == "train")
                     & (table["condition"] == "batch 8, retained heap")]
    assert of_kinds.loc[of_kinds["kind"] != "all", "n"].sum() == len(usable)


def test_memory_is_judged_on_tensors_and_on_what_a_process_occupies(table):
    unseen = held_out.machine_networks(archive.machine_folder(CPU))
    rows_of = unseen[(unseen["memory"] == "default") & (unseen["mode"] == "train") & (unseen["verdict"] != "unusable")]
    resident = one(table, device=CPU, what="resident memory", mode="train", condition="weights and tensors")
    assert resident["mape_pct"] == pytest.approx((rows_of["memory_mb"] / rows_of["rss_mb"] - 1).abs().mean() * 100)
    assert one(table, device=CPU, what="memory of tensors", mode="train")["mape_pct"] < 5 < resident["mape_pct"]


@pytest.mark.parametrize("device", ["rtx-3090", "rtx-4090", "rtx-pro-6000-max-q"])
def test_errors_by_kind_and_family_are_of_the_models_that_ship(device):
    """Both are written by models --train timm: of another training they would differ."""
    several, composed = families.read(), model_file.of_device(device)
    several = several[several["device"] == device]
    assert set(several["condition"]) == {condition.name for condition in composed.conditions}
    for condition, fitted in composed.conditions.items():
        own = several[several["condition"] == condition.name]
        for name in ("mape", "median", "bias", "n"):
            assert own.loc[own["group"] == "all", name].item() == pytest.approx(fitted.scores[name], abs=0.006)
        for group in ("kind", "family"):
            part = own[own["group"] == group]
            assert part["n"].sum() == fitted.scores["n"]
            assert (part["mape"] * part["n"]).sum() / part["n"].sum() == pytest.approx(fitted.scores["mape"], abs=0.02)
        assert (own["group"] == "family").sum() == fitted.scores["families"]
        with_interval = own[own["half"].notna()]
        assert "all" in set(with_interval["name"])
        many = own[(own["group"] == "kind") & (own["n"] >= 50)]
        assert set(with_interval["name"]) > {"all"} or many["coverage"].between(86, 93).all(), \
            "some kind has an interval of its own, or that of all holds as many of each"
        usual = with_interval["coverage"].between(86, 93)
        assert with_interval["coverage"].between(84, 95).all()
        others = with_interval.loc[~usual, ["condition", "name"]].itertuples(index=False, name=None)
        assert set(others) <= {("eager-amp_fp16-nchw-2.4.0", "hybrid")}


def test_gains_of_cards_and_of_a_cpu_are_in_the_table_and_in_06(table):
    shown = table[table["what"] == held_out.GAINS]
    cards, cpu_ways = pd.read_csv(model_file.FOLDER / "gains.csv"), cpu_gains.shipped()
    of_cpu = shown[shown["device"] == cpu_ways.machine]
    assert sorted(of_cpu["mape_pct"]) == sorted(gain.scores["mape"] for gain in cpu_ways.ways.values())
    assert shown[shown["device"] != cpu_ways.machine]["mape_pct"].tolist() == cards["mape"].tolist()
    assert "fp32 contiguous to bf16 channels_last" in set(of_cpu["condition"])
    assert tables.gains(table)["n"].tolist() == shown["n"].tolist()


def test_an_interval_comes_from_the_other_folds():
    draw = np.random.default_rng(0)
    error, fold = draw.normal(0, 0.1, 1000), np.arange(1000) % 5
    assert 87 < families.inside(error, fold).mean() * 100 < 93
    error[fold == 0] *= 10
    assert families.inside(error, fold)[fold == 0].mean() < 0.5, "its own errors would have made its interval wide"


def test_a_kind_of_many_has_an_interval_of_its_own_and_one_of_few_that_of_all():
    draw = np.random.default_rng(1)
    fold, kind = np.arange(2000) % 5, np.array(["CNN", "hybrid"] * 999 + ["other"] * 2)
    error = draw.normal(0, np.where(kind == "CNN", 0.05, 0.2))
    covered, halves = families.intervals(error, fold, kind)
    assert halves["CNN"] == pytest.approx(1.645 * 0.05, rel=0.1)
    assert halves["hybrid"] == pytest.approx(1.645 * 0.2, rel=0.1)
    assert "other" not in halves
    assert all(87 < covered[kind == name].mean() * 100 < 93 for name in ("CNN", "hybrid"))
    together = families.inside(error, fold)
    assert together[kind == "CNN"].mean() > 0.98 and together[kind == "hybrid"].mean() < 0.85


def test_the_interval_of_an_answer_is_that_of_its_kind(tmp_path):
    composed, condition = model_file.of_device("rtx-4090"), Condition("infer", "amp_fp16", "nchw", False, "2.9.1")
    for build, kind in ((Mixer, "other"), (lambda: Attention(8), "hybrid")):
        captured = rows.of_network(Network("own", build, (2, 3, 32, 32)))
        answer = composed_answers.answer(composed, captured, 256, condition)
        own = families.half_of("rtx-4090", condition, kind)
        half = composed.conditions[condition].half if kind == "other" else own
        assert answer.high_ms / answer.predicted_ms == pytest.approx(math.exp(half))
    assert own != composed.conditions[condition].half
    assert families.half_of("rtx-4090", condition, "other") is None
    assert families.half_of("rtx-4090", condition, "CNN", tmp_path) is None


@pytest.mark.parametrize("path", ["composed/families.csv", "composed/final.csv"])
def test_a_damaged_table_is_one_line(path, tmp_path, monkeypatch):
    (tmp_path / path.partition("/")[2]).write_text("device,mape\nrtx-4090,3\n")
    monkeypatch.setattr(model_file, "FOLDER", tmp_path)
    with pytest.raises(InputError, match="lacks the columns"):
        list(held_out.of_final_set() if "final" in path else held_out.of_card(model_file.of_device("rtx-4090", SHIPPED)))


def test_the_final_set_is_in_the_table_as_it_fell(table):
    final = pd.read_csv(model_file.FOLDER / "final.csv")
    shown = table[table["what"] == held_out.FINAL]
    assert shown["mape_pct"].tolist() == final["mape"].tolist()
    assert shown["coverage_pct"].tolist() == final["coverage"].tolist()
    assert shown["condition"].iloc[0] == held_out.condition_of_card(final["condition"][0])


def test_a_card_left_out_is_in_the_table_without_and_with_some_of_its_networks(table):
    cards = pd.read_csv(model_file.FOLDER / "new_cards.csv")
    without, corrected = (table[table["what"] == what] for what in (held_out.NEW_CARDS, held_out.CORRECTED_CARDS))
    assert without["mape_pct"].tolist() == cards.loc[cards["networks"] == 0, "mape"].tolist()
    assert set(without["kind"]) == {"all"}
    some = cards[cards["networks"] > 0]
    assert corrected["mape_pct"].tolist() == some["mape"].tolist()
    assert corrected["kind"].tolist() == [f"{several} of its networks" for several in some["networks"]]
    shared = table[(table["device"] == model_file.ANY) & (table["what"] == "networks")]
    assert set(shared["kind"]) == {"all"}
    assert set(shared["left_out"]) == {"each of rtx-3090, rtx-4090, rtx-pro-6000-max-q, and families of timm"}


def test_parts_of_models_of_operators_have_their_scores(table):
    row, model = one(table, device="t4", kind="convolution"), registry.load(registry.SHIPPED / "t4_fp32.json.gz")
    assert row["mape_pct"] == model.parts["convolution forward"].scores["mape"]
    of_any = one(table, device="any-gpu", kind="convolution")["left_out"]
    assert of_any == "GPUs, one after another, their place in the published table known"


def test_the_weakest_come_first_each_by_its_worst_condition(table):
    shown = held_out.weakest_first(table)
    assert shown["mape_pct"].is_monotonic_decreasing
    assert not shown.duplicated(["device", "what", "kind", "mode"]).any()
    cards = table[(table["device"] == "rtx-4090") & (table["what"] == "networks") & (table["kind"] == "CNN")]
    row = one(shown, device="rtx-4090", what="networks", kind="CNN")
    assert (row["mape_pct"], row["conditions"]) == (cards["mape_pct"].max(), len(cards))
    assert not ((shown["device"] == "rtx-4090") & (shown["what"] == "networks") & (shown["kind"] == "all")).any()


def test_an_answer_of_a_card_quotes_its_kind_and_condition(table):
    advice = advise.advise(Query("vit_b_32", 64, dtype="fp16", layout="channels_last"), ["rtx-4090"], crossovers=False)
    answer = advice.table.iloc[0]
    row = one(table, device="rtx-4090", what="networks", kind="transformer", condition="eager, amp_fp16, nhwc, torch 2.4.0")
    for name in quote.NUMBERS:
        assert answer[f"held_out_{name}"] == row[name]
    assert answer["held_out"].startswith("transformer networks on rtx-4090, infer, eager, amp_fp16, nhwc, torch 2.4.0: MAPE ")
    assert answer["held_out"].endswith("left out: families of timm (timm)")


def test_a_kind_of_few_is_quoted_with_all_kinds_and_one_of_none_by_them():
    item = SimpleNamespace(table=work.captured(Network("mixer", Mixer, (2, 3, 32, 32)), "infer").table, mode="infer")
    predictor = SimpleNamespace(composed=model_file.of_device("rtx-4090"))
    condition = Condition("infer", "amp_fp16", "nchw", False, "2.9.1")
    several = quote.quote(predictor, item, None, condition)
    assert several.numbers["n"] == 3
    assert "other networks on rtx-4090, infer, eager" in several.words
    of_all = families.of_kinds("rtx-4090", condition)["all"]
    assert f"(few; all kinds: MAPE {of_all['mape']:.1f} %" in several.words
    of_kinds = [row for row in held_out.of_card(predictor.composed) if row["kind"] != "other"
                and row["condition"] == held_out.condition_of_card(EAGER)]
    of_none = quote._of_kind(of_kinds, "other").words
    assert of_none.startswith("no other network was held out; all networks on rtx-4090, infer, eager")


def cpu(**changes):
    model = registry.load(registry.model_files(shipped=True)[f"cpu-{CPU}", "fp32"])
    model.facts |= changes.pop("facts", {})
    return registry.Predictor("cpu", "fp32", model, **changes)


@pytest.mark.parametrize(("model", "mode", "batch", "words"), [
    ("resnet18", "infer", 1, "CNN networks on {}, infer, batch 1, default allocator"),
    ("resnet18", "infer", 512, "CNN networks on {}, infer, batch 8, default allocator"),
    ("resnet18", "train", 8, "forward and backward of CNN networks on {}, train, batch 8, retained heap"),
    ("vit_b_32", "infer", 8, "transformer networks on {}, infer, batch 8, default allocator")])
def test_an_answer_of_a_cpu_quotes_networks_of_its_kind_at_the_nearest_batch(model, mode, batch, words, table):
    words = words.format(CPU)
    captured, predictor = CapturedQuery(Query(model, batch, mode=mode)), cpu()
    item = captured.work()
    given = captured.quote(predictor, item, predictor.estimate(item))
    assert given.words.startswith(words)
    row = one(table, device=CPU, what="networks", kind=words.split(" networks")[0].rpartition(" ")[2], mode=mode,
              condition=words.split(f"{mode}, ")[1])
    assert given.numbers["mape_pct"] == row["mape_pct"]
    assert ("few; all kinds" in given.words) == (row["n"] < 10)
    elsewhere = captured.quote(cpu(origin=f"cpu-{CPU}"), item, predictor.estimate(item))
    assert elsewhere.words == f"not of this machine: {given.words}"


def test_a_calibrated_cpu_quotes_its_own_calibration():
    captured, predictor = CapturedQuery(Query("simple_cnn")), cpu(facts={CALIBRATED: f"cpu-{CPU}"})
    item = captured.work()
    given = captured.quote(predictor, item, predictor.estimate(item))
    assert "left out: each network of the calibration (measured here)" in given.words
    assert given.numbers["mape_pct"] == predictor.model.compositions["infer default"]["scores"]["mape"]
    predictor.model.compositions.clear()
    nothing = captured.quote(predictor, item, predictor.estimate(item))
    assert nothing.words == "no network was measured when this machine was calibrated"
    assert math.isnan(nothing.columns["held_out_mape_pct"])


def test_a_heap_that_was_not_measured_is_answered_by_the_other_and_the_line_says_so(tmp_path, monkeypatch):
    """A machine whose networks were measured with a retained heap alone; a pass runs with the default allocator."""
    predicted = pd.read_csv(archive.machine_folder(CPU) / "predictions" / "networks.csv")
    (tmp_path / CPU / "predictions").mkdir(parents=True)
    predicted[predicted["memory"] == "kept"].to_csv(tmp_path / CPU / "predictions" / "networks.csv", index=False)
    monkeypatch.setattr(archive, "machines", lambda **_: {CPU: tmp_path / CPU})
    captured, predictor = CapturedQuery(Query("resnet18")), cpu()
    item = captured.work()
    given = captured.quote(predictor, item, predictor.estimate(item))
    assert given.words == "no network with the default allocator was held out on the machine of this model"
    of_kept = predictor.model.compositions["infer kept"]
    predictor.model.compositions["infer default"] = {**of_kept, "scores": {}, "interval_of": "kept"}
    given = captured.quote(predictor, item, predictor.estimate(item))
    assert given.words.startswith("no network was measured with the default allocator, its interval is that with the retained "
                                  f"heap; all networks on {CPU}, infer, batch 1, retained heap: MAPE ")


def test_an_answer_of_kernels_quotes_its_operators_by_their_share_of_the_time():
    captured, (predictor,) = CapturedQuery(Query("resnet50", 8)), registry.for_devices(["t4"], "fp32", shipped=True)
    item = captured.work(device_type="cuda")
    passes = predictor.estimate(item)
    given = captured.quote(predictor, item, passes)
    scores = {name: part.scores["mape"] for name, part in predictor.model.parts.items() if part.scores}
    assert min(scores.values()) < given.numbers["mape_pct"] < max(scores.values())
    assert math.isnan(given.numbers["coverage_pct"])
    assert given.words.startswith("no network was measured there; of its operators, by share of the time: ")
    assert "convolution forward" in given.words
    assert "shapes, in folds, their place in the published table known (neusight)" in given.words
    linear = held_out.of_part(predictor.model, "memory forward")
    assert linear["left_out"] == "shapes, in folds"
    (unseen,) = registry.for_devices(["h100-sxm"], "fp32", shipped=True)
    assert "(by any-gpu): MAPE" in captured.quote(unseen, item, unseen.estimate(item)).words


def test_what_a_sibling_answers_for_has_the_errors_on_gpus_left_out():
    """The L40S errs little on its own unseen shapes; those are not the RTX 4090's."""
    any_gpu = registry.load(registry.model_files(shipped=True)["any-gpu", "bf16"])
    own, other = registry.for_devices(["l40s", "rtx-4090"], "bf16", shipped=True)
    assert own.model.parts["gemm forward"].scores["mape"] < other.model.parts["gemm forward"].scores["mape"]
    assert other.model.parts["gemm forward"].scores == any_gpu.parts["gemm forward"].scores
    row = held_out.of_part(other.model, "gemm forward")
    assert (row["device"], row["left_out"]) == ("l40s", "GPUs, one after another")
    assert held_out.of_part(own.model, "gemm forward")["left_out"] == "shapes, in folds"
    (alike,) = registry.for_devices(["l40s"], "fp16", shipped=True)
    assert alike.model.parts["gemm forward"].scores == own.model.parts["gemm forward"].scores, "the card itself, in bf16"
    assert held_out.of_part(alike.model, "gemm forward")["left_out"] == "shapes, in folds"


def test_answers_to_many_questions_and_the_command_line_hold_the_line(capsys):
    several = answers.answers(questions.of_table(pd.DataFrame({"model": ["simple_cnn", "no_such"], "device": "t4"})))
    assert set(quote.COLUMNS) <= set(several.columns)
    assert several["held_out"][0].startswith("no network was measured there")
    assert several["held_out_mape_pct"][0] > 0 and math.isnan(several["held_out_mape_pct"][1])
    assert main(["advise", "simple_cnn", "--device", "t4", "--no-look"]) == 0
    assert f"t4, errors on what was held out: {several['held_out'][0]}" in capsys.readouterr().out


def test_the_verb_prints_the_errors_and_trains_nothing_beside(capsys):
    assert main(["models", "--errors"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:4] == ["device", "what", "kind", "mode"] and len(lines) > 40
    assert main(["models", "--errors", "--train", "cpu"]) == 2
    assert "give one" in capsys.readouterr().err


def test_a_training_tells_its_errors_by_kind_and_family(tmp_path):
    """A network that is predicted half again too slow in one family of CNNs shows there, and nowhere else."""
    captures = {("a", 8): rows.of_network(Network("mixer", Mixer, (2, 3, 32, 32))),
                ("b", 8): rows.of_network(Network("net", lambda: nn.Conv2d(3, 8, 3), (2, 3, 32, 32)))}
    part = pd.DataFrame({"network": ["a", "b"] * 60, "image_size": 8, "module": ["m", "c"] * 60})
    log_ms = np.zeros(120)
    predicted = np.where(part["module"] == "c", math.log(1.5), 0.0)
    condition = Condition("infer", "amp_fp16", "nchw", False, "2.9.1")
    several = families.table("card", {condition: (part, SimpleNamespace(log_ms=log_ms))}, {condition: predicted},
                             {"m": 0, "c": 1}, captures)
    families.save(several, tmp_path)
    again = families.read(tmp_path).set_index(["group", "name"])
    assert again.loc[("kind", "CNN"), "mape"] == again.loc[("family", "c"), "bias"] == 50
    assert again.loc[("kind", "other"), "mape"] == again.loc[("family", "m"), "mape"] == 0
    assert again.loc[("all", "all"), "mape"] == 25
    assert again.loc[("kind", "CNN"), "coverage"] == 0, "the other fold has no error at all"


def test_a_machine_without_networks_has_a_table_of_kinds_all_the_same():
    none = pd.DataFrame({name: pd.Series(dtype=str) for name in ("network", "mode", "memory", "batch_size")})
    terms = network_training.terms(registry.shipped_cpu("fp32"), none, {})
    assert network_training.kinds_of(terms).to_csv(index=False) == "network,kind\n"


def test_kinds_are_of_the_works_that_were_captured_for_the_terms(monkeypatch):
    """Networks are captured once, and which case a process measured first is said before any row is left out."""
    cases = pd.DataFrame([{"network": name, "mode": mode, "memory": "kept", "batch_size": 2, "input_shape": ""}
                          for name in ("squeezenet1_1", "alexnet") for mode in ("train", "infer")])
    items = network_training.works(cases)
    monkeypatch.setattr(work, "captured", lambda *_, **__: pytest.fail("a network was captured again"))
    terms = network_training.terms(registry.shipped_cpu("fp32"), cases, items)
    assert network_training.kinds_of(terms).to_dict("list") == {"network": ["alexnet", "squeezenet1_1"], "kind": ["CNN", "CNN"]}
    assert terms["first_use"].tolist() == [True, False, True, False]


def test_errors_and_coverage_of_flagged_answers_are_means_over_answers():
    flagged = held_out.FLAGGED[held_out.NETWORKS]
    rows_of = pd.DataFrame({"what": flagged, "n": [1, 99], "coverage_pct": [0.0, 100.0], "mape_pct": [300.0, 10.0]})
    assert "hold 99 % of 100 networks (mean error 13 %)" in findings.flagged_words(rows_of)

"""Many questions in one table: the same answers as one by one, and a bad row says why."""

import json

import pandas as pd
import pytest

from lib.predict.advice import questions
from tests import advice_on, called, output_of, refusal

DEVICES = ("cpu", "t4", "h100-sxm")


def of(**columns):
    return questions.from_table(pd.DataFrame(columns))


@pytest.mark.slow
def test_answers_are_those_of_one_question_after_another():
    batches = (1, 2, 4, 8)
    table = questions.answer(of(model="simple_cnn", batch_size=sorted(batches * 3), device=list(DEVICES) * 4, input="3x28x28"))
    assert list(table) == list(questions.COLUMNS)
    assert (table["error"] == "").all() and table["question"].tolist() == list(range(1, 13))
    for row in table.itertuples():
        alone = advice_on(row.device, "simple_cnn", row.batch_size, "3x28x28").table.iloc[0]
        assert (row.predicted_ms, row.memory_mb) == pytest.approx(tuple(alone[["predicted_ms", "memory_mb"]]), rel=0.02)
        assert row.bound == alone["bound"] and row.source == alone["source"] and row.dtype == alone["dtype"]


@pytest.mark.slow
def test_a_bad_row_says_why_and_the_others_are_answered(tmp_path):
    (tmp_path / "q.csv").write_text("""model,batch_size,device,mode,dtype,input
resnet18,2,t4,infer,,
resnet5000,2,t4,,,
resnet18,two,t4,,,
resnet18,-1,t4,,,
resnet18,2,t1000,,,
resnet18,2,t4,fly,,
resnet18,2,t4,,fp7,
resnet18,2,t4,,,3x
alexnet,2,t4,,,3x8x8
,2,t4,,,
resnet18,,cpu,train,,
""")
    table = questions.answer(questions.read(tmp_path / "q.csv"))
    reasons = ["", "no model 'resnet5000'", "batch_size 'two' is no whole number", "batch_size '-1' is no whole number",
               "no device 't1000'; did you mean", "no mode 'fly'", "no element type 'fp7'", "input shape '3x' is none",
               "does not run on an input of shape", "it names no model", ""]
    assert [words in error for words, error in zip(reasons, table["error"], strict=True)] == [True] * 11
    answered = table["error"] == ""
    assert answered.tolist() == [not words for words in reasons]
    assert table.loc[answered, "predicted_ms"].gt(0).all() and table.loc[~answered, "predicted_ms"].isna().all()
    assert table["batch_size"].tolist()[-1] == 1, "the usual batch is said"
    assert "2 answers to 11 questions; 9 without one (column error), such as question 2: no model" in questions.summary(table)


def test_a_question_without_a_device_is_one_of_all():
    table = questions.answer(of(model=["simple_cnn"]))
    assert len(table) > 5 and set(table["question"]) == {1} and {"cpu", "t4"} <= set(table["device"])


@pytest.mark.slow
def test_a_batch_that_cannot_be_captured_leaves_the_others_their_answers(tmp_path, monkeypatch):
    """Of one sample a batch norm over single values cannot be trained; the larger batches can."""
    (tmp_path / "normed.py").write_text("from torch import nn\ndef Net():\n    return nn.Sequential(nn.Flatten(), "
                                        "nn.Linear(12, 4), nn.BatchNorm1d(4))\n")
    monkeypatch.chdir(tmp_path)
    table = questions.answer(of(model="normed:Net", batch_size=[1, 2, 4, 8], device="t4", mode="train", input="3x2x2"))
    assert (table["error"] != "").tolist() == [True, False, False, False]
    assert "Expected more than 1 value per channel" in table["error"][0]


@pytest.mark.parametrize("content, words", [
    ("model\n", "has no row"),
    ("network,device\na,cpu\n", "missing the column model; unknown columns"),
    ("model,colour\na,red\n", "unknown columns [colour]; it takes: model, batch_size")])
def test_a_file_that_is_no_table_of_questions_is_one_line(content, words, tmp_path):
    (tmp_path / "q.csv").write_text(content)
    assert words in refusal("advise", "--questions", tmp_path / "q.csv")


def test_the_verb_answers_into_a_new_file_with_options_as_defaults(tmp_path, monkeypatch):
    (tmp_path / "q.csv").write_text("model,batch_size\nsimple_cnn,2\nno_such,2\nsimple_cnn,\n")
    (tmp_path / "bad.csv").write_text("model\nno_such\n")
    monkeypatch.chdir(tmp_path)
    command = "advise --questions q.csv --device t4 --device cpu --dtype fp32 --batch-size 8 --no-ceilings".split()
    status, out, error = called(*command, "--output", "answers.csv")
    assert (status, out) == (0, "answers.csv\n") and "4 answers to 3 questions; 2 without one" in error
    table = pd.read_csv("answers.csv")
    assert table["question"].tolist() == [1, 1, 2, 2, 3, 3] and table["batch_size"].tolist() == [2, 2, 2, 2, 8, 8]
    rows = json.loads(output_of(*command, "--json"))
    assert rows[2]["predicted_ms"] is None and rows[0]["predicted_ms"] == pytest.approx(table["predicted_ms"][0])
    output_of("advise", "--questions", "bad.csv", "--no-ceilings", status=1)


def test_layout_and_compile_are_columns():
    table = questions.answer(of(model="resnet18", batch_size=64, dtype="fp16", device=[*["rtx-4090"] * 5, "p100-pcie-16gb"],
                               layout=["", "channels_last", "", "hwcn", "", "channels_last"],
                               compile=["", "", "yes", "", "perhaps", ""]))
    plain, last, compiled, *wrong = table.itertuples()
    assert len({plain.predicted_ms, last.predicted_ms, compiled.predicted_ms}) == 3
    assert last.layout == "channels_last" and compiled.compile and not plain.compile
    alone = advice_on("rtx-4090", "resnet18", 64, dtype="fp16", layout="channels_last")
    assert last.predicted_ms == pytest.approx(alone.table["predicted_ms"][0])
    reasons = ("no layout 'hwcn'", "compile 'perhaps'", "for: p100")
    assert [words in row.error for words, row in zip(reasons, wrong, strict=True)] == [True] * 3

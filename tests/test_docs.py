"""The documents say what is so: links lead somewhere, verbs and targets exist, names are where they are said to be."""

import re
from urllib.parse import unquote

import pandas as pd
import pytest

from lib import paths, store
from lib.config import definitions, notebooks
from lib.predict import held_out
from lib.predict.cards import card_errors
from lib.predict.evaluation import gpu_kernels, runtime_choices
from lib.predict.networks import runtimes
from lib.predict.power import energy
from lib.predict.trust import errors, scoreboard
from tests import output_of

DOCUMENTS = ["README.md", "data/README.md", *sorted(f"docs/{path.name}" for path in (paths.ROOT / "docs").glob("*.md"))]
LINK = re.compile(r"\]\(([^)#:\s]+)\)")
README, WHERE, ARCHITECTURE, ERRORS = (paths.ROOT.joinpath(name).read_text() for name in (
    "README.md", "docs/where.md", "docs/architecture.md", "docs/research.md"))


def cells_of(table):
    """Return the cells of a table as the documents write them: n without, other numbers with one digit after the point."""
    return [["" if pd.isna(value) else value if isinstance(value, str) else f"{value:,.{0 if name == 'n' else 1}f}"
             for name, value in row.items()] for row in table.to_dict("records")]


def rows(text, heading):
    """Return the cells of the rows of the first table under a heading."""
    part = text.split(f"## {heading}", 1)[1].split("\n## ", 1)[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in part.splitlines() if line.startswith("|")][2:]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_targets_and_verbs_exist(name):
    path = paths.ROOT / name
    text = path.read_text()
    for link in LINK.findall(text):
        assert (path.parent / unquote(link)).exists(), link
    makefile = (paths.ROOT / "Makefile").read_text()
    for target in re.findall(r"^make ([a-z]+)|`make ([a-z]+)", text, re.M):
        assert re.search(rf"^{''.join(target)}:", makefile, re.M), target
    shown = output_of("--help")
    for verb in set(re.findall(r"python -m lib ([a-z][a-z-]+)", text)):
        assert re.search(rf"^    {verb}\b", shown, re.M), verb


@pytest.mark.parametrize("row", rows(WHERE, "Find and add"), ids=lambda row: row[0])
def test_a_question_leads_to_a_file_that_holds_the_name(row):
    question, files, names = row
    paths_ = [paths.ROOT / "docs" / unquote(link) for link in LINK.findall(files)]
    assert 1 <= len(paths_) <= 6, question
    files = [file for path in paths_ for file in (path.glob("*.py") if path.is_dir() else [path])]
    text = "".join(file.read_text() for file in files)
    for name in re.findall(r"`([^`]+)`", names):
        defined = rf"^ *(?:def|class) {name}\b|^ *{name}(?:: [^=\n]+)? = |^{name}:"  # of Python, or a key of YAML
        assert re.search(defined, text, re.M), f"{question} {name} is not defined in {[path.name for path in paths_]}"


@pytest.mark.parametrize("row", rows(ARCHITECTURE, "Where is ...?"), ids=lambda row: row[0])
def test_a_place_of_the_architecture_page_exists(row):
    places = [paths.ROOT / place for place in re.findall(r"`(lib/[a-z_/.]+)`", row[1])]
    assert places and all(place.exists() for place in places)
    text = "".join(place.read_text() for place in places if place.is_file())
    for name in re.findall(r"`([A-Za-z_]+)(?:\.\w+)?`(?! in)", row[1]):
        assert re.search(rf"\b{name}\b", text), name


@pytest.fixture(scope="module")
def table():
    return errors.table()


def test_research_has_the_errors_on_a_cpu_and_of_gains(table):
    views = {"30, usable": errors.NETWORKS, "30, every row": errors.EVERY_NETWORK, "46, usable": errors.SWEPT,
             "46, every row": errors.EVERY_SWEPT}
    for heap, view, *cells in rows(ERRORS, "Networks on a CPU"):
        part = table[(table["what"] == views[view]) & (table["kind"] == "all") & table["condition"].str.endswith(heap)]
        assert cells == [f"{row.mape_pct:.1f} ({row.baseline_pct:.1f})" for row in part.itertuples()], (heap, view)
    names = ["device", "mode", "condition", "n", "mape_pct", "baseline_pct", "sign_pct", "always_pct"]
    assert rows(ERRORS, "Gains") == cells_of(table.loc[table["what"] == errors.GAINS, names])


_RUNTIMES = {"AVX2": "amd-epyc-2c-d474a16a", "Zen 5": "amd-epyc-2c-ea2da3d4", "Xeon": "intel-xeon-2c-397e4cfa"}
_CHOICES = {"always OpenVINO fp32, where it ran": "always openvino fp32", "always eager torch": "always torch eager",
            "always ONNX Runtime fp32, where it ran": "always onnxruntime fp32",
            "always torch.compile fp32, where it ran": "always torch.compile fp32",
            "always OpenVINO bf16, where it ran": "always openvino bf16",
            "always OpenVINO int8, where it ran": "always openvino int8"}


def test_research_has_the_gains_of_runtimes_and_what_choices_cost():
    ran, shown = runtime_choices.rows(), rows(ERRORS, "Runtimes on a CPU")
    gains = runtime_choices.gains(ran).set_index(["condition", "machine"])
    lines = [row for row in shown if len(row) == 13][2:]
    assert {row[0] for row in lines} == set(gains.index.get_level_values(0))
    for condition, *cells in lines:
        for number, machine in enumerate(_RUNTIMES.values()):
            cell = cells[4 * number:4 * number + 4]
            if (condition, machine) not in gains.index:
                assert cell == [""] * 4
                continue
            row = gains.loc[condition, machine]
            assert cell == [f"{row.n:.0f}", f"{row.mean_gain:.1f} ({row.least_gain:.1f} to {row.most_gain:.1f})",
                            f"{row.median_pct:.0f}", f"{row.sign_pct:.0f} / {row.always_pct:.0f}"]
    costs = {among: runtime_choices.summary(runtime_choices.choices(ran, dtypes)).set_index(["choice", "machine"])
             for among, dtypes in (("fp32", ["fp32"]), ("all", ["fp32", "bf16", "int8"]))}
    lines = [row for row in shown if row[0] in costs]
    assert {row[0] for row in lines} == set(costs)
    for among, words, *cells in lines:
        rows_of = costs[among].loc[_CHOICES.get(words, words)]
        assert cells == [text for machine in _RUNTIMES.values() for text in (
            (f"{rows_of.best_named_pct[machine]:.0f}", f"{rows_of.regret_pct[machine]:.1f}") if machine in rows_of.index
            else ("", ""))]


def test_research_has_the_errors_of_runtimes_on_measured_cpus_and_on_those_left_out():
    shown, left_out = rows(ERRORS, "Runtimes on a CPU"), held_out.load(runtimes.OUTSIDERS)
    for words, *cells in (row for row in shown if row[0] in _RUNTIMES and row[1].isdigit()):
        table = held_out.load(runtimes.FOLDER / f"cpu-{_RUNTIMES[words]}.json").query("usable")
        exact = table[table["condition"].str.contains("fp32")]
        error, of_exact = ((part["predicted"] / part["measured"] - 1).abs() * 100 for part in (table, exact))
        inside = table["measured"].between(table["low"], table["high"]).mean() * 100
        assert cells == [str(len(table)), f"{error.mean():.1f}", f"{error.median():.1f}", f"{inside:.0f}",
                         f"{of_exact.mean():.1f}", f"{of_exact.median():.1f}"]
    lines = [row for row in shown if row[1].endswith("in fp32") or row[1].startswith(("ONNX", "torch"))]
    assert len(lines) == left_out["device"].nunique()
    for words, _, *cells in lines:
        table = left_out[left_out["device"].str.contains(_RUNTIMES.get(words, words.partition(" of ")[0]), regex=False)]
        table = table[table["source"] == held_out.PROJECT] if words in _RUNTIMES else table[table["source"] != held_out.PROJECT]
        error, faster = (table["predicted"] / table["measured"] - 1).abs() * 100, table["measured"] < 1
        inside, sign = table["measured"].between(table["low"], table["high"]), (table["predicted"] < 1) == faster
        assert cells == [str(len(table)), f"{error.mean():.0f}", f"{error.median():.0f}", f"{inside.mean() * 100:.0f}",
                         f"{sign.mean() * 100:.0f} / {max(faster.mean(), 1 - faster.mean()) * 100:.0f}"], words


def test_the_page_of_errors_has_the_table_that_the_command_prints(table):
    page = paths.ROOT.joinpath("docs/errors.md").read_text().replace("# How wrong the answers are", "## Graded")
    shown = cells_of(errors.graded(table))
    assert rows(page, "Graded") == shown
    graded = {row[0]: row for row in shown}
    for question, *cells in rows(README, "How far to trust the answers"):
        typical, mean, inside, grade = cells
        _, *known, _, letter = graded[question.replace("a training step on", "a whole training step on")]
        assert grade == letter
        assert [typical, mean] == [f"{value} %" for value in known[:2]]
        assert inside == (f"{float(known[2]):.0f} %" if known[2] else "")


def test_the_page_of_errors_has_the_scoreboard_of_outsiders():
    names = ["source", "device", "question", "n", "median_pct", "mape_pct", "bias_pct", "inside_pct", "range_width",
             "shipped_mape_pct", "shipped_inside_pct"]
    page = paths.ROOT.joinpath("docs/errors.md").read_text()
    board = scoreboard.summary(scoreboard.shipped())
    assert rows(page, "Judged by outsiders") == cells_of(board[names])
    networks = board.query("question.str.startswith('networks')")
    (devices, *numbers) = re.search(r"networks on \[(\w+) cards\].* are (\d+) to (\d+) % off, and\s+the ranges hold for "
                                    r"(\d+) to (\d+) %", README).groups()
    assert devices == "nine" and networks["device"].nunique() == 9
    assert [int(number) for number in numbers] == [round(networks[name].agg(end)) for name in ("mape_pct", "inside_pct")
                                                   for end in ("min", "max")]


def test_each_notebook_is_in_the_report_and_in_the_readme():
    names = [path.stem for path in sorted(paths.NOTEBOOKS.glob("[0-9]*.ipynb"))]
    assert names == list(notebooks.NOTEBOOKS) == [section.notebook for section in definitions.load_report_plan().sections]
    for name in names:
        assert f"(notebooks/{name}.ipynb)" in README


def test_the_number_that_the_readme_expects_is_the_committed_one():
    (expected,) = re.findall(r"mean error of \*\*([\d.]+) %\*\*", README)
    number = store.read_json(paths.REFERENCE / "keys.json")["06_cost_model"]["network.infer.b8.retained.mape"]
    assert expected == f"{number['value']:.1f}"


SPLITS = {"own GPU, unseen shapes": "unseen shapes, 5 folds", "own GPU, N and K unseen": "unseen N and K, 5 folds",
          "that GPU left out": "a GPU left out", "left out, mean (a line)": "a GPU left out"}


def mape(dtype, split, operator, learner="this model"):
    """Return the MAPE by the beginning of a GPU's name, as the published scores have it."""
    table = pd.read_csv(gpu_kernels.path(dtype))
    rows_of = table[(table["split"] == SPLITS[split]) & (table["operator"] == operator) & (table["learner"] == learner)]
    return {name.partition("-")[0]: f"{value:.1f}" for name, value in zip(rows_of["device"], rows_of["mape"], strict=True)}


def test_errors_of_kernels_in_fp32_are_those_of_their_file():
    names = ("GEMM", "batched GEMM", "element-wise", "softmax", "layer norm", "convolution")
    for split, *cells in rows(ERRORS, "Kernels on GPUs in fp32"):
        for operator, cell in zip(names, cells, strict=True):
            if "mean" in split:
                means = [mape("fp32", split, operator, learner)["mean"] for learner in ("this model", "line")]
                assert cell == "{} ({})".format(*means)
            else:
                own = mape("fp32", split, operator)
                assert cell == " / ".join(own[name] for name in ("p4", "p100", "v100", "t4", "a100")), (split, operator)


def test_errors_of_gemms_in_16_bits_are_those_of_their_file():
    for split, *cells in rows(ERRORS, "GEMMs in 16 bits"):
        own = mape("bf16", split, "GEMM")
        for name, cell in zip(("a100", "h100", "h200", "l40s", "b200"), cells, strict=False):
            assert cell == own.get(name, ""), (split, name)
        several = {learner: mape("bf16", split, "GEMM", learner) for learner in ("this model", "line")}
        means = [one.get("mean") for one in several.values()]
        if all(means):
            assert cells[-1] == "{} ({})".format(*means)


def test_errors_of_joules_and_clocks_are_those_of_their_file():
    table = held_out.load(energy.PATH)
    table = table.assign(error_pct=(table["predicted"] / table["measured"] - 1).abs() * 100)
    medians = table.pivot_table("error_pct", ["device", "condition"], "what", aggfunc="median")
    cards = {"A100 PCIe": "a100-pcie-40gb", "A10": "a10", "A40": "a40", "V100": "v100-pcie-32gb"}
    stated = rows((paths.ROOT / "docs/errors.md").read_text(), "Joules and clocks")
    assert len(stated) == len(medians)
    for card, _, n, *cells in stated:
        device, dtype = cards[card.partition(",")[0]], card.split()[-1 if "training" not in card else -2]
        own = medians.loc[device, dtype][[held_out.JOULES_TIMED, held_out.JOULES, held_out.CLOCK]]
        same = table[(table["device"] == device) & (table["condition"] == dtype) & (table["what"] == held_out.JOULES)]
        assert cells == ["" if pd.isna(value) else f"{value:.1f}" for value in own] and int(n) == len(same), card


def test_errors_of_networks_on_cards_are_those_of_their_file():
    for card, *cells in rows(ERRORS, "Whole networks on cards"):
        own = card_errors.scores(card.lower().replace(" ", "-"), "networks")
        own = own[own["kind"] == "all"]
        stated = re.findall(r"[\d.]+(?= /)|(?<=/ )[\d.]+", " ".join(re.sub(r"torch [\d.]+", "", cell) for cell in cells))
        present = {f"{value:.1f}" for column in ("mape", "median") for value in own[column]}
        assert stated and set(stated) <= present, card

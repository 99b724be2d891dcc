"""Nsight Compute's raw page: units, sums, log lines, and one clear line for whatever is wrong with a file."""

import os
import re
import shutil
import subprocess

import pytest

from lib import paths
from lib.config import definitions
from lib.config.notebooks import RooflineParams
from lib.predict.analytic import nsight, roofline_points
from tests import refused

FFMA = "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum"
TENSOR = "sm__ops_path_tensor_src_bf16_dst_fp32.sum"
NEEDED = [metric.name for metric in definitions.load_metrics().values() if not metric.optional]
FIXED = "ID,Process ID,Process Name,Host Name,Kernel Name,Context,Stream,Block Size,Grid Size,Device,CC".split(",")
LOG = """==PROF== Connected to process 4242 (/usr/bin/python3.11)
==PROF== Profiling "sgemm" - 0: 0%....50%....100% - 3 passes
"""
END = "==PROF== Disconnected from process 4242\n"


def quoted(cells):
    return ",".join('"' + str(cell).replace('"', '""') + '"' for cell in cells) + "\n"


def page(kernels, metrics=None, units=None):
    """Return a raw page; ``kernels``: (name, {metric: text}), metrics that are not given are 0."""
    metrics = metrics or [*NEEDED, TENSOR]
    usual = {"gpu__time_duration.sum": "nsecond", "dram__bytes_read.sum": "byte", "dram__bytes_write.sum": "byte", TENSOR: ""}
    units = {**usual, **(units or {})}
    rows = [[str(n), "4242", "python3.11", "127.0.0.1", name, "1", "7", "(256, 1, 1)", "(64, 2, 1)", "0", "9.0",
             *[values.get(metric, "0") for metric in metrics]] for n, (name, values) in enumerate(kernels)]
    head = [[*FIXED, *metrics], [""] * len(FIXED) + [units.get(metric, "inst") for metric in metrics]]
    return LOG + "".join(quoted(row) for row in [*head, *rows]) + END


def kernel(name="void sgemm<float, (int)128>(float*, int)", **values):
    given = {"gpu__time_duration.sum": "2,000", "dram__bytes_read.sum": "1,000,000", "dram__bytes_write.sum": "500,000",
             FFMA: "3,000,000"}
    return name, {**given, **values}


def write(tmp_path, text):
    path = tmp_path / "step.csv"
    path.write_text(text)
    return path


def test_kernels_are_summed_and_a_fused_multiply_add_counts_two(tmp_path):
    counted = nsight.read(write(tmp_path, page([kernel(), kernel(), kernel("void at::native::relu(int)")])))
    assert len(counted.kernels) == 3
    work = counted.work("vendor:h100-sxm")
    assert work.loc[0, ["flops", "bytes", "calls", "roof_dtype", "bytes_source", "batch_size"]].tolist() == [
        18e6, 4.5e6, 3, "fp32", "counted", 0]
    assert work["elapsed_sec"][0] == pytest.approx(6e-6), "the kernels' own time"
    assert work["label"].tolist() == ["step", "sgemm", "relu"]
    work = nsight.read(write(tmp_path, page([kernel(**{TENSOR: "9,000,000,000"})]))).work("h")
    assert work["precision"][0] == "bf16" and work["flops"][0] == pytest.approx(9e9 + 6e6), "of tensor cores"


@pytest.mark.parametrize("metric, column, text, unit, value", [
    ("gpu__time_duration.sum", "seconds", "2,000", "ns", 2e-6),
    ("gpu__time_duration.sum", "seconds", "2,000.5", "usecond", 2000.5e-6),
    ("gpu__time_duration.sum", "seconds", "2,000.5", "ms", 2.0005),
    ("dram__bytes_read.sum", "bytes", "1,048,576.00", "byte", 1048576.0),
    ("dram__bytes_read.sum", "bytes", "1,234.5", "Mbyte", 1234.5e6)])
def test_units_of_time_and_bytes(tmp_path, metric, column, text, unit, value):
    values = kernel(**{"dram__bytes_write.sum": "0", metric: text})
    file = write(tmp_path, page([values], units={metric: unit}))
    assert nsight.read(file).kernels[column].sum() == pytest.approx(value)


SCALED = dict(zip(NEEDED[:3], ["us", "Kbyte", "Kbyte"], strict=True))
WHOLE, DECIMAL = "27,595,520", "117.344"


def counted_as(first, units=None):
    """Return a page of one kernel with this text for the first needed metric, 1 for the others."""
    return page([("gemm", dict(zip(NEEDED, [first, "1", "1", "1,000", "1", "1"], strict=True)))], NEEDED, units)


@pytest.mark.parametrize("text, units, words", [
    (WHOLE.replace(",", "."), None, "kernel 0 has .27.*in English this is no whole number.*LC_ALL=C ncu"),
    ("117,34", SCALED, "'117,34' for gpu__time_duration.sum.*LC_ALL=C ncu"),
    ("10,48,576", None, "'10,48,576'.*LC_ALL=C ncu"), ("1.000", None, "'1.000'.*LC_ALL=C ncu")])
def test_numbers_in_another_locale_are_refused(tmp_path, text, units, words):
    with refused(words):
        nsight.read(write(tmp_path, counted_as(text, units)))


def test_english_numbers_are_read_and_a_fraction_only_beside_thousands_with_commas(tmp_path):
    assert nsight.read(write(tmp_path, counted_as(WHOLE))).kernels["seconds"].sum() == pytest.approx(27_595_520e-9)
    assert nsight.read(write(tmp_path, counted_as(DECIMAL, SCALED))).kernels["seconds"].sum() == pytest.approx(117.344e-6)
    with refused(f"'{DECIMAL}'.*a fraction.*LC_ALL=C ncu"):
        nsight.read(write(tmp_path, counted_as(DECIMAL, SCALED).replace("1,000", "1")))


@pytest.mark.parametrize("without, warning", [
    ("_tensor_", "lacks counters of tensor cores"), ("_op_h", "lacks smsp__[a-z_]*_op_h(add|mul|fma)_pred_on.sum"),
    ("nothing", "^$")])
def test_counters_that_a_file_lacks_are_named_and_the_others_are_taken(tmp_path, without, warning):
    names = [*definitions.load_metrics()]
    there = [name for name in names if without not in name]
    nothing = dict.fromkeys({*names} - {*there}, "n/a")  # as ncu writes counters that this GPU does not have
    for metrics, values in ((there, {}), (names, nothing)):
        counted = nsight.read(write(tmp_path, page([kernel(**values)], metrics, dict.fromkeys(values, ""))))
        assert counted.kernels["flops"].sum() == 6e6
        assert re.search(warning, counted.warning) and "\n" not in counted.warning


def test_users_choose_the_counters(tmp_path, monkeypatch):
    own = tmp_path / "mine.yaml"
    own.write_text("metrics:\n  t.sum: {role: time}\n  b.sum: {role: bytes}\n"
                   "  hmma.sum: {role: flops, dtype: fp16, weight: 512}\n")
    file = write(tmp_path, page([("k", {"t.sum": "1", "b.sum": "10", "hmma.sum": "2"})], ["t.sum", "b.sum", "hmma.sum"],
                                {"t.sum": "s", "b.sum": "byte"}))
    mine = definitions.load_metrics(own)
    monkeypatch.setattr(nsight, "load_metrics", lambda: mine)
    assert nsight.read(file).kernels["flops"].sum() == 1024
    for more, words in (("  f.sum: {role: flops}\n", "dtype belongs"), ("", "role bytes, flops")):
        own.write_text(f"metrics:\n  t.sum: {{role: time}}\n{more}")
        with refused(words):
            definitions.load_metrics(own)


@pytest.mark.parametrize("text, words", [
    ("==WARNING== No kernels were profiled.\n", "no kernels were profiled"),
    ("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters\n",
     "NVreg_RestrictProfilingToAdminUsers"),
    ("", "no CSV of Nsight Compute"), (page([]), "no kernels were profiled"),
    (page([kernel()], metrics=["gpu__time_duration.sum", FFMA]),
     r"lacks dram__bytes_read.sum, .*it has: gpu__time_duration.sum, smsp__sass.*collect_nsight.sh"),
    (page([kernel()], units={"dram__bytes_read.sum": "sector"}), "unit 'sector' is none of bytes"),
    (quoted([*FIXED, "Section Name", "Metric Name", "Metric Unit", "Metric Value"]), "details page.*--page raw"),
    (quoted([*FIXED, *NEEDED]) + quoted(["0"] * (len(FIXED) + len(NEEDED))), "row of units"),
    (page([kernel()]).replace('"9.0",', '"9.0","7",', 1), "line 5 has [0-9]+ fields, the header has"),
    *[(page([kernel(**{FFMA: text}), kernel()]), f"kernel 0 has '{text}' for {FFMA}; it was not counted there")
      for text in ("n/a", "-1")],
    (page([kernel(**{FFMA: "n/a"})]), f"{FFMA} was not counted"),
    (page([kernel()]) + page([kernel()]), "two or more pages.*each run of ncu its own file"),
])
def test_a_wrong_file_is_told_in_one_line(tmp_path, text, words):
    with refused(words):
        nsight.read(write(tmp_path, text))
    with refused("cannot be read"):
        nsight.read(tmp_path / "none.csv")


@pytest.mark.slow
def test_counted_points_are_judged_by_a_gpu_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(roofline_points, "step_work", lambda runs: ([], {}, []))  # takes long, and is not used here
    file = write(tmp_path, page([kernel()]))
    points = roofline_points.collect(RooflineParams(source="replay", vendor="l4", nsight=str(file))).points
    counted = points[points["kind"] == "counted"]
    assert counted["bytes_source"].tolist() == ["counted", "counted"]
    assert counted["ai"].iloc[0] == pytest.approx(4.0)
    with refused("vendor="):
        roofline_points.collect(RooflineParams(source="replay", nsight=str(file)))
    write(tmp_path, page([kernel()], metrics=NEEDED))
    assert "step lacks counters of tensor cores" in roofline_points.collect(
        RooflineParams(source="replay", vendor="l4", nsight=str(file))).note


@pytest.mark.parametrize("path", [paths.PARAMS / "collect_nsight.sh", paths.ROOT / "docs/measure.md"])
def test_the_cells_of_the_examples_are_in_the_grid_of_a_gpu(path):
    grid = definitions.load_matrix().grids["cuda"]
    names = re.findall(r"\S+ --cell (\w+)/b(\d+)/(\w+)", path.read_text())
    assert names
    for model, batch, precision in names:
        assert model in grid.models and int(batch) in grid.batch_sizes and precision in grid.precisions


FAKE = """#!/usr/bin/env bash
if [ "$1" = --query-metrics ]; then printf '%s   Counter  unit  # words\\n' {known}; exit 0; fi
printf '%s\\n' "$@" "$LIB_OUTPUT" > {folder}/seen
while [ $# -gt 0 ]; do [ "$1" = --log-file ] && cat {folder}/page > "$2"; shift; done
"""


def fake_profiler(folder, text, known=NEEDED):
    """Write a profiler that knows some metrics and writes a text, and its words to ``seen``; return the path to find it by."""
    (folder / "page").write_text(text)
    (folder / "ncu").write_text(FAKE.format(known=" ".join(name.partition(".")[0] for name in known), folder=folder))
    (folder / "ncu").chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


@pytest.mark.parametrize("program, known, log, code, told", [
    (["true", "7"], NEEDED, '"ID","Kernel Name"', 0, "give it to 05_roofline"),
    (["--cell", "vgg16/b64/fp32"], NEEDED, '"ID","Kernel Name"', 0, "give it to 05_roofline"),
    (["true"], NEEDED, "==ERROR== ERR_NVGPUCTRPERM", 1, "NVreg_RestrictProfilingToAdminUsers"),
    (["true"], NEEDED[1:], "", 2, "no metric gpu__time_duration.sum"),
])
@pytest.mark.slow
def test_the_collecting_script_asks_first_and_explains(tmp_path, program, known, log, code, told):
    environment = {**os.environ, "PATH": fake_profiler(tmp_path, log, known)}
    script = paths.PARAMS / "collect_nsight.sh"
    done = subprocess.run([shutil.which("bash"), script, tmp_path / "out.csv", *program], env=environment,
                          capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert told in done.stderr
    if code == 0:
        *words, home, _ = (tmp_path / "seen").read_text().split("\n")
        assert words[words.index("--metrics") + 1].split(",") == NEEDED
        if program[0] == "--cell":
            assert words[words.index("matrix"):][1:5] == ["--device", "cuda", "--cells", "vgg16/b64/fp32"]
            assert home and not os.path.exists(home), "the rows of a cell are thrown away"
        else:
            assert words[-2:] == program

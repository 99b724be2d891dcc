"""What tables, jobs and executed notebooks of others bring into the page and into notebooks: words, and nothing that runs."""

import html
import os
import re
import subprocess
from types import SimpleNamespace
from xml.etree import ElementTree

import nbformat
import pandas as pd
import pytest
from bs4 import BeautifulSoup

from lib import paths, store
from lib.config import notebooks
from lib.report import markup, notebook, page, runner, style, summary
from tests import refused, written

RUN = "document.title=7"
PAYLOADS = (f"<img src=x onerror={RUN}>", f"<script>{RUN}</script>", f"<svg onload={RUN}>", f"[k](javascript:{RUN})",
            f"![k](x onerror={RUN})", f"<a href=\"javascript:{RUN}\">k</a>", f"<javascript:{RUN}>", f"[k]: javascript:{RUN}",
            f"'\"><iframe srcdoc='<script>{RUN}</script>'>", f"</code></pre></p><style>*{{}}</style><body onload={RUN}>",
            f"`</code><img src=x onerror={RUN}>`", f"\x1b[31m<b onclick={RUN}>\x1b[0m", f"$<img src=x onerror={RUN}>$")
FORGED = " ".join(PAYLOADS)


def dangers(content):
    """Return what in a page could run, load or submit something."""
    soup = BeautifulSoup(content, "html.parser")
    elements = soup.select("script, iframe, object, embed, form, input, base, link, svg, math, video, audio, template")
    attributes = [f"{element.name} {name}={value}" for element in soup.find_all(True) for name, value in element.attrs.items()
                  if name.startswith("on") or name in ("style", "srcdoc", "formaction")
                  or (name in ("href", "src", "action") and not re.match(r"#|data:image/", str(value)))]
    return [str(element)[:80] for element in elements] + attributes


def executed(folder, cells, **entry):
    """Write an executed notebook of these cells and its entry of the manifest; return the folder."""
    usual = {"notebook": "01_machine", "stem": "01_machine", "command": "papermill x", "values": {}, "status": "ok",
             "error": "", "seconds": 1.0, "finished_utc": "now"}
    store.write_json([usual | entry], folder / "manifest.json")
    nbformat.write(nbformat.v4.new_notebook(cells=cells), folder / "01_machine.ipynb")
    return folder


def code(*outputs):
    return nbformat.v4.new_code_cell("", outputs=list(outputs))


def data(**kinds):
    return nbformat.v4.new_output("display_data", {kind.replace("_", "/", 1): value for kind, value in kinds.items()})


@pytest.fixture
def shown(monkeypatch):
    """Collect what is displayed as the outputs of an executed notebook."""
    collected = []

    def display(value, raw=False):
        kinds = value if raw else {"text/html" if type(value).__name__ == "HTML" else "text/markdown": value.data}
        collected.append(nbformat.v4.new_output("display_data", kinds))

    monkeypatch.setattr("IPython.display.display", display)
    return collected


@pytest.mark.slow
def test_what_a_notebook_shows_is_words(home, shown):
    helper = notebook.Notebook("01_machine", SimpleNamespace(source="measure"))
    frame = pd.DataFrame({FORGED: [FORGED, "b"], "n": [1.0, 2.0]})
    helper.say(f"**bold** and {FORGED}\n- a list")
    helper.banner(f"REPLAY {FORGED}")
    helper.table(frame, FORGED)
    helper.table(frame[:0], FORGED, hint=FORGED)
    helper.figure(summary.draw({"x": {f"{FORGED} throughput": {"value": 1.0, "unit": FORGED}}}), f"../../{FORGED}", FORGED)
    helper.say("{value}", {"value": FORGED})
    helper.record({f"{FORGED} throughput": (3.0, FORGED, None), "a verdict": (FORGED, "", None)})
    helper.finish()
    for output in shown:  # JupyterLab trusts what was just executed, so each of them has to be harmless by itself
        assert not [danger for danger in dangers(output.data.get("text/html", "")) if "style=" not in danger]
        assert not re.search(r"<|\](\(|:|\[)", output.data.get("text/markdown", ""))
    built = page.assemble(executed(paths.EXECUTED, [code(*shown)]))
    text = BeautifulSoup(built.html, "html.parser").get_text()
    assert dangers(built.html) == []
    assert text.count(PAYLOADS[0]) >= 8, "it is shown, as it is written"
    assert [path.parent for path in paths.FIGURES.rglob("*.*")] == [paths.FIGURES / "01_machine"] * 2
    assert "<strong>bold</strong>" in built.html.decode()


KEYS = "application/vnd.lib.keys+json"
OUTPUTS = [  # each of a cell of its own
    *[data(**{kind: FORGED}) for kind in ("text_html", "text_markdown", "text_latex", "text_plain")],
    *[nbformat.v4.new_output("stream", name=name, text=FORGED) for name in ("stdout", "stderr")],
    data(application_javascript=RUN), data(**{"image_svg+xml": f"<svg onload='{RUN}'><script>{RUN}</script></svg>"}),
    nbformat.v4.new_output("error", ename=FORGED, evalue=FORGED, traceback=[FORGED]),
    data(**{KEYS: {f"{FORGED} throughput": {"value": 1.0, "unit": FORGED, "tolerance": None}}})]
HOSTILE = [nbformat.v4.new_markdown_cell(f"# {FORGED}\n\n## {FORGED}\n\n{FORGED}\n\n<b id='abstract'>x</b>"),
           *map(code, OUTPUTS), nbformat.v4.new_raw_cell(FORGED, metadata={"format": "text/html"})]


@pytest.fixture
def hostile(home):
    return executed(home, HOSTILE, status="failed", values=dict.fromkeys(("workload", "device"), FORGED),
                    **dict.fromkeys(("error", "command", "finished_utc"), FORGED))


def test_a_hostile_executed_notebook_is_shown_and_not_run(hostile):
    built = page.assemble(hostile).html.decode()
    assert dangers(built) == []
    assert built.count('id="abstract"') == 1
    css, = re.findall(r"<style>(.*?)</style>", built, re.S)
    policy = BeautifulSoup(built, "html.parser").find("meta", {"http-equiv": "Content-Security-Policy"})
    assert policy["content"] == markup.policy(css), "the policy is that of its style"
    assert policy["content"].startswith("default-src 'none'; img-src data:; style-src 'sha256-")


def opened(chromium, folder, content, width=1300, silent=False):
    """Return the title of a page after a browser has opened it; of a ``silent`` one it has nothing to say on its console."""
    path = folder / "opened.html"
    path.write_text(content)
    words = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--dump-dom", "--disable-background-networking",
             "--enable-logging=stderr", f"--user-data-dir={folder / 'user'}", f"--window-size={width},900",
             "--virtual-time-budget=5000", f"file://{path}"]
    done = subprocess.run([chromium, *words], capture_output=True, text=True, timeout=120, check=False,
                          env={**os.environ, "TMPDIR": "/tmp"})  # the path of its socket must be short
    assert "<title>" in done.stdout and not (silent and "CONSOLE" in done.stderr), done.stderr
    return re.search(r"<title>(.*?)</title>", done.stdout).group(1)


@pytest.mark.nightly
def test_nothing_runs_in_a_browser(hostile, chromium, tmp_path):
    built = page.assemble(hostile).html.decode()
    free = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", built)
    title = re.search(r"<title>(.*?)</title>", built).group(1)
    assert free != built
    assert opened(chromium, tmp_path, free) == title, "cleaned, it runs nothing even without the policy"
    assert opened(chromium, tmp_path, built.replace("</body>", f"{FORGED}</body>")) == title, "the policy alone stops it too"
    assert opened(chromium, tmp_path, free.replace("</body>", f"{FORGED}</body>")) == "7", "this browser would run it"


@pytest.mark.parametrize("name", ["cost $5 and $6", r"a $\frac{$ b", "a\x01b -- <b>&amp;", "x" * 100_000])
@pytest.mark.slow
def test_a_name_in_a_figure_is_what_it_says(name):
    import matplotlib.pyplot as plt

    style.use_style()
    figure, (left, right) = plt.subplots(1, 2)
    left.barh([name, "b"], [1, 200], label=name)
    left.set(title=name, xscale="log")
    left.annotate(name, (1, 0))
    right.set_yticks([0, 1], labels=[name, "b"])
    figure.legend()
    drawn = style.svg(figure, name)
    assert len(drawn) < 200_000
    texts = html.unescape(" ".join(re.findall(r"<!-- (.*?) -->", drawn.decode(), re.S)))
    assert texts.count(name.replace("\x01", " ").replace("--", "- -")[:100]) == 5, "in both axes, title, note and legend"
    assert "10^" in texts, "powers of ten are still written as such"
    ElementTree.fromstring(drawn)


@pytest.mark.parametrize("keys, entry, texts, told", [
    ([1], {}, {}, "its key numbers are damaged"), ({}, {"stem": "../../x"}, {}, "stem = '../../x'"),
    ({}, {"status": "red"}, {}, "status = 'red'"), ({}, {}, {"manifest.json": "[{}]"}, "stem is missing"),
    ({}, {}, {"manifest.json": "{"}, "not readable JSON"), ({}, {}, {"01_machine.ipynb": "{}"}, "is no executed notebook")])
def test_what_no_run_wrote_is_refused(home, keys, entry, texts, told):
    executed(home, [code(data(**{KEYS: keys}))], **entry)
    written(home, texts)
    with refused(told):
        page.assemble(home)


def test_numbers_without_a_size_are_shown(home):
    recorded = {name: {"value": float(name), "unit": "", "tolerance": None} for name in ("inf", "-inf", "nan")}
    executed(home, [code(data(**{KEYS: recorded}))])
    assert runner.keys(home / "01_machine.ipynb")["inf"]["value"] == float("inf")
    assert page.assemble(home).problems == [f"{name}: has not been run" for name in list(notebooks.NOTEBOOKS)[1:]]

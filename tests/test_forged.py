"""What tables, jobs and executed notebooks of others bring into the page and into notebooks: words, and nothing that runs."""

import os
import re
import subprocess
from html.parser import HTMLParser

import nbformat
import pytest

from lib import report, store
from tests import refused, written

RUN = "document.title=7"
PAYLOADS = (f"<img src=x onerror={RUN}>", f"<script>{RUN}</script>", f"<svg onload={RUN}>", f"[k](javascript:{RUN})",
            f"![k](x onerror={RUN})", f"<a href=\"javascript:{RUN}\">k</a>", f"<javascript:{RUN}>", f"[k]: javascript:{RUN}",
            f"'\"><iframe srcdoc='<script>{RUN}</script>'>", f"</code></pre></p><style>*{{}}</style><body onload={RUN}>",
            f"`</code><img src=x onerror={RUN}>`", f"\x1b[31m<b onclick={RUN}>\x1b[0m", f"$<img src=x onerror={RUN}>$")
FORGED = " ".join(PAYLOADS)


DANGEROUS = {"script", "iframe", "object", "embed", "form", "input", "base", "link", "svg", "math", "video", "audio",
             "template"}


def dangers(content):
    """Return what in a page could run, load or submit something."""
    found = []

    class Parser(HTMLParser):
        def handle_starttag(self, tag, attrs):
            found.extend([tag] if tag in DANGEROUS else [])
            found.extend(f"{tag} {name}={value}" for name, value in attrs
                         if name.startswith("on") or name in ("style", "srcdoc", "formaction")
                         or (name in ("href", "src", "action") and not re.match(r"#|data:image/", str(value))))

    Parser().feed(content)
    return found


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
    built, _ = report.page(hostile)
    assert dangers(built) == []
    assert "default-src 'none'; img-src data:" in built


def opened(chromium, folder, content):
    """Return the title of a page after a browser has opened it."""
    path = folder / "opened.html"
    path.write_text(content)
    words = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--dump-dom",
             "--disable-background-networking", f"--user-data-dir={folder / 'user'}",
             "--virtual-time-budget=5000", f"file://{path}"]
    done = subprocess.run([chromium, *words], capture_output=True, text=True, timeout=120, check=True,
                          env={**os.environ, "TMPDIR": "/tmp"})  # the path of its socket must be short
    return re.search(r"<title>(.*?)</title>", done.stdout).group(1)


@pytest.mark.nightly
def test_nothing_runs_in_a_browser(hostile, chromium, tmp_path):
    built, _ = report.page(hostile)
    free = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", built)
    title = re.search(r"<title>(.*?)</title>", built).group(1)
    assert free != built
    assert opened(chromium, tmp_path, free) == title, "cleaned, it runs nothing even without the policy"
    assert opened(chromium, tmp_path, built.replace("</body>", f"{FORGED}</body>")) == title, "the policy alone stops it too"
    assert opened(chromium, tmp_path, free.replace("</body>", f"{FORGED}</body>")) == "7", "this browser would run it"


@pytest.mark.parametrize("keys, entry, texts, told", [
    ([1], {}, {}, "its key numbers are damaged"), ({}, {"stem": "../../x"}, {}, "stem = '../../x'"),
    ({}, {"status": "red"}, {}, "status = 'red'"), ({}, {}, {"manifest.json": "[{}]"}, "stem is missing"),
    ({}, {}, {"manifest.json": "{"}, "not readable JSON"), ({}, {}, {"01_machine.ipynb": "{}"}, "is no notebook")])
def test_what_no_run_wrote_is_refused(home, keys, entry, texts, told):
    executed(home, [code(data(**{KEYS: keys}))], **entry)
    written(home, texts)
    with refused(told):
        report.page(home)
        report.keys(home, "01_machine")

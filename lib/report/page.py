"""Executed notebooks to one self-contained HTML page, written like a paper."""

import itertools
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lib import paths, store
from lib.config import definitions
from lib.errors import InputError, choices
from lib.report import markup, runner, style, summary
from lib.report.notebook import BANNER, KEY_NUMBERS, UNKNOWN, short

_HEADING = re.compile(r"^h[1-6]$")
_SENTENCE = re.compile(r"(?<=[.!?])\s+")
_LEAD = re.compile(r"- \*\*[^*]+\*\*:?")
_SHOWN = ["text/html", "text/markdown", "image/png", "image/jpeg", "text/plain"]  # of an output the first of these
_LEARNED, _METHOD, _FRONT = "What we learned", "Method", "front"
_BLOCKS = ["p", "li", "figure", "table", "pre", "img"]
_LONG = 12  # rows of a table that is not folded
_BUSY = 0.2  # share of unusable measurements above which a page says that the machine was busy
_GAP = "\N{EMPTY SET}"  # stands for a number without a usable row; no sentence with one is shown


@dataclass(frozen=True)
class Report:
    """The page as HTML, its summary figure as SVG, and a line for each section that failed, is missing, or wrote to stderr."""

    html: bytes
    figure: bytes
    problems: list[str]


def assemble(folder: Path) -> Report:
    """Assemble the report from the executed notebooks of ``folder``; sections with problems stay in the page, marked.

    Raises InputError when nothing has been run, or when what is there is damaged.
    """
    outcomes = runner.manifest(folder)
    if not outcomes:
        raise InputError(f"nothing has been run yet: no manifest in {folder}; start with: python -m lib run")
    plan = definitions.load_report_plan()
    sections = [_section(number, section, [o for o in outcomes if o.notebook == section.notebook], folder)
                for number, section in enumerate(plan.sections, 1)]
    executed = {outcome.stem: path for outcome in outcomes if (path := folder / f"{outcome.stem}.ipynb").is_file()}
    numbers = {stem: runner.keys(path) for stem, path in executed.items()}
    banners = [_banners(path) for path in executed.values()]
    problems = [line for section in sections for line in section["problems"]]
    facts = {"plan": plan, "problems": problems, "sections": sections, "outcomes": outcomes, "key": _lookup(numbers),
             "series": lambda suffix: list(summary.series(numbers, suffix)), "git": store.git_state(),
             "built_utc": store.utc_now(), "front": _front(executed.values()), "unusable": choices(_unusable(numbers)),
             "synthetic": sum("SYNTHETIC" in text for text in banners),
             "replayed": sum("REPLAY" in text for text in banners)}
    style.use_style()
    description = summary.description(numbers)
    figure = style.svg(summary.draw(numbers), description)
    caption = "The report in one figure, from the key numbers that the notebooks below recorded."
    shown = style.as_html(figure, caption, description)
    return Report(_rendered(facts | {"summary": shown}).encode(), figure, problems)


def _rendered(facts: dict[str, Any]) -> str:
    """Return the page as text; what is put into its template is escaped, or cleaned where it is HTML."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(loader=FileSystemLoader(paths.TEMPLATE), undefined=StrictUndefined, autoescape=True,
                              trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"fleet": summary.fleet, "workload": summary.workload, "over_bound": summary.over_bound,
                            "clean": lambda html: Markup(markup.clean(html)),
                            "markdown": lambda text: Markup(markup.clean(_markdown(str(text))))}
    css = (paths.TEMPLATE / "style.css").read_text(encoding="utf-8")
    return environment.get_template("report.html.j2").render(**facts, style=Markup(css), policy=markup.policy(css))


def _markdown(text: str) -> str:
    from nbconvert.filters.markdown_mistune import markdown2html_mistune

    return markdown2html_mistune("\n".join(_measured(line) for line in text.splitlines()))


def _measured(line: str) -> str:
    """Return a line without the sentences whose numbers have no usable row: its subject, the rest, and that some are gone."""
    if _GAP not in line:
        return line
    lead = _LEAD.match(line)
    subject = lead.group() if lead else ""
    shown = [sentence for sentence in _SENTENCE.split(line[len(subject):].strip()) if _GAP not in sentence]
    return " ".join([subject, *shown, "*Some numbers are missing: nothing usable was measured.*"]).strip()


def _lookup(numbers: dict[str, dict[str, Any]]):
    """Return a function that gives a key number as text with its unit, or None.

    A name that starts with a space or colon is the end of one.
    """
    def find(wanted: str) -> str | None:
        for name, item in itertools.chain.from_iterable(recorded.items() for recorded in reversed(numbers.values())):
            if name == wanted or (wanted[0] in " :" and name.endswith(wanted)):
                return _GAP if item["value"] == UNKNOWN else f"{short(item['value'], 3)} {item['unit']}".strip()
        return None
    return find


def _unusable(numbers: summary.Numbers) -> list[str]:
    """Return what was measured and is unusable in too large a part (_BUSY), such as 2 of 7 training runs."""
    def total(ending: str) -> int:
        return int(sum(value for _, value in summary.series(numbers, ending)))

    verdicts, usable = list(summary.verdicts(numbers).values()), total(" usable configurations")
    operators = total(" configurations") - usable  # both names end so
    counts = {"training runs": (verdicts.count(summary.UNUSABLE), len(verdicts)),
              "ceilings": (total("unusable rows"), total("ceiling rows")), "operators": (operators - usable, operators)}
    return [f"{count} of {every} {what}" for what, (count, every) in counts.items() if count > _BUSY * every]


def _banners(path: Path) -> str:
    """Return the text of the banners of an executed notebook."""
    html = ("".join(output.get("data", {}).get("text/html", "")) for output in runner.outputs(path))
    return " ".join(text for text in html if text.startswith(BANNER))


def _section(number: int, section: definitions.Section, outcomes: list[runner.Outcome], folder: Path) -> dict[str, Any]:
    """Return one notebook's part of the page: its runs in order, and what of them stands open above them."""
    anchor = f"s{number}"
    part = {"number": number, "title": section.notebook, "anchor": anchor, "runs": [], "open": [], "lead": "",
            "problems": [f"{section.notebook}: has not been run"]}
    if not outcomes:
        return part
    runs = [_run(f"{anchor}-{index}", outcome, folder, first=index == 1, last=index == len(outcomes))
            for index, outcome in enumerate(outcomes, 1)]
    lead, *_ = (run.pop("lead") for run in runs)
    wanted = (section.shown,) if len(runs) > 1 and section.shown else (_LEARNED, section.shown)
    shown = [below for name in filter(None, wanted) for below in runs[-1]["parts"] if below["heading"].startswith(name)]
    for run in runs:
        run["parts"] = [below for below in run["parts"] if below not in shown]
    return part | {"title": runs[0]["title"] or section.notebook, "runs": runs, "lead": lead, "open": shown,
                   "problems": [line for run in runs for line in run["problems"]]}


def _run(anchor: str, outcome: runner.Outcome, folder: Path, first: bool, last: bool) -> dict[str, Any]:
    """Return one executed notebook as HTML without code.

    Cells tagged ``once`` appear only in the first run of a notebook, those tagged ``last`` only in the last.
    """
    path = folder / f"{outcome.stem}.ipynb"
    problems = [f"{outcome.stem}: {outcome.error}"] if outcome.status != "ok" else []
    part = {"outcome": outcome, "anchor": anchor, "title": "", "lead": "", "parts": [], "problems": problems,
            "heading": "",
            "label": " on ".join(str(outcome.values[key]) for key in ("workload", "device") if key in outcome.values)}
    if not path.is_file():
        problems.append(f"{outcome.stem}: the executed notebook is missing")
        return part
    notebook = runner.read(path)
    problems += [f"{outcome.stem}: wrote to stderr: {output['text'].splitlines()[0]}" for output in runner.outputs(path)
                 if output.get("name") == "stderr" and output["text"]]
    drop = ({"once"} if not first else set()) | ({"last"} if not last else set()) | {"papermill-error-cell-tag", _FRONT}
    body = exported(notebook, [cell for cell in notebook.cells if not drop & _tags(cell)])
    return part | _parts(body, anchor)


def _tags(cell: Any) -> set[str]:
    return set(cell.metadata.get("tags", []))


def exported(notebook: Any, cells: list[Any], code: bool = False) -> str:
    """Return the HTML of the prose and results of some cells of an executed notebook, without widgets.

    With ``code`` also their code, what they wrote to stderr, and their errors.
    """
    from nbconvert import HTMLExporter
    from traitlets.config import Config

    def is_shown(output: Any) -> bool:
        return output.get("name") == "stdout" or bool(set(_SHOWN) & set(output.get("data", ()))) or (
            code and output["output_type"] in ("stream", "error"))

    notebook.cells = cells
    for cell in cells:
        if "outputs" in cell:
            cell.outputs = [output for output in cell.outputs if is_shown(output)]
    exporter = HTMLExporter(template_name="basic", exclude_input=not code, exclude_output_prompt=True,
                            config=Config(NbConvertBase={"display_data_priority": _SHOWN}))
    return exporter.from_notebook_node(notebook)[0]


def _front(executed: Iterable[Path]) -> str:
    """Return what the first page shows of executed notebooks: the results of cells tagged ``front``."""
    notebooks = map(runner.read, executed)
    chosen = ((notebook, [cell for cell in notebook.cells if _FRONT in _tags(cell)]) for notebook in notebooks)
    return "".join(exported(notebook, cells) for notebook, cells in chosen if cells)


def _parts(body: str, anchor: str) -> dict[str, Any]:
    """Cut a body at its second-level headings: the title, the first paragraph, and a part with its anchor for each heading.

    Headings go one level lower, and long tables are folded.
    """
    from bs4 import BeautifulSoup

    soup = BeautifulSoup(body, "html.parser")
    for element in soup.select("a.anchor-link, script, style"):
        element.decompose()
    for element in soup.find_all(id=True):
        del element["id"]
    text = lead = ""
    if title := soup.find("h1"):
        lead = str(paragraph.extract()) if (paragraph := title.find_next("p")) else ""
        text = title.extract().get_text().strip()
    for table in soup.select("div.scroll"):
        _fold_if_long(soup, table)
    heading, cells = _METHOD, {_METHOD: []}
    for cell in soup.find_all(recursive=False):
        if title := cell.find("h2"):
            heading = title.extract().get_text().strip()
            cells[heading] = []
        for below in cell.find_all(_HEADING):
            below.name = f"h{min(6, int(below.name[1]) + 1)}"
        cells[heading].append(cell)
    _drop_what_was_learned(cells)
    parts = [{"heading": heading, "problems": [], "anchor": f"{anchor}-{number}", "body": "".join(map(str, found))}
             for number, (heading, found) in enumerate(cells.items()) if any(cell.find(_BLOCKS) for cell in found)]
    return {"title": text, "lead": lead, "parts": parts}


def _drop_what_was_learned(cells: dict[str, list[Any]]) -> None:
    """Take the sentences out of a notebook's parts that stand among what was learned, too."""
    def words(element: Any) -> str:
        return " ".join(element.get_text().split())

    learned = " ".join(words(cell) for heading, found in cells.items() if heading.startswith(_LEARNED) for cell in found)
    for heading, found in cells.items():
        for cell in found if not heading.startswith(_LEARNED) else ():
            for element in cell.find_all(["p", "li"]):
                if words(element) and words(element) in learned:
                    element.decompose()


def _fold_if_long(soup: Any, table: Any) -> None:
    """Fold a table of many rows, or of key numbers, with its caption as the line that opens it."""
    rows, caption = len(table.find_all("tr")) - 1, table.find_next_sibling("p", class_="caption")
    if caption is None or (rows <= _LONG and KEY_NUMBERS not in caption.get_text()):
        return
    folded, line = soup.new_tag("details"), soup.new_tag("summary")
    line.string = f"{caption.extract().get_text()} ({rows} rows)"
    table.insert_before(folded)
    folded.extend([line, table.extract()])

"""The course as pages: each notebook with what its cells showed, and places where its panels come alive."""

from __future__ import annotations

import base64
import html
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lessons.cells import only_asks
from markdown_it import MarkdownIt
from pages import LATER, NO_SCRIPT, POLICY, STATIC, page
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

PROJECT = Path(__file__).resolve().parent.parent
MARKDOWN = MarkdownIt("commonmark").enable("table")

NOT_HERE = "Its ranks run on PyTorch, in JupyterLab: make lab."
"""Under a cell in which one writes code that the page cannot run."""

AFTER = "After your guess"
"""Over what would spoil a question: folded in a notebook's text, and the outputs that JupyterLab hides."""

RECORDED = "A recorded run of four ranks with the answer that is folded below:"


@dataclass(frozen=True)
class Alive:
    """What of the course is alive. panels: kinds by lesson and key, "2-0" for the first of cell 2. asked: by
    lesson, (kind, name) of its questions. still: the words with which a stored question asks to be run.
    said: by lesson and cell, what the ranks of a puzzle said to its answer.
    """

    panels: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    asked: Mapping[str, Sequence[Sequence[str]]] = field(default_factory=dict)
    still: str = ""
    said: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


def chapter(name: str, source: str, alive: Alive) -> tuple[str, str]:
    """(title, HTML) of a notebook: its cells and what they showed, folded answers as they are."""
    panels, said = alive.panels.get(name, {}), alive.said.get(name, {})
    parts = []
    for number, cell in enumerate(json.loads(source)["cells"]):
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            prose = anchored(MARKDOWN.render(text)).replace("<table>", '<table tabindex="0">')  # it scrolls
            parts.append(f'<div class="cell">{prose}</div>')
            continue
        own = [key for key in panels if key.startswith(f"{number}-")]
        if cell["cell_type"] == "code" and text and not (own and only_asks(cell)):
            parts += [written(text)]
            if "exercise" in cell["metadata"].get("tags", ()):
                parts.append(f'<p class="said">{NOT_HERE}</p>')
        if recorded := said.get(str(number)):
            parts.append(f'<p class="said">{RECORDED}</p><pre class="cell">{html.escape(recorded)}</pre>')
            continue
        outputs = []
        for output in cell.get("outputs", ()):
            data = ""
            if own and (output["output_type"] == "display_data" or is_panel(output, panels[own[0]])):
                key = own.pop(0)
                data = f' data-key="{key}" data-kind="{panels[key]}"'
            outputs.append(f'<div class="out"{data}>{shown(output)}</div>')
        if cell["metadata"].get("jupyter", {}).get("outputs_hidden"):
            outputs = [f"<details><summary>{AFTER}</summary>", *outputs, "</details>"]
        parts += outputs
    body = "\n".join(parts)
    return titled(body.replace(alive.still, "Unfold the answer.") if alive.still else body)


def anchored(body: str, page: bool = False) -> str:
    """With an id at each heading, so that a link leads there: JupyterLab's, or for a page GitHub's."""

    def named(heading: re.Match[str]) -> str:
        words = re.sub("<[^>]+>", "", heading[2])
        if page:
            words = re.sub(r"[^\w\- ]", "", html.unescape(words).lower())
        words = words.replace(" ", "-").replace('"', "&quot;")
        return f'<h{heading[1]} id="{words}">{heading[2]}</h{heading[1]}>'

    return re.sub(r"<h([2-6])>(.*?)</h\1>", named, body)


def is_panel(output: dict[str, Any], kind: str) -> bool:
    """Whether a stored output is where a panel stood: the result of its cell, and of no other kind."""
    return output["output_type"] == "execute_result" and kind != "box"


def written(code: str) -> str:
    """Code in the colours of the page."""
    inner = highlight(code, PythonLexer(), HtmlFormatter(nowrap=True))
    return f'<pre class="cell" tabindex="0"><code>{inner}</code></pre>'


GUIDE = {path.name: path for where in ("", "measured") for path in (PROJECT / "docs" / where).glob("*.md")}
"""Name of a page that is written beside the notebooks → its file; a name stands once."""


def titled(body: str) -> tuple[str, str]:
    """(title, body) of HTML, whose links lead to the site's own pages, or out of it; others are none."""

    def lead(link: re.Match[str]) -> str:
        path, _, place = link[1].partition("#")
        if not path or path.startswith("https:"):
            return link[0]
        name, notebooks = Path(path).name, PROJECT / "notebooks"
        own = GUIDE.get(name, notebooks / name)
        if not own.is_file():
            return link[3]
        folder = "docs" if name in GUIDE else "notebooks"
        return f'<a href="../{folder}/{own.stem}.html{"#" * bool(place)}{place}"{link[2] or ""}>{link[3]}</a>'

    body = re.sub(r'<a href="([^"]*)"( title="[^"]*")?>(.*?)</a>', lead, body, flags=re.DOTALL)
    title = re.search(r"<h1>(.*?)</h1>", body)
    return html.unescape(re.sub("<[^>]+>", "", title[1])) if title else "", body


def shown(output: dict[str, Any]) -> str:
    """One stored output: HTML where it has some, a picture, else text."""
    stored = output.get("data", {}).items()
    data = {kind: "".join(value) for kind, value in stored if not kind.endswith("json")}
    if "text/html" in data:
        return data["text/html"]
    text = data.get("text/plain") or "".join(output.get("text", output.get("traceback", ())))
    written = f'<pre tabindex="0">{html.escape(text)}</pre>'
    if "image/png" not in data:
        return written
    drawn, kind = data["image/png"].strip(), "image/png"
    if "image/svg+xml" in data:  # sharp at any size, and without paper
        drawn, kind = base64.b64encode(data["image/svg+xml"].encode()).decode(), "image/svg+xml"
    picture = f'<img alt="{html.escape(text[:200])}" src="data:{kind};base64,{drawn}">'
    return f"{picture}<details><summary>as text</summary>{written}</details>"


DOORS = (
    ("I am new here", "notebooks/00_start_here.html", "See what is cut, and how, in pictures that you move."),
    ("I am reading the paper", "explorer.html", "Llama 3.1 405B as its paper cuts it: move a slider."),
    ("My run broke", "clinic.html", "Paste the error. It stays in your browser."),
)
FILM = PROJECT / "docs" / "watch.webp"
SHOWN = (
    "A film: each of two ranks writes half of LLAMAPAR, and their sum is the word. A line is broken, and the "
    "sum is missing on both."
)


def write_course(site: Path, notebooks: Sequence[Path], alive: Alive) -> None:
    """The start page, and a page for each notebook and for what is written beside them."""
    for folder in ("notebooks", "docs"):
        (site / folder).mkdir()
    for path in GUIDE.values():
        title, body = titled(anchored(MARKDOWN.render(path.read_text()), page=True))
        (site / "docs" / f"{path.stem}.html").write_text(page(title, body, STATIC, root="../"))
    made = {path.stem: chapter(path.stem, path.read_text(), alive) for path in notebooks}
    names, rows = list(made), []
    for k, (name, (title, body)) in enumerate(made.items()):
        ways = [("prev", "← {}", names[k - 1 : k] if k else []), ("next", "{} →", names[k + 1 : k + 2])]
        links = "".join(
            f'<a rel="{rel}" href="{other}.html">{html.escape(form.format(made[other][0]))}</a>'
            for rel, form, others in ways
            for other in others
        )
        end = f'<nav class="ways" aria-label="chapters" data-end="{name}">{links}</nav>'
        (site / "notebooks" / f"{name}.html").write_text(lesson_page(name, title, body + end, alive))
        asked = html.escape(json.dumps(alive.asked.get(name, [])))
        ways_in = f'href="notebooks/{name}.html" data-chapter="{name}" data-asked="{asked}"'
        link = f"<a {ways_in}>{html.escape(title)}</a>"
        rows.append(f"<li><span>{name.partition('_')[0]}</span> {link}</li>")
    doors = "".join(f'<li><h2><a href="{to}">{name}</a></h2><p>{says}</p></li>' for name, to, says in DOORS)
    shutil.copyfile(FILM, site / FILM.name)
    canvas = FILM.read_bytes()[24:30]  # of a WebP that moves: its width and height, each less one
    width, height = (1 + int.from_bytes(canvas[at : at + 3], "little") for at in (0, 3))
    main = (
        "<h1>How is a Llama cut across GPUs, and will it run?</h1>"
        "<p>Python runs in this page: you install nothing, and nothing leaves your browser.</p>"
        '<div class="front"><a class="film" href="watch.html">'
        f'<img src="{FILM.name}" width="{width}" height="{height}" alt="{SHOWN}">'
        "<span>Watch the ranks: step through the lines, edit one, break one.</span></a>"
        f'<ul class="doors">{doors}</ul></div>'
        f'<h2 id="course">The course</h2><ol class="chapters">{"".join(rows)}</ol>'
        "<p>Only this browser remembers what you read and answered. To change and run every cell, with "
        "PyTorch: <code>make lab</code>.</p>"
    )
    script = '<script type="module" src="course.mjs"></script>'
    (site / "index.html").write_text(page("Start", main, STATIC, script, " data-front"))


def lesson_page(name: str, title: str, body: str, alive: Alive) -> str:
    """A chapter's page, with the styles of the panels that it has; without any it is only read."""
    kinds = set(alive.panels.get(name, {}).values())
    if not kinds:
        head = '<script type="module" src="../course.mjs"></script>'
        return page(title, body, STATIC, head, root="../")
    styles = sorted(kinds | ({"explorer"} if "clinic" in kinds else set()))
    head = "".join(f'<link rel="stylesheet" href="../{kind}.css">' for kind in styles)
    head += '<script type="module" src="../lesson.mjs"></script>'
    says = LATER.format(NO_SCRIPT)
    return page(title, says + body, POLICY, head, f' data-lesson="{name}"', root="../")

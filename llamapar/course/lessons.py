"""`llamapar lesson`: a script for whoever leads a session on a notebook, or on a section of a paper.

It is read from the notebooks themselves: their headings, pictures and questions. A question's usual wrong
answers, its truth and its hints are those of its box. `lessons.toml` says what each notebook needs and which
sections make the walk through a paper; `teacher.toml` has a note for the teacher on each question.
"""

from __future__ import annotations

import errno
import os
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from glob import glob
from html import escape
from itertools import accumulate, pairwise
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING

from llamapar.cli.serving import shipped_folder
from llamapar.errors import Choice, LlamaparError, install, one_of, shown
from llamapar.records.tables import Plain, plural

from .notebook_cells import SECONDS_TO_RUN, NotebookCell, minutes_to_read, read_cells, sections

if TYPE_CHECKING:
    from .boxes import Item

_TAKEAWAY = re.compile(r"\*\*Takeaway: (.+?)\*\*", re.DOTALL)
_PICTURE = re.compile(r'src="data:image/png;base64,([A-Za-z0-9+/=]+)"')

ROOM = 2
"""How many times as long as a reader a room takes for a section, for it talks: an assumption of ours."""

_FOLDER = Path(__file__).parent
LESSONS, NOTES = (
    tomllib.loads((_FOLDER / f"{name}.toml").read_text(encoding="utf-8")) for name in ("lessons", "teacher")
)
"""Notebook or walk → what it needs and what it is made of; question or exercise → the teacher's note."""


@dataclass(frozen=True)
class LessonStep:
    """A cell's picture or output, or, with an item, a question to the room.

    words, png: what is shown as text and as base64; of a question, what its answer shows. name: of the
    question.
    """

    cell: int
    words: str
    png: str
    name: str = ""
    item: Item | None = None

    def as_dict(self) -> Plain:
        """As plain values, without the picture."""
        if self.item is None:
            return {"cell": self.cell, "shows": self.words, "picture": bool(self.png)}
        say = self.item.say
        truth = self.item.truth
        noted = [(value, note) for value, _, note in self.item.choices if note and value != truth]
        return {
            "cell": self.cell,
            "ask": self.item.text,
            "choices": [label for _, label, _ in self.item.choices],
            "wrong": [{"guess": say(guess), "reply": reply} for guess, reply in self.item.slips or noted],
            "hints": list(self.item.hints),
            "truth": say(truth),
            "why": self.item.why,
            "note": NOTES.get(self.name, ""),
        }

    def text(self) -> str:
        """Its paragraphs in a script."""
        said = self.as_dict()
        lines = self.words.replace("`", "'").strip().splitlines()
        if self.item is None:
            return f"{'Show' if self.png else 'Run'} cell [{self.cell}]: `{lines[0] if lines else ''}`"
        paragraphs = [
            f"**Ask** (cell [{self.cell}]): {said['ask']}",
            " · ".join(said["choices"]),
            said["wrong"] and "You will hear:",
            "\n".join(f"- “{each['guess']}” → {each['reply']}" for each in said["wrong"]),
            said["hints"] and f"If nobody speaks: {' '.join(said['hints'])}",
            f"**It is {said['truth']}.** {said['why']}".rstrip(),
            said["note"] and f"> For you: {said['note']}",
        ]
        return "\n\n".join(filter(None, paragraphs))


@dataclass(frozen=True)
class Stop:
    """A section of a notebook. part: the heading of the paper that it stands under; place: its number there.

    minutes: its share of the session; of homework, those to read it. steps: empty for homework. slide: of a
    part without a section, whose notebook is "", the lines that stand on it.
    """

    notebook: str
    title: str
    cells: list[NotebookCell]
    place: int
    part: str = ""
    minutes: int = 0
    steps: tuple[LessonStep, ...] = ()
    slide: tuple[str, ...] = ()

    def as_dict(self) -> Plain:
        """As plain values. asks: its questions by name; writes: its puzzles, which are always homework."""
        source = "\n".join(cell.source for cell in self.cells)
        return {
            "notebook": self.notebook,
            "title": self.title if self.place or self.part else "Opening",
            "part": self.part,
            "minutes": self.minutes,
            "slide": list(self.slide),
            "asks": [name for cell in self.cells for _, name in cell.asks],
            "writes": [name for cell in self.cells for how, name in cell.calls if how == "puzzle"],
            "steps": [step.as_dict() for step in self.steps],
            "takeaway": "".join(_TAKEAWAY.findall(source)[:1]),
        }


@dataclass(frozen=True)
class Lesson:
    """A session: its stops, which take its minutes, and what does not fit, as homework.

    parts: the paper's heading → what it says. needs, leads_to: other notebooks → what is taken along. slack:
    those of the minutes that no stop takes.
    """

    name: str
    title: str
    minutes: int
    parts: dict[str, str]
    needs: dict[str, str]
    stops: tuple[Stop, ...]
    homework: tuple[Stop, ...]
    leads_to: dict[str, str]
    slack: int = 0

    def as_dict(self) -> Plain:
        """As plain values, without the pictures."""
        lists = {"stops": self.stops, "homework": self.homework}
        return vars(self) | {name: [stop.as_dict() for stop in stops] for name, stops in lists.items()}

    def text(self) -> str:
        """The script, in Markdown."""
        said = [
            f"# {self.title}",
            f"A script for a session of {self.minutes} minutes. Before it, open "
            + ", ".join(f"`{name}`" for name in dict.fromkeys(stop.notebook for stop in self.stops) if name)
            + " and run all cells; a number such as [3] is a cell's. Let everybody guess before a box is "
            "answered.",
            "Each section gets one minute, and a share of the rest by how long it takes to read: words, "
            "code, pictures and questions, as docs/course.md counts them.",
        ]
        if self.slack:
            said.append(f"The last {plural(self.slack, 'minute')} are for what runs late.")
        if self.needs:
            said += ["The room should know:", _others(self.needs)]
        parts = dict(self.parts)
        begins = accumulate((stop.minutes for stop in self.stops), initial=0)
        for stop, begin in zip(self.stops, begins, strict=False):
            about = stop.as_dict()
            clock = f"{begin // 60}:{begin % 60:02}"
            if not stop.notebook:  # a part that is told
                said += [f"## {clock} {stop.part} ({stop.minutes} min)", parts.pop(stop.part)]
                said += ["\n".join(f"- {line}" for line in stop.slide)]
                continue
            if stop.part in parts:
                said += [f"## {stop.part}", parts.pop(stop.part)]
            head = f"## {clock} {about['title']} ({stop.minutes} min)"
            if stop.part:
                head = f"#{head}\n\nIn `{stop.notebook}`."
            said += [
                head,
                *(step.text() for step in stop.steps),
                about["takeaway"] and f"Takeaway: {about['takeaway']}",
            ]
        if self.homework:
            lines = []
            for stop in self.homework:
                about = stop.as_dict()
                names = "".join(f" · {name}" for name in about["asks"] + about["writes"])
                lines.append(f"- `{stop.notebook}`, {stop.title} ({stop.minutes} min){names}")
            said += ["## Homework", "\n".join(lines)]
        if self.leads_to:
            said += ["## Where it leads", _others(self.leads_to)]
        return "\n\n".join(filter(None, said))

    def slides(self) -> str:
        """The slides, in HTML: a picture, with the question that follows it, then its answer."""
        slides = [f"<h1>{escape(self.title)}</h1>\n<p>{self.minutes} minutes</p>"]
        for stop in self.stops:
            if not stop.notebook:
                lines = "".join(f"<li>{escape(line)}</li>" for line in stop.slide)
                if lines:
                    slides.append(f"<h2>{escape(stop.part)}</h2>\n<ul>{lines}</ul>")
                continue
            head = (
                f'<p class="part">{escape(stop.part)}</p>\n'
                f"<h2>{escape(stop.as_dict()['title'].replace('`', ''))}</h2>"
            )
            joins = False  # whether a question still fits on the slide before it
            for step in [step for step in stop.steps if step.png or step.item] or stop.steps:
                said = step.as_dict()
                words = escape(step.words)
                png = escape(step.png)
                image = png and f'<img src="data:image/png;base64,{png}" alt="{words}">'
                at = f'<p class="at">{escape(stop.notebook)} [{step.cell}]</p>'
                if step.item is None:
                    slides.append("\n".join([head, image or f"<pre>{words}</pre>", at]))
                else:
                    choices = "".join(f"<li>{escape(choice)}</li>" for choice in said["choices"])
                    ask, truth, why = (escape(said[name]) for name in ("ask", "truth", "why"))
                    asked = f'<p class="ask">{ask}</p>\n<ul>{choices}</ul>'
                    if joins:
                        slides[-1] += f"\n{asked}"
                    else:
                        slides.append(f"{head}\n{asked}\n{at}")
                    slides += [f'<p>{ask}</p>\n<p class="truth">{truth}</p>\n<p>{why}</p>\n{image}']
                joins = step.item is None
        return Template((_FOLDER / "slides.html").read_text(encoding="utf-8")).substitute(
            title=escape(self.title),
            slides="".join(f"<section>\n{slide}\n</section>\n" for slide in slides),
        )

    def write(self, out: str = "", slides: str = "") -> list[str]:
        """Write the script and the slides to files that are not there yet; a sentence for each.

        Raises LlamaparError for a file that cannot be written.
        """
        made = [(path, form) for path, form in ((out, self.text), (slides, self.slides)) if path]
        for path, form in made:
            try:
                with open(path, "x", encoding="utf-8") as file:
                    file.write(f"{form()}\n")
            except OSError as problem:
                raise LlamaparError(f"{path} cannot be written: {problem.strerror}") from None
        return [f"{path}: {self.title} ({self.minutes} min)" for path, _ in made]


def _others(notebooks: dict[str, str]) -> str:
    """Other notebooks, each with what is taken along, as a list."""
    return "\n".join(f"- `{name}`: {taken}" for name, taken in notebooks.items())


def require_new(*paths: str) -> None:
    """Refuse a file that cannot be made anew, before minutes of work. Raises LlamaparError."""
    for path in filter(None, paths):
        problem = ""
        if os.path.lexists(path):
            problem = os.strerror(errno.EEXIST)
        elif not Path(path).parent.is_dir():
            problem = os.strerror(errno.ENOENT)
        if problem:
            raise LlamaparError(f"{path} cannot be written: {problem}")


def lesson(name: str, minutes: int | None = None) -> Lesson:
    """The script of a session on a notebook, or on a walk of lessons.toml.

    name: "03_attention_heads", "03", "attention_heads" or "paper-3.3"; with a folder before it, of the
    notebooks there. minutes: as long as reading it takes, unless given. Sections that do not fit are
    homework: the last ones of a notebook, and of each part of a paper. Raises LlamaparError for an unknown
    name, and for minutes that are too few for the first question.
    """
    path = Path(name.removesuffix(".ipynb"))
    folder = shipped_folder() / "notebooks" if path.parent == Path() else path.parent
    stems = sorted(file.removesuffix(".ipynb") for file in glob("*.ipynb", root_dir=folder))
    short = {alias: stem for stem in stems for alias in stem.split("_", 1)}
    name = one_of(
        "lesson",
        short.get(path.name, path.name),
        [*(walk for walk, row in LESSONS.items() if "parts" in row), *stems],
        LlamaparError,
    )
    about = LESSONS.get(name, {})
    stops, times = _walk(folder, about["parts"]) if "parts" in about else _notebook(folder, name)
    told = {i: stop.minutes for i, stop in enumerate(stops) if not stop.notebook}

    # The order in which sections are kept: what is told, the first ones of every part, then the second ones.
    order = sorted(
        (i for i, stop in enumerate(stops) if not stop.as_dict()["writes"]), key=lambda i: stops[i].place
    )
    needed = [max(n, round(sum(times[i] for i in order[:n]))) for n in range(1, len(order) + 1)] or [1]
    least = next((n for i, n in zip(order, needed, strict=False) if stops[i].as_dict()["asks"]), needed[-1])
    slack = about.get("slack", 0)  # of every so many minutes, one
    if slack:
        least += -(-least // (slack - 1))
    if minutes is None:
        minutes = max(needed[-1], round(sum(times)))
        if slack:
            minutes += -(-minutes // (slack - 1))
    if not isinstance(minutes, int) or minutes < least:
        raise LlamaparError(
            f"minutes={shown(minutes)}: minutes must be a whole number, at least {least}",
            f"{name} comes to its first question in {least} minutes",
            [Choice.of(minutes=least)],
            "minutes",
        )
    left_over = 0
    if slack:
        left_over = minutes // slack
    kept = sorted(order[: sum(most <= minutes - left_over for most in needed)])

    seen = [i for i in kept if i not in told]
    reached = [*accumulate((times[i] for i in seen), initial=0.0)]
    shared = minutes - left_over - sum(told.values()) - len(seen)
    ends = [round(shared * reach / (reached[-1] or 1)) for reach in reached]
    shares = {i: 1 + end - start for i, (start, end) in zip(seen, pairwise(ends), strict=True)} | told
    return Lesson(
        name,
        about.get("title") or (stops[0].title if stops else name),
        minutes,
        {part["heading"]: part["says"] for part in about.get("parts", [])},
        about.get("needs", {}),
        tuple(replace(stops[i], minutes=shares[i], steps=(*_steps(stops[i].cells),)) for i in kept),
        tuple(
            replace(stop, minutes=max(1, round(times[i]))) for i, stop in enumerate(stops) if i not in shares
        ),
        about.get("leads_to")
        or {other: row["needs"][name] for other, row in LESSONS.items() if name in row.get("needs", {})},
        left_over,
    )


def _notebook(folder: Path, name: str) -> tuple[list[Stop], list[float]]:
    """The sections of a notebook, and the minutes that each takes."""
    stops = [*_read(folder, name).values()]
    times = [minutes_to_read(stop.cells) for stop in stops]
    if times:
        times[0] += SECONDS_TO_RUN / 60
    return stops, times


def _walk(folder: Path, parts: list[Plain]) -> tuple[list[Stop], list[float]]:
    """What is told and the sections of a walk, and the minutes that each takes.

    A part's `sections` belong to every session, and those of `more` to a longer one.
    """
    stops: list[Stop] = []
    for part in parts:
        heading = part["heading"]
        if "minutes" in part:
            slide = tuple(part.get("slide", ()))
            stops.append(Stop("", heading, [], -1, heading, part["minutes"], slide=slide))
        rows = [(0, row) for row in part.get("sections", ())]
        rows += [(place, row) for place, row in enumerate(part.get("more", ()), 1)]
        for place, (notebook, title) in rows:
            known = _read(folder, notebook)
            section = known[one_of("section", title, known, LlamaparError)]
            stops.append(replace(section, place=place, part=heading))
    times = [stop.minutes or ROOM * minutes_to_read(stop.cells) for stop in stops]
    return stops, times


def _read(folder: Path, notebook: str) -> dict[str, Stop]:
    """The sections of a notebook, by their headings without numbers."""
    return {
        re.sub(r"^\d+\. ", "", title): Stop(notebook, title, cells, place)
        for place, (title, cells) in enumerate(sections(read_cells(folder / f"{notebook}.ipynb")))
    }


def _steps(cells: list[NotebookCell]) -> Iterator[LessonStep]:
    """What each cell shows, then what it asks."""
    for cell in cells:
        items = {name: _item(how, name) for how, name in cell.asks}
        texts = tuple(item.text for item in items.values())
        boxes = [data for data in cell.shows if data.get("text/plain", "").startswith(texts)]
        shown = [data for data in cell.shows if data not in boxes]
        for data in sorted(shown, key=lambda data: "image/png" not in data)[:1]:
            words = data.get("text/plain") or data.get("error", "")
            yield LessonStep(cell.number, words, data.get("image/png", ""))
        for name, item in items.items():
            box = next((data for data in boxes if data["text/plain"].startswith(item.text)), {})
            words = box.get("text/plain", "").removeprefix(f"{item.text}\n{item.say(item.truth)}\n")
            pictures = _PICTURE.findall(box.get("text/html", ""))
            yield LessonStep(cell.number, words, "".join(pictures[:1]), name, item)


def _item(how: str, name: str) -> Item:
    """A question with its truth. Raises LlamaparError where what computes it is not installed."""
    try:
        from . import exercises, questions

        if how == "ask":
            return questions.Quiz().question(name)
        table = exercises.PREDICTIONS if how == "predict" else exercises.EXERCISES
        return table[one_of("question", name, table, LlamaparError)]()
    except ModuleNotFoundError as problem:
        what = f"{problem.name} is not installed, and the answers of a lesson are computed with it"
        raise LlamaparError(what, "", [install("lab")]) from None

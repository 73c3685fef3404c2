"""The form of the notebooks, and their exercises. (`make test` runs every cell with nbval besides.)

Exercises: a code cell tagged `exercise` holds the stub. The next code cell checks the answer and
prints "not answered yet", "wrong: …" or "right". Before the next exercise, a text cell folds the
answer away in `<details>`, fenced as ```` ```python solution ````:

    code, tagged `exercise`     heads_of_rank_3 = None
    code                        lp.…check(heads_of_rank_3)
    text                        <details><summary>Answer</summary>

                                ```python solution
                                heads_of_rank_3 = [6, 7]
                                ```

                                </details>

As stored, every check says "not answered yet"; test_puzzles.py tries stubs and solutions on ranks.
"""

from __future__ import annotations

import ast
import json
import re
import statistics
import tomllib
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat import NotebookNode

import llamapar as lp
import plain_torch
from llamapar.course.blocks import block

FOLDER = Path(__file__).resolve().parent.parent / "notebooks"
PATHS = sorted(FOLDER.glob("*.ipynb"))
KIB = 1024
KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
STORED = {"text/plain", "text/html", "image/png", "application/vnd.plotly.v1+json"}

LESSONS = [path for path in PATHS if path.stem[:2] not in ("00", "13")]
"""With a small block at their heads; 00 opens on the Explorer, which shows the block at full size."""

GLOSSARY = FOLDER.parent / "docs" / "glossary.md"

SOLUTION = re.compile(r"^```python solution\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MACHINE_DEPENDENT = {
    "an address": re.compile(r"\b0x[0-9a-f]{6,}\b"),
    "a random id": re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"),
    "a path of one machine": re.compile(r"(?<![\w.])/(?:home|root|tmp|Users|usr|var|mnt|opt)/"),
    "a timing": re.compile(r"Wall time:|CPU times:|\d (?:ms|[µu]s|ns) ± |per loop"),
    "a device": re.compile(r"\bNVIDIA (?:[AHBL]\d|RTX|GeForce|Tesla)|\bdevice='?cuda"),
    "a version": re.compile(r"\btorch (?:==)?\d+\.\d+|\d+\.\d+\.\d+\+(?:cpu|cu\d)"),
}


@cache
def read(path: Path) -> NotebookNode:
    return nbformat.read(path, as_version=4)


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def tags(cell: NotebookNode) -> list[str]:
    return list(cell.metadata.get("tags", []))


def is_stub(cell: NotebookNode) -> bool:
    return "exercise" in tags(cell)


def as_text(value: str | list[str]) -> str:
    return value if isinstance(value, str) else "".join(value)


def printed(cell: NotebookNode) -> str:
    """What a cell says in words: its printed text, then the text form of what it shows."""
    words = [as_text(o.text) for o in cell.outputs if o.output_type == "stream"]
    words += [as_text(o.data.get("text/plain", "")) for o in cell.outputs if "data" in o]
    return "\n".join(words)


def exercises(notebook: NotebookNode) -> list[tuple[NotebookNode, NotebookNode, str]]:
    """Each exercise as (its stub, the cell that checks it, its solution); a broken one fails."""
    stubs = [i for i, cell in enumerate(notebook.cells) if is_stub(cell)]
    found = []
    for start, end in pairwise([*stubs, len(notebook.cells)]):
        stub, section = notebook.cells[start], notebook.cells[start + 1 : end]
        checks = [cell for cell in section if cell.cell_type == "code"]
        assert checks, f"nothing checks the exercise {stub.source!r}"
        folded = "\n".join(cell.source for cell in section if "<details>" in cell.source)
        solutions = SOLUTION.findall(folded)
        assert len(solutions) == 1, f"{len(solutions)} folded solutions for {stub.source!r}"
        found.append((stub, checks[0], solutions[0]))
    return found


@pytest.fixture(params=PATHS, ids=lambda path: path.stem)
def path(request: pytest.FixtureRequest) -> Path:
    chosen: Path = request.param
    return chosen


@pytest.fixture
def notebook(path: Path) -> NotebookNode:
    return read(path)


def test_the_first_screen_of_the_first_notebook_is_the_explorer() -> None:
    assert PATHS, f"no notebooks in {FOLDER}"
    assert PATHS[0].name == "00_start_here.ipynb", "which `make lab` opens"
    title, panel, *_ = read(PATHS[0]).cells
    assert re.fullmatch(r"# [^\n]+", title.source), "prose before the Explorer"
    assert "lp.explorer(" in panel.source
    assert "image/png" in panel.outputs[0].data


def test_valid_with_kernel_name_and_cell_ids_and_run_once_from_the_top(notebook: NotebookNode) -> None:
    nbformat.validate(notebook)
    assert (notebook.nbformat, notebook.nbformat_minor) >= (4, 5)
    assert notebook.metadata.get("kernelspec") == KERNEL  # else JupyterLab asks for a kernel
    assert "widgets" not in notebook.metadata, "saved widget state"
    ids = [cell.id for cell in notebook.cells]
    assert len(ids) == len(set(ids))
    counts = [cell.execution_count for cell in code_cells(notebook)]
    assert counts == list(range(1, len(counts) + 1))


def test_cells_are_few_and_short_and_import_the_library_and_nothing_below(notebook: NotebookNode) -> None:
    cells = code_cells(notebook)
    heads = [place for place, cell in enumerate(notebook.cells) if cell.source.startswith("## Write it")]
    end = heads[0] if heads else len(notebook.cells)
    assert 15 <= sum(cell.cell_type == "code" for cell in notebook.cells[:end]) <= 25
    lines = [sum(bool(line.strip()) for line in cell.source.splitlines()) for cell in cells]
    assert statistics.median(lines) <= 5
    assert max(lines) <= 15
    for cell in cells:
        source = re.sub(r"^\s*[%!].*", "", cell.source, flags=re.MULTILINE)
        for node in ast.walk(ast.parse(source)):
            own = isinstance(node, ast.ClassDef) and [ast.unparse(base) for base in node.bases]
            assert own in (False, ["nn.Module"], ["torch.autograd.Function"]), (
                "other classes belong in the library"
            )
            if isinstance(node, ast.ImportFrom):
                package, _, module = (node.module or "").partition(".")
                assert package != "llamapar" or module.partition(".")[0] == "course", cell.source
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names if alias.name.startswith("llamapar")]
                assert names in ([], ["llamapar"]), cell.source


def test_a_notebook_needs_its_folder_and_the_library_alone(notebook: NotebookNode) -> None:
    """So it is in a container, and with whoever copies the notebooks."""
    code = "\n".join(cell.source for cell in code_cells(notebook))
    assert re.findall(r"\.\./|parent\.parent", code) == []


def test_outputs_are_small_and_of_the_four_kinds(path: Path, notebook: NotebookNode) -> None:
    assert path.stat().st_size <= 250_000
    for cell in code_cells(notebook):
        for output in cell.outputs:
            size = len(json.dumps(output, ensure_ascii=False).encode())
            assert size <= 40 * KIB, f"{size} bytes after {cell.source!r}"
            if output.output_type == "stream":
                assert output.name == "stdout", f"stderr after {cell.source!r}"
            elif output.output_type == "error":
                assert "raises-exception" in tags(cell), f"an error after {cell.source!r}"
            else:
                assert set(output.data) <= STORED, f"after {cell.source!r}"
                assert "text/plain" in output.data, f"no text form after {cell.source!r}"


AXIS_OF = {
    **dict.fromkeys(("03_attention_heads", "04_vocab_embedding"), "TP"),
    "06_context_parallel": "CP",
    "05_data_parallel": "DP",
    "07_pipeline": "PP",
}
"""Lessons of one axis, whose block is cut by that alone."""


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_a_lesson_has_the_small_block_at_its_head(path: Path) -> None:
    """What is stored is what the call makes now, with a picture for pages that show no SVG."""
    title, head, *_ = read(path).cells
    assert title.source.startswith("# ")
    assert head.id == "small-block"
    assert head.source.startswith("from llamapar.course.blocks import block\n\nblock(")
    made = eval(head.source.splitlines()[-1], {"block": block})
    [output] = head.outputs
    assert {
        kind: as_text(output.data[kind]) for kind in ("text/plain", "text/html")
    } == made._repr_mimebundle_()
    assert set(output.data) == {"text/plain", "text/html", "image/png"}
    if path.stem in AXIS_OF:
        cut = [count for _, _, count in made.spec["lanes"] if not count.endswith(" 1")]
        assert [count.partition(" ")[0] for count in cut] == [AXIS_OF[path.stem]]
    assert len(json.dumps(output.data, ensure_ascii=False).encode()) <= 30 * KIB


def test_a_live_picture_is_stored_as_it_opens(notebook: NotebookNode) -> None:
    """nbval does not compare a panel's cell, for what is stored is its text and its picture.

    A record of the notebook's own is made again by the call that stands in the text's first line.
    """
    for cell in code_cells(notebook):
        opens = (cell.source.splitlines() or [""])[-1]
        if ".live(" not in opens:
            continue
        stored = cell.outputs[-1].data["text/plain"]
        if not opens.startswith('lp.live("'):
            knob = re.search(r'knob="(\w+)"', opens)
            record = eval(stored.splitlines()[0], {"lp": lp})
            panel = lp.live(record, knob=knob and knob[1])
        else:
            panel = eval(opens, {"lp": lp})
        assert stored == panel.snapshot().summary


def test_a_film_of_a_mistake_shows_it(notebook: NotebookNode) -> None:
    """In another layout than the mistake's own it may change nothing, and then the film says so."""
    for cell in code_cells(notebook):
        opens = (cell.source.splitlines() or [""])[-1]
        if opens.startswith("lp.watch(") and "case=" in opens:
            assert "changes nothing here" not in eval(opens, {"lp": lp}).payload["says"]


def test_only_tagged_cells_depend_on_the_machine(notebook: NotebookNode) -> None:
    for cell in code_cells(notebook):
        if "nbval-ignore-output" in tags(cell):
            continue
        shown: dict[str, Any] = {"text": printed(cell)}
        for output in cell.outputs:
            data = output.get("data", {})
            shown |= {kind: json.dumps(data[kind]) for kind in data if kind != "image/png"}
            shown["error"] = json.dumps(output.get("traceback", []))
        for kind, text in shown.items():
            for what, pattern in MACHINE_DEPENDENT.items():
                match = pattern.search(text)
                assert match is None, f"{what} ({match}) in the {kind} after {cell.source!r}"


SPOILERS = tomllib.loads((FOLDER.parent / "tests" / "spoilers.toml").read_text(encoding="utf-8"))
FOLDED = re.compile(r"<details>.*?</details>", re.DOTALL)


def in_sight(cell: NotebookNode, own: bool) -> str:
    """What a reader sees of a cell before a guess. own: whether it is the cell that asks."""
    if cell.cell_type == "markdown":
        return FOLDED.sub("", cell.source)
    seen = [] if own else [cell.source]
    if not cell.metadata.get("jupyter", {}).get("outputs_hidden"):
        for output in cell.outputs:
            data = output.get("data", {})
            html = as_text(data.get("text/html", ""))
            if "unfold the answer" not in html:
                seen += [as_text(output.get("text", "")), as_text(data.get("text/plain", ""))]
                seen += [output.get("evalue", ""), re.sub("<[^>]+>", " ", FOLDED.sub("", html))]
    return "\n".join(seen)


def test_every_list_of_spoilers_is_of_a_question_and_what_it_folds_can_be_unfolded() -> None:
    cells = [cell for path in PATHS for cell in read(path).cells]
    asked = {q for cell in cells for q in re.findall(r'predict\(\s*"((?:[^"\\]|\\.)*)"', cell.source)}
    assert set(SPOILERS) <= asked
    hidden = [cell.metadata for cell in cells if {"collapsed", "jupyter"} & cell.metadata.keys()]
    for metadata in hidden:  # else JupyterLab would change the file
        assert "after-guess" in metadata.tags
        assert (metadata.collapsed, metadata.jupyter) == (True, {"outputs_hidden": True})
    folded = [cell.source for cell in cells if "After your guess" in cell.source]
    assert len(folded) > 20
    for source in folded:
        assert source.startswith("<details><summary>After your guess</summary>\n\n"), "one click, then text"
        assert len(FOLDED.findall(source)) == 1


def test_exercises_are_open_and_have_one_folded_solution(notebook: NotebookNode) -> None:
    solved = exercises(notebook)
    for stub, check, solution in solved:
        assert "puzzle" in tags(stub), "test_puzzles.py tries only those"
        assert "not answered yet" in printed(check), f"already answered: {stub.source!r}"
        ast.parse(solution)
    fences = [f for cell in notebook.cells for f in SOLUTION.findall(cell.source)]
    assert fences == [solution for _, _, solution in solved], "a solution without its exercise"


# -- the glossary ------------------------------------------------------------------------------------


def entries() -> dict[str, str]:
    """Term → what the glossary says of it."""
    _, *parts = re.split(r"^## ", GLOSSARY.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {term: " ".join(says.split()) for term, _, says in (part.partition("\n") for part in parts)}


def test_the_glossary_is_in_order_and_names_a_lesson_for_each_term() -> None:
    terms = list(entries())
    assert terms == sorted(terms, key=str.lower)
    assert len(terms) == len(set(terms))
    for term, says in entries().items():
        assert re.search(r"Taught in \[(\w+)\]\(\.\./notebooks/\1\.ipynb\)", says), term


def test_a_term_has_its_first_sentence_as_hover_text_once_in_the_course_where_it_first_stands() -> None:
    """The link is the word itself, and no lesson after it links it again."""
    first = {}
    for term, says in entries().items():
        sentence = re.split(r"(?<=[.;]) ", says)[0]
        first[term.lower().replace(" ", "-")] = re.sub(r"[`*]", "", sentence).rstrip(".;") + "."
    linked: list[tuple[str, str]] = []
    for path in PATHS:
        text = "\n".join(cell.source for cell in read(path).cells if cell.cell_type == "markdown")
        assert "glossary.md)" not in text, "a term without its anchor"
        linked += re.findall(r"\]\(\.\./docs/glossary\.md#(\S+) \"([^\"]+)\"\)", text)
        assert len(re.findall(r"glossary\.md#", text)) == len(re.findall(r"glossary\.md#\S+ \"", text))
    assert len(linked) > 30
    assert len(linked) == len({term for term, _ in linked})
    assert {term: says for term, says in linked if first[term] != says} == {}


def test_a_lesson_that_runs_ranks_runs_them_on_gpus_where_there_are_some() -> None:
    """One cell, on processes, which says which device was used."""
    lessons = ("01", "02", "03", "04", "05", "06", "07", "09", "10")
    for path in (path for path in PATHS if path.stem[:2] in lessons):
        [cell] = [cell for cell in code_cells(read(path)) if re.search(r'device="?auto', cell.source)]
        assert tags(cell) == ["nbval-ignore-output"]
        if cell.source.startswith("%%ranks"):
            last = ast.unparse(ast.parse(cell.source.partition("\n")[2]).body[-1])
            assert re.search(r"kind|\.type", last), "which device it was"
            assert re.search(r"^out  .*'cpu'", printed(cell), re.MULTILINE)
        else:
            was = r"\(\d ranks, processes, cpu\): equal to the reference\ndevice cpu over gloo: "
            assert re.search(was, printed(cell))


def test_a_quarter_of_the_code_cells_are_plain_torch() -> None:
    """They call torch and name nothing of llamapar, so that a reader can carry them to work."""
    cells = [plain_torch.code_cells(path) for path in PATHS]
    total = sum(map(len, cells))
    assert total <= 340
    assert 4 * sum(len(plain_torch.plain_torch_cells(sources)) for sources in cells) > total

"""No dead links: what the pages and the notebooks point at is there, headings included.

Links to the web are looked at for their form alone; nothing here needs a network.
"""

import json
import re
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from markdown_it import MarkdownIt

PROJECT = Path(__file__).resolve().parent.parent
PAGES = [
    *(PROJECT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *(PROJECT / name for name in ("SECURITY.md", "CODE_OF_CONDUCT.md")),
    *sorted((PROJECT / "docs").rglob("*.md")),
    *sorted((PROJECT / "notebooks").glob("*.ipynb")),
]


@cache
def text(path):
    """A page, or the text cells of a notebook."""
    stored = path.read_text(encoding="utf-8")
    if path.suffix != ".ipynb":
        return stored
    cells = json.loads(stored)["cells"]
    return "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")


def tokens(markdown):
    """Every token, those within lines included; code has none of a link."""
    for token in MarkdownIt("commonmark").enable("table").parse(markdown):
        yield token
        yield from token.children or []


@cache
def links(markdown):
    """What links, pictures and HTML of a text point at."""
    found = []
    for token in tokens(markdown):
        if token.type in ("link_open", "image"):
            found.append(str(token.attrGet("href" if token.type == "link_open" else "src")))
        elif token.type in ("html_block", "html_inline"):
            found += re.findall(r"""(?:href|src)=["']([^"']*)""", token.content)
    return found


@cache
def anchors(path):
    """The anchors of a page's headings, as GitHub makes them."""
    found = set()
    heading = False
    for token in tokens(text(path)):
        if heading and token.type == "inline":
            words = "".join(child.content for child in token.children or [])
            found.add(re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-"))
        heading = token.type == "heading_open"
    return frozenset(found)


def wrong(path, link):
    """What is wrong with a link of a page; "" where nothing is."""
    parts = urlsplit(link)
    if parts.scheme in ("http", "https"):
        good = re.fullmatch(r"[\w-]+(\.[\w-]+)+(:\d+)?", parts.netloc) and not re.search(r"\s", link)
        return "" if good else "no address"
    if parts.scheme or parts.netloc:
        return "a scheme that no page needs"
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if not target.is_relative_to(PROJECT):
        return "leads out of the project"
    if not target.exists():
        return "no such file"
    if parts.fragment and parts.fragment not in anchors(target):
        return "no such heading"
    return ""


LLMS = PROJECT / "llms.txt"
"""What a language model reads first: llmstxt.org says its form."""


@pytest.mark.parametrize("path", [*PAGES, LLMS], ids=lambda path: path.relative_to(PROJECT).as_posix())
def test_no_link_is_dead(path):
    assert {link: fault for link in links(text(path)) if (fault := wrong(path, link))} == {}


def test_every_page_can_be_reached_from_readme():
    reached = set()
    todo = [PROJECT / "README.md"]
    while todo:
        page = todo.pop()
        if page in reached or page.suffix not in (".md", ".ipynb"):
            continue
        reached.add(page)
        inside = [urlsplit(link) for link in links(text(page))]
        todo += [(page.parent / unquote(p.path)).resolve() for p in inside if p.path and not p.scheme]
    assert set(PAGES) <= reached


def test_llms_txt_has_its_form_and_the_pages_of_readme():
    head, *sections = re.split(r"^## ", LLMS.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert re.fullmatch(r"# llamapar\n\n(> .*\n)+\n([^#>\n].*\n)+\n", head)
    rows = [line for section in sections for line in section.splitlines()[1:] if line]
    assert [row for row in rows if not re.fullmatch(r"- \[[^]]+\]\([\w/.-]+\): \S.*[^.]", row)] == []
    listed = [link for section in sections for link in links(section)]
    assert len(listed) == len(set(listed)) == len(rows)
    readme = re.findall(r"^\| \[.*\]\((docs/[\w-]+\.md)\) \|", text(PROJECT / "README.md"), re.MULTILINE)
    assert set(readme) <= set(listed)


@pytest.mark.parametrize(
    ("markdown", "faults"),
    [
        ("[a](README.md) `[b](gone.md)`", []),
        ("[a](gone.md)", ["no such file"]),
        ("[a](README.md#my-cell-failed) ![b](docs/explorer.png)", []),
        ("[a](README.md#gone)", ["no such heading"]),
        ("[a](../elsewhere.md)", ["leads out of the project"]),
        ("[a](https://github.com/pytorch/pytorch) <https://arxiv.org/abs/2407.21783>", []),
        ("[a](https:/github.com)", ["no address"]),
        ("[a](mailto:somebody@example.com)", ["a scheme that no page needs"]),
        ('<img src="gone.png">', ["no such file"]),
    ],
)
def test_each_fault_would_be_noticed(markdown, faults):
    page = PROJECT / "README.md"
    assert [fault for link in links(markdown) if (fault := wrong(page, link))] == faults

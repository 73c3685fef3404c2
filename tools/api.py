"""The reference: what mkdocs, mkdocstrings and GitHub need of ours, and no more. For authors.

    python tools/api.py            # write docs/api anew: make docs
    python tools/api.py --check    # write nothing; exit 1 where a page would change

A page of docs/api is a room: each public name with the first sentence of its docstring and a link to its
source, which is what GitHub shows. On the site mkdocstrings adds signatures, docstrings, members and source:
`on_page_markdown` asks it for each name of the table. `Shown` tells it two things that it cannot read in the
source: the signature that Shift-Tab shows, for many functions take their arguments from others, and that the
arguments of a docstring, one a paragraph, are a list.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from ast import literal_eval
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import griffe

PROJECT = Path(__file__).resolve().parent.parent
FOLDER = PROJECT / "docs" / "api"
HEAD = "| name | what it is |\n|---|---|"
ROW = re.compile(r"^\| \[`(lp|llamapar)\.([\w.]+)`\]\([^)]*\) \|", re.MULTILINE)
"""A name in the table of a page."""


def written() -> dict[str, str]:
    """Page name → text, of every page of the reference."""
    package = griffe.load("llamapar", search_paths=[PROJECT], resolve_aliases=True)
    assert isinstance(package, griffe.Module)
    rooms: dict[str, list[str]] = {}
    names = list(public(package))
    for name in sorted(names, key=lambda name: (name.lower(), name)):
        rooms.setdefault(package[name].canonical_path.split(".")[1], []).append(name)
    types: dict[str, list[str]] = {}
    for name, module in literal_eval(str(package["late.RESULTS"].value)).items():
        if f"{module}.{name}" not in names:
            types.setdefault(module.split(".")[0], []).append(f"{module}.{name}")
    pages = {}
    intro = "Every public name of `llamapar`, imported as `lp`, by [room](../architecture.md#the-rooms)."
    intro += "\nThe page of a room also lists the types of its results, which are imported from there:"
    intro += "\n`from llamapar.timing.cost import Cost`."
    contents = ["# The reference", "", intro, "", "| room | what it is for | names |", "|---|---|---|"]
    for room in sorted({*rooms, *types}):
        names = rooms.get(room, [])
        shown = {name: f"lp.{name}" for name in names} | {n: f"llamapar.{n}" for n in types.get(room, ())}
        rows = (f"| [`{n}`]({source(package[i])}) | {sentence(package[i])} |" for i, n in shown.items())
        pages[f"{room}.md"] = "\n".join([f"# {room}", "", sentence(package[room]), "", HEAD, *rows, ""])
        listed = ", ".join(f"`lp.{name}`" for name in names) or "types of results only"
        contents.append(f"| [{room}]({room}.md) | {sentence(package[room])} | {listed} |")
    return pages | {"README.md": "\n".join([*contents, ""])}


def public(package: griffe.Module) -> Iterator[str]:
    """Dotted names below the package: what it exports, and what else its exported modules export."""
    from llamapar.late import PUBLIC  # the package computes its __all__ from these, so griffe cannot read it

    for name in PUBLIC:
        if not package[name].is_module:
            yield name
            continue
        inner = [str(own) for own in package[name].exports or () if own not in PUBLIC]
        yield from (f"{name}.{own}" for own in inner if not package[name][own].is_module)


def source(known: griffe.Object | griffe.Alias) -> str:
    """Where a name is defined, as a link from a page of docs/api."""
    assert isinstance(known.filepath, Path)
    return f"../../{known.filepath.relative_to(PROJECT).as_posix()}"


def sentence(known: griffe.Object | griffe.Alias) -> str:
    """The first paragraph of a docstring, for a table."""
    text = known.docstring.value if known.docstring else ""
    return " ".join(text.split("\n\n")[0].split()).replace("|", "\\|").replace("<", "&lt;")


# -- on the site -----------------------------------------------------------------------------------


def on_page_markdown(markdown: str, page: Any, **_: object) -> str:
    """A hook of mkdocs: below the table of a room stand its names in full, and a name leads there."""
    if not page.file.src_uri.startswith("docs/api/"):
        return markdown
    entries = "".join(f"\n::: llamapar.{name}\n" for _, name in ROW.findall(markdown))
    return ROW.sub(r"| [`\1.\2`][llamapar.\2] |", markdown) + entries


class Shown(griffe.Extension):
    """Signatures as Python shows them, and the arguments of a docstring as a list."""

    def on_function(self, *, func: griffe.Function, **_: object) -> None:
        if not any(p.kind is griffe.ParameterKind.var_keyword for p in func.parameters):
            return
        module = func.module.path
        try:
            found: Any = importlib.import_module(module)
            for part in func.path.removeprefix(f"{module}.").split("."):
                found = getattr(found, part)
            shown = inspect.signature(found)
        except (ImportError, AttributeError):  # a function within a function
            return
        func.parameters = griffe.Parameters(*(parameter(p) for p in shown.parameters.values()))

    def on_object(self, *, obj: griffe.Object, **_: object) -> None:
        if obj.docstring:
            text = re.sub(r"^(\w+(?:, \w+)*): ", r"- `\1`: ", obj.docstring.value, flags=re.MULTILINE)
            obj.docstring.value = re.sub(r"^(?![- ])(.*\n)(?=- `)", r"\1\n", text, flags=re.MULTILINE)


def parameter(p: inspect.Parameter) -> griffe.Parameter:
    """A parameter of Python as one of griffe."""
    kind = griffe.ParameterKind(p.kind.description)
    annotation = None if p.annotation is p.empty else str(getattr(p.annotation, "__name__", p.annotation))
    default = None if p.default is p.empty else repr(p.default)
    return griffe.Parameter(p.name, kind=kind, annotation=annotation, default=default)


if __name__ == "__main__":
    from generated import settle  # It lies beside this script.

    pages = {FOLDER / name: text for name, text in written().items()}
    sys.exit(settle(__doc__, pages, FOLDER.glob("*.md")))

"""The reference in docs/api: every public name of llamapar, rendered from its docstring. For authors.

    python tools/api.py            # write docs/api anew: make docs
    python tools/api.py --check    # write nothing; exit 1 where a page would change

griffe reads the source: names, docstrings, members in their order, and the file of each. Signatures are
those that Shift-Tab shows, for many functions take their arguments from others. A page is a room.
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import griffe

PROJECT = Path(__file__).resolve().parent.parent
FOLDER = PROJECT / "docs" / "api"
WIDTH = 100
"""Columns of a signature on one line; a longer one has a line for each argument."""

MARKS: dict[object, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
"""What stands before a parameter that takes all that is left."""

PLAIN = (str, int, float, bool, tuple, type(None))
"""Types of defaults that are shown as they are; of others the type alone."""


def rendered() -> dict[str, str]:
    """Page name → text, of every page of the reference."""
    sys.path.insert(0, str(PROJECT))
    package = griffe.load("llamapar", search_paths=[PROJECT], resolve_aliases=True)
    assert isinstance(package, griffe.Module)
    rooms: dict[str, list[str]] = {}
    for name in sorted(public(package), key=lambda name: (name.lower(), name)):
        rooms.setdefault(target(package, name).canonical_path.split(".")[1], []).append(name)
    pages = {f"{room}.md": page(package, room, names) for room, names in sorted(rooms.items())}
    return pages | {"README.md": contents(package, rooms, pages)}


def public(package: griffe.Module) -> Iterator[str]:
    """Dotted names below the package: what it exports, and what else its exported modules export."""
    names = exports(package)
    for name in names:
        found = target(package, name)
        if not isinstance(found, griffe.Module):
            yield name
            continue
        inner = [own for own in exports(found) if own not in names and not target(found, own).is_module]
        yield from (f"{name}.{own}" for own in inner)


def exports(module: griffe.Module) -> list[str]:
    return [str(name) for name in module.exports or []]


def target(module: griffe.Module, name: str) -> griffe.Object:
    """The object of a name, wherever it is defined."""
    found = module[name]
    return found.final_target if isinstance(found, griffe.Alias) else found


def contents(package: griffe.Module, rooms: dict[str, list[str]], pages: dict[str, str]) -> str:
    """The page that lists all others."""
    lines = [
        "# The reference",
        "",
        "Every public name, from its docstring, by the room of [the house](../architecture.md) it is in.",
        "`lp` is `llamapar`. `make docs` writes these pages.",
    ]
    for room, names in sorted(rooms.items()):
        place = anchors(pages[f"{room}.md"])
        lines += ["", f"## [{room}]({room}.md)", "", "| name | what it is |", "|---|---|"]
        for name in names:
            link = f"[`lp.{name}`]({room}.md#{place[f'`lp.{name}`']})"
            lines.append(f"| {link} | {cell(target(package, name))} |")
    return "\n".join([*lines, ""])


def anchors(text: str) -> dict[str, str]:
    """Heading → its anchor on GitHub: letters, digits, - and _ in small; the second of equal ones with -1."""
    found: dict[str, str] = {}
    seen: Counter[str] = Counter()
    for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE):
        plain = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        found[heading] = f"{plain}-{seen[plain]}" if seen[plain] else plain
        seen[plain] += 1
    return found


def cell(known: griffe.Object) -> str:
    """The first paragraph of a docstring, for a table."""
    first = docstring(known).split("\n\n")[0]
    return " ".join(first.split()).replace("|", "\\|").replace("<", "&lt;")


def docstring(known: griffe.Object) -> str:
    return known.docstring.value if known.docstring else ""


def page(package: griffe.Module, room: str, names: list[str]) -> str:
    """The names of a room, one section each."""
    lines = [f"# {room}", "", "[All names](README.md)"]
    for name in names:
        known = target(package, name)
        assert isinstance(known.filepath, Path)
        source = known.filepath.relative_to(PROJECT).as_posix()
        lines += ["", f"## `lp.{name}`", "", *signature(f"lp.{name}", known)]
        lines += fenced("text", docstring(known))
        if known.is_class:
            lines += members(f"lp.{name}", known)
        lines += ["", f"Source: [{source}](../../{source})"]
    return "\n".join([*lines, ""])


def fenced(kind: str, text: str) -> list[str]:
    return [f"```{kind}", *text.splitlines(), "```"] if text else []


def signature(path: str, known: griffe.Object) -> list[str]:
    """How it is called, as Shift-Tab shows it; of a value nothing."""
    if known.is_attribute or known.has_labels("property"):
        return []
    call = value_of(path)
    try:
        shown = inspect.signature(call)
    except ValueError:  # an exception without arguments of its own
        return []
    arguments = list(written(list(shown.parameters.values())[is_method(known) :]))
    silent = known.is_class or shown.return_annotation is shown.empty
    returns = "" if silent else f" -> {annotation(shown.return_annotation)}"
    line = f"{path}({', '.join(arguments)}){returns}"
    if len(line) > WIDTH:
        line = "\n".join([f"{path}(", *(f"    {argument}," for argument in arguments), f"){returns}"])
    return [*fenced("python", line), ""]


def is_method(known: griffe.Object) -> bool:
    """Whether a function has a self, which nobody types."""
    in_class = bool(known.parent and known.parent.is_class)
    return in_class and known.is_function and not known.has_labels("staticmethod", "classmethod")


def value_of(path: str) -> Any:
    """What a dotted name of `lp` is."""
    import llamapar

    found: Any = llamapar
    for part in path.split(".")[1:]:
        found = getattr(found, part)
    return found


def written(parameters: list[inspect.Parameter]) -> Iterator[str]:
    """Each parameter as source, with a star before those that are only passed by name."""
    starred = False
    for p in parameters:
        if p.kind is p.VAR_POSITIONAL:
            starred = True
        if p.kind is p.KEYWORD_ONLY and not starred:
            starred = True
            yield "*"
        mark = MARKS.get(p.kind, "")
        kind = "" if p.annotation is p.empty else f": {annotation(p.annotation)}"
        yield f"{mark}{p.name}{kind}{default(p, bool(kind))}"


def annotation(value: Any) -> str:
    if isinstance(value, str):
        return value
    return str(getattr(value, "__forward_arg__", None) or getattr(value, "__name__", value))


def default(p: inspect.Parameter, spaced: bool) -> str:
    if p.default is p.empty:
        return ""
    text = repr(p.default) if isinstance(p.default, PLAIN) else "..."
    return f" = {text}" if spaced else f"={text}"


def members(path: str, known: griffe.Object) -> list[str]:
    """Public members of a class that say what they are, its bases' in llamapar included."""
    lines = []
    for name, member in known.all_members.items():
        own = member.final_target if isinstance(member, griffe.Alias) else member
        if name.startswith("_") or not docstring(own):
            continue
        lines += ["", f"### `{path}.{name}`", "", *signature(f"{path}.{name}", own)]
        lines += fenced("text", docstring(own))
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if that is needed")
    check = parser.parse_args().check
    pages = rendered()
    there = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.md")}
    changed = sorted(name for name in pages | there if pages.get(name) != there.get(name))
    for name in changed:
        print(f"docs/api/{name} {'would change' if check else 'written' if name in pages else 'removed'}")
        if not check and name in pages:
            FOLDER.mkdir(exist_ok=True)
            (FOLDER / name).write_text(pages[name], encoding="utf-8")
        elif not check:
            (FOLDER / name).unlink()
    return int(check and bool(changed))


if __name__ == "__main__":
    sys.exit(main())

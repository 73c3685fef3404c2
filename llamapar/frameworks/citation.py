"""Where evidence stands, and when it began to hold: files at a commit, and dated changes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from html import escape

_FILE = re.compile(r"(?P<path>[^\s:;]+)(?::(?P<first>\d+)(?:-(?P<last>\d+))?)?[^;]*")

GITHUB = "https://github.com/"


@dataclass(frozen=True)
class Source:
    """Where evidence can be read: files of a public repository, with lines, at a commit or version."""

    repo: str
    path: str
    at: str

    def __str__(self) -> str:
        return f"{self.repo}: {self.path} @{self.at[:10]}"

    @property
    def links(self) -> list[tuple[str, str]]:
        """(text, permanent address below GITHUB) of each file; the texts joined are the source as text."""
        # A path may name several files, parted by semicolons; the repository stands before the first and
        # the commit behind the last.
        found = list(_FILE.finditer(self.path))
        made = []
        for file in found:
            text = file.group().strip()
            lines = [n for n in file.group("first", "last") if n]
            if file is found[0]:
                text = f"{self.repo}: {text}"
            text = f"{text} @{self.at[:10]}" if file is found[-1] else f"{text};"
            anchor = "#" + "-".join(f"L{n}" for n in lines) if lines else ""
            made.append((text, f"{self.repo}/blob/{self.at}/{file['path']}{anchor}"))
        return made

    def _repr_html_(self) -> str:
        return " ".join(
            f'<a href="{GITHUB}{escape(to)}" rel="noopener">{escape(text)}</a>' for text, to in self.links
        )


@dataclass(frozen=True, order=True)
class Change:
    """A commit that changed a framework's behaviour.

    day: its date in UTC. name: its pull request, or its hash.
    """

    day: str
    name: str

    def __str__(self) -> str:
        return f"{self.day} ({self.name})"


LAST = "~"
"""The name of a change after all others of its day."""


def source_from(text: str, repo: str, commit: str) -> Source:
    """A Source from "path", "path @commit" or "owner/name: path @commit"; what is left out is given."""
    head, colon, rest = text.partition(": ")
    # A path with a colon in it has no owner before the colon.
    owner, where = (head, rest) if colon and "/" in head and " " not in head else (repo, text)
    path, _, at = where.partition(" @")
    return Source(owner, path, at or commit)

"""A hook of mkdocs: what readers type who do not know the name of the page that helps them. For authors.

The search of the site weighs the tags of a page more than any text, so a page stands first for its words.
"""

from __future__ import annotations

from typing import Any

WORDS = {
    "docs/memory.md": ("OOM", "out of memory", "FSDP"),
    "docs/explain.md": ("hang", "stuck", "timeout", "half a head"),
    "docs/families.md": ("MoE", "mixture of experts"),
}
"""Page → words, each of which its text has as well."""


def on_page_markdown(markdown: str, page: Any, **_: object) -> str:
    if words := WORDS.get(page.file.src_uri):
        page.meta["tags"] = list(words)
    return markdown

"""A hook of mkdocs: Mermaid graphs are drawn in the reader's browser, without another host. For authors.

mkdocs-material draws a graph with the `mermaid` that it finds in a page, and would fetch one from a CDN where
there is none. So a page with a graph loads our copy, from an npm package pinned by its hash. Without npm the
graph stays its source, and the table below it says the same.
"""

from __future__ import annotations

import logging
import runpy
import tarfile
from importlib import import_module
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parent.parent
NPM = runpy.run_path(str(PROJECT / "site" / "npm.py"))
MERMAID = (
    "mermaid",
    "11.17.2",
    "V6K3C8EBdEsPFZXSKMJe6ppQOENxuHARr9GvHX4hh47lAbhMRD9qf4oEK7LoaRQxULMa80/qt5gHO73aCleBBg==",
)
FILES = {"mermaid.min.js": "package/dist/mermaid.min.js", "mermaid-LICENSE.txt": "package/LICENSE"}
"""File of the site → file of the package."""

ARCHIVE: list[Path] = []
"""The package, once it is here."""


def on_config(config: Any) -> None:
    """A fence of Mermaid becomes a graph if there is something to draw it with."""
    try:
        ARCHIVE.append(NPM["packed"](PROJECT / "build" / "npm", MERMAID))
    except NPM["NoNpm"] as missing:
        logging.getLogger("mkdocs.hooks.diagrams").info("graphs are left as source: %s", missing)
        return
    source = import_module("pymdownx.superfences").fence_code_format
    fence = {"name": "mermaid", "class": "mermaid", "format": source}
    config.mdx_configs["pymdownx.superfences"] = {"custom_fences": [fence]}


def on_post_page(output: str, page: Any, **_: object) -> str:
    """A page with a graph loads what draws it."""
    if '<pre class="mermaid">' not in output:
        return output
    up = "../" * page.url.count("/")
    return output.replace("</head>", f'<script src="{up}mermaid.min.js"></script></head>', 1)


def on_post_build(config: Any) -> None:
    for archive in ARCHIVE[:1]:
        with tarfile.open(archive) as package:
            for name, inside in FILES.items():
                file = package.extractfile(inside)
                assert file is not None
                (Path(config.site_dir) / name).write_bytes(file.read())

"""What pyproject.toml cannot say of a build: the course in a wheel, and links that work on an index.

A wheel carries notebooks, docs and Jupyter's settings in `llamapar/shipped`, from where `llamapar course`
copies them. An editable install carries none of them, because the checkout has them.

README's links lead to files of the repository, so a package index shows them broken. `repository` in
pyproject.toml is the one place of its address; with it links and pictures become absolute. Without it a
link becomes its text, a picture its description, and the metadata names no URL.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

SHIPPED = {"notebooks": "*.ipynb", "docs": "*.md", "jupyter": "**/*.*"}
"""Folder → the files in it that a wheel carries."""

LINK = re.compile(r"(!?)\[((?:!\[[^]]*\]\([^)]*\)|[^][])*)\]\((?!https?:|#)([^)\s]+)\)")


def for_an_index(text: str, repository: str, version: str) -> str:
    """README with links and pictures that lead to the repository at the tag of a version."""

    def absolute(match: re.Match[str]) -> str:
        mark, words, path = match.groups()
        kind = "raw" if mark else "blob"
        return f"{mark}[{words}]({repository}/{kind}/v{version}/{path})" if repository else words

    return LINK.sub(absolute, text)


class CustomMetadataHook(MetadataHookInterface):
    """README and URLs, from the address of the repository."""

    def update(self, metadata: dict[str, Any]) -> None:
        repository, version = self.config["repository"], metadata["version"]
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": for_an_index(text, repository, version),
        }
        tree = f"{repository}/blob/v{version}"
        urls = {
            "Repository": repository,
            "Issues": f"{repository}/issues",
            "Documentation": f"{tree}/docs/course.md",
            "Changelog": f"{tree}/CHANGELOG.md",
        }
        metadata["urls"] = urls if repository else {}


class CustomBuildHook(BuildHookInterface[Any]):
    """The course in a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        for folder, pattern in SHIPPED.items():
            for file in Path(self.root, folder).glob(pattern):
                if file.is_dir() or file.parent.name == "__pycache__":
                    continue
                inside = file.relative_to(self.root).as_posix()
                build_data["force_include"][str(file)] = f"llamapar/shipped/{inside}"

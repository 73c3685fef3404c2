"""Packages from npm, each pinned by its hash, so that the page and the docs ask no other host for them."""

from __future__ import annotations

import base64
import hashlib
import shutil
import subprocess
from pathlib import Path


class NoNpm(Exception):
    """What cannot be had, in a sentence."""


def packed(folder: Path, package: tuple[str, str, str]) -> Path:
    """An npm package (name, version, SHA-512), fetched where it is not there yet. Raises NoNpm."""
    name, version, digest = package
    archive = folder / f"{name}-{version}.tgz"
    if not archive.is_file():
        npm = shutil.which("npm")
        if npm is None:
            raise NoNpm(f"{name} comes from npm, which is not here; on Debian: apt-get install npm")
        folder.mkdir(parents=True, exist_ok=True)
        command = [npm, "pack", "--silent", f"{name}@{version}", "--pack-destination", str(folder)]
        if subprocess.run(command, stdout=subprocess.DEVNULL).returncode:
            raise NoNpm(f"npm could not fetch {name} {version}: what it said stands above")
    if base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode() != digest:
        raise NoNpm(f"{archive} is not {name} {version} as it is pinned here: remove it and build again")
    return archive

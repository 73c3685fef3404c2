"""Build the page that needs no install: Explorer, watch, clinic and course in build/site, for a file server.

    make site                    # or: python site/build.py
    python -m http.server -d build/site

Python in it is Pyodide, from an npm package pinned by its hash, as plotly.js is. The state that a panel opens
with is made here, by the panels themselves on the stand-ins of site/standins, and so is all else.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence
from importlib.metadata import distribution
from importlib.resources import files
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE)]

from chapters import Alive, write_course  # noqa: E402
from lessons.making import write_lessons  # noqa: E402
from npm import NoNpm, packed  # noqa: E402
from pages import TITLES, panel_page  # noqa: E402
from scripts import OF_WATCH, STANDINS, printed_by  # noqa: E402

PROJECT = HERE.parent
SITE = PROJECT / "build" / "site"

PYODIDE = (
    "pyodide",
    "314.0.7",
    "0YvXxEhfEdpLfb/XkM2BFAeMROq0iMUX2bzzH9pOttyMcWkwq+HbE5uyuGD82LN7y2q+SNvi/6V5JEsOlD2R1A==",
)
PLOTLY = (
    "plotly.js-cartesian-dist-min",
    "4.1.1",
    "o8GrFeusncwBIxbBynRJpY4pkgVB6caM+JLpwrLYbbsO7dZ8FJ+SVN2Fr+L7kiG/Z6w4P5O0Jus/Qr5EefHVeg==",
)
"""plotly.js with the kinds of traces that our figures have, at the version that the package plotly has."""

UNUSED = re.compile(
    r"(_pyrepl|ctypes|multiprocessing|pydoc_data|sqlite3|unittest|wsgiref|xml|xmlrpc|_pyio|bdb|doctest|ftplib"
    r"|imaplib|mailbox|optparse|pdb|poplib|pydoc|smtplib|turtle)(/|\.py$)"
)
"""Parts of Python's library that neither the panels nor Pyodide import."""

NEEDS_TORCH = ("programs", "checkpoint", "cli")
"""Parts of ours that a panel does not import where no run is possible; lines of programs are shown."""


# -- Pyodide -----------------------------------------------------------------------------------


def write_plotly(site: Path, npm: Path) -> None:
    """The part of plotly.js that is needed, in the place of the whole."""
    with tarfile.open(packed(npm, PLOTLY)) as archive:
        script = archive.extractfile("package/plotly-cartesian.min.js")
        assert script is not None
        (site / "plotly.min.js").write_bytes(script.read())


def write_python(site: Path, npm: Path) -> None:
    """Pyodide, its library and ours, both compiled by Pyodide itself."""
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch)
        with tarfile.open(packed(npm, PYODIDE)) as archive:
            archive.extractall(work, filter="data")
        package, library, ours = work / "package", work / "library", work / "ours"
        with zipfile.ZipFile(package / "python_stdlib.zip") as stdlib:
            names = (name for name in stdlib.namelist() if not UNUSED.match(name))
            stdlib.extractall(library, names)
        copy_ours(ours)
        watch = work / "watch"
        copy_watch(watch)
        left_out = shutil.ignore_patterns("__pycache__")
        subprocess.run(["node", HERE / "compile.mjs", package, library, ours, watch], check=True)
        shutil.copytree(PROJECT / "llamapar" / "programs", ours / "llamapar" / "programs", ignore=left_out)
        (site / "pyodide").mkdir()
        for name in ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm"):
            shutil.copyfile(package / name, site / "pyodide" / name)
        lock = json.loads((package / "pyodide-lock.json").read_text()) | {"packages": {}}
        (site / "pyodide" / "pyodide-lock.json").write_text(json.dumps(lock))
        write_zip(site / "pyodide" / "python_stdlib.zip", library)
        write_zip(site / "llamapar.zip", ours)
        (watch / "llamapar" / "spmd").mkdir(parents=True)
        shutil.copy(PROJECT / "llamapar" / "spmd" / "zero.py", watch / "llamapar" / "spmd")  # lines are shown
        write_zip(site / "watch.zip", watch)


def copy_ours(folder: Path) -> None:
    """The library, the stand-ins, and PyYAML's part in Python."""
    python_only = shutil.ignore_patterns("__pycache__", "*.so", "*.pyd")
    left_out = shutil.ignore_patterns("__pycache__", *NEEDS_TORCH, "course")
    shutil.copytree(PROJECT / "llamapar", folder / "llamapar", ignore=left_out)
    shutil.copytree(HERE / "standins", folder, ignore=python_only, dirs_exist_ok=True)
    shutil.copytree(str(files("yaml")), folder / "yaml", ignore=python_only)


def copy_watch(folder: Path) -> None:
    """What the page with lp.watch has besides: its state and recordings, and the stand-in of torch."""
    left_out = shutil.ignore_patterns("__pycache__")
    shutil.copytree(HERE / "watch" / "standins", folder, ignore=left_out)
    for name in ("page_watch.py", "films.py"):
        shutil.copyfile(HERE / "watch" / name, folder / name)


def write_zip(path: Path, folder: Path) -> None:
    """The files of a folder, with one date, in one order."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for each in sorted(path for path in folder.rglob("*") if path.is_file()):
            entry = zipfile.ZipInfo(each.relative_to(folder).as_posix())
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, each.read_bytes())


# -- the panels --------------------------------------------------------------------------------


def panels(films: Path | None = None) -> dict[str, Any]:
    """opening: each panel's state at first; sources: JavaScript and CSS of all kinds. On the stand-ins.

    films: recordings, of lp.watch on a stand-in of torch; without them of the other panels.
    """
    names = ["watch"] if films else [name for name in TITLES if name != "watch"]
    imports = OF_WATCH if films else STANDINS
    script = HERE / "standins" / "page_python.py"
    found: dict[str, Any] = json.loads(printed_by(script, *names, imports=imports, LLAMAPAR_FILMS=films))
    return found


def write_films(films: Path, every: bool) -> None:
    """The recordings of lp.watch, by torch itself; without `every` the one that the page opens with."""
    words = [films, PROJECT / "build" / "films", *([] if every else ["first"])]
    printed_by(HERE / "watch" / "films.py", *words, imports=(HERE / "watch", PROJECT))


def write_panels(site: Path, every: bool) -> None:
    """Explorer, clinic, watch and live: page, state, JavaScript and style. every: with all recordings."""
    write_films(site / "films", every)
    made = panels()
    for name, state in (made["opening"] | panels(site / "films")["opening"]).items():
        (site / f"{name}.json").write_text(json.dumps(state))
        (site / f"{name}.html").write_text(panel_page(name))
    for name, (script, style) in made["sources"].items():
        (site / f"{name}.mjs").write_text(script)
        (site / f"{name}.css").write_text(style)
    for path in (*HERE.glob("*.mjs"), HERE / "page.css"):
        if path.name != "compile.mjs":
            shutil.copyfile(path, site / path.name)
    shutil.copyfile(str(files("plotly") / "package_data" / "plotly.min.js"), site / "plotly.min.js")


def write_lively(site: Path, notebooks: Sequence[Path]) -> Alive:
    """The panels of the lessons: each one's first state, and the archive of what makes them."""
    with tempfile.TemporaryDirectory() as scratch:
        archive = Path(scratch)
        made = write_lessons(archive, site / "films", PROJECT / "build" / "films", notebooks)
        write_zip(site / "lessons.zip", archive)
    for name, panels in made["states"].items():
        (site / "lessons" / name).mkdir(parents=True)
        for key, panel in panels.items():
            (site / "lessons" / name / f"{key}.json").write_text(json.dumps(panel["state"]))
    kinds = {name: {key: p["kind"] for key, p in panels.items()} for name, panels in made["states"].items()}
    return Alive(kinds, made["asked"], made["still"], made["said"])


# -- everything --------------------------------------------------------------------------------


def notices() -> str:
    """What is shipped, by whom, and its licence."""
    text = (HERE / "NOTICES.txt").read_text()
    for name in ("plotly", "pyyaml"):
        (licence,) = [file for file in distribution(name).files or () if file.name.startswith("LICENSE")]
        text += f"\n\n==== {name} ====\n\n{licence.read_text()}"
    return text + f"\n\n==== llamapar ====\n\n{(PROJECT / 'LICENSE').read_text()}"


def sources() -> str:
    """The digest of all that the site is made from."""
    trees = (PROJECT / "llamapar", HERE, PROJECT / "notebooks", PROJECT / "docs")
    found = sorted(
        path
        for tree in trees
        for path in tree.rglob("*")
        if path.is_file() and not {"__pycache__", ".ipynb_checkpoints"} & set(path.parts)
    )
    whole = hashlib.sha256()
    for path in found:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        whole.update(f"{path.relative_to(PROJECT)} {digest}\n".encode())
    return whole.hexdigest()


def is_stale(site: Path) -> bool:
    """Whether a site was made from other sources than those that stand here now."""
    return (site / "made.txt").read_text() != sources()


def build(site: Path = SITE, npm: bool = True) -> None:
    """Write the whole site anew. npm: with what comes from there, Pyodide and plotly.js. Raises NoNpm."""
    shutil.rmtree(site, ignore_errors=True)
    site.mkdir(parents=True)
    write_panels(site, every=npm)
    if npm:
        write_python(site, PROJECT / "build" / "npm")
        write_plotly(site, PROJECT / "build" / "npm")
    notebooks = sorted((PROJECT / "notebooks").glob("*.ipynb"))
    write_course(site, notebooks, write_lively(site, notebooks) if npm else Alive())
    (site / "notices.txt").write_text(notices())
    (site / "made.txt").write_text(sources())


def main() -> str | None:
    try:
        build()
    except NoNpm as missing:
        return f"llamapar: {missing}"
    size = sum(path.stat().st_size for path in SITE.rglob("*") if path.is_file())
    print(f"{SITE}: {size / 1e6:.1f} MB; look at it: python -m http.server -d {SITE.relative_to(Path.cwd())}")
    return None


if __name__ == "__main__":
    sys.exit(main())

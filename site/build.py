"""Build the page that needs no install: Explorer, watch, clinic and course in build/site, for a file server.

    make site                    # or: python site/build.py
    python -m http.server -d build/site

Python in it is Pyodide, from an npm package pinned by its hash, as plotly.js is. The state that a panel opens
with is made here, by the panels themselves on the stand-ins of site/standins, and so is all else.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable
from importlib.metadata import distribution
from importlib.resources import files
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt

HERE = Path(__file__).resolve().parent
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
    r"|imaplib|ipaddress|mailbox|optparse|pdb|poplib|pydoc|smtplib|turtle)(/|\.py$)"
)
"""Parts of Python's library that neither the panels nor Pyodide import."""

NEEDS_TORCH = ("programs", "checkpoint", "cli")
"""Parts of ours that a panel does not import where no run is possible; lines of programs are shown."""

POLICY = (
    "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; worker-src blob:; connect-src 'self'; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; base-uri 'none'; form-action 'none'"
)
"""plotly.js writes styles; a worker from a blob has this policy too, which one from a file has not."""

STATIC = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src data:; base-uri 'none'"
)
LATER = '<p id="python" class="said later" role="status">{}</p>'
NO_SCRIPT = (
    "Nothing moves here yet. This page needs JavaScript and a server: opened as a file, a browser "
    "does not let it start Python. In its folder: <code>python -m http.server</code>. "
    '<a href="index.html">The course</a> reads without.'
)


class NoNpm(Exception):
    """What cannot be had, in a sentence."""


# -- Pyodide -----------------------------------------------------------------------------------


def packed(folder: Path, package: tuple[str, str, str]) -> Path:
    """An npm package (name, version, SHA-512), fetched where it is not there yet. Raises NoNpm."""
    name, version, digest = package
    archive = folder / f"{name}-{version}.tgz"
    if not archive.is_file():
        npm = shutil.which("npm")
        if npm is None:
            raise NoNpm("the page's Python comes from npm, which is not here; on Debian: apt-get install npm")
        folder.mkdir(parents=True, exist_ok=True)
        command = [npm, "pack", "--silent", f"{name}@{version}", "--pack-destination", str(folder)]
        if subprocess.run(command, stdout=subprocess.DEVNULL).returncode:
            raise NoNpm(f"npm could not fetch {name} {version}: what it said stands above")
    if base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode() != digest:
        raise NoNpm(f"{archive} is not {name} {version} as it is pinned here: remove it and build again")
    return archive


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
    left_out = shutil.ignore_patterns("__pycache__", *NEEDS_TORCH)
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


# -- the panels' pages -------------------------------------------------------------------------


def panels(films: Path | None = None) -> dict[str, Any]:
    """opening: each panel's state at first; sources: its JavaScript and CSS. On the stand-ins.

    films: recordings, of lp.watch on a stand-in of torch; without them of the other panels.
    """
    watch = [] if films is None else [HERE / "watch", HERE / "watch" / "standins"]
    path = os.pathsep.join(map(str, (*watch, HERE / "standins", PROJECT)))
    words = ["watch"] if watch else []
    command = [sys.executable, "-P", str(HERE / "standins" / "page_python.py"), *words]
    own = {"PYTHONPATH": path, "LLAMAPAR_FILMS": str(films)}
    made = subprocess.run(command, env=os.environ | own, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(made.stdout)
    return found


def write_films(films: Path, every: bool) -> None:
    """The recordings of lp.watch, by torch itself; without `every` the one that the page opens with."""
    own = {"PYTHONPATH": os.pathsep.join(map(str, (HERE / "watch", PROJECT)))}
    words = [str(films), str(PROJECT / "build" / "films"), *([] if every else ["first"])]
    command = [sys.executable, "-P", str(HERE / "watch" / "films.py"), *words]
    subprocess.run(command, env=os.environ | own, check=True)


def write_panels(site: Path, every: bool) -> None:
    """Explorer, clinic and watch: page, state, JavaScript and style. every: with all recordings of watch."""
    write_films(site / "films", every)
    made, watched = panels(), panels(site / "films")
    made = {what: made[what] | watched[what] for what in made}
    for name, (script, style) in made["sources"].items():
        (site / f"{name}.mjs").write_text(script)
        (site / f"{name}.css").write_text(style)
        (site / f"{name}.json").write_text(json.dumps(made["opening"][name]))
        (site / f"{name}.html").write_text(panel_page(name))
    for name in ("page.mjs", "links.mjs", "course.mjs", "worker.mjs", "page.css"):
        shutil.copyfile(HERE / name, site / name)
    shutil.copyfile(str(files("plotly") / "package_data" / "plotly.min.js"), site / "plotly.min.js")


TITLES = {
    "explorer": ("The Explorer", "Move a control: what is legal, fits, how fast, and what travels."),
    "clinic": (
        "The clinic",
        "What you paste stays in this page. Nothing is sent anywhere: the page may ask no other host, "
        "and its Python runs in your browser.",
    ),
    "watch": (
        "Ranks that one watches",
        "Edit a line or break something: every rank runs again in your browser, forward. The backward, and "
        "all of llama and step, are recordings that PyTorch made.",
    ),
}


def panel_page(name: str) -> str:
    title, says = TITLES[name]
    main = f'<h1>{title}</h1><p class="said">{says}</p>{LATER.format(NO_SCRIPT)}<div id="panel"></div>'
    head = f'<link rel="stylesheet" href="{name}.css"><link rel="modulepreload" href="{name}.mjs">'
    if name != "watch":  # whose tiles are its own
        head += '<link rel="preload" as="script" href="plotly.min.js">'
    head += '<script type="module" src="page.mjs"></script>'
    if name == "clinic":
        head += '<link rel="stylesheet" href="explorer.css">'  # which a fix opens
    return page(title, main, POLICY, head, f' data-panel="{name}"')


def page(title: str, main: str, policy: str, head: str = "", body: str = "", root: str = "") -> str:
    """A whole page. root: the way back to the site's own folder."""
    named = ("index llamapar", "explorer Explorer", "watch Watch", "clinic Clinic", "index Course")
    nav = " ".join(
        f'<a href="{root}{file}.html{"#course" * (text == "Course")}">{text}</a>'
        for file, text in map(str.split, named)
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>{html.escape(title)} · llamapar</title>\n"
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="referrer" content="no-referrer">'
        f'<link rel="icon" href="data:,"><link rel="stylesheet" href="{root}page.css">{head}</head>\n'
        f'<body{body}><header><nav aria-label="site">{nav}</nav></header>\n<main>{main}</main>\n'
        f'<footer class="said"><a href="{root}notices.txt">Licences</a></footer></body></html>\n'
    )


# -- the course --------------------------------------------------------------------------------

MARKDOWN = MarkdownIt("commonmark").enable("table")


def chapter(source: str) -> tuple[str, str]:
    """(title, HTML) of a notebook: its cells and what they showed, folded answers as they are."""
    parts = []
    for cell in json.loads(source)["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(f'<div class="cell">{MARKDOWN.render(text)}</div>')
        elif cell["cell_type"] == "code" and text:
            parts.append(f'<pre class="cell" tabindex="0"><code>{html.escape(text)}</code></pre>')
        parts += [f'<div class="out">{shown(output)}</div>' for output in cell.get("outputs", ())]
    return titled("\n".join(parts))


def titled(body: str) -> tuple[str, str]:
    """(title, body) of HTML, whose links lead to the site's own pages, or out of it; others are none."""

    def lead(link: re.Match[str]) -> str:
        path, _, place = link[1].partition("#")
        own = PROJECT / ("docs" if path.endswith(".md") else "notebooks") / Path(path).name
        if not path or path.startswith("https:"):
            return link[0]
        if not own.is_file():
            return link[2]
        return f'<a href="../{own.parent.name}/{own.stem}.html{"#" * bool(place)}{place}">{link[2]}</a>'

    body = re.sub(r'<a href="([^"]*)">(.*?)</a>', lead, body, flags=re.DOTALL)
    title = re.search(r"<h1>(.*?)</h1>", body)
    return html.unescape(re.sub("<[^>]+>", "", title[1])) if title else "", body


def shown(output: dict[str, Any]) -> str:
    """One stored output: HTML where it has some, a picture, else text."""
    stored = output.get("data", {}).items()
    data = {kind: "".join(value) for kind, value in stored if not kind.endswith("json")}
    if "text/html" in data:
        return data["text/html"]
    text = data.get("text/plain") or "".join(output.get("text", output.get("traceback", ())))
    written = f'<pre tabindex="0">{html.escape(text)}</pre>'
    if "image/png" not in data:
        return written
    drawn, kind = data["image/png"].strip(), "image/png"
    if "image/svg+xml" in data:  # sharp at any size, and without paper
        drawn, kind = base64.b64encode(data["image/svg+xml"].encode()).decode(), "image/svg+xml"
    picture = f'<img alt="{html.escape(text[:200])}" src="data:{kind};base64,{drawn}">'
    return f"{picture}<details><summary>as text</summary>{written}</details>"


DOORS = (
    ("I am new here", "notebooks/00_start_here.html", "What is cut, and how: the course, as pages."),
    ("I want to see it run", "watch.html", "Attention on four ranks, line by line: edit it, break it."),
    ("I am reading the paper", "explorer.html", "Llama 3.1 405B as its paper cuts it: move a slider."),
    ("My run broke", "clinic.html", "Paste the error: it stays in your browser."),
)


def write_course(site: Path, notebooks: Iterable[Path]) -> None:
    """The start page, and a page for each notebook and for what is written beside them."""
    for folder in ("notebooks", "docs"):
        (site / folder).mkdir()
    for path in (PROJECT / "docs").glob("*.md"):
        title, body = titled(MARKDOWN.render(path.read_text()))
        (site / "docs" / f"{path.stem}.html").write_text(page(title, body, STATIC, root="../"))
    rows = []
    for path in notebooks:
        title, body = chapter(path.read_text())
        script = '<script type="module" src="../course.mjs"></script>'
        end = f'<p data-end="{path.stem}"><a href="../index.html#course">The other chapters</a></p>'
        written = page(title, body + end, STATIC, script, root="../")
        (site / "notebooks" / f"{path.stem}.html").write_text(written)
        link = f'<a data-chapter="{path.stem}" href="notebooks/{path.stem}.html">{html.escape(title)}</a>'
        rows.append(f"<li><span>{path.stem.partition('_')[0]}</span> {link}</li>")
    doors = "".join(f'<li><h2><a href="{to}">{name}</a></h2><p>{says}</p></li>' for name, to, says in DOORS)
    main = (
        "<h1>How is a Llama cut across GPUs, and will it run?</h1>"
        "<p>Nothing is installed and nothing is sent anywhere: Python runs in this page.</p>"
        f'<ul class="doors">{doors}</ul>'
        f'<h2 id="course">The course</h2><ol class="chapters">{"".join(rows)}</ol>'
        "<p>What is read is remembered in this browser alone. To run the cells: <code>make lab</code>.</p>"
    )
    script = '<script type="module" src="course.mjs"></script>'
    (site / "index.html").write_text(page("Start", main, STATIC, script))


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
    write_course(site, sorted((PROJECT / "notebooks").glob("*.ipynb")))
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

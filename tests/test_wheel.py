"""The wheel, installed where no checkout is: what it carries, what it says of itself, and what it answers."""

import email
import json
import os
import re
import runpy
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

import llamapar as lp
from test_links import links

PROJECT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted(path.name for path in PROJECT.glob("notebooks/*.ipynb"))


def tracked(*folders):
    """The files of a folder that belong to the project."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", *folders], cwd=PROJECT, capture_output=True, text=True, check=True
    )
    return set(listed.stdout.split("\0")) - {""}


def built_wheel(folder, source=PROJECT):
    """The wheel as pip builds it, with the build tool that is installed here."""
    words = ["wheel", "-q", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(source)]
    subprocess.run([sys.executable, "-m", "pip", *words], check=True)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return built_wheel(tmp_path_factory.mktemp("wheel"))


class Environment:
    """A fresh environment with the wheel, and a folder of the reader's."""

    def __init__(self, folder, wheel):
        self.bin, self.home = folder / "env" / "bin", folder / "home"
        self.home.mkdir()
        venv.create(folder / "env", with_pip=False)
        words = ["--python", str(self.bin / "python"), "install", "-q", "--no-index", str(wheel)]
        subprocess.run([sys.executable, "-m", "pip", *words], check=True)

    def run(self, *words):
        """The exit status, stdout and stderr of a program of the environment."""
        program, *rest = words
        ran = subprocess.run(
            [str(self.bin / program), *rest],
            cwd=self.home,
            env={"HOME": str(self.home), "PATH": os.defpath, "PYTHONWARNINGS": "error"},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        return ran.returncode, ran.stdout, ran.stderr


@pytest.fixture(scope="module")
def fresh(tmp_path_factory, wheel):
    return Environment(tmp_path_factory.mktemp("fresh"), wheel)


def test_a_wheel_carries_the_library_the_course_and_its_settings(wheel):
    with zipfile.ZipFile(wheel) as archive:
        inside = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert {name for name in inside if not name.startswith("llamapar/shipped/")} == tracked("llamapar")
    shipped = {name.removeprefix("llamapar/shipped/") for name in inside - tracked("llamapar")}
    assert {name for name in shipped if not name.startswith("docs/")} == tracked("jupyter") | {
        name for name in tracked("notebooks") if name.endswith(".ipynb")
    }
    assert {name for name in shipped if name.startswith("docs/")} <= tracked("docs")


def test_what_the_notebooks_link_to_is_in_the_wheel(wheel):
    with zipfile.ZipFile(wheel) as archive:
        shipped = {name.removeprefix("llamapar/shipped/") for name in archive.namelist()}
    wanted = set()
    for name in NOTEBOOKS:
        cells = json.loads((PROJECT / "notebooks" / name).read_text())["cells"]
        text = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
        wanted |= {link.partition("#")[0] for link in links(text) if link.startswith("../")}
    assert wanted
    assert {link.removeprefix("../") for link in wanted} <= shipped


def test_the_metadata_of_the_wheel(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        said = email.message_from_bytes(archive.read(name))
    assert (said["Name"], said["Version"], said["Author"]) == (
        "llamapar",
        lp.__version__,
        "The llamapar authors",
    )
    assert said["Description-Content-Type"] == "text/markdown"
    hooks = tomllib.loads((PROJECT / "pyproject.toml").read_text())["tool"]["hatch"]["metadata"]["hooks"]
    repository = hooks["custom"]["repository"]
    urls = said.get_all("Project-URL") or []
    assert bool(urls) is bool(repository)  # no address is invented
    assert all(repository in url for url in urls)
    body = said.get_payload()
    assert isinstance(body, str)
    relative = [link for link in links(body) if not re.match(r"https?:|#", link)]
    assert relative == []  # on a package index they would lead nowhere
    assert "You write once how a Llama-style transformer is cut" in body


def test_readme_leads_to_the_repository_once_it_has_an_address():
    for_an_index = runpy.run_path(str(PROJECT / "hatch_build.py"))["for_an_index"]
    text = "![A\nmap](docs/a.png) and [the course](docs/course.md#one), [a site](https://x.org/y), [up](#up)"
    at = "https://host.org/us/llamapar"
    assert for_an_index(text, at, "0.1.0") == (
        f"![A\nmap]({at}/raw/v0.1.0/docs/a.png) and [the course]({at}/blob/v0.1.0/docs/course.md#one), "
        "[a site](https://x.org/y), [up](#up)"
    )
    assert for_an_index(text, "", "0.1.0") == "A\nmap and the course, [a site](https://x.org/y), [up](#up)"
    readme = for_an_index((PROJECT / "README.md").read_text(), at, "0.1.0")
    for link in links(readme):
        path = re.sub(rf"{at}/(?:raw|blob)/v0\.1\.0/|#.*", "", link)
        assert "://" in path or not path or (PROJECT / path).exists()
    assert len(links(readme)) == len(links((PROJECT / "README.md").read_text()))


def test_a_source_distribution_builds_the_same_wheel(tmp_path, wheel):
    code = f"from hatchling.build import build_sdist; build_sdist({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-c", code], cwd=PROJECT, check=True)
    (packed,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(packed) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = (path for path in tmp_path.iterdir() if path.is_dir())
    with zipfile.ZipFile(built_wheel(tmp_path, source)) as one, zipfile.ZipFile(wheel) as other:
        assert {n: one.read(n) for n in one.namelist()} == {n: other.read(n) for n in other.namelist()}


def test_the_bare_wheel_answers(fresh):
    assert fresh.run("llamapar", "--version") == (0, f"llamapar {lp.__version__}\n", "")
    status, text, error = fresh.run("llamapar", "check", "llama3-8b", "--tp", "16")
    assert (status, error) == (1, "")
    assert text == str(lp.check("llama3-8b", {"tp": 16})) + "\n"
    where = "import llamapar; print(llamapar.__file__)"
    status, text, error = fresh.run("python", "-c", where)
    assert (status, error) == (0, "")
    assert Path(text.strip()).is_relative_to(fresh.bin.parent)


def test_the_bare_wheel_says_what_is_missing(fresh):
    fresh.home.joinpath("train.yaml").write_text("model: {}\n")
    for words, missing, extra in (
        (("run", "llama3-8b", "--tp", "2", "--shrink"), "torch", "run"),
        (("check", "--config", "train.yaml"), "PyYAML", "settings"),
        (("explorer",), "jupyterlab", "lab"),
    ):
        status, text, error = fresh.run("llamapar", *words)
        assert (status, text) == (2, "")
        assert missing in error
        assert f"try  pip install 'llamapar[{extra}]'" in error


def test_the_course_is_copied_and_nothing_is_overwritten(fresh):
    status, text, error = fresh.run("llamapar", "course", "mine", "--copy")
    mine = fresh.home / "mine"
    assert (status, error) == (0, "")
    assert text == f"{mine}: {len([*mine.rglob('*.*')])} files copied\n"
    assert sorted(path.name for path in mine.glob("notebooks/*")) == NOTEBOOKS
    for name in NOTEBOOKS:
        assert (mine / "notebooks" / name).read_bytes() == (PROJECT / "notebooks" / name).read_bytes()
    # What the reader changed stays, what the reader removed comes again.
    changed, removed = mine / "notebooks" / NOTEBOOKS[0], mine / "notebooks" / NOTEBOOKS[1]
    changed.write_text("mine")
    removed.unlink()
    status, text, error = fresh.run("llamapar", "course", "mine", "--copy", "--json")
    assert (status, error) == (0, "")
    assert json.loads(text) == {
        "schema": 2,
        "folder": str(mine),
        "copied": [f"notebooks/{NOTEBOOKS[1]}"],
        "kept": [f"notebooks/{NOTEBOOKS[0]}"],
    }
    assert changed.read_text() == "mine"
    status, text, _ = fresh.run("llamapar", "course", "mine", "--copy")
    assert text == (
        f"{mine}: all files are there\n"
        f"    kept as they are, because they differ from this version's: notebooks/{NOTEBOOKS[0]}\n"
    )


def test_a_course_that_cannot_open_is_not_copied(fresh):
    status, text, error = fresh.run("llamapar", "course", "unopened")
    assert (status, text) == (2, "")
    assert "jupyterlab is not installed" in error
    assert not (fresh.home / "unopened").exists()


def test_a_copy_goes_through_no_link_that_stands_ready(fresh):
    letter, notebooks = fresh.home / "letter", fresh.home / "baited" / "notebooks"
    letter.write_text("a letter")
    notebooks.mkdir(parents=True)
    baits = [notebooks / f"{name}.part" for name in NOTEBOOKS]
    for bait in baits:
        bait.symlink_to(letter)
    assert fresh.run("llamapar", "course", "baited", "--copy")[0] == 0
    assert letter.read_text() == "a letter"
    assert sorted(notebooks.iterdir()) == sorted([*baits, *(notebooks / name for name in NOTEBOOKS)])


LINKS_AND_PIPES = "; the course follows no link and opens no pipe or device"


@pytest.mark.parametrize(
    ("there", "at", "why"),
    [
        ("file", "", "[Errno 20] Not a directory: '{}/.jupyter'"),
        ("folder", f"notebooks/{NOTEBOOKS[-1]}", "{} is not a regular file" + LINKS_AND_PIPES),
        ("pipe", f"notebooks/{NOTEBOOKS[-1]}", "{} is not a regular file" + LINKS_AND_PIPES),
        ("link to nothing", f"notebooks/{NOTEBOOKS[-1]}", "{} is not a regular file" + LINKS_AND_PIPES),
        ("link to a file", f"notebooks/{NOTEBOOKS[-1]}", "{} is not a regular file" + LINKS_AND_PIPES),
        ("link to a folder", "notebooks", "{} is not a folder" + LINKS_AND_PIPES),
        ("link to a folder", "docs", "{} is not a folder" + LINKS_AND_PIPES),
        ("link to a folder", ".jupyter", "{} is not a folder" + LINKS_AND_PIPES),
        ("file", ".jupyter", "{} is not a folder" + LINKS_AND_PIPES),
    ],
)
def test_a_course_that_cannot_be_copied(fresh, tmp_path, there, at, why):
    """It is refused before the first copy, and what stands there stays as it is."""
    target, mine = tmp_path / "target", tmp_path / "mine"
    mine.mkdir()
    (mine / "letter").write_text("a letter")
    place = target / at
    place.parent.mkdir(parents=True, exist_ok=True)
    match there:
        case "file":
            place.write_text("a letter")
        case "folder":
            place.mkdir()
        case "pipe":
            os.mkfifo(place)
        case "link to nothing":
            place.symlink_to(mine / "gone")
        case "link to a file":
            place.symlink_to(mine / "letter")
        case "link to a folder":
            place.symlink_to(mine)
    before = sorted(tmp_path.rglob("*"))
    status, text, error = fresh.run("llamapar", "course", str(target), "--copy")
    assert (status, text) == (2, "")
    assert error == (
        f"llamapar: the course cannot be copied to {target}\n  why  {why.format(place)}\n"
        "  try  llamapar course OTHER-FOLDER\n"
    )
    assert sorted(tmp_path.rglob("*")) == before
    assert (mine / "letter").read_text() == "a letter"

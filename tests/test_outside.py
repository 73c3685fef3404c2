"""What outsiders meet: workflows, issue forms, CITATION, the recipe for conda, Binder and Colab."""

import re
import subprocess

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

import llamapar
from test_environment import EXTRAS, PROJECT, PYPROJECT

GITHUB = PROJECT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
VERSION = llamapar.__version__
PYTHON = PYPROJECT["project"]["requires-python"]


def loaded(path):
    """A YAML file, in which YAML's own reading of the key `on` as True is undone."""
    found = yaml.safe_load(path.read_text("utf-8"))
    return {"on" if key is True else key: value for key, value in found.items()}


# -- workflows -------------------------------------------------------------------------------------

JOBS = {f"{path.stem}-{name}": job for path in WORKFLOWS for name, job in loaded(path)["jobs"].items()}
STEPS = [(name, step) for name, job in JOBS.items() for step in job["steps"]]
RUNS = [step["run"] for _, step in STEPS if "run" in step]


def test_pull_requests_and_main_are_tested_on_linux_and_macos():
    tests = loaded(GITHUB / "workflows" / "tests.yml")
    assert tests["on"] == {"pull_request": None, "push": {"branches": ["main"]}}
    assert {job["runs-on"] for job in tests["jobs"].values()} == {"ubuntu-latest", "macos-latest"}
    pythons = {tuple(job["strategy"]["matrix"]["python"]) for job in tests["jobs"].values()}
    assert pythons == {("3.11", "3.12", "3.13")}
    for version in (
        *pythons.pop(),
        loaded(GITHUB / "workflows" / "pages.yml")["jobs"]["build"]["steps"][1]["with"]["python-version"],
    ):
        assert SpecifierSet(PYTHON).contains(version)
        named = [line for line in PYPROJECT["project"]["classifiers"] if ":: Python :: 3." in line]
        assert not named or f"Programming Language :: Python :: {version}" in named
    assert "make test" in RUNS


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_may_read_and_no_more(path):
    """A job that may more says so itself, and no pull request from outside starts it."""
    workflow = loaded(path)
    assert workflow["permissions"] == {"contents": "read"}
    assert "concurrency" in workflow
    asked = [job["permissions"] for job in workflow["jobs"].values() if "permissions" in job]
    assert not asked or not {"pull_request", "pull_request_target"} & set(workflow["on"])
    assert "secrets." not in path.read_text("utf-8")


def test_what_a_step_names_is_there():
    makefile = (PROJECT / "Makefile").read_text("utf-8")
    for run in RUNS:
        for target in re.findall(r"\bmake ([\w./-]+)", run):
            assert re.search(rf"^{re.escape(target.replace('.venv', '$(VENV)'))}:", makefile, re.MULTILINE), (
                target
            )
        for path in re.findall(r"\btests/[\w/]+(?:\.py)?", run):
            assert (PROJECT / path).exists(), path
        for extra in re.findall(r"\[(\w+)\]", run):
            assert extra in EXTRAS
    assert f"{'DOCS_GIT'} ?=" in makefile


# -- versions and limits ---------------------------------------------------------------------------


def test_citation_is_of_this_version():
    citation = loaded(PROJECT / "CITATION.cff")
    assert (citation["cff-version"], citation["version"]) == ("1.2.0", VERSION)
    assert citation["authors"] == [{"name": "The llamapar authors"}]
    assert citation["license"] == PYPROJECT["project"]["license"]


def test_the_recipe_is_of_this_version_and_has_its_limits():
    recipe = loaded(PROJECT / "recipe" / "recipe.yaml")
    assert recipe["context"] == {"version": VERSION, "python_min": PYTHON.removeprefix(">=")}
    (tool,) = map(Requirement, PYPROJECT["build-system"]["requires"])
    assert canonicalize_name(tool.name) in recipe["requirements"]["host"]
    assert recipe["requirements"]["run"] == ["python >=${{ python_min }}"]
    assert PYPROJECT["project"]["dependencies"] == []
    limits = {
        line.partition(" ")[0]: SpecifierSet(line.partition(" ")[2])
        for line in recipe["requirements"]["run_constraints"]
    }
    named = {"torch": "pytorch"}
    wanted = [Requirement(line) for extra in ("run", "lab") for line in EXTRAS[extra]]
    for requirement in wanted:
        name = named.get(requirement.name, requirement.name)
        assert limits.get(name, requirement.specifier) == requirement.specifier, name
    assert set(limits) <= {named.get(r.name, r.name) for r in wanted}
    scripts = PYPROJECT["project"]["scripts"]
    assert recipe["build"]["python"]["entry_points"] == [
        f"{name} = {where}" for name, where in scripts.items()
    ]
    assert recipe["about"]["summary"] == PYPROJECT["project"]["description"]


def test_binder_and_colab_install_this_version():
    *_, pip = loaded(PROJECT / "binder" / "environment.yml")["dependencies"]
    (binder,) = map(Requirement, pip["pip"])
    assert (str(binder.specifier), binder.extras) == (f"=={VERSION}", {"lab"})
    page = (PROJECT / "docs" / "install.md").read_text("utf-8")
    (colab,) = re.findall(r"%pip install -q '(llamapar\[[^']*)'", page)
    assert (str(Requirement(colab).specifier), Requirement(colab).extras) == (f"=={VERSION}", {"run"})
    links = re.findall(r"https://(?:mybinder\.org|colab\.research\.google\.com)/[^)\s]*", page)
    assert len(links) == 2
    for link in links:
        assert f"/v{VERSION}" in link
        (notebook,) = re.findall(r"notebooks/[\w]+\.ipynb", link)
        assert (PROJECT / notebook).is_file()


# -- blanks ----------------------------------------------------------------------------------------

BLANKS = {
    "CITATION.cff": {"REPOSITORY": 2},
    "docs/install.md": {"REPOSITORY": 3},
    "recipe/recipe.yaml": {"REPOSITORY": 4, "MAINTAINER": 1, "0" * 64: 1},
}
"""What the first release fills in, with the words that stand for it: REPOSITORY is OWNER/NAME on GitHub."""


def test_every_blank_is_known():
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=True,
    )
    found = {}
    for name in listed.stdout.splitlines():
        path = PROJECT / name
        if (
            path.suffix in (".md", ".cff", ".yaml", ".yml", ".toml", ".txt")
            and path.is_file()
            and name != "docs/releasing.md"
        ):
            text = path.read_text("utf-8")
            blanks = {
                word: len(re.findall(rf"\b{word}\b", text)) for word in ("REPOSITORY", "MAINTAINER", "0" * 64)
            }
            found |= {name: {word: n for word, n in blanks.items() if n}} if any(blanks.values()) else {}
    assert found == BLANKS

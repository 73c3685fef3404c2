"""pyproject.toml, constraints.txt, environment.yml, Makefile and CI describe one environment."""

import importlib.metadata as metadata
import json
import os
import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

import llamapar

PROJECT = Path(__file__).resolve().parent.parent
PYPROJECT = tomllib.loads((PROJECT / "pyproject.toml").read_text())
EXTRAS = PYPROJECT["project"]["optional-dependencies"]
PIN_LINE = re.compile(r"(?P<name>[A-Za-z0-9._-]+)==(?P<version>[0-9][0-9a-z.]*)( ; .+)?")


def read_pins():
    """The version of each package in constraints.txt; a line that is no pin fails."""
    pins = {}
    for line in (PROJECT / "constraints.txt").read_text().splitlines():
        if line.startswith("#"):
            continue
        match = PIN_LINE.fullmatch(line)
        assert match, f"not an exact pin: {line!r}"
        name = canonicalize_name(match["name"])
        assert name not in pins, f"{name} is pinned twice"
        pins[name] = match["version"]
    return pins


PINS = read_pins()


def direct(extra):
    """What an extra names itself, without the extras of llamapar that it includes."""
    requirements = map(Requirement, EXTRAS[extra])
    return [requirement for requirement in requirements if requirement.name != "llamapar"]


def everything_for(extra, system):
    """All packages that llamapar[extra] pulls in on a system, each with who asks for it.

    Read from the metadata of the installed packages; one that is not installed ends its branch.
    """
    wanted = {}
    todo = [("llamapar", frozenset({extra}))]
    done = set()
    while todo:
        name, extras = todo.pop()
        if (name, extras) in done:
            continue
        done.add((name, extras))
        try:
            lines = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue
        for requirement in map(Requirement, lines):
            marker = requirement.marker
            if marker and not any(marker.evaluate(system | {"extra": e}) for e in {"", *extras}):
                continue
            needed = canonicalize_name(requirement.name)
            wanted.setdefault(needed, set()).add(name)
            todo.append((needed, frozenset(requirement.extras)))
    wanted.pop("llamapar", None)  # its extras name each other
    return wanted


def test_bare_package_needs_only_python():
    assert PYPROJECT["project"]["dependencies"] == []
    assert PYPROJECT["project"]["requires-python"] == ">=3.11"
    for requirement in map(Requirement, metadata.requires("llamapar") or []):
        assert "extra ==" in str(requirement.marker), f"{requirement} is not behind an extra"


def test_package_and_extras():
    project = PYPROJECT["project"]
    assert llamapar.__version__ == metadata.version("llamapar")  # the one place of the version
    assert project["license"] == "Apache-2.0"
    assert "Apache License" in (PROJECT / "LICENSE").read_text().splitlines()[1]
    assert project["scripts"] == {"llamapar": "llamapar.__main__:command"}
    named = {extra: {e for line in EXTRAS[extra] for e in Requirement(line).extras} for extra in EXTRAS}
    inside = {extra: {"run", "lab"} & extras for extra, extras in named.items()}
    assert inside == {"run": set(), "settings": set(), "lab": {"run"}, "test": {"lab"}, "docs": {"lab"}}
    assert "torch>=2.11" in EXTRAS["run"]


@pytest.mark.parametrize("extra", ["run", "settings", "lab", "test", "docs"])
def test_every_direct_dependency_is_pinned_within_its_range(extra):
    for requirement in direct(extra):
        pin = PINS[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(Version(pin)), f"{requirement} and its pin {pin}"


def test_torch_and_the_build_tool_have_one_version():
    assert PINS["torch"] == "2.13.0"  # everything was measured with it
    assert PYPROJECT["build-system"]["requires"] == [f"hatchling=={PINS['hatchling']}"]


@pytest.mark.parametrize("python", ["3.11", "3.14"])
@pytest.mark.parametrize(("system", "name"), [("linux", "Linux"), ("darwin", "Darwin")])
def test_every_transitive_dependency_is_pinned(system, name, python):
    machine = {**default_environment(), "sys_platform": system, "platform_system": name}
    machine |= {"python_version": python, "python_full_version": f"{python}.0"}
    wanted = everything_for("docs", machine) | everything_for("test", machine)
    assert len(wanted) > 100  # the walk reached the leaves
    # What torch needs on CUDA machines it pins itself, build by build.
    unpinned = {n: who for n, who in wanted.items() if n not in PINS and who != {"torch"}}
    assert unpinned == {}


def test_pins_can_be_installed_on_the_oldest_python():
    oldest = PYPROJECT["project"]["requires-python"].removeprefix(">=") + ".0"
    for name in everything_for("test", dict(default_environment())):
        needs = metadata.metadata(name).get("Requires-Python") or ""
        assert SpecifierSet(needs).contains(oldest), f"{name} {metadata.version(name)}: {needs}"


def test_installed_versions_are_the_pins():
    there = {canonicalize_name(d.name): d.version.partition("+")[0] for d in metadata.distributions()}
    wanted = {*everything_for("test", dict(default_environment()))} & PINS.keys()
    # what `make docs` adds is there only once it has been called
    wanted |= {*everything_for("docs", dict(default_environment()))} & PINS.keys() & there.keys()
    assert {name: there.get(name) for name in wanted} == {name: PINS[name] for name in wanted}


def test_environment_yml_takes_its_pins_from_the_constraints():
    environment = yaml.safe_load((PROJECT / "environment.yml").read_text())
    assert environment["channels"] == ["conda-forge"]
    *_, pip = environment["dependencies"]
    first, *named, project = pip["pip"]
    assert environment["dependencies"][1:-1] == ["pip"]
    assert (first, project) == ("-c constraints.txt", "-e .[test]")
    assert named == ["jupyterlab", "ipywidgets", "torch", "plotly", "nbval"]
    assert {canonicalize_name(name) for name in named} <= PINS.keys()
    assert set(named) <= {canonicalize_name(r.name) for e in ("run", "lab", "test") for r in direct(e)}
    assert [e for e in EXTRAS for r in direct(e) if r.name == "nbval"] == ["test"]  # a reader needs none


def test_environment_yml_takes_a_python_that_the_pins_are_tried_with():
    """conda takes the newest that it may, and for a newer one the pins have no build."""
    python = Requirement(yaml.safe_load((PROJECT / "environment.yml").read_text())["dependencies"][0])
    tried = re.findall(r"Python :: (3\.\d+)$", "\n".join(PYPROJECT["project"]["classifiers"]), re.MULTILINE)
    workflow = yaml.safe_load((PROJECT / ".github" / "workflows" / "tests.yml").read_text())
    for job in workflow["jobs"].values():
        assert job["strategy"]["matrix"]["python"] == tried
    minors = [f"3.{minor}" for minor in range(30)]
    assert [minor for minor in minors if python.specifier.contains(f"{minor}.9")] == tried


def test_make_lab_says_how_long_and_how_large_before_it_installs(tmp_path):
    make = ["make", "-n", "lab", f"VENV={tmp_path}/env"]
    lines = subprocess.run(make, cwd=PROJECT, capture_output=True, text=True, check=True).stdout.splitlines()
    (told,) = [i for i, line in enumerate(lines) if "minutes, and about 1.3 GB of disk" in line]
    (installs,) = [i for i, line in enumerate(lines) if " -m pip install " in line]
    assert told < installs
    assert lines[told].startswith("echo ")


def test_make_refuses_an_old_python_in_one_line(tmp_path):
    old = tmp_path / "old-python"
    replace_version = "sys.version_info = (3, 10, 0)"
    old.write_text(f'#!/bin/sh\nshift\nexec "{sys.executable}" -c "import sys; {replace_version}; $1"\n')
    old.chmod(0o755)
    make = ["make", "-s", f"PYTHON={old}", f"VENV={tmp_path}/env", f"{tmp_path}/env/.created"]
    made = subprocess.run(make, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert made.returncode != 0
    assert f"llamapar needs Python 3.11 or newer and {old} is 3.10; name another" in made.stderr


def test_news_and_update_checks_are_off():
    path = PROJECT / "jupyter" / "labconfig" / "default_setting_overrides.json"
    notification = json.loads(path.read_text())["@jupyterlab/apputils-extension:notification"]
    assert notification == {"checkForUpdates": False, "fetchNews": "false"}


def test_jupyter_knows_the_project_and_not_the_user(tmp_path, monkeypatch):
    home, state = tmp_path / "home", tmp_path / "state"
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("JUPYTER_PATH", str(home / "kernels"))
    monkeypatch.setenv("JUPYTERLAB_DIR", str(home / "lab"))
    monkeypatch.setenv("IPYTHONDIR", str(home / "ipython"))
    environment = runpy.run_path(str(PROJECT / "jupyter" / "start.py"))["environment"](state)
    assert "JUPYTERLAB_DIR" not in environment
    assert environment["IPYTHONDIR"] == str(state / "ipython")
    ask = [sys.executable, "-m", "jupyter", "--paths", "--json"]
    shown = subprocess.run(ask, env=environment, capture_output=True, text=True, check=True)
    paths = json.loads(shown.stdout)
    assert paths["config"][0] == str(PROJECT / "jupyter")
    assert paths["runtime"] == [str(state / "runtime")]
    assert str(home) not in shown.stdout
    assert environment["PATH"].split(os.pathsep)[0] == str(Path(sys.executable).parent)

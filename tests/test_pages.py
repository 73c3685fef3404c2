"""README and the guide in docs/: their examples are run, their numbers and names are held to the code."""

import doctest
import os
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import llamapar as lp
from llamapar.frameworks import JUDGES, VERDICTS

PROJECT = Path(__file__).resolve().parent.parent
README = PROJECT / "README.md"
NAMES = [
    *("course", "programs", "library", "verdicts", "running", "your-code", "explain", "settings"),
    *("memory", "time", "checkpoints", "install"),
]
GUIDE = [README, *(PROJECT / "docs" / f"{name}.md" for name in NAMES)]
"""What a user reads. Pages for contributors stand in docs/ too, and are held to the code elsewhere."""

ROUNDING = re.compile(
    re.findall(r"^regex: (.*)$", (PROJECT / "tests/data/nbval.cfg").read_text(), re.MULTILINE)[1]
)
"""A difference that rounding makes is another one on another kind of processor."""

WITH_PYTHON = ["README", "course", "library", "running", "your-code", "explain", "time"]
"""Pages with examples in Python."""


def blocks(page, kind):
    text = page.read_text(encoding="utf-8")
    return re.findall(rf"^```{kind}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


COMMANDS = [
    pytest.param(command, output, id=f"{page.stem}-{command[:30]}")
    for page in GUIDE
    for block in blocks(page, "console")
    for command, output in re.findall(r"^\$ (llamapar .*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE)
]


def test_readme_is_short():
    """What is longer has one of twelve pages in docs/."""
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 90
    assert len(NAMES) <= 12


def test_readmes_pictures_show_the_panels_as_they_are():
    tool = runpy.run_path(str(PROJECT / "tools" / "screenshot.py"), run_name="screenshot")
    assert tool["TAKEN"].read_text("utf-8").strip() == tool["shown"](), "take it anew: tools/screenshot.py"


def test_readme_leads_to_every_page_of_the_guide():
    rows = re.findall(r"^\| \[.*\]\((docs/[\w-]+\.md)\) \|", README.read_text(encoding="utf-8"), re.MULTILINE)
    assert [PROJECT / row for row in rows] == GUIDE[1:]


@pytest.mark.parametrize(("command", "output"), COMMANDS)
def test_a_command_prints_what_the_page_shows(run, command, output):
    status, out, err = run(command.removeprefix("llamapar "))
    shown = output.removesuffix("…\n")  # a page may show the beginning
    printed = out if shown == output else out[: len(shown)]
    assert (ROUNDING.sub("", printed), err) == (ROUNDING.sub("", shown), "")
    assert status == (
        1 if re.search(r"(^| )error|: undecided; |^Not known[:;] ", output, re.MULTILINE) else 0
    )


def test_every_kind_of_command_has_an_example():
    shown = {str(param.values[0]).split()[1] for param in COMMANDS}
    wanted = ["check", "explain", "lesson", "loading", "memory", "model", "ranks", "run", "schedule"]
    assert sorted(shown) == wanted  # checkpoint: beside its tests


EQUAL = re.compile(r"result, (?:to the bit|within [1-9]e-0[78])$", re.MULTILINE)
"""One processor's matmul gives the same bits for a slice as for the whole, another's gives others."""


class Rounded(doctest.OutputChecker):
    def check_output(self, want, got, optionflags):
        want, got = (ROUNDING.sub("", EQUAL.sub("", text)) for text in (want, got))
        return super().check_output(want, got, optionflags)


@pytest.mark.parametrize("name", WITH_PYTHON)
def test_python_prints_what_the_page_shows(name):
    (page,) = (page for page in GUIDE if page.stem == name)
    parsed = doctest.DocTestParser().get_doctest("\n".join(blocks(page, "pycon")), {}, name, str(page), 0)
    assert parsed.examples
    failures = []
    doctest.DocTestRunner(Rounded(), verbose=False).run(parsed, out=failures.append)
    assert not failures, "".join(failures)


GPU = {
    name: code
    for block in blocks(PROJECT / "docs" / "gpu.md", "sh")
    for name, code in re.findall(r"^cat > (\S+) <<'EOF'\n(.*?)^EOF$", block, re.MULTILINE | re.DOTALL)
}
PRINTS = {
    "ranks.py": "out  ranks 0–1",
    "compared.py": "equal to the whole module",
    "edited.py": "n_heads // tp",
}


@pytest.mark.soak
@pytest.mark.parametrize("name", PRINTS)
def test_what_is_for_a_gpu_runs_on_the_cpu(tmp_path, name):
    script = tmp_path / name
    script.write_text(GPU[name].replace("cuda", "cpu"))
    own = os.environ | {"PYTHONPATH": str(PROJECT)}
    done = subprocess.run([sys.executable, script], env=own, capture_output=True, text=True, timeout=300)
    assert PRINTS[name] in done.stdout, done.stdout + done.stderr


def test_no_python_is_left_out():
    assert [page.stem for page in GUIDE if blocks(page, "pycon")] == WITH_PYTHON


CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
TEXTS = {page.stem: page.read_text(encoding="utf-8") for page in GUIDE}
PRINTED = {
    number
    for text in TEXTS.values()
    for block in CODE.findall(text)
    for number in re.findall(r"[\d.]+", block)
}


@pytest.mark.parametrize("name", TEXTS)
def test_numbers_are_printed(name):
    """A number in the prose stands in some example, and those are run, or on the page of
    measurements, which scripts write; names and code marks are free."""
    python = re.search(r'requires-python = ">=(.*)"', (PROJECT / "pyproject.toml").read_text())
    assert python
    prose = CODE.sub("", TEXTS[name]).replace(f"Python {python[1]}", "")
    names = ("Llama 3.1 405B", "Llama 3.1 70B", "Llama 3", "Compose v2", "Apache-2.0", "ISCA'25")
    for known in (r"`[^`]*`", r"\[[^]]*\]\([^)]*\)", *map(re.escape, names)):
        prose = re.sub(known, "", prose)
    measured = (PROJECT / "docs" / "accuracy.md").read_text(encoding="utf-8")
    known = PRINTED | set(re.findall(r"\d[\d.]*\d|\d", measured))
    assert set(re.findall(r"\d[\d.]*\d|\d", prose)) <= known


@pytest.mark.parametrize("page", GUIDE, ids=lambda page: page.stem)
def test_names_are_there(page):
    text = page.read_text(encoding="utf-8")
    for name in re.findall(r"`lp\.(\w+)", text):
        assert name in lp.__all__, name
    for target in re.findall(r"(?:^\$ |`)make (\w+)", text, re.MULTILINE):
        assert f"\n{target}:" in (PROJECT / "Makefile").read_text()


VERDICTS_PAGE = PROJECT / "docs" / "verdicts.md"


def framework_rows():
    return [f"| `{f.name}` | {f.title} | `{f.repo}` | `{f.commit[:10]}` |" for f in JUDGES.values()]


def test_tables_of_verdicts_and_frameworks():
    lines = VERDICTS_PAGE.read_text(encoding="utf-8").splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")]
    assert [row[0] for row in rows if row[0] in VERDICTS] == list(VERDICTS)
    frameworks = [line for line in lines if line.startswith("| ") and line.count(" | ") == 3]
    assert frameworks[1:] == framework_rows(), "python tests/test_pages.py writes them anew"


# -- writing them anew -----------------------------------------------------------------------------


class Kept(doctest.DocTestRunner):
    """Keeps what an example prints now where that is something else."""

    def __init__(self):
        super().__init__(Rounded(), verbose=False)
        self.now: dict[str, str] = {}

    def report_failure(self, out, test, example, got):
        self.now[example.want] = got


def as_printed(page):
    """A page with what its examples print now, as long as they were shown."""
    text = page.read_text(encoding="utf-8")
    now = {}
    for command, shown in (param.values for param in COMMANDS if f"$ {param.values[0]}\n" in text):
        words = shlex.split(str(command))[1:]
        # The environment is given, because readline, which pdb imports, sets COLUMNS for whoever inherits it.
        own = dict(os.environ)
        line = [sys.executable, "-m", "llamapar", *words]
        printed = subprocess.run(line, env=own, stdout=subprocess.PIPE, text=True).stdout
        if str(shown).endswith("…\n"):
            lines = printed.splitlines(keepends=True)
            printed = "".join(lines[: str(shown).count("\n") - 1]) + "…\n"
        if ROUNDING.sub("", printed) != ROUNDING.sub("", str(shown)):
            now[f"$ {command}\n{shown}"] = f"$ {command}\n{printed}"
    parsed = doctest.DocTestParser().get_doctest(
        "\n".join(blocks(page, "pycon")), {}, page.stem, str(page), 0
    )
    runner = Kept()
    runner.run(parsed, out=lambda _: None)
    for shown, printed in {**now, **runner.now}.items():
        assert text.count(shown) == 1, f"{page}: change this by hand:\n{shown}"
        text = text.replace(shown, printed)
    if page == VERDICTS_PAGE:
        rows = [line for line in text.splitlines() if line.startswith("| `") and line.count(" | ") == 3]
        text = text.replace("\n".join(rows), "\n".join(framework_rows()))
    return text


if __name__ == "__main__":
    os.environ.pop("COLUMNS", None)  # as in conftest.py: the command follows it
    for guide in GUIDE:
        guide.write_text(as_printed(guide), encoding="utf-8")

"""What the library says, whole: tests/texts holds commands and expressions with all that they print.

A line that begins with `## ` says what the entries under it hold, and gives them an empty folder to write to.
`python tests/test_texts.py [NAME …]` writes the pages anew; read the difference before you commit it.
"""

import contextlib
import io
import json
import os
import shlex
import sys
import tempfile
from pathlib import Path
from unittest.mock import patch

import pytest

from llamapar.cli import main as cli
from llamapar.cli import output

LONGEST = ("fixes", "incidents", "plan")
"""Pages that take as long as all others together: a slip is to be noticed before them."""

PAGES = sorted((Path(__file__).parent / "texts").glob("*.txt"), key=lambda page: (page.stem in LONGEST, page))
HEADING = "## "
ASKS = ("$ llamapar ", ">>> ", HEADING)


def entries(page):
    """What is asked on a page, and what is printed then; a heading prints nothing."""
    found = []
    for line in page.read_text("utf-8").splitlines(keepends=True):
        if line.startswith(ASKS):
            found.append((line, ""))
        else:
            found[-1] = (found[-1][0], found[-1][1] + line)
    return found


def answers(page):
    """What is asked on a page, what stands under it, and what is printed now."""
    names = {}
    with contextlib.ExitStack() as folders:
        for asked, printed in entries(page):
            if asked.startswith(HEADING):
                folders.close()
                folders.enter_context(contextlib.chdir(folders.enter_context(tempfile.TemporaryDirectory())))
                yield asked, printed, ""
            else:
                yield asked, printed, answer(asked, names)


def said_by_command(words):
    out, err = io.StringIO(), io.StringIO()
    wide, patient = patch.dict(os.environ, COLUMNS="110"), patch.object(output, "PATIENCE", 3600.0)
    with wide, patient, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = cli.main(words)
    return status, out.getvalue(), err.getvalue()


def said_by_python(code, names):
    try:
        value = eval(compile(code, "<text>", "eval"), names)
    except SyntaxError:
        exec(code, names)
        return ""
    except Exception as error:
        of = f" of {field}" if (field := getattr(error, "field", "")) else ""
        return f"{type(error).__name__}{of}: {error}\n"
    if isinstance(value, set | frozenset):  # in one order, whatever the hashes of this process are
        value = sorted(value, key=repr)
    return "" if value is None else f"{value}\n"


def answer(asked, names):
    if asked.startswith(">>> "):
        return said_by_python(asked.removeprefix(">>> "), names)
    words = shlex.split(asked.removeprefix("$ llamapar "))
    status, out, err = said_by_command(words)
    if status == 2:  # the same is said as JSON
        assert out == ""
        told = json.loads(said_by_command([*words, "--json"])[1])["error"]
        # The terminal's lines are folded, between words and after a dash.
        assert "".join(told["message"].split()) in "".join(err.split()), asked
    return f"{out}{err}" + (f"exit {status}\n" if status else "")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_text_is_as_it_stands(page):
    for asked, printed, now in answers(page):
        told = f"{asked}Is this meant? python tests/test_texts.py {page.stem} writes it"
        assert now.rstrip() == printed.rstrip(), told


def write(*names):
    for page in PAGES:
        if names and page.stem not in names:
            continue
        page.write_text("".join(f"{asked}{now}" for asked, _, now in answers(page)), "utf-8")


if __name__ == "__main__":
    sys.path += [
        str(Path(__file__).parents[1] / folder) for folder in ("oracles", "benchmarks")
    ]  # as pytest does
    write(*sys.argv[1:])

"""Tables as text: folded to a width with nothing lost, and in a real terminal of 40 and 120 columns."""

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import llamapar as lp
from llamapar.records.tables import fold, html_rows, text_table
from weights import save_hf, tiny

PROJECT = Path(lp.__file__).parent.parent

CELLS = st.sampled_from(
    ["", "0", "16,384", "405853388800", "wq.weight", "Shard(0) by query head", "½ of a head"]
) | st.text("ab 1.,_/·", max_size=30)


@st.composite
def tables(draw):
    """The head and the rows."""
    columns = draw(st.integers(1, 8))
    row = st.lists(CELLS, min_size=columns, max_size=columns)
    return draw(st.lists(row, min_size=1, max_size=6))


def letters(texts):
    return Counter("".join("".join(texts).split()))


@given(tables(), st.integers(8, 130))
@example([["", "", "1 ", "0"]], 8)
def test_a_folded_table_keeps_to_its_width_and_loses_nothing(rows, width):
    text = text_table("", rows[0], rows[1:], width=width)
    assert max(map(len, text.split("\n"))) <= width
    missing = letters([text])
    missing.subtract(letters([cell for row in rows for cell in row]))
    first = letters([row[0] for row in rows])
    again = {missing[sign] // count for sign, count in first.items()}
    assert len(again) <= 1  # the first column stands once more before each block that follows
    assert missing - Counter({sign: n * max(again, default=0) for sign, n in first.items()}) == Counter()
    assert min(missing.values(), default=0) >= 0


def test_a_word_that_fits_stays_in_its_line():
    assert fold("ab cd ef", 5) == "ab cd\n  ef"


@given(st.text("ab 1.,_/·\n", max_size=80), st.integers(8, 60))
def test_a_folded_text_keeps_to_its_width_and_loses_nothing(text, width):
    folded = fold(text, width)
    assert max(map(len, folded.split("\n"))) <= width
    assert "".join(folded.split()) == "".join(text.split())
    assert fold(text, None) == text


def test_columns_that_do_not_stand_side_by_side_follow_below():
    head, rows = ["stage", "parameters", "gradients", "activations"], [[0, "5.68", "11.37", "3.50"]]
    assert text_table("title", head, rows, "foot", width=30) == (
        "title\n"
        "stage  parameters  gradients\n"
        "0      5.68        11.37\n"
        "\n"
        "stage  activations\n"
        "0      3.50\n"
        "foot"
    )


COMMANDS = [
    "check --model llama3.1-405b --tp 8 --cp 16 --pp 16 --dp 4 --gpus 16384",
    "ranks --tp 8 --cp 16 --pp 16 --dp 8 --rank 12345",
    "memory --model llama3.1-405b --tp 8 --pp 4 --dp 128 --seq-len 8192 --global-batch 2048",
    "loading --model llama3.1-405b --nodes 4",
    "model tiny --inventory --tp 8",
    "explain 'embed_tokens.weight is [16064, 8192]' --tp 8",
]
WITH_TORCH = [
    "checkpoint inspect old",
    "run attention --model llama3-8b --tp 16 --shrink --force --tape --trace --device cpu",
]


@pytest.mark.parametrize("columns", [40, 120])
def test_every_table_keeps_to_the_terminals_width(columns, tmp_path):
    save_hf(tmp_path / "old", tiny())
    commands = COMMANDS if columns > 40 else COMMANDS + WITH_TORCH
    script = (
        f"import shlex\nfrom llamapar.cli.main import main\nfor line in {commands!r}: main(shlex.split(line))"
    )
    shown = on_a_terminal(columns, script, tmp_path)
    assert len(shown) > 8 * len(commands)
    assert max(map(len, shown)) <= columns
    assert max(map(len, shown)) > 0.9 * columns
    joined = "".join("".join(shown).split())
    for figure in ("14265", "235,530,158,080", "optimizer", "128256", "LP001"):
        assert figure in joined


def test_a_pipe_is_not_folded(tmp_path):
    script = f"import shlex\nfrom llamapar.cli import main as cli\ncli.main(shlex.split({COMMANDS[2]!r}))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment())
    assert max(map(len, done.stdout.splitlines())) > 200


def environment():
    unset = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    return unset | {"PYTHONPATH": str(PROJECT), "PYTHONIOENCODING": "utf-8"}


def on_a_terminal(columns, script, folder):
    """The lines that a Python script writes on a terminal so wide."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdout=theirs, stdin=theirs, env=environment(), cwd=folder):
        os.close(theirs)
        told = b""
        while piece := _read(ours):
            told += piece
    os.close(ours)
    return told.decode().replace("\r\n", "\n").splitlines()


def _read(terminal):
    try:
        return os.read(terminal, 65536)
    except OSError:  # the other side is closed: how a terminal ends
        return b""


def test_a_table_in_html_has_its_head_or_none():
    assert html_rows([["1"]], ["a"]) == "<table><tr><th>a</th></tr><tr><td>1</td></tr></table>"
    assert html_rows([["1"]], []) == "<table><tr><td>1</td></tr></table>"

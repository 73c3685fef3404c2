"""Files of settings are read in time by their size, and no text gives another error than one in words."""

import gc
import random
import re
import time

import pytest

import llamapar as lp
from llamapar.configs import reader
from llamapar.configs.files import Files
from llamapar.configs.meter import STEPS_BESIDE, STEPS_OF_A_CHARACTER
from settings_cases import cases, files_of
from worst_settings import GROWING, SPOILT, STRANGE

CASES = [*cases().values(), *cases("run_configs_gathered.jsonl").values()]

GROWTH, SLACK = 8, 0.15
"""How many times as long a file of four times the size takes at most, where four times is linear and sixteen
times the square; and seconds that a busy machine may add."""


def read(texts):
    """The steps and the seconds of reading files, and what is said if they are refused."""
    # What is pasted gets a name that says how it is read.
    files = Files({name or reader._name_of(text): text for name, text in texts.items()})
    gc.freeze()  # what earlier tests left in memory is nothing that a reader has to do with
    before, said = time.thread_time(), ""
    try:
        reader.settings_of(files, {})
    except lp.LlamaparError as problem:
        said = str(problem)
    finally:
        gc.unfreeze()
    return files.meter.steps, time.thread_time() - before, said


@pytest.mark.parametrize("name", GROWING)
def test_the_worst_files_are_read_in_time_by_their_size(name, counts):
    size = counts(5_000, 10_000, 100_000)
    few, small, _ = read(GROWING[name](size))
    many, large, said = read(GROWING[name](4 * size))
    assert large <= GROWTH * small + SLACK
    if many > 5 * few + 1_000 and "steps to read" not in said:
        # What is copied for each line meets the limit, which is linear, where the file is large.
        assert "steps to read" in read(GROWING[name](40 * size))[2]


def test_real_files_need_few_steps():
    for row in CASES:
        texts = files_of(row).texts
        steps = read(texts)[0]
        size = sum(map(len, texts.values()))
        assert steps <= (STEPS_OF_A_CHARACTER * size + STEPS_BESIDE) / 5, row["id"]


# -- nothing but an error in words -----------------------------------------------------------------


@pytest.mark.parametrize("name", STRANGE)
def test_a_strange_file_is_read_or_refused_in_words(name):
    read(STRANGE[name])


def spoilt(text, draw):
    """A text in which something strange stands at a few places, or that is cut or doubled in pieces."""
    for _ in range(draw.randint(1, 5)):
        at, end = sorted(draw.randrange(len(text) + 1) for _ in range(2))
        piece = draw.choice(SPOILT)
        kind = draw.randrange(4)
        if kind == 0:
            text = text[:at] + piece + text[at:]
        elif kind == 1:
            text = text[:at] + piece + text[at + len(piece) :]
        elif kind == 2:
            text = piece.join(re.split(r"(?<=[=: ])\d+", text, maxsplit=draw.randint(1, 3)))
        else:
            text = text[:end] + text[at : min(end, at + 2000)] + text[end:]
    return text


def test_no_spoilt_file_gives_another_error(counts):
    draw = random.Random(23)
    for _ in range(counts(300, 1_000, 30_000)):
        row = draw.choice(CASES)
        texts = {name: spoilt(text, draw) for name, text in files_of(row).texts.items()}
        # A file of one format with another one's name is a file too.
        if draw.random() < 0.2:
            texts = {
                f"{n}.{draw.choice(('toml', 'yaml', 'json', 'py', 'sh', 'log'))}": t for n, t in texts.items()
            }
        try:
            settings = reader.settings_of(Files(texts), {})
        except lp.LlamaparError:
            continue
        str(settings)
        settings.as_dict()


def test_what_a_page_sends_is_read_or_refused():
    for sent in (None, 3, "a", [["a"]], [3], [None, None], [["a", "b", "c"]], [["", "\ud800"]]):
        with pytest.raises(lp.LlamaparError, match=r"no file|no known format|files as pairs"):
            reader.settings_of_texts(sent)

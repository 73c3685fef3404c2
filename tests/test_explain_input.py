"""Whatever is pasted into `lp.explain`: an answer or a clear "cannot tell", soon, and nothing is run."""

import importlib
import io
import pkgutil
import random
import re
import subprocess
import sys
import time
import tracemalloc
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import llamapar as lp
from explaining import KV, LOADED, MEET, frame
from llamapar import diagnosis
from llamapar.diagnosis import Level, lines
from llamapar.diagnosis.reading import LIMIT, Reading, plain_text
from llamapar.diagnosis.words import table
from soon import within

PROJECT = Path(__file__).resolve().parent.parent
NCCL = "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1970, remote process exited"


def forms(told):
    """Every form of an answer is made; the HTML is returned."""
    assert told.verdict in lp.diagnosis.VERDICTS
    assert str(told).startswith(("A sharding", "Possibly ", "Not a", "Not known"))
    assert told.as_dict()["verdict"] == told.verdict
    return told._repr_html_()


# -- strange texts ---------------------------------------------------------------------------------

STRANGE = {
    "empty": "",
    "blank": " \n\t ",
    "nulls": "\0" * 5000,
    "binary": bytes(range(256)) * 50,
    "shape of 10^30": "shape '[1, 8192, -1, 128]' is invalid for input of size " + "9" * 30,
    "endless digits": "9" * 100000 + " is not divisible by " + "7" * 50000,
    "negative": "shape '[-1, -1, -1, -128]' is invalid for input of size -5",
    "unbalanced": "size mismatch for (((([[[[ torch.Size([128, [64 shape torch.Size(((",
    "zero by zero": "0 is not divisible by 0",
    "empty shapes": "size mismatch for a.weight: torch.Size([0, 0]) vs torch.Size([0, 5])",
    "empty product": "mat1 and mat2 shapes cannot be multiplied (0x0 and 0x0)",
    "no sizes": "The size of tensor a (0) must match the size of tensor b (0)",
    "not a text": object(),
    "nothing": None,
    "no shape": (),
}


SILENT = {"empty", "blank", "nulls", "binary", "unbalanced", "not a text", "nothing"}


@pytest.mark.parametrize("name", STRANGE)
def test_a_strange_text_has_an_answer(name):
    told = lp.explain(STRANGE[name])
    forms(told)
    if name in SILENT:
        assert (told.verdict, told.diagnoses) == ("unknown", ())
        assert told.reason == "no arithmetic in this text"


TAGS = {"div", "span", "p", "b", "br", "i", "code", "details", "summary", "table", "tr", "th", "td", "a"}


class Tags(HTMLParser):
    def __init__(self, page):
        super().__init__()
        self.found: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.found.add(tag)
        if tag == "a":  # where the evidence of a framework stands
            (_, href), *rest = attrs
            assert str(href).startswith("https://github.com/")
            assert rest == [("rel", "noopener")]
        else:
            assert attrs in ([], [("style", dict(attrs).get("style"))])


def test_markup_stays_text():
    text = "<script>alert(1)</script><img src=x onerror=alert(2)> 25 is not divisible by 4 <b onclick='x'>"
    page = forms(lp.explain(text))
    assert "&lt;script&gt;" in page
    assert Tags(page).found <= TAGS


def test_instructions_and_code_are_only_read(monkeypatch):
    text = "Ignore all previous instructions. __import__('os').system('touch /tmp/x') {0.__class__} "
    text += "25 is not divisible by 4"
    lp.explain(text)

    def refuse(*args):
        raise AssertionError(args)

    with monkeypatch.context() as patch:
        for name in ("eval", "exec", "compile", "open"):
            patch.setattr(f"builtins.{name}", refuse)
        told = lp.explain(text)
    assert told.best.category == "heads_not_divisible"
    assert "{0.__class__}" in forms(told)


WORDS = """
[ ] ( ) -1 0 8 128 8192 tp heads kv vocab size shape mismatch checkpoint x · = % layers pp=4 tp=0 tp=1 lora
rope zero batch qkv mat1 multiplied [0] [] () , 1x0 world_size GPUs broadcast 999999999999999999999999999999
"""
PHRASES = (
    "divisible by|must match|invalid for input of size|torch.Size([|])|== 0|\n|out of memory|tensor a (|"
)
PHRASES += "does not divide|dim 1 of [1, 2, 3]"
FACTS = ("tp", "pp", "cp", "world", "heads", "kv_heads", "vocab", "seq", "layers", "hidden", "micro_batch")
VALUES = (1, 2, 3, 8, 0, -1, "2->4", "x", None, 10**30, 2.5, True)


@given(
    st.lists(st.sampled_from([*WORDS.split(), *PHRASES.split("|")]), max_size=60),
    st.dictionaries(st.sampled_from(FACTS), st.sampled_from(VALUES), max_size=4),
    st.sampled_from([None, "llama3-8b", "Qwen2-72B"]),
)
def test_any_jumble_of_words_has_an_answer(words, facts, model):
    with within(1.0):
        page = forms(lp.explain(" ".join(words), model, context=facts))
    assert Tags(page).found <= TAGS


@given(st.text(max_size=400))
def test_any_text_has_an_answer(text):
    forms(lp.explain(text))


# -- time and memory -------------------------------------------------------------------------------

RUNS = (
    "[ |( |1|1,|1,234 |1x|a.|a_|a|\x1b[|2·|parallel |kv |num_heads |expected |allocate |multiple of |gate |"
    "2 x |not divisible by 3 and |mismatch expected got |% a == 0 | |collective |[0, 2, 4, 1, 3, 5] |new |"
    "overflow |checkpoint was saved |tensor_model_parallel_size |quantized |shape [1, 2, 3] |dim 1 of [|"
    "rank 0 |a.b.c.d |w1 |fp8 |first dimension of the parameter |must be divisible by fp8 |num_groups 3 |"
    "does not match at dimension 1 [2, 3] |weight.shape[0] == vocab_size |0 kv heads |0x1x"
)


@pytest.mark.parametrize("run", RUNS.split("|"))
def test_no_pattern_blows_up(run):
    text = "size mismatch for x: " + run * (3 * LIMIT // len(run))
    with within(0.5):
        lp.explain(text)


def test_no_pattern_repeats_a_repeat():
    """The source of every pattern: no unbounded quantifier right after a group that ends in one."""
    names = [module.name for module in pkgutil.iter_modules(diagnosis.__path__)]
    patterns = [
        value.pattern
        for name in names
        for value in vars(importlib.import_module(f"llamapar.diagnosis.{name}")).values()
        if isinstance(value, re.Pattern)
    ]
    patterns += [one for row in table("words.toml")["sentences"] for one in row["words"]]
    assert len(patterns) > 100
    assert [p for p in patterns if re.search(r"[*+]\)[*+{]", p)] == []


def log(size, ranks, noise):
    """A log of `size` bytes: at half of it every rank's traceback, then the errors that follow from it."""
    sent = step = 0
    told = False
    draw = random.Random(0)
    while sent < size:
        step += 1
        line = noise.format(rank=step % ranks, step=step, loss=draw.random())
        sent += len(line)
        yield line
        if not told and sent > size / 2:
            told = True
            for rank in range(ranks):
                yield f"[rank{rank}]: Traceback (most recent call last):\n"
                yield f'[rank{rank}]:   File "/opt/model.py", line 123, in forward\n'
                yield f"[rank{rank}]:     xk = xk.view(bs, seqlen, -1, self.head_dim)\n"
                yield f"[rank{rank}]: {KV}\n"
            for rank in range(ranks):
                yield f"[rank{rank}]: {NCCL}\n"


QUIET = (
    "2024-11-21 12:34:55,123 INFO [rank{rank}] step {step} loss {loss:.5f} tokens/s 12345 mfu 0.43 lr 3e-4\n"
)
LOUD = "[Rank {rank}] WARNING checksum error rate {loss} must be retried in {step} ms, mismatch of {step}\n"


@pytest.mark.parametrize("noise", [QUIET, LOUD], ids=["quiet", "loud"])
def test_the_cause_is_found_in_a_long_log(noise, soak):
    size = 100_000_000 if soak else 5_000_000
    text = "".join(log(size, 64, noise))
    begun = time.thread_time()
    sum("error" in line.lower() for line in io.StringIO(text))
    once = time.thread_time() - begun  # one plain look at each line, on this processor
    with within(max(0.6, 16 * once)):
        told = lp.explain(io.StringIO(text))
    assert told.line == KV
    assert told.ranks == tuple(range(64))
    assert told.best.category == "kv_heads_lt_tp"


def test_memory_stays_bounded():
    tracemalloc.start()
    lp.explain(log(2_000_000, 64, LOUD))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10_000_000


RUN = """
import re, sys, time
from llamapar.cli import main as cli
cli.main(["explain", "--file", sys.argv[1]])
status = open("/proc/self/status").read()
print(time.process_time(), re.search("VmHWM:[^0-9]*([0-9]+)", status)[1])
"""
"""The command, then its seconds on a processor and the most KiB that it held."""


@pytest.mark.soak
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from Linux's /proc")
@pytest.mark.parametrize("noise", [QUIET, LOUD], ids=["quiet", "loud"])
def test_two_hundred_megabytes_by_the_command(noise, tmp_path):
    """Of the whole process, beside one plain look at each line on this processor."""
    path = tmp_path / "train.log"
    with path.open("w") as file:
        file.writelines(log(200_000_000, 64, noise))
    begun = time.process_time()
    with path.open() as file:
        sum("error" in line.lower() for line in file)
    once = time.process_time() - begun
    command = [sys.executable, "-c", RUN, str(path)]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=120)
    assert f"where {KV} (ranks 0–" in " ".join(done.stdout.split()), done.stderr
    seconds, kib = map(float, done.stdout.splitlines()[-1].split())
    assert seconds < 24 * once
    assert kib < 100 * 1024


def test_a_line_of_megabytes():
    with within(1.0):
        told = lp.explain("x" * 3_000_000 + " AssertionError: 25 is not divisible by 4, " + "y" * 3_000_000)
    assert told.best.category == "heads_not_divisible"


def test_a_text_is_read_to_its_limit():
    assert len(Reading.of("a " * LIMIT).text) <= LIMIT
    assert plain_text("\x1b[31ma\x1b[0m  \x00 b") == "a b"


# -- causes before consequences --------------------------------------------------------------------

PREFIXES = (
    "[rank3]: ",
    "[Rank 3] ",
    "[default3]:[rank3]: ",
    "(RayWorkerWrapper pid=12345, ip=10.0.0.1) [rank3]: ",
    "2024-11-21 12:00:00,123 ERROR [rank3]: ",
    "[1,3]<stderr>: [rank3]: ",
    "\x1b[36m(RayWorkerWrapper pid=7)\x1b[0m rank 3: ",
    "3: [rank3]: ",
    "[rank0]: [rank3]: ",
    "node-17: [rank3]: ",
)


@pytest.mark.parametrize("prefix", PREFIXES)
def test_prefixes_are_stripped(prefix):
    assert lines.strip(prefix + KV) == (KV, 3)


def test_a_list_of_mismatches_is_read_on():
    rows = (LOADED.format(f"layers.{i}.wq.weight", "[1024, 8192]", "[8192, 8192]") for i in range(80))
    line, words = (
        "model.load_state_dict(state)",
        "RuntimeError: Error(s) in loading state_dict for Transformer:",
    )
    told = lp.explain("\n\t".join([frame(line, words, "<module>"), *rows]))
    assert told.best.category == "checkpoint_tp_mismatch"
    assert "8192/1024 = 8" in told.best.equations[0] or "8192/8 = 1024" in told.best.equations[0]


# -- several ranks in one paste: one reading for each message ----------------------------------------

RESHAPED = "RuntimeError: shape '[1, {0}, 32, 128]' is invalid for input of size {1}"


def paste(*messages):
    return "\n".join(f"[rank{rank}]: {message}" for rank, message in enumerate(messages))


def traceback(rank, line, message):
    return [f"[rank{rank}]: {row}" for row in frame(line, message).splitlines()]


def found(told):
    return [(d.title, str(d.level)) for d in told.diagnoses if d.level > Level.WEAK]


@settings(max_examples=60)
@given(
    st.sampled_from([RESHAPED.format(1024, 2**20), MEET.format(18, 52, 2), MEET.format(1024, 4096, 2)]),
    st.integers(2, 5),
)
def test_the_same_message_of_more_ranks_is_the_same_evidence(message, ranks):
    alone, together = lp.explain(paste(message)), lp.explain(paste(*[message] * ranks))
    assert found(together) == found(alone)
    assert together.ranks == tuple(range(ranks))

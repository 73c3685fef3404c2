"""`llamapar explain`: texts, files and pipes, what is known besides, statuses, refusals."""

import contextlib
import io
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

import llamapar as lp
from llamapar.cli import explain_command as asking
from llamapar.cli import main as cli
from llamapar.diagnosis import VERDICTS
from llamapar.errors import encoding
from test_cli import shell

PROJECT = Path(__file__).resolve().parent.parent
TITAN = "ValueError: tensor_parallel_degree (16) must divide n_kv_heads (8)."
LOST = "the sky is blue"
OTHER = "Loading a checkpoint for MP=0 but world size is 1"


@pytest.fixture
def run(run):
    """`run("text", "--tp", "8")`: exit status, stdout, stderr of `llamapar explain`."""
    return lambda *words: run(["explain", *words])


@pytest.fixture
def piped(run, monkeypatch):
    """`piped(b"log", …)`: the same with `-`, and these bytes on stdin."""

    def call(log, *words):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(log)))
        status, out, err = run("-", *words)
        return status, out, err

    return call


@pytest.fixture(scope="module")
def big(tmp_path_factory):
    """4 MB of a log of many ranks, whose cause stands in the middle."""
    path = tmp_path_factory.mktemp("big") / "train.log"
    half = "".join(f"[rank{i % 64}]: 2025-01-01 00:00:00 step {i} loss 2.{i:06d}\n" for i in range(40_000))
    path.write_text(f"{half}[rank3]: {TITAN}\n{half}")
    return path


# -- answers -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "verdict"), [(TITAN, "sharding"), (OTHER, "not_sharding"), (LOST, "unknown"), ("", "unknown")]
)
def test_verdict_and_status(run, piped, tmp_path, text, verdict):
    status = 1 if verdict == "unknown" else 0
    told = lp.explain(text)
    assert told.verdict == verdict
    assert run("--", text) == (status, f"{told}\n", "")
    as_json = f"{json.dumps({'schema': 2, **told.as_dict()})}\n"
    assert run("--json", "--", text) == (status, as_json, "")
    (tmp_path / "log").write_text(text)
    assert run("--file", str(tmp_path / "log"), "--json") == (status, as_json, "")
    assert piped(text.encode(), "--json") == (status, as_json, text)


def test_bad_bytes_of_an_argument_are_replaced(run):
    status, out, err = run(f"{TITAN} \udcff\udcfe", "--json")
    assert (status, err) == (0, "")
    told = lp.explain(f"{TITAN} ��")
    assert json.loads(out) == {"schema": 2, **told.as_dict()}


# -- what is known besides -----------------------------------------------------------------------


def test_every_option_reaches_the_library(run, monkeypatch):
    seen = {}

    def stop(what, **known):
        seen.update(known, what=what)
        raise lp.LlamaparError("stop")

    monkeypatch.setattr(asking, "explain", stop)
    line = "x --model tiny --tp 2 --cp 3 --pp 4 --dp 5 --gpus 120 --seq-len 64 --micro-batch 6 "
    line += "--global-batch 60 --quant-group 32 --virtual-stages 7 --framework mcore"
    run(*line.split())
    assert seen == {
        "what": b"x",
        "model": lp.model("tiny"),
        "framework": "megatron-lm",
        **dict(zip(("tp", "cp", "pp", "dp"), (2, 3, 4, 5), strict=True)),
        **dict(gpus=120, seq_len=64, micro_batch=6, global_batch=60, quant_group=32, virtual_stages=7),
    }


def test_a_public_models_name_is_taken_and_said_so(run):
    status, out, err = run(TITAN, "--model", "Llama-3-70B-Instruct-Gradient", "--json")
    told = lp.explain(TITAN, "Llama-3-70B-Instruct-Gradient")
    assert json.loads(out) == {"schema": 2, **told.as_dict()}
    assert status == 0
    assert err.startswith(
        "llamapar: model='Llama-3-70B-Instruct-Gradient' is neither a preset nor a file: "
        "read as a public model's name; presets like it are llama3-"
    )
    assert run(TITAN, "--model", "llama3-70b")[2] == ""


# -- pipes ---------------------------------------------------------------------------------------

RAW = b"\x1b[31mstart\x1b[0m \xff\xfe\r 10%\r 20%\r\n" + TITAN.encode() + b"\r\nend without an end"


def test_what_comes_goes_on_byte_for_byte(big, tmp_path):
    log = tmp_path / "log"
    log.write_bytes(big.read_bytes() + RAW)
    done = shell(f"cat {log} | llamapar explain -")
    assert (done.returncode, done.stderr) == (0, b"")
    echoed, end, told = done.stdout.partition(b"end without an end")
    assert echoed + end == log.read_bytes()
    assert told.startswith(b"\nA sharding problem: ")

    done = shell(f"cat {log} | llamapar explain - --json")
    assert (done.returncode, done.stderr) == (0, log.read_bytes())
    assert json.loads(done.stdout)["verdict"] == "sharding"


def test_it_comes_before_the_end():
    command = [sys.executable, "-m", "llamapar", "explain", "-"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(PROJECT)}, **pipes) as job:
        job.stdin.write(b"step 1")  # not even a whole line
        job.stdin.flush()
        assert os.read(job.stdout.fileno(), 100) == b"step 1"
        job.stdin.write(b"\n" + TITAN.encode() + b"\n")
        job.stdin.close()
        assert job.stdout.read().startswith(b"\n" + TITAN.encode() + b"\n\nA sharding problem: ")
        assert job.wait(30) == 0


def test_a_reader_that_leaves_or_a_full_disk_does_not_end_the_job(tmp_path):
    mark = tmp_path / "finished"
    job = f"(for i in $(seq 200); do echo {'x' * 4000}; done; echo '{TITAN}'; touch {mark})"
    left = f"{job} | llamapar explain - | head -n 1; echo ${{PIPESTATUS[*]}}"
    full = f"mv {mark} {mark}.again; {job} | llamapar explain - --json 2> /dev/full"
    done = shell(f"{left}; {full}")
    assert done.stderr == b""
    *_, statuses, told = done.stdout.splitlines()
    assert statuses == b"0 0 0"
    assert (done.returncode, json.loads(told)["verdict"]) == (0, "sharding")
    assert mark.exists()
    assert mark.with_name("finished.again").exists()


class Interrupted(io.BytesIO):
    """Bytes, before each of which comes an interrupt at the keyboard, `times` in all."""

    def __init__(self, log, times):
        super().__init__(log)
        self.times = times

    def read1(self, size=-1, /):
        if self.times:
            self.times -= 1
            raise KeyboardInterrupt
        return super().read1(size)


@pytest.mark.parametrize(("times", "status"), [(1, 0), (2, 130)])
def test_last_words_are_read_after_an_interrupt(run, monkeypatch, times, status):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(Interrupted(TITAN.encode(), times)))
    assert run("-")[0] == status


def test_a_notebooks_streams_have_no_bytes(monkeypatch):
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdin", io.StringIO(TITAN))
    monkeypatch.setattr(sys, "stdout", out)
    assert cli.main(["explain", "-"]) == 0
    assert out.getvalue() == f"{TITAN}\n{lp.explain(TITAN)}\n"


# -- big and hostile files -----------------------------------------------------------------------


def test_a_file_without_lines(run, tmp_path):
    path = tmp_path / "bytes"
    path.write_bytes(bytes(range(256)).replace(b"\n", b"").replace(b"\r", b"") * 4_000)
    status, _, err = run("--file", str(path))
    assert (status, err) == (1, "")
    with path.open("rb") as file:
        longest = max(len(line) for line in asking.decoded_lines(iter(lambda: file.read(asking._PIECE), b"")))
    assert longest <= asking._LONGEST + asking._PIECE + 1


@given(st.lists(st.binary(max_size=20), max_size=8))
@example([b"\xff", b"\xfea", b"\0"])
@example([b"\xef", b"\xbb", b"\xbfa"])
def test_lines_are_those_of_the_whole_however_it_is_cut(pieces):
    data = b"".join(pieces)
    assume(data not in (b"\xef", b"\xef\xbb"))  # Python's decoder says nothing of a byte order mark cut off
    whole = data.decode(encoding(data), "replace").replace("\r\n", "\n").replace("\r", "\n")
    # an empty piece would be the end of a file, and none comes before it
    assert "".join(asking.decoded_lines(piece for piece in pieces if piece)) == whole


# "-" reads a pipe; what names a file or a folder, as "/", is opened.
@given(st.text(max_size=40).filter(lambda text: text != "-" and not os.path.exists(text)))
def test_any_text_is_answered(text):
    words = ["explain", "--json", "--tp", "8", "--", text]
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()):
        status = cli.main(words)
    assert status in (0, 1)
    assert json.loads(out.getvalue())["verdict"] in VERDICTS


# -- refusals ------------------------------------------------------------------------------------


def test_a_long_name_of_a_file_is_refused_in_short(run):
    status, out, err = run("--file", "x" * 5000)
    assert (status, out, len(err) < 1000) == (2, "", True)
    assert err.startswith("llamapar: 'xxx")
    assert err.splitlines()[-1] == "  try  llamapar explain --help"


def test_a_file_of_nearly_that_name(run, tmp_path):
    (tmp_path / "train.log").write_text(TITAN)
    status, _, err = run("--file", str(tmp_path / "trian.log"))
    assert (status, err.splitlines()[-1]) == (2, f"  try  --file {tmp_path / 'train.log'}")


def test_a_closed_stdin(run, monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    status, out, err = run("-")
    assert (status, out) == (2, "")
    assert err.startswith("llamapar: there is nothing to read: stdin is closed\n")


# -- its place in the command -----------------------------------------------------------------------


def test_the_first_example(run):
    status, out, _ = run(*shlex.split(asking.COMMAND.example.splitlines()[0])[2:])
    assert status == 0
    assert "16064·8 = 128512" in out


def test_the_name_of_a_log_is_not_the_text(run, tmp_path, monkeypatch):
    """`llamapar explain log.txt` reads the file and says so; stdout stays what --file gives."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "log.txt").write_text(f"step 1\n{TITAN}\n", "utf-8")
    status, out, err = run("log.txt", "--json")
    assert (status, out) == run("--file", "log.txt", "--json")[:2]
    assert json.loads(out)["verdict"] == "sharding"
    assert err == "llamapar: 'log.txt' is a file: it is read, as by --file\n"
    os.mkfifo("pipe")
    status, out, err = run("pipe")
    assert (status, out.splitlines()[0][:11]) == (1, "Not known: ")
    assert err == "llamapar: 'pipe' is no regular file: taken as the text itself\n"
    assert run("no such log.txt")[2] == ""


def test_a_named_pipe_is_read_to_its_end():
    done = shell(f"llamapar explain --file <(sleep 0.5; echo '{TITAN}')")
    assert b"A sharding problem: " in done.stdout


@pytest.mark.parametrize("form", ["utf-8-sig", "utf-16"])
def test_a_log_that_begins_with_a_byte_order_mark(run, tmp_path, form):
    """As Windows writes it."""
    log = f"step 1\r\n{TITAN}\r\n"
    (tmp_path / "log").write_bytes(log.encode(form))
    assert run("--file", str(tmp_path / "log"))[1] == run(log)[1]


@pytest.mark.parametrize("control", ["\u202e", "\u2066", "\u200f", "\x1b[31m"])
def test_what_turns_a_text_around_is_not_passed_on(control):
    found = lp.explain(f"{TITAN} {control}txt.exe", "llama3-8b")
    assert control not in f"{found}{found._repr_html_()}{found.as_dict()}"
    with pytest.raises(lp.LlamaparError, match="is no file") as caught:
        lp.read_settings(f"no{control}such.toml")
    assert control not in str(caught.value)

"""The command line but for `run`: its answers, its refusals, and its behaviour among other programs."""

import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
from functools import wraps
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import llamapar as lp
from llamapar.cli import main as cli
from llamapar.cli.commands import CommandGroup
from llamapar.cli.plain_commands import PLAIN
from llamapar.describe.options import OPTIONS
from llamapar.frameworks import JUDGES
from llamapar.place.orders import ORDERS, Action

PROJECT = Path(__file__).resolve().parent.parent
MODEL = {"dim": 64, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "ffn_dim": 128, "vocab_size": 256}
INCIDENT_5 = "check --model llama3.1-405b --tp 8 --cp 16 --pp 16 --dp 4 --gpus 16384 --seq-len 131072"


def shell(command, environment=None):
    """`command` in a real shell, where `llamapar` is this one."""
    program = f"{shlex.quote(sys.executable)} -m llamapar "
    return subprocess.run(
        ["bash", "-c", command.replace("llamapar ", program)],
        env={**os.environ, "PYTHONPATH": str(PROJECT), **(environment or {})},
        capture_output=True,
        timeout=60,
    )


def test_a_choice_is_a_flag_only_where_the_command_has_it(run, tmp_path):
    path = tmp_path / "model.json"
    path.write_text(json.dumps({**MODEL, "n_layers": 0}))
    refused = "llamapar: n_layers=0: n_layers must be a whole number from 1 to 16384\n  try  n_layers=1\n"
    status, out, err = run(["check", "--model", str(path), "--json"])
    assert (status, err, json.loads(out)["error"]["choose"]) == (2, refused, ["n_layers=1"])
    assert run("check --model llama3-8b --tp 0")[2].splitlines()[-1] == "  try  --tp 1"


# -- model ---------------------------------------------------------------------------------------


def test_model_from_a_file(run, tmp_path):
    config = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config |= {"intermediate_size": 96, "vocab_size": 100}
    (tmp_path / "config.json").write_text(json.dumps(config))
    expected = lp.model(tmp_path).n_params
    for source in (str(tmp_path), str(tmp_path / "config.json"), json.dumps(config)):
        assert json.loads(run(["model", source, "--json"])[1])["parameters"] == expected


# -- check ---------------------------------------------------------------------------------------


def test_incident_5(run):
    layout = lp.Layout(tp=8, cp=16, pp=16, dp=4)
    report = lp.check("llama3.1-405b", layout, gpus=16384, seq_len=131072)
    assert run(INCIDENT_5) == (1, f"{report}\n", "")
    status, out, err = run(f"{INCIDENT_5} --json")
    told = json.loads(out)
    assert (status, err, list(told)) == (1, "", ["schema", "ok", "findings"])
    assert told == {"schema": 2, **report.as_dict()}
    first = told["findings"][0]
    assert list(first) == ["code", "severity", "message", "why", "fixes", "frameworks"]
    best = first["fixes"][0]
    assert {"tp": 8, "cp": 16, "pp": 16, "dp": 8, "text": best["text"], "effect": best["effect"]} == best
    assert list(first["frameworks"]) == list(JUDGES)
    of_parts = first["frameworks"].pop("megatron-lm")  # its arguments and its core each say something
    assert list(of_parts) == ["verdict", "message", "source", "part", "others"]
    assert {tuple(verdict) for verdict in first["frameworks"].values()} == {("verdict", "message", "source")}
    status, out, _ = run(INCIDENT_5.replace("--dp 4", "--dp 8") + " --json")
    assert (status, json.loads(out)["ok"]) == (0, True)


def test_every_option_reaches_the_job(run, monkeypatch):
    check, seen = lp.check, list[lp.Report]()

    @wraps(check)
    def watched(*arguments, **options):
        seen.append(check(*arguments, **options))
        return seen[-1]

    monkeypatch.setattr("llamapar.rules.report.check", watched)
    run(
        "check --model tiny --tp 2 --cp 2 --pp 2 --dp 4 --dp-replicate 2 --virtual-stages 2 --zero 3 "
        "--order megatron-lm --no-sequence-parallel --kv-replication --gpus 32 --gpus-per-node 4 "
        "--seq-len 512 --batch-tokens 8192 --batch-per-dp 4 --micro-batch 1 --global-batch 16 "
        "--micro-batches 4 --padding 128*tp --quant-group 32 --layer-split remainder-first --framework mcore "
        "--gpu a100-40gb --recompute full --schedule gpipe --precision float8"
    )
    layout = lp.Layout(2, 2, 2, 4, 2, False, 2, 3, "tp-cp-dp-pp")
    known = {"gpus": 32, "gpus_per_node": 4, "seq_len": 512, "batch_tokens": 8192, "batch_per_dp": 4}
    known |= {"micro_batch": 1, "global_batch": 16, "micro_batches": 4, "quant_group": 32}
    known |= {"gpu": "a100-40gb", "recompute": "full", "schedule": "gpipe", "precision": "float8"}
    padding = lp.Padding(128, per_tp=True)
    split = "remainder first"
    job = lp.Job.of("tiny", layout, **known, kv_replication=True, padding=padding, layer_split=split)
    assert seen[0].job == job
    assert seen[0].judge is lp.FRAMEWORKS["megatron-lm"]


# -- memory, loading, schedule ---------------------------------------------------------------------

JOB = "memory --model llama3.1-405b --tp 8 --pp 16 --dp 128 --seq-len 8192 --global-batch 2048"
JOB_LAYOUT = lp.Layout(tp=8, pp=16, dp=128)


@pytest.mark.parametrize(("gpu", "status"), [("h100-80gb", 1), ("h200-141gb", 0)])
def test_memory_is_the_record_and_the_gpu_decides(run, gpu, status):
    line = f"{JOB} --gpu {gpu} --framework torchtitan --recompute selective"
    known = {"gpu": gpu, "framework": "torchtitan", "recompute": "selective"}
    found = lp.memory("llama3.1-405b", JOB_LAYOUT, seq_len=8192, global_batch=2048, **known)
    assert run(line) == (status, f"{found}\n", "")
    found_status, out, err = run(f"{line} --json")
    assert (found_status, json.loads(out), err) == (status, {"schema": 2, **found.as_dict()}, "")
    assert run(f"{line} --zero 1 --schedule 1f1b --json")[1] == out  # the defaults


def test_memory_takes_what_check_takes_and_counts_by_the_framework(run):
    line = "memory --model llama3.1-8b --tp 8 --pp 2 --dp 2 --seq-len 4096 --zero 2 --json"
    facts = "--gpus 32 --gpus-per-node 4 --batch-tokens 1M --quant-group 32 --order megatron-lm"
    assert run(f"{line} {facts}")[1] == run(line)[1]
    split = str(lp.FRAMEWORKS["colossalai"].layer_split).replace(" ", "-")
    padded, told, plain = (
        [stage["terms"]["parameters"] for stage in json.loads(run(f"{line} {facts}")[1])["stages"]]
        for facts in ("--framework colossalai", f"--padding colossalai --layer-split {split}", "")
    )
    assert padded == told != plain
    by_count, by_batch = (
        f"{line} --micro-batch 1 {word}" for word in ("--micro-batches 8", "--global-batch 16")
    )
    assert run(by_count)[1] == run(by_batch)[1]
    own = f"{line} --framework megatron-lm"  # which pads; that can be refused
    assert len({run(f"{own} {words}")[1] for words in ("", "--padding none", "--padding 1024*tp")}) == 3


@pytest.mark.parametrize(("memory_gib", "status"), [(64, 1), (128, 0)])
def test_loading(run, memory_gib, status):
    line = f"loading --model llama3.1-405b --nodes 2 --memory-gib {memory_gib}"
    found = lp.loading("llama3.1-405b", nodes=2, memory_gib=memory_gib)
    found_status, text, err = run(line)
    assert (found_status, err) == (status, "")
    assert text.startswith(f"{found}\n")
    assert "\ntok_embeddings.weight: 128256 × 16384 × 4 = 8,405,385,216; int32 holds" in text
    assert json.loads(run(f"{line} --json")[1]) == {"schema": 2, **found.as_dict()}
    plain = run("loading --model llama3-8b --json")
    assert json.loads(plain[1]) == {"schema": 2, **lp.loading("llama3-8b").as_dict()}
    named = "--format q40 --nodes 1 --memory-gib 64 --seq-len 4096"
    assert run(f"loading --model llama3-8b {named} --json") == plain


def test_the_least_memory_that_is_offered_is_taken(run):
    offered = run("loading --model tiny --memory-gib 0")[2].splitlines()[-1].removeprefix("  try  ")
    assert offered == "--memory-gib 0.0009765625"
    assert run(f"loading --model tiny {offered}")[0] == 1


@pytest.mark.parametrize("name", ORDERS)
def test_every_schedule_is_that_of_python(run, name):
    made = lp.schedule(name, pp=4, micro_batches=8)
    command = f"schedule {name} --pp 4 --micro-batches 8"
    status, out, _ = run(f"{command} --json")
    told = json.loads(out)
    assert (status, told) == (0, {"schema": 2, **made.timeline().as_dict()})
    assert list(told) == ["schema", "bubble", "in_flight", "ranks"]
    assert tuple(tuple(Action(*entry) for entry in row) for row in told["ranks"]) == made.ranks
    assert run(command) == (0, f"{made.timeline()}\n", "")


ROWS = [each for name, each in PLAIN.items() if name != "explorer"]  # which becomes a server
EXAMPLES = [line.strip() for each in ROWS for line in each.example.splitlines()]


@pytest.mark.parametrize("line", [line for line in EXAMPLES if ".toml" not in line])
def test_an_example_of_a_help_works(run, tmp_path, monkeypatch, line):
    monkeypatch.chdir(tmp_path)  # where an example may write its files
    status, out, err = run(line.removeprefix("llamapar "))
    assert status in (0, 1), err
    assert out


# -- refusals: those of tests/texts/commands.txt, and -----------------------------------------------


def test_a_number_of_5000_digits_is_refused(refused):
    refused(f"check --model tiny --tp {'9' * 5000}", "tp=inf: tp must be a whole number", "--tp 1048576")


HOSTILE = {
    "broken": "{",
    "deep": "[" * 100_000,
    "digits": '{"hidden_size": ' + "9" * 10_000 + "}",
    "other": '{"model_type": "mamba", "hidden_size": 64}',
    "binary": "\x00\x01",
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_file(run, tmp_path, kind):
    path = tmp_path / "config.json"
    path.write_text(HOSTILE[kind])
    status, out, err = run(["check", "--model", str(path), "--json"])
    assert status == 2
    assert err.startswith("llamapar: ")
    assert json.loads(out)["error"]["message"]


@pytest.mark.parametrize("path", ["/", "/dev/null", "no/such/file.json", "a\x00b", "x" * 5000])
def test_unreadable_path(run, path):
    status, out, err = run(["model", path])
    assert (status, out) == (2, "")
    assert err.startswith("llamapar: ")
    assert len(err.splitlines()[0]) < 300


def test_a_name_cannot_write_to_the_terminal(run):
    config = {**dict.fromkeys(("dim", "n_heads", "n_kv_heads", "ffn_dim", "vocab_size", "n_layers"), 4)}
    _, out, _ = run(["check", "--model", json.dumps({**config, "name": "\x1b[31mred\x07"})])
    assert out.startswith("\\x1b[31mred\\x07  tp=1")


_PIECES = st.text(max_size=12) | st.sampled_from(["--", "--tp=--", "--model=--", "--json", "-", "=", "16k"])


@given(st.lists(_PIECES, max_size=6), st.sampled_from(["check", "model", "ranks", "checkpoint inspect"]))
def test_any_words_are_answered(given_words, command):
    with open(os.devnull, "w") as sink, contextlib.redirect_stdout(sink), contextlib.redirect_stderr(sink):
        assert cli.main([*command.split(), *given_words]) in (0, 1, 2)


_WORDS = ["0", "1", "2", "3", "8", "16", "100", "1048576", "-1", "1.5", "nan", "x", "none", "64*tp", "vllm"]


@given(st.lists(st.tuples(st.sampled_from(list(OPTIONS)), st.sampled_from(_WORDS)), max_size=6))
def test_any_options_are_answered(pairs):
    options = [word for name, value in pairs for word in (f"--{name.replace('_', '-')}", value)]
    with open(os.devnull, "w") as sink, contextlib.redirect_stdout(sink), contextlib.redirect_stderr(sink):
        assert cli.main(["check", "--model", "llama3-8b", *options]) in (0, 1, 2)


# -- among other programs ------------------------------------------------------------------------


LEAVES = {
    name: each
    for command, made in cli.Commands().items()
    for name, each in (
        [(f"{command} {action}", leaf) for action, leaf in made.commands.items()]
        if isinstance(made, CommandGroup)
        else [(command, made)]
    )
}


@pytest.mark.parametrize("command", ["", "checkpoint", *LEAVES])
def test_help(run, monkeypatch, command):
    status, out, err = run(f"{command} --help")
    assert (status, err) == (0, "")
    assert "example:\n  llamapar " in out
    exits = LEAVES[command].exits if command in LEAVES else "0 and 1 as the help of each "
    in_one_line = " ".join(out.split())
    assert f"exit status: {exits}" in in_one_line
    assert ", 2 bad usage or bad input " in in_one_line
    assert not {"diagnose", "clinic"} & set(re.findall(r"[a-z]+", out.lower()))
    assert out.isascii()
    if command:
        assert re.search(rf"\n    {command.split()[0]}\b", run("--help")[1])
    for columns in (80, 120):
        monkeypatch.setenv("COLUMNS", str(columns))
        lines = run(f"{command} --help")[1].splitlines()
        assert [line for line in lines if len(line) > columns and line[:3] not in ("  l", "  t")] == []


@pytest.mark.parametrize("line", ["check llama3-8b --tp 16", "model llama3-8bx"])
def test_an_answer_and_a_refusal_keep_to_columns(run, monkeypatch, line):
    wide = "".join(run(line)[1:])
    monkeypatch.setenv("COLUMNS", "60")
    narrow = "".join(run(line)[1:])
    assert max(map(len, wide.splitlines())) > 80
    assert max(map(len, narrow.splitlines())) <= 60
    assert narrow.split() == wide.split()


@pytest.mark.parametrize(
    "line", ["check MODEL --tp 2", "memory MODEL --seq-len 8", "cost MODEL --seq-len 8", "loading MODEL"]
)
def test_the_model_is_a_word_or_an_option(run, line):
    word, option = (run(line.replace("MODEL", model)) for model in ("tiny", "--model tiny"))
    assert word == option
    assert word[1] != ""
    both = run([*line.replace("MODEL", "tiny").split(), "--model", ""])[2]
    assert "'tiny' and --model '' both name a model" in both


def test_cost_takes_the_gpus_that_there_are(run):
    assert run("cost tiny --tp 2 --gpus 2 --seq-len 8") == run("cost tiny --tp 2 --seq-len 8")


def test_version(run):
    assert run("--version") == (0, f"llamapar {lp.__version__}\n", "")


def test_a_reader_that_leaves():
    for command in (f"llamapar {INCIDENT_5}", "llamapar model llama3.1-405b --inventory", "llamapar --help"):
        done = shell(f"{command} | head -n 1; echo ${{PIPESTATUS[0]}}")
        assert done.stderr == b""
        assert done.stdout.splitlines()[-1] == (b"1" if "check" in command else b"0")


def test_a_full_disk():
    done = shell("llamapar ranks > /dev/full")
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr == b"llamapar: cannot write: No space left on device\n"


@pytest.mark.parametrize("command", ["", "checkpoint", "check"])
def test_a_help_that_cannot_be_written_says_so(monkeypatch, capsys, command):
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert cli.main([*command.split(), "--help"]) == 2
    assert capsys.readouterr().err == "llamapar: cannot write: No space left on device\n"


def test_a_terminal_that_knows_ascii_only():
    plain = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    for environment in (plain, {"PYTHONIOENCODING": "ascii"}):
        done = shell(f"llamapar {INCIDENT_5}", environment)
        assert done.stderr == b""
        assert b"tp*cp*pp*dp = 8*16*16*4 = 8192, but there are 16384 GPUs" in done.stdout
    assert json.loads(shell(f"llamapar {INCIDENT_5} --json", plain).stdout)["ok"] is False


def test_the_command_is_light():
    heavy = "torch numpy plotly ipywidgets anywidget traitlets IPython llamapar.figures llamapar.panels"
    script = f"{INCIDENT_5.split()}); print(set('{heavy}'.split()) & set(sys.modules))"
    done = shell(
        f'{shlex.quote(sys.executable)} -c "import sys, llamapar.cli.main; llamapar.cli.main.main({script}"'
    )
    assert done.stdout.splitlines()[-1] == b"set()", done.stderr

"""Files of settings: read right, never sure and wrong, bounded in time, and never run."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import llamapar as lp
from llamapar.configs import documents, flags, launch, launch_lines, mapped
from llamapar.configs.draft import as_list, positive_number, whole_count
from llamapar.configs.files import Files
from llamapar.configs.formats import ROWS
from llamapar.configs.reader import settings_of
from llamapar.errors import is_slip
from settings_cases import Score, cases, files_of, read, score
from soon import within

CASES = cases()
GATHERED = cases("run_configs_gathered.jsonl")


def fields(settings: lp.Settings, wanted: str) -> str:
    """What is read of the fields that `wanted` names, in its form: `tp=8 zero=open preset=llama3.1-8b`."""
    found = dict.fromkeys(settings.unknown, "open") | settings.model | settings.layout | settings.job
    found["format"] = settings.format
    names = [word.partition("=")[0] for word in wanted.split()]
    return " ".join(f"{name}={found.get(name)}" for name in names)


# -- real files ------------------------------------------------------------------------------------


scored = cache(lambda name: score((CASES | GATHERED)[name]))


@pytest.mark.parametrize("name", [*CASES, *GATHERED])
def test_no_field_of_a_real_file_is_sure_and_wrong(name: str) -> None:
    assert scored(name).sure == []


FILLED = {
    "tt-05-8b-default-ngpu gpus_per_node",  # torchrun --nproc_per_node=8 on one machine
    "ax-02-tp-cp dims",  # the published dimensions of Qwen3 8B
}


@pytest.mark.parametrize(
    ("rows", "least", "filled"), [(CASES, 0.89, FILLED), (GATHERED, 0.9, {"a-mg-hygon-llama3-70b gpus"})]
)
def test_most_fields_of_real_files_are_read(rows: Any, least: float, filled: set[str]) -> None:
    total = Score()
    for name, row in rows.items():
        if rows is GATHERED or not row["doubtful"]:
            total.add(scored(name))
    # What is left is decided by conditions and sums of scripts, by recipes, and in files that are not given.
    assert total.right / total.fields > least
    assert set(total.filled) == filled


@pytest.mark.parametrize(
    ("name", "files", "seen"),
    [
        ("run_configs_unseen.jsonl", 46, {}),
        ("run_configs_unseen_again.jsonl", 59, cases("run_configs_unseen.jsonl")),
        ("run_configs_unseen_scripts.jsonl", 9, cases("run_configs_unseen_again.jsonl")),
        ("run_configs_unseen_november.jsonl", 20, cases("run_configs_unseen_again.jsonl")),
    ],
)
def test_unseen_files_are_labelled_without_their_texts(name: str, files: int, seen: dict[str, Any]) -> None:
    rows = cases(name)
    assert len(rows) == files
    known = {(row["source"]["repo"], row["source"]["path"]) for row in (CASES | GATHERED | seen).values()}
    for row in rows.values():
        source = row["source"]
        assert (len(source["commit"]), len(source["sha256"]), "text" in row) == (40, 64, False)
        assert row["half"] == ("second" if int(source["sha256"], 16) % 2 else "first")
        assert (source["repo"], source["path"]) not in known, row["id"]


GOLD: dict[str, tuple[str, str]] = {
    "tt-21-janebert-gbs-assert": ("contradictions", "only dp = 1 runs"),
    "mg-03-apertus-70b": ("not_covered", "MLP without a gate"),
    "mg-14-llmjp-v4-8b-noworld": ("ignored", "sequence parallelism"),
    "mg-16-llmjp-v4-7.7b-pp2-tp1": ("ignored", "sequence parallelism"),
    "mg-20-abci-70b-32node": ("unknown", "no flag passes it"),
    "mg-42-starcoder-15b-bigcode": ("not_covered", "LayerNorm"),
    "nt-13-moe": ("contradictions", "the key stands twice"),
}
"""What breaks a rule as it stands → where a reading says so, and with which words."""


@pytest.mark.parametrize("name", GOLD)
def test_what_breaks_a_rule_as_it_stands_is_told(name: str) -> None:
    where, words = GOLD[name]
    found = getattr(read(CASES[name]), where)
    text = " ".join(map(str, found.values() if isinstance(found, dict) else found))
    assert words in text, text


RECIPES = [name for name, row in (CASES | GATHERED).items() if row["format"].endswith("-python")]


def test_a_recipe_in_python_is_refused_by_name() -> None:
    """A function that changes what another one made is a program, and so may what is given to a plugin be."""
    for name in RECIPES:
        with pytest.raises(lp.LlamaparError, match=r"settings of a recipe in Python, which are not read"):
            read((CASES | GATHERED)[name])


def test_the_numbers_of_a_file_are_believed_and_not_its_name() -> None:
    settings = read(CASES["nm-01-405b-launcher"])
    assert (settings.model["n_kv_heads"], settings.model["rope_theta"]) == (16, 10000)


def test_settings_are_judged_by_their_frameworks_rules() -> None:
    settings = read(CASES["nt-11-doremi-2.8b"])
    report = lp.check(settings)
    assert report.judge is not None
    assert report.judge.name == "nanotron"
    assert any(f.code == "LP203" for f in report.findings)
    text = CASES["tt-01-405b-2024-08"]["text"]
    over = ("--training.tensor_parallel_degree", "16")
    titan = settings_of(Files({"train.toml": text}, overrides=over), {"gpus": 128})
    assert [f.code for f in lp.check(titan).errors] == ["LP104"]
    assert str(titan.sources["layout.tp"]) == "your command --training.tensor_parallel_degree"


def test_a_model_that_is_not_covered_is_not_judged_as_if_it_were() -> None:
    for name in ("tt-22-deepseek-toml", "nt-13-moe", "mg-42-starcoder-15b-bigcode"):
        settings = read(CASES[name])
        assert not settings.covered
        with pytest.raises(lp.LlamaparError, match="not covered"):
            settings.model_config()


def test_every_row_is_recognised_as_its_format() -> None:
    wanted = dict(tt="torchtitan", mg="Megatron-LM", nm="NeMo", nt="nanotron", vl="vLLM")
    for name, row in CASES.items():
        assert name in RECIPES or name[:2] not in wanted or read(row).format.startswith(wanted[name[:2]]), (
            name
        )


# -- launch lines ----------------------------------------------------------------------------------


def test_a_word_has_its_line() -> None:
    script = 'ARGS="\n  --x 1 \\\n  --y 2\n"\nLIST=(\n --z 3\n)\nrun $ARGS \\\n  ${LIST[@]} \\\n  --w 4\n'
    (command,) = launch_lines.read_lines(script).commands
    assert [(word.text, word.line) for word in command.words] == [
        ("run", 8),
        *(("--x", 2), ("1", 2), ("--y", 3), ("2", 3), ("--z", 6), ("3", 6)),
        *(("--w", 10), ("4", 10)),
    ]


def test_after_a_quote_without_its_end_anything_may_follow() -> None:
    text = f"torchrun --nproc_per_node 8 p.py {LLAMA_70B} --data"
    assert lp.read_settings(text=f"{text} 'x'\n").layout["cp"] == 1
    cut = lp.read_settings(text=f"{text} 'x\n")
    assert (cut.layout["tp"], cut.unknown["cp"]) == (8, "$…arguments (text.sh:1) may say it")
    assert "$…arguments" in cut.unread


LLAMA_70B = "--num-layers 80 --hidden-size 8192 --num-attention-heads 64 --tensor-model-parallel-size 8"
FULL = "model_name_or_path: meta-llama/Llama-3.1-8B\nfinetuning_type: full\ncutoff_len: 512\n"
AXOLOTL = "base_model: meta-llama/Llama-3.1-8B\nsequence_len: 2048\n"
ARGUMENTS = "MODEL_ARGS=(\n--num-layers 32\n--hidden-size 4096\n--num-attention-heads 32\n--swiglu\n)\n"


"""What is read → texts, each with fields that it says or leaves open."""


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("a.yaml", "base_model: a/Llama-3.1-8B\nsequence_len: 2048\ndeepspeed: deepspeed/zero3.json\n"),
        ("a.yaml", "model_name_or_path: a/b\nfinetuning_type: full\ndeepspeed: examples/ds_z3_config.json\n"),
        ("a.sh", "torchrun t.py --per_device_train_batch_size 1 --deepspeed configs/zero3.json\n"),
    ],
)
def test_the_stage_of_zero_is_read_in_deepspeeds_file_and_not_in_its_name(
    tmp_path: Path, file: str, text: str
) -> None:
    (tmp_path / file).write_text(text)
    (tmp_path / "zero3.json").write_text('{"zero_optimization": {"stage": 2}}')
    alone = lp.read_settings(tmp_path / file)
    assert "zero" not in alone.layout
    assert "which is not among these files" in alone.unknown["zero"]
    assert lp.read_settings(tmp_path / file, tmp_path / "zero3.json").layout["zero"] == 2


def test_accelerates_file_and_a_recipe_beside_a_launch_are_read(tmp_path: Path) -> None:
    (tmp_path / "zero3.yaml").write_text(
        "distributed_type: DEEPSPEED\ndeepspeed_config:\n  zero_stage: 3\nmixed_precision: bf16\n"
        "num_machines: 2\nnum_processes: 16\n"
    )
    (tmp_path / "recipe.yaml").write_text(
        "model_name_or_path: meta-llama/Llama-3.1-8B\nper_device_train_batch_size: 4\nmax_seq_length: 2048\n"
    )
    launch = "accelerate launch --config_file zero3.yaml sft.py --config recipe.yaml"
    files = [tmp_path / "zero3.yaml", tmp_path / "recipe.yaml"]
    for line, wanted in (
        (launch, "zero=3 dp=16 global_batch=64"),
        (launch.replace("sft.py", "--num_processes 8 sft.py"), "gpus=8 gpus_per_node=4 global_batch=32"),
    ):
        assert fields(lp.read_settings(*files, text=line), wanted) == wanted
    assert fields(lp.read_settings(files[1]), "zero= gpus=") == "zero=open gpus=open"


def test_what_a_comment_behind_a_backslash_cuts_off_is_not_known() -> None:
    script = """deepspeed --include localhost:0,1 train.py \\
    # how much at once
    --per_device_train_batch_size 14 \\
    # how it is shared
    --deepspeed configs/zero2.json
"""
    settings = lp.read_settings(text=script)
    assert fields(settings, "gpus= micro_batch= zero=") == "gpus=2 micro_batch=open zero=open"
    told = "--per_device_train_batch_size is '$14, behind a comment' (text.sh:3)"
    assert settings.unknown["micro_batch"] == told


def test_a_default_does_not_count_where_something_else_may_say_it() -> None:
    assert lp.read_settings(text=ARGUMENTS).unknown["tp"] == "the script that uses these arguments may say it"
    start = f"torchrun --nproc-per-node 8 p.py {LLAMA_70B}"
    assert fields(lp.read_settings(text=start), "zero= n_kv_heads=") == "zero=0 n_kv_heads=64"
    other = lp.read_settings(text=f"{start} --my-distributed-optimizer --kv-head-count 8")
    assert "zero" not in other.layout
    assert other.unknown["zero"] == "--my-distributed-optimizer True (text.sh:1) may say it"
    assert other.unknown["n_kv_heads"] == "--kv-head-count 8 (text.sh:1) may say it"
    own = f"torchrun p.py {LLAMA_70B} --overlapped-distributed-optimizer --causal-lm --RMSNorm"
    shared = lp.read_settings(text=own)
    assert (shared.layout["zero"], shared.model["tied"]) == (1, False)
    assert not any("LayerNorm" in what for what in shared.not_covered)


def test_a_file_that_the_command_names_may_say_what_the_command_does_not() -> None:
    command = "torchrun -m torchtitan.train --job.config_file train/llama3_8b.toml"
    text = "[model]\nname = 'llama3'\nflavor = '8B'\n[training]\nseq_len = 4096\n"
    alone = settings_of(Files({"run.sh": command}), {})
    assert "seq_len" not in alone.job
    assert alone.unknown["seq_len"] == "llama3_8b.toml may say it, which is not in these files"
    both = settings_of(Files({"run.sh": command, "llama3_8b.toml": text}), {})
    assert both.job["seq_len"] == 4096
    assert str(both.sources["job.seq_len"]) == "llama3_8b.toml:5 training.seq_len"


def test_the_last_repetition_of_a_flag_counts() -> None:
    words = [
        launch_lines.Word(text, 1) for text in ["x", "--tp", "2", "--seq_length=8", "--tp", "4", "-c", "7b"]
    ]
    found = flags.flags_of(words)
    assert [found.get(n).value for n in ("tp", "seq-length", "c")] == ["4", "8", "7b"]  # type: ignore[union-attr]
    assert launch.batch_of([]).environment == {}


def test_a_number_of_a_file_is_one() -> None:
    assert [whole_count(v) for v in (True, 8.0, "1_000", 0.5)] == [None, 8, 1000, None]
    assert [positive_number(v) for v in ("inf", "0", "5e5")] == [None, None, 5e5]


@pytest.mark.parametrize(("gpus", "against"), [(8, [(8, 4)]), (4, []), (2, [(2, 4)])])
def test_degrees_that_are_not_the_gpus_are_a_contradiction(gpus: int, against: list[Any]) -> None:
    text = "[model]\nname = 'llama3'\nflavor = '8B'\n[parallelism]\ntensor_parallel_degree = 2\n"
    settings = settings_of(Files({"a.toml": f"{text}data_parallel_shard_degree = 2\n"}), {"gpus": gpus})
    assert [found.values for found in settings.contradictions] == against


# -- bad input -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.toml", "[model]\nflavor = 1\nflavor = 2\n", "a.toml, line 3: no TOML"),
        ("a.json", '{"a": 1,\n "b": }', "a.json, line 2: no JSON"),
        ("a.yaml", "a: [1\nb: 2", "no YAML"),
        ("a.yaml", "a: 2024-99-99", "no YAML"),
        ("a.toml", "x = 1", "no known format"),
        ("a.json", "[" * 5000 + "]" * 5000, "a.json"),
        ("a.yaml", "a: " + "[" * 600 + "]" * 600, "a.yaml"),
    ],
)
def test_a_file_that_breaks_its_format_is_refused_with_its_line(name: str, text: str, words: str) -> None:
    with pytest.raises(lp.LlamaparError, match=re.escape(words)):
        settings_of(Files({name: text}), {})


def test_what_would_grow_without_bound_is_cut_short() -> None:
    bomb = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
    )
    with pytest.raises(lp.LlamaparError, match="more than 50,000 entries"):
        documents.read_yaml("bomb.yaml", bomb)
    with pytest.raises(lp.LlamaparError, match="needs more than 10,028,360 steps to read"):
        launch_lines.read_lines("A=xxxxxxxx\n" + "A=$A$A\n" * 200 + "run $A\n")
    launch_lines.read_lines("$(" * 20_000)
    launch_lines.read_lines("if [ $x = 1 ]; then\n" * 300)


def test_nothing_in_a_file_is_run(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    script = f"X=$(touch {mark})\n`touch {mark}`\neval 'touch {mark}'\ntouch {mark}\n"
    source = f"import os\nos.system('touch {mark}')\ndef f():\n    return g()\n# torchtitan\n"
    pickled = f"!!python/object/apply:os.system ['touch {mark}']"
    for name, text in (("a.sh", script), ("a.py", source), ("a.yaml", pickled)):
        with suppress(lp.LlamaparError):
            settings_of(Files({name: text}), {})
    assert not mark.exists()


def test_a_file_is_refused_that_cannot_be_one(tmp_path: Path) -> None:
    (tmp_path / "big.toml").write_bytes(b"#" * (documents.MOST_BYTES + 1))
    (tmp_path / "bin.toml").write_bytes(b"\0\1")
    refused = {"big.toml": "more than", "bin.toml": "no text", "none.toml": "no file", ".": "a folder"}
    for name, words in refused.items():
        with pytest.raises(lp.LlamaparError, match=words):
            lp.read_settings(tmp_path / name)
    with pytest.raises(lp.LlamaparError, match="no file and no text"):
        lp.read_settings()


def mutated(text: str, draw: random.Random) -> str:
    """A text with a few lines lost, doubled, swapped, or letters of one changed."""
    lines = text.splitlines()
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(lines))
        kind = draw.randrange(5)
        if kind == 0:
            del lines[at]
        elif kind == 1:
            lines.insert(at, lines[draw.randrange(len(lines))])
        elif kind == 2:
            lines[at] = lines[at][: draw.randrange(len(lines[at]) + 1)]
        elif kind == 3:
            lines[at] = draw.choice(("{", "]", '"', "$(", "\t- x", "=", "￼", "\\", "'")) + lines[at]
        else:
            lines[at] = lines[at].replace(draw.choice("0123456789=:"), draw.choice(("", "-1", "x", "1e9")))
        lines = lines or [""]
    return "\n".join(lines)


def test_mutated_files_end_in_an_answer_or_a_clear_error(counts: Any) -> None:
    draw = random.Random(11)
    rows = [*CASES.values()]
    for _ in range(counts(150, 500, 10_000)):
        row = draw.choice(rows)
        texts = {name: mutated(text, draw) for name, text in files_of(row).texts.items()}
        try:
            settings = settings_of(Files(texts), {})
        except lp.LlamaparError:
            continue
        json.dumps(settings.as_dict(), allow_nan=False)
        for name in ("tp", "cp", "pp", "dp"):
            value = settings.layout.get(name)
            assert value is None or (isinstance(value, int) and value >= 1)


def _lines(files: Files) -> dict[str, list[str]]:
    return {name: text.splitlines() for name, text in files.texts.items()}


_CITED = re.compile(r"(.*?):(\d+) (.*)")


def _cited(lines: dict[str, list[str]], source: str) -> str | None:
    """The line that a source names; None where it names none."""
    match = _CITED.fullmatch(source)
    if match is None or match[1] not in lines or not 0 < int(match[2]) <= len(lines[match[1]]):
        return None
    return lines[match[1]][int(match[2]) - 1]


def _stands(value: object, line: str) -> bool:
    """Whether a number is written on a line."""
    return re.search(rf"(?<![\d.]){value}(?![\d.]\d)(?!\d)", line.replace("_", "")) is not None


def _numbers(settings: lp.Settings, doubted: bool = False) -> dict[str, tuple[int, str]]:
    """Every whole number that is read without a doubt, or with one too, with its source."""
    told = set[str]() if doubted else {*settings.unknown, *(c.field for c in settings.contradictions)}
    held = {"model": settings.model, "layout": settings.layout, "job": settings.job}
    return {
        field: (value, settings.sources[f"{section}.{field}"])
        for section, values in held.items()
        for field, value in values.items()
        if type(value) is int and field not in told
    }


def _slipped(kind: str, row: str, value: int, draw: random.Random) -> str:
    """A row whose number, key or all is spoilt, or that nothing changes."""
    if kind == "value":  # no number is left where one stood
        junk = draw.choice((f"{value}x", f"x{value}", "eight", f"-{value}", "1O", f"{value}.5.2"))
        return re.sub(rf"(?<![\d.]){value}(?!\d)", junk, row, count=1)
    letters = [m.start() for m in re.finditer(r"[a-z]", row[: row.rfind(str(value))])]
    if kind == "key" and letters:
        at = draw.choice(letters)
        return row[:at] + draw.choice(("", row[at] * 2, "q")) + row[at + 1 :]
    continued = row.endswith("\\")
    return "" if kind == "lost" else f"{row.removesuffix(chr(92))}  {chr(92) * continued}"


def test_no_mutation_makes_a_number_that_no_line_says(counts: Any) -> None:
    """A spoilt number is open; one that changed for another reason stands on the line that it cites, or says
    that it is a default or follows from others; and what changes no meaning changes no number."""
    draw = random.Random(18)
    rows = [*CASES.values(), *GATHERED.values()]
    tried = dict.fromkeys(("value", "key", "lost", "neutral"), 0)
    while sum(tried.values()) < counts(100, 500, 10_000):
        row = draw.choice(rows)
        files, plain = files_of(row), _plain(row["id"])
        if plain is None:
            continue
        before, had = _numbers(plain), _numbers(plain, doubted=True)
        lines = _lines(files)
        direct = [f for f, (n, source) in before.items() if _stands(n, _cited(lines, source) or "")]
        if not direct:
            continue
        field, kind = draw.choice(direct), draw.choice([*tried])
        value, source = before[field]
        match = _CITED.fullmatch(source)
        assert match is not None
        name, at = match[1], int(match[2]) - 1
        lines[name][at] = _slipped(kind, lines[name][at], value, draw)
        tried[kind] += 1
        try:
            after = _numbers(settings_of(Files({n: "\n".join([*rest, ""]) for n, rest in lines.items()}), {}))
        except lp.LlamaparError:
            assert kind != "neutral"
            continue
        if kind == "neutral":
            assert after == before, row["id"]
        for other, (number, said) in after.items():
            if had.get(other, (None, ""))[0] == number:
                continue
            line = _cited(lines, said)
            spoilt = kind == "value" and other == field and line is None and said.endswith("default")
            told = f"{row['id']} {kind} {field}: {other}={number} ({said})"
            assert not spoilt, told
            assert line is None or re.search(r"[·/]|default", said) or _stands(number, line), told
            assert line is not None or re.search(r"default|derived|unless said|you", said), told


@cache
def _plain(name: str) -> lp.Settings | None:
    """What is read of a real file as it stands; None where it is refused."""
    with suppress(lp.LlamaparError):
        return settings_of(files_of((CASES | GATHERED)[name]), {})
    return None


# -- the command -----------------------------------------------------------------------------------

Command = Callable[[str | list[str]], tuple[int, str, str]]


def test_the_command_reads_judges_and_says_what_is_missing(tmp_path: Path, run: Command) -> None:
    path = tmp_path / "train.toml"
    path.write_text(CASES["tt-01-405b-2024-08"]["text"], encoding="utf-8")
    check = ["check", "--config", str(path)]
    status, out, _ = run([*check, "--json"])
    data = json.loads(out)
    assert (status, data["error"]["field"]) == (1, "dp")
    assert "run_train.sh starts 8" in data["settings"]["unknown_why"]["gpus"]
    status, out, _ = run([*check, "--gpus", "128", "--json"])
    data = json.loads(out)
    assert (status, data["ok"]) == (0, True)
    assert set(data["settings"]) >= {
        *("framework", "model", "layout", "job", "unknown", "not_covered", "contradictions", "sources"),
    }
    over = ["--", "--training.tensor_parallel_degree", "16"]
    status, out, _ = run([*check, "--gpus", "128", *over])
    assert (status, "LP104" in out) == (1, True)
    status, out, _ = run([*check, "--settings", "--json"])
    assert (status, json.loads(out)["layout"]["tp"]) == (0, 8)
    assert run([*check, "--tp", "4"])[0] == run("check --settings")[0] == 2
    text = "shape '[1, 8192, -1, 128]' is invalid for input of size 524288"
    for files, told in (([], (None, "possible")), (check[1:] + over, ("kv_heads_lt_tp", "likely"))):
        status, out, _ = run(["explain", text, "--json", *files])
        best = json.loads(out)["diagnoses"][0]
        assert (best["category"], best["level"]) == (told[0] or best["category"], told[1])


def test_settings_are_planned_for_and_timed(tmp_path: Path, run: Command) -> None:
    settings = read(CASES["nt-11-doremi-2.8b"])
    said = {name: settings.job[name] for name in ("seq_len", "micro_batch", "global_batch")}
    model, layout = settings.model_config(), settings.to_layout()
    seconds = lp.cost(settings).step_seconds
    assert seconds == lp.cost(model, layout, framework="nanotron", recompute="none", **said).step_seconds
    assert lp.cost(settings, micro_batch=8).step_seconds != seconds
    wanted = lp.plan(model, gpus=16, seq_len=1024, global_batch=512, framework="nanotron", top=2)
    found = lp.plan(settings, gpus=16, seq_len=1024, global_batch=512, top=2)
    assert [str(one.layout) for one in found.layouts] == [str(one.layout) for one in wanted.layouts]
    with pytest.raises(lp.LlamaparError, match="gpus is not known"):
        lp.plan(read(CASES["mg-15-llmjp-v4-32b"]))
    path = tmp_path / "train.yaml"
    path.write_text(CASES["nt-11-doremi-2.8b"]["text"], encoding="utf-8")
    status, out, _ = run(f"plan --config {path} --top 1 --json")
    data = json.loads(out)
    assert (status, data["settings"]["layout"]["tp"], data["as_said"]["step_seconds"]) == (0, 2, seconds)
    status, out, _ = run(f"plan --config {path} --top 1 --export cli")
    assert (status, "settings of" in out) == (0, False)
    status, out, _ = run(f"cost --config {path}")
    assert (status, "settings of nanotron" in out) == (0, True)


def test_what_a_person_says_besides_is_held_against_the_file() -> None:
    text = CASES["mg-15-llmjp-v4-32b"]["text"]
    settings = lp.read_settings(text=text, known={"gpus": 64, "micro_batch": 1, "model": "llama3-8b"})
    told = {c.field for c in settings.contradictions}
    assert {"micro_batch", "dim"} <= told
    assert settings.layout["dp"] == 16
    with pytest.raises(lp.LlamaparError, match="known"):
        lp.read_settings(text=text, known={"gpu": 64})


def test_formats_have_names_of_their_own() -> None:
    assert len({row["title"] for row in ROWS}) == len(ROWS)
    assert {row.get("framework") for row in ROWS} - {None} <= set(lp.FRAMEWORKS)


# -- settings that nobody reads --------------------------------------------------------------------


def test_settings_that_nothing_reads_are_listed_apart() -> None:
    text = CASES["nt-11-doremi-2.8b"]["text"]
    settings = lp.read_settings(text=text)
    assert "optimizer.clip_grad" in settings.unread
    assert not {"parallelism.tp", "tokens.sequence_length"} & set(settings.unread)
    assert f"not read ({len(settings.unread)}): general.benchmark_csv_path, " in str(settings)
    assert settings.as_dict()["unread"] == list(settings.unread)


def test_a_slip_is_one_letter() -> None:
    for pair in (("recompute", "recomput"), ("recompute", "reocmpute"), ("zerostage", "zerostages")):
        assert is_slip(*pair)
        assert is_slip(*reversed(pair))
    for pair in (("size", "sizes"), ("tpsize", "tpsize"), ("seqlength", "maxlength")):
        assert not is_slip(*pair)


def test_a_misspelt_key_is_questioned() -> None:
    text = CASES["nt-11-doremi-2.8b"]["text"].replace("batch_accum", "batch_acum")
    assert "batch_acumulation_per_replica" in lp.read_settings(text=text).unknown["micro_batches"]


def test_a_sourced_file_that_is_not_at_hand_may_set_what_has_a_default(tmp_path: Path) -> None:
    run = (
        "source {file}\ntorchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --num-attention-heads 32 "
        "--tensor-model-parallel-size ${{TP:-2}} --pipeline-model-parallel-size $PP\n"
    )
    (tmp_path / "run.sh").write_text(run.format(file="./env.sh"))
    alone = lp.read_settings(tmp_path / "run.sh")
    assert alone.unknown["tp"] == "--tensor-model-parallel-size is '${TP:-2}' (run.sh:2)"
    (tmp_path / "env.sh").write_text("TP=4\nPP=8\nsource env.sh\n")
    both = lp.read_settings(tmp_path / "run.sh", tmp_path / "env.sh")
    assert (both.layout["tp"], both.layout["pp"]) == (4, 8)
    (tmp_path / "run.sh").write_text(run.format(file="~/venv/bin/activate"))
    assert lp.read_settings(tmp_path / "run.sh").layout["tp"] == 2


@pytest.mark.parametrize("key", ["cpu_offload", "use_qlora", "model.quantization.bits", "optimizerOffload"])
def test_a_key_that_nobody_reads_and_that_saves_memory_opens_it(key: str) -> None:
    text = TUNE + f"{key}: true\n".replace("model.quantization.bits: true", "quantization_bits: 4")
    settings = lp.read_settings(text=text, known={"gpus": 16})
    assert settings.job["saves"] in (("offload",), ("4-bit",), ("lora", "4-bit"))
    assert "may take less memory" in settings.not_covered[0]
    off = lp.read_settings(text=text.replace(": true\n", ": false\n").replace("bits: 4", "bits: 0"))
    assert off.not_covered == () or "may take" not in off.not_covered[0]


def test_float8_of_matmuls_saves_no_memory_of_weights() -> None:
    text = (
        '[model]\nname = "llama3"\nflavor = "8B"\n[parallelism]\ntensor_parallel_degree = 2\n'
        "[quantize.linear.float8]\nenable_fsdp_float8_all_gather = true\n"
    )
    settings = lp.read_settings(text=text, known={"gpus": 8})
    assert "saves" not in settings.job
    assert not any("may take" in line for line in settings.not_covered)


# -- versions --------------------------------------------------------------------------------------

TITAN_70B = '[model]\nname = "llama3"\nflavor = "70B"\n[training]\nseq_len = 8192\n[parallelism]\n'
TITAN_70B += "tensor_parallel_degree = 16\n"


def test_a_toml_file_is_judged_by_the_torchtitan_that_read_it() -> None:
    """Clear refusals came when TOML files had gone."""
    settings = lp.read_settings(text=TITAN_70B, known={"gpus": 128})
    assert (settings.since, str(settings.before)) == (None, "2026-02-23 (#2386)")
    [error] = lp.check(settings).errors
    assert str(error).splitlines()[-1] == (
        "    torchtitan before 2026-02-23 (#2386): crash in forward: shape '[8, 8192, -1, 128]' is invalid "
        "for input of size 4194304"
    )
    plain = settings.as_dict()
    assert (plain["since"], plain["before"]) == ("", "2026-02-23 (#2386)")
    assert "version" in str(settings)


# -- files as editors and people leave them --------------------------------------------------------

BLANK = " " * 2000
SLOW = {
    "a.toml": f"a = [\n[{BLANK}1\n]]\n",
    "b.toml": f"a = [\n{BLANK}[{BLANK}[1\n]]]\n",
    "c.toml": f"a = [\n1, '{'. ' * 1000}'\n]\n",
}
"""Files of 2 to 4 kB. An expression whose blanks overlap took 4 s for the first."""


@pytest.mark.parametrize("name", SLOW)
def test_blanks_of_a_file_take_no_time(name: str) -> None:
    with within(0.2):
        assert documents.read_toml(name, SLOW[name]).entries


@pytest.mark.parametrize("text", ["\n" * 100_000, "#" * 100_000, f"#{BLANK * 50}", "\n \t" * 30_000])
def test_empty_lines_of_a_paste_take_no_time(text: str) -> None:
    with within(2), pytest.raises(lp.LlamaparError, match="no known format"):
        lp.read_settings(text=f"a{text}")


def test_headers_of_tables_have_their_lines() -> None:
    text = "\n [ a . 'b' ]  # first\nx = 1\n[[ c ]]\ny = 2\n[c.d]\nz = 3\n"
    found = {entry.path: entry.line for entry in documents.read_toml("it", text).entries}
    assert found["a.b.x"] == 3
    assert documents.read_toml("it", "[ a ]\nx = 1").entries[0].line == 2


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("name", ["train.toml", "train.sh"])
def test_a_file_that_begins_with_a_byte_order_mark(tmp_path: Path, name: str, encoding: str) -> None:
    text = {
        "train.toml": '[model]\nname = "llama3"\nflavor = "8B"\n[parallelism]\ntensor_parallel_degree = 2\n',
        "train.sh": "#!/bin/bash\ntorchrun x.py --tensor-model-parallel-size 2 --num-layers 8\n",
    }[name]
    mark = "\ufeff" if encoding.endswith("e") else ""
    (tmp_path / name).write_bytes((mark + text).encode(encoding))
    assert lp.read_settings(tmp_path / name).layout["tp"] == 2
    assert lp.read_settings(text=f"\ufeff{text}").layout["tp"] == 2


TUNE = """
tokenizer:
  _component_: torchtune.models.llama3.llama3_tokenizer
  path: /tmp/Llama-3.3-70B-Instruct/original/tokenizer.model
  max_seq_len: 1024
model:
  _component_: torchtune.models.llama3_3.llama3_3_70b
checkpointer:
  _component_: torchtune.training.FullModelHFCheckpointer
  model_type: LLAMA3
batch_size: 4
epochs: 1
gradient_accumulation_steps: 1  # Use to increase effective batch size
enable_activation_checkpointing: True  # True reduces memory
dtype: bf16
"""
"""Lines of pytorch/torchtune recipes/configs/llama3_3/70B_full_multinode.yaml @0d5aeb4496."""


def test_a_recipe_of_torchtune_is_read() -> None:
    wanted = "tp=1 cp=1 pp=1 dp=16 dp_shard=16 zero=3 dim=8192 n_kv_heads=8 n_layers=80 seq_len=1024 "
    wanted += "micro_batch=4 global_batch=64 recompute=full dtype=bf16"
    assert fields(lp.read_settings(text=TUNE, known={"gpus": 16}), wanted) == wanted
    lora = lp.read_settings(text=TUNE.replace(".llama3_3_70b", ".lora_llama3_3_70b"))
    assert "lora: less memory" in lora.not_covered[0]
    wide = lp.read_settings(text=f"{TUNE}tensor_parallel_dim: 8\n", known={"gpus": 16})
    assert fields(wide, "dp= sequence_parallel=") == "dp=2 sequence_parallel=open"


# -- formats as rows -------------------------------------------------------------------------------

_MARK_WORDS = "keys merged base arguments flags calls text two beside command"
_CONDITION = "key over not matches off default"
_FIELD = (
    f"{_CONDITION} as on other within values absent why needs like times fills product where agrees strip"
)
_FIELD += " missing else open"
KNOWN = {
    "row": "title framework by reader training launch variables recognised settings unseen named fields "
    "refuse fixed unknown ignored other_model before beside oddities dashed references",
    "mark": _MARK_WORDS,
    "field": _FIELD,
    "condition": _CONDITION,
    "refuse": f"{_CONDITION} what saves covered drops where",
    "sign": f"{_CONDITION} what where",
}
"""The words of formats.toml; one that the reader does not know would say nothing, without an error."""


def _unknown_words(row: dict[str, Any]) -> set[str]:
    found = {*row} - {*KNOWN["row"].split()}
    parts = [("mark", mark) for mark in (*row["recognised"], *row.get("settings", ()))]
    for specs in row.get("fields", {}).values():
        parts += [("field", spec) for spec in as_list(specs) if isinstance(spec, dict)]
    parts += [("refuse", spec) for spec in row.get("refuse", ())]
    parts += [("sign", spec) for spec in row.get("other_model", {}).get("signs", ())]
    for _, held in [*parts]:
        parts += [("condition", one) for one in as_list(held.get("where", []))]
    return found.union(*({*held} - {*KNOWN[kind].split()} for kind, held in parts))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row["title"]))
def test_a_row_says_only_what_the_reader_knows(row: dict[str, Any]) -> None:
    assert _unknown_words(row) == set()
    assert {*row.get("oddities", ())} <= {*mapped.ODDITIES}
    assert {*row.get("before", ()), *row.get("beside", ())} <= {row["title"] for row in ROWS}
    kinds = {
        s.get("as", "count") for spec in row.get("fields", {}).values() for s in as_list(spec) if s != str(s)
    }
    assert kinds <= {*mapped.KINDS, "model", "hub"}
    assert row.get("reader", "row") in mapped.READERS


def test_an_unknown_word_of_a_row_is_noticed() -> None:
    row = {"recognised": [{"kyes": ["a"]}], "fields": {"tp": {"key": "tp", "defalt": 1}}, "feilds": {}}
    assert _unknown_words(row) == {"kyes", "defalt", "feilds"}


# -- NeMo Automodel --------------------------------------------------------------------------------

AUTOMODEL = """
recipe: TrainFinetuneRecipeForNextTokenPrediction
step_scheduler: {global_batch_size: 64, local_batch_size: 8}
dist_env: {backend: nccl}
model:
  _target_: nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained
  pretrained_model_name_or_path: meta-llama/Llama-3.2-1B
distributed: {strategy: fsdp2, dp_size: none, tp_size: 2, cp_size: 1}
"""


def test_a_key_of_another_section_is_no_slip() -> None:
    """Recipes of Automodel repeat tp_size under their tests; a letter makes it pp_size."""
    tested = f"{AUTOMODEL}ci: {{checkpoint_robustness: {{distributed: {{tp_size: 2}}}}}}\n"
    found = lp.read_settings(text=tested)
    assert (found.layout["pp"], found.notes) == (1, ())


# -- the launch line wins ---------------------------------------------------------------------------

TITAN_8B = """
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 1
seq_len = 8192
[parallelism]
data_parallel_shard_degree = -1
tensor_parallel_degree = 1
"""
ACCELERATE = """
distributed_type: FSDP
num_processes: 8
parallelism_config:
  parallelism_config_tp_size: 2
  parallelism_config_dp_shard_size: 4
"""
LINES = {
    "torchrun --nproc_per_node=16 -m torchtitan.train --job.config_file a.toml "
    "--parallelism.tensor_parallel_degree 16": (TITAN_8B, "tp=16 gpus=16 seq_len=8192"),
    "NGPU=16 CONFIG_FILE=./a.toml ./run_train.sh --parallelism.tensor_parallel_degree=16 "
    "--training.seq_len 4096": (TITAN_8B, "tp=16 gpus=16 seq_len=4096"),
    "tune run --nproc_per_node 8 full_finetune_distributed --config a.yaml batch_size=2 "
    "tensor_parallel_dim=4 tokenizer.max_seq_len=512": (TUNE, "tp=4 gpus=8 micro_batch=2 seq_len=512"),
    "NPROC_PER_NODE=8 NNODES=1 llamafactory-cli train a.yaml cutoff_len=1024 per_device_train_batch_size=2": (
        FULL,
        "gpus=8 seq_len=1024 micro_batch=2",
    ),
    "torchrun --nproc-per-node 8 finetune.py --config a.yaml --distributed.tp_size 4 "
    "--step_scheduler.local_batch_size=2": (AUTOMODEL, "tp=4 dp=2 micro_batch=2 global_batch=64"),
    "accelerate launch --num_processes 8 -m axolotl.cli.train a.yaml --micro-batch-size 4": (
        AXOLOTL,
        "gpus=8 micro_batch=4 seq_len=2048",
    ),
    "axolotl train a.yaml --sequence_len=1024": (AXOLOTL, "micro_batch=1 seq_len=1024"),
    "accelerate launch --config_file a.yaml --num_processes 8 --parallelism_config_tp_size 8 t.py": (
        ACCELERATE,
        "tp=8 dp_shard=4 gpus=8",
    ),
}


@pytest.mark.parametrize("line", LINES)
def test_an_argument_of_the_launch_wins_over_the_file(line: str) -> None:
    text, wanted = LINES[line]
    name = "a.toml" if text is TITAN_8B else "a.yaml"
    found = settings_of(Files({name: text, "run.sh": f"set -e\n{line}\n"}), {})
    assert fields(found, wanted) == wanted
    alone = settings_of(Files({name: text}), {})
    changed = {**found.layout, **found.job}.items() - {**alone.layout, **alone.job}.items()
    assert changed
    said = [source for source in found.sources.values() if source.startswith("run.sh:2 ")]
    assert len(said) >= 1


def test_a_launch_alone_names_its_file_and_counts_no_default() -> None:
    line = "CONFIG_FILE=./train.toml NGPU=16 ./run_train.sh --parallelism.tensor_parallel_degree=16\n"
    found = lp.read_settings(text=line)
    wanted = "format=torchtitan tp=16 gpus=16 cp=open pp=open dp=open zero=open seq_len=open model=open"
    assert fields(found, wanted) == wanted
    assert found.unknown["model"] == "train.toml says it, which is not among these files"


UNREAD = {
    "--parallelism.tensor_parallel_size 16": "tp",
    "--tensor-model-parallel-size=16": "tp",
    "--parallelism.tensor_paralel_degree 16": None,  # the file says it
    "--my_context_parallel_size 2": "cp",
    "pipeline_parallel_size=2": "pp",
    "--train_batch_size 64": "global_batch",
    "--micro_batch_size 4": "micro_batch",
    "--gradient-accumulation-steps 4": "micro_batches",
    "--seq_length 4096": "seq_len",
    "--max_seq_len=$LENGTH": "seq_len",
    "--model_name llama3-70b": "model",
    "--steps 100": None,
}


@pytest.mark.parametrize("flag", UNREAD)
def test_an_unread_flag_that_names_a_fact_opens_it_and_ends_in_exit_1(
    tmp_path: Path, run: Command, flag: str
) -> None:
    (tmp_path / "a.toml").write_text(TITAN_8B)
    launch = f"torchrun --nproc_per_node=16 -m torchtitan.train --job.config_file a.toml {flag}\n"
    (tmp_path / "run.sh").write_text(launch)
    settings = lp.read_settings(tmp_path / "a.toml", tmp_path / "run.sh")
    words = ["check", "--config", str(tmp_path / "a.toml"), "--launch", str(tmp_path / "run.sh")]
    status, out, _ = run(words)
    assert re.split("[ =]", flag)[0] in settings.unread
    field = UNREAD[flag]
    if field is None:
        assert (status, settings.contradictions) == (0, ())
        return
    assert settings.unknown[field].endswith("(run.sh:1) may say it")
    assert field not in settings.layout | settings.job
    assert (status, "nothing to report" in out) == (1, False)
    assert f"contradiction: {field}: " in out


def test_of_two_launches_nothing_counts_that_differs() -> None:
    line = "torchrun --nproc_per_node 8 -m torchtitan.train --job.config_file a.toml "
    tp = "--parallelism.tensor_parallel_degree"
    text = f"{line}{tp} 2 --training.seq_len 4096\n{line}{tp} 4 --training.seq_len 4096\n"
    found = settings_of(Files({"a.toml": TITAN_8B, "run.sh": text}), {})
    assert (found.job["seq_len"], found.unknown["tp"]) == (4096, f"{tp} is '$2 or 4' (run.sh:1)")


def test_a_script_finds_what_stands_in_front_of_its_call() -> None:
    script = f"torchrun --nproc_per_node 8 p.py {LLAMA_70B} --pipeline-model-parallel-size ${{PP:-2}}\n"
    alone = settings_of(Files({"train.sh": script}), {})
    both = settings_of(Files({"run.sh": "PP=1 bash train.sh\n", "train.sh": script}), {})
    assert (alone.layout["pp"], both.layout["pp"]) == (2, 1)


def test_a_batch_of_another_section_leaves_the_batch_as_it_is() -> None:
    text = CASES["nt-11-doremi-2.8b"]["text"]
    plain, beside = (
        lp.read_settings(text=text),
        lp.read_settings(text=f"{text}\nlighteval:\n  batch_size: 9\n"),
    )
    assert beside.job["global_batch"] == plain.job["global_batch"]


# -- memory that a trainer saves --------------------------------------------------------------------


def test_a_deepspeed_file_that_is_not_there_leaves_memory_undecided(tmp_path: Path, run: Command) -> None:
    (tmp_path / "lf.yaml").write_text(
        "stage: sft\nfinetuning_type: full\ndeepspeed: conf/ds_z3.json\ncutoff_len: 3072\n"
        "per_device_train_batch_size: 1\nbf16: true\n"
    )
    words = ["check", "--config", str(tmp_path / "lf.yaml"), "--model", "qwen2.5-32b", "--gpus", "8"]
    status, out, _ = run([*words, "--gpu", "h100-80gb", "--json"])
    found = json.loads(out)
    assert (status, found["settings"]["unknown_why"]["zero"]) == (
        0,
        "deepspeed conf/ds_z3.json says it, which is not among these files",
    )
    [finding] = [f for f in found["findings"] if f["code"].startswith("LP51")]
    assert (finding["severity"], finding["code"]) == ("warning", "LP512")
    assert finding["why"].startswith("the stage of ZeRO would decide it, in the file that sets it")
    (tmp_path / "ds_z3.json").write_text('{"zero_optimization": {"stage": 0}}')
    assert run([*words, "--config", str(tmp_path / "ds_z3.json"), "--gpu", "h100-80gb"])[0] == 1


def test_lora_is_not_judged_as_full_training(tmp_path: Path, run: Command) -> None:
    text = (
        FULL.replace("full", "lora").replace("512", "2048") + "per_device_train_batch_size: 1\nbf16: true\n"
    )
    (tmp_path / "lora.yaml").write_text(text)
    words = ["check", "--config", str(tmp_path / "lora.yaml"), "--gpus", "1", "--gpu", "rtx-4090"]
    status, out, _ = run(words)
    assert (status, "LP512 warning" in out, "undecided" in out) == (0, True, True)
    (tmp_path / "lora.yaml").write_text(text.replace("lora", "full"))
    status, out, _ = run(words)
    assert (status, "LP511 error" in out, "at least 5 GPUs are needed" in out) == (1, True, True)


@pytest.mark.parametrize(
    ("tp", "shard", "cp", "wrong"), [(2, 1, 1, True), (2, 1, 2, False), (1, 2, 1, False)]
)
def test_fsdp_without_a_dimension_to_shard_is_an_error(
    tmp_path: Path, run: Command, tp: int, shard: int, cp: int, wrong: bool
) -> None:
    (tmp_path / "acc.yaml").write_text(
        f"distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 2\nnum_processes: {tp * shard * cp}\n"
        f"parallelism_config:\n  parallelism_config_cp_size: {cp}\n"
        f"  parallelism_config_dp_shard_size: {shard}\n  parallelism_config_tp_size: {tp}\n"
    )
    status, out, _ = run(["check", "--config", str(tmp_path / "acc.yaml"), "--model", "llama3-8b"])
    told = "FSDP is on and dp_shard·cp = 1, so its mesh has no dimension; dp_shard 2 with tp 1, or no FSDP"
    assert (status, " ".join(out.split()).count(told) > 0) == (int(wrong), wrong)

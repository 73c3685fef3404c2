"""Files of settings: read right, never sure and wrong, bounded in time, and never run."""

import json
import random
import re
from contextlib import suppress
from functools import cache

import pytest

import llamapar as lp
from llamapar.configs import documents, launch_lines, mapped
from llamapar.configs.draft import as_list
from llamapar.configs.files import Files
from llamapar.configs.formats import ROWS
from llamapar.configs.meter import Meter
from llamapar.configs.reader import settings_of
from settings_cases import Score, cases, files_of, read, score
from soon import within

CASES = cases()
GATHERED = cases("run_configs_gathered.jsonl")


def fields(settings, wanted):
    """What is read of the fields that `wanted` names, in its form: `tp=8 zero=open preset=llama3.1-8b`."""
    found = dict.fromkeys(settings.unknown, "open") | settings.model | settings.layout | settings.job
    found["format"] = settings.format
    names = [word.partition("=")[0] for word in wanted.split()]
    return " ".join(f"{name}={found.get(name)}" for name in names)


# -- real files ------------------------------------------------------------------------------------


scored = cache(lambda name: score((CASES | GATHERED)[name]))


@pytest.mark.parametrize("name", [*CASES, *GATHERED])
def test_no_field_of_a_real_file_is_sure_and_wrong(name):
    assert scored(name).sure == []


FILLED = {
    "tt-05-8b-default-ngpu gpus_per_node",  # torchrun --nproc_per_node=8 on one machine
    "ax-02-tp-cp dims",  # the published dimensions of Qwen3 8B
}


@pytest.mark.parametrize(
    ("rows", "least", "filled"), [(CASES, 0.89, FILLED), (GATHERED, 0.9, {"a-mg-hygon-llama3-70b gpus"})]
)
def test_most_fields_of_real_files_are_read(rows, least, filled):
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
def test_unseen_files_are_labelled_without_their_texts(name, files, seen):
    rows = cases(name)
    assert len(rows) == files
    known = {(row["source"]["repo"], row["source"]["path"]) for row in (CASES | GATHERED | seen).values()}
    for row in rows.values():
        source = row["source"]
        assert (len(source["commit"]), len(source["sha256"]), "text" in row) == (40, 64, False)
        assert row["half"] == ("second" if int(source["sha256"], 16) % 2 else "first")
        assert (source["repo"], source["path"]) not in known, row["id"]


RECIPES = [name for name, row in (CASES | GATHERED).items() if row["format"].endswith("-python")]


def test_a_recipe_in_python_is_refused_by_name():
    """A function that changes what another one made is a program, and so may what is given to a plugin be."""
    for name in RECIPES:
        with pytest.raises(lp.LlamaparError, match=r"settings of a recipe in Python, which are not read"):
            read((CASES | GATHERED)[name])


def test_settings_are_judged_by_their_frameworks_rules():
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
    assert lp.check(titan, lp.Layout(tp=8, dp=16)).job.layout.tp == 8


def test_a_model_that_is_not_covered_is_not_judged_as_if_it_were():
    for name in ("tt-22-deepseek-toml", "nt-13-moe", "mg-42-starcoder-15b-bigcode"):
        settings = read(CASES[name])
        assert not settings.covered
        with pytest.raises(lp.LlamaparError, match="not covered"):
            settings.model_config()


def test_every_row_is_recognised_as_its_format():
    wanted = dict(tt="torchtitan", mg="Megatron-LM", nm="NeMo", nt="nanotron", vl="vLLM")
    for name, row in CASES.items():
        assert name in RECIPES or name[:2] not in wanted or read(row).format.startswith(wanted[name[:2]]), (
            name
        )


@pytest.mark.parametrize(
    ("word", "recompute"),
    [
        *(("true", "full"), ("1", "full"), ("'1'", "full"), ("2", "open"), ("sometimes", "open")),
        *(("false", "none"), ("0", "none"), ("'0'", "none"), ("'no'", "none"), ("'off'", "none")),
    ],
)
def test_a_switch_is_on_off_or_unknown(word, recompute):
    text = f"per_device_train_batch_size: 1\nfsdp: full_shard\ngradient_checkpointing: {word}\n"
    settings = settings_of(Files({"train.yaml": text}), {})
    assert fields(settings, "recompute=") == f"recompute={recompute}"


# A switch of Megatron-LM's takes no word, but a file of its settings may give it one.
@pytest.mark.parametrize("word", ["false", "0", "no", "off"])
def test_a_switch_that_is_set_off_is_off(word):
    line = f"torchrun pretrain.py --num-layers 8 --tensor-model-parallel-size 2 --sequence-parallel {word}\n"
    settings = settings_of(Files({"run.sh": line}), {})
    assert settings.layout["sequence_parallel"] is False


MEGATRON = "torchrun p.py --num-layers 8 --tensor-model-parallel-size 2"
NEMO = "trainer: {devices: 8}\nmodel:\n  tensor_model_parallel_size: 2\n  tokenizer: {type: Llama-2-7b}\n"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (f"{MEGATRON} --deepspeed-activation-checkpointing", "format=Megatron-LM recompute=full"),
        (f"{NEMO}  override_vocab_size: 777\n", "format=NeMo vocab_size=777"),
        ('{"distributed_type": "FSDP", "num_processes": 8,\n}', "format=Accelerate gpus=8"),
        (f"{MEGATRON} --base-model", "n_layers=8"),  # a switch says nothing of the model
    ],
)
def test_what_a_paste_says_is_read(text, wanted):
    assert fields(lp.read_settings(text=text), wanted) == wanted


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
def test_a_file_that_breaks_its_format_is_refused_with_its_line(name, text, words):
    with pytest.raises(lp.LlamaparError, match=re.escape(words)):
        settings_of(Files({name: text}), {})


def script(text):
    return launch_lines.read_lines(text, {}, {}, Meter("the script", len(text)))


def test_what_would_grow_without_bound_is_cut_short():
    bomb = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
    )
    with pytest.raises(lp.LlamaparError, match="more than 50,000 entries"):
        documents.read_yaml("bomb.yaml", bomb, Meter("bomb.yaml", len(bomb)))
    with pytest.raises(lp.LlamaparError, match="needs more than 10,028,360 steps to read"):
        script("A=xxxxxxxx\n" + "A=$A$A\n" * 200 + "run $A\n")
    script("$(" * 20_000)
    script("if [ $x = 1 ]; then\n" * 300)


def test_nothing_in_a_file_is_run(tmp_path):
    mark = tmp_path / "mark"
    script = f"X=$(touch {mark})\n`touch {mark}`\neval 'touch {mark}'\ntouch {mark}\n"
    source = f"import os\nos.system('touch {mark}')\ndef f():\n    return g()\n# torchtitan\n"
    pickled = f"!!python/object/apply:os.system ['touch {mark}']"
    for name, text in (("a.sh", script), ("a.py", source), ("a.yaml", pickled)):
        with suppress(lp.LlamaparError):
            settings_of(Files({name: text}), {})
    assert not mark.exists()


def mutated(text, draw):
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


def test_mutated_files_end_in_an_answer_or_a_clear_error(counts):
    draw = random.Random(11)
    rows = [*CASES.values()]
    for _ in range(counts(150, 300, 10_000)):
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


def _lines(files):
    return {name: text.splitlines() for name, text in files.texts.items()}


_CITED = re.compile(r"(.*?):(\d+) (.*)")


def _cited(lines, source):
    """The line that a source names; None where it names none."""
    match = _CITED.fullmatch(source)
    if match is None or match[1] not in lines or not 0 < int(match[2]) <= len(lines[match[1]]):
        return None
    return lines[match[1]][int(match[2]) - 1]


def _stands(value, line):
    """Whether a number is written on a line."""
    return re.search(rf"(?<![\d.]){value}(?![\d.]\d)(?!\d)", line.replace("_", "")) is not None


def _numbers(settings, doubted=False):
    """Every whole number that is read without a doubt, or with one too, with its source."""
    told = set[str]() if doubted else {*settings.unknown, *(c.field for c in settings.contradictions)}
    held = {"model": settings.model, "layout": settings.layout, "job": settings.job}
    return {
        field: (value, settings.sources[f"{section}.{field}"])
        for section, values in held.items()
        for field, value in values.items()
        if type(value) is int and field not in told
    }


def _slipped(kind, row, value, draw):
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


def test_no_mutation_makes_a_number_that_no_line_says(counts):
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
def _plain(name):
    """What is read of a real file as it stands; None where it is refused."""
    with suppress(lp.LlamaparError):
        return settings_of(files_of((CASES | GATHERED)[name]), {})
    return None


# -- the command -----------------------------------------------------------------------------------


def test_the_command_reads_judges_and_says_what_is_missing(tmp_path, run):
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


def test_settings_are_planned_for_and_timed(tmp_path, run):
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


def test_formats_have_names_of_their_own():
    assert len({row["title"] for row in ROWS}) == len(ROWS)
    assert {row.get("framework") for row in ROWS} - {None} <= set(lp.FRAMEWORKS)


# -- settings that nobody reads --------------------------------------------------------------------


def test_settings_that_nothing_reads_are_listed_apart():
    text = CASES["nt-11-doremi-2.8b"]["text"]
    settings = lp.read_settings(text=text)
    assert "optimizer.clip_grad" in settings.unread
    assert not {"parallelism.tp", "tokens.sequence_length"} & set(settings.unread)
    assert f"not read ({len(settings.unread)}): general.benchmark_csv_path, " in str(settings)
    assert settings.as_dict()["unread"] == list(settings.unread)


# -- files as editors and people leave them --------------------------------------------------------

BLANK = " " * 2000
SLOW = {
    "a.toml": f"a = [\n[{BLANK}1\n]]\n",
    "b.toml": f"a = [\n{BLANK}[{BLANK}[1\n]]]\n",
    "c.toml": f"a = [\n1, '{'. ' * 1000}'\n]\n",
}
"""Files of 2 to 4 kB. An expression whose blanks overlap took 4 s for the first."""


@pytest.mark.parametrize("name", SLOW)
def test_blanks_of_a_file_take_no_time(name):
    with within(0.2):
        assert documents.read_toml(name, SLOW[name], Meter(name, len(SLOW[name]))).entries


@pytest.mark.parametrize("text", ["\n" * 100_000, "#" * 100_000, f"#{BLANK * 50}", "\n \t" * 30_000])
def test_empty_lines_of_a_paste_take_no_time(text):
    with within(2), pytest.raises(lp.LlamaparError, match="no known format"):
        lp.read_settings(text=f"a{text}")


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


def _unknown_words(row):
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
def test_a_row_says_only_what_the_reader_knows(row):
    assert _unknown_words(row) == set()
    assert {*row.get("oddities", ())} <= {*mapped.ODDITIES}
    assert {*row.get("before", ()), *row.get("beside", ())} <= {row["title"] for row in ROWS}
    kinds = {
        s.get("as", "count") for spec in row.get("fields", {}).values() for s in as_list(spec) if s != str(s)
    }
    assert kinds <= {*mapped.KINDS, "model", "hub"}
    assert row.get("reader", "row") in mapped.READERS


def test_an_unknown_word_of_a_row_is_noticed():
    row = {"recognised": [{"kyes": ["a"]}], "fields": {"tp": {"key": "tp", "defalt": 1}}, "feilds": {}}
    assert _unknown_words(row) == {"kyes", "defalt", "feilds"}


# -- the launch line wins ---------------------------------------------------------------------------


def test_a_batch_of_another_section_leaves_the_batch_as_it_is():
    text = CASES["nt-11-doremi-2.8b"]["text"]
    plain, beside = (
        lp.read_settings(text=text),
        lp.read_settings(text=f"{text}\nlighteval:\n  batch_size: 9\n"),
    )
    assert beside.job["global_batch"] == plain.job["global_batch"]

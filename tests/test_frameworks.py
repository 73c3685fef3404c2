"""The evidence on real frameworks: well formed, reachable, and word for word what the tools say."""

import re
import string
from dataclasses import replace
from datetime import date, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

import llamapar as lp
from inputs import models, oracle
from llamapar.count.saved import KERNELS, RECOMPUTE
from llamapar.describe.layout import ORDERS
from llamapar.describe.options import OPTIONS
from llamapar.describe.splits import LAYER_SPLITS, NO_PADDING, Padding
from llamapar.frameworks import (
    ADAPTS,
    FAILS,
    FRAMEWORKS,
    JUDGES,
    NA,
    UNKNOWN,
    VERDICTS,
    WORKS,
    Evidence,
    Framework,
    Habits,
    framework,
    of_version,
)
from llamapar.frameworks.cross_entropy import LOSSES
from llamapar.frameworks.trainer import EACH, LAST, LAST_IN_PIPELINE
from llamapar.frameworks.trainers import ROWS
from llamapar.place.sequence_map import CHUNKINGS
from llamapar.rules import memory_rule
from llamapar.rules.table import RULE_BY_CODE

ALL = pytest.mark.parametrize("name", FRAMEWORKS)


def case(framework, code, said="", **job):
    """A parameter: what a framework says to a job by the rule of this code; of Llama 3 8B, if of no other."""
    return pytest.param(
        framework, code, {"model": "llama3-8b", "layout": {}} | job, said, id=f"{framework} {code} {said:.40}"
    )


NUMBERS = set(lp.Job.of("tiny", {}).numbers())
ALWAYS = Evidence.__dataclass_fields__["when"].default

# -- the form --------------------------------------------------------------------------------------


COMMIT = r"[0-9a-f]{8,40}|v\d+(\.\d+\.\d+)?|\d{4}"


@ALL
def test_a_row_has_names_that_exist_and_sources_that_can_be_read(name):
    f = FRAMEWORKS[name]
    assert f.name == name
    assert f.order is None or f.order in ORDERS
    assert f.layer_split is None or f.layer_split in LAYER_SPLITS
    assert f.chunking is None or f.chunking in CHUNKINGS
    assert isinstance(f.padding, Padding)
    assert set(f.zero) <= {0, 1, 2, 3}
    assert set(f.axes) <= set(lp.AXES)
    fields = set(Habits.__dataclass_fields__) | set(Framework.__dataclass_fields__)
    for field, source in f.sources.items():
        assert field in fields, field
        assert re.fullmatch(r"[\w.-]+/[\w.-]+|arXiv:\d{4}\.\d{5}", source.repo)
        assert source.path
        assert re.fullmatch(COMMIT, source.at), source
    assert re.fullmatch(COMMIT, f.commit)
    usual = {
        "recompute": ("", *RECOMPUTE),
        "cp_method": OPTIONS["cp_method"].choices,
        "kernels": KERNELS,
        "loss": LOSSES,
    }
    for habits in (f.habits, *(replace(f.habits, **old) for _, old in f.until)):
        assert all(getattr(habits, field) in known for field, known in usual.items())
        assert habits.tp_loss is None or habits.tp_loss in LOSSES
        assert habits.selective in ("matmuls", "attention", "elementwise")
        assert habits.reduces in (EACH, LAST, LAST_IN_PIPELINE)
    assert set(VERDICTS) - FAILS == {WORKS, ADAPTS, NA, UNKNOWN}
    days = [change.day for change, _ in f.until]
    assert days == sorted(days, reverse=True)
    assert len(ROWS) == len(FRAMEWORKS) == len({row["title"] for row in ROWS.values()})


def test_a_version_has_the_habits_of_its_day():
    for name, f in FRAMEWORKS.items():
        for change, old in f.until:
            before = date.fromisoformat(change.day) - timedelta(days=1)
            then, since = (framework(f"{name}@{day}") for day in (before, change.day))
            assert {field: getattr(then.habits, field) for field in old} == old
            assert since.habits == f.habits or len(f.until) > 1
            assert (since.spelled, str(before) in then.title) == (f"{name}@{change.day}", True)


@ALL
def test_every_case_is_evidence(name):
    f = FRAMEWORKS[name]
    assert set(f.cases) <= set(RULE_BY_CODE)
    for code, cases in f.cases.items():
        assert cases, code
        for case in cases:
            assert case.verdict in VERDICTS
            assert case.path, f"{code}: evidence has a place"
            assert case.message or case.note, f"{code}: evidence says something"
            for template in (case.message, case.note):
                names = {field for _, field, _, _ in string.Formatter().parse(template) if field}
                assert names <= NUMBERS, f"{code}: {names - NUMBERS}"
            assert case.at or not case.repo, f"{code}: a foreign place has its own commit"
        for part in {f.part(case) for case in cases}:
            *before, last = [case for case in cases if f.part(case) == part]
            reached = not any(case.when is ALWAYS and not _replaced(case, last) for case in before)
            assert reached, f"{code}: a case after an unconditional one is never reached"


def _replaced(newer, older):
    """Whether there were versions that had the one and not yet the other."""
    return newer.since is not None and (older.since is None or older.since < newer.since)


@ALL
def test_sources_name_repository_path_and_commit(name):
    f = FRAMEWORKS[name]
    job = lp.Job.of("llama3-8b", {"tp": 3, "cp": 3, "pp": 3, "dp": 3}, gpus=8, seq_len=100)
    for code in RULE_BY_CODE:
        verdict = f.judge(code, job)
        assert verdict.framework == name
        if code not in f.cases:
            assert (verdict.verdict, verdict.message, verdict.note, verdict.source) == (UNKNOWN, "", "", None)
        elif verdict.verdict != UNKNOWN:
            assert re.fullmatch(r"[\w.-]+/[\w.-]+: \S.* @([0-9a-f]{10}|v[\d.]+)", str(verdict.source))
        assert verdict.fails == (verdict.verdict in FAILS)
        parts = {"part", "others"} if verdict.part else set()
        dated = {"since", "before"} if verdict.since else set()
        assert set(verdict.as_dict()) == {"verdict", "message", "source"} | parts | dated
        assert bool(verdict.part) == bool(f.parts and verdict.source)


# -- names -----------------------------------------------------------------------------------------


def test_no_two_frameworks_share_a_name():
    every = [a for f in FRAMEWORKS.values() for a in {f.name, f.title.lower(), *f.aliases}]
    assert len(set(every)) == len(every)


# -- word for word ---------------------------------------------------------------------------------


MODEL = lp.model("llama3-8b")
FFN = MODEL.replace(ffn_dim=4096)
ODD = MODEL.replace(vocab_size=128257)
HEADS = lp.model("tiny").replace(n_heads=40, n_kv_heads=8, head_dim=8)
SMALL = dict(dim=8, n_layers=1, n_heads=8, n_kv_heads=8, ffn_dim=100, vocab_size=8)
BIG = "llama3.1-405b"

# What a recorded case is in our terms: tool, condition and numbers, the rule, and what is not 8B's own.
ASKED = {
    ("fairscale", "dimension % tp", "4096 3"): ("LP103", dict(model=FFN, tp=3)),
    ("fairscale", "dimension % tp", "128257 16"): ("LP105", dict(model=ODD, tp=16)),
    ("llama3", "tp > n_kv_heads", "32 8 16"): ("LP104", dict(tp=16)),
    ("megatron-core", "dimension % tp", "4096 3"): ("LP103", dict(model=FFN, tp=3)),
    ("megatron-core", "n_heads % tp", "32 3"): ("LP101", dict(tp=3)),
    ("megatron-core", "n_kv_heads % tp and tp % n_kv_heads", "36 8 12"): ("LP104", dict(model=HEADS, tp=12)),
    ("megatron-core", "sequence parallelism without tp", "1"): ("LP204", dict(sequence_parallel=True)),
    ("megatron-core", "seq % tp", "10 16"): ("LP202", dict(tp=16, seq_len=10)),
    ("megatron", "world % (tp*pp*cp)", "100 16"): ("LP001", dict(tp=16, gpus=100)),
    ("megatron", "seq % (2*cp)", "8200 16"): ("LP201", dict(cp=16, seq_len=8200)),
    ("torchtitan", "n_heads % tp", "32 3"): ("LP101", dict(tp=3)),
    ("torchtitan", "n_kv_heads % tp", "8 16"): ("LP104", dict(tp=16)),
    ("torchtitan", "seq > context", "131073 131072"): ("LP203", dict(model=BIG, seq_len=131073)),
    ("torchtitan", "tokens % (tp*2*cp)", "8200 8 16 True"): ("LP201", dict(tp=8, cp=16, seq_len=8200)),
    ("torchtitan", "product of degrees = world", "1 3 1 8 4 1 128"): (
        "LP001",
        dict(tp=8, pp=4, dp=3, gpus=128),
    ),
    ("torchtitan", "layers per stage", "144 126 1 1"): ("LP302", dict(model=BIG, pp=16, virtual_stages=9)),
    ("picotron", "product of degrees = world", "16 3 1 1 4"): ("LP001", dict(tp=3, dp=4, gpus=16)),
    ("picotron", "n_heads % tp", "32 8 3"): ("LP101", dict(tp=3)),
    ("picotron", "n_kv_heads % tp", "32 8 16"): ("LP104", dict(tp=16)),
    ("colossalai", "n_heads % tp", "32 3"): ("LP101", dict(tp=3)),
    ("colossalai", "n_kv_heads % tp", "8 16"): ("LP104", dict(tp=16)),
    ("colossalai", "seq % (2*sp), more than 2*sp", "8200 16"): ("LP201", dict(cp=16, seq_len=8200)),
    ("colossalai", "weight dimension % tp", "[4096, 4096] 0 3"): ("LP103", dict(model=FFN, tp=3)),
    ("colossalai", "optimizer state of a padded vocabulary", "[16064, 8192] [128256, 8192] 8"): (
        "LP106",
        dict(model="llama3-70b", tp=8),
    ),
    ("vllm", "dimension % tp", "4096 3"): ("LP105", dict(model=MODEL.replace(vocab_size=4096), tp=3)),
    ("vllm", "n_heads % tp", "32 3"): ("LP101", dict(tp=3)),
    ("torch", "mesh > world", "16 [4, 8]"): ("LP001", dict(tp=8, dp=4, gpus=16)),
    ("torch", "n_kv_heads % tp, view per head", "8192 8 128 16 True"): ("LP104", dict(tp=16, seq_len=8192)),
    ("torch", "ffn % tp, default plan", "100 8"): ("LP103", dict(model=SMALL, tp=8, seq_len=2)),
    ("torch", "1F1B: microbatches < stages", "2 4"): ("LP305", dict(pp=4, micro_batches=2)),
    **{
        ("torch", "Interleaved1F1B: microbatches % rounds", f"{n} 4 8"): (
            "LP306",
            dict(pp=4, virtual_stages=2, micro_batches=n),
        )
        for n in (9, 13)
    },
}
JUDGE_OF = {"fairscale": "meta", "llama3": "meta", "megatron-core": "megatron"}

# Recorded refusals that no rule of ours speaks of, and why.
NOT_OURS = {
    "uneven first stage": "stages of chosen lengths are not part of a Job",
    "ep > 1 and cp > 1": "there is no expert axis",
    "axis not in order": "an order always has all four axes",
    "n_layers % pp": "training/arguments.py speaks first; its words are ours",
    "world % (tp*pp*cp)": "training/arguments.py speaks first; its words are ours",
    "dimension % tp": "ColossalAI's other layers say it in other words",
    "layers per stage": "weights of the ends other than 1 are not part of a Job",
    "virtual stages and schedule": "layers per stage are not part of a Job",
    "seq % (2*sp), more than 2*sp": "chunks of one token are of no use to anybody",
    "layer partition": "an environment variable of vLLM",
    "n_kv_heads % tp, view per head": "the DTensor form of the same refusal is told in the note",
    "fsdp uneven, not dim 0": "FSDP on another dim than 0 is not laid out here",
    "seq % (2*cp)": "a bare assert",
    "InterleavedZeroBubble: microbatches % rounds": "a schedule is not part of a Job",
    "DualPipeV: microbatches < stages": "a schedule is not part of a Job",
    "ZBVZeroBubble: stages per rank": "a schedule is not part of a Job",
    "unknown schedule": "a schedule is not part of a Job",
}


def key_of(told):
    return told["framework"], told["condition"], " ".join(str(v) for v in told["numbers"].values())


RECORDED = {key_of(told): told for told in oracle("messages")}


def test_every_recorded_refusal_is_asked_for_or_set_aside():
    assert set(ASKED) <= set(RECORDED)
    assert {key[1] for key in RECORDED if key not in ASKED} == set(NOT_OURS)


def recorded(key):
    message = RECORDED[key]["message"].split("\n")[0]
    if ASKED[key][1].get("model") is HEADS:
        message = message.replace("(36)", "(40)")
    return case(JUDGE_OF.get(key[0], key[0]), ASKED[key][0], message, **ASKED[key][1])


@pytest.mark.parametrize(("name", "code", "job", "message"), [recorded(key) for key in ASKED])
def test_messages_are_the_tools_own(name, code, job, message):
    (finding,) = [f for f in lp.check(**job, framework=name).findings if f.code == code]
    assert finding.severity == "error"
    assert finding.frameworks[framework(name).name].message == message


# -- verdicts that must follow from the numbers ----------------------------------------------------


@given(
    models(),
    st.integers(1, 33),
    st.sampled_from([None, Padding(64), Padding(32, True), Padding(128, True)]),
    st.sampled_from(sorted(JUDGES)),
)
def test_vocabulary_verdicts_follow_from_the_rows(model, tp, padding, name):
    """Also where the rule speaks because of another framework's padding, or of one that was asked for."""
    job = lp.Job.of(model, {"tp": tp}, padding=padding)
    f = FRAMEWORKS[name]
    verdict = f.judge("LP105", job)
    numbers = job.numbers(f.padding)
    if name in ("llama-models", "picotron", "distributed-llama"):
        assert verdict.fails == (model.vocab_size % tp != 0)
    elif f.padding != NO_PADDING and not verdict.fails:
        assert (verdict.verdict == ADAPTS) == (numbers["pad_rows"] > 0)
    if verdict.fails and name == "vllm":
        assert numbers["vocab_padded"] % tp
    saved = f.judge("LP106", job)
    assert saved.fails == (name == "colossalai" and numbers["pad_rows"] > 0)


@given(models(), st.integers(1, 33))
def test_head_verdicts_follow_from_metas_arithmetic(model, tp):
    """A model parallel that works has whole heads on every rank, whatever the message."""
    job = lp.Job.of(model, {"tp": tp})
    for name, f in FRAMEWORKS.items():
        kv, q = f.judge("LP104", job), f.judge("LP101", job)
        if model.n_kv_heads % tp and not kv.fails and kv.verdict != UNKNOWN:
            assert name in ("vllm", "megatron-lm")
            assert tp % model.n_kv_heads == 0
        if "integer division" in kv.message + q.message:
            assert model.n_kv_heads // tp == 0
        if (found := re.search(r"for input of size (\d+)", kv.message)) is not None:
            assert int(found[1]) % (job.numbers()["seq_local"] * model.head_dim)


def test_no_number_is_made_for_nobody():
    every = [case for f in FRAMEWORKS.values() for cases in f.cases.values() for case in cases]
    templates = [text for rule in RULE_BY_CODE.values() for text in (rule.message, rule.why)]
    templates += [text for case in every for text in (case.message, case.note)]
    used = {name for text in templates for _, name, _, _ in string.Formatter().parse(text) if name}
    of_memory = set(memory_rule.template_values(lp.Job.of("tiny", {})))
    job = lp.Job.of("tiny", {})
    fields = {*vars(job), *vars(job.layout), *vars(job.model)}  # they are there anyway
    assert used - fields == (NUMBERS | of_memory | {"reductions"}) - fields  # the last is its trainer's


# -- versions --------------------------------------------------------------------------------------


@ALL
@given(st.sampled_from(sorted(RULE_BY_CODE)), st.sampled_from([1, 3, 5, 8, 16]), st.integers(1, 5))
def test_a_version_says_nothing_that_no_version_said(name, code, tp, seq):
    """The verdict between any two changes is among those that the whole history tells."""
    f, job = FRAMEWORKS[name], lp.Job.of("llama3-8b", {"tp": tp, "cp": 2}, seq_len=1000 * seq)

    def told(verdict):
        return [] if verdict is None else [verdict.verdict, *told(verdict.before)]

    days = sorted({case.since for case in f.cases.get(code, ()) if case.since})
    whole = told(f.judge(code, job))
    for since, before in zip([None, *days], [*days, None], strict=True):
        assert told(of_version(f, since, before).judge(code, job))[0] in [*whole, UNKNOWN]

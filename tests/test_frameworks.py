"""The evidence on real frameworks: well formed, reachable, and word for word what the tools say."""

from __future__ import annotations

import re
import string
from dataclasses import replace
from datetime import date, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import llamapar as lp
from inputs import BAD_COUNTS, Hostile, models, oracle
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
    SILENT,
    UNKNOWN,
    VERDICTS,
    WORKS,
    Change,
    Evidence,
    Framework,
    Habits,
    Verdict,
    framework,
    of_version,
    padding_rule,
)
from llamapar.frameworks.cross_entropy import LOSSES
from llamapar.frameworks.trainer import EACH, LAST, LAST_IN_PIPELINE
from llamapar.frameworks.trainers import ROWS
from llamapar.place.sequence_map import CHUNKINGS
from llamapar.rules import memory_rule
from llamapar.rules.table import RULE_BY_CODE

ALL = pytest.mark.parametrize("name", FRAMEWORKS)


def case(framework: str, code: str, said: str = "", **job: Any) -> Any:
    """A parameter: what a framework says to a job by the rule of this code; of Llama 3 8B, if of no other."""
    return pytest.param(
        framework, code, {"model": "llama3-8b", "layout": {}} | job, said, id=f"{framework} {code} {said:.40}"
    )


NUMBERS = set(lp.Job.of("tiny", {}).numbers())
ALWAYS = Evidence.__dataclass_fields__["when"].default

# -- the form --------------------------------------------------------------------------------------


SHAPE = "shape '[1, 8192, -1, 128]' is invalid for input of size 524288"
COMMIT = r"[0-9a-f]{8,40}|v\d+(\.\d+\.\d+)?|\d{4}"


@ALL
def test_a_row_has_names_that_exist_and_sources_that_can_be_read(name: str) -> None:
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


def test_a_version_has_the_habits_of_its_day() -> None:
    for name, f in FRAMEWORKS.items():
        for change, old in f.until:
            before = date.fromisoformat(change.day) - timedelta(days=1)
            then, since = (framework(f"{name}@{day}") for day in (before, change.day))
            assert {field: getattr(then.habits, field) for field in old} == old
            assert since.habits == f.habits or len(f.until) > 1
            assert (since.spelled, str(before) in then.title) == (f"{name}@{change.day}", True)
    with pytest.raises(lp.LayoutError, match=r"'last year' is no date(.|\n)*torchtitan@2025-06-01"):
        framework("torchtitan@last year")


def test_a_stage_of_zero_that_a_trainer_has_not_is_said() -> None:
    def said(zero: int, name: str) -> str | None:
        report = lp.check("llama3-8b", lp.Layout(dp=2, zero=zero), framework=name)
        return next((f.severity for f in report.findings if f.code == "LP503"), None)

    names = ("picotron", "colossalai", "nanotron", "megatron-lm", "torchtitan")
    assert {name: said(3, name) for name in names} == {
        "picotron": "error",
        "colossalai": "error",
        "nanotron": "note",  # one sharded optimizer, for any stage
        "megatron-lm": None,  # another engine of it has that stage
        "torchtitan": None,
    }
    assert said(1, "picotron") is None
    assert FRAMEWORKS["megatron-lm"].habits.cp_method == "ring"


@ALL
def test_every_case_is_evidence(name: str) -> None:
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


def _replaced(newer: Evidence, older: Evidence) -> bool:
    """Whether there were versions that had the one and not yet the other."""
    return newer.since is not None and (older.since is None or older.since < newer.since)


@ALL
def test_sources_name_repository_path_and_commit(name: str) -> None:
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


def test_usual_spellings() -> None:
    for name, spellings in {
        "torchtitan": ("torchtitan", " Titan "),
        "megatron-lm": ("Megatron", "Megatron-LM", "mcore"),
        "llama-models": ("meta", "fairscale"),
        "transformers": ("HF", "huggingface"),
        "colossalai": ("ColossalAI", "colossal-ai"),
        "dtensor": ("torch",),
        "distributed-llama": ("dllama",),
        "vllm": ("vLLM",),
    }.items():
        assert {framework(each).name for each in (*spellings, FRAMEWORKS[name])} == {name}  # type: ignore[arg-type]
    every = [a for f in FRAMEWORKS.values() for a in {f.name, f.title.lower(), *f.aliases}]
    assert len(set(every)) == len(every)  # no two share one


def test_an_unknown_framework_gets_the_nearest() -> None:
    with pytest.raises(lp.LayoutError, match="framework='torchtian' is not known") as refusal:
        lp.check("tiny", {}, framework="torchtian")
    assert str(refusal.value) == (
        f"framework='torchtian' is not known\n  why  known are {', '.join(FRAMEWORKS)}\n  "
        "try  torchtitan, or torchtune"
    )
    for odd in (*BAD_COUNTS.values(), Hostile()):
        if odd is not None:
            with pytest.raises(lp.LayoutError, match=r"framework=.* is not known"):
                lp.check("tiny", {}, framework=odd)  # type: ignore[arg-type]


def test_padding_rules() -> None:
    assert padding_rule(None) is padding_rule("none") is NO_PADDING
    assert padding_rule("Megatron") == Padding(128, per_tp=True)
    assert padding_rule(FRAMEWORKS["vllm"]) == Padding(64)  # type: ignore[arg-type]
    assert padding_rule(Padding(32)) == Padding(32)
    assert (padding_rule("64"), padding_rule("32*tp")) == (Padding(64), Padding(32, per_tp=True))
    with pytest.raises(lp.LayoutError, match="padding=0"):
        padding_rule("0*tp")
    for odd in ("nope", "*tp", "32*", "32*tp*tp", "-1", "1" * 5000, "٣" * 10):
        with pytest.raises(lp.LayoutError, match=r"padding=.* is not known") as refusal:
            padding_rule(odd)
        assert refusal.value.why == f"known are none, 64, 64*tp, {', '.join(FRAMEWORKS)}"
    padded = {n for n, f in FRAMEWORKS.items() if f.padding != NO_PADDING}
    assert padded == {"megatron-lm", "colossalai", "nanotron", "vllm", "flagscale"}


# -- word for word ---------------------------------------------------------------------------------


MODEL = lp.model("llama3-8b")
FFN = MODEL.replace(ffn_dim=4096)
ODD = MODEL.replace(vocab_size=128257)
HEADS = lp.model("tiny").replace(n_heads=40, n_kv_heads=8, head_dim=8)
SMALL = dict(dim=8, n_layers=1, n_heads=8, n_kv_heads=8, ffn_dim=100, vocab_size=8)
BIG = "llama3.1-405b"

# What a recorded case is in our terms: tool, condition and numbers, the rule, and what is not 8B's own.
ASKED: dict[tuple[str, str, str], tuple[str, dict[str, Any]]] = {
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


def key_of(told: dict[str, Any]) -> tuple[str, str, str]:
    return told["framework"], told["condition"], " ".join(str(v) for v in told["numbers"].values())


RECORDED = {key_of(told): told for told in oracle("messages")}


def test_every_recorded_refusal_is_asked_for_or_set_aside() -> None:
    assert set(ASKED) <= set(RECORDED)
    assert {key[1] for key in RECORDED if key not in ASKED} == set(NOT_OURS)


def recorded(key: tuple[str, str, str]) -> Any:
    message = RECORDED[key]["message"].split("\n")[0]
    if ASKED[key][1].get("model") is HEADS:
        message = message.replace("(36)", "(40)")
    return case(JUDGE_OF.get(key[0], key[0]), ASKED[key][0], message, **ASKED[key][1])


@pytest.mark.parametrize(("name", "code", "job", "message"), [recorded(key) for key in ASKED])
def test_messages_are_the_tools_own(name: str, code: str, job: dict[str, Any], message: str) -> None:
    (finding,) = [f for f in lp.check(**job, framework=name).findings if f.code == code]
    assert finding.severity == "error"
    assert finding.frameworks[framework(name).name].message == message


@pytest.mark.parametrize(("count", "severity"), [(8, []), (9, ["error"]), (10, ["note"])])
def test_torch_wants_a_multiple_of_its_rounds_and_not_of_pp(count: int, severity: list[str]) -> None:
    layout = {"pp": 4, "virtual_stages": 2}
    report = lp.check("llama3-8b", layout, framework="torchtitan", micro_batches=count)
    assert [f.severity for f in report.findings if f.code == "LP306"] == severity


def test_logs_of_padded_vocabularies() -> None:
    for name, rows, tp, log in (
        ("megatron-lm", 128256, 8, " > padded vocab (size: 128256) with 768 dummy tokens (new size: 129024)"),
        (
            "nanotron",
            128250,
            4,
            "[Vocab Size Padding] Padded vocab (size: 128250) with 2 dummy tokens (new size: 128252)",
        ),
    ):
        report = lp.check(MODEL.replace(vocab_size=rows), tp=tp, framework=name)
        assert {f.code: f.frameworks[name].message for f in report.findings}["LP105"] == log


# -- verdicts that must follow from the numbers ----------------------------------------------------


@given(
    models(),
    st.integers(1, 33),
    st.sampled_from([None, Padding(64), Padding(32, True), Padding(128, True)]),
    st.sampled_from(sorted(JUDGES)),
)
def test_vocabulary_verdicts_follow_from_the_rows(
    model: lp.ModelConfig, tp: int, padding: Padding | None, name: str
) -> None:
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
def test_head_verdicts_follow_from_metas_arithmetic(model: lp.ModelConfig, tp: int) -> None:
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


def test_no_number_is_made_for_nobody() -> None:
    every = [case for f in FRAMEWORKS.values() for cases in f.cases.values() for case in cases]
    templates = [text for rule in RULE_BY_CODE.values() for text in (rule.message, rule.why)]
    templates += [text for case in every for text in (case.message, case.note)]
    used = {name for text in templates for _, name, _, _ in string.Formatter().parse(text) if name}
    of_memory = set(memory_rule.template_values(lp.Job.of("tiny", {})))
    job = lp.Job.of("tiny", {})
    fields = {*vars(job), *vars(job.layout), *vars(job.model)}  # they are there anyway
    assert used - fields == (NUMBERS | of_memory | {"reductions"}) - fields  # the last is its trainer's


# -- versions --------------------------------------------------------------------------------------

GROUPS = "num_query_groups (8) must be a multiple of tensor_model_parallel_size (16)."
HALF = lp.Job.of("llama3-8b", {"tp": 16})
"""Half a KV head a rank."""
PADDED = lp.Job.of("llama3-70b", {"tp": 8})

EARLY, VALIDATED, LATE = (
    Change("2026-02-23", "#2386"),
    Change("2026-03-15", "#2577"),
    Change("2026-08-21", ""),
)


def test_where_the_version_is_not_known_both_verdicts_are_told() -> None:
    verdict = framework("torchtitan").judge("LP104", HALF)
    assert (verdict.verdict, verdict.since) == ("clear error", VALIDATED)
    assert verdict.words == (
        "tensor_parallel_degree (16) must divide n_kv_heads (8).; before 2026-03-15 (#2577) crash in "
        f"forward: {SHAPE}"
    )
    assert verdict.dated == " (since 2026-03-15)"
    plain = verdict.as_dict()
    assert (plain["since"], plain["before"]["verdict"]) == ("2026-03-15 (#2577)", "crash in forward")
    for name, code, job, now, since, earlier in (
        ("megatron", "LP104", HALF, ADAPTS, "2025-12-07 (f7dfb99795)", GROUPS),
        ("colossalai", "LP106", PADDED, "crash at save", "2025-01-21 (#6168)", SILENT),
    ):
        verdict = framework(name).judge(code, job)
        assert (verdict.verdict, str(verdict.since)) == (now, since)
        assert verdict.before is not None
        assert earlier in (verdict.before.verdict, verdict.before.message)


@pytest.mark.parametrize(
    ("since", "before", "verdict", "earlier"),
    [
        (None, EARLY, "crash in forward", None),
        (None, VALIDATED, "crash in forward", None),
        (VALIDATED, None, "clear error", None),
        (LATE, None, "clear error", None),
        (EARLY, LATE, "clear error", "crash in forward"),
        (EARLY, None, "clear error", "crash in forward"),
        (None, LATE, "clear error", "crash in forward"),
    ],
)
def test_a_version_chooses_its_verdict(
    since: Change | None, before: Change | None, verdict: str, earlier: str | None
) -> None:
    of_then = of_version(framework("torchtitan"), since, before)
    found = of_then.judge("LP104", HALF)
    assert (found.verdict, found.before.verdict if found.before else None) == (verdict, earlier)
    assert of_then is of_version(framework("torchtitan"), since, before)


def test_a_row_ends_where_another_came_even_if_that_one_does_not_fit() -> None:
    """Since batches are counted in tokens, two sequences of 12 may be cut in 8; one of them never could."""
    job = lp.Job.of("llama3-8b", {"cp": 4}, seq_len=12, micro_batch=2)
    assert framework("torchtitan").judge("LP201", job).verdict == UNKNOWN
    [old] = [of_version(framework("torchtitan"), None, EARLY).judge("LP201", job)]
    assert old.message == (
        "Sequence length 12 must be divisible by the product of TP degree (1) and 2 * CP degree (4)."
    )
    assert str(old.since) == "2025-06-24 (#1312)"


def test_before_the_evidence_nothing_is_known() -> None:
    uneven = lp.Job.of("llama3-8b", {"tp": 5})
    now, then = framework("torchtitan"), of_version(framework("torchtitan"), None, EARLY)
    assert now.judge("LP105", uneven).words.endswith("before 2026-08-18 (#4085) not known")
    assert then.judge("LP105", uneven).verdict == UNKNOWN


@ALL
@given(st.sampled_from(sorted(RULE_BY_CODE)), st.sampled_from([1, 3, 5, 8, 16]), st.integers(1, 5))
def test_a_version_says_nothing_that_no_version_said(name: str, code: str, tp: int, seq: int) -> None:
    """The verdict between any two changes is among those that the whole history tells."""
    f, job = FRAMEWORKS[name], lp.Job.of("llama3-8b", {"tp": tp, "cp": 2}, seq_len=1000 * seq)

    def told(verdict: Verdict | None) -> list[str]:
        return [] if verdict is None else [verdict.verdict, *told(verdict.before)]

    days = sorted({case.since for case in f.cases.get(code, ()) if case.since})
    whole = told(f.judge(code, job))
    for since, before in zip([None, *days], [*days, None], strict=True):
        assert told(of_version(f, since, before).judge(code, job))[0] in [*whole, UNKNOWN]


# -- a fix in a framework's own words --------------------------------------------------------------


def test_a_setting_has_the_name_of_its_version() -> None:
    now, then = framework("torchtitan"), of_version(framework("torchtitan"), None, EARLY)
    for name, value, new, old in (
        ("seq_len", 8192, "max_context_length=8192", "seq_len=8192"),
        ("global_batch", 4, "global_batch=4", "global_batch_size=4"),
    ):
        assert (now.setting(name, value), then.setting(name, value)) == (new, old)

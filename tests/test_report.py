"""`check` and `require`: what a report says as text, as HTML and as plain values."""

from __future__ import annotations

import json
import re
from html import unescape
from typing import Any

import pytest
from hypothesis import given, settings

import llamapar as lp
from inputs import Page, jobs, layouts, models
from llamapar.frameworks import JUDGES, VERDICTS
from llamapar.rules.report import Finding, check_job
from llamapar.rules.table import ERROR, MEMORY, SEVERITIES
from verdicts import by_verdict

B8, B70, B405 = "llama3-8b", "llama3-70b", "llama3.1-405b"
PAPER = {
    "model": B405,
    "layout": lp.Layout(tp=8, cp=16, pp=16, dp=4),
    "gpus": 16384,
    "seq_len": 131072,
    "batch_tokens": 2**24,
    "batch_per_dp": 16,
}

# -- text ------------------------------------------------------------------------------------------


TITAN = """\
llama3-8b  tp=16 cp=1 pp=1 dp=1 (16 ranks) for torchtitan: 1 error, 1 warning
LP104 error  tp=16 does not divide n_kv_heads=8 (llama3-8b)
    why  a rank would need half a KV head; tp may be 1, 2, 4, 8
    try  tensor_parallel_degree=8 dp=2 (8·1·1·2 = 16 ranks)
    or   tensor_parallel_degree=8 context_parallel_degree=2 (8·2·1·1 = 16 ranks)
    or   tensor_parallel_degree=8 pipeline_parallel_degree=2 (8·1·2·1 = 16 ranks)
    torchtitan: clear error: tensor_parallel_degree (16) must divide n_kv_heads (8).; before 2026-03-15 \
(#2577) crash in forward: shape '[1, 8192, -1, 128]' is invalid for input of size 524288
LP003 warning  a TP group of 16 ranks spans 16 consecutive GPUs and leaves its node of 8
    why  TP communicates in every layer; across nodes it runs at the speed of the network
    try  tensor_parallel_degree=8 dp=2 (8·1·1·2 = 16 ranks)
    or   tensor_parallel_degree=8 context_parallel_degree=2 (8·2·1·1 = 16 ranks)
    or   tensor_parallel_degree=8 pipeline_parallel_degree=2 (8·1·2·1 = 16 ranks)"""


def test_nothing_to_report() -> None:
    report = lp.check(B8, lp.Layout(tp=8), gpus=8, seq_len=8192)
    assert report.ok
    assert report.findings == report.fixes == ()
    assert str(report) == "llama3-8b  tp=8 cp=1 pp=1 dp=1 (8 ranks): nothing to report"
    right = lp.check(**{**PAPER, "layout": lp.Layout(tp=8, cp=16, pp=16, dp=8)})
    assert right.ok
    codes = [f.code for f in right.findings]
    assert codes == ["LP301", "LP511"]  # 126 layers over 16 stages: the paper's own


def test_a_finding_shows_itself() -> None:
    finding = lp.check(B8, {"tp": 16}, gpus=16, framework="torchtitan").findings[0]
    assert isinstance(finding, Finding)
    assert str(finding) == repr(finding) == "\n".join(TITAN.splitlines()[1:7])
    assert finding.frameworks["vllm"].verdict == "works by replicating or padding"
    assert list(finding.frameworks)[:2] == ["torchtitan", "llama-models"]
    first, *others = by_verdict("LP104")["clear error"]
    assert finding.by_verdict()["clear error"] == [f"{first} (since 2026-03-15)", *others]


# -- ok --------------------------------------------------------------------------------------------


def test_without_a_framework_the_paper_judges() -> None:
    """KV heads are not replicated unless asked, uneven stages are allowed, padding is a note."""
    assert not lp.check(B8, {"tp": 16}).ok
    assert lp.check(B8, {"tp": 16}, kv_replication=True).ok
    assert lp.check(B405, {"pp": 16}).ok
    padded = lp.check(B70, {"tp": 8}, padding="colossalai")
    assert padded.ok
    assert [(f.code, f.severity) for f in padded.findings] == [("LP105", "note"), ("LP511", "note")]


# -- check never raises for what cannot work, require does -----------------------------------------


FEW = settings(max_examples=settings.default.max_examples // 3)
"""Of random contradictions many have no way out, and then every layout is tried in vain: seconds a job."""


@FEW
@given(jobs())
def test_any_job_has_a_report_that_every_form_tells(arguments: dict[str, Any]) -> None:
    """Check raises for no layout that cannot work; text, page and plain values say the same, twice alike."""
    report = lp.check(**arguments)
    assert report.ok == (not any(f.severity == ERROR for f in report.findings))
    again = check_job(report.job, report.judge)
    page, plain = report._repr_html_(), report.as_dict()
    assert (str(report), page, plain) == (str(again), again._repr_html_(), again.as_dict())
    is_json(report, plain)
    says_what_the_text_says(report, page)


@FEW
@given(models(), layouts())
def test_require_raises_exactly_where_check_is_not_ok(model: lp.ModelConfig, layout: lp.Layout) -> None:
    report = lp.check(model, layout)
    if report.ok:
        assert str(lp.require(model, layout)) == str(report)
        return
    with pytest.raises(lp.LayoutError, match=r"^LP\d{3} error  ") as refusal:
        lp.require(model, layout)
    assert str(refusal.value.report) == str(report)
    errors = [f for f in report.findings if f.severity == ERROR]
    assert str(refusal.value) == "\n".join(map(str, errors))


def test_require_whole() -> None:
    with pytest.raises(lp.LayoutError, match="LP104") as refusal:
        lp.require(B8, {"tp": 16}, gpus=16, framework="torchtitan")
    assert str(refusal.value) == "\n".join(TITAN.splitlines()[1:7])
    assert str(refusal.value.report) == TITAN
    assert lp.require(B8, {"tp": 8}, gpus=8).ok


# -- plain values ----------------------------------------------------------------------------------


def is_json(report: lp.Report, plain: dict[str, Any]) -> None:
    made = json.loads(json.dumps(plain, allow_nan=False))
    assert set(made) == {"ok", "findings"}
    assert made["ok"] is report.ok
    for finding in made["findings"]:
        assert set(finding) == {"code", "severity", "message", "why", "fixes", "frameworks"}
        assert re.fullmatch(r"LP\d{3}", finding["code"])
        assert finding["severity"] in SEVERITIES
        judge = {report.judge.name} if report.judge else set()
        assert set(finding["frameworks"]) == {*JUDGES, *judge}
        for verdict in finding["frameworks"].values():
            assert set(verdict) - {"part", "others", "since", "before"} == {"verdict", "message", "source"}
            assert verdict["verdict"] in VERDICTS
            # A repository with its path and commit, or a paper with its section and version.
            source = r"^(\S+/\S+|arXiv:\S+): .*@"
            assert verdict["verdict"] == "not known" or re.search(source, verdict["source"])
        for fix in finding["fixes"]:
            assert {"tp", "cp", "pp", "dp", "text", "effect"} <= set(fix)
            assert set(fix["effect"]) == {"memory_bytes", "time", "idle_gpus"}
            assert all(isinstance(fix[axis], int) for axis in lp.AXES)


def test_as_dict_whole() -> None:
    made = lp.check(B8, tp=16, gpus=16, gpus_per_node=16, framework="torchtitan").as_dict()
    (finding,) = made.pop("findings")
    frameworks, fixes = finding.pop("frameworks"), finding.pop("fixes")
    assert (made, finding) == (
        {"ok": False},
        {
            "code": "LP104",
            "severity": "error",
            "message": "tp=16 does not divide n_kv_heads=8 (llama3-8b)",
            "why": "a rank would need half a KV head; tp may be 1, 2, 4, 8",
        },
    )
    effects = [fix.pop("effect") for fix in fixes]
    assert [round(effect.pop("memory_bytes") / 2**30) for effect in effects] == [9, 9, 9]
    assert effects == [{"time": None, "idle_gpus": 0}] * 3  # without a sequence length and a GPU
    assert [tuple(fix[axis] for axis in lp.AXES) for fix in fixes] == [
        (8, 1, 1, 2),
        (8, 2, 1, 1),
        (8, 1, 2, 1),
    ]
    assert fixes[0] == dict(tp=8, cp=1, pp=1, dp=2, text="tensor_parallel_degree=8 dp=2 (8·1·1·2 = 16 ranks)")
    before = {
        "verdict": "crash in forward",
        "message": "shape '[1, 8192, -1, 128]' is invalid for input of size 524288",
        "source": "pytorch/torchtitan: torchtitan/models/llama3/model/model.py:257 @238fa9953e",
    }
    assert frameworks["torchtitan"] == {
        "verdict": "clear error",
        "message": "tensor_parallel_degree (16) must divide n_kv_heads (8).",
        "source": "pytorch/torchtitan: torchtitan/models/common/decoder.py:195-198 @b5bcd76c66",
        "since": "2026-03-15 (#2577)",
        "before": before,
    }
    assert frameworks["vllm"]["message"] == "each KV head on 2 ranks: rank r loads head r // 2"


# -- HTML ------------------------------------------------------------------------------------------


NAME = """<script>alert("x")</script> & '<b>' {tp} {0}"""


def test_a_hostile_name_is_only_a_name() -> None:
    model = lp.model(B405).replace(name=NAME)
    for name in (None, "megatron-lm", "torchtitan"):
        report = lp.check(model, {"tp": 24, "pp": 16}, gpus=4096, framework=name)
        html = report._repr_html_()
        says_what_the_text_says(report, html)
        assert unescape(html).count(NAME) > 0
        assert "<script" not in html
        assert NAME in str(report)
        assert NAME in json.loads(json.dumps(report.as_dict()))["findings"][0]["message"] + report.summary


def says_what_the_text_says(report: lp.Report, html: str) -> None:
    page = Page()
    page.feed(html)
    page.close()
    assert page.open == []
    text = "".join(page.text)
    for finding in report.findings:
        assert finding.message in text
        assert finding.why in text
        assert all(fix.text in text and fix.effect.text in text for fix in finding.fixes)
        for verdict in () if finding.rule in MEMORY else finding.frameworks.values():
            assert verdict.verdict in text
            assert (verdict.message or verdict.note) in text
            assert str(verdict.source or "") in text

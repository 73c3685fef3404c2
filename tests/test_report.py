"""`check` and `require`: what a report says as text, as HTML and as plain values."""

import json
import re
from html import unescape

import pytest
from hypothesis import given, settings

import llamapar as lp
from inputs import Page, jobs, layouts, models
from llamapar.frameworks import JUDGES, VERDICTS
from llamapar.rules.report import check_job
from llamapar.rules.table import ERROR, MEMORY, SEVERITIES

B8, B70, B405 = "llama3-8b", "llama3-70b", "llama3.1-405b"

# -- check never raises for what cannot work, require does -----------------------------------------


FEW = settings(max_examples=settings.default.max_examples // 3)
"""Of random contradictions many have no way out, and then every layout is tried in vain: seconds a job."""


@FEW
@given(jobs())
def test_any_job_has_a_report_that_every_form_tells(arguments):
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
def test_require_raises_exactly_where_check_is_not_ok(model, layout):
    report = lp.check(model, layout)
    if report.ok:
        assert str(lp.require(model, layout)) == str(report)
        return
    with pytest.raises(lp.LayoutError, match=r"^LP\d{3} error  ") as refusal:
        lp.require(model, layout)
    assert str(refusal.value.report) == str(report)
    errors = [f for f in report.findings if f.severity == ERROR]
    assert str(refusal.value) == "\n".join(map(str, errors))


# -- plain values ----------------------------------------------------------------------------------


def is_json(report, plain):
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


# -- HTML ------------------------------------------------------------------------------------------


NAME = """<script>alert("x")</script> & '<b>' {tp} {0}"""


def test_parameters_are_gathered_under_zero_3_alone():
    told = [str(lp.check("llama3-8b", lp.Layout(pp=2, dp=4, zero=zero))) for zero in (2, 3)]
    assert ["parameters are gathered" in " ".join(text.split()) for text in told] == [False, True]


def test_a_hostile_name_is_only_a_name():
    model = lp.model(B405).replace(name=NAME)
    for name in (None, "megatron-lm", "torchtitan"):
        report = lp.check(model, {"tp": 24, "pp": 16}, gpus=4096, framework=name)
        html = report._repr_html_()
        says_what_the_text_says(report, html)
        assert unescape(html).count(NAME) > 0
        assert "<script" not in html
        assert NAME in str(report)
        assert NAME in json.loads(json.dumps(report.as_dict()))["findings"][0]["message"] + report.summary


def says_what_the_text_says(report, html):
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

"""Every rule: an example that it speaks of and one that it does not, its severity; words: texts/rules.txt."""

import re
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import llamapar as lp
from inputs import jobs
from llamapar.count.terms import TOO_MUCH, UNDECIDED
from llamapar.frameworks import ADAPTS, FAILS, FRAMEWORKS, NA, UNKNOWN, VERDICTS, WORKS
from llamapar.rules import memory_rule
from llamapar.rules.report import Finding
from llamapar.rules.table import ERROR, MEMORY, NOTE, RULES, SEVERITIES, WARNING

B8, B70, B405 = "llama3-8b", "llama3-70b", "llama3.1-405b"


EXAMPLES = tomllib.loads(Path(__file__).with_name("rule_examples.toml").read_text("utf-8"))
for _example in EXAMPLES.values():
    for _side in (_example["bad"], _example["good"]):
        if isinstance(_said := _side.get("model"), dict):
            _side["model"] = lp.model(_said.pop("preset")).replace(**_said)


def asked(code: str, good: bool = False, **changes: object) -> lp.Report:
    example = EXAMPLES[code]
    return lp.check(**{"layout": {}, **example["bad"], **(example["good"] if good else {}), **changes})


def found(code: str, report: lp.Report) -> Finding | None:
    return next((f for f in report.findings if f.code == code), None)


def test_every_rule_has_an_example():
    told = "a rule has its example in rule_examples.toml, and stands where its code belongs"
    assert [rule.code for rule in RULES] == sorted(EXAMPLES), told
    assert len({rule.title for rule in RULES}) == len(RULES)
    for rule in RULES:
        assert "\n" not in rule.message + rule.why
        assert "{" in rule.message or rule.code == "LP204"
        assert not rule.message.endswith(".")


@pytest.mark.parametrize("code", EXAMPLES)
def test_the_rule_speaks_of_its_failing_example(code):
    severity = EXAMPLES[code].get("severity")
    assert found(code, asked(code)) is not None
    paper = found(code, asked(code, framework=None))
    assert (paper.severity if paper else None) == severity
    assert asked(code, framework=None).ok == (severity != ERROR)


@pytest.mark.parametrize("code", EXAMPLES)
def test_the_rule_is_silent_on_its_passing_example(code):
    assert found(code, asked(code, good=True)) is None
    for name in FRAMEWORKS:
        finding = found(code, asked(code, good=True, framework=name))
        if code == "LP203":  # torchtitan and Meta speak of 8,192 and of the model's context alone
            assert finding is None
        elif code not in ("LP105", "LP106"):  # with a framework its own padding applies
            assert finding is None or finding.severity == NOTE, name


@pytest.mark.parametrize("code", EXAMPLES)
def test_severity_under_each_framework(code):
    for name in FRAMEWORKS:
        judged_as_the_framework_does(code, name)


def judged_as_the_framework_does(code: str, name: str) -> None:
    """A failure is an error, what works is at most a note, and of what is not known no error is made."""
    usual = EXAMPLES[code].get("severity")
    report = asked(code, framework=name)
    finding = found(code, report)
    verdict = lp.FRAMEWORKS[name].judge(code, report.job)
    assert verdict.verdict in VERDICTS
    severity = finding.severity if finding else None
    if verdict.verdict in FAILS:
        assert severity == ERROR
        assert not report.ok
    elif verdict.verdict in (WORKS, ADAPTS):
        assert severity == (NOTE if usual or verdict.verdict == ADAPTS else None)
    elif verdict.verdict == NA and code in ("LP501", "LP503"):
        assert severity == ERROR
    elif code in ("LP511", "LP512"):  # bytes of training are a note for what only serves
        load = memory_rule.load_of(report.job, lp.FRAMEWORKS[name])  # a trainer's habits decide
        speaks = load.outcome(report.job.gpu) == {"LP511": TOO_MUCH, "LP512": UNDECIDED}[code]
        assert severity == ((speaks and (usual if lp.FRAMEWORKS[name].trains else NOTE)) or None)
    elif verdict.verdict == NA and code == "LP001":
        assert severity == WARNING  # it makes another dp of the GPUs, and runs
    elif code in ("LP301", "LP303") and lp.FRAMEWORKS[name].layer_split == "equal":
        assert severity == ERROR  # its split refuses layers that do not divide
    elif code == "LP501" and verdict.note.startswith("read was"):
        assert severity == NOTE  # of what else it cuts by nobody has read
    elif (
        code in (*OF_FACTS, "LP513")
        or usual != ERROR
        or verdict.verdict != UNKNOWN
        or lp.FRAMEWORKS[name].as_paper(code)
    ):
        assert severity == usual
    else:
        assert severity == NOTE
        assert finding.unproven
        assert str(finding).endswith(": not known, so unproven: the paper's own semantics would refuse it")
        assert "so unproven" in finding._repr_html_()
    if finding and verdict.verdict != UNKNOWN:
        assert finding.frameworks[name] == verdict
        assert next(iter(finding.frameworks)) == name  # the judge comes first
        assert re.fullmatch(r"\S+[/:]\S+: \S.* @(v[\d.]+|[0-9a-f]{10})", str(verdict.source))
        assert verdict.message or verdict.note


OF_FACTS = ("LP002", "LP302", "LP401", "LP402", "LP403", "LP404", "LP405")
"""Numbers that contradict one another, whoever is to run them."""


def test_megatrons_messages_name_their_part():
    finding = found("LP301", lp.check(B8, pp=3, framework="megatron"))
    plain = finding.frameworks["megatron-lm"].as_dict()
    assert (plain["part"], [other["part"] for other in plain["others"]]) == ("arguments", ["core"])
    assert "its core: num_layers=32" in finding._repr_html_()


def test_what_is_unproven_refuses_nothing():
    unknown = {"model": B8, "tp": 8, "cp": 4, "seq_len": 8188, "framework": "vllm"}
    report = lp.check(**unknown)
    assert report.ok
    assert [(f.code, f.severity, f.unproven, f.fixes) for f in report.findings] == [
        ("LP201", NOTE, True, ()),
        ("LP202", NOTE, True, ()),
    ]
    assert not lp.check(**{**unknown, "framework": None}).ok
    assert not any(f.unproven for f in lp.check(**{**unknown, "framework": None}).findings)
    assert {rule.code for rule in RULES if rule.of_facts} == {*OF_FACTS, *(rule.code for rule in MEMORY)}


def test_no_fix_brings_something_unproven():
    """What vLLM does with 8,192 tokens over cp=3 is not known, so tp=4 cp=3 is not offered."""
    report = lp.check(B8, {"tp": 12}, gpus=12, seq_len=8192, framework="vllm")
    offered = [fix for finding in report.findings for fix in finding.fixes]
    assert offered
    for fix in offered:
        after = lp.check(B8, fix.layout, gpus=fix.job.gpus, seq_len=fix.job.seq_len, framework="vllm")
        assert "LP201" not in {f.code for f in after.findings}, fix.text


def test_tp_may_fill_a_whole_node_or_a_part_of_one():
    for tp, dp, per_node, speaks in (
        (8, 2, 8, False),
        (16, 1, 8, True),
        (4, 1, 2, True),
        (6, 4, 8, True),  # the second group lies across two nodes
        (4, 1, 8, False),
        (16, 9, 72, True),
        (8, 9, 72, False),
    ):
        report = lp.check(B405, tp=tp, dp=dp, gpus_per_node=per_node)
        assert (found("LP003", report) is not None) == speaks, (tp, dp, per_node)
    for dp, speaks in ((4, False), (8, True)):  # 8 consecutive GPUs hold four whole groups
        report = lp.check(B405, tp=2, dp=dp, order="dp-tp-cp-pp")
        assert (found("LP003", report) is not None) == speaks, dp


# -- the templates ---------------------------------------------------------------------------------

COUNTED = set(memory_rule.template_values(lp.Job.of(B8, {})))


@given(jobs())
def test_every_template_fills_in_for_any_job(arguments):
    """Rules and evidence that do not apply as well: no number may be missing or impossible."""
    job = lp.check(**arguments).job
    numbers = job.numbers() | dict.fromkeys((*COUNTED, "reductions"), "?")
    if memory_rule.load_of(job):
        numbers |= memory_rule.template_values(job)
    for rule in RULES:
        assert rule.severity(job) in (*SEVERITIES, None)
        for template in (rule.message, rule.why):
            text = template.format_map(numbers)
            assert "{" not in text.replace(job.model.name, "")
    for framework in FRAMEWORKS.values():
        own = job.numbers(framework.padding)
        for cases in framework.cases.values():
            for case in cases:
                assert case.when(job) in (True, False)
                assert isinstance(case.message.format_map(own) + case.note.format_map(own), str)


@given(jobs())
def test_a_finding_speaks_of_numbers_that_were_given(arguments):
    """No text of a finding says None: a rule speaks only where its numbers are known; errors come first."""
    report = lp.check(**arguments)
    order = [SEVERITIES.index(f.severity) for f in report.findings]
    assert order == sorted(order)
    assert len({f.code for f in report.findings}) == len(order)
    assert report.ok == (0 not in order)
    for finding in report.findings:
        assert "None" not in finding.message + finding.why
        for verdict in finding.frameworks.values():
            assert "None" not in verdict.message + verdict.note
            assert verdict.verdict in VERDICTS


# -- the dp that a framework makes -----------------------------------------------------------------


def test_a_batch_is_judged_by_the_dp_that_megatron_makes():
    """Of 8 GPUs at tp=2 it makes dp=4, whatever dp was given."""
    asked = {"model": B8, "tp": 2, "dp": 2, "gpus": 8, "micro_batch": 1, "framework": "megatron"}
    report = lp.check(**asked, global_batch=6)
    finding = found("LP401", report)
    assert finding is not None
    assert finding.message == "global_batch=6 is not a multiple of dp·micro_batch = 4·1 = 4"
    # The batch is held: other degrees come before another batch.
    assert [dict(fix.changes) for fix in finding.fixes][:2] == [{"tp": 4}, {"cp": 2}]
    assert finding.frameworks["megatron-lm"].message == (
        "global batch size (6) is not divisible by micro batch size (1) times data parallel size (4)"
    )
    assert lp.check(**asked, global_batch=8).ok
    small = lp.check(**asked | {"gpus": 16, "gpu": "h100-80gb"}, seq_len=8192)
    made = lp.check(**asked | {"gpus": 16, "gpu": "h100-80gb"} | {"tp": 2, "dp": 8}, seq_len=8192)
    assert str(small.memory) == str(made.memory)


@given(jobs(), st.sampled_from(["megatron-lm", "colossalai", "llama-models"]), st.integers(1, 64))
def test_every_rule_sees_the_dp_that_is_made(arguments, name, made):
    """A layout with any dp is judged as the one with the dp that the framework makes of the GPUs."""
    given_layout = arguments["layout"].replace(dp_replicate=1)
    ways = given_layout.tp * given_layout.cp * given_layout.pp
    asked = arguments | {"framework": name, "gpus": ways * made}
    seen = [
        {(f.code, f.severity, f.message) for f in lp.check(**asked | {"layout": lay}).arithmetic}
        for lay in (given_layout, given_layout.replace(dp=made))
    ]
    first, other = ({row for row in rows if row[0] != "LP001"} for rows in seen)
    assert first == other

"""Every rule: an example that it speaks of and one that it does not, its texts whole, its severity."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import llamapar as lp
from inputs import jobs
from llamapar.count import Memory
from llamapar.count.terms import TOO_MUCH, UNDECIDED
from llamapar.frameworks import ADAPTS, FAILS, FRAMEWORKS, NA, SILENT, UNKNOWN, VERDICTS, WORKS
from llamapar.rules import memory_rule
from llamapar.rules.report import Finding
from llamapar.rules.table import ERROR, MEMORY, NOTE, RULES, SEVERITIES, WARNING

B8, B70, B405 = "llama3-8b", "llama3-70b", "llama3.1-405b"


@dataclass(frozen=True)
class Example:
    """Arguments of which a rule speaks, what it then says, and arguments of which it does not."""

    bad: dict[str, Any]
    severity: str | None
    """Under the paper's semantics; None: only a framework has something to say."""
    message: str
    why: str
    good: dict[str, Any]
    """Changes of `bad` after which the rule has nothing to say."""


SPLIT70 = {"model": B70, "dp": 64, "seq_len": 8192, "gpu": "h100-80gb"}
STRADDLES = {"model": B8, "tp": 8, "dp": 8, "seq_len": 8192, "micro_batch": 8}
STRADDLES |= {"recompute": "none", "gpu": "h100-80gb"}


def needs(**job: Any) -> Memory:
    """What `lp.memory` says of an example's job."""
    return lp.memory(**{name: value for name, value in job.items() if name != "gpu"})


def largest(**job: Any) -> str:
    """The three largest terms of the worst rank."""
    found = needs(**job)
    terms = sorted(found.worst.terms, key=lambda term: -term.bytes)[:3]
    named = ", ".join(f"{term.name} {term.bytes / 2**30:.2f}" for term in terms)
    return f"largest in stage {found.worst.stage}: {named} GiB"


EXAMPLES = {
    "LP001": Example(
        {"model": B405, "tp": 8, "cp": 16, "pp": 16, "dp": 4, "gpus": 16384},
        ERROR,
        "tp·cp·pp·dp = 8·16·16·4 = 8192, but there are 16384 GPUs",
        "every GPU is one rank; 8192 would be missing or idle",
        {"tp": 8, "cp": 16, "pp": 16, "dp": 8},
    ),
    "LP002": Example(
        {
            "model": B405,
            "tp": 8,
            "cp": 16,
            "pp": 16,
            "dp": 4,
            "seq_len": 131072,
            "batch_per_dp": 16,
            "batch_tokens": 2**24,
        },
        ERROR,
        "batch_per_dp·dp·seq_len = 16·4·131072 = 8388608 tokens, but the batch has 16777216",
        "each of the dp groups reads its own sequences; CP and TP ranks share them",
        {"batch_per_dp": 32},
    ),
    "LP003": Example(
        {"model": B70, "tp": 4, "dp": 4, "order": "dp-tp-cp-pp"},
        WARNING,
        "a TP group of 4 ranks spans 13 consecutive GPUs and leaves its node of 8",
        "TP communicates in every layer; across nodes it runs at the speed of the network",
        {"order": "tp-cp-pp-dp"},
    ),
    "LP101": Example(
        {"model": B8, "tp": 3},
        ERROR,
        "tp=3 does not divide n_heads=32 (llama3-8b)",
        "a rank would need 10.67 query heads",
        {"tp": 4},
    ),
    "LP103": Example(
        {"model": lp.model("llama2-7b").replace(ffn_dim=11000, name="odd"), "tp": 32},
        ERROR,
        "tp=32 does not divide ffn_dim=11000 (odd)",
        "a rank would need 343.75 FFN columns",
        {"tp": 8},
    ),
    "LP104": Example(
        {"model": B8, "tp": 16, "seq_len": 8192},
        ERROR,
        "tp=16 does not divide n_kv_heads=8 (llama3-8b)",
        "a rank would need half a KV head",
        {"tp": 8},
    ),
    "LP105": Example(
        {"model": lp.model(B8).replace(vocab_size=128257, name="odd"), "tp": 8},
        NOTE,
        "vocab_size=128257 over tp=8: 128257 rows with no padding, 0 of them dead, 16033 on a full rank",
        "128257 / 8 = 16032.125; shards are uneven, the last ones shorter",
        {"tp": 1},
    ),
    "LP106": Example(
        {"model": B70, "tp": 8, "framework": "colossalai"},
        None,
        "256 pad rows (128256 → 128512) reach the checkpoint code",
        "a shard of 16064 rows times tp=8 is 128512, not 128256",
        {"tp": 4},
    ),
    "LP107": Example(
        {"model": "qwen2.5-72b", "tp": 2, "quant_group": 128},
        ERROR,
        "ffn_dim/tp = 29568/2 = 14784 is not a multiple of the quantisation group 128",
        "a group of weights shares one scale and cannot lie on two ranks",
        {"tp": 1},
    ),
    "LP108": Example(
        {"model": lp.model(B8).replace(ffn_dim=14344, name="odd"), "tp": 8, "precision": "float8"},
        ERROR,
        "float8 matmuls need multiples of 16 on a rank, and tp=8 leaves ffn_dim 1793 (odd)",
        "torch's float8 matmul refuses other sizes",
        {"precision": "bfloat16"},
    ),
    "LP109": Example(
        {
            "model": lp.model("tiny").replace(
                experts={"count": 8, "active": 2, "width": 128}, name="mixed", vocab_size=1000
            ),
            "tp": 2,
        },
        NOTE,
        "not judged: FFNs with 8 experts of width 128, 2 for a token, in 4 of 4 layers: "
        "1,576,960 of 2,030,720 parameters (mixed)",
        "which rank holds an expert, and which tokens travel to it, depends on the trainer; everything else "
        "is judged as of a dense model",
        {"model": "tiny"},
    ),
    "LP201": Example(
        {"model": B8, "cp": 4, "seq_len": 8188},
        ERROR,
        "seq_len=8188 does not divide into 2·cp = 8 chunks",
        "each CP rank takes one chunk from the head and one from the tail; a chunk would have 1023.5 tokens",
        {"seq_len": 8192},
    ),
    "LP202": Example(
        {"model": B8, "tp": 8, "cp": 2, "seq_len": 8200},
        ERROR,
        "seq_len/cp = 8200/2 = 4100 tokens do not divide over tp=8 with sequence parallelism",
        "a rank would need 512.5 tokens of the residual stream",
        {"tp": 8, "cp": 2, "sequence_parallel": False},
    ),
    "LP203": Example(
        {"model": B8, "seq_len": 16384},
        WARNING,
        "seq_len=16384 is longer than the model's context of 8192 (llama3-8b)",
        "positions past it were never trained",
        {"seq_len": 8192},
    ),
    "LP204": Example(
        {"model": B8, "sequence_parallel": True},
        NOTE,
        "sequence_parallel=True has no effect at tp=1",
        "it shares the residual stream among the ranks of a TP group",
        {"tp": 2, "sequence_parallel": True},
    ),
    "LP205": Example(
        {"model": B8, "tp": 8, "cp": 2, "seq_len": 48, "framework": "torchtitan"},
        None,
        "48 tokens of a micro-batch are not a multiple of tp·2·cp = 32",
        "a chunk of the head or the tail has 12 tokens, which do not divide over tp=8",
        {"micro_batch": 2},
    ),
    "LP206": Example(
        {"model": "llama3-8b", "tp": 4, "cp": 16, "cp_method": "a2a"},
        ERROR,
        "cp_method=ulysses: heads per TP rank 32/4 = 8, KV heads 8/4 = 2: "
        "these do not both divide over cp=16",
        "an all-to-all gives each CP rank all tokens of whole heads",
        {"cp_method": "ulysses:2"},
    ),
    "LP301": Example(
        {"model": B405, "pp": 16},
        NOTE,
        "n_layers=126 does not divide over pp=16 (llama3.1-405b)",
        "126/16 = 7.875 is not whole, so stages differ in length",
        {"pp": 14},
    ),
    "LP302": Example(
        {"model": B8, "pp": 8, "virtual_stages": 5},
        ERROR,
        "pp·virtual_stages = 8·5 = 40 stages for 32 layers (llama3-8b)",
        "embedding and head counted as a layer each, there is work for 34 stages",
        {"pp": 8, "virtual_stages": 4},
    ),
    "LP303": Example(
        {"model": B70, "pp": 16, "virtual_stages": 2},
        NOTE,
        "n_layers=80 does not divide over pp·virtual_stages = 16·2 = 32",
        "flooring twice keeps 64 of 80 layers; virtual stages must differ instead",
        {"pp": 16, "virtual_stages": 5},
    ),
    "LP304": Example(
        {"model": "llama3.2-1b", "pp": 2},
        WARNING,
        "llama3.2-1b ties its head to the embedding, and pp=2 puts them on different stages",
        "the first and the last stage each need the tensor, and its gradients must be summed",
        {"pp": 1},
    ),
    "LP305": Example(
        {"model": B8, "pp": 8, "micro_batches": 4},
        WARNING,
        "micro_batches=4 is less than pp=8",
        "1F1B needs one for every stage; with fewer, some stages always wait",
        {"micro_batches": 8},
    ),
    "LP306": Example(
        {"model": B8, "pp": 4, "virtual_stages": 2, "micro_batches": 9},
        NOTE,
        "micro_batches=9 is not a multiple of pp=4 with virtual_stages=2",
        "the interleaved schedule runs micro-batches in groups of pp; Llama 3's own takes any number",
        {"micro_batches": 12},
    ),
    "LP307": Example(
        {"model": B8, "virtual_stages": 2},
        WARNING,
        "virtual_stages=2 with pp=1",
        "interleaving shortens a pipeline's bubble; one stage has none",
        {"pp": 2, "virtual_stages": 2},
    ),
    "LP308": Example(
        {"model": B8, "pp": 2, "zero": 3},
        WARNING,
        "zero=3 with pp=2",
        "torch's pipelining keeps gradients whole until a stage's last micro-batch, so they take the memory "
        "of ZeRO 1's; other trainers reduce each micro-batch's; parameters are gathered for every "
        "micro-batch",
        {"pp": 2, "zero": 1},
    ),
    "LP309": Example(
        {"model": B8, "pp": 4, "layer_split": "balanced ends", "framework": "megatron-lm"},
        None,
        "n_layers + 2 = 34 does not divide over pp·virtual_stages = 4 (llama3-8b)",
        "the embedding and the head were asked to count as a layer each",
        {"pp": 2},
    ),
    "LP401": Example(
        {"model": B8, "dp": 8, "global_batch": 100, "micro_batch": 2},
        ERROR,
        "global_batch=100 is not a multiple of dp·micro_batch = 8·2 = 16",
        "every DP group must run the same whole number of micro-batches",
        {"global_batch": 96},
    ),
    "LP402": Example(
        {"model": B8, "dp": 8, "global_batch": 100, "batch_per_dp": 12},
        ERROR,
        "batch_per_dp·dp = 12·8 = 96, but global_batch=100",
        "both count the sequences of one step",
        {"global_batch": 96},
    ),
    "LP403": Example(
        {"model": B8, "batch_per_dp": 12, "micro_batch": 5},
        ERROR,
        "batch_per_dp=12 is not a multiple of micro_batch=5",
        "a DP group cuts its sequences into whole micro-batches",
        {"micro_batch": 4},
    ),
    "LP404": Example(
        {"model": B8, "global_batch": 1024, "seq_len": 8192, "batch_tokens": 2**24},
        ERROR,
        "global_batch·seq_len = 1024·8192 = 8388608 tokens, but the batch has 16777216",
        "both count the tokens of one step",
        {"global_batch": 2048},
    ),
    "LP405": Example(
        {"model": B8, "dp": 8, "global_batch": 64, "micro_batch": 1, "micro_batches": 4},
        ERROR,
        "micro_batches·micro_batch·dp = 4·1·8 = 32, but a step has 64 sequences",
        "the micro-batches of all DP groups are the sequences of one step",
        {"micro_batches": 8},
    ),
    "LP501": Example(
        {"model": B8, "cp": 2, "framework": "distributed-llama"},
        None,
        "tp=1 cp=2 pp=1 dp=1: not every framework offers all of these axes together",
        "a layout can only use the axes that are there",
        {"tp": 2, "cp": 1},
    ),
    "LP503": Example(
        {"model": B8, "dp": 2, "zero": 3, "framework": "picotron"},
        None,
        "the framework does not offer all of zero=3, virtual_stages=1",
        "a run uses what its trainer has",
        {"dp": 2, "zero": 1},
    ),
    "LP511": Example(
        SPLIT70,
        ERROR,
        f"stage 0 needs {needs(**SPLIT70).figure()} GiB a rank, and h100-80gb has 79.65",
        f"{largest(**SPLIT70)}; with seq_len=8192 micro_batch=1, no recompute given",
        {"model": B8, "tp": 8, "dp": 8, "recompute": "full", "gpu": "b200-180gb"},
    ),
    "LP512": Example(
        STRADDLES,
        WARNING,
        f"stage 0 needs {needs(**STRADDLES).figure()} GiB a rank, and h100-80gb has 79.65: undecided",
        f"{needs(**STRADDLES).narrows}; {largest(**STRADDLES)}; with seq_len=8192 micro_batch=8 "
        "recompute=none",
        {"micro_batch": 1, "recompute": "full"},
    ),
    "LP513": Example(
        {"model": B8, "tp": 8, "gpu": "h100-80gb"},
        NOTE,
        "activations are not counted: stage 0 needs 17.8 (15.0 to 27.3) GiB a rank before any activation, "
        "and h100-80gb has 79.65",
        "they grow with the tokens of a sequence: say seq_len",
        {"seq_len": 8192},
    ),
}


def asked(code: str, good: bool = False, **changes: Any) -> lp.Report:
    example = EXAMPLES[code]
    return lp.check(**{"layout": {}, **example.bad, **(example.good if good else {}), **changes})


def found(code: str, report: lp.Report) -> Finding | None:
    return next((f for f in report.findings if f.code == code), None)


def test_every_rule_has_an_example() -> None:
    told = "a rule has in EXAMPLES what it speaks of and what it does not, and stands where its code belongs"
    assert [rule.code for rule in RULES] == sorted(EXAMPLES), told
    assert len({rule.title for rule in RULES}) == len(RULES)
    for rule in RULES:
        assert "\n" not in rule.message + rule.why
        assert "{" in rule.message or rule.code == "LP204"
        assert not rule.message.endswith(".")


@pytest.mark.parametrize("code", EXAMPLES)
def test_the_rule_speaks_of_its_failing_example(code: str) -> None:
    example = EXAMPLES[code]
    finding = found(code, asked(code))
    assert finding is not None
    assert finding.message == example.message
    # An error about a degree lists the valid ones behind the reason.
    assert finding.why.partition("; tp may be ")[0].partition("; cp may be ")[0] == example.why
    paper = found(code, asked(code, framework=None))
    assert (paper.severity if paper else None) == example.severity
    assert asked(code, framework=None).ok == (example.severity != ERROR)


@pytest.mark.parametrize("code", EXAMPLES)
def test_the_rule_is_silent_on_its_passing_example(code: str) -> None:
    assert found(code, asked(code, good=True)) is None
    for name in FRAMEWORKS:
        finding = found(code, asked(code, good=True, framework=name))
        if code == "LP203":  # torchtitan and Meta speak of 8,192 and of the model's context alone
            assert finding is None
        elif code not in ("LP105", "LP106"):  # with a framework its own padding applies
            assert finding is None or finding.severity == NOTE, name


@pytest.mark.parametrize("code", EXAMPLES)
def test_severity_under_each_framework(code: str) -> None:
    for name in FRAMEWORKS:
        judged_as_the_framework_does(code, name)


def judged_as_the_framework_does(code: str, name: str) -> None:
    """A failure is an error, what works is at most a note, and of what is not known no error is made."""
    example = EXAMPLES[code]
    report = asked(code, framework=name)
    finding = found(code, report)
    verdict = lp.FRAMEWORKS[name].judge(code, report.job)
    assert verdict.verdict in VERDICTS
    severity = finding.severity if finding else None
    if verdict.verdict in FAILS:
        assert severity == ERROR
        assert not report.ok
    elif verdict.verdict in (WORKS, ADAPTS):
        assert severity == (NOTE if example.severity or verdict.verdict == ADAPTS else None)
    elif verdict.verdict == NA and code in ("LP501", "LP503"):
        assert severity == ERROR
    elif code in ("LP511", "LP512"):  # bytes of training are a note for what only serves
        load = memory_rule.load_of(report.job, lp.FRAMEWORKS[name])  # a trainer's habits decide
        speaks = load.outcome(report.job.gpu) == {"LP511": TOO_MUCH, "LP512": UNDECIDED}[code]
        assert severity == ((speaks and (example.severity if lp.FRAMEWORKS[name].trains else NOTE)) or None)
    elif verdict.verdict == NA and code == "LP001":
        assert severity == WARNING  # it makes another dp of the GPUs, and runs
    elif code in ("LP301", "LP303") and lp.FRAMEWORKS[name].layer_split == "equal":
        assert severity == ERROR  # its split refuses layers that do not divide
    elif code == "LP501" and verdict.note.startswith("read was"):
        assert severity == NOTE  # of what else it cuts by nobody has read
    elif (
        code in (*OF_FACTS, "LP513")
        or example.severity != ERROR
        or verdict.verdict != UNKNOWN
        or lp.FRAMEWORKS[name].as_paper(code)
    ):
        assert severity == example.severity
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


def test_fairscales_rules_look_at_the_tp_that_it_clamps_to() -> None:
    """min(16, 8) ranks hold one KV head each; min(16, 6) do not hold whole query heads."""
    fits = lp.check(B8, {"tp": 16}, gpus=8, framework="fairscale")
    assert [(f.code, f.severity) for f in fits.findings] == [("LP001", ERROR)]
    assert fits.errors[0].frameworks["llama-models"].verdict == SILENT
    torn = lp.check(B8, {"tp": 16}, gpus=6, framework="fairscale")
    assert found("LP101", torn).message == "tp=6 does not divide n_heads=32 (llama3-8b)"
    assert found("LP101", torn).frameworks["llama-models"].message == "4096 is not divisible by 6"
    assert found("LP101", lp.check(B8, {"tp": 16}, gpus=6)) is None


def test_megatrons_messages_name_their_part() -> None:
    finding = found("LP301", lp.check(B8, pp=3, framework="megatron"))
    assert str(finding).splitlines()[-1] == (
        "    Megatron-LM: clear error: its arguments: Number of layers should be divisible by the "
        "pipeline-model-parallel size; its core: num_layers=32 should be divisible by "
        "config.pipeline_model_parallel_size=3"
    )
    plain = finding.frameworks["megatron-lm"].as_dict()
    assert (plain["part"], [other["part"] for other in plain["others"]]) == ("arguments", ["core"])
    assert "its core: num_layers=32" in finding._repr_html_()


def test_what_is_unproven_refuses_nothing() -> None:
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


def test_no_fix_brings_something_unproven() -> None:
    """What vLLM does with 8,192 tokens over cp=3 is not known, so tp=4 cp=3 is not offered."""
    report = lp.check(B8, {"tp": 12}, gpus=12, seq_len=8192, framework="vllm")
    offered = [fix for finding in report.findings for fix in finding.fixes]
    assert offered
    for fix in offered:
        after = lp.check(B8, fix.layout, gpus=fix.job.gpus, seq_len=fix.job.seq_len, framework="vllm")
        assert "LP201" not in {f.code for f in after.findings}, fix.text


def test_kv_heads_are_a_note_once_replication_is_asked_for() -> None:
    finding = found("LP104", asked("LP104", kv_replication=True))
    assert finding is not None
    assert (finding.severity, finding.fixes) == (NOTE, ())
    uneven = found("LP104", asked("LP104", tp=12, kv_replication=True))
    assert uneven is not None
    assert uneven.severity == ERROR  # 12 ranks hold no whole number of copies of 8 heads
    assert found("LP104", asked("LP104", kv_replication=True, framework="torchtitan")).severity == ERROR


def test_equal_stages_that_were_asked_for_must_be_equal() -> None:
    for code in ("LP301", "LP303"):
        finding = found(code, asked(code, layer_split="equal"))
        assert finding is not None
        assert finding.severity == ERROR
        assert finding.fixes[0].text == "layer_split=balanced ends"


def test_zero_with_pp_says_what_the_trainer_does_with_gradients() -> None:
    findings = [found("LP308", asked("LP308", zero=zero)) for zero in range(4)]
    assert [finding and finding.severity for finding in findings] == [None, None, NOTE, WARNING]
    told = {
        name: found("LP308", lp.check(B8, pp=2, dp=2, zero=2, framework=name)).why
        for name in (None, "torchtitan", "megatron-lm")
    }
    whole = "whole until a stage's last micro-batch, so they take the memory of ZeRO 1's"
    assert told == {
        None: f"torch's pipelining keeps gradients {whole}; other trainers reduce each micro-batch's",
        "torchtitan": f"gradients stay {whole}",
        "megatron-lm": "gradients are reduced after every micro-batch, not once a step",
    }


def test_a_context_that_was_trained_is_only_metas_to_refuse() -> None:
    known = {"model": B405, "layout": {"tp": 8}, "seq_len": 131072}
    assert found("LP203", lp.check(**known)) is None
    assert found("LP203", lp.check(**known, framework="torchtitan")) is None  # its own bound is `>` too
    finding = found("LP203", lp.check(**known, framework="meta"))
    assert finding is not None
    assert finding.frameworks["llama-models"].message == "max_seq_len must be between 1 and 8192, got 131072."


def test_tp_may_fill_a_whole_node_or_a_part_of_one() -> None:
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
def test_every_template_fills_in_for_any_job(arguments: dict[str, Any]) -> None:
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
def test_a_finding_speaks_of_numbers_that_were_given(arguments: dict[str, Any]) -> None:
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


def test_a_batch_is_judged_by_the_dp_that_megatron_makes() -> None:
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
def test_every_rule_sees_the_dp_that_is_made(arguments: dict[str, Any], name: str, made: int) -> None:
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

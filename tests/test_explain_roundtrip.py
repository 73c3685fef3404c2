"""One source of truth: what `frameworks` says that a framework gives is explained back to its rule."""

import itertools
import random
from collections import defaultdict
from functools import cache

import llamapar as lp
from llamapar.describe.job import Job
from llamapar.diagnosis.vocabulary import CATEGORIES
from llamapar.frameworks import FRAMEWORKS
from llamapar.rules.table import RULES

MODELS = ("llama3-8b", "llama3.1-405b", "llama3.1-70b", "llama2-13b", "llama3.2-1b", "qwen2.5-7b")
DEGREES = (
    (3, 1, 1, 1), (16, 1, 1, 1), (8, 1, 1, 2), (6, 1, 1, 1), (12, 1, 1, 1), (1, 1, 5, 1), (2, 1, 6, 1),
    (7, 1, 1, 1), (8, 16, 16, 8), (1, 4, 1, 2), (4, 3, 2, 1), (5, 1, 1, 1), (1, 1, 16, 2), (10, 2, 1, 1),
    (64, 1, 1, 1), (1, 1, 1, 1), (2, 2, 40, 1),
)  # fmt: skip
FACTS = (
    {}, {"gpus": 24}, {"gpus": 128}, {"seq_len": 8200}, {"seq_len": 8196}, {"seq_len": 300000},
    {"micro_batches": 3}, {"micro_batches": 9}, {"global_batch": 100, "micro_batch": 3}, {"quant_group": 96},
    {"layer_split": "balanced ends"}, {"seq_len": 8190, "micro_batch": 2},
)  # fmt: skip
OTHERS = ({}, {"virtual_stages": 3}, {"zero": 3}, {"sequence_parallel": True})
LAYOUTS_EACH = 4
"""Layouts that are asked for each framework and set of rules that one message stands for."""


def jobs():
    """In a seeded order, so that the first few that break the same rules are unlike each other."""
    found = [*made()]
    random.Random(0).shuffle(found)
    return found


def made():
    for name, degrees, facts, other in itertools.product(MODELS, DEGREES, FACTS, OTHERS):
        if facts and other not in OTHERS[:2]:
            continue
        axes = dict(zip(("tp", "cp", "pp", "dp"), degrees, strict=True))
        try:
            yield Job.of(name, axes | other, **facts)
        except lp.LlamaparError:
            continue


@cache
def told():
    """(framework, message, rules that it stands for, job): each framework and set of rules a few times."""
    rows, seen, judged = [], defaultdict(int), defaultdict(int)
    for job in jobs():
        applies = {
            padding: [rule.code for rule in RULES if rule.applies(job, padding)]
            for padding in {framework.padding for framework in FRAMEWORKS.values()}
        }
        for framework in FRAMEWORKS.values():
            broken = [code for code in applies[framework.padding] if code in framework.cases]
            judged[framework.name, *broken] += 1
            if judged[framework.name, *broken] > 2 * LAYOUTS_EACH:
                continue
            messages = defaultdict(list)
            for code in broken:
                for verdict in framework.judge(code, job).versions:
                    if verdict.message:
                        messages[verdict.message].append(code)
            for message, codes in messages.items():
                key = (framework.name, *codes)
                if seen[key] < LAYOUTS_EACH:
                    seen[key] += 1
                    rows.append((framework.name, message, tuple(codes), job))
    return rows


def wanted(codes):
    return {name for name, category in CATEGORIES.items() if set(category.rules) & set(codes)}


def asked(framework, message, job):
    known = ("seq_len", "micro_batch", "global_batch", "quant_group", "gpus")
    facts = {fact: getattr(job, fact) for fact in known if getattr(job, fact)}
    return lp.explain(message, job.model, job.layout, framework, **facts)


def test_every_message_of_every_framework_is_here():
    spoken = {(framework, code) for framework, _, codes, _ in told() for code in codes}
    cases = [
        (f.name, code, case) for f in FRAMEWORKS.values() for code, own in f.cases.items() for case in own
    ]
    there = {(name, code) for name, code, case in cases if case.message}
    # LP108 speaks only where matmuls are in float8, LP206 where CP ranks trade heads: not in these jobs.
    assert there - spoken == {("dtensor", "LP108"), ("megatron-lm", "LP206")}


def test_each_message_leads_back_to_its_rule_and_names_who_says_it():
    wrong, unnamed = [], []
    for framework, message, codes, job in told():
        best = asked(framework, message, job).best
        if best is None or best.category not in wanted(codes):
            wrong.append((framework, message, codes, str(job.layout), best and best.title))
        elif len(message) > 40 and framework not in {said.framework for said in best.frameworks}:
            unnamed.append((framework, message, codes))
    assert wrong == []
    assert unnamed == []


def test_most_messages_need_no_layout_to_lead_back():
    """Bare asserts and one number that is not divisible by another can be many things."""
    found = [
        bool(best and best.category in wanted(codes))
        for _, message, codes, _ in told()
        for best in [lp.explain(message).best]
    ]
    assert sum(found) >= 0.84 * len(found)

"""One gate: what `check` passes, every other door counts, whatever the trainer."""

import random

import pytest

import llamapar as lp
from llamapar.describe.job import Job
from llamapar.errors import LlamaparError
from llamapar.frameworks import FRAMEWORKS, as_run, framework
from llamapar.panels.answers import NO, answers
from llamapar.panels.state import State
from llamapar.rules.memory_rule import memory_of
from llamapar.rules.report import check_job
from llamapar.timing.change import times_longer
from llamapar.timing.cost import cost_of
from llamapar.timing.layer import Conditions

MODELS = ["llama3-8b", "llama3-70b", "llama3.1-405b", "llama3.2-1b", "mistral-7b", "qwen2.5-7b", "llama2-13b"]


def drawn(count, seed):
    """Jobs at random, some of them impossible, each for a trainer or for none."""
    draw = random.Random(seed)
    for _ in range(count):
        trainer = draw.choice([None, *FRAMEWORKS])
        pp = draw.choice([1, 1, 2, 3, 4, 8])
        layout = lp.Layout(
            tp=draw.choice([1, 2, 3, 4, 8, 16, 32]),
            cp=draw.choice([1, 1, 1, 2, 3, 4]),
            pp=pp,
            dp=draw.choice([1, 2, 4, 8]),
            virtual_stages=draw.choice([1, 1, 2, 4]) if pp > 1 else 1,
            zero=draw.choice([0, 1, 1, 2, 3]),
        )
        job = Job.of(
            draw.choice(MODELS),
            layout,
            gpus=layout.world * draw.choice([1, 1, 1, 2]),
            seq_len=draw.choice([2048, 4096, 8192, 5000]),
            micro_batch=draw.choice([1, 1, 2]),
            global_batch=draw.choice([None, 8, 12, 16, 32, 64]),
            kv_replication=draw.random() < 0.2,
        )
        yield job, framework(trainer) if trainer else None


def doors(job, judge):
    """What else is asked about a job that `check` passes."""
    said = {"seq_len": job.seq_len, "micro_batch": job.micro_batch, "global_batch": job.global_batch}
    said |= {"kv_replication": job.kv_replication, "layer_split": job.layer_split}
    said |= {"cp_method": job.cp_method, "framework": judge and judge.name}
    how = Conditions.of_job(job, judge)
    return {
        "lp.memory": lambda: lp.memory(job.model, as_run(judge, job).layout, **said),
        "lp.cost": lambda: lp.cost(job.model, job.layout, gpus=job.gpus, **said),
        "memory of a fix": lambda: memory_of(job, judge),
        "time of a row of a plan": lambda: cost_of(as_run(judge, job), how),
        "ranks": lambda: lp.ranks(job.layout, model=job.model, seq_len=job.seq_len),
        "Explorer": lambda: explorer(job, judge),
        **({} if judge else {"lp.run": lambda: dry(job)}),
    }


def explorer(job, judge):
    """Raise what the Explorer does not know of a job that `check` passes."""
    for answer in answers(check_job(job, judge), State.opened({}).values | {"rank": 0}):
        # At each move of a slider no schedule of more than some 16,000 operations is timed.
        if answer.text == "not known" and "operations" not in answer.note:
            raise LlamaparError(f"{answer.question} {answer.note}")


def dry(job):
    """Run rank 0 of a job's attention without numbers. Raises LlamaparError if `lp.run` refuses it."""
    asked = {name: getattr(job, name) for name in ("seq_len", "kv_replication")}
    lp.run("attention", job.model, job.layout, engine="dry", **asked)


def refusals(job, judge):
    """The doors that refuse a job, with their words."""
    found = []
    for name, ask in doors(job, judge).items():
        try:
            ask()
        except LlamaparError as refused:
            found.append(f"{judge and judge.name}: {name}: {refused} for {job}")
    return found


def passes(report):
    """Whether `check` passes a job, and nothing in it is what nobody has read in the trainer's code."""
    return report.ok and not any(finding.unproven for finding in report.findings)


@pytest.mark.parametrize(
    "count", [120, pytest.param(250, marks=pytest.mark.soak), pytest.param(2000, marks=pytest.mark.deep)]
)
def test_what_check_passes_every_door_counts(count):
    """What `check` passes is refused nowhere, nor are its fixes, and hardly a refusal has no way out."""
    ways_out = []
    for job, judge in drawn(count, seed=count):
        report = check_job(job, judge)
        errors = [finding for finding in report.findings if finding.severity == "error"]
        if passes(report):
            assert refusals(job, judge) == []
        if errors:
            ways_out.append(bool(errors[0].fixes))
            for fix in errors[0].fixes[:1]:
                assert not passes(check_job(fix.job, judge)) or refusals(fix.job, judge) == []
    assert ways_out.count(False) <= 0.05 * len(ways_out)


@pytest.mark.parametrize(
    ("trainer", "layout"),
    [("vllm", {"tp": 16}), ("megatron-lm", {"tp": 16}), ("megatron-lm", {"dp": 8, "zero": 3})],
)
def test_the_explorer_answers_as_check_does(trainer, layout):
    state = State.opened({"preset": "llama3-8b", "gpus": lp.Layout(**layout).world} | layout)
    values = state.change({"framework": trainer, "seq_len": 8192}).values
    report = lp.check("llama3-8b", layout, seq_len=8192, framework=trainer)
    assert report.ok
    assert [answer.text for answer in answers(report, values) if answer.text == "not known"] == []
    assert all(answer.verdict != NO for answer in answers(report, values)[:1])


def test_megatrons_sharded_weights_are_counted_in_both_dtypes():
    """Megatron-FSDP keeps bfloat16 shards beside float32 ones: 18 bytes a parameter over 8 ranks."""
    found = lp.memory("llama3-8b", {"dp": 8, "zero": 3}, seq_len=8192, framework="megatron-lm")
    terms = {term.name: term.bytes for term in found.worst.terms}
    states = ("parameters", "gradients", "master weights", "optimizer states")
    assert sum(terms[name] for name in states) == pytest.approx(18 * 8_030_261_248 / 8, rel=1e-6)
    rows = lp.plan("llama3-8b", gpus=8, seq_len=8192, global_batch=128, framework="megatron-lm", top=9)
    assert {row.layout.zero for row in rows.layouts} & {2, 3}


@pytest.mark.parametrize("trainer", FRAMEWORKS)
def test_time_is_of_the_zero_stage_that_the_trainer_has_as_memory_is(trainer):
    asked = {"seq_len": 8192, "global_batch": 64, "framework": trainer}
    for degrees in ({"tp": 8, "dp": 8}, {"tp": 8, "pp": 2, "dp": 4}):
        costs = [lp.cost("llama3-70b", degrees, zero=zero, **asked) for zero in range(4)]
        # A layout that says what the trainer does takes the same time.
        of_stage = {cost.layout: cost.step_seconds for cost in costs if "ZeRO" not in cost.how}
        for zero, cost in enumerate(costs):
            assert cost.layout == cost.memory.layout
            assert cost.memory.layout == lp.memory("llama3-70b", degrees, zero=zero, **asked).layout
            assert cost.step_seconds == of_stage[cost.layout]
            assert cost.how.endswith(f", ZeRO {cost.layout.zero}") == (cost.layout.zero != zero)


def test_a_ring_is_not_free():
    """Its steps' outputs are added up, so of equal tokens the fewest ranks are fastest."""
    asked = {"seq_len": 8192, "global_batch": 128, "framework": "megatron-lm", "gpu": "gb200-nvl72"}
    times = [
        lp.cost(
            "llama3-70b", {"tp": 2, "cp": cp, "dp": 32 // cp, "zero": 2}, micro_batch=cp, **asked
        ).step_seconds
        for cp in (1, 2, 4)
    ]
    assert times == sorted(times)
    assert times[2] > 1.005 * times[0]


def test_a_batch_that_follows_from_degrees_follows_other_degrees():
    """torchtitan's own batch is local_batch_size·dp: with other degrees it is another one, and no error."""
    text = "[model]\nname = 'llama3'\nflavor = '70B'\n[training]\nseq_len = 8192\nlocal_batch_size = 2\n"
    run = lp.read_settings(text=f"{text}[parallelism]\ntensor_parallel_degree = 16\n", known={"gpus": 128})
    assert run.job["global_batch"] == 16
    assert lp.check(run, tp=8, dp=16).ok
    assert not lp.check(run, tp=8, dp=16, global_batch=16).ok


def test_micro_batches_of_a_batch_say_how_large_one_is():
    """32 sequences over 4 groups in 4 micro-batches are 2 each; 36 are no whole number of any."""
    told = {"gpus": 4, "seq_len": 4096, "micro_batches": 4, "gpu": "h100-80gb", "framework": "torchtitan"}
    by_count, by_size = (
        lp.check("llama3-8b", {"dp": 4}, global_batch=32, **told, **more) for more in ({}, {"micro_batch": 2})
    )
    assert by_count.memory.message == by_size.memory.message
    refused = lp.check("llama3-8b", {"dp": 4}, global_batch=36, **told)
    assert [(f.code, f.message) for f in refused.errors] == [
        ("LP405", "micro_batches·micro_batch·dp = 4·2·4 = 32, but a step has 36 sequences")
    ]


def test_a_fix_is_timed_as_its_trainer_runs_it():
    """Megatron-LM holds KV heads in copies past their number, which a job does not have to ask for."""
    job = Job.of("llama3-8b", lp.Layout(tp=16), seq_len=8192, micro_batch=1, global_batch=8)
    judge = framework("megatron-lm")
    fewer = job.replace(layout=lp.Layout(tp=8, dp=2))
    each = [cost_of(as_run(judge, one), Conditions.of_job(one, judge)) for one in (job, fewer)]
    before, after = (one.step_seconds / one.tokens for one in each)
    assert times_longer(job, fewer, judge) == pytest.approx(after / before)

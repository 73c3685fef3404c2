"""The paper's own jobs: they ran, so nobody says that they do not fit; and its figures' differences."""

import json
import re
from itertools import pairwise
from pathlib import Path

import pytest

import llamapar as lp
import paper_memory
from llamapar.describe.job import Job
from llamapar.describe.jobs import JOBS
from llamapar.describe.options import Values
from llamapar.frameworks import FRAMEWORKS
from llamapar.rules.memory_rule import memory_of

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "memory.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", JOBS)
def test_a_job_that_ran_fits_wherever_it_is_asked_for(name, run):
    job = JOBS[name].job
    assert job.layout.world == job.gpus
    assert job.batch_tokens is None
    assert (job.global_batch or 0) * (job.seq_len or 0) == 2**24  # 16M tokens
    found = memory_of(job, FRAMEWORKS[JOBS[name].framework])
    assert found.expected_bytes <= found.hbm_bytes
    status, out, err = run(f"memory --job {name}")
    assert (status, err) == (0, "")
    assert out.endswith(f"{found.verdict}\n{JOBS[name].note}\n")
    status, out, err = run(f"check --job {name} --json")
    assert (status, err) == (0, "")
    assert not [f["code"] for f in json.loads(out)["findings"] if f["code"].startswith("LP51")]
    assert f"| `{name}` | `{found.figure()}` |" in PAGE
    # One job under one trainer has one figure at every door, README's picture among them.
    assert f"memory: {found.figure()} GiB a rank fit h100-80gb\n" in run(f"check --job {name}")[1]
    assert run(f"plan --job {name} --top 1")[1].endswith(f" s, {found.figure()} GiB\n")
    assert f"{found.expected_bytes / 2**30:.1f}" in lp.explorer(job=name, tab="memory").snapshot().summary


@pytest.mark.parametrize("name", JOBS)
def test_what_is_not_published_moves_the_figure(name):
    published = JOBS[name]
    row = FRAMEWORKS[published.framework]
    for fact in published.open:
        ends = {"recompute": ("full", "none"), "loss": ("in_place", "vocab_parallel")}[fact]
        of_job = fact in Job.__dataclass_fields__
        least, most = (
            memory_of(published.job.replace(recompute=end), row)
            if of_job
            else memory_of(published.job, row, **Values({fact: end}))
            for end in ends
        )
        sums = [sum(stage.total_bytes for stage in found.stages) for found in (least, most)]
        assert sums[0] < sums[1], fact


def test_what_was_not_kept_would_not_fit():
    """Of the job with most in flight: with any of it kept the figure is past its GPU, and without is not."""
    job, tight = JOBS["paper-8k-gpus"].job, {}
    for what, kept in paper_memory.KEPT.items():
        found = memory_of(job, paper_memory.keeping(kept))
        tight[what] = found.expected_bytes / found.hbm_bytes
    assert memory_of(job, paper_memory.TRAINER).expected_bytes < job.gpu.hbm_bytes  # type: ignore[union-attr]
    assert min(tight.values()) > 1


def test_a_published_job_gives_way_to_what_is_said_besides(run):
    status, out, _ = run("memory --job paper-16k-gpus --recompute full")
    assert status == 0
    assert "it ran" not in out
    same = run("memory --job paper-16k-gpus --tp 8")[1]
    assert same.endswith(f"{JOBS['paper-16k-gpus'].note}\n")
    status, _, err = run("memory --job paper-9k-gpus")
    assert status == 2
    assert "job='paper-9k-gpus' is not known" in err


def test_the_panel_takes_a_published_job_and_lets_go_of_it():
    panel = lp.explorer(job="paper-8k-gpus", tab="memory")
    assert panel.report is not None
    assert panel.report.job == JOBS["paper-8k-gpus"].job.replace(cp_method="all_gather")
    (said,) = [line for line in panel.snapshot().summary.splitlines() if line.startswith("published: ")]
    assert said == panel.answers["published"]
    fits, fast = panel.answers["now"][1:3]
    assert fits["verdict"] == "yes"
    predicted = fast["text"]
    assert re.fullmatch(r"\d+% MFU", predicted)
    assert said == (
        f"published: it ran, at 43% MFU (arXiv:2407.21783 table 4); predicted: {predicted}; "
        "what we cannot know: loss, attention kernel, documents, how MFU is counted. "
        "The difference is our error."
    )
    panel.set(tab="pipeline", beside="1f1b")
    assert panel.payload["values"]["job"] == "paper-8k-gpus"
    panel.set(beside="", tab="memory", dp=32)
    assert panel.payload["values"]["job"] == ""
    assert "published" not in panel.snapshot().summary
    assert panel.answers["published"] == ""
    panel.set(job="paper-131k-tokens", seq_len=65536)
    assert (panel.payload["values"]["job"], panel.job.layout.cp) == ("", 16)
    with pytest.raises(lp.LayoutError, match="job='none of them' is not known"):
        panel.set(job="none of them")


# -- figures of "Scaling Llama 3 Training with Efficient Parallelism Strategies", ISCA 2025 --------


def test_the_order_and_the_signs_are_those_of_the_figures():
    orders = (("looped-bfs", 2), ("flexible", 1, 6), ("interleaved-1f1b", 1))
    lows = [paper_memory.fig9(*one).expected_bytes for one in orders]
    assert lows == sorted(lows, reverse=True)
    for what, own in paper_memory.differences().items():
        assert paper_memory.PAPER[what] * own > 0, what
    for balanced in (False, True):
        middle = paper_memory.fig10(balanced)[1:-1]
        steps = [one - other for one, other in pairwise(middle)]
        assert max(steps) - min(steps) < 1e-6  # a straight line, as the figure's
        assert min(steps) > 0


def test_differences_that_count_chunks_alone_speak_for_the_lower_bound():
    """Within a tenth of what the figures show; with everything kept they are three times as large."""
    chunks = [*paper_memory.differences().items()][:2]
    assert all(abs(own / paper_memory.PAPER[what] - 1) < 0.1 for what, own in chunks)
    least, most = paper_memory.chunk()
    assert most > 3 * least

"""The paper's own jobs: they ran, so nobody says that they do not fit; and its figures' differences."""

from __future__ import annotations

import json
import re
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import llamapar as lp
from llamapar.count.terms import FITS, TOO_MUCH
from llamapar.describe.jobs import JOBS
from llamapar.describe.options import Values
from llamapar.rules.capacity import memory_of

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "memory.md").read_text(encoding="utf-8")
GIB, GB = 2**30, 10**9
ENDS = {"silu_kept": (False, True), "elementwise_kept": (False, True), "loss": ("in_place", "vocab_parallel")}
"""What the sources leave open → with less kept, and with more."""


@pytest.mark.parametrize("name", JOBS)
def test_a_job_that_ran_fits_wherever_it_is_asked_for(name: str, run: Any) -> None:
    job = JOBS[name].job
    assert job.layout.world == job.gpus
    assert job.batch_tokens is None
    assert (job.global_batch or 0) * (job.seq_len or 0) == 2**24  # 16M tokens
    found = memory_of(job)
    assert found.outcome == FITS
    status, out, err = run(f"memory --job {name}")
    assert (status, err) == (0, "")
    assert out.splitlines()[-3:] == [found.verdict, *JOBS[name].note.splitlines()]
    status, out, err = run(f"check --job {name} --json")
    assert (status, err) == (0, "")
    assert not [f["code"] for f in json.loads(out)["findings"] if f["code"].startswith("LP51")]
    shown = re.search(rf"`{name}` \| `([\d.]+) to ([\d.]+)`", PAGE)
    assert shown is not None
    assert shown.groups() == (f"{found.low_bytes / GIB:.2f}", f"{found.high_bytes / GIB:.2f}")


@pytest.mark.parametrize("name", JOBS)
def test_what_is_not_published_moves_an_end(name: str) -> None:
    published = JOBS[name]
    for fact in published.open:
        if fact == "recompute":
            least, most = (memory_of(published.job.replace(recompute=how)) for how in ("full", "none"))
        else:
            least, most = (memory_of(published.job, **Values({fact: value})) for value in ENDS[fact])
        ends = [[stage.total_bytes for stage in found.stages] for found in (least, most)]
        assert all(one <= other for one, other in zip(*ends, strict=True)), fact
        assert ends[0] != ends[1], fact


def test_gathered_inputs_were_not_kept() -> None:
    """For no row has room with them, whatever else is not kept; the page has the least that it comes to."""
    kept = [memory_of(published.job.replace(regather=False)) for published in JOBS.values()]
    assert {found.outcome for found in kept} == {TOO_MUCH}
    assert f"passes `{min(found.low_bytes for found in kept) // GIB}` GiB" in PAGE
    job = JOBS["paper-8k-gpus"].job
    for fact in ("elementwise_kept", "silu_kept"):
        found = memory_of(job.replace(silu_kept=None, elementwise_kept=None), **Values({fact: True}))
        assert found.outcome == TOO_MUCH
        assert f"`{found.low_bytes / GIB:.2f}`" in PAGE


def test_a_published_job_gives_way_to_what_is_said_besides(run: Any) -> None:
    status, out, _ = run("memory --job paper-16k-gpus --recompute full")
    assert status == 0
    assert "it ran" not in out
    same = run("memory --job paper-16k-gpus --tp 8")[1]
    assert same.endswith(f"{JOBS['paper-16k-gpus'].note}\n")
    status, _, err = run("memory --job paper-9k-gpus")
    assert status == 2
    assert "job='paper-9k-gpus' is not known" in err


def test_the_panel_takes_a_published_job_and_lets_go_of_it() -> None:
    panel = lp.explorer(job="paper-8k-gpus", tab="memory")
    assert panel.report is not None
    assert panel.report.job == JOBS["paper-8k-gpus"].job
    assert panel.snapshot().summary.endswith(JOBS["paper-8k-gpus"].note)
    panel.set(tab="pipeline", beside="1f1b")
    assert panel.payload["values"]["job"] == "paper-8k-gpus"
    panel.set(beside="", tab="memory", dp=32)
    assert panel.payload["values"]["job"] == ""
    assert "not published" not in panel.snapshot().summary
    panel.set(job="paper-131k-tokens", seq_len=65536)
    assert (panel.payload["values"]["job"], panel.layout.cp) == ("", 16)
    with pytest.raises(lp.LayoutError, match="job='none of them' is not known"):
        panel.set(job="none of them")


# -- figures of "Scaling Llama 3 Training with Efficient Parallelism Strategies", ISCA 2025 --------


@cache
def fig9(schedule: str, zero: int, nc: int | None = None, **open_: Any) -> lp.Memory:
    """26 layers on pp=4, so seven stages a rank less one at both ends; dp is not printed."""
    model = lp.model("llama3.1-405b").replace(n_layers=26, name="26 layers")
    layout = lp.Layout(tp=8, pp=4, virtual_stages=7, dp=16, zero=zero)
    return lp.memory(
        model,
        layout,
        seq_len=8192,
        global_batch=12 * layout.dp,
        recompute="none",
        schedule=schedule,
        nc=nc,
        **open_,
    )


@cache
def fig10(balanced: bool) -> list[float]:
    """GB by rank at the lower end: pp=8 with a layer a stage; layers and batch are not printed."""
    layers = [0, *[1] * 14, 0] if balanced else [1] * 16
    model = lp.model("llama3.1-405b").replace(n_layers=sum(layers), name="")
    layout = lp.Layout(tp=8, pp=8, virtual_stages=2, dp=16)
    found = lp.memory(
        model,
        layout,
        seq_len=8192,
        global_batch=32 * layout.dp,
        recompute="none",
        schedule="interleaved-1f1b",
        layer_split=layers,
    )
    assert found.lighter is not None
    return [stage.total_bytes / GB for stage in found.lighter()]


def differences() -> dict[str, float]:
    """What the page's table compares, at the lower end in GB, by the beginning of its row."""
    early = fig9("interleaved-1f1b", 1).low_bytes
    equal, balanced = fig10(False), fig10(True)
    return {
        "Fig. 9(b), flexible": (fig9("flexible", 1, 6).low_bytes - early) / GB,
        "Fig. 10(a), a rank over": equal[1] - equal[2],
        "Fig. 9(b), all forwards": (fig9("looped-bfs", 2).low_bytes - early) / GB,
        "Fig. 10(a), first rank": equal[0] - equal[1],
        "first, balanced": balanced[0] - balanced[1],
        "Fig. 10(a), last rank": equal[-1] - equal[-2],
        "last, balanced": balanced[-1] - balanced[-2],
    }


def rows() -> list[tuple[str, float, float]]:
    """The page's rows: what, published, ours."""
    found = re.findall(r"^\| `(Fig\. .*?) \| `([-\d.]+)` \| `([-\d.]+)` \|$", PAGE, re.MULTILINE)
    return [(what.replace("`", ""), float(published), float(own)) for what, published, own in found]


def test_the_page_has_the_differences_that_are_counted() -> None:
    counted = differences()
    assert len(rows()) == len(counted)
    for (what, _, own), (name, value) in zip(rows(), counted.items(), strict=True):
        assert what.startswith((name, "Fig. 10(a), the same")), (what, name)
        assert f"{own:.1f}" == f"{value:.1f}", what


def test_the_order_and_the_signs_are_those_of_the_figures() -> None:
    lows = [fig9(*one).low_bytes for one in (("looped-bfs", 2), ("flexible", 1, 6), ("interleaved-1f1b", 1))]
    assert lows == sorted(lows, reverse=True)
    for what, published, own in rows():
        assert published * own > 0, what
    for balanced in (False, True):
        middle = fig10(balanced)[1:-1]
        steps = [one - other for one, other in pairwise(middle)]
        assert max(steps) - min(steps) < 1e-6  # a straight line, as the figure's
        assert min(steps) > 0


def test_differences_that_count_chunks_alone_speak_for_the_lower_end() -> None:
    """Within a tenth of what the figures show; with everything kept they are three times as large."""
    chunks = rows()[:2]
    assert all(abs(own / published - 1) < 0.1 for _, published, own in chunks)
    kept: dict[str, Any] = {"regather": False, "silu_kept": True, "elementwise_kept": True}
    ends = [fig9(*one, **kept).high_bytes for one in (("flexible", 1, 6), ("interleaved-1f1b", 1))]
    assert (ends[0] - ends[1]) / GB > 3 * chunks[0][1]
    shown = re.search(r"`([\d.]+)` GB with as little kept.*?`([\d.]+)` GB", PAGE, re.DOTALL)
    assert shown is not None
    chunk = [f"{differences()['Fig. 9(b), flexible'] / 12:.2f}", f"{(ends[0] - ends[1]) / GB / 12:.2f}"]
    assert list(shown.groups()) == chunk

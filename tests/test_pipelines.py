"""Pipelines run: every schedule, in both engines, equal to one process; what is sent, kept, and told."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
import torch

import llamapar as lp
from llamapar import Layout, ModelConfig
from llamapar.execution.engines import pool
from llamapar.execution.result import RunResult
from llamapar.place.orders import ORDERS

MODEL = ModelConfig(
    dim=16, n_layers=6, n_heads=4, n_kv_heads=2, head_dim=4, ffn_dim=24, vocab_size=50, name="small"
)
TIED = MODEL.replace(tied=True, name="small tied")

LAYOUTS = (
    Layout(pp=2),
    Layout(pp=4),
    Layout(tp=2, pp=2),
    Layout(cp=2, pp=2),
    Layout(pp=2, dp=2, order="pp-dp-cp-tp"),
    Layout(tp=2, pp=2, sequence_parallel=False),
    Layout(tp=2, cp=2, pp=2, dp=2),
)


class Case(NamedTuple):
    """A schedule, an engine, a layout, a model."""

    schedule: str
    engine: str
    layout: Layout
    model: ModelConfig

    def run(self) -> RunResult:
        many = 8 if self.schedule == "dualpipev" and self.layout.pp == 4 else 4
        return lp.run(
            "llama",
            self.model,
            self.layout,
            engine=self.engine,
            schedule=self.schedule,
            micro_batches=many,
            dtype="float64",
            seq_len=8,
            device="cpu",
        )


CASES = [Case(*case) for case in itertools.product(ORDERS, ("local", "processes"), LAYOUTS, (MODEL, TIED))]


@pytest.fixture(scope="module", autouse=True)
def _no_ranks_left() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # tensors here are tiny
    yield
    torch.set_num_threads(threads)
    pool.close_pool()


def check(case: Case) -> None:
    """Equal to one process, nothing left out, and the table's numbers are those of the run."""
    result = case.run()
    assert result.ok, (case, str(result))
    setting = result.task.setting
    table = setting.schedule
    assert table is not None
    assert set(result.gradient_errors) == {p.name for p in case.model.parameters()}
    assert max(result.gradient_errors.values()) <= 1e-12
    assert set(result.output_errors) == {"loss", "logits"}
    covered = set[str]()
    for report in result.reports:
        pp_rank = case.layout.coord_of(report.rank).pp
        own = {name for stage in setting.stages_on(pp_rank) for name in setting.parameters_on(stage)}
        assert set(report.gradients) == own, (case, report.rank)
        assert report.work.in_flight == table.in_flight[pp_rank], (case, report.rank)
        assert [done.action for done in report.work.operations] == list(table.ranks[pp_rank])
        covered |= own
        check_bytes(case, result, report.rank)
    assert covered == set(setting.weights())


def check_bytes(case: Case, result: RunResult, rank: int) -> None:
    """What a rank sent is what was said that it would send, axis by axis and phase by phase."""
    setting = result.task.setting
    predicted = lp.traffic(
        "llama",
        case.model,
        case.layout,
        seq_len=setting.seq_len,
        dtype=setting.dtype,
        schedule=case.schedule,
        micro_batches=setting.micro_batches,
        rank=rank,
    )
    trace = result.traces[rank]
    traced = {(e.phase, e.axis): trace.bytes(e.axis, e.phase) for e in trace.events}
    assert traced == predicted.by_phase, (case, rank)


SHORT = [
    Case("1f1b", "local", LAYOUTS[2], TIED),
    Case("zbv", "local", LAYOUTS[0], MODEL),
    Case("gpipe", "processes", LAYOUTS[2], MODEL),
    Case("interleaved-zero-bubble", "processes", LAYOUTS[5], TIED),
    Case("dualpipev", "processes", LAYOUTS[2], TIED),
]
"""What `make test` runs; the soak takes more, and `make deep` all."""


def test_a_pipeline_equals_one_process(counts: Callable[[int, int, int], int]) -> None:
    longer = random.Random(0).sample(CASES, counts(0, 30, len(CASES)))
    for case in sorted([*SHORT, *longer], key=lambda case: (case.engine, str(case.layout))):
        check(case)


def test_every_engine_and_axis_is_among_the_cases() -> None:
    assert len(CASES) == 8 * 2 * 7 * 2
    assert {case.schedule for case in CASES} == set(ORDERS)
    for axis in ("tp", "cp", "pp", "dp"):
        assert any(getattr(case.layout, axis) > 1 for case in SHORT + CASES)

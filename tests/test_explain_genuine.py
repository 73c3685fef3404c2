"""Genuine errors at scale: programs run under wrong layouts at true sizes on the meta device, and explained.

A layout is drawn, one rank of it runs one layer of a program, and what is raised is kept with the place
that raised it: that place and `check` together say which fault was injected.
"""

import random
import re
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial

import llamapar as lp
from llamapar.diagnosis.vocabulary import CODES
from llamapar.execution.body import Task, call_function, dry_rank, inputs
from llamapar.programs import PROGRAMS
from llamapar.spmd.setting import Setting

HEADS, KV_HEADS, SEQ = "LP101", "LP104", ("LP202", "LP205", "LP201")


@dataclass(frozen=True)
class Genuine:
    """What a rank raised: its words, its traceback, and the rule of `check` that the layout breaks there."""

    program: str
    model: str
    layout: lp.Layout
    seq: int
    message: str
    traceback: str
    code: str

    @property
    def category(self) -> str:
        return CODES[self.code]


def draws(draw: random.Random) -> Iterator[tuple[str, str, lp.Layout, int, int, int]]:
    """Endless random (program, model, layout, sequence, batch, rank), right and wrong."""
    degrees = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 18, 20, 24, 28, 32, 40, 48, 64)
    while True:
        tp = draw.choice(degrees)
        layout = lp.Layout(
            tp=tp, cp=draw.choice((1, 1, 1, 2, 3, 4)), sequence_parallel=tp > 1 and draw.random() < 0.5
        )
        seq = draw.choice((64, 100, 768, 1000, 1024, 1536, 2048, 4096, 5000, 8192, 8200, 32768))
        rank = draw.choice((0, 0, layout.world - 1))  # in an uneven cut the last rank holds less
        batch = draw.choice((1, 1, 2, 3))
        yield draw.choice(list(PROGRAMS)), draw.choice(list(lp.PRESETS)), layout, seq, batch, rank


def raised(program: str, model: str, layout: lp.Layout, seq: int, batch: int, rank: int) -> Genuine | None:
    """What the rank raises in one layer of the program, forward; None where it gets through."""
    bare = lp.model(model).replace(n_layers=1, qkv_bias=False, o_bias=False)  # no shape depends on these
    setting = Setting(bare, layout, seq_len=seq, global_batch=batch)
    task = Task(PROGRAMS[program], setting)
    with dry_rank(task, rank) as (mesh, cut):
        own = inputs(task, cut, "meta")
        try:
            call_function(partial(task.program.function, mesh, setting), own)
        except Exception as error:
            words = "".join(traceback.format_exception_only(error)).strip()
            whole = "".join(traceback.format_exception(error))
            code = broken(model, layout, seq, error)
            return Genuine(program, model, layout, seq, words, whole, code)
    return None


def broken(model: str, layout: lp.Layout, seq: int, error: BaseException) -> str:
    """The rule that is broken where `error` was raised: of query heads, of KV heads, or of the sequence."""
    lines = [frame.line or "" for frame in traceback.extract_tb(error.__traceback__)]
    codes = [f.code for f in lp.check(model, layout, seq_len=seq).errors]
    if re.search(r"shape \[\d+, 0, ", str(error)):  # a rank without tokens
        wanted: tuple[str, ...] = SEQ
    elif any("rope(" in line for line in lines):
        wanted = SEQ
    elif any(line.startswith("q = ") for line in lines):
        wanted = (HEADS,)
    elif any(line.startswith(("k = ", "v = ", "n_rep", "return _Attention")) for line in lines):
        wanted = (KV_HEADS,)
    else:
        wanted = SEQ
    found = [code for code in wanted if code in codes]
    assert found, (lines[-3:], codes, str(error))
    return found[0]


@cache
def genuine(n: int) -> list[Genuine]:
    """The first `n` errors of the seeded draws."""
    found: list[Genuine] = []
    for drawn in draws(random.Random(0)):
        if (error := raised(*drawn)) is not None:
            found.append(error)
        if len(found) == n:
            return found
    raise AssertionError("draws end")


def first(told: lp.diagnosis.Explanation, category: str) -> bool:
    return told.best is not None and told.best.category == category


def fair(told: lp.diagnosis.Explanation, category: str) -> bool:
    """Whether the category comes first, or is told as one of those between which a named fact decides."""
    tie = told.verdict == "unknown" and bool(told.needs)
    return first(told, category) or (tie and category in [d.category for d in told.diagnoses[:3]])


def test_wrong_layouts_at_true_sizes(soak):
    """The injected cause comes first with the layout given; from the traceback, or its last line, mostly."""
    errors = genuine(1000 if soak else 120)
    n = len(errors)
    assert {e.model for e in errors} == set(lp.PRESETS)
    assert {e.code for e in errors} >= {HEADS, KV_HEADS, "LP202", "LP201"}
    assert {e.program for e in errors} == set(PROGRAMS) - {"mlp", "mlp_unfused"}  # uneven columns run
    given = [
        e for e in errors if not first(lp.explain(e.message, e.model, e.layout, seq_len=e.seq), e.category)
    ]
    alone = [e for e in errors if not fair(lp.explain(e.traceback), e.category)]
    last_line = [e for e in errors if not fair(lp.explain(e.message), e.category)]
    assert len(given) <= 0.02 * n, Counter(e.message for e in given).most_common(3)
    assert len(alone) <= 0.15 * n, Counter(e.message for e in alone).most_common(3)
    assert len(last_line) <= 0.15 * n, Counter(e.message for e in last_line).most_common(3)

"""Numbers that differ: the tensors, where in them, by which pattern, and the first wrong line."""

import tomllib
from dataclasses import replace
from itertools import chain
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import llamapar as lp
from llamapar.execution import patterns
from llamapar.execution.differences import few_names
from llamapar.execution.first_line import FirstLine, in_place_of
from llamapar.execution.patterns import Axis, Pieces
from llamapar.execution.step_patterns import norm_pattern
from llamapar.place.cut import Cut
from llamapar.place.difference_map import drawn_on
from llamapar.programs import FAULTS, attention, vocab
from llamapar.records.trace import Tape, TapeStep
from llamapar.spmd import collectives

FAULTS_TOLD = tomllib.loads(Path(__file__).with_name("faults.toml").read_text("utf-8"))
TOLD = {name: (row["said"], row["line"]) for name, row in FAULTS_TOLD.items() if "said" in row}
"""A fault → a part of its sentence, and of the first wrong line."""

QUICK = ("drop_all_reduce", "contiguous_positions", "tile_kv", "documents_ignored", "slices_not_summed")
"""What `make test` runs; the others, among them whole training steps of a minute each, are the soak's."""


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.soak) for name in TOLD]
)
def test_a_fault_is_told_by_tensors_place_and_pattern(name, monkeypatch):
    monkeypatch.setattr("llamapar.execution.differences.SECONDS", 60.0)  # on a machine with other work, too
    fault = FAULTS[name]
    layout, model = fault.layout, lp.model("tiny")
    if name == "tile_kv":  # two heads on each rank: which KV head they read goes by the rank
        layout, model = {"tp": 8}, model.replace(n_kv_heads=4)
    run = lp.run(fault.program, model, layout, fault=name, dtype="float64", **fault.needs)
    said, line = TOLD[name]
    assert said in run.explanation.what
    assert line in run.explanation.line
    assert bool(line) == bool(run.explanation.line)
    if name == "contiguous_positions":
        shown = lp.view(run.explanation)
        assert shown.summary == "q, tokens 16–63\n  CP rank 0: tokens 48–63\n  CP rank 1: tokens 16–47"
        assert shown._repr_mimebundle_()["text/html"] in run._repr_html_()


def test_a_wrong_collective_is_told_by_the_ranks_that_it_sums(monkeypatch):
    monkeypatch.setattr("llamapar.execution.differences.SECONDS", 60.0)
    monkeypatch.setattr(
        vocab, "row_output", lambda partial, mesh, _: collectives.all_reduce(partial, mesh, "cp")
    )
    run = lp.run("embedding", "tiny", dict(tp=2, cp=2, sequence_parallel=False), dtype="float64")
    assert str(run.explanation).splitlines() == [
        "Output out: differs from one process; what it returns is the first that is wrong: on rank 0 the sum "
        "over ranks 0, 2 of partial, where the sum over ranks 0–1 should be",
        "where  embedding:7: return row_output(partial, mesh, setting)  (ranks 0–3)",
        "       name     on this rank  which is                        whole",
        "       partial  [2, 32, 128]  piece over cp, summand over tp  [2, 64, 128]",
        "       out      [2, 32, 128]  wrong                           [2, 64, 128]",
        "sure   likely",
    ]


def test_what_one_process_does_wrong_alone_is_no_cut(monkeypatch):
    monkeypatch.setattr("llamapar.execution.differences.SECONDS", 60.0)
    rope = attention.rope
    monkeypatch.setattr(attention, "rope", lambda t, positions, model: rope(t, 2 * positions, model))
    found = lp.run("attention", "tiny", dict(tp=2), dtype="float64").explanation
    assert found.verdict == "not_sharding"
    assert found.what.startswith(
        "Output out, tokens 1–63: differs from one process; q is the first that the reference"
    )
    assert found.rivals[-1] == "one process alone makes the same mistake: no cut is to blame"


def of_two_ranks(change):
    """Sixteen rows of eight heads, eight of each rank, as they should be apart from `change`."""
    whole = torch.randn(16, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    parts = {rank: (range(8 * rank, 8 * rank + 8), range(5)) for rank in (0, 1)}
    owns = {rank: whole[8 * rank : 8 * rank + 8] + change.get(rank, torch.zeros(8, 5)) for rank in (0, 1)}
    return Pieces("gradient", "wq", whole, [Axis("head", 2), Axis("channel")], owns, parts)


@pytest.mark.parametrize(
    ("rank", "rows", "words"),
    [
        (1, range(8), "on rank 1, heads 4–7, all that rank 1 has"),
        (1, range(2, 4), "on rank 1, head 5"),
        (0, range(2), "on rank 0, head 0"),
        (0, [0, 1, 4, 5], "on rank 0"),  # heads 0 and 2 are no regular place
    ],
)
def test_a_place_is_said_in_units_and_by_whose_they_are(rank, rows, words):
    change = torch.zeros(8, 5)
    change[list(rows)] = 1
    assert patterns.place_in_words(of_two_ranks({rank: change})) == words


@pytest.mark.parametrize(
    ("unit", "lane", "off", "said"),
    [
        ("head", "q", {3: {4, 5}}, "TP rank 1: heads 4–5"),
        ("FFN column", "rows", {2: {0, 2, 3}}, "TP rank 0: FFN columns 0, 2–3"),
        ("layer", "layers", {2: {5}}, "PP rank 1: layer 5"),
    ],
)
def test_what_differs_is_marked_on_the_map_of_who_holds_it(unit, lane, off, said):
    cut = Cut(lp.ModelConfig(16, 8, 8, 4, 8, 16, head_dim=2), lp.Layout(tp=2, pp=2))
    held = dict(enumerate([range(4), range(4, 8)] * 2))
    found = drawn_on("it", cut, unit, 8, {} if unit == "layer" else held, off)
    shown = lp.view(found)
    assert shown.summary == f"it\n  {said}"
    shapes = [shape for shape in shown.spec["shapes"] if shape[0] == lane]
    marks = [shape for shape in shapes if shape[-1] == "wrong off"]
    ends = [(round(start * 8), round(stop * 8)) for _, start, stop, *_ in marks]
    assert {n for end in ends for n in range(*end)} == {*chain(*off.values())}
    for _, start, stop, _, (left, right, *_), _ in marks:  # inside what is drawn of the same units
        whole = [s for s in shapes if s[-1] != "wrong off" and s[1] <= start and stop <= s[2]]
        assert any(s[4][0] <= left + 1e-3 and right <= s[4][1] + 1e-3 for s in whole)
    # A map that shows what the ranks do not hold is not drawn.
    assert drawn_on("it", cut, "head", 8, dict.fromkeys(held, range(8)), off) is None


def test_a_pattern_is_said_only_where_it_fits_to_rounding():
    t = of_two_ranks({})
    own = {rank: side.clone() for rank, (side, _) in t.pairs.items()}

    def said(owns):
        names = {"tp": 2.0, "cp": 2.0}
        return patterns.pattern_of(
            Pieces(t.kind, t.name, t.whole, t.axes, owns, t.parts), lp.Layout(tp=2), names
        )

    assert said({0: own[0] * 2, 1: own[1] * 2}) == "2 × the right one (2 = tp = cp)"
    assert said({0: own[0] / 2, 1: own[1] / 2}) == "1/2 of the right one (2 = tp = cp)"
    assert said({0: own[0] * 2, 1: own[1] * 2 + 1e-6}) == ""
    assert said({0: own[1], 1: own[0]}) == "heads in another order: rank 0 has 4–7 where 0–3 should be"
    assert said({0: own[0], 1: own[1] + 1}) == ""
    assert said(own) == ""
    assert said(own | {1: own[1] / 0}) == "infinite"
    assert said(own | {1: own[1] * torch.nan}) == "not a number"
    # A run at another degree may have no piece of this tensor.
    nothing = Pieces(t.kind, t.name, t.whole, t.axes, dict.fromkeys(own), t.parts)
    assert patterns.factor_of(nothing) is None
    # A number that most ranks have right is no maximum of what each has.
    whole = torch.ones(1, dtype=torch.float64)
    owns = {rank: whole if rank < 3 else whole * 0 for rank in range(4)}
    joins = Pieces("output", "joins", whole, [Axis()], owns, dict.fromkeys(owns, (range(1),)))
    assert patterns.pattern_of(joins, lp.Layout(tp=4), {}) == "zero where it differs"
    # Any number is a multiple of the right one; it counts where it is a degree.
    more = replace(joins, owns=dict.fromkeys(owns, whole * 4))
    assert patterns.pattern_of(more, lp.Layout(tp=4), {"tp": 4.0}) == "4 × the right one (4 = tp)"
    assert patterns.pattern_of(more, lp.Layout(tp=4), {"tp": 3.0}) == ""


def test_ranks_of_tp_never_average_and_those_of_dp_may():
    whole = torch.randn(8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    owns = {0: whole * 1.5, 1: whole * 0.5}
    axes = [Axis("channel")]
    t = Pieces("gradient", "norm", whole, axes, owns, dict.fromkeys(owns, (range(8),)))
    assert patterns.pattern_of(t, lp.Layout(dp=2), {}) == "each rank has its own; right is their mean over dp"
    assert patterns.pattern_of(t, lp.Layout(tp=2), {}) == ""


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        ([[0], [1], [2], [3]], "the maximum of ranks 0 and 1 and 2 and 3"),
        ([[0, 1], [2, 3]], "the maximum of the sums over ranks 0–1 and 2–3"),
        ([[0, 2], [1, 3]], ""),
    ],
)
def test_a_maximum_in_place_of_a_sum_is_told_with_its_groups(groups, words):
    columns = [*torch.randn(4, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)]
    own = torch.stack([sum(columns[rank] for rank in of) for of in groups]).amax(0)
    assert patterns.maximum_in_words(own, columns, [1.0] * 4, 1e-9) == words


def test_a_tensor_of_another_shape_is_told_by_the_rows_that_it_leaves_out():
    t = of_two_ranks({})
    own = t.pairs[1][0]
    others = {1: own[[0, 1, 2, 4, 5, 6]]}
    owns = {0: t.owns[0], 1: None}
    short = Pieces(t.kind, t.name, t.whole, t.axes, owns, t.parts, others)
    said = patterns.pattern_of(short, lp.Layout(tp=2), {})
    assert said == "[6, 5] where [8, 5] should be, on rank 1: without heads 5, 7"
    gone = Pieces(t.kind, t.name, t.whole, t.axes, owns, t.parts)
    assert patterns.pattern_of(gone, lp.Layout(tp=2), {}) == "missing on rank 1"


@pytest.mark.parametrize("times", [False, True])
def test_a_tensor_in_place_of_another_is_told_if_the_reference_computes_with_that(times):
    x, gate, bias, scale = torch.rand(4, 2, 8, generator=torch.Generator().manual_seed(0)).double() + 1
    right = x * scale if times else x + bias
    wrong = x * gate if times else x + gate
    made = TapeStep("f:1", "", "y", None, {}, whole=wrong)
    read = TapeStep("f:0", "", "gate", None, {}, whole=gate)
    task = SimpleNamespace(given={"bias": bias, "scale": scale})
    line = FirstLine(task, made, (read,), made, [right], True)
    assert in_place_of(line) == f"gate in place of {'scale' if times else 'bias'}"
    assert in_place_of(line._replace(like=[right + 1e-6])) == ""
    # What is divided by zeros is no number.
    assert in_place_of(line._replace(reads=(replace(read, whole=gate * 0),))) == ""


def test_a_result_that_is_equal_is_not_followed(monkeypatch):
    followed = []
    monkeypatch.setattr("llamapar.execution.result.of_program", lambda *given: followed.append(given))
    run = lp.run("mlp", "tiny", dict(tp=2))
    assert run.ok
    assert run.explanation is None
    assert followed == []


WATCHED = (None, dict(tp=2)), (None, dict(cp=2)), ("slices_not_summed", dict(tp=2))


def test_two_tapes_part_at_the_first_line_with_other_numbers_or_shapes():
    right, one, broken = (lp.watch("mlp", case=case, **layout).record for case, layout in WATCHED)
    assert lp.compare(right, one).summary.endswith("equal to the run of tp=2 cp=1 pp=1 dp=1")
    found = lp.compare(right, broken)
    assert (found.where, found.rows[0].error) == ("line mlp:5: out", None)
    assert found.explanation.what.startswith("Out is wrong on the ranks of the second one: there")
    assert found.tape is broken
    assert [row[2] for row in found.explanation.operands] == ["piece over tp", "wrong"]
    shapes = [lp.tape("attention", "tiny", dict(tp=2), seq_len=seq) for seq in (64, 64, 128)]
    assert lp.compare(*shapes[:2]).ok
    found = lp.compare(*shapes[1:])
    assert found.explanation.what.startswith("X is [1, 64, 128] whole, and then [1, 128, 128]: there")
    assert "wrong" not in {row[2] for row in found.explanation.operands}
    stopped = lp.compare(
        *(lp.tape("attention", "llama3-8b", dict(tp=tp, sequence_parallel=False)) for tp in (8, 16))
    )
    assert stopped.explanation.what.startswith("K raises on ranks 0–15: RuntimeError: shape")
    with pytest.raises(lp.LlamaparError, match=r"^the tapes of attention and mlp have no tensor in common"):
        lp.compare(shapes[0], right)


def test_two_cells_part_where_what_all_ranks_hold_alike_differs():
    """A cell's tape has no whole: its copies are compared, or on equal ranks each rank's own."""

    def tape(layout, own, total):
        made = [("h", own), ("y", dict.fromkeys(own, total))]
        values = [(name, {r: torch.tensor([n]) for r, n in of.items()}) for name, of in made]
        shapes = dict.fromkeys(own, (1,))
        steps = [TapeStep("cell:1", name, name, None, shapes, values=of) for name, of in values]
        return Tape("cell", layout, tuple(steps), len(own), len(own))

    one = tape("tp=2", {0: 1.0, 1: 2.0}, 3.0)
    assert lp.compare(one, tape("tp=1", {0: 3.0}, 3.0)).ok  # h is different on each rank of one
    other = lp.compare(one, tape("tp=1", {0: 3.0}, 4.0))
    assert other.where == "line cell:1: y"
    assert other.text().splitlines()[3] == "2 tensors of both compared"  # and not what a rank sends: nothing
    assert lp.compare(one, tape("tp=2", {0: 2.0, 1: 1.0}, 3.0)).where == "line cell:1: h"


@pytest.mark.parametrize(
    ("program", "model", "options", "why"),
    [
        ("mlp", "tiny", dict(tp=2), "of one program and one model"),
        ("attention", lp.model("tiny").replace(norm_eps=1e-3), dict(tp=2), "of one program and one model"),
        ("attention", "tiny", dict(tp=2, engine="dry", rank=1), "a dry run has no numbers"),
        ("attention", "tiny", dict(tp=4, dp=8), "at most 16 ranks are followed"),
    ],
)
def test_two_runs_that_have_nothing_in_common_are_refused(program, model, options, why):
    one = lp.run("attention", "tiny", dict(tp=2))
    layout = {axis: options.pop(axis) for axis in ("tp", "dp") if axis in options}
    with pytest.raises(
        lp.LlamaparError, match=f"^{program} of tp=.* is not compared with the first run"
    ) as told:
        lp.compare(one, lp.run(program, model, layout, **options))
    assert why in told.value.why


def test_a_weight_of_several_layers_is_named_once():
    names = ("layers.0.wk", "layers.3.w1", "layers.3.wk")
    assert few_names([SimpleNamespace(name=name) for name in names]) == "wk, layers.3.w1"


def test_a_norm_is_told_by_whose_gradients_it_counts():
    task = SimpleNamespace(setting=SimpleNamespace(layout=lp.Layout(tp=2)))
    gradients = [{"layers.0.wk": torch.full((4,), n)} for n in (1.5, 2.0)]
    reports = [SimpleNamespace(rank=rank, gradients=own) for rank, own in enumerate(gradients)]
    alone = norm_pattern(task, SimpleNamespace(owns={0: 3.0, 1: 4.0}), reports)
    assert alone == "it is the norm of each rank's own gradients"
    summed = norm_pattern(task, SimpleNamespace(owns={0: 5.0, 1: 5.0}), reports)
    assert summed == "it is the norm of the gradients of all ranks along tp, copies counted each time"

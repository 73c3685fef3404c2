"""The sharded programs against the unsharded model: outputs and gradients, memory, and what is sent.

Each run is compared with its reference by `lp.run` itself; here stand the layouts, and the witnesses that
do not go through that comparison: runs compared with one another, and formulas written out again.
"""

import itertools
import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

import llamapar as lp
from inputs import drawn
from llamapar import Layout, ModelConfig, Padding
from llamapar.describe.rope import RopeScaling
from llamapar.spmd import collectives, gradients
from llamapar.spmd.setting import kind
from sent import check_sent

PROGRAMS = list(lp.programs.PROGRAMS)
HEADS = 16

pytestmark = pytest.mark.usefixtures("no_ranks_left")


def small(n_kv_heads=4, **changes):
    """16 query heads of width 4, one layer, 112 tokens in the vocabulary: no two dims have one size."""
    sizes = dict(dim=48, n_layers=1, n_heads=HEADS, n_kv_heads=n_kv_heads, head_dim=4, ffn_dim=96)
    return ModelConfig(**{**sizes, "vocab_size": 112, "name": f"{HEADS}/{n_kv_heads} heads", **changes})


# -- the grid --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A model in a layout, with options of `lp.run`."""

    model: ModelConfig
    layout: Layout
    options: dict[str, Any] = field(default_factory=dict)

    def run(self, program, **options):
        return lp.run(program, self.model, self.layout, **{"dtype": "float64", **self.options, **options})

    def __str__(self):
        return f"{self.model.name}, {self.layout}, {self.layout.order}, sp={self.layout.sp}, {self.options}"


DEGREES = [(t, c) for t, c in itertools.product((1, 2, 4, 8, 16), repeat=2) if t * c <= 16]
GROUPS = (1, 2, 4, 8, 16)  # query heads to a KV head

VARIATIONS = (
    ({}, {}),
    ({"sequence_parallel": False}, {"cp_method": "ring"}),
    ({"dp": 2}, {"global_batch": 4}),
    ({"order": "dp-cp-tp-pp"}, {"padding": Padding(48, per_tp=True)}),
    ({}, {"chunking": "contiguous"}),
    ({"dp": 2, "sequence_parallel": False, "order": "cp-pp-dp-tp"}, {"cp_method": "ring"}),
    ({"sequence_parallel": False}, {"documents": (5, 40, 19)}),
)
"""Changes of the layout and options that the grid takes in turn; there are 7, so that each meets them all."""


def grid():
    """Every tp × cp up to 16 ranks with every GQA ratio, 75 layouts, the variations in turn."""
    made = []
    turn = itertools.cycle(VARIATIONS)
    for (tp, cp), group in itertools.product(DEGREES, GROUPS):
        on_layout, options = next(turn)
        if tp * cp == 16:
            on_layout = {k: v for k, v in on_layout.items() if k != "dp"}
        model = small(HEADS // group)
        options = {**options, "seq_len": 64, "kv_replication": tp > model.n_kv_heads}
        made.append(Case(model, Layout(tp=tp, cp=cp, **on_layout), options))
    return made


GRID = grid()


def of_program(program):
    """The grid from another start for each program, without what the program refuses."""
    start = 11 * PROGRAMS.index(program)
    turned = GRID[start:] + GRID[:start]
    if program != "meta_attention":
        return turned
    return [case for case in turned if not case.options["kv_replication"]]


@pytest.mark.parametrize("program", PROGRAMS)
def test_float64_equals_the_reference(program, counts):
    for case in drawn(of_program(program), counts(3, 8, len(GRID))):
        result = case.run(program)
        assert result.ok, f"{case}\n{result}"
        assert result.tolerance == 1e-12
        assert set(result.gradients[0]) == set(result.gradient_errors), case


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-5), ("bfloat16", 5e-2)])
def test_narrow_floats_equal_the_reference_within_their_tolerance(dtype, tolerance, sample):
    wide = [case for case in GRID[::6] if case.layout.cp > 1]
    for case in sample(wide, 2):
        for program in ("block", "loss"):
            result = case.run(program, dtype=dtype)
            assert result.ok, f"{case}\n{result}"
            assert result.tolerance == tolerance
            assert result.max_grad_error > 1e-12  # it did compute in the narrow type
            assert {str(t.dtype) for t in result.gradients[0].values()} == {f"torch.{dtype}"}


@pytest.mark.parametrize("case", [
    Case(small(3, n_heads=6), Layout(tp=3, cp=3), {"seq_len": 36}),
    Case(small(2, n_heads=6), Layout(tp=6, dp=3), {"seq_len": 36, "kv_replication": True, "global_batch": 3}),
    Case(small(5, n_heads=5, dim=37, ffn_dim=95), Layout(tp=5, cp=2, order="pp-cp-dp-tp"), {"seq_len": 20}),
    Case(small(1), Layout(tp=4), {"kv_replication": True}),
], ids=str)  # fmt: skip
def test_degrees_that_are_no_powers_of_two(case):
    assert case.run("llama").ok


BESIDE_WEIGHTS = {"qkv_bias": ("bq", "bk", "bv"), "o_bias": ("bo",), "qk_norm": ("q_norm", "k_norm")}


@pytest.mark.parametrize("program", ["attention", "block", "llama"])
@pytest.mark.parametrize("fields", [("qkv_bias",), ("qk_norm",), tuple(BESIDE_WEIGHTS)], ids="-".join)
def test_biases_and_norms_of_heads(program, fields, counts):
    """As in Qwen2 and Qwen3. Biases of zero change nothing, to the bit."""
    for case in drawn(of_program("attention"), counts(1, 8, len(GRID))):
        plain = small(case.model.n_kv_heads)
        with_more = Case(plain.replace(**dict.fromkeys(fields, True)), case.layout, case.options)
        result = with_more.run(program)
        assert result.ok, f"{with_more}\n{result}"
        own = {kind(name): t.shape for name, t in result.gradients[0].items()}
        assert {key for field in fields for key in BESIDE_WEIGHTS[field]} <= set(own)
        heads = {"bq": HEADS, "bk": plain.n_kv_heads, "bv": plain.n_kv_heads}
        for name in heads.keys() & own.keys():
            assert own[name] == (max(1, heads[name] // case.layout.tp) * plain.head_dim,)
        if program == "attention" and fields == ("qkv_bias",):
            zeros = {name: torch.zeros(n * plain.head_dim).double() for name, n in heads.items()}
            same = with_more.run(program, inputs=zeros)
            for rank, out in Case(plain, case.layout, case.options).run(program).outputs.items():
                assert torch.equal(out["out"], same.outputs[rank]["out"])


@pytest.mark.parametrize("sp", [False, True])
def test_gradients_of_a_norm_of_heads_are_summed_over_tp(sp, monkeypatch):
    """Each rank's part is of its own heads, with sequence parallelism and without."""
    layout = Layout(tp=2, sequence_parallel=sp)
    assert lp.run("attention", small().replace(qk_norm=True), layout, dtype="float64").ok
    monkeypatch.setattr(gradients, "sum_tokens", lambda mesh, gradient: gradient)
    result = lp.run("attention", small().replace(qk_norm=True), layout, dtype="float64")
    off = {name for name, error in result.gradient_errors.items() if error > 1e-3}
    assert off == {"q_norm", "k_norm"}


def test_a_program_of_ones_own_takes_what_stands_beside_its_weights():
    seen = []

    def mine(mesh, setting, x, wq, **more):
        seen.append(set(more))
        return {"y": x @ wq.mT}

    for fields in ((), ("qkv_bias", "qk_norm", "o_bias")):
        assert lp.run(mine, small().replace(**dict.fromkeys(fields, True)), {"tp": 2}).errors == {}
    assert seen == [set(), {"bq", "q_norm"}]


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_llama_of_two_layers_in_every_axis_at_once(tied, soak):
    for order in ("tp-cp-pp-dp", "dp-cp-tp-pp", "cp-dp-pp-tp") if soak else ("dp-cp-tp-pp",):
        layout = Layout(tp=2, cp=2, dp=2, order=order)
        result = lp.run("llama", small(n_layers=2, tied=tied), layout, dtype="float64", seq_len=16)
        assert result.ok, result
        assert ("output.weight" in result.gradients[0]) is not tied
        assert "layers.1.feed_forward.w2.weight" in result.gradient_errors


# -- runs compared with one another ----------------------------------------------------------------


def same(a, b):
    return a.shape == b.shape and bool((a - b).abs().max() <= 1e-12 * b.abs().max())


@pytest.mark.parametrize("chunking", ["head-tail", "contiguous"])
@pytest.mark.parametrize("documents", [None, (3, 30, 31)])
def test_ring_equals_all_gather(chunking, documents):
    case = Case(small(), Layout(cp=4, tp=2), {"seq_len": 64, "chunking": chunking, "documents": documents})
    ring, gathered = case.run("attention", cp_method="ring"), case.run("attention")
    assert ring.ok
    assert gathered.ok
    for rank in range(8):
        assert same(ring.outputs[rank]["out"], gathered.outputs[rank]["out"])
        assert all(same(g, gathered.gradients[rank][n]) for n, g in ring.gradients[rank].items())
    kinds = [
        {e.kind for e in r.trace.events if e.axis == "cp" and e.phase != "gradients"}
        for r in (ring, gathered)
    ]
    assert kinds == [{"send"}, {"all_gather", "reduce_scatter"}]


# -- heads traded over CP ----------------------------------------------------------------------------

TRADED = [
    Case(
        small(kv, qkv_bias=kv == 4),
        Layout(tp=tp, cp=cp, dp=dp, sequence_parallel=None if sp else False, order=order),
        {"cp_method": way, "chunking": chunking, "documents": documents, "seq_len": 64}
        | {"kv_replication": True, "global_batch": 2 * dp},
    )
    for tp, cp, dp, sp, kv, order, way, chunking, documents in itertools.product(
        (1, 2, 4),
        (2, 4, 8),
        (1, 2),
        (True, False),
        (2, 4, 16),
        ("tp-cp-pp-dp", "dp-cp-tp-pp"),
        ("ulysses", "ulysses:2", "ulysses:4"),
        ("head-tail", "contiguous"),
        (None, (5, 40, 19)),
    )
    if tp * cp * dp <= 8 and (sp or tp > 1) and not (way == "ulysses:4" and cp == 2)
]
"""Layouts whose CP ranks trade heads: all of them, or groups of 2 or 4 that then form a ring."""


def test_ulysses_is_one_process_in_both_engines(counts):
    """Outputs and gradients are the reference's, and every rank sends what `lp.traffic` says of it.

    Copies of KV heads, documents, uneven documents and orders of the axes are among the layouts.
    """
    for case, program in zip(
        drawn(TRADED, counts(3, 15, 60)), itertools.cycle(("attention", "llama", "block")), strict=False
    ):
        one, other = case.run(program), case.run(program, engine="processes")
        for result in (one, other):
            assert result.ok, f"{case}\n{result}"
            assert set(result.gradients[0]) == set(result.gradient_errors), case
            assert max([*result.output_errors.values(), *result.gradient_errors.values()]) <= 1e-12
            check_sent(result)
        assert one.traces == other.traces, case


def test_ulysses_attends_to_all_tokens_of_some_heads():
    """At cp=4 a rank of 16 query and 4 KV heads has 4 and 1 of them, of all tokens, in one causal call."""
    result = Case(small(), Layout(cp=4), {"seq_len": 64}).run("attention", cp_method="ulysses")
    for trace in result.traces.values():
        assert [(call.queries, call.keys, call.causal) for call in trace.attention] == [(64, 64, True)]
        assert {(2, 4, 64, 4), (2, 1, 64, 4)} <= trace.shapes


def test_ulysses_copies_kv_heads_only_if_it_may():
    case = Case(small(2), Layout(cp=4), {"seq_len": 64, "cp_method": "ulysses"})
    with pytest.raises(lp.LayoutError, match=r"^LP206 error  cp_method=ulysses: heads per TP rank 16/1 = 16"):
        case.run("attention")
    assert case.run("attention", kv_replication=True).ok


def test_both_engines_leave_the_same_trace_and_numbers(counts):
    small_ones = [Layout(tp=2, cp=2), Layout(tp=2, dp=2, sequence_parallel=False), Layout(cp=2, dp=2)]
    more = [Layout(tp=4, cp=2, order="cp-tp-pp-dp"), Layout(tp=2, cp=2, dp=2), Layout(tp=8)]
    everything = list(itertools.product(small_ones + more, ("all_gather", "ring"), PROGRAMS))
    short = [("ring", "attention"), ("all_gather", "llama"), ("all_gather", "mlp_unfused")]
    for layout, method, program in [
        *((layout, *of) for layout, of in zip(small_ones, short, strict=True)),
        *drawn(everything, counts(0, 10, len(everything))),
    ]:
        case = Case(small(8), layout, {"cp_method": method, "global_batch": 2, "seq_len": 16})
        one, other = case.run(program), case.run(program, engine="processes")
        assert one.ok, one
        assert other.ok, other
        assert one.traces == other.traces, case
        assert other.trace.events, case
        for rank in range(layout.world):
            for ours, theirs in ((one.outputs, other.outputs), (one.gradients, other.gradients)):
                assert ours[rank].keys() == theirs[rank].keys()
                assert all(same(t, theirs[rank][n]) for n, t in ours[rank].items())


# -- positions and RoPE ----------------------------------------------------------------------------

STRETCHED = RopeScaling(factor=8.0, original_max_seq_len=16)


@pytest.mark.parametrize("chunking", ["head-tail", "contiguous"])
def test_rope_of_llama_3_1_turns_by_true_positions_past_the_first_context(chunking):
    model = small(4, head_dim=8, rope_theta=100.0, rope_scaling=STRETCHED, max_seq_len=128)
    lengths = [2 * math.pi * model.rope_theta ** (i / model.head_dim) for i in range(0, model.head_dim, 2)]
    assert {n > 16 for n in lengths} == {True, False}  # some frequencies are stretched, some kept
    case = Case(model, Layout(cp=4, tp=2), {"seq_len": 64, "chunking": chunking})
    scaled = case.run("llama")
    assert scaled.ok, scaled
    unscaled = Case(model.replace(rope_scaling=None, head_dim=8), case.layout, case.options).run("llama")
    assert not same(scaled.outputs[0]["loss"], unscaled.outputs[0]["loss"])
    assert not case.run("attention", fault="contiguous_positions").ok or chunking == "contiguous"


# -- memory of the two ends of the model -----------------------------------------------------------


def widest(result):
    """The largest dim of any tensor that any rank made, forward or backward."""
    return max(n for trace in result.traces.values() for shape in trace.shapes for n in shape)


def gathered_logits(mesh, setting, x, output):
    """What must not be done: every rank with all columns of the logits."""
    x = collectives.all_gather(x, mesh, "tp", 1)
    return collectives.all_gather(x @ output.mT, mesh, "tp", 2)


def all_rows(mesh, setting, x, output):
    """What must not be done: a tensor of all rows that no other tensor is the source of."""
    return (x @ output.mT) + torch.zeros(1, 1, setting.model.vocab_size, dtype=x.dtype).sum()


@pytest.mark.parametrize("engine", ["local", "processes"])
def test_no_rank_holds_a_tensor_of_the_vocabulary_width(engine):
    model = small(4, vocab_size=1000)
    for padding, rows in ((None, 1000), (Padding(128, per_tp=True), 1024)):
        options = {"padding": padding, "seq_len": 16, "engine": engine}
        for program in ("embedding", "loss", "llama"):
            result = Case(model, Layout(tp=4), options).run(program)
            assert result.ok, result
            assert widest(result) == rows // 4, program
    full = {"seq_len": 16, "engine": engine}
    assert widest(Case(model, Layout(tp=4), full).run(gathered_logits, backward=False)) == 1000
    assert widest(Case(model, Layout(tp=4), full).run(all_rows, backward=False)) == 1000


@pytest.mark.parametrize(("vocab", "tp", "widths"), [(100, 8, [13] * 7 + [9]), (101, 4, [26] * 3 + [23])])
def test_an_uneven_vocabulary_runs_without_padding(vocab, tp, widths):
    model = small(8, vocab_size=vocab)
    layout = Layout(tp=tp)
    assert [f.code for f in lp.check(model, layout).findings if f.severity == "note"] == ["LP105"]
    for program in ("embedding", "loss", "llama"):
        result = Case(model, layout).run(program)
        assert result.ok, result
        ends = {"embedding": "tok_embeddings", "loss": "output", "llama": "output.weight"}[program]
        assert [len(result.gradients[r][ends]) for r in range(tp)] == widths


def test_pad_rows_get_no_gradient():
    model = small(8, vocab_size=101)  # 192 rows: ranks 5 to 7 hold pad rows only
    result = Case(model, Layout(tp=8), {"padding": Padding(24, per_tp=True)}).run("loss")
    assert result.ok, result
    rows = torch.cat([own["output"] for own in result.gradients.values()])
    assert rows.shape == (192, model.dim)
    assert rows[101:].abs().max() == 0
    assert rows[:101].abs().max(1).values.min() > 0


# -- what is sent ----------------------------------------------------------------------------------


@pytest.mark.parametrize("sp", [False, True])
def test_traffic_of_megatrons_four_and_their_halves(sp):
    """A block: 2 all-reduces forward and 2 backward; under sequence parallelism as many bytes in 8 halves.

    arXiv:1909.08053, section 3 and arXiv:2205.05198, section 4.2.2. Unfused w1 and w3 sum once more.
    """
    halves = ("all_gather", "reduce_scatter") if sp else ("all_reduce",)
    wanted = {(phase, kind): 2 for phase in ("forward", "backward") for kind in halves}
    for program, sums in (("block", wanted), ("mlp_unfused", {("backward", halves[-1]): 2})):
        result = Case(small(), Layout(tp=4, sequence_parallel=sp), {"seq_len": 32}).run(program)
        events = [e for e in result.trace.events if e.phase != "gradients"]
        assert {e.payload for e in events} == {2 * 32 * 48 * 8}  # of [batch, seq, dim]
        assert sums.items() <= Counter((e.phase, e.kind) for e in events).items()
        assert program != "block" or len(events) == sum(wanted.values())

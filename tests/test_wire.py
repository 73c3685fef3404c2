"""The communication volume by formula beside the traces of real runs, and beside arithmetic by hand."""

from __future__ import annotations

import random
from collections import Counter
from itertools import product
from typing import Any

import pytest

import llamapar as lp
from inputs import drawn
from llamapar.count.wire import PARTS, WHOLE, Traffic
from llamapar.errors import LayoutError
from llamapar.execution.run_result import RunResult
from llamapar.records.trace import PHASES, Trace

SMALL = lp.model("tiny").replace(
    dim=24, n_layers=1, n_heads=4, n_kv_heads=2, head_dim=4, ffn_dim=48, vocab_size=96, name="small"
)
BIG = "llama3.1-405b"


def events(found: Trace | Traffic) -> Counter[tuple[str, str, str, int]]:
    """(phase, axis, kind, bytes) of every collective → how many."""
    if isinstance(found, Trace):
        return Counter((e.phase, e.axis, e.kind, e.bytes) for e in found.events)
    made: Counter[tuple[str, str, str, int]] = Counter()
    for t in found.terms:
        made[t.phase, t.axis, t.kind, t.bytes] += t.count
    return made


def both(program: str, layout: dict[str, Any], model: Any = SMALL, **options: Any) -> tuple[Any, Traffic]:
    """A run, and what is said of it."""
    said = {"seq_len": 4 * layout.get("cp", 1) * layout.get("tp", 1), "dtype": "float32"} | options
    result = lp.run(program, model, layout, **said)
    return result, formulas(result, program, model, layout, **said)


def formulas(result: RunResult, program: str, model: Any, layout: dict[str, Any], **said: Any) -> Traffic:
    """What is said of a run, with the batch that it chose: by itself `lp.traffic` counts one sequence."""
    setting = result.task.setting
    batch = {"global_batch": setting.global_batch}
    if setting.schedule is not None:
        batch["micro_batches"] = setting.micro_batches
    return lp.traffic(program, model, layout, **said | batch)


def agree(trace: Trace, said: Traffic) -> None:
    """The same collectives, hence the same bytes however they are added up."""
    assert events(trace) == events(said)
    assert sum(said.by_axis.values()) == trace.bytes() == said.bytes()
    assert said.by_axis == {axis: n for axis in (*lp.AXES, "dp-cp") if (n := trace.bytes(axis))}
    pairs = {(e.phase, e.axis) for e in trace.events}
    assert said.by_phase == {(phase, axis): trace.bytes(axis, phase) for phase, axis in pairs}


# -- against traces --------------------------------------------------------------------------------

LAYOUTS = [
    {"tp": tp, "cp": cp, "dp": dp, "sequence_parallel": sp}
    for tp, cp, dp, sp in product((1, 2, 4), (1, 2, 4), (1, 2), (True, False))
    if tp * cp * dp <= 8 and (sp or tp > 1)
]
CASES = [
    (program, layout, cp_method, dtype)
    for program, layout, cp_method, dtype in product(
        PARTS, LAYOUTS, ("all_gather", "ring"), ("float32", "bfloat16")
    )
    if cp_method == "all_gather" or (layout["cp"] > 1 and program in ("attention", "block", *WHOLE))
]


def test_every_rank_sends_what_the_formulas_say(counts: Any) -> None:
    for program, layout, cp_method, dtype in drawn(CASES, counts(20, 50, len(CASES))):
        options = {"cp_method": cp_method, "dtype": dtype, "global_batch": 2 * layout["dp"]}
        result, said = both(program, layout, kv_replication=True, **options)
        assert not result.errors
        assert list(result.traces) == list(range(lp.Layout.of(layout).world))
        for trace in result.traces.values():
            agree(trace, said)


def test_every_program_has_formulas() -> None:
    """But Meta's own arithmetic of heads, which repeats K and V before they travel."""
    assert set(PARTS) == set(lp.programs.PROGRAMS) - {"meta_attention"}


@pytest.mark.parametrize("tied", [True, False])
def test_a_whole_model(tied: bool) -> None:
    layout = {"tp": 2, "cp": 2, "dp": 2}
    result, said = both("llama", layout, SMALL.replace(tied=tied, n_layers=2))
    assert result.ok
    agree(result.trace, said)
    assert {phase for phase, _ in said.by_phase} == set(PHASES) - {"update"}
    assert set(said.by_axis) == {"tp", "cp", "dp"}
    norms = [t.count for t in said.terms if t.part == "norm"]
    assert norms == [5, 5, 5]  # two in a layer and the last, over tp, cp and dp
    assert any(t.part == "output" for t in said.terms) is not tied


@pytest.mark.parametrize("layout", [{"tp": 2, "cp": 2, "dp": 2}, {"tp": 4, "dp": 2}])
@pytest.mark.parametrize("program", ["attention", "llama"])
def test_biases_are_summed_like_their_weights(program: str, layout: dict[str, int]) -> None:
    """tp=4 holds each KV head twice, and sums the gradients of its biases over the copies."""
    result, said = both(program, layout, SMALL.replace(qkv_bias=True), kv_replication=True)
    assert result.ok
    agree(result.trace, said)
    assert {"bq", "bk", "bv"} <= {t.part for t in said.terms}


def test_qk_norms_are_summed_over_tp() -> None:
    """No program runs them; each rank's heads pass them, with sequence parallelism and without."""
    for sp in (True, False):
        layout = {"tp": 2, "cp": 2, "sequence_parallel": sp}
        said = lp.traffic("block", SMALL.replace(qk_norm=True), layout, seq_len=8)
        norms = [(t.part, t.axis, t.bytes) for t in said.terms if t.part in ("q_norm", "k_norm")]
        size = 4 * SMALL.head_dim
        assert sorted(norms) == [(n, axis, size) for n in ("k_norm", "q_norm") for axis in ("cp", "tp")]


@pytest.mark.parametrize("padding", [None, "64"])
def test_rank_0_where_vocabulary_rows_are_uneven(padding: str | None) -> None:
    """97 rows over tp=2: 49 and 48; padded to 128 both hold 64."""
    uneven = SMALL.replace(vocab_size=97)
    options = {"seq_len": 8, "padding": padding}
    result = lp.run("loss", uneven, {"tp": 2, "dp": 2}, force=True, **options)
    said = formulas(result, "loss", uneven, {"tp": 2, "dp": 2}, **options)
    agree(result.traces[0], said)
    assert said.bytes("dp", "gradients") == (64 if padding else 49) * 24 * 4
    assert (result.traces[1].bytes("dp") < said.bytes("dp")) is (padding is None)


ZERO = [
    ({"zero": zero, **layout}, options)
    for layout, options in (
        ({"dp": 2}, {}),
        ({"cp": 4}, {}),
        ({"tp": 4, "dp": 2, "cp": 2}, {"kv_replication": True}),
        ({"dp": 4, "dp_replicate": 2, "tp": 2}, {}),
        ({"dp": 2, "dp_replicate": 2, "cp": 2}, {}),
        ({"dp": 5}, {}),
        ({"dp": 2, "cp": 2, "pp": 2}, {"micro_batches": 2, "schedule": "zbv"}),
        ({"dp": 2, "pp": 2}, {"micro_batches": 3}),
        ({"dp": 2}, {"micro_batches": 2}),
        ({"dp": 3, "pp": 2}, {"micro_batches": 4, "schedule": "interleaved-zero-bubble"}),
    )
    for zero in (2, 3)
]


def test_what_zero_sends(counts: Any) -> None:
    """Every rank's, for slices may be uneven; tied and not; parameters kept, and gathered again."""
    cases = list(product(ZERO, (True, False), (True, False)))
    for (layout, options), tied, again in drawn(cases, counts(4, 12, len(cases))):
        model = SMALL.replace(
            n_layers=6 if "pp" in layout else 1, tied=tied, qkv_bias="kv_replication" in options
        )
        said = {"seq_len": 16, "reshard_after_forward": again} | options
        result = lp.run("llama", model, layout, **said)
        assert result.ok
        for rank, trace in result.traces.items():
            agree(trace, formulas(result, "llama", model, layout, rank=rank, **said))


@pytest.mark.parametrize("program", PARTS)
def test_what_zero_3_sends_of_each_program(program: str) -> None:
    result, said = both(program, {"dp": 2, "cp": 2, "zero": 3})
    assert result.ok
    agree(result.trace, said)
    kinds = {t.kind for t in said.terms if t.axis == "dp-cp" and t.part != "sum of squares"}
    assert kinds == {"all_gather", "reduce_scatter"}


STEPS = [
    ({"zero": zero, **layout}, options)
    for layout, options in (
        ({"tp": 2, "cp": 2, "pp": 2, "dp": 2}, {"micro_batches": 2}),
        ({"tp": 4, "pp": 2}, {"kv_replication": True}),
        ({"pp": 2, "dp": 2}, {"schedule": "zbv", "global_batch": 8}),
        ({"dp": 4, "dp_replicate": 2, "cp": 2}, {"micro_batches": 3}),
        ({"dp": 5}, {}),
        ({"pp": 2, "cp": 2}, {"schedule": "interleaved-1f1b"}),
        ({"dp": 2, "dp_replicate": 2, "pp": 2}, {"cp_method": "ring"}),
        ({"tp": 2, "pp": 2, "sequence_parallel": False}, {}),
    )
    for zero in range(4)
]


def test_what_a_training_step_sends(counts: Any) -> None:
    """Every rank's: norm, gathered weights, gradients in float32. `test_step` has more."""
    cases = list(product(STEPS, (True, False), (True, False), ("bfloat16", "float32")))
    for (layout, options), tied, again, dtype in random.Random(2).sample(cases, counts(2, 8, len(cases))):
        model = SMALL.replace(n_layers=4, tied=tied)
        said = {"seq_len": 16, "reshard_after_forward": again, "dtype": dtype} | options
        result = lp.run("step", model, layout, **said)
        assert not result.errors
        for rank, trace in result.traces.items():
            formula = formulas(result, "step", model, layout, rank=rank, **said)
            agree(trace, formula)


def test_one_rank_sends_nothing() -> None:
    result, said = both("llama", {"tp": 1})
    assert result.trace.events == ()
    assert (said.terms, said.by_axis, said.by_phase, said.bytes()) == ((), {}, {}, 0)


@pytest.mark.parametrize(
    ("fault", "program", "layout"),
    [
        ("drop_all_reduce", "attention", {"tp": 2, "sequence_parallel": False}),
        ("no_kv_grad_sum", "attention", {"tp": 4}),
        ("no_norm_grad_sum", "block", {"tp": 2}),
        ("no_context_grad_sum", "attention", {"cp": 2}),
    ],
)
def test_a_collective_left_out_is_seen(fault: str, program: str, layout: dict[str, Any]) -> None:
    options = {"kv_replication": True, "seq_len": 16}
    broken = lp.run(program, SMALL, layout, fault=fault, **options)
    said = formulas(broken, program, SMALL, layout, **options)
    assert not broken.errors
    assert broken.trace.bytes() < said.bytes()
    with pytest.raises(AssertionError, match="Counter"):
        agree(broken.trace, said)


# -- against arithmetic by hand --------------------------------------------------------------------


def test_a_layer_of_llama_405b_by_hand() -> None:
    """TP 8 with sequence parallelism, 8192 tokens, bfloat16: 8192 · 16384 · 2 bytes = 256 MiB a time."""
    said = lp.traffic("block", BIG, {"tp": 8}, seq_len=8192, dtype="bfloat16")
    residual = 256 * 2**20
    assert said.by_phase == {
        ("forward", "tp"): 4 * residual,  # all-gather and reduce-scatter around attention and around the MLP
        ("backward", "tp"): 4 * residual,
        ("gradients", "tp"): 2 * 32_768,  # two norms of 16384 numbers
    }
    plain = lp.traffic("block", BIG, {"tp": 8, "sequence_parallel": False}, seq_len=8192, dtype="bfloat16")
    assert plain.by_phase == {("forward", "tp"): 2 * residual, ("backward", "tp"): 2 * residual}
    # An all-reduce moves twice what an all-gather or a reduce-scatter does: arXiv:2205.05198, section 4.2.2.
    assert 2 * plain.bytes(phase="forward") == said.bytes(phase="forward")


def test_keys_and_values_of_llama_405b_by_hand() -> None:
    """CP 16, 131072 tokens, one KV head of 128 a rank: 131072 · 128 · 2 bytes = 32 MiB each of K and V."""
    layout = {"tp": 8, "cp": 16}
    said = lp.traffic("attention", BIG, layout, seq_len=131_072, dtype="bfloat16")
    assert said.by_phase["forward", "cp"] == said.by_phase["backward", "cp"] == 2 * 32 * 2**20
    ring = lp.traffic("attention", BIG, layout, seq_len=131_072, dtype="bfloat16", cp_method="ring")
    assert ring.by_phase["forward", "cp"] == 2 * 15 * 2 * 2**20  # 2 MiB a chunk; the own one stays
    assert ring.by_phase["backward", "cp"] == 2 * 15 * 2 * 2**20 + 2 * 16 * 4 * 2**20  # float32 gradients
    # wq and wo 16384 x 2048, wk and wv 128 x 16384
    assert said.by_phase["gradients", "cp"] == 2 * (2 * 16_384 * 2_048 + 2 * 128 * 16_384)
    sixteen = lp.traffic("attention", BIG, {"tp": 16}, seq_len=8192, dtype="bfloat16", kv_replication=True)
    assert sixteen.by_phase["gradients", "tp"] == 2 * 2 * 128 * 16_384  # two copies of each KV head


def test_the_whole_of_llama_405b() -> None:
    """Its published layout, arXiv:2407.21783, table 4: 126 layers between an embedding and a head."""
    layout = {"tp": 8, "cp": 16, "pp": 16, "dp": 8}
    said = lp.traffic("llama", BIG, layout, seq_len=131_072, dtype="bfloat16")
    residual = 8192 * 16_384 * 2
    assert said.bytes("tp", "forward") == (4 * 126 + 2) * residual + 3 * 8192 * 4
    assert said.bytes("tp", "backward") == (4 * 126 + 2) * residual
    assert said.bytes("cp", "forward") == 126 * 2 * 131_072 * 128 * 2 + 4
    parameters = lp.model(BIG).n_params
    norms = 253 * 16_384
    assert said.bytes("dp") == 2 * ((parameters - norms) // 8 + norms)
    assert "pp" not in said.by_axis


# -- what it says ----------------------------------------------------------------------------------


def test_it_shows_itself_as_a_table() -> None:
    said = lp.traffic("loss", SMALL, {"tp": 2, "cp": 2}, seq_len=16)
    assert repr(said).splitlines() == [
        "loss, small, tp=2 cp=2 pp=1 dp=1: what a rank sends",
        "phase      axis  of            collective      times  bytes each  bytes",
        "forward    tp    column input  all_gather      1      768         768",
        "forward    tp    loss          all_reduce      3      32          96",
        "forward    cp    loss          all_reduce      1      4           4",
        "backward   tp    column input  reduce_scatter  1      768         768",
        "gradients  cp    output        all_reduce      1      4,608       4,608",
        "tp 1,632 B, cp 4,612 B",
    ]
    assert said._repr_html_().count("<tr>") == 6


@pytest.mark.parametrize(
    ("program", "layout", "options", "what", "choices"),
    [
        ("mlp", {"cp": 4}, {"seq_len": 30}, "4 ranks do not divide seq_len=30", ["seq_len=28", "seq_len=32"]),
        ("mlp", {"tp": 4, "cp": 2}, {"seq_len": 4}, "8 ranks do not divide seq_len=4", ["seq_len=8"]),
        (
            "mlp",
            {"dp": 2},
            {"global_batch": 3},
            "2 ranks do not divide global_batch=3",
            ["global_batch=2", "global_batch=4"],
        ),
        ("block", {"tp": 4}, {}, "tp=4 does not divide n_kv_heads=2", ["tp=2"]),
        ("attention", {"tp": 3}, {"kv_replication": True}, "tp=3 does not divide n_heads=4", ["tp=1"]),
    ],
)
def test_what_does_not_divide(
    program: str, layout: dict[str, Any], options: dict[str, Any], what: str, choices: list[str]
) -> None:
    with pytest.raises(LayoutError, match=what) as raised:
        lp.traffic(program, SMALL, layout, **{"seq_len": 48, **options})
    assert list(raised.value.choose) == choices


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"program": "mlps"}, "program='mlps' is not known"),
        ({"dtype": "float16"}, "dtype='float16' is not known"),
        ({"cp_method": "rings"}, "cp_method='rings' is not known"),
        ({"seq_len": 0}, "seq_len=0: seq_len must be a whole number"),
        ({"global_batch": 1.5}, "global_batch=1.5: global_batch must be a whole number"),
        ({"kv_replication": 1}, "kv_replication=1: kv_replication must be True or False"),
        ({"padding": "megatrom"}, "padding='megatrom' is not known"),
    ],
)
def test_bad_input(options: dict[str, Any], what: str) -> None:
    given = {"program": "attention", "model": SMALL, "layout": {"tp": 2}, "seq_len": 8} | options
    with pytest.raises(LayoutError, match=what):
        lp.traffic(**given)

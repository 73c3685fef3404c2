"""The communication volume by formula beside the traces of real runs, and beside arithmetic by hand."""

from itertools import product

import pytest

import llamapar as lp
from inputs import drawn
from llamapar.count.wire import PARTS, WHOLE
from llamapar.records.trace import PHASES, sent_bytes
from sent import agree, check_sent, said_of

SMALL = lp.model("tiny").replace(
    dim=24, n_layers=1, n_heads=4, n_kv_heads=2, head_dim=4, ffn_dim=48, vocab_size=96, name="small"
)
BIG = "llama3.1-405b"


def sent(program, layout, model=SMALL, **options):
    """What rank 0 sends by the formulas, after a run in which every rank sent what they say of it."""
    known = {"seq_len": 4 * layout.get("cp", 1) * layout.get("tp", 1), "dtype": "float32"}
    result = lp.run(program, model, layout, **known | options)
    assert not result.errors
    check_sent(result)
    return said_of(result)


# -- what "sent" means -----------------------------------------------------------------------------


def pieces_sent(kind, ranks):
    """Of `ranks` pieces of a tensor, how many leave a rank, counted round by round in a ring."""
    each_half = sum(1 for _ in range(ranks - 1))  # one piece to the next rank in each round but the last
    if kind == "all_to_all":
        return sum(1 for other in range(ranks) if other != 0)
    return {"all_reduce": 2 * each_half, "all_gather": each_half, "reduce_scatter": each_half}.get(
        kind, ranks
    )


@pytest.mark.parametrize(
    "kind", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send"]
)
def test_what_a_ring_sends_of_every_kind(kind):
    """Beside the factors of NVIDIA's nccl-tests, doc/PERFORMANCE.md, and the pieces of a ring one by one."""
    factors = {
        "all_reduce": lambda n: 2 * (n - 1) / n,
        "all_gather": lambda n: (n - 1) / n,
        "reduce_scatter": lambda n: (n - 1) / n,
        "all_to_all": lambda n: (n - 1) / n,
        "broadcast": lambda n: 1,  # at most
        "send": lambda n: 1,
    }
    for ranks in (2, 3, 4, 5, 7, 8, 16, 64, 1024):
        for piece in (1, 12, 2**20):
            payload = ranks * piece
            assert sent_bytes(kind, payload, ranks) == round(factors[kind](ranks) * payload)
            assert sent_bytes(kind, payload, ranks) == piece * pieces_sent(kind, ranks)
    assert (sent_bytes(kind, 12, 1), sent_bytes("recv", 12, 2)) == (0, 0)


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


def test_every_rank_sends_what_the_formulas_say(counts):
    for program, layout, cp_method, dtype in drawn(CASES, counts(16, 40, len(CASES))):
        sent(
            program,
            layout,
            kv_replication=True,
            cp_method=cp_method,
            dtype=dtype,
            global_batch=2 * layout["dp"],
        )


def test_every_program_has_formulas():
    """But Meta's own arithmetic of heads, which repeats K and V before they travel."""
    told = "what a program is made of goes into PARTS of llamapar/count/wire.py"
    assert set(PARTS) == set(lp.programs.PROGRAMS) - {"meta_attention"}, told


@pytest.mark.parametrize("tied", [True, False])
def test_a_whole_model(tied):
    said = sent("llama", {"tp": 2, "cp": 2, "dp": 2}, SMALL.replace(tied=tied, n_layers=2))
    assert {phase for phase, _ in said.by_phase} == set(PHASES) - {"update"}
    assert set(said.by_axis) == {"tp", "cp", "dp"}
    norms = [t.count for t in said.terms if t.part == "norm"]
    assert norms == [5, 5, 5]  # two in a layer and the last, over tp, cp and dp
    assert any(t.part == "output" for t in said.terms) is not tied


@pytest.mark.parametrize(
    "layout",
    [{"tp": 2, "cp": 2, "dp": 2}, {"tp": 4, "dp": 2}, {"tp": 2, "cp": 2, "sequence_parallel": False}],
)
@pytest.mark.parametrize("program", ["attention", "llama"])
def test_what_stands_beside_weights_is_summed_like_them(program, layout):
    """tp=4 holds each KV head twice, and sums the gradients of its biases over the copies."""
    model = SMALL.replace(qkv_bias=True, o_bias=True, qk_norm=True)
    terms = sent(program, layout, model, kv_replication=True).terms
    assert {"bq", "bk", "bv", "bo", "q_norm", "k_norm"} <= {t.part for t in terms}
    assert {t.axis for t in terms if t.part == "q_norm"} >= {"tp"}, "each rank's heads pass it"


@pytest.mark.parametrize(("padding", "rows"), [(None, 49), ("64", 64)])
def test_vocabulary_rows_may_be_uneven(padding, rows):
    """97 rows over tp=2: 49 and 48; padded to 128 both hold 64."""
    model, layout = SMALL.replace(vocab_size=97), {"tp": 2, "dp": 2}
    result = lp.run("loss", model, layout, seq_len=8, padding=padding, force=True)
    said = said_of(result)
    agree(result.traces[0], said)
    assert (result.traces[1].bytes("dp") < said.bytes("dp")) is (padding is None)
    assert said.bytes("dp", "gradients") == rows * 24 * 4  # of dp=2, an all-reduce sends the tensor once


ZERO = [
    ({"zero": zero, **layout}, options)
    for layout, options in (
        ({"dp": 2}, {}),
        ({"cp": 4}, {"cp_method": "ring"}),
        ({"tp": 4, "dp": 2, "cp": 2}, {"kv_replication": True}),
        ({"tp": 4, "dp": 3, "order": "dp-tp-cp-pp"}, {"kv_replication": True, "global_batch": 6}),
        ({"dp": 4, "dp_replicate": 2, "tp": 2}, {}),
        ({"dp": 4, "dp_replicate": 2, "cp": 2}, {}),
        ({"dp": 5}, {"documents": (5, 11)}),
        ({"dp": 2, "cp": 2, "pp": 2, "tp": 2}, {"micro_batches": 2}),
        ({"dp": 2, "pp": 2}, {"micro_batches": 3}),
        ({"dp": 2}, {"micro_batches": 2}),
        ({"tp": 2, "pp": 2, "dp": 2, "sequence_parallel": False}, {"micro_batches": 2, "schedule": "zbv"}),
        ({"dp": 3, "pp": 2}, {"micro_batches": 4, "schedule": "interleaved-zero-bubble"}),
    )
    for zero in range(4)
]


def test_what_zero_sends(counts, deep):
    """Whole runs of every stage, whose gradients are one process's; slices may be uneven."""
    cases = [
        (layout, options, tied, again)
        for (layout, options), tied, again in product(ZERO, (True, False), (True, False))
        if layout["zero"] == 3 or again
    ]
    for (layout, options, tied, again), engine in product(
        drawn(cases, counts(4, 12, len(cases))), ("local", "processes") if deep else ("local",)
    ):
        model = SMALL.replace(
            n_layers=6 if "pp" in layout else 1, tied=tied, qkv_bias="kv_replication" in options
        )
        known = {"seq_len": 16, "dtype": "float64", "reshard_after_forward": again, "engine": engine}
        result = lp.run("llama", model, layout, **known, **options)
        assert result.ok, str(result)
        assert set(result.gradient_errors) == {p.name for p in model.parameters()}
        assert max(result.gradient_errors.values()) <= 1e-12
        check_sent(result)


@pytest.mark.parametrize("program", PARTS)
def test_what_zero_3_sends_of_each_program(program):
    terms = sent(program, {"dp": 2, "cp": 2, "zero": 3}).terms
    kinds = {t.kind for t in terms if t.axis == "dp-cp" and t.part != "sum of squares"}
    assert kinds == {"all_gather", "reduce_scatter"}


def test_one_rank_sends_nothing():
    said = sent("llama", {"tp": 1})
    assert (said.terms, said.by_axis, said.by_phase, said.bytes()) == ((), {}, {}, 0)


def test_a_collective_left_out_is_seen():
    with pytest.raises(AssertionError, match=r"^rank 0 sent Counter\(\) and not Counter\({"):
        sent("attention", {"tp": 4}, kv_replication=True, fault="no_kv_grad_sum")


# -- against arithmetic by hand --------------------------------------------------------------------


def test_a_layer_of_llama_405b_by_hand():
    """TP 8 with sequence parallelism, 8192 tokens, bfloat16: 8192 · 16384 · 2 bytes = 256 MiB a time."""
    said = lp.traffic("block", BIG, {"tp": 8}, seq_len=8192, dtype="bfloat16")
    sent = 7 * 32 * 2**20  # of 8 pieces, all but one
    assert said.by_phase == {
        ("forward", "tp"): 4 * sent,  # all-gather and reduce-scatter around attention and around the MLP
        ("backward", "tp"): 4 * sent,
        ("gradients", "tp"): 2 * 2 * 7 * 4096,  # two norms of 16384 numbers, each all-reduced
    }
    plain = lp.traffic("block", BIG, {"tp": 8, "sequence_parallel": False}, seq_len=8192, dtype="bfloat16")
    # An all-reduce is a reduce-scatter and an all-gather, so sequence parallelism sends no more:
    # arXiv:2205.05198, section 4.2.2.
    assert plain.by_phase == {("forward", "tp"): 4 * sent, ("backward", "tp"): 4 * sent}


def test_keys_and_values_of_llama_405b_by_hand():
    """CP 16, 131072 tokens, one KV head of 128 a rank: 131072 · 128 · 2 bytes = 32 MiB each of K and V."""
    layout = {"tp": 8, "cp": 16}
    said = lp.traffic("attention", BIG, layout, seq_len=131_072, dtype="bfloat16")
    assert said.by_phase["forward", "cp"] == said.by_phase["backward", "cp"] == 2 * 15 * 2 * 2**20
    ring = lp.traffic("attention", BIG, layout, seq_len=131_072, dtype="bfloat16", cp_method="ring")
    # 2 MiB a chunk. Each of 15 goes on to the next rank, so the ring sends as much as the all-gather.
    assert ring.by_phase["forward", "cp"] == said.by_phase["forward", "cp"]
    assert ring.by_phase["backward", "cp"] == 2 * 15 * 2 * 2**20 + 2 * 16 * 4 * 2**20  # float32 gradients
    # wq and wo 16384 x 2048, wk and wv 128 x 16384, each all-reduced over 16 ranks
    numbers = 2 * 16_384 * 2_048 + 2 * 128 * 16_384
    assert said.by_phase["gradients", "cp"] == 2 * 15 * 2 * numbers // 16
    sixteen = lp.traffic("attention", BIG, {"tp": 16}, seq_len=8192, dtype="bfloat16", kv_replication=True)
    assert sixteen.by_phase["gradients", "tp"] == 2 * 2 * 128 * 16_384  # two copies of each KV head


def test_the_whole_of_llama_405b():
    """Its published layout, arXiv:2407.21783, table 4: 126 layers between an embedding and a head."""
    layout = {"tp": 8, "cp": 16, "pp": 16, "dp": 8}
    said = lp.traffic("llama", BIG, layout, seq_len=131_072, dtype="bfloat16")
    residual = 7 * 1024 * 16_384 * 2
    assert said.bytes("tp", "forward") == (4 * 126 + 2) * residual + 3 * 2 * 7 * 1024 * 4
    assert said.bytes("tp", "backward") == (4 * 126 + 2) * residual
    # The loss over 16 CP ranks is one number in float32, of which a ring sends 2 · 15/16 · 4 bytes.
    assert said.bytes("cp", "forward") == 126 * 2 * 15 * 8192 * 128 * 2 + 7
    parameters = lp.model(BIG).n_params
    norms = 253 * 16_384
    assert said.bytes("dp") == 2 * 7 * 2 * ((parameters - norms) // 8 + norms) // 8
    assert "pp" not in said.by_axis

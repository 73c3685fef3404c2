"""`memory`: terms that are their formulas, what each axis and option changes, the JSON, and bad input."""

import itertools
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops

import llamapar as lp
from llamapar.count.exact import ALLOCATOR, CONTEXT
from llamapar.count.in_flight import in_flight
from llamapar.count.terms import CONTEXT_TERM, OUTSIDE, SHARES, STATES, Figure, Term
from llamapar.frameworks import FRAMEWORKS, USUAL
from llamapar.place.orders import ORDERS
from llamapar.place.schedule import row_of, schedule_of
from llamapar.place.walk import flying_at_peak

B8, B405 = "llama3.1-8b", "llama3.1-405b"
PAPER = lp.Layout(tp=8, pp=16, dp=128)
ACTIVATIONS = ("activations", "logits and loss")


def worst(model, layout, **options):
    return lp.memory(model, layout, **{"seq_len": 8192} | options).worst


def trainer(**habits):
    """A trainer with the usual habits but for those."""
    return replace(FRAMEWORKS["dtensor"], habits=replace(USUAL, **habits))


def kept(model, layout, **options):
    return worst(model, layout, **options).bytes("activations")


def every(found):
    """Bytes of every term, of those apart from the worst moment, too."""
    return {term.name: term.bytes for term in (*found.terms, *found.apart)}


# -- terms -----------------------------------------------------------------------------------------

OPTIONS = [
    {"recompute": mode, "kernels": kernels}
    for mode in ("none", "selective", "full")
    for kernels in ("fused", "eager")
]


def filled(term):
    """A term's formula with its inputs in place of their names."""
    return re.sub(r"\b[a-zA-Z_]\w*\b", lambda word: str(term.inputs.get(word[0], word[0])), term.formula)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_every_term_is_its_formula_of_its_inputs_with_a_source(options):
    with pytest.raises(NameError, match="__import__"):  # it reaches nothing but its inputs
        _ = Term("x", "__import__('os')").bytes
    for layout in (lp.Layout(tp=4, pp=2, dp=4, zero=1), lp.Layout(tp=2, cp=2, dp=4, zero=3)):
        for stage in lp.memory(B8, layout, seq_len=4096, **options).stages:
            assert len({t.name for t in stage.terms}) == len(stage.terms)
            assert stage.total_bytes == sum(t.bytes for t in stage.terms)
            for term in stage.terms:
                assert term.source
                value = eval(filled(term), {"max": max, "min": min})
                assert term.bytes == round(value) > 0
                assert set(term.used) <= set(term.inputs)
                assert term.used or term.formula.isdecimal()


# -- the JSON --------------------------------------------------------------------------------------


def test_defaults():
    options = {"micro_batch": 1, "schedule": "1f1b"}
    layout = PAPER.replace(zero=1, sequence_parallel=True)
    plain = lp.memory(B405, PAPER, seq_len=8192)
    spelled = lp.memory(B405, layout, seq_len=8192, gpu="h100-80gb", global_batch=2048, **options)
    assert plain.as_dict() == lp.memory(B405, PAPER, seq_len=8192, global_batch=2048).as_dict()
    said = lp.memory(B405, layout, seq_len=8192, recompute="selective", **options)
    assert plain.stages == spelled.stages == said.stages  # what is expected where nobody says it
    # trainers without sequence parallelism cannot run it, and then one mode alone
    assert said.high_bytes < spelled.high_bytes < plain.high_bytes


# -- the interval ----------------------------------------------------------------------------------

KNOWN = {"framework": "nanotron", "recompute": "none", "seq_len": 8192}


def test_where_nothing_is_open_the_interval_is_the_error_that_was_measured():
    found = lp.memory(B8, {"tp": 8}, **KNOWN)
    total, context = found.worst.total_bytes, found.worst.bytes(CONTEXT_TERM)
    assert (found.open_facts, found.others, found.narrows) == ((), (), "")
    assert found.figure() == Figure(*(round(total * share) for share in SHARES["needs"]))
    assert (found.low_bytes, found.expected_bytes, found.high_bytes) == found.figure()
    for name in ("max_allocated", "max_reserved"):
        said = [round((total - context) * share) for share in SHARES[name]]
        assert found.counters[name] == Figure(*said)
    device = [round((total - context) * share) + OUTSIDE for share in SHARES["nvidia-smi"]]
    assert found.counters["nvidia-smi"] == Figure(*device)
    assert context == CONTEXT


def test_no_run_needs_less_than_its_states_nor_shows_more_than_its_gpu():
    known = {"framework": "megatron-lm", "recompute": "full", "grad_dtype": "bfloat16"}
    found = lp.memory(B8, {}, seq_len=16, **known, gpu="h200-141gb")  # type: ignore[arg-type]
    assert found.low_bytes == found.worst.bytes(*STATES) > found.expected_bytes * SHARES["needs"][0]
    full = lp.memory(B8, {"tp": 8}, **KNOWN, micro_batch=9)
    assert full.expected_bytes < full.hbm_bytes == full.counters["nvidia-smi"].high < full.high_bytes


def test_what_is_known_to_the_byte_has_no_interval():
    found = replace(lp.memory(B8, {}, seq_len=8192), published=True, open_facts=())
    assert found.low_bytes == found.expected_bytes == found.high_bytes
    assert (found.open_facts, found.narrows, len(found.verdict.splitlines())) == ((), "", 1)


@pytest.mark.parametrize(
    ("end", "spare", "outcome"),
    [
        ("high_bytes", 0, "fits"),
        ("high_bytes", -1, "undecided"),
        ("low_bytes", 0, "undecided"),
        ("low_bytes", -1, "does not fit"),
    ],
)
def test_a_gpu_holds_as_many_bytes_as_it_has(end, spare, outcome):
    """Both ends of what is needed decide."""
    found = lp.memory(B8, {"tp": 8}, seq_len=8192, recompute="none")
    gpu = {"name": "h100-80gb", "hbm_bytes": getattr(found, end) + spare}
    found = lp.memory(B8, {"tp": 8}, seq_len=8192, recompute="none", gpu=gpu)
    assert found.outcome == outcome
    assert found.fits == (outcome == "fits")
    assert f" of h100-80gb: {outcome}; eight of ten runs need " in found.verdict
    assert found.as_dict()["outcome"] == outcome


def test_a_framework_has_its_padding_its_split_and_its_zero_stage():
    options = {"seq_len": 8192, "recompute": "selective"}
    found = lp.memory(B8, {"tp": 8, "pp": 2}, **options, framework="megatron")
    plain = lp.memory(B8, {"tp": 8, "pp": 2}, **options, padding="megatron", layer_split="equal")
    rows = [s.bytes("parameters") for s in found.stages]
    assert rows == [s.bytes("parameters") for s in plain.stages]
    asked = lp.memory(B8, lp.Layout(dp=8, zero=3), **options, framework="picotron")
    assert (asked.layout.zero, asked.worst.bytes("gradient buckets")) == (0, 0)
    assert asked.how.endswith("as picotron, ZeRO 0")
    assert lp.memory(B8, lp.Layout(dp=8, zero=0), **options, framework="picotron").stages == asked.stages


@pytest.mark.parametrize(("name", "pure"), [("torchtune", True), ("picotron", True), ("torchtitan", False)])
def test_a_trainer_may_hold_all_in_sixteen_bits(name, pure):
    layout = lp.Layout(dp=8, zero=3)
    found = lp.memory(B8, layout, seq_len=8192, framework=name)
    same = lp.memory(B8, layout, seq_len=8192, framework=name, master_weights=not pure)
    other = lp.memory(B8, layout, seq_len=8192, framework=name, master_weights=pure)
    assert found.worst == same.worst
    assert (found.high_bytes < other.high_bytes) == pure


def test_the_worst_moment_of_a_sharded_step():
    """FSDP2 finds no gradients at the loss, but an earlier micro-batch's; at the end nothing is kept."""
    known = {"micro_batch": 2, "framework": "torchtitan@2025-06-01"}
    one, two = (worst(B8, lp.Layout(dp=8, zero=3), global_batch=n, **known) for n in (16, 32))
    assert one.bytes("gradients") == 0 < one.bytes("logits and loss")
    assert {t.name for t in one.apart} == {"gradients", "gradients in flight"}
    assert two.bytes("gradients") == 4 * lp.model(B8).n_params // 8
    short = worst(B8, lp.Layout(dp=8, zero=3), seq_len=128, framework="torchtitan")
    assert short.bytes(*ACTIVATIONS) == 0 < short.bytes("gradients in flight")


def test_an_optimizer_that_copies_sets_the_peak():
    """Hugging Face's Trainer: five fourths of parameters, gradients and Adam's states, of one micro-batch."""
    known = {"global_batch": 2, "framework": "transformers", "loss": "chunked"}
    found = worst(B8, lp.Layout(dp=2, zero=3), seq_len=4096, **known)
    assert found.total_bytes - ALLOCATOR - CONTEXT == 20 * lp.model(B8).n_params // 2


def test_what_a_trainer_keeps():
    known = {"seq_len": 4096, "recompute": "none"}
    one = lp.model("llama2-7b").replace(n_layers=1)

    def layer(framework, batch=1):
        return kept(one, {}, framework=framework, micro_batch=batch, **known)

    h, f = 2 * 4096 * 4096, 2 * 4096 * 11008
    assert layer("torchtitan") - layer("megatron") == f
    assert layer("nanotron") - layer("torchtitan") == 2 * h
    assert layer("nanotron", 2) - layer("torchtitan", 2) == 2 * (2 * h + h)
    assert kept(B8, {}, framework="nanotron", **known) == kept(B8, {}, framework="torchtitan", **known)
    selective, none = (kept(B8, {}, recompute=mode, framework="megatron") for mode in ("selective", "none"))
    assert selective == none
    # litgpt repeats keys and values for every query head
    more = kept(B8, {}, framework="litgpt", **known) - kept(B8, {}, **known)
    assert more == 32 * 4096 * 2 * 2 * (4096 - 1024)


def test_beside_the_logits_the_last_layer_alone_is_gathered():
    layout, titan = lp.Layout(dp=8, zero=3), "torchtitan"
    found = worst(B8, layout, framework=titan, loss="torch")
    layer, ends = lp.model(B8).layer_params, 2 * 128256 * 4096 + 4096
    assert found.bytes("gathered parameters") == 2 * (layer + ends)
    assert "gathered parameters" not in {t.name for t in found.apart}
    later = worst(B8, layout, framework=titan)  # its loss is in chunks
    assert later.bytes("gathered parameters") == 2 * (2 * layer + ends)


# -- states ----------------------------------------------------------------------------------------


def test_zero_shares_states_over_dp_and_cp():
    n = lp.model(B8).n_params
    found = [worst(B8, lp.Layout(dp=4, cp=2, zero=zero)) for zero in range(4)]
    assert [s.bytes("parameters") for s in found] == [2 * n, 2 * n, 2 * n, 4 * n // 8]
    assert [s.bytes("gradients") for s in found] == [4 * n, 4 * n, 4 * n // 8, 4 * n // 8]
    assert [s.bytes("master weights") for s in found] == [4 * n, 4 * n // 8, 4 * n // 8, 0]
    assert [s.bytes("optimizer states") for s in found] == [8 * n, 8 * n // 8, 8 * n // 8, 8 * n // 8]
    hybrid = worst(B8, lp.Layout(dp=4, dp_replicate=2, cp=2, zero=1))
    assert hybrid.bytes("optimizer states") == 8 * n // 4


def test_fsdp_gathers_two_layers_and_what_the_stage_holds_of_the_ends():
    m = lp.model(B8)
    found = lp.memory(m, lp.Layout(dp=8, pp=2, zero=3), seq_len=128).stages
    ends = 128256 * 4096
    assert found[0].bytes("gathered parameters") == 2 * (2 * m.layer_params + ends)
    assert found[1].bytes("gathered parameters") == 2 * (2 * m.layer_params + ends + 4096)
    assert found[0].bytes("gradients in flight") == (2 + 4) * m.layer_params
    assert worst(m, lp.Layout(zero=3), seq_len=128).bytes("gathered parameters") == 0


def test_zero_2_has_a_layers_gradients_whole_until_they_are_reduced():
    m = lp.model(B8)
    for zero, whole in ((1, 0), (2, 6), (3, 6)):
        found = every(worst(m, lp.Layout(dp=8, zero=zero)))
        assert found.get("gradients in flight", 0) == whole * m.layer_params
    assert "gradients in flight" not in every(worst(m, lp.Layout(zero=2)))


def test_dtypes():
    n = lp.model(B8).n_params
    wide = worst(B8, lp.Layout(zero=0), dtype="float32")
    assert [wide.bytes(t) for t in ("parameters", "gradients", "master weights")] == [4 * n, 4 * n, 0]
    assert worst(B8, lp.Layout(zero=0), grad_dtype="bfloat16").bytes("gradients") == 2 * n
    pure = worst(B8, lp.Layout(zero=0), master_weights=False, grad_dtype="bfloat16")
    assert pure.bytes("parameters", "gradients", "master weights", "optimizer states") == 8 * n
    for dp in (1, 2):
        found = worst(B8, lp.Layout(dp=dp, zero=0), framework="nanotron")
        assert found.bytes("gradient buckets") == (2 * n if dp == 2 else 0)


def test_stages_hold_all_parameters_once():
    m = lp.model(B405)
    for layout in (lp.Layout(pp=16), lp.Layout(pp=4, virtual_stages=4), lp.Layout(pp=9)):
        found = lp.memory(m, layout, seq_len=128).stages
        assert sum(s.bytes("parameters") for s in found) == 2 * m.n_params
    tied = lp.model("llama3.2-1b")
    found = lp.memory(tied, lp.Layout(pp=4), seq_len=128).stages  # the last stage has its own copy
    assert sum(s.bytes("parameters") for s in found) == 2 * (tied.n_params + 128256 * 2048)
    assert lp.memory(tied, {}, seq_len=128).worst.bytes("parameters") == 2 * tied.n_params


def test_pads_and_copies_are_counted():
    m = lp.model(B405)
    each = [worst(m, {"tp": 8}, padding=rule).bytes("parameters") for rule in (None, "megatron")]
    assert each[1] - each[0] == 2 * 2 * 768 // 8 * m.dim
    plain, copied = (m.n_params, lp.model("llama3.1-405b-mp16").n_params)
    norms = (2 * m.n_layers + 1) * m.dim
    found = worst(m, {"tp": 16}, kv_replication=True).bytes("parameters")
    assert found == 2 * ((copied - norms) // 16 + norms)
    assert plain < copied


def test_uneven_shards_count_their_largest():
    m = lp.model("tiny").replace(vocab_size=1001)
    rows = 501 * 128 * 2  # of 1001 over 2, embedding and head
    whole = worst(m, {}, seq_len=64).bytes("parameters")
    half = worst(m, {"tp": 2}, seq_len=64).bytes("parameters")
    matrices = 4 * (2 * 128 * 128 + 2 * 64 * 128 + 3 * 384 * 128)
    norms = 9 * 128
    assert whole == 2 * (matrices + norms + 2 * 1001 * 128)
    assert half == 2 * (matrices // 2 + norms + rows)


# -- activations -----------------------------------------------------------------------------------


def test_a_layer_of_8b_by_hand():
    """fused, no recomputation: two norms' inputs, their outputs, Q, K, V, the heads, and four of the FFN."""
    s, h, kv, f = 8192, 4096, 1024, 14336
    m = lp.model(B8).replace(n_layers=1)
    found = worst(m, {}, recompute="none")
    assert found.bytes("activations: norms") == 2 * (2 * s * h + 4 * s)
    assert found.bytes("activations: attention") == 2 * s * (h + 2 * h + 2 * kv) + 4 * s * 32
    assert found.bytes("activations: MLP") == 2 * s * (h + 4 * f)
    assert found.bytes("logits and loss") == 2 * 4 * s * 128256
    torch = worst(m, {}, recompute="none", loss="torch").bytes("logits and loss")
    assert torch == 3 * 4 * s * 128256
    assert found.bytes("allocator (assumed)", "CUDA context (assumed)") == ALLOCATOR + CONTEXT


def test_qk_norms_keep_their_inputs():
    """Of Q and of K as the projections made them, and a number for each row of a head."""
    s, q, k, hd = 8192, 4096, 1024, 128
    plain = lp.model(B8).replace(n_layers=1)
    found = worst(plain.replace(qk_norm=True), {}, recompute="none")
    norms = 2 * s * (q + k) + 4 * s * (q + k) // hd
    assert found.bytes("activations: QK norms") == norms
    states = (2 + 4 + 4 + 8) * 2 * hd  # bfloat16, float32 gradients and master weights, Adam
    assert found.total_bytes == worst(plain, {}, recompute="none").total_bytes + norms + states
    eager = worst(plain.replace(qk_norm=True), {}, recompute="none", kernels="eager")
    assert eager.bytes("activations: QK norms") == (4 + 2) * s * (q + k) + 4 * s * (q + k) // hd


def test_sequence_and_context_parallelism_share_tokens():
    plain = worst(B8, {"tp": 8, "sequence_parallel": False}, recompute="none")
    shared = worst(B8, {"tp": 8}, recompute="none")
    assert plain.bytes("activations: norms") == 8 * shared.bytes("activations: norms")
    again = worst(B8, {"tp": 8}, recompute="none", framework=trainer(regather=True))
    residual = 2 * 8192 * 4096
    lower = shared.bytes("activations") - again.bytes("activations")
    assert lower == (2 * 32 + 1) * (residual - residual // 8)
    two = worst(B8, {"cp": 2}, recompute="none", seq_len=16384)
    one = worst(B8, {}, recompute="none", seq_len=8192)
    more = two.bytes("activations") - one.bytes("activations")
    assert more == 32 * 2 * 8192 * 1024 * 2  # K and V of the other half
    ring = worst(B8, {"cp": 2}, recompute="none", seq_len=16384, cp_method="ring")
    assert ring.bytes("activations") == one.bytes("activations")


def test_uneven_sequences_count_the_longest():
    longer, even = (kept(B8, {"cp": 2}, seq_len=n, recompute="full") for n in (4099, 4096))
    assert longer > even


# -- schedules -------------------------------------------------------------------------------------

TORCH = {("1f1b", 1): "1F1B", ("gpipe", 1): "GPipe", ("1f1b", 2): "Interleaved1F1B"}
SCHEDULED = [
    (schedule, v, pp, pp * rounds)
    for (schedule, v), pp, rounds in itertools.product(TORCH, (2, 3, 4, 8), (1, 2, 3, 5))
]


def test_micro_batches_in_flight_are_torchs():
    rows = [
        (case, rank, row)
        for case in SCHEDULED
        for rank, row in enumerate(get_schedule_ops(TORCH[case[:2]], case[2], case[3], case[1]))
    ]
    for (schedule, v, pp, m), rank, row in rows:
        flying, peak = 0, 0
        for op in filter(None, row):
            kind = re.sub(r"\d", "", str(op))
            flying += (kind == "F") - (kind in ("B", "BW"))
            peak = max(peak, flying)
        assert sum(in_flight(schedule, rank, pp, v, m)) == peak, (schedule, v, pp, m, rank)


@given(st.integers(2, 16), st.integers(1, 6), st.integers(1, 8), st.data())
def test_interleaving_keeps_what_the_paper_says(pp, v, rounds, data):
    """arXiv:2205.05198 section 4.3: 1 + (p - 1)/(p·v) times the model's layers on the first stage."""
    held = in_flight("1f1b", 0, pp, v, rounds * pp)
    assert len(held) == v
    if v == 1:
        assert held == (pp,)
    elif rounds > 1:
        assert sum(held) == min(pp * v + pp - 1, rounds * pp * v)
    rank = data.draw(st.integers(0, pp - 1))
    later = in_flight("1f1b", rank, pp, v, rounds * pp)
    assert sum(later) <= sum(held) <= rounds * pp * v


def test_formulas_of_chunks_in_flight_are_the_tables(sample):
    """Of every schedule, where it has a table: interleaved, its rounds have to be equal."""
    cases = itertools.product(ORDERS, range(2, 9), range(1, 5), range(1, 34))
    found = 0
    for schedule, pp, v, m in sample(list(cases), 500):
        try:
            table = schedule_of(schedule, pp, v, m)
        except lp.LayoutError:
            if schedule != "1f1b":  # a formula alone
                with pytest.raises(lp.LayoutError, match=r"micro-batch|virtual_stages"):
                    in_flight(schedule, 0, pp, v, m)
            continue
        for rank in range(pp):
            counted = flying_at_peak(table.ranks[rank], table.stages_of(rank))
            assert in_flight(schedule, rank, pp, v, m) == counted, (schedule, pp, v, m)
        found += 1
    assert found > 250


def test_a_full_v_keeps_no_more_with_further_micro_batches():
    """Of a V only 4·pp micro-batches are walked; rows of many more have the same chunks at their peak."""
    for schedule, pp in itertools.product(("zbv", "dualpipev"), (2, 3, 8, 16)):
        for m, rank in itertools.product((4 * pp - 1, 4 * pp + 1, 5 * pp + 3, 30 * pp), (0, pp // 2, pp - 1)):
            whole = flying_at_peak(*row_of(schedule, rank, pp, 2, m))
            assert in_flight(schedule, rank, pp, 2, m) == whole, (schedule, pp, m, rank)


def test_longer_rounds_of_the_flexible_schedule_take_more():
    known = {"seq_len": 8192, "global_batch": 24, "schedule": "flexible"}
    layout = lp.Layout(pp=4, virtual_stages=2)
    four, six = (lp.memory(B8, layout, **known, nc=nc).stages[1].bytes(*ACTIVATIONS) for nc in (4, 6))
    assert [sum(in_flight("flexible", 1, 4, 2, 24, nc)) for nc in (4, 6)] == [9, 11]
    assert six > four


def test_a_v_has_both_ends_on_its_first_rank():
    layout = lp.Layout(pp=4, virtual_stages=2)
    v, loop = (
        lp.memory(B8, layout, seq_len=8192, schedule=name).stages for name in ("zbv", "interleaved-1f1b")
    )
    assert [s.bytes("logits and loss") > 0 for s in v] == [True, False, False, False]
    assert [s.bytes("logits and loss") > 0 for s in loop] == [False, False, False, True]
    assert sum(s.bytes("parameters") for s in v) == sum(s.bytes("parameters") for s in loop)


def test_stages_keep_less_the_later_they_are():
    found = lp.memory(B405, PAPER, seq_len=8192).stages
    middle = [s.bytes("activations") for s in found[1:-1]]
    assert [a - b for a, b in itertools.pairwise(middle)] == [middle[0] // 15] * 13
    assert found[0].bytes("logits and loss") == 0 < found[-1].bytes("logits and loss")
    every = lp.memory(B405, PAPER, seq_len=8192, global_batch=128 * 20, schedule="gpipe").stages
    assert every[1].bytes("activations") == every[14].bytes("activations") == middle[0] // 15 * 20
    few = lp.memory(B405, PAPER, seq_len=8192, global_batch=128 * 2).stages
    assert few[1].bytes("activations") == middle[0] // 15 * 2


def test_layers_per_stage_may_be_given():
    given_ = lp.memory(B8, lp.Layout(pp=2), seq_len=128, layer_split=[20, 12]).stages
    layer = 2 * lp.model(B8).layer_params
    embedding = 2 * 128256 * 4096
    assert given_[0].bytes("parameters") == 20 * layer + embedding
    assert given_[1].bytes("parameters") == 12 * layer + embedding + 2 * 4096

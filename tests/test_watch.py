"""Ranks that are watched: how each tensor is held, where a fault begins, what made a number."""

import base64
import json
from dataclasses import replace
from functools import cache
from itertools import product

import pytest

import llamapar as lp
from inputs import few
from llamapar import Layout
from llamapar.describe.placement import ACTIVATIONS, PARAMETERS, Replicate, Shard
from llamapar.execution.body import reference
from llamapar.execution.following import source_of
from llamapar.execution.watching import lights, watch_task, watched
from llamapar.panels import watch_state
from llamapar.panels.film import film
from llamapar.panels.folds import folds
from llamapar.panels.watch_state import WatchState
from llamapar.programs import FAULTS, PROGRAMS
from llamapar.programs.teaching import teaching_model, word

GRID = {
    "tp=2 cp=2": Layout(tp=2, cp=2),
    "tp=4": Layout(tp=4, sequence_parallel=False),
    "dp=2": Layout(tp=2, dp=2),
}


@cache
def tape_of(program, layout):
    """The tape of teaching data, made once."""
    return watched(watch_task(program, None, layout))


TAPES = {}
FILMS = {}


@pytest.fixture(scope="module")
def shared_tapes():
    """Panels that show the same have one tape, by everything that a run depends on."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watch_state, "MOST_TAPES", 1000)
        blank = WatchState.blank()
        patch.setattr(WatchState, "blank", lambda: replace(blank, tapes=TAPES, films=FILMS))
        yield


def step_of(tape, name, phase="forward"):
    """The last step of the program itself that made `name`."""
    return [s for s in tape.steps if (s.name, s.phase, s.depth) == (name, phase, 0)][-1]


def kinds(step):
    return {axis: (place.kind, place.dim) for axis, place in step.places.items()}


# -- teaching data -----------------------------------------------------------------------------


@pytest.mark.parametrize("program", ["attention", "mlp", "embedding"])
@pytest.mark.parametrize("layout", [Layout(), Layout(tp=4, cp=2), Layout(tp=8), Layout(dp=2)], ids=str)
def test_the_output_is_the_word(program, layout):
    """By torch's own attention and embedding, in the reference, not by the programs that are watched."""
    task = watch_task(program, None, layout)
    out = reference(task).outputs["out"]
    setting = task.setting
    rows = word(setting, setting.model.dim).sum(0)
    for batch, sequence in enumerate(out):
        faint = 1 if program == "embedding" else 1 / (1 + batch)
        for token, row in enumerate(sequence):
            assert row.allclose(faint * rows[token * 8 // setting.seq_len], rtol=0, atol=1e-9)


def test_a_summand_is_the_letters_of_the_ranks_own_heads():
    setting = watch_task("attention", None, GRID["tp=4"]).setting
    partial = step_of(tape_of("attention", GRID["tp=4"]), "partial")
    letters = word(setting, setting.model.dim)[:, :7]
    for rank, own in partial.values.items():
        drawn = letters[2 * rank : 2 * rank + 2].sum(0)
        assert own[0, ::2][:7].allclose(drawn, rtol=0, atol=1e-9)


@pytest.mark.parametrize("tp", [2, 3, 5, 6, 16])
def test_a_teaching_model_tears_heads_where_the_model_does(tp):
    for name in ("llama3-8b", "llama3.1-405b", "llama3.2-3b"):
        small = teaching_model(lp.model(name), Layout(tp=tp))
        assert bool(small.n_kv_heads % tp) == bool(lp.model(name).n_kv_heads % tp)
        assert small.n_heads <= 16


# -- how tensors are held ----------------------------------------------------------------------


@pytest.mark.parametrize("layout", GRID.values(), ids=GRID)
def test_tensors_are_held_as_the_placement_table_says(layout):
    """The table is the second witness: the watched run found it by numbers alone."""
    rows = {"x": "residual", "q": "q", "k": "k", "v": "v", "hidden": "ffn", "out": "residual"}
    rows["partial"] = "row_parallel_out"
    seen = 0
    for program in ("attention", "mlp"):
        tape = tape_of(program, layout)
        for step in tape.steps:
            given = step.code == "argument"
            if step.phase != "forward" or step.depth or (step.name == "x" and not given):
                continue
            if step.name in rows:
                row = ACTIVATIONS[rows[step.name]]
                said = {"tp": row.tp_sp if layout.sp else row.tp, "cp": row.cp, "dp": row.dp}
            elif step.name in PARAMETERS:
                said = {"tp": PARAMETERS[step.name], "cp": Replicate(), "dp": Replicate()}
            else:
                continue
            for axis, place in step.places.items():
                want = said[axis]
                kind = {Shard: "piece", Replicate: "copy"}.get(type(want), "summand")
                assert (place.kind, place.dim) == (kind, getattr(want, "dim", None)), (step.name, axis)
                seen += 1
    assert seen >= 17


def beside_a_run(program, layout):
    """The tape of random data, and what `lp.run` makes of the same."""
    task = watch_task(program, None, layout, data="random")
    sizes = {"seq_len": task.setting.seq_len, "global_batch": task.setting.global_batch}
    run = lp.run(program, task.setting.model, layout, dtype="float64", **sizes)
    assert run.ok
    return watched(task), run


def assert_gradient(step, name, run):
    for report in run.reports:
        assert step.values[report.rank].allclose(report.gradients[name], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("layout", [*GRID.values(), Layout(tp=2, cp=4)], ids=[*GRID, "tp=2 cp=4"])
def test_numbers_and_collectives_are_those_of_a_run(layout):
    """lp.run's own outputs, reduced gradients and trace, of the same inputs, in random data."""
    tape, run = beside_a_run("attention", layout)
    out = step_of(tape, "out")
    for rank, made in run.outputs.items():
        assert made["out"].equal(out.values[rank])
    for name in ("wq", "wk", "wv", "wo"):
        assert_gradient(step_of(tape, f"{name}.grad", "gradients"), name, run)
    for phase in ("forward", "backward"):
        ran = sorted((e.kind, e.axis, e.sent) for e in run.trace.events if e.phase == phase)
        inner = [s for s in tape.steps if s.phase == phase]
        known = {(e.kind, e.axis, e.sent) for s in inner for e in s.events.get(0, ())}
        assert known == set(ran)


def test_uneven_and_padded_vocabularies_are_pieces():
    tape = tape_of("loss", Layout(tp=4))
    logits = step_of(tape, "logits")
    assert logits.global_shape == (1, 16, 56)  # 56 rows and 8 pad rows, 16 to a rank
    assert set(logits.local.values()) == {(1, 16, 16)}
    assert kinds(logits) == {"tp": ("piece", 2)}


ZERO = [Layout(dp=2), Layout(tp=2, cp=2, dp=2), Layout(tp=2, dp=4, dp_replicate=2)]


@pytest.mark.parametrize("layout", ZERO, ids=str)
def test_zero_3_gathers_shards_and_scatters_gradients(layout):
    """w1 is cut by TP along the dim that ZeRO cuts, and w2 along the other one."""
    layout = layout.replace(zero=3)
    task = watch_task("mlp", None, layout)
    tape = watched(task)
    sharing = [axis for axis in ("dp", "cp") if layout.size(axis) > 1]
    for name in ("w1", "w2"):
        shard, whole, *_ = [s for s in tape.steps if (s.name, s.phase) == (name, "forward")]
        assert {kinds(shard)[axis] for axis in sharing} == {("piece", 0)}
        assert {kinds(whole)[axis] for axis in sharing} == {("copy", None)}
        assert not shard.events
        assert {e.kind for events in whole.events.values() for e in events} == {"all_gather"}
        assert whole.reads == (tape.steps.index(shard),)
        given = task.given[name]
        for rank, own in shard.values.items():
            coord = layout.coord_of(rank)._asdict()
            assert own.equal(task.setting.held(name, given, coord, "parameters"))
            rows, columns = shard.at[rank]
            assert own.equal(given[rows[0].start : rows[0].stop, columns[0].start : columns[0].stop])
        before, after = [s for s in tape.steps if (s.name, s.phase) == (f"{name}.grad", "backward")]
        assert {kinds(before)[axis][0] for axis in sharing} == {"summand"}
        assert {e.kind for events in after.events.values() for e in events} == {"reduce_scatter"}
        if layout.dp_replicate == 1:
            assert {kinds(after)[axis] for axis in sharing} == {("piece", 0)}


@pytest.mark.parametrize(("layout", "zero"), [(ZERO[1], 1), (ZERO[2], 2), (ZERO[2], 3)], ids=str)
def test_gradients_under_zero_are_those_of_a_run(layout, zero):
    tape, run = beside_a_run("mlp", layout.replace(zero=zero))
    held = ("copy", None) if zero == 1 else ("piece", 0)
    for name in ("w1", "w2", "w3"):
        step = step_of(tape, f"{name}.grad", "gradients")
        assert kinds(step)["dp"] == held
        assert_gradient(step, name, run)


# -- what breaks -------------------------------------------------------------------------------

BEGINS = {
    "drop_all_reduce": ("out", "forward"),
    "drop_backward_all_reduce": ("x.grad", "backward"),
    "sum_twice": ("partial.grad", "backward"),
    "no_kv_grad_sum": ("wk.grad", "gradients"),
    "tile_kv": ("wk", "forward"),
    "no_norm_grad_sum": ("attention_norm.grad", "gradients"),
    "contiguous_positions": ("positions", "forward"),
    "no_context_grad_sum": ("wq.grad", "gradients"),
    "no_data_grad_sum": ("w1.grad", "gradients"),
    "shards_not_summed": ("w1.grad", "gradients"),
    "replicas_not_summed": ("w1.grad", "gradients"),
    "shards_out_of_order": ("w2", "forward"),
    "pad_in_softmax": ("total", "forward"),
    "tied_not_summed": ("tok_embeddings.weight.grad", "backward"),
    "micro_batches_swapped": ("targets", "forward"),
    "loss_not_divided": ("layers.1.attention_norm.weight.grad", "backward"),
    "gradients_too_early": ("layers.1.attention_norm.weight.grad", "backward"),
    "send_receive_crossed": ("", "forward"),  # no tensor: nothing moves
    "norm_counts_copies": ("squares", "update"),
    "norm_forgets_pp": ("norm", "update"),
    "clipped_per_rank": ("factor", "update"),
    "averaged_over_context": ("tok_embeddings.weight.grad", "gradients"),
    "neighbours_shard": ("tok_embeddings.weight.grad", "update"),
    "weights_late": ("tok_embeddings.weight", "update"),
    "last_row_missed": ("past", "forward"),
    "maximum_not_shared": ("logits.grad", "backward"),  # the teaching data's maxima are equal
    "slices_not_summed": ("out", "forward"),
    "gather_not_summed_backward": ("x.grad", "backward"),
    "scale_forgotten": ("heads", "forward"),
    "batch_for_sequence": ("v", "forward"),
    "kv_heads_in_turn": ("heads", "forward"),
    "rope_by_halves": ("q", "forward"),
    "chunk_at_the_start": ("out", "forward"),
    "tokens_as_they_came": ("out", "forward"),
    "heads_not_sent_home": ("heads.grad", "backward"),
    "documents_ignored": ("heads", "forward"),
    "norm_without_eps": ("normed", "forward"),
    "never_clipped": ("factor", "update"),
    "means_not_corrected": ("tok_embeddings.weight", "update"),
    "decay_in_gradient": ("tok_embeddings.weight", "update"),
}
"""The first tensor that each fault makes wrong."""


@pytest.mark.parametrize("name", few(BEGINS, 6))
def test_a_fault_is_shown_where_it_begins(name):
    fault = FAULTS[name]
    options = {"options": dict(fault.needs)}
    model = replace(lp.model("tiny"), **fault.model) if fault.model else None
    right = watched(watch_task(fault.program, model, Layout(**fault.layout), **options))
    assert not any(step.fault for step in right.steps)
    broken = watched(watch_task(fault.program, model, Layout(**fault.layout), fault=name, **options), right)
    begins = [(step.name, step.phase) for step in broken.steps if step.fault == "begins"]
    assert begins == [BEGINS[name]]
    first = next(n for n, step in enumerate(broken.steps) if step.fault)
    assert broken.steps[first].fault == "begins"
    assert broken.steps[first].why


def test_an_edit_that_every_rank_makes_alike_is_no_fault():
    source, product = source_of(PROGRAMS["attention"].function), "heads.flatten(2) @ wo.mT"
    assert source.count(product) == 1
    source = source.replace(product, f"2 * ({product})")
    tape = watched(
        watch_task("attention", None, Layout(tp=2), source=source), tape_of("attention", Layout(tp=2))
    )
    assert not any(step.fault for step in tape.steps)


def test_an_edited_program_leaves_ours_as_it_is_and_sees_no_names_of_the_kernel():
    source = source_of(PROGRAMS["mlp"].function).replace(
        "column_input(x, mesh, setting)", "globals().update(F=None) or x"
    )
    tape = watched(watch_task("mlp", None, Layout(tp=2), source=source))
    assert tape.steps[-1].error  # its own F is gone, and only its own
    assert lp.run("mlp", "tiny", Layout(tp=2)).ok
    source = "def mlp(mesh, setting, x):\n    return x * BEGINS"
    (failed,) = [s for s in watched(watch_task("mlp", None, Layout(tp=2), source=source)).steps if s.error]
    assert failed.error[0] == "NameError: name 'BEGINS' is not defined"


# -- a person's own program --------------------------------------------------------------------


def test_a_program_of_ones_own_is_placed_like_ours():
    def mine(mesh, setting, x, w1, w2):
        whole = lp.programs.collectives.all_gather(x, mesh, "tp", 1)
        wide = whole @ w1.mT
        part = wide @ w2.mT
        return lp.programs.collectives.all_reduce(part, mesh, "tp")

    tape = watched(watch_task(mine, None, Layout(tp=2)))
    found = {step.name: kinds(step)["tp"] for step in tape.steps if step.phase == "forward"}
    assert found["whole"] == ("copy", None)
    assert found["wide"] == ("piece", 2)
    assert found["part"] == ("summand", None)
    assert found["out"] == ("copy", None)
    assert not any(step.fault for step in tape.steps)

    def named(mesh, setting, x):
        name = "w1"  # is no parameter
        twice = x + x
        return twice if name else x

    tape = watched(watch_task(named, None, Layout(tp=2)))
    assert [step.name for step in tape.steps if step.phase == "forward"] == ["x", "twice", "out"]


# -- what made a number ------------------------------------------------------------------------


def test_what_made_a_number_lights_up_on_every_rank():
    task, tape = watch_task("attention", None, GRID["tp=2 cp=2"]), tape_of("attention", GRID["tp=2 cp=2"])
    at = {step.name: n for n, step in enumerate(tape.steps) if step.phase == "forward" and step.depth == 0}
    partial, out, heads = at["partial"], at["out"], at["heads"]
    width = tape.steps[partial].local[0][-1]
    row, column = 1, 0  # of rank 1's out: tokens 4 to 7 of the CP rank's eight
    found = lights(task, out, 1, row * width + column)
    assert found == {partial: {0: [(4 + row) * width + column], 1: [(4 + row) * width + column]}}
    found = lights(task, partial, 2, 3 * width)
    assert {tape.steps[n].name: list(of) for n, of in found.items()} == {"wo": [2], "heads": [2]}
    assert all(cell // (4 * 8) == 3 for cell in found[heads][2])  # of its own token alone
    found = lights(task, heads, 0, 7 * 32)  # the last token of rank 0, which is the last of all
    keys = found[at["v"]]
    assert set(keys) == {0, 2}  # its own tokens, and those of the other CP rank
    assert lights(task, at["wq"], 0, 0) == {}


# -- the page's data ---------------------------------------------------------------------------


@pytest.mark.parametrize("program", ["attention", "mlp", "embedding", "loss", "block"])
def test_the_film_is_plain_and_its_thumbnails_cover_the_whole(program):
    made = film(tape_of(program, Layout(tp=2, cp=2)))
    assert json.loads(json.dumps(made)) == made
    whole = 0
    for tensor in made["tensors"]:
        for of_rank in tensor["ranks"].values():
            assert len(base64.b64decode(of_rank["data"])) == of_rank["rows"] * of_rank["columns"]
            at = of_rank["at"]
            if at and "own" not in of_rank["kinds"].values() and "numbers" not in of_rank["place"]:
                rows = sum(stop - start for start, stop in at["rows"])
                columns = sum(stop - start for start, stop in at["columns"])
                pads = of_rank["rows"] * of_rank["columns"] - rows * columns
                assert pads == 0 or program in ("loss", "embedding")
        ranks = [r["at"] for r in tensor["ranks"].values() if r["at"]]
        if len(ranks) == 4:
            parts = [(rows, columns) for at in ranks for rows in at["rows"] for columns in at["columns"]]
            cells = {cell for rows, columns in parts for cell in product(range(*rows), range(*columns))}
            assert len(cells) == tensor["rows"] * tensor["columns"]
            whole += 1
    assert whole >= 5


def test_rows_move_between_exactly_the_ranks_of_the_group():
    made = film(tape_of("attention", Layout(tp=2, cp=2)))
    step = next(
        s for s in made["steps"] if s["event"] and s["event"]["kind"] == "reduce_scatter" and not s["depth"]
    )
    sent = {"kind": "reduce_scatter", "axis": "tp", "groups": [[0, 1], [2, 3]], "bytes": 8 * 48 * 8 // 2}
    assert step["event"] == sent
    assert {(m["from"], m["to"]) for m in step["moves"]} == {(0, 1), (1, 0), (2, 3), (3, 2)}
    for move in step["moves"]:
        there = made["tensors"][move["into"]]["ranks"][str(move["to"])]
        assert move["at"] == [0, there["rows"]]
        assert move["rows"] == ([0, 4] if move["to"] in (0, 2) else [4, 8])
    assert "`partial` is a summand on each rank, and the sum over the group completes it" in step["caption"]
    assert "1,536 bytes" in step["caption"]


def captions(layout, phase, **options):
    """What the program's own lines that communicate say, by the tensor that they make."""
    made = film(watched(watch_task("attention", None, layout, options=options)))
    return {
        made["tensors"][step["made"][0]]["name"]: step["caption"]
        for step in made["steps"]
        if step["event"] and step["phase"] == phase and step["depth"] == 0
    }


def test_a_backward_says_what_its_own_collectives_do():
    """Those of a forward read backwards: what was gathered is summed and scattered, and so on."""
    said = captions(GRID["tp=2 cp=2"], "backward")
    assert said == {
        "partial.grad": "The backward makes `partial.grad`, the gradient of `partial`. "
        "All-gather over TP: each rank "
        "has a piece of `out.grad`, and the group puts the pieces together. A rank sends 1,536 bytes. "
        "Each rank has its own tokens (CP) of `partial.grad`, the same as the other ranks of TP.",
        "k.grad": "The backward makes `k.grad`, the gradient of `k`. "
        "Reduce-scatter over CP: `gathered.grad` is a "
        "summand on each rank, and the sum over the group completes it. A rank sends 1,024 bytes. "
        "Each rank has its own tokens (CP) and its own KV heads (TP) of `k.grad`.",
        "x.grad": "The backward makes `x.grad`, the gradient of `x`. "
        "Reduce-scatter over TP: `x.grad` is a summand on "
        "each rank, and the sum over the group completes it. A rank sends 1,536 bytes. Each rank has its own "
        "tokens (CP·TP) of `x.grad`.",
    }
    traded = captions(Layout(cp=2), "backward", cp_method="ulysses")
    assert traded["k.grad"].startswith(
        "The backward makes `k.grad`, the gradient of `k`. "
        "All-to-all over CP: each rank cuts `traded.grad` into a "
        "piece for each rank, and joins the pieces it gets. A rank sends 2,048 bytes."
    )


def test_what_a_gather_and_a_ring_send_is_the_same_in_their_films():
    """3 CP ranks: each has 3 of K and of V, and in the backward those and the sums of their gradients."""
    said = captions(Layout(cp=3), "forward", cp_method="ring")["heads"]
    assert said == (
        "Ring over CP: each rank sends to the next one, 4 times. A rank sends 6,144 bytes. "
        "Each rank has its own tokens (CP) of `heads`."
    )
    gathered = captions(Layout(cp=3), "forward", cp_method="all_gather")["heads"]
    assert "A rank sends 6,144 bytes." in gathered
    assert captions(Layout(cp=3), "backward", cp_method="ring")["k.grad"].startswith(
        "The backward makes `k.grad`, the gradient of `k`. "
        "Ring over CP: each rank sends to the next one, 10 times. "
        "A rank sends 15,360 bytes."
    )


def test_captions_speak_of_what_is_seen():
    made = film(tape_of("attention", GRID["tp=2 cp=2"]))
    by_code = {s["code"]: s["caption"] for s in made["steps"] if s["phase"] == "forward" and s["depth"] == 0}
    assert by_code["partial = heads.flatten(2) @ wo.mT"] == (
        "Each rank makes `partial` from `wo` and `heads`, and sends nothing. "
        "Each rank has its own tokens (CP) of `partial`, as a summand over TP."
    )
    assert by_code["q = rope(q, positions, setting.model)"].startswith(
        "Each rank makes a new `q` from the old one and `positions`, and sends nothing. "
    )
    assert made["folds"] == [
        {"first": 2, "last": 10, "words": "9 arguments"},
        {"first": 12, "last": 16, "words": "docstring"},
        {"first": 21, "last": 22, "words": "if more: no rank takes it"},
        {"first": 27, "last": 28, "words": 'if "bo" in more: no rank takes it'},
    ]
    taken = folds("def f(x):\n    if x:\n        x = g(x)\n    return x", {3})
    assert taken == folds("x = (", ()) == []
    assert by_code["q = split_heads(x @ wq.mT, setting.model.head_dim)"].endswith(
        "Each rank has its own tokens (CP) and its own heads (TP) of `q`."
    )


def test_a_sequence_as_long_as_the_kv_rows_is_cut_by_tokens():
    """16 tokens, and two KV heads of eight rows: copies of heads say nothing of tokens."""
    tape = watched(watch_task("attention", "qwen2.5-1.5b", Layout(tp=4), options={"kv_replication": True}))
    x = tape.steps[0]
    assert (x.name, kinds(x)) == ("x", {"tp": ("piece", 1)})
    assert tape.sizes["kv_dim"] == tape.sizes["seq"]


def test_what_is_gathered_out_of_order_is_a_copy_in_another_order():
    """After an all-gather over CP the head-tail chunks stand one rank after another."""
    tape = tape_of("attention", Layout(cp=2))
    step = next(s for s in tape.steps if s.name == "gathered")
    assert kinds(step) == {"cp": ("copy", None)}
    tokens = [range(4), range(12, 16), range(4, 8), range(8, 12)]
    assert {rank: list(at[1]) for rank, at in step.at.items()} == {0: tokens, 1: tokens}
    made = film(tape)
    number = next(n for n, t in enumerate(made["tensors"]) if t["name"] == "gathered")
    own = made["tensors"][number]["ranks"]["1"]
    assert own["place"] == "copy over CP · tokens in the order 0–3, 12–15, 4–7, 8–11"
    told = next(s for s in made["steps"] if number in s["made"])
    assert told["caption"].endswith("with tokens in the order of the ranks that sent them.")
    moves = {(m["from"], m["to"]): [] for m in told["moves"]}
    for move in told["moves"]:
        moves[move["from"], move["to"]].append((move["rows"], move["at"]))
    assert moves == {(0, 1): [([0, 4], [0, 4]), ([4, 8], [4, 8])], (1, 0): [([0, 8], [8, 16])]}
    sorted_after = step_of(tape, "heads").reads
    assert "gathered" not in {tape.steps[n].name for n in sorted_after}


def test_a_single_number_is_shown_as_it_is():
    """Pictures have 8 bits a number, which would make the first row 15.87."""
    made = film(tape_of("embedding", Layout(tp=4)))
    (first,) = [tensor for tensor in made["tensors"] if tensor["name"] == "first" and not tensor["whole"]]
    assert [first["ranks"][str(rank)]["number"] for rank in range(4)] == [0, 16, 32, 48]
    assert made["tensors"][0]["ranks"]["0"]["number"] is None

"""Watched ranks without a browser: the panel shows what the ranks did, whatever the page sends."""

import json
import random
import re
from collections import Counter
from types import SimpleNamespace

import pytest

import llamapar as lp
from inputs import few
from llamapar.errors import LlamaparError
from llamapar.execution.following import source_of
from llamapar.execution.watching import watch_task, watched
from llamapar.figures.block import held
from llamapar.panels import watch_state
from llamapar.panels.film import film
from llamapar.panels.page import for_browser
from llamapar.panels.watch_panel import watch
from llamapar.panels.watch_state import WATCHED
from llamapar.programs import FAULTS, PROGRAMS
from test_watch import BEGINS, shared_tapes
from wire import customs, deliver

__all__ = ["shared_tapes"]
pytestmark = pytest.mark.usefixtures("shared_tapes")

OPENED = [
    ("attention", {"tp": 2, "cp": 2}),
    ("attention", {"tp": 2, "sequence_parallel": False, "case": "drop_all_reduce"}),
    ("mlp", {"dp": 2, "data": "random"}),
    ("mlp", {"tp": 1}),
    ("attention", {"model": "llama3.2-3b", "tp": 2, "cp": 2, "cp_method": "ring"}),
    ("meta_attention", {"tp": 4}),
]


def source(panel):
    return str(panel.payload["values"]["source"])


def marked(panel, mark):
    """The names that steps with a mark made, and their phase."""
    steps = [step for step in panel.film["steps"] if step["fault"] == mark]
    return [([panel.film["tensors"][n]["name"] for n in step["made"]], step["phase"]) for step in steps]


@pytest.mark.parametrize(("program", "arguments"), OPENED)
def test_the_line_of_code_gives_the_same(program, arguments):
    panel = watch(program, **arguments)
    again = eval(panel.code, {"lp": SimpleNamespace(watch=watch)})
    assert again.code == panel.code
    assert again.film == panel.film
    for name, value in arguments.items():
        assert f"{value!r}" in panel.code, name
    assert source(panel) == source_of(PROGRAMS[program].function).rstrip()
    assert panel.payload["edited"] is False
    assert_lit(panel)


def assert_lit(panel):
    """Heads and layers of the whole, and tokens and sequences, each on as many ranks as share them."""
    layout, shares = panel._state.layout, panel.film["blocks"]
    assert [each.partition(":")[0] for each in shares] == [
        f"rank {k} of {layout.world}" for k in range(layout.world)
    ]
    same = layout.cp * layout.dp, layout.tp * layout.pp  # as many ranks work on the same heads and layers
    for words, ranks in zip((r"layers? \S+|heads? \S+", r"tokens? [^·]+|sequences? \S+"), same, strict=True):
        of = Counter(tuple(re.findall(words, each)) for each in shares)
        assert set(of.values()) == {ranks}


def test_without_a_layout_there_are_four_ranks():
    assert watch("mlp").code == "lp.watch('mlp', tp=2, cp=2)"
    assert watch("mlp", layout={"dp": 2}).code == "lp.watch('mlp', dp=2)"


def test_the_film_is_that_of_the_ranks_and_travels_as_it_is():
    panel = watch("attention", tp=4, cp=2)
    own = film(watched(watch_task("attention", None, lp.Layout(tp=4, cp=2))))
    shown = {name: value for name, value in panel.film.items() if name != "blocks"}
    assert shown == own
    assert panel.get_state("film")["film"] == for_browser(panel.film)
    assert json.loads(json.dumps(panel.get_state("payload"), allow_nan=False))
    assert repr(panel) == "Watch: attention, tp=4 cp=2: 10 steps forward, 18 backward, 8 ranks"
    words = panel.snapshot().summary
    for step in own["steps"]:
        if not step["depth"]:
            assert step["code"] in words
            assert step["caption"].replace("`", "") in words


def test_beside_the_ranks_stands_what_the_lit_one_holds():
    panel = watch("llama", tp=2, pp=2, cp=2, chunking="contiguous")
    model = panel._state.task("", "").setting.model
    record = lp.ranks(panel._state.layout, 5, model=model, seq_len=16, global_batch=2, chunking="contiguous")
    assert record.share
    assert panel.film["blocks"][5] == f"rank 5 of 8: {held(record.share)}"
    assert watch("mlp", tp=2).film["blocks"][1] == "rank 1 of 2: hidden columns 64–127"
    assert watch("loss", tp=2).film["blocks"][1] == "rank 1 of 2: vocabulary rows 32–63"
    assert panel.film["blocks"][5] == "rank 5 of 8: layer 1 · heads 2–3 · tokens 0–7"
    assert watch("mlp", dp=2, tp=1).film["blocks"][1] == "rank 1 of 2: sequence 1"


@pytest.mark.parametrize("name", few(BEGINS, 2, others="deep"))
def test_a_fault_that_is_chosen_is_shown_where_it_begins(name):
    fault = FAULTS[name]
    panel = watch(fault.program, tp=2)
    offered = next(control["options"] for control in panel.schema if control["name"] == "case")
    assert (name, name.replace("_", " "), "break it") in offered
    assert marked(panel, "begins") == []
    panel.set(case=name)
    ((names, phase),) = marked(panel, "begins")
    assert BEGINS[name][0] in (names or [""])  # a run that stops has no tensor
    assert phase == BEGINS[name][1]
    assert panel.payload["says"] == f"What still looks fine with this fault: {fault.looks_fine}."
    for axis, least in fault.layout.items():
        now = panel.payload["values"][axis]
        assert now == least if isinstance(least, bool) else now >= least
    panel.set(case="")
    assert marked(panel, "begins") == []
    assert panel.code == f"lp.watch({fault.program!r}, tp=2)", "what stood before the fault is back"


def test_a_fault_that_changes_nothing_says_where_it_shows():
    panel = watch("attention", tp=2, case="drop_all_reduce")
    assert marked(panel, "begins") == []
    shows = "This fault changes nothing here: it shows with tp=2, sequence_parallel=False."
    assert panel.payload["says"] == shows
    assert FAULTS["tied_not_summed"].where == "pp=2, tied=True, micro_batches=4"


def test_a_deleted_all_reduce_breaks_where_it_was():
    panel = watch("attention", tp=2, sequence_parallel=False)
    own = source(panel)
    panel.set(source=own.replace("return row_output(partial, mesh, setting)", "return partial"))
    (step,) = [step for step in panel.film["steps"] if step["fault"] == "begins"]
    assert own.splitlines()[step["line"] - 1].strip().startswith("return row_output")
    assert "a summand over TP where it should be a copy" in step["caption"]
    assert panel.payload["edited"] is True
    panel.set(source="")
    assert (source(panel), panel.payload["edited"], marked(panel, "begins")) == (own, False, [])
    panel.set(source=own + "\n")
    assert panel.payload["edited"] is False, "its own text is no edit"


def test_a_text_that_is_no_program_leaves_the_last_film():
    panel = watch("attention", tp=2, cp=2)
    own, before = source(panel), panel.film
    broken = own.replace("return row_output(partial", "return row_output((partial")
    panel.set(source=broken)
    problem = panel.payload["problem"]
    assert problem["what"].startswith("line 29 cannot be read: '(' was never closed")
    assert problem["line"] == 29
    assert (panel.film, source(panel)) == (before, broken)
    panel.set(tp=4)
    assert panel.payload["problem"]["line"] == 29
    assert panel.film == before
    panel.set(source=own.replace("heads.flatten(2) @ wo.mT", "heads @ wo.mT"))
    assert panel.payload["problem"] is None
    assert panel.film["world"] == 8
    (failed,) = [step for step in panel.film["steps"] if step["error"]]
    assert failed["line"] == 26
    assert "cannot be multiplied" in failed["error"]["7"]


def test_a_loop_without_an_end_is_broken_off(monkeypatch):
    panel = watch("mlp", tp=2)
    before = panel.film
    monkeypatch.setattr(watch_state, "SECONDS", 0.2)
    panel.set(source="def mlp(mesh, setting, x):\n    while True:\n        pass\n    return x")
    assert panel.payload["problem"]["what"] == "stopped after 0.2 s"
    assert panel.film == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tp": 8, "cp": 4}, r"^32 ranks, and at most 16 are watched"),
        ({"tp": 0}, r"^tp=0"),
        ({"tp": "two"}, r"^tp='two'"),
        ({"program": "atention"}, r"^program='atention' is not known"),
        ({"case": "nonsense"}, r"^case='nonsense' is not known"),
        ({"data": "mine"}, r"^data='mine' is not known"),
        ({"phase": 3}, r"^phase=3 is not known"),
        ({"source": 3}, r"^source is not a text"),
        ({"sequence_parallel": "yes"}, r"^sequence_parallel='yes'"),
        ({"nonsense": 1}, r"^argument='nonsense' is not known"),
    ],
)
def test_what_cannot_be_watched_is_refused_and_nothing_changes(changes, message):
    panel = watch("attention", tp=2, cp=2)
    before = panel.get_state()
    with pytest.raises(LlamaparError, match=message):
        panel.set(**changes)
    assert panel.get_state() == before


def test_a_number_is_the_sum_of_the_cells_that_light_up():
    """Of a reduce-scatter: the numbers that made one, added up, are it."""
    panel = watch("attention", tp=2, cp=2, data="random")
    number, step = next(
        (n, step)
        for n, step in enumerate(panel.film["steps"])
        if step["event"] and step["event"]["kind"] == "reduce_scatter" and not step["depth"]
    )
    kept = [step for step in panel.record.steps if step.values]
    for rank, row, column in [(0, 0, 0), (1, 3, 47), (2, 2, 17), (3, 1, 30)]:
        place = {"step": number, "tensor": step["made"][0], "rank": rank, "row": row, "column": column}
        (told,) = customs(deliver(panel, {"kind": "cell", "seq": panel.payload["seq"], **place}), "lights")
        assert {name: told[name] for name in place} == place
        parts = [
            float(kept[light["tensor"]].values[light["rank"]].flatten(0, 1)[r, c])
            for light in told["lights"]
            for r, c in light["cells"]
        ]
        assert len(parts) == 2
        assert sum(parts) == pytest.approx(told["value"], rel=1e-12)
        own = kept[place["tensor"]].values[rank].flatten(0, 1)
        assert told["value"] == float(own[row, column])


def test_a_cell_that_is_not_there_is_refused_and_an_old_one_ignored():
    panel = watch("mlp", tp=2)
    place = {"kind": "cell", "step": 2, "tensor": 4, "rank": 0, "row": 0, "column": 0}
    heard = deliver(panel, {**place, "seq": panel.payload["seq"] - 1})
    assert customs(heard, "lights") == []
    for wrong in ({"tensor": 999}, {"rank": 2}, {"row": 10**9}, {"column": -1}, {"row": "x"}):
        heard = deliver(panel, {**place, **wrong, "seq": panel.payload["seq"]})
        (answer,) = customs(heard, "answered")
        assert next(iter(wrong)) in answer["problem"]["what"]
        assert "not done" not in answer["problem"]["what"]


def test_a_program_of_ones_own_stands_beside_ours():
    def mine(mesh, setting, x, w1):
        whole = lp.programs.collectives.all_gather(x, mesh, "tp", 1)
        return (whole @ w1.mT) @ w1

    panel = watch(mine, tp=2)
    assert list(panel._state.programs) == ["mine", *WATCHED]
    assert panel.code == "lp.watch(mine, tp=2)"
    assert "whole = lp.programs.collectives.all_gather" in source(panel)
    panel.set(program="mlp")
    panel.set(program="mine")
    assert panel.film["steps"]


@pytest.mark.parametrize("seed", few([7, 8, 9], 1))
def test_whatever_the_page_sends_is_answered_and_shown(seed):
    draw = random.Random(seed)
    panel = watch("mlp", tp=2)
    own = source(panel)

    def cases():
        return [n for control in panel.schema if control["name"] == "case" for n, *_ in control["options"]]

    edits = ["", own, own.replace("@ w2.mT", "@ w2"), "def f(", "x = 1", own.replace("return", "return 2 *")]
    for _ in range(25):
        kind = draw.choice(("set", "set", "set", "cell", "undo", "nonsense"))
        changes = draw.choice(
            [
                {"tp": draw.choice((1, 2, 4, 8, 3))},
                {"cp": draw.choice((1, 2))},
                {"dp": draw.choice((1, 2))},
                {"program": draw.choice(WATCHED)},
                {"case": draw.choice(cases())},
                {"phase": draw.choice(("forward", "backward"))},
                {"data": draw.choice(("teaching", "random"))},
                {"source": draw.choice(edits)},
                {"sequence_parallel": draw.choice((True, False))},
            ]
        )
        place = {name: draw.randrange(20) for name in ("step", "tensor", "rank", "row", "column")}
        message = {"kind": kind, "changes": changes, "seq": panel.payload["seq"], "id": "x", **place}
        (answer,) = customs(deliver(panel, message), "answered")
        if answer["problem"]:
            assert "not done" not in answer["problem"]["what"] or kind == "nonsense", answer
        assert panel.payload["code"] == panel.code
        assert panel.payload["values"]["source"]


def test_a_line_brings_back_watched_ranks_in_another_panel():
    panel = watch("mlp", tp=2)
    other = watch("attention", tp=4, sequence_parallel=False, case="drop_all_reduce")
    panel.restore(other.line)
    assert panel.code == other.code
    assert panel.record.world == 4
    with pytest.raises(LlamaparError, match=r"the line calls lp\.live"):
        panel.restore("lp.live('heads')")
    panel.undo()
    assert panel.code == watch("mlp", tp=2).code

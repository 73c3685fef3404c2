"""What a watched program opens with: puzzles that are solved by their answer, incidents that happen again."""

from types import SimpleNamespace

import pytest

import llamapar as lp
from inputs import few
from llamapar.describe.placement import PARAMETERS
from llamapar.execution.body import reference
from llamapar.execution.following import source_of
from llamapar.panels.watch_panel import watch
from llamapar.programs import FAULTS, PROGRAMS
from llamapar.programs.cases import BREAK, CASES, HAPPENED, WRITE
from test_watch import BEGINS, shared_tapes, step_of

__all__ = ["shared_tapes"]
pytestmark = pytest.mark.usefixtures("shared_tapes")

PUZZLES = {name: case for name, case in CASES.items() if case.group == WRITE}
INCIDENTS = {name: case for name, case in CASES.items() if case.group == HAPPENED}


def opened(name):
    """The panel on which a reader chooses a case, coming from somewhere else."""
    panel = watch("mlp", tp=2)
    panel.set(case=name)
    return panel


def test_every_group_has_cases_and_every_fault_is_one():
    assert {case.group for case in CASES.values()} == {BREAK, WRITE, HAPPENED}
    assert {name for name, case in CASES.items() if case.group == BREAK} == set(FAULTS) == set(BEGINS)
    assert len(PUZZLES) >= 5
    for case in CASES.values():
        assert case.program in PROGRAMS


@pytest.mark.parametrize("name", PUZZLES)
def test_a_puzzle_is_the_source_with_one_open_line_where_it_is_marked(name):
    case, panel = PUZZLES[name], opened(name)
    assert source_of(PROGRAMS[case.program].function).count(case.edit[0]) == 1
    assert case.text.count(case.gap) == 1
    line = line_of(case)
    assert "# write it" in case.text.splitlines()[line - 1]
    assert case.answer not in case.text
    assert case.solved.count(case.answer) == 1
    verdict = panel.payload["verdict"]
    assert (verdict["right"], verdict["line"]) == (False, line)
    assert verdict["text"].startswith(f"not yet: line {line} differs first: ")
    (begins,) = [step for step in panel.film["steps"] if step["fault"] == "begins"]
    assert verdict["text"].endswith(begins["why"].replace("`", ""))
    assert begins["line"] in (line, 0)  # 0: the gradient that the line's backward made
    assert panel.payload["says"] == case.says
    assert panel.payload["edited"] is False


def line_of(case):
    """The open line of a puzzle's source, counted from 1."""
    (line,) = [n for n, row in enumerate(case.text.splitlines(), 1) if case.gap in row]
    return line


@pytest.mark.parametrize("name", PUZZLES)
def test_the_answer_solves_a_puzzle(name):
    """Outputs and gradients are those of one process, by torch's own functions in the reference."""
    case, panel = PUZZLES[name], opened(name)
    panel.set(data="random")
    panel.set(source=case.text.replace(case.gap, case.answer))
    world = panel.film["world"]
    text = f"right: all {world} ranks hold what one process computes"
    assert panel.payload["verdict"] == {"right": True, "text": text}
    assert text in panel.snapshot().summary
    assert not any(step["fault"] for step in panel.film["steps"])
    assert panel.payload["edited"] is True
    truth = reference(panel._state.task("", ""))
    own = [step for step in panel.record.steps if not step.depth and step.values]
    last = [step for step in own if step.phase == "forward"][-1]
    whole = next(iter(truth.outputs.values()))
    assert last.at.keys() == set(range(world))
    for rank, at in last.at.items():
        piece = whole
        for dim, ranges in enumerate(at):
            rows = [i for part in ranges for i in part]
            piece = piece[(slice(None),) * dim + (rows,)]
        assert last.values[rank].allclose(piece, rtol=0, atol=1e-9)
    for parameter, gradient in truth.gradients.items():
        if parameter in PARAMETERS:
            step = step_of(panel.record, f"{parameter}.grad", "gradients")
            for rank, (rows, columns) in step.at.items():
                own_rows = [i for part in rows for i in part if i < len(gradient)]  # then come pad rows
                piece = gradient[own_rows, columns[0].start : columns[0].stop]
                assert step.values[rank][: len(own_rows)].allclose(piece, rtol=0, atol=1e-9), parameter
    assert truth.gradients.keys() & PARAMETERS.keys()
    names, _, value = case.answer.partition(" = ")
    first = names.split(",")[0]
    for answer, right in (
        (f"{case.answer}\n    {first} = 2 * {first}", False),  # though each rank and one process agree
        (f"found = {value}\n    {names} = found", True),
    ):
        panel.set(source=case.text.replace(case.gap, answer))
        assert panel.payload["verdict"]["right"] is right


def test_an_answer_that_raises_says_so_and_a_text_that_is_no_program_has_no_verdict():
    case, panel = PUZZLES["write_mask"], opened("write_mask")
    panel.set(source=case.text.replace(case.gap, "partial = nonsense"))
    line = line_of(case)
    wrong = f"not yet: line {line} differs first: NameError: name 'nonsense' is not defined"
    assert panel.payload["verdict"]["text"] == wrong
    panel.set(source=case.text.replace(case.gap, "partial = ("))
    assert panel.payload["verdict"] is None
    assert panel.payload["problem"]["line"] == line
    panel.set(source="def other(mesh, setting, tokens, tok_embeddings):\n    return tok_embeddings")
    assert panel.payload["verdict"]["right"] is False
    panel.set(source="")
    assert panel.payload["values"]["source"] == case.text, "restored to where it began"
    assert panel.payload["verdict"]["line"] == line


def test_405b_at_16_divides_by_no_kv_heads():
    panel, model = opened("llama_405b_mp16"), lp.model("llama3.1-405b")
    (failed,) = [step for step in panel.film["steps"] if step["error"]]
    assert failed["code"] == "n_rep = n_local_heads // n_local_kv_heads"
    assert set(failed["error"].values()) == {"ZeroDivisionError: integer division or modulo by zero"}
    assert panel.film["world"] == 16
    says = panel.payload["says"]
    assert f"has {model.n_kv_heads} KV heads" in says
    assert f"is {model.n_kv_heads} // 16 = {model.n_kv_heads // 16}" in says
    assert f"n_kv_heads = {lp.model('llama3.1-405b-mp16').n_kv_heads}" in says
    assert panel.code == "lp.watch('meta_attention', 'llama3.1-405b', tp=16, case='llama_405b_mp16')"
    mended = watch("meta_attention", "llama3.1-405b", tp=8)
    assert not any(step["error"] for step in mended.film["steps"])


def test_torchtitans_view_tears_a_head_at_16():
    """Its words at the true size are those of the shape tape, which runs that."""
    panel, model = opened("torchtitan_tp16"), lp.model("llama3-8b")
    (failed,) = [step for step in panel.film["steps"] if step["error"]]
    assert failed["code"].startswith("k = split_heads(x @ wk.mT")
    tokens, head_dim = panel.record.sizes["seq"], panel.record.sizes["head_dim"]
    kv = panel.record.sizes["kv_dim"]
    text = f"shape '[1, {tokens}, -1, {head_dim}]' is invalid for input of size {tokens * kv // 16}"
    assert set(failed["error"].values()) == {f"RuntimeError: {text}"}
    tape = lp.tape("attention", model, tp=16, seq_len=8192)
    (raised,) = {error for step in tape.steps for error in step.error.values()}
    says = panel.payload["says"]
    assert raised.partition(": ")[2] == "shape '[1, 8192, -1, 128]' is invalid for input of size 524288"
    assert raised.partition(": ")[2] in says
    assert f"{model.n_kv_heads} KV heads · {model.head_dim} = {model.kv_dim} rows" in says
    assert 8192 * model.kv_dim // 16 == 524288


LONG = pytest.param("tied_not_summed", marks=pytest.mark.deep)


@pytest.mark.parametrize("name", [*few([*PUZZLES, *INCIDENTS], 3, others="deep"), LONG])
def test_the_line_of_code_opens_the_same_case(name):
    panel = opened(name) if name in PUZZLES | INCIDENTS else watch("llama", case=name)
    assert f"case={name!r}" in panel.code
    again = eval(panel.code, {"lp": SimpleNamespace(watch=watch)})
    assert again.code == panel.code
    assert again.film == panel.film
    assert again.payload == {**panel.payload, "seq": 0}
    alone = watch(CASES[name].program, case=name)  # on the case's own ranks
    assert alone.film == panel.film


@pytest.mark.parametrize("name", [*PUZZLES, *INCIDENTS])
def test_nothing_brings_back_what_stood_before(name):
    data = "random" if name in INCIDENTS else "teaching"
    panel = watch("mlp", "llama3-8b", tp=2, dp=2, data=data)
    code, film = panel.code, panel.film
    panel.set(case=name)
    assert panel.payload["values"]["program"] == CASES[name].program
    panel.set(case="")
    assert (panel.code, panel.film) == (code, film)
    assert panel.payload["verdict"] is None
    assert panel.payload["says"] == ""

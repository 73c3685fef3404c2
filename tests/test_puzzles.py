"""What the reader writes: folded solutions are right; usual mistakes get their pattern and their hint, and
what ranks raise gets the card of the shape debugger.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import cloudpickle
import pytest
import torch
import torch.distributed as dist

from llamapar.course import puzzles
from llamapar.course.puzzle_book import PUZZLES
from llamapar.course.puzzles import puzzle
from test_notebooks import PATHS, exercises, read

pytestmark = pytest.mark.usefixtures("no_ranks_left")

Written = Callable[..., Any]


def of_notebooks() -> dict[str, Written]:
    """The folded solutions by the names of their puzzles, as cells define them."""
    found = {}
    for path in PATHS:
        made: dict[str, Any] = {"torch": torch, "F": torch.nn.functional}
        classes = [cell.source for cell in read(path).cells if "torch.autograd.Function" in cell.source]
        for stub, check, solution in exercises(read(path)):
            ((name, function),) = re.findall(r'\bpuzzle\("(.+)", (\w+)\)', check.source)
            for text, answer in ((stub.source, "not answered yet"), (solution, "right")):
                exec("\n".join([text, *classes]), made)
                found[f"{name}: {answer}"] = made[function]
    return found


SOLVED = of_notebooks()
Copied = SOLVED["attention over TP: right"].__globals__["Copied"]
Summed = SOLVED["attention over TP: right"].__globals__["Summed"]
Gathered = SOLVED["attention to gathered keys: right"].__globals__["Gathered"]


@pytest.fixture(scope="module", autouse=True)
def sent_by_value() -> Iterator[None]:
    """What is written here goes to the ranks as what is written in a notebook does."""
    here = sys.modules[__name__]
    cloudpickle.register_pickle_by_value(here)
    yield
    cloudpickle.unregister_pickle_by_value(here)


@pytest.fixture(autouse=True)
def first_try(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("LLAMAPAR_PROGRESS", "off")
    puzzles._tries.clear()
    yield
    puzzles._tries.clear()


def told(capsys: pytest.CaptureFixture[str], name: str, function: Written) -> list[str]:
    puzzle(name, function)
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("name", PUZZLES)
def test_the_folded_solution_is_right(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, name, SOLVED[f"{name}: not answered yet"]) == ["not answered yet"]
    assert told(capsys, name, SOLVED[f"{name}: right"]) == [
        "right: all 4 ranks have what one process computes"
    ]


# -- usual mistakes, as a reader writes them -------------------------------------------------------


def summed(t: Any) -> Any:
    total = t.clone()
    dist.all_reduce(total)
    return total


def gathered(t: Any) -> Any:
    parts = [torch.empty_like(t) for _ in range(4)]
    dist.all_gather(parts, t)
    return torch.cat(parts)


def looked_up(tokens: Any, table: Any, first: int, mask: bool) -> Any:
    here = (tokens >= first) & (tokens < first + len(table))
    own = table[(tokens - first) * here]
    return own * here[:, None] if mask else own


def loss_of(logits: Any, targets: Any, first: int, top: Any, total: Any) -> Any:
    here = (targets >= first) & (targets < first + logits.shape[1])
    own = logits.gather(1, ((targets - first) * here)[:, None])[:, 0] * here
    return total((logits - top[:, None]).exp().sum(1)).log() + top - summed(own)


def gathered_keys(q: Any, k: Any, v: Any, positions: Any, left_out: str) -> Any:
    gather = gathered if left_out == "gradient" else Gathered.apply
    of_values = gathered if left_out == "values" else gather
    places = gathered(positions)
    if left_out != "all":
        k, v = gather(k), of_values(v)
    mask = positions[:, None] >= (positions if left_out == "all" else places)
    mask |= left_out == "mask"
    return torch.nn.functional.scaled_dot_product_attention(q[None], k[None], v[None], mask[None])[0]


def attention_without(left_out: str) -> Written:
    """The solution with copied KV heads, without what its lines with a name do."""

    def written(x: Any, wq: Any, wk: Any, wv: Any, wo: Any, copies: int = 1) -> Any:
        own, _ = dist.new_subgroups(copies)
        if left_out != "x":
            x = Copied.apply(x)
        if left_out != "copies":
            wk = Copied.apply(wk, own)
        if left_out not in ("copies", "wv"):
            wv = Copied.apply(wv, own)
        q, k, v = ((x @ w.mT).unflatten(-1, (-1, 4)).transpose(1, 2) for w in (wq, wk, wv))
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return Summed.apply(out.transpose(1, 2).flatten(2) @ wo.mT)

    return written


def attention_alone(x: Any, wq: Any, wk: Any, wv: Any, wo: Any) -> Any:
    q, k, v = ((x @ w.mT).unflatten(-1, (-1, 4)).transpose(1, 2) for w in (wq, wk, wv))
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return out.transpose(1, 2).flatten(2) @ wo.mT


def to_rank_0(x: Any) -> Any:
    if dist.get_rank():
        dist.send(x, 0)
        return x
    for rank in (1, 2, 3):
        dist.recv(part := torch.empty_like(x), rank)
        x = x + part
    return x


def with_the_one_before(x: Any) -> Any:
    sent = dist.isend(x, (dist.get_rank() + 1) % 4)
    dist.recv(came := torch.empty_like(x), (dist.get_rank() - 1) % 4)
    assert sent is not None
    sent.wait()
    return x + came


def stage(x: Any, w: Any, dy: Any) -> Any:
    if dist.get_rank() > 0:
        dist.recv(x, dist.get_rank() - 1)
    y = (x @ w.mT).tanh()
    if dist.get_rank() < 3:
        dist.send(y, dist.get_rank() + 1)
    return y, (dy * (1 - y.square())).mT @ x


def squares(gradients: dict[str, Any]) -> Any:
    return sum(t.square().sum() for t in gradients.values())


def scattered(t: Any) -> Any:
    own = torch.empty_like(t.chunk(4)[0])
    dist.reduce_scatter(own, list(t.chunk(4)))
    return own


class Often(torch.autograd.Function):
    """A sum whose backward is a sum again."""

    @staticmethod
    def forward(ctx: Any, t: Any) -> Any:
        return summed(t)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:  # type: ignore[override]
        return summed(gradient)


def greatest(logits: Any) -> Any:
    top = logits.amax(1).clone()
    dist.all_reduce(top, dist.ReduceOp.MAX)
    return top


SUMMAND = "each rank has its own summand of the sum over tp"
WRONG: dict[tuple[str, str], tuple[Written, str]] = {
    ("vocabulary-parallel lookup", "not masked"): (
        lambda tokens, own, first: summed(looked_up(tokens, own, first, mask=False)),
        "",
    ),
    ("vocabulary-parallel lookup", "not summed"): (
        lambda tokens, own, first: looked_up(tokens, own, first, mask=True),
        SUMMAND,
    ),
    ("vocabulary-parallel lookup", "clamped"): (
        lambda tokens, own, first: summed(own[(tokens - first).clamp(0, len(own) - 1)]),
        "",
    ),
    ("vocabulary-parallel loss", "own columns"): (
        lambda logits, targets, first: loss_of(logits, targets, first, logits.amax(1), lambda own: own),
        "",
    ),
    ("vocabulary-parallel loss", "own maximum"): (
        lambda logits, targets, first: loss_of(logits, targets, first, logits.amax(1), summed),
        "",
    ),
    ("vocabulary-parallel lookup", "dtable"): (
        lambda tokens, own, first: Often.apply(looked_up(tokens, own, first, mask=True)),
        "4 × the right one (4 = ranks)",
    ),
    ("vocabulary-parallel loss", "dlogits"): (
        lambda logits, targets, first: loss_of(logits, targets, first, greatest(logits), summed),
        "",
    ),
    ("un-pad after a gather", "pads at the end"): (
        lambda own, counts: gathered(own)[: sum(counts)],
        "rows 8–9",
    ),
    ("attention to gathered keys", "no mask"): (lambda *own: gathered_keys(*own, "mask"), ""),
    ("attention to gathered keys", "own keys"): (lambda *own: gathered_keys(*own, "all"), "rows 4–31"),
    ("attention to gathered keys", "dk"): (lambda *own: gathered_keys(*own, "gradient"), "all zero"),
    ("attention to gathered keys", "dv"): (lambda *own: gathered_keys(*own, "values"), "all zero"),
    ("attention over TP", "not summed"): (attention_alone, SUMMAND),
    ("attention over TP", "dx"): (attention_without("x"), SUMMAND),
    ("attention with copied KV heads", "not summed"): (lambda *own: attention_alone(*own[:5]), SUMMAND),
    ("attention with copied KV heads", "dx"): (attention_without("x"), SUMMAND),
    ("attention with copied KV heads", "dwk"): (
        attention_without("copies"),
        f"{SUMMAND} of ranks with the same part",
    ),
    ("attention with copied KV heads", "dwv"): (
        attention_without("wv"),
        f"{SUMMAND} of ranks with the same part",
    ),
    ("all-reduce from sends", "on rank 0"): (to_rank_0, ""),
    ("all-reduce from sends", "two ranks"): (with_the_one_before, ""),
    ("ZeRO-3 gather", "sum"): (
        lambda shard, x, dy: (x @ gathered(shard).mT, scattered(dy.mT @ x)),
        "4 × the right one (4 = ranks)",
    ),
    ("ZeRO-3 gather", "own tokens"): (
        lambda shard, x, dy: (x @ gathered(shard).mT, (dy.mT @ x).chunk(4)[dist.get_rank()]),
        "",
    ),
    ("a stage of a pipeline", "nothing received"): (
        lambda x, w, dy: ((y := (x @ w.mT).tanh()), (dy * (1 - y.square())).mT @ x),
        "zero where it differs",
    ),
    ("a stage of a pipeline", "dw"): (stage, "zero where it differs"),
    ("the global norm", "copies counted"): (lambda gradients, cut: summed(squares(gradients)).sqrt(), ""),
    ("the global norm", "own norm"): (lambda gradients, cut: squares(gradients).sqrt(), ""),
    ("the global norm", "norms added"): (lambda gradients, cut: summed(squares(gradients).sqrt()), ""),
}


def test_every_slip_has_its_wrong_solution() -> None:
    hinted = {name: {*one.slips, *one.when.keys() & one.names} for name, one in PUZZLES.items()}
    assert set(WRONG) == {(name, slip) for name, slips in hinted.items() for slip in slips}
    assert len(PUZZLES) >= 10
    assert all(len(one.slips) + len(one.when) >= 2 and len(one.hints) >= 3 for one in PUZZLES.values())


CODE = re.compile(r"\b(?:dist|torch)\.\w+\s*\(|\w\s=\s|\w\s@\s|\.mT\b|\[[^\]]*:|\breturn \w+\(")
"""What a line of a solution has: a message, an assignment, a product, a slice."""


def test_no_hint_is_code_to_paste() -> None:
    texts = [
        text for one in PUZZLES.values() for text in (*one.hints, *one.of_slips.values(), *one.when.values())
    ]
    assert [text for text in texts if CODE.search(text)] == []
    solutions = [solution for path in PATHS for _, _, solution in exercises(read(path))]
    assert [solution for solution in solutions if not CODE.search(solution)] == [], "it would be found"


@pytest.mark.parametrize(("name", "slip"), WRONG)
def test_a_usual_mistake_gets_its_pattern_and_its_own_hint(
    name: str, slip: str, capsys: pytest.CaptureFixture[str]
) -> None:
    function, pattern = WRONG[name, slip]
    wrong, *patterns, hint = told(capsys, name, function)
    assert re.match(r"wrong: \w+ differs on (every rank|ranks? [0-3–]+); on rank \d by ", wrong), wrong
    assert "; ".join(patterns).removeprefix("pattern: ") == pattern
    assert hint == f"hint: {(PUZZLES[name].of_slips | PUZZLES[name].when)[slip]}"


NO_WORDS = "Not known: the words of the error decide nothing"
ONE_TABLE = (
    "Possibly a sharding problem: 21 of size 24 over tp=4 is looked up among the 6 of one rank|"
    "index 21 of 4: the last one is 3"  # where the last rank is the first that raises
)
RAISING: dict[str, tuple[Written, str, str, str]] = {
    "attention over TP": (
        lambda x, wq, wk, wv, wo: (x @ wq.mT).unflatten(-1, (8, 4)),
        r"RuntimeError: unflatten: Provided sizes \[8, 4\] don't",
        "A sharding problem: 8 is 1/4 of 32: a rank's slice (tp=4) meets the whole dim",
        "wq [8, 8] float64",
    ),
    "vocabulary-parallel lookup": (
        lambda tokens, table, first: table[tokens],
        r"IndexError: index \d+ is out of bounds for dimension 0 with size \d",
        ONE_TABLE,
        "table [6, 8] float64|table [4, 8] float64",
    ),
    "un-pad after a gather": (
        lambda own, counts: torch.stack([own] * 4)[counts],
        "IndexError: too many indices for tensor of dimension 3",
        NO_WORDS,
        "own [3, 2] float64",
    ),
    "attention to gathered keys": (
        lambda q, k, v, positions: (q @ gathered(k).mT).softmax(1) @ v,
        r"RuntimeError: mat1 and mat2 shapes cannot be multiplied \(8x32 and 8x8\)",
        "Possibly a sharding problem: 8 is 1/4 of 32: a rank's slice (cp=4) meets the whole dim",
        "v [8, 8] float64",
    ),
    "all-reduce from sends": (
        lambda x: x[9],
        "IndexError: index 9 is out of bounds for dimension 0 with size 3",
        "Possibly a sharding problem: 9 of size 12 over tp=4 is looked up among the 3 of one rank",
        "x [3, 2] float64",
    ),
    "the global norm": (
        lambda gradients, cut: torch.stack(list(gradients.values())).norm(),
        "RuntimeError: stack expects each tensor to be equal size",
        NO_WORDS,
        'gradients["wq"] [2, 8] float64',
    ),
}


@pytest.mark.parametrize("name", RAISING)
def test_what_ranks_raise_gets_the_card_of_the_shape_debugger(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    function, error, headline, operand = RAISING[name]
    wrong, *card = told(capsys, name, function)
    assert re.match(rf"wrong: rank \d raised {error}", wrong), wrong
    assert card[0] in headline.split("|")
    assert card[1].startswith("where  ")
    lines = [" ".join(line.split()) for line in card]
    assert any(line.startswith(tuple(operand.split("|"))) for line in lines), card


def test_a_hint_grows_with_each_wrong_try(capsys: pytest.CaptureFixture[str]) -> None:
    hints = [told(capsys, "the global norm", lambda gradients, cut: torch.tensor(7.0))[1] for _ in range(5)]
    known = [f"hint: {hint}" for hint in PUZZLES["the global norm"].hints]
    assert hints == [*known, known[-1], known[-1]]


def naive(logits: Any, targets: Any, first: int) -> Any:
    return loss_of(logits, targets, first, 0 * logits[:, 0], summed)


def unpadded(own: Any, counts: tuple[int, ...]) -> Any:
    return gathered(own[: counts[dist.get_rank()]])


UNEVEN = "rank 0 raised LlamaparError: one collective is given different tensors"


@pytest.mark.parametrize(
    ("name", "function", "what", "when"),
    [
        ("vocabulary-parallel loss", naive, "loss of rank 0 has numbers that are not finite", "not finite"),
        ("un-pad after a gather", unpadded, UNEVEN, "uneven shapes"),
    ],
)
def test_what_goes_wrong_before_numbers_are_compared_has_a_hint_of_its_own(
    name: str, function: Written, what: str, when: str, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong, hint = told(capsys, name, function)
    assert re.sub(r"^wrong: rank \d raised", "wrong: rank 0 raised", wrong).startswith(f"wrong: {what}")
    assert hint == f"hint: {PUZZLES[name].when[when]}"


@pytest.mark.parametrize(
    ("function", "what"),
    [
        (lambda x: (x, x), "rank 0 returns 2 values, and should return 1: total"),
        (
            lambda x: summed(x),
            "this puzzle is to be solved with send and recv, not with all_reduce",
        ),
        (
            lambda x: x if dist.get_rank() != 2 else None,
            "rank 2 returns 0 values, and should return 1: total",
        ),
        (lambda x: x if dist.get_rank() < 2 else x[:0], "total of rank 2 is [0, 2], and should be [3, 2]"),
    ],
    ids=range(4),
)
def test_what_cannot_be_compared_is_told(
    function: Written, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = told(capsys, "all-reduce from sends", function)[0]
    assert re.sub(r"^wrong: rank \d raised", "wrong: rank 0 raised", wrong).startswith(f"wrong: {what}")


@pytest.mark.parametrize("name", PUZZLES)
def test_an_answer_that_is_no_tensor_or_has_no_backward_is_refused_for_that(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = PUZZLES[name]
    answer = ["it"] * (1 if asked.backward else len(asked.names))
    wrong = f"wrong: {asked.names[0]} of rank 0 is of type str, and a tensor is needed"
    assert told(capsys, name, lambda *own: answer) == [wrong]
    zeros = torch.zeros_like(asked.truth(asked.given())[0][0])
    wrong = f"wrong: {asked.names[0]} of rank 0 has no backward: autograd did not see what it was made of"
    assert not asked.backward or told(capsys, name, lambda *own: zeros) == [wrong]


def test_an_answer_of_another_form_costs_no_hint_and_what_ranks_print_is_shown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def printing(x: Any) -> Any:
        print("mine is", list(x.shape))
        return x[:1]

    said = told(capsys, "all-reduce from sends", printing)
    assert said == [
        *(f"rank {rank}: mine is [3, 2]" for rank in range(4)),
        "wrong: total of rank 0 is [1, 2], and should be [3, 2]",
    ]
    _, pattern, hint = told(capsys, "all-reduce from sends", lambda x: x * 0)
    assert pattern == "pattern: all zero"
    assert hint == f"hint: {PUZZLES['all-reduce from sends'].hints[0]}"


def test_ranks_that_wait_for_one_another_are_given_up(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(puzzles, "WAIT", 0.5)
    start = time.monotonic()
    first, *rest = told(capsys, "all-reduce from sends", lambda x: dist.recv(x, (dist.get_rank() + 1) % 4))
    assert time.monotonic() - start < 20
    assert first.startswith("wrong: it does not end. recv over tp, [3, 2] float64: rank 0 arrived; rank 1")
    assert rest[-1].startswith("hint: ")


def silent(x: Any) -> Any:
    time.sleep(100)
    return x


def computing_on_rank_2(x: Any) -> Any:
    while dist.get_rank() == 2:
        x = x + 1
    return x


def talking(x: Any) -> Any:
    while True:
        dist.all_reduce(x)


PROGRESS = "progress is to enter or leave a collective"


@pytest.mark.parametrize(
    ("function", "longest", "what"),
    [
        (silent, 60, rf"it does not end\. ranks 0, 1, 2, 3: computing; {PROGRESS}, or to end"),
        (
            computing_on_rank_2,
            2,
            "rank 2 raised TimeoutError: after 2 seconds it has not returned$",
        ),
        (talking, 2, r"rank \d raised TimeoutError: after 2 seconds it has not returned$"),
    ],
)
def test_a_try_that_loops_forever_is_given_up_and_the_next_one_is_judged(
    function: Written,
    longest: int,
    what: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if function is silent:  # else the longest time comes first, on a busy machine, too
        monkeypatch.setattr(puzzles, "WAIT", 1.0)
    monkeypatch.setattr(puzzles, "LONGEST", longest)
    start = time.monotonic()
    name = "all-reduce from sends"
    wrong, *rest = told(capsys, name, function)
    assert time.monotonic() - start < 50, "less than LONGEST, where ranks are silent"
    assert re.match(f"wrong: {what}", wrong), wrong
    assert rest[-1] == f"hint: {PUZZLES[name].hints[0]}"
    monkeypatch.undo()
    assert told(capsys, name, SOLVED[f"{name}: right"]) == [
        "right: all 4 ranks have what one process computes"
    ]

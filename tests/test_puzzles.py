"""What the reader writes: folded solutions are right, and usual mistakes get the hint that is theirs."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import cloudpickle
import pytest
import torch

from llamapar.course import puzzles
from llamapar.course.puzzle_book import PUZZLES
from llamapar.course.puzzles import puzzle
from test_notebooks import PATHS, exercises, read, tags

pytestmark = pytest.mark.usefixtures("no_ranks_left")

Written = Callable[..., Any]


def of_notebooks() -> dict[str, Written]:
    """The folded solutions by the names of their puzzles, as cells define them."""
    found = {}
    for path in PATHS:
        for stub, check, solution in exercises(read(path)):
            if "puzzle" in tags(stub):
                ((name, function),) = re.findall(r'\bpuzzle\("(.+)", (\w+)\)', check.source)
                for text, answer in ((stub.source, "not answered yet"), (solution, "right")):
                    made: dict[str, Any] = {"torch": torch}
                    exec(text, made)
                    found[f"{name}: {answer}"] = made[function]
    return found


SOLVED = of_notebooks()


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
    assert told(capsys, name, SOLVED[f"{name}: right"]) == [f"right: {PUZZLES[name].right}"]


# -- usual mistakes, as a reader writes them -------------------------------------------------------


def looked_up(comm: Any, tokens: Any, table: Any, first: int, mask: bool) -> Any:
    here = (tokens >= first) & (tokens < first + len(table))
    own = table[(tokens - first) * here]
    return own * here[:, None] if mask else own


def loss_of(comm: Any, logits: Any, targets: Any, first: int, top: Any, total: Any) -> Any:
    here = (targets >= first) & (targets < first + logits.shape[1])
    own = logits.gather(1, ((targets - first) * here)[:, None])[:, 0] * here
    return total((logits - top[:, None]).exp().sum(1)).log() + top - comm.all_reduce(own)


def ring(comm: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, merge: Written) -> Any:
    k, v = comm.shift(k), comm.shift(v)
    scores = q @ k.mT / q.shape[1] ** 0.5
    return k, v, merge(out, scores.softmax(1) @ v), torch.logaddexp(lse, scores.logsumexp(1))


def attention_with(x: bool = True, kv: bool = True, summed: bool = True) -> Written:
    """Attention of a rank, with what is left out said by False."""

    def attention_of(comm: Any, tokens: Any, wq: Any, wk: Any, wv: Any, wo: Any, copies: int = 1) -> Any:
        tokens = comm.copied(tokens) if x and summed else tokens
        if kv:
            wk, wv = (comm.copied(w, copies) for w in (wk, wv))
        q, k, v = ((tokens @ w.mT).unflatten(-1, (-1, 4)).transpose(1, 2) for w in (wq, wk, wv))
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        out = out.transpose(1, 2).flatten(2) @ wo.mT
        return comm.summed(out) if summed else out

    return attention_of


def to_rank_0(comm: Any, x: Any) -> Any:
    if comm.rank:
        comm.send(x, 0)
        return x
    return x + sum(comm.recv(x, rank) for rank in (1, 2, 3))


def with_the_one_before(comm: Any, x: Any) -> Any:
    if comm.rank % 2:
        came = comm.recv(x, (comm.rank - 1) % 4)
        comm.send(x, (comm.rank + 1) % 4)
    else:
        comm.send(x, (comm.rank + 1) % 4)
        came = comm.recv(x, (comm.rank - 1) % 4)
    return x + came


def table(first: Callable[[Any], int]) -> Written:
    def row_of(comm: Any, many: int) -> Any:
        warm = first(comm)
        row = [[0, n] for n in range(warm)]
        for n in range(warm, many):
            row += [[0, n], [1, n - warm]]
        return torch.tensor(row + [[1, n] for n in range(many - warm, many)])

    return row_of


def squares(gradients: dict[str, Any]) -> Any:
    return sum(t.square().sum() for t in gradients.values())


def two(comm: Any, seq: int, second: int) -> Any:
    pieces = torch.arange(seq).chunk(2 * comm.world)
    return torch.cat([pieces[comm.rank], pieces[second]])


WRONG: dict[tuple[str, str], Written] = {
    ("column-parallel linear", "not summed"): lambda comm, x, w, dy: (x @ w.mT, dy @ w),
    ("column-parallel linear", "y summed"): lambda comm, x, w, dy: (
        comm.all_reduce(x @ w.mT),
        comm.all_reduce(dy @ w),
    ),
    ("row-parallel linear", "not summed"): lambda comm, x, w, dy: (x @ w.mT, dy @ w),
    ("row-parallel linear", "dx summed"): lambda comm, x, w, dy: (
        comm.all_reduce(x @ w.mT),
        comm.all_reduce(dy) @ w,
    ),
    ("vocabulary-parallel lookup", "not masked"): lambda comm, tokens, own, first: comm.all_reduce(
        looked_up(comm, tokens, own, first, mask=False)
    ),
    ("vocabulary-parallel lookup", "not summed"): lambda comm, tokens, own, first: looked_up(
        comm, tokens, own, first, mask=True
    ),
    ("vocabulary-parallel lookup", "clamped"): lambda comm, tokens, own, first: comm.all_reduce(
        own[(tokens - first).clamp(0, len(own) - 1)]
    ),
    ("vocabulary-parallel loss", "own columns"): lambda comm, logits, targets, first: loss_of(
        comm, logits, targets, first, logits.amax(1), lambda own: own
    ),
    ("vocabulary-parallel loss", "own maximum"): lambda comm, logits, targets, first: loss_of(
        comm, logits, targets, first, logits.amax(1), comm.all_reduce
    ),
    ("un-pad after a gather", "pads at the end"): lambda comm, own, counts: comm.all_gather(own)[
        : sum(counts)
    ],
    ("un-pad after a gather", "pads at the beginning"): lambda comm, own, counts: comm.all_gather(own)[
        -sum(counts) :
    ],
    ("head-tail chunks", "in order"): lambda comm, seq: torch.arange(seq).chunk(comm.world)[comm.rank],
    ("head-tail chunks", "not turned round"): lambda comm, seq: two(comm, seq, comm.world + comm.rank),
    ("a ring step", "added"): lambda comm, *own: ring(comm, *own, merge=lambda out, new: out + new),
    ("a ring step", "mean"): lambda comm, *own: ring(comm, *own, merge=lambda out, new: (out + new) / 2),
    ("attention over TP", "not summed"): attention_with(summed=False),
    ("attention over TP", "x not summed"): attention_with(x=False),
    ("attention with copied KV heads", "x not summed"): attention_with(x=False),
    ("attention with copied KV heads", "copies not summed"): attention_with(kv=False),
    ("all-reduce from sends", "on rank 0"): to_rank_0,
    ("all-reduce from sends", "two ranks"): with_the_one_before,
    ("ZeRO-3 gather", "sum"): lambda comm, shard, x, dy: (
        x @ comm.all_gather(shard).mT,
        comm.reduce_scatter(dy.mT @ x),
    ),
    ("ZeRO-3 gather", "own tokens"): lambda comm, shard, x, dy: (
        x @ comm.all_gather(shard).mT,
        (dy.mT @ x).chunk(comm.world)[comm.rank],
    ),
    ("a 1F1B table", "all forward"): table(lambda comm: 6),
    ("a 1F1B table", "turned round"): table(lambda comm: comm.rank),
    ("a 1F1B table", "one too many"): table(lambda comm: comm.world - comm.rank),
    ("the global norm", "copies counted"): lambda comm, gradients, cut: comm.all_reduce(
        squares(gradients)
    ).sqrt(),
    ("the global norm", "own norm"): lambda comm, gradients, cut: squares(gradients).sqrt(),
    ("the global norm", "norms added"): lambda comm, gradients, cut: comm.all_reduce(
        squares(gradients).sqrt()
    ),
}


def test_every_slip_has_its_wrong_solution() -> None:
    assert set(WRONG) == {(name, slip) for name, one in PUZZLES.items() for slip in one.slips}
    assert len(PUZZLES) >= 12
    assert all(len(one.slips) >= 2 and len(one.hints) >= 3 for one in PUZZLES.values())


CODE = re.compile(r"\b(?:comm|torch)\.\w+\s*\(|\w\s=\s|\w\s@\s|\.mT\b|\[[^\]]*:|\breturn \w+\(")
"""What a line of a solution has: a message, an assignment, a product, a slice."""


def test_no_hint_is_code_to_paste() -> None:
    texts = [
        text for one in PUZZLES.values() for text in (*one.hints, *one.of_slips.values(), *one.when.values())
    ]
    assert [text for text in texts if CODE.search(text)] == []
    solutions = [solution for path in PATHS for _, _, solution in exercises(read(path))]
    assert [solution for solution in solutions if not CODE.search(solution)] == [], "it would be found"


@pytest.mark.parametrize(("name", "slip"), WRONG)
def test_a_usual_mistake_gets_its_own_hint(name: str, slip: str, capsys: pytest.CaptureFixture[str]) -> None:
    wrong, hint = told(capsys, name, WRONG[name, slip])
    assert re.match(r"wrong: \w+ differs on (every rank|rank [0-3, ]+); on rank \d by ", wrong), wrong
    assert hint == f"hint: {PUZZLES[name].of_slips[slip]}"


def test_a_hint_grows_with_each_wrong_try(capsys: pytest.CaptureFixture[str]) -> None:
    hints = [
        told(capsys, "the global norm", lambda comm, gradients, cut: torch.tensor(7.0))[1] for _ in range(5)
    ]
    known = [f"hint: {hint}" for hint in PUZZLES["the global norm"].hints]
    assert hints == [*known, known[-1], known[-1]]


def naive(comm: Any, logits: Any, targets: Any, first: int) -> Any:
    return loss_of(comm, logits, targets, first, 0 * logits[:, 0], comm.all_reduce)


def unpadded(comm: Any, own: Any, counts: tuple[int, ...]) -> Any:
    return comm.all_gather(own[: counts[comm.rank]])


UNEVEN = (
    "rank 0 raised UnevenShapes: all_gather wants one shape on all ranks: rank 0 gives [3, 2], rank 2 gives "
    "[2, 2] (line 2 of unpadded)"
)


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
    assert re.sub(r"^wrong: rank \d raised", "wrong: rank 0 raised", wrong) == f"wrong: {what}"
    assert hint == f"hint: {PUZZLES[name].when[when]}"


@pytest.mark.parametrize(
    ("function", "what"),
    [
        (lambda comm, x: x[:1], "total of rank 0 is [1, 2], and should be [3, 2]"),
        (lambda comm, x: (x, x), "rank 0 returns 2 of 1: total"),
        (lambda comm, x: "a sum", "total of rank 0 is of type str, and a tensor is needed"),
        (lambda comm, x: x / 0, "total of rank 0 has numbers that are not finite"),
        (
            lambda comm, x: comm.all_reduce(x),
            "rank 0 raised PermissionError: this puzzle is to be solved with",
        ),
        (
            lambda comm, x: x[9],
            "rank 0 raised IndexError: index 9 is out of bounds for dimension 0 with size 3 (line 1 ",
        ),
        (
            lambda comm, x: x if comm.rank != 2 else None,
            "total of rank 2 is of type NoneType, and a tensor is needed",
        ),
        (lambda comm, x: x if comm.rank < 2 else x[:0], "total of rank 2 is [0, 2], and should be [3, 2]"),
    ],
    ids=range(8),
)
def test_what_cannot_be_compared_is_told(
    function: Written, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert told(capsys, "all-reduce from sends", function)[0].startswith(f"wrong: {what}")


def test_a_balanced_order_other_than_head_tail_is_right(capsys: pytest.CaptureFixture[str]) -> None:
    def dealt(comm: Any, seq: int) -> Any:
        """Pairs of a position and its mirror image, dealt out one by one."""
        head = torch.arange(comm.rank, seq // 2, comm.world)
        return torch.cat([head, seq - 1 - head])

    assert told(capsys, "head-tail chunks", dealt) == [f"right: {PUZZLES['head-tail chunks'].right}"]
    wrong = told(capsys, "head-tail chunks", lambda comm, seq: torch.arange(seq // comm.world))
    assert wrong[0].startswith("wrong: positions differs on")


def test_an_answer_of_another_form_costs_no_hint_and_what_ranks_print_is_shown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def printing(comm: Any, x: Any) -> Any:
        print("mine is", list(x.shape))
        return x[:1]

    said = told(capsys, "all-reduce from sends", printing)
    assert said == [
        *(f"rank {rank}: mine is [3, 2]" for rank in range(4)),
        "wrong: total of rank 0 is [1, 2], and should be [3, 2]",
    ]
    _, hint = told(capsys, "all-reduce from sends", lambda comm, x: x * 0)
    assert hint == f"hint: {PUZZLES['all-reduce from sends'].hints[0]}"


def test_ranks_that_wait_for_one_another_are_given_up(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(puzzles, "WAIT", 0.5)
    start = time.monotonic()
    first, *rest = told(capsys, "all-reduce from sends", lambda comm, x: comm.recv(x, (comm.rank + 1) % 4))
    assert time.monotonic() - start < 20
    assert first.startswith("wrong: it does not end. a recv from rank 1: rank 0 arrived; rank 1 never did")
    assert rest[-1].startswith("hint: ")

"""Edits tried in place: what they find, what they claim, and that nothing outside changes."""

import ast
import linecache
import os
import re
import socket
import subprocess
import sys
import threading
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch

import llamapar as lp
from llamapar.diagnosis.edits import child
from llamapar.diagnosis.edits.candidates import Edit
from llamapar.diagnosis.edits.degrees import Degree
from llamapar.diagnosis.edits.editing import Editor
from llamapar.diagnosis.edits.program import Program
from llamapar.diagnosis.edits.proof import DIFFERS, PROVED, compare_ranks
from llamapar.diagnosis.edits.repair import repair, with_edits
from llamapar.diagnosis.explanation import Explanation

pytestmark = pytest.mark.skipif(bool(child.unsafe()), reason=child.unsafe() or "trials run")
SECONDS = 20.0
"""For the trials of a test; a busy machine is slow."""


def failing(*cells: str, **names: Any) -> tuple[Program, BaseException]:
    """The program of cells that ran one after another, and the error of the last."""
    space: dict[str, Any] = {"__name__": "__main__", **names}
    program = Program({}, space, {})
    error: BaseException | None = None
    for number, cell in enumerate(("import torch, torch.nn as nn, torch.nn.functional as F", *cells)):
        file = f"<test cell {number}>"
        linecache.cache[file] = (len(cell), None, cell.splitlines(keepends=True), file)
        program.cells[file], program.before = cell, dict(space)
        try:
            program.execute(file, program.tree(file).body)
        except Exception as raised:
            error = raised
    assert error is not None
    return program, error


def repaired(*cells: str, **names: Any) -> Explanation:
    """What is said of cells whose last one fails."""
    return repair(*failing(*cells, **names), SECONDS)


class Hostile:
    """Every way in which reading an object could run code of its class."""

    def __getattr__(self, name: str) -> object:
        raise SystemExit("__getattr__ was called")

    def __repr__(self) -> str:
        raise SystemExit("__repr__ was called")

    def __eq__(self, other: object) -> bool:
        raise SystemExit("__eq__ was called")

    __hash__ = None  # type: ignore[assignment]

    @property
    def tp(self) -> int:
        raise SystemExit("a property was called")


ATTENTION = """class Attention(nn.Module):
    def __init__(self, tp):
        super().__init__()
        self.n_heads = 8
        self.wq = nn.Linear(24, 32 // tp, bias=False)
    def forward(self, x):
        return self.wq(x).view(2, 5, self.n_heads, 4)"""


# -- nothing outside changes -----------------------------------------------------------------------

EFFECTS = {
    "pathlib": "from pathlib import Path; Path(place + '/new').write_text('a')",
    "append": "with open(place + '/old', 'a') as f: f.write('a')",
    "unlink": "import os; os.unlink(place + '/old')",
    "torch.save": "torch.save({'w': torch.ones(3)}, place + '/new')",
    "safetensors": "import safetensors.torch as s; s.save_file({'w': torch.ones(3)}, place + '/new')",
    "os.system": "import os; os.system('echo a > ' + place + '/new')",
    "subprocess": "import subprocess; subprocess.run(['touch', place + '/new'])",
    "an open handle": "handle.write('a'); handle.flush()",
    "an open handle cut short": "handle.truncate(0)",
    "a descriptor": "import os; os.ftruncate(handle.fileno(), 0)",
    "permissions": "import os; os.chmod(place + '/old', 0)",
    "a socket": "import socket; socket.create_connection(('127.0.0.1', port), 2).close()",
    "an open socket": "sent.send(b'a')",
    "a pipe": "import os; os.write(pipe, b'a')",
    "a shared tensor": "shared.fill_(7)",
    "a signal": "import os, signal; os.kill(os.getppid(), signal.SIGUSR1)",
}


@pytest.mark.parametrize("effect", EFFECTS)
def test_a_trial_has_no_effect_outside(effect, tmp_path):
    (tmp_path / "old").write_text("before")
    (tmp_path / "held").write_text("before")
    shared = torch.zeros(4).share_memory_()
    sender, receiver = socket.socketpair()
    reads, writes = os.pipe()
    server = socket.create_server(("127.0.0.1", 0))
    for each in (receiver, server):
        each.setblocking(False)
    os.set_blocking(reads, False)
    signals = []
    import signal

    before = signal.signal(signal.SIGUSR1, lambda number, frame: signals.append(number))
    with open(tmp_path / "held", "r+") as handle:
        handle.seek(0, os.SEEK_END)
        names = {
            "place": str(tmp_path), "handle": handle, "port": server.getsockname()[1], "sent": sender,
            "pipe": writes, "shared": shared,
        }  # fmt: skip

        def state():
            def received(read):
                try:
                    return read()
                except (BlockingIOError, InterruptedError):
                    return None

            def accepted():
                connection = received(server.accept)
                if connection is not None:
                    connection[0].close()
                return connection is not None

            files = {
                path.name: (path.read_text("latin1"), path.stat().st_mode) for path in tmp_path.iterdir()
            }
            sent = received(lambda: receiver.recv(9)), received(lambda: os.read(reads, 9))
            return files, sent, accepted(), shared.tolist(), len(signals)

        untouched = state()
        cells = ["w = torch.ones(3, 4)\nx = torch.ones(2, 4)", f"h = x @ w\n{EFFECTS[effect]}"]
        program, error = failing(*cells, **names)
        found = repair(program, error, SECONDS)
        assert state() == untouched
        assert "+ h = x @ w.T" in found.edit, str(found)
        # The same effect without a trial is seen, so this test would notice it.
        space = {**names, "torch": torch, "x": torch.ones(2, 4)}
        exec(EFFECTS[effect].replace("os.getppid", "os.getpid"), space)
        assert state() != untouched
    signal.signal(signal.SIGUSR1, before)
    for each in (sender, receiver, server):
        each.close()
    os.close(reads)
    os.close(writes)


def test_the_process_survives_its_trials_and_prints_nothing(capfd, counts):
    # Forkservers of other tests may be children of this process, too.
    children = Path("/proc/self/task", str(os.getpid()), "children")
    handles, others = len(os.listdir("/proc/self/fd")), children.read_text()
    for _ in range(counts(20, 50, 100)):
        assert child.run_apart(lambda: (print("seen"), os.write(1, b"seen")), SECONDS) == (None, 4)
        assert child.run_apart(lambda: sys.exit(3), SECONDS) is None
    assert len(os.listdir("/proc/self/fd")) == handles
    assert capfd.readouterr() == ("", "")
    assert children.read_text() == others


def test_a_trial_that_hangs_is_ended():
    assert child.run_apart(lambda: [None for _ in iter(int, 1)], 0.3) is None


def test_the_parent_keeps_its_names_its_seed_and_its_tensors():
    program, error = failing(
        "tp, n = 2, 8\nw = torch.ones(8, 4)[: n // tp]", "total = []", "w.zero_()\nw.view(n, 4)"
    )
    torch.manual_seed(5)
    state, names = torch.get_rng_state(), dict(program.names)
    repair(program, error, SECONDS)
    assert program.names == names
    assert torch.equal(torch.get_rng_state(), state)


ON_SHAPES = "tried on shapes alone: "


@pytest.mark.parametrize(("cells", "edit"), [
    (["tp, n = 4, 8\nw, x = torch.randn(32, 24), torch.ones(5, 24)",
      "q = (x @ w.chunk(tp)[0].T).view(5, n, 4)"],
     "+ q = (x @ w.chunk(tp)[0].T).view(5, n // tp, 4)"),
    ([ATTENTION, "tp = 4", "attention = Attention(tp)", "y = attention(torch.randn(2, 5, 24))"],
     "+ return self.wq(x).view(2, 5, self.n_heads // tp, 4)"),
])  # fmt: skip
def test_where_a_fork_is_not_safe_shapes_alone_are_tried(cells, edit, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    found = repaired(*cells, hostile=Hostile(), config={"a": Hostile()})
    assert edit in found.edit, str(found)
    assert found.proof == ("runs; not proved: shapes only",)
    assert found.rivals[-1] == f"{ON_SHAPES}CUDA is in use, and a fork cannot use it"
    assert found.live is not None
    assert found.live.operands


def test_beside_a_thread_of_the_users_nothing_outside_changes(tmp_path):
    running = threading.Event()
    # The function is a cell's, so the thread is no library's.
    cells = ["def wait_here():\n    running.wait()", "w = torch.ones(3, 4)"]
    last = "h = torch.ones(2, 4) @ w\nopen(place + '/new', 'w').close()"
    space = {"running": running}
    exec(compile(cells[0], "<a cell>", "exec"), space)
    thread = threading.Thread(target=space["wait_here"])
    thread.start()
    try:
        found = repaired(*cells, last, place=str(tmp_path), running=running)
    finally:
        running.set()
        thread.join()
    assert "+ h = torch.ones(2, 4) @ w.T" in found.edit, str(found)
    assert found.rivals[-1].startswith(f"{ON_SHAPES}wait_here runs in a thread of its own")
    assert list(tmp_path.iterdir()) == []


class HostileTensor(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise SystemExit("__torch_function__ was called")


def test_nothing_of_the_users_is_called_while_facts_are_read():
    kind = HostileTensor._make_subclass(HostileTensor, torch.ones(2, 2))
    found = repaired(
        "w = torch.ones(3, 4)",
        "y = torch.ones(2, 4) @ w",
        hostile=Hostile(),
        config={"a": Hostile()},
        kind=kind,
    )
    assert "+ y = torch.ones(2, 4) @ w.T" in found.edit


# -- where code can stand --------------------------------------------------------------------------

PLACES = tomllib.loads(Path(__file__).with_name("edit_places.toml").read_text("utf-8"))


@pytest.mark.parametrize("place", PLACES)
def test_the_edit_is_found_wherever_the_line_stands(place):
    found = repaired(*PLACES[place]["cells"])
    added = " ".join(line for line in found.edit if line.startswith("+ "))
    assert all(edit in added for edit in PLACES[place]["edits"]), str(found)
    assert found.verdict == "sharding"
    assert found.proof[0].startswith(("proved: equals one process", "runs; "))


def test_each_rank_takes_its_own_part_in_the_proof():
    cells = "tp = 4\nwo = torch.randn(24, 32).chunk(tp, 1)[0]\nh = torch.randn(5, 32)"
    found = repaired(cells, "y = h @ wo.T")
    assert found.edit[-1] == "+ y = h.chunk(tp, 1)[0] @ wo.T"
    assert found.proof[0].endswith("on 4 ranks: the ranks add up to it")
    squared = repaired(cells, "y = h @ wo.T\nout = {'squared': y * y}")  # squares of summands do not add up
    assert squared.what.startswith("no edit of this line is right: with h.chunk(tp, 1)[0] it runs, but")


def test_a_failure_in_an_imported_file_gets_the_diff_of_that_file(tmp_path, monkeypatch):
    (tmp_path / "attention_file.py").write_text(
        f"from __future__ import annotations\nimport torch.nn as nn\n{ATTENTION}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    found = repaired(
        "from attention_file import Attention", "tp = 4", "y = Attention(tp)(torch.randn(2, 5, 24))"
    )
    assert "+ return self.wq(x).view(2, 5, self.n_heads // tp, 4)" in found.edit, str(found)
    assert found.proof[0].startswith("proved: equals one process, largest difference")
    assert found.live is not None
    assert "attention_file.py" in found.live.place


# -- what is claimed -------------------------------------------------------------------------------


def test_eight_kv_heads_over_sixteen_ranks_have_no_edit():
    found = repaired(
        "n_heads, n_kv_heads, dim, seq, tp = 32, 8, 4096, 8192, 16\nhead_dim = dim // n_heads",
        'wk = torch.empty(n_kv_heads * head_dim, dim, device="meta")',
        'x = torch.empty(1, seq, dim, device="meta")',
        "k = (x @ wk.chunk(tp)[0].T).view(1, seq, -1, head_dim)",
    )
    assert found.edit == ()
    assert found.what == (
        "tp = 16 does not divide 8 KV heads: a rank would have a part of a KV head, "
        "so no edit of this line is right"
    )
    assert found.source == ("check: LP104 error  tp=16 does not divide n_kv_heads=8 (your model)",)


def test_an_index_past_a_part_names_the_whole_of_an_earlier_cell():
    sizes = "vocab, tp = 1000, 4\nlogits, targets = torch.randn(6, vocab // tp), torch.arange(6) * 160"
    answer = repaired(sizes, "loss = torch.nn.functional.cross_entropy(logits, targets)")
    parts = "if these are one of tp = 4 equal parts of vocab = 1000, rank 3 has it"
    assert (answer.what, answer.edit) == (f"index 800 of 250: {parts}", ())


def test_no_cut_is_cleared_where_an_earlier_cell_made_one():
    """A cut that is written as a number fails with the degree 1 as well."""
    found = repaired(
        "wq = torch.randn(32, 24)\npart = wq[:8]", "q = (torch.ones(5, 24) @ part.T).view(5, 8, 4)"
    )
    assert found.verdict != "not_sharding"
    assert not any(line.startswith("proved") for line in found.proof)


def test_two_edits_that_nothing_separates_are_both_shown():
    found = repaired("a, b = torch.ones(4, 3), torch.ones(4, 3)", "c = a @ b")
    assert found.what == "Not a sharding problem; undecided: the line runs with a.T or b.T"
    assert found.edit == ("- c = a @ b", "+ c = a.T @ b", "- c = a @ b", "+ c = a @ b.T")
    assert all(line.startswith("runs; not proved: undecided") for line in found.proof)


@pytest.mark.parametrize("more", ["(calls[0] == 1)", "calls[0]"], ids=["none", "another"])
def test_an_error_that_does_not_come_again_has_no_answer(more):
    program, error = failing("calls = [0]", f"calls[0] += 1\nx = torch.ones(4).view(2, 2 + {more})")
    program.names["calls"] = [5]
    found = repair(program, error, SECONDS)
    assert found.edit == ()
    assert any(text.startswith("no edit was tried: run again") for text in found.rivals)


def test_a_cut_with_other_numbers_is_not_the_answer():
    found = repaired(
        "H, K, d, tp = 16, 4, 8, 4\nwqkv = torch.randn((H + 2 * K) * d, 128)",
        "qkv = torch.ones(5, 128) @ wqkv.chunk(tp)[1].T\nq, k, v = qkv.split([H * d, K * d, K * d], -1)",
    )
    assert found.edit == ()
    assert found.verdict == "sharding"
    assert found.what.startswith("no edit of this line is right: with H // tp and K // tp it runs, but")


def test_what_is_right_on_rank_0_alone_is_no_proof():
    whole = torch.arange(8.0)
    part, other = whole[:4], whole[:4] + 1
    # Code that takes part 0 on every rank has it on each; ranks that differ must each have their own.
    assert compare_ranks([whole], [[part], [part]], 2).state == PROVED
    assert compare_ranks([whole], [[part], [other]], 2).state == DIFFERS
    assert compare_ranks([whole], [[whole / 0 * 0]] * 2, 2).state == DIFFERS  # not a number


def test_an_object_of_an_earlier_cell_is_made_anew():
    cache = """class Cache:
    def __init__(self, n_kv):
        self.k, self.v = torch.zeros(2, 9, n_kv, 4), torch.zeros(2, 9, n_kv, 4)
    def put(self, k, v):
        self.k[:, :5] = k
        self.v[:, :5] = v"""
    cells = ["tp, n_kv = 2, 8\nwk = torch.randn(n_kv * 4, 6).chunk(tp)[0]", "cache = Cache(n_kv)"]
    last = "k = (torch.ones(2, 5, 6) @ wk.T).unflatten(-1, (-1, 4))\ncache.put(k, k)"
    found = repaired(cache, "cache = Cache()", *cells, last)
    assert "n_kv // tp" in " ".join(found.edit), str(found)


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [("n", "n // tp", "y = n // tp + x / (n // tp)"), ("x", "x.T", "y = n + x.T / n")],
)
def test_brackets_stand_where_precedence_needs_them(old, new, line):
    source = "y = n + x / n"
    spans = tuple((1, at.start(), 1, at.end()) for at in re.finditer(old, source))
    edit = Edit("", spans, old, new, "size", None, 1.0, new)
    assert with_edits(source, [edit]) == line


def test_an_edit_of_another_axis_keeps_its_degree():
    edit = Edit("", ((1, 4, 1, 5),), "n", "n // cp", "size", Degree("cp", 2, "cp"), 1.0, "n // _deg_")
    tree = Editor([edit], Degree("tp", 8, "tp")).visit(ast.parse("y = n"))
    assert ast.unparse(tree) == "y = n // 2 if True else n"


# -- functions and scripts -------------------------------------------------------------------------


def test_debug_takes_a_function_an_error_and_nothing_else():
    tp, w = 4, torch.randn(32, 24)

    def attempt():
        return (torch.ones(3, 24) @ w.chunk(tp)[0].T).view(3, 8, 4)

    found = lp.debug(attempt, seconds=SECONDS)
    assert any("view(3, 8 // tp, 4)" in line for line in found.edit), str(found)
    assert lp.debug(lambda: None).reason == "the attempt runs; wrong numbers are compared by lp.compare"
    with pytest.raises(lp.LlamaparError, match="attempt is no function and no error"):
        lp.debug("x @ w")  # type: ignore[arg-type]
    unknown = lp.debug(ValueError("never raised"))
    assert unknown.rivals == ("no edit was tried: no script's top level leads to this error",)


def test_the_command_repairs_a_script(tmp_path):
    (tmp_path / "train.py").write_text(
        "import torch\ntp = 4\n\ndef main():\n    w = torch.ones(32, 24)\n"
        "    print((torch.ones(3, 24) @ w.chunk(tp)[0].T).view(3, 8, 4).sum())\n\n"
        "if __name__ == '__main__':\n    main()\n"
    )
    command = [sys.executable, "-m", "llamapar", "debug", str(tmp_path / "train.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert done.stdout == ""
    assert "+ print((torch.ones(3, 24) @ w.chunk(tp)[0].T).view(3, 8 // tp, 4).sum())" in done.stderr
    assert "proved: equals one process" in done.stderr

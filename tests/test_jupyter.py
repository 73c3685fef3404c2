"""The extension: what a failed cell says beside its traceback, and `%explain`."""

import sys
from collections.abc import Callable
from typing import Any

import pytest
from IPython.core.completer import provisionalcompleter
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from traitlets.config import Config

import llamapar
from llamapar import jupyter as magics

HALF_A_HEAD = "shape '[1, 4, -1, 128]' is invalid for input of size 256"


@pytest.fixture
def ip(tmp_path, monkeypatch):
    """A shell with the extension, without history or a profile of the person who runs the tests."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    for name in ("last_value", "last_type", "last_traceback", "last_exc"):
        monkeypatch.delattr(sys, name, raising=False)
    monkeypatch.setattr("llamapar.diagnosis.newest._newest", [])
    hook = sys.displayhook
    quiet = Config({"HistoryManager": {"enabled": False}, "InteractiveShell": {"colors": "nocolor"}})
    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance(config=quiet)
    shell.run_line_magic("load_ext", "llamapar")
    yield shell
    shell.restore_sys_module_state()
    InteractiveShell.clear_instance()
    sys.displayhook = hook


@pytest.fixture
def cell(ip):
    """Runs a cell: what it wrote, the traceback included, and what it displayed."""

    def run(source):
        with capture_output() as out:
            ip.run_cell(source, store_history=True)
        return out.stdout + out.stderr, out.outputs

    return run


Cell = Callable[[str], tuple[str, list[Any]]]


def text_of(outputs):
    return "\n".join(out.data["text/plain"] for out in outputs)


# -- Shift-Tab and Tab ---------------------------------------------------------------------------


def test_shift_tab_shows_what_it_does_and_then_how_it_is_called(ip):
    llamapar._register_display()  # as the import does where IPython runs
    ip.push({"lp": llamapar})
    lines = ip.object_inspect_mime("lp.check")["text/plain"].splitlines()
    assert lines[0].rstrip() == "Docstring:"
    assert lines[1].startswith(
        "Judge `layout` for `model`. A layout that cannot work gives findings; only bad"
    )
    assert lines[lines.index("lp.check(") - 1].rstrip() == "Signature:"
    assert {"    tp: 'int' = 1,", "    gpus: 'int | None' = None,"} <= set(lines)
    assert [line.split()[0] for line in lines[-2:]] == ["File:", "Type:"]
    assert ip.object_inspect_mime("lp.Layout")["text/plain"].startswith("Docstring:")


def test_what_is_not_ours_is_shown_as_ever(ip):
    before = ip.object_inspect_mime("print")["text/plain"]
    llamapar._register_display()
    ip.push({"lp": llamapar})
    assert ip.object_inspect_mime("print")["text/plain"] == before
    assert before.startswith("Signature:")
    assert "Source:" in ip.object_inspect_mime("lp.heads", detail_level=1)["text/plain"]  # lp.heads??
    assert "1.0" in ip.object_inspect_mime("lp.__version__")["text/plain"]


@pytest.mark.parametrize(
    ("code", "options"),
    [
        ("lp.run('mlp', 'tiny', se", ["seed=", "seq_len=", "sequence_parallel="]),
        ("lp.check('tiny', gp", ["gpu=", "gpus=", "gpus_per_node="]),
        ("lp.explain('text', n_", ["n_heads=", "n_kv_heads=", "n_layers="]),
        ("lp.explorer(glo", ["global_batch="]),
    ],
)
def test_tab_completes_the_names_of_options(ip, code, options):
    ip.push({"lp": llamapar})
    with provisionalcompleter():
        offered = {found.text for found in ip.Completer.completions(code, len(code))}
    assert sorted(name for name in offered if name.endswith("=")) == options


# -- the hook ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("lp.run('llama', 'llama3.1-405b', {'tp': 8})", "LayoutError: 8 ranks would take about"),
        ("lp.run('mlp', 'tiny', {'tp': 2}, engine='torchrun')", "torchrun did not start this process"),
    ],
)
def test_an_error_of_the_library_stands_alone(cell, ip, code, told, monkeypatch):
    monkeypatch.setenv("RANK", "0")  # alone it does not make this process a rank of torchrun
    ip.push({"lp": llamapar})
    wrote, shown = cell(code)
    assert told in wrote
    assert shown == []


def test_the_facts_stand_under_the_traceback(cell):
    wrote, shown = cell("import torch\nk = torch.zeros(1, 4, 64)\nk.view(1, 4, -1, 128)")
    assert "Traceback" in wrote
    assert f"RuntimeError: {HALF_A_HEAD}" in wrote
    assert text_of(shown).splitlines() == [
        "Not a sharding problem: one process, and nothing that the failing code names is cut",
        "where  line 3: k.view(1, 4, -1, 128)",
        "       one process, torch.distributed not initialised",
        "       name  on this rank",
        "       k     [1, 4, 64] float32",
        "next   %debug_shapes finds the edit: it tries some in copies of the kernel",
    ]
    cell = '<td style="text-align:left">'
    assert f"{cell}<code>k</code></td>{cell}[1, 4, 64] float32</td>" in shown[0].data["text/html"]


def test_the_frame_is_the_users_innermost_and_its_degrees_are_used(cell):
    source = """
import torch
def attend(x, tp):
    wk = torch.nn.Parameter(torch.zeros(64, 32))
    return (x @ wk.T).view(1, 4, -1, 128)
outer = torch.zeros(3)
attend(torch.zeros(1, 4, 32), 16)
"""
    _, shown = cell(source)
    text = text_of(shown)
    assert "8 KV heads over tp=16" in text
    assert "for example" not in text
    lines = text.splitlines()
    assert lines[1:6] == [
        "where  attend, line 4: (x @ wk.T).view(1, 4, -1, 128)",
        "       one process, torch.distributed not initialised",
        "       name  on this rank",
        "       x     [1, 4, 32] float32",
        "       wk    [64, 32] float32",
    ]
    assert "the failing frame: tp=16" in lines[-1]
    assert "outer" not in text
    assert "2 KV heads over tp=4" in text_of(cell("%explain --tp 4")[1])


def test_the_model_and_layout_of_the_frame_settle_what_words_leave_open(cell):
    setup = "import llamapar as lp, torch\n"
    body = "def mm(a, b{}):\n    return a @ b\nmm(torch.zeros(2, 4096), torch.zeros(8192, 500){})"
    alone = text_of(cell(setup + body.format("", ""))[1])
    assert alone.startswith("Not a sharding problem: one process")
    _, shown = cell(setup + body.format(", layout", ", lp.Layout(tp=2)"))
    assert text_of(shown).startswith(
        "Possibly a sharding problem: 4096 is 1/2 of 8192: a rank's slice (tp=2)"
    )


def test_facts_stand_where_no_cut_is_to_blame(cell):
    for source in ("w.transpose(0, 1).view(-1)", "w @ w.long().T", "w.squeeze(5)", "torch.cat([w, 1])"):
        _, shown = cell(f"import torch\nw = torch.zeros(2, 3)\n{source}")
        assert "       w     [2, 3] float32" in text_of(shown).splitlines(), source
        assert text_of(shown).startswith("Not a sharding problem: one process, and nothing")


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("nowhere", "NameError"),
        ("{}['tp']", "KeyError"),
        ("int('x')", "ValueError"),
        ("1 / 0", "ZeroDivisionError"),
        ("assert False", "AssertionError"),
        ("[1, 2].index(8)", "ValueError"),
        ("[1, 2][8]", "IndexError"),
        ("a, b, c = 1, 2", "ValueError"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("raise RuntimeError('NCCL watchdog timeout on rank 3 of 8')", "RuntimeError"),
        ("raise RuntimeError('CUDA out of memory. Tried to allocate 2.00 GiB')", "RuntimeError"),
        ("raise NameError('n_kv_heads (8) must be divisible by tp (16)')", "NameError"),
        ("1 +", "SyntaxError"),
        ("%nothing_like_this", "UsageError"),
    ],
)
@pytest.mark.parametrize("known", [False, True], ids=["bare", "with a broken layout at hand"])
def test_other_errors_are_left_as_they_are(cell, source, error, known):
    if known and error not in ("SyntaxError", "UsageError"):
        source = f"def f(model, layout, tp=16, n_kv_heads=8):\n    {source}\n"
        source += "import llamapar as lp\nf(lp.model('llama3-70b'), lp.Layout(tp=16))"
    wrote, shown = cell(source)
    assert error in wrote
    assert shown == []


@pytest.mark.parametrize(
    ("failing", "tp"),
    [("import numpy; numpy.zeros(6).reshape(4, 3)", 16), ("a, b, c = 1, 2", 3)],
    ids=["the words mean another category", "the words are weak"],
)
def test_a_broken_layout_is_not_blamed_for_what_the_words_do_not_say(cell, failing, tp):
    source = f"import llamapar as lp\ndef f(model, layout):\n    {failing}\n"
    wrote, shown = cell(f"{source}f(lp.model('llama3-70b'), lp.Layout(tp={tp}))")
    assert "ValueError" in wrote
    assert shown == []


def test_a_division_by_zero_speaks_only_of_heads(cell):
    _, shown = cell("n_kv_heads, tp = 8, 16\n64 // (n_kv_heads // tp)")
    assert "8 KV heads over tp=16 leave 8//16 = 0 on a rank" in text_of(shown)
    assert cell("n_kv_heads, tp = 8, 16\nspeed = tp / 0")[1] == []


def test_a_cell_that_works_says_nothing(cell):
    assert cell("1 + 1 == 2 or print('no')")[0].strip() in ("", "Out[1]: True")
    assert cell("pass") == ("", [])


@pytest.mark.parametrize("problem", [ValueError, RecursionError, KeyboardInterrupt])
@pytest.mark.parametrize("where", ["explain", "display"])
def test_a_fault_of_the_hook_never_escapes(cell, monkeypatch, where, problem):
    def broken(*args, **more):
        called.append(where)
        raise problem("of the hook")

    called = []
    monkeypatch.setattr(magics, where, broken)
    wrote, shown = cell(f"raise RuntimeError({HALF_A_HEAD!r})")
    assert called == [where]
    assert f"RuntimeError: {HALF_A_HEAD}" in wrote
    assert "of the hook" not in wrote
    assert shown == []


def test_a_result_of_another_kind_is_no_failure(ip):
    ours = ip.magics_manager.registry["LlamaparMagics"]
    ours.after(None)
    ours.after(object())


# -- %explain ------------------------------------------------------------------------------------


def test_explain_the_last_error(cell):
    assert cell("%explain")[0].startswith("UsageError: no error so far: %explain [--tp N]")
    cell("import numpy\nw = numpy.zeros(6)\nw.reshape(4, 3)")
    _, shown = cell("%explain")
    assert text_of(shown).startswith("Not a sharding problem: one process, and nothing")
    assert "       w     [6] float64" in text_of(shown[:1]).splitlines()
    assert cell("%explain --tp none")[0].startswith("UsageError: tp='none': a whole number is needed")
    again = cell("%explain --tp 2")[1]  # the slip above is not the last error
    assert text_of(again).startswith("A sharding problem: ")


@pytest.mark.parametrize(
    "source",
    [
        f"%explain {HALF_A_HEAD} --tp 16",
        f"%explain --tp=16 {HALF_A_HEAD}",
        f"%explain --tp 16 --model llama3-70b {HALF_A_HEAD} --framework megatron --cp 2",
        f"%%explain --tp 16\n\nRuntimeError: {HALF_A_HEAD}\n",
    ],
)
def test_explain_a_pasted_text(cell, source):
    _, shown = cell(source)
    words, *pictures = shown
    assert "half a head of 128: 8 KV heads over tp=16" in text_of([words]).splitlines()[0]
    assert set(words.data) == {"text/plain", "text/html"}
    assert len(pictures) == ("--model" in source)  # A map of heads needs the number of query heads.
    for picture in pictures:
        assert set(picture.data) == {"text/plain", "text/html"}
        assert "data:image/svg+xml" in picture.data["text/html"]
        assert "over tp=16" in text_of([picture]).splitlines()[0]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("--tp 0k x", "tp=0: tp must be a whole number from 1"),
        ("--tp 2**4 x", "tp='2**4': a whole number is needed"),
        ("--tp", "--tp is no option, or lacks its value: %explain"),
        ("--gpus 4 x", "--gpus is no option, or lacks its value: %explain"),
        ("x --framework nonesuch", "framework='nonesuch'"),
    ],
)
def test_wrong_options_are_told_without_a_traceback(cell, line, complaint):
    wrote, shown = cell(f"%explain {line}")
    assert wrote.startswith(f"UsageError: {complaint}")
    assert "Traceback" not in wrote
    assert shown == []


def test_nothing_of_a_text_is_evaluated(cell, ip):
    cell("seen = []\none = 1")
    text = f"{{seen.append(one)}} $seen {HALF_A_HEAD} {{seen.append(one)}}"
    assert "half a head" in text_of(cell(f"%explain {text}")[1])
    assert "half a head" in text_of(cell(f"%%explain --tp 16\n{text}")[1])
    cell("%explain --tp {seen.append(3)} x")
    assert ip.user_ns["seen"] == []


def test_markup_and_control_characters_are_shown_as_they_are(cell):
    (out,) = cell(f"%%explain\n{HALF_A_HEAD} <img src=x onerror=alert()> \x1b \x07")[1]
    assert "&lt;img" in out.data["text/html"]
    assert "<img" not in out.data["text/html"]
    assert "<img src=x onerror=alert()>" in out.data["text/plain"]
    assert not {"\x1b", "\x07"} & set(out.data["text/plain"])
    (out,) = cell("import torch\nw = {'<b>': torch.zeros(6)}\nw['<b>'].view(4, 3)")[1]  # of a frame
    assert ">w[&#x27;&lt;b&gt;&#x27;]</code></td>" in out.data["text/html"]
    assert "       w['<b>']  [6] float32" in out.data["text/plain"].splitlines()


RUN = "import llamapar as lp; lp.run('attention', 'tiny', {'tp': 16}, force=True, engine='local')"


def test_explain_is_about_the_newest_failure_of_any_kind(cell):
    failures = {
        "import torch\ntorch.zeros(6).view(4)": "where  line 2: torch.zeros(6).view(4)",
        "%%ranks tp=2\ntorch.zeros(2, 3).view(4)": "where  line 1: torch.zeros(2, 3).view(4)",
        "1 / 0": "where  line 1: 1 / 0",
        RUN: "A sharding problem: a rank holds 4 columns, half a head of 8",
        f"assert lp.{RUN.partition('lp.')[2]}.ok": "where  RuntimeError: shape '[2, 64, -1, 8]'",
    }
    for source, told in [*failures.items(), *reversed(failures.items())]:
        cell(source)
        cell("1 + 1")
        assert told in text_of(cell("%explain")[1]), source


# -- %clinic -------------------------------------------------------------------------------------


def test_the_clinic_opens_on_the_last_error(cell):
    assert cell("%clinic")[0].startswith("UsageError: no error so far: %explain [--tp N]")
    cell("import torch\nk = torch.zeros(1, 4, 64)\nk.view(1, 4, -1, 128)")
    (panel,) = cell("%clinic")[1]
    assert "       k     [1, 4, 64] float32" in text_of([panel]).splitlines()
    assert "application/vnd.jupyter.widget-view+json" in panel.data
    assert text_of(cell("%clinic --tp 16")[1]).startswith("known: tp=16 (yours)")
    (pasted,) = cell(f"%clinic --model llama3-8b {HALF_A_HEAD}")[1]
    assert text_of([pasted]).startswith("known: model=llama3-8b (yours)")
    assert cell("%clinic --tp none")[0].startswith("UsageError: tp='none': a whole number is needed")


# -- loading -------------------------------------------------------------------------------------


def hooks(ip):
    return [f for f in ip.events.callbacks["post_run_cell"] if "LlamaparMagics" in f.__qualname__]


def test_loading_twice_registers_once_and_unloading_removes(ip, cell):
    llamapar.load_ipython_extension(ip)
    cell("%load_ext llamapar")
    assert len(hooks(ip)) == 1
    assert len(cell(f"raise ValueError({HALF_A_HEAD!r})")[1]) == 1
    cell("%unload_ext llamapar")
    llamapar.unload_ipython_extension(ip)
    assert hooks(ip) == []
    assert ip.find_line_magic("explain") is None
    assert ip.find_cell_magic("explain") is None
    wrote, shown = cell(f"raise ValueError({HALF_A_HEAD!r})")
    assert f"ValueError: {HALF_A_HEAD}" in wrote
    assert shown == []
    cell("import llamapar; llamapar.watch_errors()")  # a script's line means the same here
    assert len(hooks(ip)) == 1


# -- %debug_shapes ---------------------------------------------------------------------------------


def test_debug_shapes_shows_the_proved_edit_and_runs_no_cell_again(ip, cell):
    cell("import torch\nran = []")
    cell("tp, heads = 4, 8\nran.append(1)\nw = torch.ones(32, 6)")
    out, shown = cell("ran.append(2)\n(torch.ones(3, 6) @ w.chunk(tp)[0].T).view(3, heads, 4)")
    assert "next   %debug_shapes finds the edit: it tries some in copies of the kernel" in text_of(shown)
    assert "pass --" not in text_of(shown)
    out, shown = cell("%debug_shapes 20")
    assert "+ (torch.ones(3, 6) @ w.chunk(tp)[0].T).view(3, heads // tp, 4)" in text_of(shown)
    assert "proved: equals one process, largest difference 0, on 4 ranks" in text_of(shown)
    assert out == ""
    assert ip.user_ns["ran"] == [1, 2]


def test_debug_shapes_is_about_the_newest_failure(cell):
    cell("import torch\ntorch.ones(2, 3) @ torch.ones(2, 3)")
    cell("w = torch.ones(5, 4)")
    cell("h = torch.ones(2, 4) @ w")
    assert "+ h = torch.ones(2, 4) @ w.T" in text_of(cell("%debug_shapes 20")[1])


def test_debug_shapes_of_nothing_is_refused_and_of_ranks_says_why(cell):
    assert "UsageError: no cell has failed" in cell("%debug_shapes")[0]
    cell("torch_is_missing")
    assert "UsageError" in cell("%debug_shapes many")[0]
    cell("%%ranks tp=2\nmissing")
    assert "NameError: name 'missing'" in text_of(cell("%debug_shapes")[1])


PART = """tp, heads, w = 4, 8, torch.ones(32, 6)
h = torch.ones(3, 6) @ w.chunk(tp)[0].T"""
ASKED = "h.view(3, heads, 4)"
MENDED = "+ h.view(3, heads // tp, 4)"


@pytest.mark.parametrize(
    "cells",
    [
        ["nowhere", "torch.ones(2) @ torch.ones(3)", PART, ASKED],
        [PART, ASKED, ASKED],
        [PART, f"for _ in (1,):\n    q = {ASKED}", "for _ in (1,):\n    q = h * 1", ASKED],
        [PART, ASKED, "g = h + 1"],
        [PART, ASKED, "x = = 3"],
        [PART, ASKED, "raise KeyboardInterrupt"],
        [PART, ASKED, "%debug_shapes many", "%nothing"],
        [PART, f"try:\n    {ASKED}\nexcept RuntimeError as e:\n    raise ValueError('layer 3') from e"],
        [PART, f"%%time\n{ASKED}"],
        ["%unload_ext llamapar", PART, ASKED, "%load_ext llamapar"],
    ],
    ids=["older", "twice", "mended", "success", "syntax", "interrupt", "usage", "cause", "timed", "late"],
)
def test_the_failure_that_is_meant_gets_its_edit(cell, cells):
    cell("import torch")
    for source in cells:
        cell(source)
    wrote, shown = cell("%debug_shapes 20")
    lines = text_of(shown).splitlines()
    assert MENDED in lines
    assert f": {ASKED}" in lines[1]
    assert wrote == ""
    assert text_of(cell("%explain")[1]).count("next   %debug_shapes") == 1


@pytest.mark.parametrize("source", ["wqq @ 3", "tp = 4\n1 / 0", "{}['tp']", "import no_such_module"])
def test_where_nothing_can_be_edited_the_words_are_few_and_a_notebooks(cell, source):
    cell(source)
    told = text_of(cell("%explain")[1]).splitlines()
    assert told[0] == "Not known: the words of the error decide nothing"
    tried = text_of(cell("%debug_shapes 20")[1]).splitlines()
    assert tried[0] == "Not a sharding problem: one process fails as well"
    assert tried[-1] == "else   no edit was tried: nothing on this line can be cut, gathered or exchanged"
    assert not [line for line in (*told, *tried) if "llamapar " in line or "SCRIPT" in line]


def test_what_time_runs_on_its_line_is_shown_with_the_line_that_is_there(cell):
    cell("import torch")
    cell("%time torch.ones(2, 3).view(4)")
    told = text_of(cell("%explain")[1])
    assert "where  line 1: get_ipython().run_line_magic('time', 'torch.ones(2, 3).view(4)')" in told


# -- the card ---------------------------------------------------------------------------------------


@pytest.fixture
def press(ip, cell):
    """Presses a button of the newest card, as a page does; what the card then shows, its HTML last."""
    ip.kernel = object()  # type: ignore[attr-defined]
    cell("import torch")

    def pressed(card=None, **content):
        ours = ip.magics_manager.registry["LlamaparMagics"]
        card = card or ours.card
        before = card.payload["answer"]
        with capture_output() as out:
            card._receive(card, content, [])
        assert (out.stdout, out.stderr, out.outputs) == ("", "", [])
        assert card.payload["answer"] == before + 1
        return dict(card.payload)

    return pressed


def test_a_press_finds_the_edit_and_a_saved_card_is_its_html(ip, cell, press):
    cell(PART)
    (shown,) = cell(ASKED)[1]
    assert shown.metadata == {"llamapar": "card"}
    assert {"text/plain", "text/html", "application/vnd.jupyter.widget-view+json"} == shown.data.keys()
    card = ip.magics_manager.registry["LlamaparMagics"].card
    assert [label for label, _ in card.payload["asks"]] == ["find the edit"]
    assert "%debug_shapes" in shown.data["text/html"]
    assert "%debug_shapes" not in card.payload["html"]
    for _ in range(2):
        found = press(seconds=20)
        assert found["edits"] == [[ASKED, MENDED[2:]]]
        assert (found["asks"], found["said"]) == ([], "")
        assert "proved: equals one process" in found["html"]


def test_what_cannot_be_answered_now_is_said(ip, cell, press):
    cell(PART)
    cell(ASKED)
    ours = ip.magics_manager.registry["LlamaparMagics"]
    old = ours.card
    assert press(seconds="x")["said"].startswith("seconds='x': seconds must be a number from 0.5 to 600")
    assert press()["said"].startswith("seconds=None: seconds must be a number")
    ours.before(None)
    assert press(seconds=3)["said"] == "a cell is running: press again when it has ended"
    cell("nowhere")
    assert press(seconds=3)["said"].startswith("another cell has failed since")
    cell(ASKED)
    assert press(old, seconds=3)["said"].startswith("another cell has failed since")
    cell("del w, h")
    told = press(seconds=3)
    assert "no edit was tried: run again, the line does not fail as it did: NameError" in told["html"]
    assert told["edits"] == []
    cell("a, b = torch.ones(4, 3), torch.ones(4, 3)")
    cell("a @ b")
    told = press(seconds=20)
    assert ("the line runs with a.T or b.T" in told["html"], told["edits"]) == (True, [])


def test_the_diff_of_an_imported_file_names_it_and_is_put_nowhere(cell, press, tmp_path, monkeypatch):
    (tmp_path / "heads_of_mine.py").write_text("def split(h, heads, tp):\n    return h.view(3, heads, 4)\n")
    monkeypatch.syspath_prepend(tmp_path)
    cell(f"from heads_of_mine import split\n{PART}")
    cell("split(h, heads, tp)")
    found = press(seconds=20)
    text = text_of(cell("%debug_shapes 20")[1]).splitlines()
    at = text.index("in heads_of_mine.py:")
    assert text[at + 1 : at + 3] == ["- return h.view(3, heads, 4)", "+ return h.view(3, heads // tp, 4)"]
    assert (found["edits"], "in heads_of_mine.py:" in found["html"]) == ([], True)

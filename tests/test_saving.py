"""jupyter/saving.py: what stands as it was stored, what is saved anew, and that a fault loses nothing."""

import asyncio
import copy
import json
import logging
import runpy
from pathlib import Path
from typing import Any

import nbformat
import pytest
from ipykernel.ipkernel import IPythonKernel
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

import llamapar as lp
from llamapar.panels.page import A_PICTURE

PROJECT = Path(__file__).resolve().parent.parent
saving = runpy.run_path(str(PROJECT / "jupyter" / "saving.py"), run_name="saving")
PLOTLY, WIDGET, WIDGET_STATE = saving["PLOTLY"], saving["WIDGET"], saving["WIDGET_STATE"]
KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
WIDGET_VIEW = {"model_id": "9c1f", "version_major": 2, "version_minor": 1}
FIGURE = {"data": [{"type": "bar", "x": [1.0, 2e-7], "y": [3, 4]}], "layout": {"height": 200}}
OTHER_FIGURE = {"data": [], "layout": {}}

Json = dict[str, Any]


def plain(value):
    """As it travels: JSON, in which JavaScript writes 1.0 as 1."""
    return json.loads(json.dumps(value).replace("1.0", "1"))


def displayed(metadata=None, **data):
    names = {
        "text": "text/plain",
        "png": "image/png",
        "html": "text/html",
        "plotly": PLOTLY,
        "svg": saving["SVG"],
        "widget": WIDGET,
    }
    return new_output("display_data", {names[k]: v for k, v in data.items()}, metadata=metadata or {})


def panel(text, plotly=FIGURE):
    figure = {} if plotly is None else {"plotly": plotly}
    return displayed({"llamapar": "panel"}, text=text, widget=WIDGET_VIEW, **figure)


def cell(*outputs, source="show()", count=3, tags=None):
    metadata = {"tags": tags} if tags else {}
    made = new_code_cell(source, id="one", execution_count=count, outputs=list(outputs), metadata=metadata)
    return plain(made)


def notebook(*cells, **metadata):
    described = {"kernelspec": KERNEL, "language_info": {"name": "python"}}
    return plain(new_notebook(cells=list(cells), metadata=described | metadata))


def saved(new, stored, unfinished=None):
    """What is saved of a notebook with the one cell `new` over one with the cell `stored`."""
    given = copy.deepcopy((new, stored))
    memory = {} if unfinished is None else unfinished
    (result,) = saving["saved"](notebook(new), notebook(stored), memory)["cells"]
    assert (new, stored) == given, "changed what it was given"
    return result


ERROR = ["LayoutError: no"]
TRACE = ["\x1b[31m----", "Cell In[3], line 1", "LayoutError: no"]
STANDS = {
    "a figure keeps its stored picture": (
        [displayed(text="two bars", plotly=FIGURE, png="drawn by this browser")],
        [displayed(text="two bars", plotly=FIGURE, png="baked")],
    ),
    "a panel keeps its stored picture": (
        [panel("all is well")],
        [displayed(text="all is well", png="baked")],
    ),
    "a panel without a figure keeps its stored picture": (
        [panel("no map to draw", None)],
        [displayed(text="no map to draw", png="baked")],
    ),
    "a panel without a figure keeps its text": ([panel("no model", None)], [displayed(text="no model")]),
    "an error stays cut to its last line": (
        [new_output("error", ename="LayoutError", evalue="no", traceback=TRACE)],
        [new_output("error", ename="LayoutError", evalue="no", traceback=ERROR)],
    ),
    "printed text in pieces, and in lines": (
        [new_output("stream", text="a\n"), new_output("stream", text="b\n")],
        [new_output("stream", text=["a\n", "b\n"])],
    ),
    "text and HTML in lines": (
        [displayed(text="a\nb", html="<b>\n</b>")],
        [displayed(text=["a\n", "b"], html=["<b>\n", "</b>"])],
    ),
    "a drawing, of which a PNG was stored besides": (
        [displayed(text="rank 1", svg="<svg>\n</svg>")],
        [displayed(text="rank 1", svg=["<svg>\n", "</svg>"], png="baked")],
    ),
    "no output": ([], []),
}


@pytest.mark.parametrize("what", STANDS)
def test_what_is_said_again_stands_as_it_was_stored(what):
    new, stored = STANDS[what]
    ran = cell(*new, count=12)
    ran["metadata"] = {"trusted": True, "execution": {"iopub.status.busy": "2026-01-01T00:00:00Z"}}
    old = cell(*stored, count=3)
    assert saved(ran, old) == old | {"metadata": {"trusted": True}}


CHANGED = {
    "a figure": (
        [displayed(text="two bars", plotly=OTHER_FIGURE, png="new")],
        [displayed(text="two bars", plotly=FIGURE, png="baked")],
    ),
    "a drawing": (
        [displayed(text="rank 1", svg="<svg>new</svg>")],
        [displayed(text="rank 1", svg="<svg>old</svg>", png="baked")],
    ),
    "a picture that no figure stands for": (
        [displayed(text="<Figure>", png="new")],
        [displayed(text="<Figure>", png="old")],
    ),
    "a picture that is no longer there": ([displayed(text="1")], [displayed(text="1", png="baked")]),
    "how large a picture is": (
        [displayed({"image/png": {"width": 9}}, text="", png="p")],
        [displayed(text="", png="p")],
    ),
    "the place of an error in a notebook with whole tracebacks": (
        [new_output("error", ename="LayoutError", evalue="no", traceback=TRACE)],
        [new_output("error", ename="LayoutError", evalue="no", traceback=["elsewhere", *TRACE])],
    ),
    "the stream": ([new_output("stream", name="stderr", text="a")], [new_output("stream", text="a")]),
    "another kind of output": ([displayed(text="a")], [new_output("stream", text="a")]),
    "one output more": ([displayed(text="a"), displayed(text="a")], [displayed(text="a")]),
    "somebody else's widget": (
        [displayed(text="Slider", widget=WIDGET_VIEW)],
        [displayed(text="Slider", widget=WIDGET_VIEW | {"model_id": "77"})],
    ),
    "somebody else's widget with a picture": (
        [displayed(text="Canvas", widget=WIDGET_VIEW, png="p")],
        [displayed(text="Canvas", png="p")],
    ),
}


@pytest.mark.parametrize("what", CHANGED)
@pytest.mark.parametrize("count", [3, 4])
def test_what_changed_is_saved_as_it_is(what, count):
    new, stored = CHANGED[what]
    ran = cell(*new, count=count)
    assert saved(ran, cell(*stored)) == ran


def test_a_changed_panel_is_saved_as_its_figure_and_text():
    for stored in (cell(displayed(text="before", png="baked")), cell(displayed(text="now"))):
        assert saved(cell(panel("now")), stored)["outputs"] == plain([displayed(text="now", plotly=FIGURE)])
    assert saved(cell(panel("now", None)), cell())["outputs"] == plain([displayed(text="now")])


def test_a_new_source_takes_nothing_from_the_stored_cell():
    stored = cell(displayed(text="1", plotly=FIGURE, png="baked"), tags=["nbval-ignore-output"])
    ran = cell(displayed(text="1", plotly=FIGURE), source="show_again()", tags=["nbval-ignore-output"])
    assert saved(ran, stored) == ran


def test_a_tagged_cell_keeps_its_stored_output_and_loses_the_trust_of_what_was_run():
    tags = ["nbval-ignore-output"]
    stored, ran = cell(displayed(html="2 GPUs"), tags=tags), cell(displayed(html="none"), count=9, tags=tags)
    ran["metadata"]["trusted"] = True
    assert saved(ran, stored) == stored
    cleared = cell(count=None, tags=tags)
    assert saved(cleared, stored) == cleared
    assert saved(ran, cell(count=None, tags=tags)) == ran
    changed = saved(cell(panel("now"), tags=tags), cell(displayed(text="then", png="baked"), tags=tags))
    assert changed["outputs"] == plain([displayed(text="now", plotly=FIGURE)])


def test_what_would_spoil_a_question_stays_hidden_in_the_file_and_nothing_else_does():
    """JupyterLab shows the output of a cell that is run, and forgets that it was hidden."""
    hidden = {"collapsed": True, "jupyter": {"outputs_hidden": True}}
    for tags, kept in ((["after-guess"], True), (["other"], False)):
        stored = cell(displayed(html="64 rows"), tags=tags)
        stored["metadata"] |= hidden
        ran = cell(displayed(html="64 rows"), tags=tags)
        assert (saved(ran, stored)["metadata"] == stored["metadata"]) is kept
        changed = cell(displayed(html="128 rows"), tags=tags)
        assert saved(changed, stored)["metadata"] == changed["metadata"]


def test_a_save_in_the_middle_of_a_run_does_not_lose_what_its_end_says_again():
    baked = cell(displayed(text="1", plotly=FIGURE, png="baked"))
    waiting, done = cell(count=None), cell(displayed(text="1", plotly=FIGURE), count=3)
    memory = {}
    assert saved(waiting, baked, memory) == waiting  # on disk now
    assert saved(waiting, waiting, memory) == waiting
    assert saved(done, waiting, memory) == baked


def test_a_cell_without_output_keeps_its_number_unless_it_is_new_or_cleared():
    assert saved(cell(count=8), cell(count=2))["execution_count"] == 2
    assert saved(cell(count=8), cell(count=None))["execution_count"] == 8
    assert saved(cell(count=None), cell(count=2))["execution_count"] is None


def test_kernel_and_language_stand_while_they_are_the_same():
    whole = {"name": "python", "version": "3.13.1", "pygments_lexer": "ipython3"}
    stored = notebook(custom=1)
    new = notebook(kernelspec=KERNEL | {"display_name": "Python (here)"}, language_info=whole, custom=2)
    result = saving["saved"](new, stored, {})["metadata"]
    assert result == stored["metadata"] | {"custom": 2}
    julia = {"kernelspec": {"name": "julia", "display_name": "Julia"}, "language_info": {"name": "julia"}}
    assert saving["saved"](notebook(**julia), stored, {})["metadata"] == julia
    bare = notebook()
    bare["metadata"] = {}
    assert saving["saved"](new, bare, {})["metadata"] == new["metadata"]
    assert saving["saved"](bare, stored, {})["metadata"] == {}


def test_the_state_of_panels_is_not_saved_and_that_of_other_widgets_is():
    ours = {"model_name": "AnyModel", "state": {"_anywidget_id": "llamapar.panels.explorer.Explorer"}}
    slider = {"model_name": "IntSliderModel", "state": {"value": 3}}

    def kept(**models):
        state = {WIDGET_STATE: {"version_major": 2, "version_minor": 0, "state": models}}
        return saving["saved"](notebook(widgets=state), notebook(), {})["metadata"]

    assert "widgets" not in kept(a=ours)
    assert kept(a=ours, b=slider)["widgets"][WIDGET_STATE]["state"] == {"b": slider}
    assert kept(b=slider)["widgets"][WIDGET_STATE]["state"] == {"b": slider}


# -- through the server's own contents manager ---------------------------------------------------


def manager(folder):
    return saving["Notebooks"](root_dir=str(folder))


def save(folder, content, name="a.ipynb"):
    model = {"type": "notebook", "format": "json", "content": content}
    asyncio.run(manager(folder).save(model, name))
    return (folder / name).read_text(encoding="utf-8")


def test_the_file_stays_the_same_byte_for_byte(tmp_path):
    stored = notebook(
        new_markdown_cell("# é", id="zero"),
        cell(displayed(text="a\nb", plotly={**FIGURE, "big": 2**60, "small": 1e-7}, png="aaaa\n")),
    )
    stored["cells"][1]["outputs"][0]["data"][PLOTLY]["data"][0]["x"][0] = 1.0  # Lab makes it 1
    (tmp_path / "a.ipynb").write_text(nbformat.writes(nbformat.from_dict(stored)) + "\n", encoding="utf-8")
    before = (tmp_path / "a.ipynb").read_bytes()
    model = asyncio.run(manager(tmp_path).get("a.ipynb"))
    new = plain(model["content"])
    new["cells"][1]["execution_count"] = 7
    assert save(tmp_path, new).encode() == before


def test_a_notebook_is_opened_with_the_language_that_its_kernel_will_name(tmp_path):
    assert saving["language"]() == IPythonKernel.language_info
    others = {"name": "julia", "display_name": "Julia", "language": "julia"}
    for name, kernelspec, whole in (("ours", KERNEL, True), ("others", others, False), ("odd", "?", False)):
        content = notebook(cell())
        content["metadata"]["kernelspec"] = kernelspec
        (tmp_path / f"{name}.ipynb").write_text(json.dumps(content))
        opened = asyncio.run(manager(tmp_path).get(f"{name}.ipynb"))
        expected = IPythonKernel.language_info if whole else {"name": "python"}
        assert opened["content"]["metadata"]["language_info"] == expected
    assert asyncio.run(manager(tmp_path).get("ours.ipynb", content=False))["content"] is None
    (tmp_path / "plain.txt").write_text("text")
    assert asyncio.run(manager(tmp_path).get("plain.txt"))["content"] == "text"


OLD_FORMAT = {"nbformat": 3, "nbformat_minor": 0, "metadata": {"name": ""}, "worksheets": [{"cells": []}]}


@pytest.mark.parametrize("on_disk", ["", "{", "[]", "null", '{"nbformat": 4}', json.dumps(OLD_FORMAT), None])
def test_a_file_that_is_new_or_of_another_form_is_written_over(tmp_path, on_disk):
    if on_disk is not None:
        (tmp_path / "a.ipynb").write_text(on_disk)
    content = notebook(cell(panel("now")))
    written = json.loads(save(tmp_path, content))
    assert list(written["cells"][0]["outputs"][0]["data"]) == [PLOTLY, "text/plain"]


def test_an_old_notebook_is_saved_as_it_came(tmp_path):
    assert json.loads(save(tmp_path, OLD_FORMAT))["worksheets"] == [{"cells": []}]


@pytest.mark.parametrize("fault", ["outputs", "execution_count"])
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
def test_a_fault_of_the_hook_is_logged_and_the_work_saved(tmp_path, fault, caplog):
    broken = notebook(cell(displayed(text="1")))
    del broken["cells"][0][fault]
    (tmp_path / "a.ipynb").write_text(json.dumps(broken))
    logging.getLogger("traitlets").addHandler(caplog.handler)
    try:
        written = json.loads(save(tmp_path, notebook(cell(displayed(text="my work")))))
    finally:
        logging.getLogger("traitlets").removeHandler(caplog.handler)
    assert written["cells"][0]["outputs"][0]["data"] == {"text/plain": ["my work"]}
    assert "Pre-save hook before_saving failed on a.ipynb" in caplog.text


def test_other_files_are_saved_as_they_are(tmp_path):
    model = {"type": "file", "format": "text", "content": "a text"}
    asyncio.run(manager(tmp_path).save(model, "a.txt"))
    assert (tmp_path / "a.txt").read_text() == "a text"


# -- what a panel hands over ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "shown",
    [
        lp.explorer("tiny", tp=2, tab="memory"),
        lp.live("ranks", tp=2),
    ],
    ids=repr,
)
def test_beside_a_panel_stand_its_figure_which_says_so_and_its_text(shown):
    data, metadata = shown._repr_mimebundle_()
    assert saving["is_panel"]({"data": data, "metadata": metadata})
    assert data[WIDGET]["model_id"] == shown.model_id
    now = shown.snapshot()
    assert data["text/plain"] == now.summary
    assert data[PLOTLY]["data"] == now.spec["data"]
    captions = [a["text"] for a in data[PLOTLY]["layout"]["annotations"]]
    assert captions[-1] == f"<i>{A_PICTURE}</i>"
    assert A_PICTURE not in json.dumps(now.spec)


def test_a_panel_without_a_figure_hands_over_its_text():
    shown = lp.explorer("tiny", tp="x")
    data, _ = shown._repr_mimebundle_()
    assert set(data) == {WIDGET, "text/plain"}
    assert data["text/plain"].startswith("tp='x': a whole number is needed")


def test_a_panel_is_shown_without_waiting_for_its_run():
    shown = lp.explorer("tiny", tp=2, pp=1, dp=1, tab="run")
    shown._runner.wait = lambda timeout=None: pytest.fail("waited")
    assert "tiny" in shown._repr_mimebundle_()[0]["text/plain"]
    del shown._runner.wait
    shown.cancel()
    shown.wait()

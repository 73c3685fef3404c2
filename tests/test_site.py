"""The page without an install: what is made without npm, and the panels on its stand-ins."""

import asyncio
import base64
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from plotly.offline import get_plotlyjs_version

from llamapar.errors import LlamaparError
from llamapar.panels.background import FAILED, Background
from llamapar.panels.clinic_panel import Clinic
from llamapar.panels.explorer_panel import Explorer
from llamapar.panels.runs import Run

PROJECT = Path(__file__).resolve().parent.parent
SITE = PROJECT / "site"
BUILT = PROJECT / "build" / "site"
HERE = Path(__file__).parent
STANDINS = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (SITE / "standins", PROJECT)))}

spec = importlib.util.spec_from_file_location("site_build", SITE / "build.py")
building = importlib.util.module_from_spec(spec)
spec.loader.exec_module(building)
chapters = sys.modules["chapters"]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The site without npm, and what its panels open with."""
    site, made = tmp_path_factory.mktemp("built") / "site", []

    def panels(*films):
        made.append(opened(*films))
        return made[-1]

    with pytest.MonkeyPatch.context() as patch:
        opened = building.panels
        patch.setattr(building, "panels", panels)
        building.build(site, npm=False)
    return site, made[0]


@pytest.mark.parametrize("panel", [Explorer, Clinic])
def test_a_panel_opens_on_stand_ins_with_the_state_that_anywidget_sends(built, panel):
    _, made = built
    opening = made["opening"][panel.__name__.lower()]
    real = json.loads(json.dumps(panel().get_state()))
    assert opening == {name: real[name] for name in opening}
    traits = panel().traits(sync=True).items()
    own = {name for name, trait in traits if "llamapar" in str(trait.this_class) and name[0] != "_"}
    assert set(opening) == own
    assert made["sources"][panel.__name__.lower()] == [panel._esm, panel._css]


DRIVE = """
import json, sys
import page_python
heard = []
receive = page_python.begin("explorer", lambda text: heard.append(json.loads(text)))
for kind, rest in json.loads(sys.argv[1]):
    receive(json.dumps({"to": "w0", "content": {"kind": kind, "seq": 1, "id": kind} | rest}))
print(json.dumps(heard))
"""


def test_the_real_explorer_is_driven_through_the_stand_ins():
    steps = [
        ("set", {"changes": {"preset": "llama3-8b", "tp": 16, "pp": 1, "dp": 1}}),
        ("copy", {"name": "CLI"}),
        ("set", {"changes": {"no_such": 1}}),
    ]
    command = [sys.executable, "-P", "-c", DRIVE, json.dumps(steps)]
    heard = json.loads(subprocess.run(command, env=STANDINS, check=True, capture_output=True).stdout)
    assert heard[0]["opened"] == "Explorer"
    states = [message["state"] for message in heard[1:] if "state" in message]
    said = [message["content"] for message in heard if "content" in message]
    panel = Explorer()
    panel.set(preset="llama3-8b", tp=16, pp=1, dp=1)
    shown = next(state["payload"] for state in states if "payload" in state)
    assert shown == json.loads(json.dumps(panel.payload))
    assert [each["kind"] for each in said] == ["answered", "copied", "answered", "answered"]
    assert "llamapar check --model llama3-8b --tp 16" in said[1]["text"]
    assert [bool(each.get("problem")) for each in said] == [False, False, False, True]


@pytest.fixture
def no_threads(monkeypatch):
    def none(_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("threading.Thread.start", none)


@pytest.mark.usefixtures("no_threads")
def test_without_threads_the_work_is_done_and_a_run_says_what_it_needs(monkeypatch):
    shown = []
    work = Background(shown.append)
    work._go(1, lambda stop: work._put(stop, 2), "test")
    assert shown == [1, 2]
    assert work.wait()
    for name in [name for name in sys.modules if "execution.engines" in name]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    panel = Explorer(tab="run")
    panel._press("run", {}, True)
    now = panel._runner.now
    assert isinstance(now, Run)
    assert now.state == FAILED
    assert isinstance(now.problem, LlamaparError)
    assert now.problem.what == "a run needs PyTorch and threads; torch is not in this Python"


@pytest.mark.usefixtures("no_threads")
def test_without_threads_a_search_goes_on_between_messages_and_can_be_stopped():
    async def page():
        panel = Explorer(tab="plan")
        states = [str(panel.planned["state"])]
        await asyncio.sleep(0)  # a slice
        panel.set(pp=8)  # a move is answered; the search is the same
        states.append(str(panel.planned["state"]))
        panel.cancel()
        while panel.planned["state"] == "running":
            await asyncio.sleep(0)
        stopped = panel.found
        panel.set(preset="llama3-8b", gpus=8, seq_len=8192, global_batch=64)
        later = [str(panel.planned["state"])]
        panel.set(gpus=16)  # the latest wins
        while panel.planned["state"] == "running":
            await asyncio.sleep(0)
        assert panel.found
        later += [str(panel.planned["state"]), str(panel.found.gpus)]
        assert panel.wait()
        return states, bool(stopped and stopped.complete), later

    assert asyncio.run(page()) == (["running", "running"], False, ["running", "done", "16"])


def test_a_site_is_made_without_npm_but_for_its_python_and_knows_when_it_is_stale(
    built, tmp_path, monkeypatch
):
    site, _ = built
    assert not building.is_stale(site)
    pages = sorted(path.relative_to(site) for path in site.rglob("*.html"))
    written = [path for where in ("", "measured") for path in (PROJECT / "docs" / where).glob("*.md")]
    assert len({path.name for path in written}) == len(written)
    written += (PROJECT / "notebooks").glob("*.ipynb")
    assert len(pages) == 5 + len(written)
    for path in pages:
        text = (site / path).read_text()
        assert "default-src 'none'" in text
        for target in re.findall(r'(?:href|src)="([^"#:]+)(?:#[^"]*)?"', text):
            assert ((site / path).parent / target).is_file(), (path, target)
            assert not target.startswith("/"), "a site may stand under a path"
    front = (site / "index.html").read_text()
    assert len(re.findall("<li><h2>", front)) == 3
    assert '<a class="film" href="watch.html"><img src="watch.webp" width="8' in front
    shown = json.loads((site / "explorer.json").read_text())
    assert shown["payload"]["figure"]
    for owner in ("Pyodide", "Python Software Foundation", "plotly", "Kirill Simonov", "Apache License"):
        assert owner in (site / "notices.txt").read_text()
    other = tmp_path / "elsewhere"
    for tree in ("llamapar", "site", "notebooks", "docs"):
        shutil.copytree(PROJECT / tree, other / tree)
    (other / "llamapar" / "panels" / "page.css").write_text("")
    monkeypatch.setattr(building, "PROJECT", other)
    monkeypatch.setattr(building, "HERE", other / "site")
    assert building.is_stale(site)


@pytest.mark.skipif(not (BUILT / "made.txt").is_file(), reason="no site here: make site")
def test_the_site_that_stands_here_is_not_stale():
    assert not building.is_stale(BUILT), "build/site is older than its sources: make site"


def test_without_npm_the_builder_says_so(tmp_path, monkeypatch):
    assert building.PLOTLY[1] == get_plotlyjs_version(), "the page's is the notebooks'"
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(building.NoNpm, match="comes from npm, which is not here; on Debian: apt-get"):
        building.packed(tmp_path, building.PYODIDE)
    (tmp_path / f"pyodide-{building.PYODIDE[1]}.tgz").write_text("something else")
    with pytest.raises(building.NoNpm, match=r"is not pyodide 314\.0\.7 as it is pinned here: remove it"):
        building.packed(tmp_path, building.PYODIDE)


@pytest.mark.deep
@pytest.mark.skipif(shutil.which("npm") is None, reason="no npm")
def test_a_random_walk_shows_the_same_in_the_page_s_python(tmp_path):
    site = tmp_path / "site"
    building.build(site)
    steps = ["2000", "7"]
    here = [sys.executable, "-P", str(HERE / "site_walk.py"), *steps]
    there = ["node", str(HERE / "site_walk.mjs"), str(site), str(HERE / "site_walk.py"), *steps]
    digests = [
        json.loads(subprocess.run(command, env=STANDINS, check=True, capture_output=True).stdout)
        for command in (here, there)
    ]
    assert len(set(digests[0])) > 1000
    assert digests[0] == digests[1]


def test_a_small_block_of_the_course_is_shown_as_svg():
    data = {"text/plain": ["rank <1>"], "image/png": "AAAA\n", "image/svg+xml": ["<svg>\n", "</svg>"]}
    drawn = base64.b64encode(b"<svg>\n</svg>").decode()
    assert chapters.shown({"data": data}) == (
        f'<img alt="rank &lt;1&gt;" src="data:image/svg+xml;base64,{drawn}">'
        '<details><summary>as text</summary><pre tabindex="0">rank &lt;1&gt;</pre></details>'
    )
    del data["image/svg+xml"]
    assert 'src="data:image/png;base64,AAAA"' in chapters.shown({"data": data})


def test_what_would_spoil_a_question_is_folded_on_the_page():
    output = {"output_type": "stream", "text": ["8,192"]}
    cell = {"cell_type": "code", "source": ["1"], "outputs": [output]}
    for metadata, begins in (
        ({}, ""),
        ({"jupyter": {"outputs_hidden": True}}, "<details><summary>After your guess</summary>\n"),
    ):
        _, body = chapters.chapter(
            "x", json.dumps({"cells": [cell | {"metadata": metadata}]}), chapters.Alive()
        )
        assert f'{begins}<div class="out"><pre' in body
        assert ("<details>" in body) is bool(begins)


def test_a_heading_of_the_course_has_the_id_that_a_link_names():
    made = chapters.anchored("<h1>Words</h1>\n<h2>KV head</h2>\n<h2>1. <code>wq</code>, cut</h2>")
    assert made == (
        '<h1>Words</h1>\n<h2 id="KV-head">KV head</h2>\n<h2 id="1.-wq,-cut">1. <code>wq</code>, cut</h2>'
    )
    assert chapters.anchored("<h2>KV head</h2>", page=True) == '<h2 id="kv-head">KV head</h2>'
    _, told = chapters.titled('<a href="../docs/glossary.md#kv-head" title="A head of keys.">KV</a>')
    assert told == '<a href="../docs/glossary.html#kv-head" title="A head of keys.">KV</a>'

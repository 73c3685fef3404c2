"""The Explorer without a browser: every state shows a picture or a reason, whatever it is sent."""

from __future__ import annotations

import importlib
import json
import math
import random
import re
import shlex
import threading
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.session import json_packer
from traitlets import TraitError

import llamapar as lp
from inputs import TEN_KV_HEADS, few
from llamapar.cli import main as cli
from llamapar.configs.reader import settings_of_texts as read
from llamapar.describe.hardware import hardware
from llamapar.panels.controls import DEFAULTS, DIMS, TABS
from llamapar.panels.controls import EXPLORER as SCHEMA
from llamapar.panels.explorer_panel import Explorer
from llamapar.panels.page import BREATH, for_browser
from test_bringing import FILES
from wire import AT_8K, EIGHT_KV_HEADS, customs, deliver, listening, press, receive, unpacked

MAPS = [tab for tab in TABS if tab not in ("run", "plan")]
"""The tabs that draw a record; `test_explorer_run.py` and `test_explorer_answers.py` have the others."""

PANELS = Path(lp.__file__).parent / "panels"
HOSTILE: list[Any] = [
    *(0, -1, 2.5, "8", "", "<script>alert(1)</script>", None, True, False, [], {}, [[1]]),
    *(10**30, -(10**30), 2**53 + 1, 10**5000, float("nan"), float("inf")),
    *("x" * 10_000, "\ud800", ["\ud800"], {"tp": 8}, {"\ud800": 10**5000}),
]


def assert_shows(panel: Explorer) -> None:
    """A picture or a reason, and a payload that travels as JSON."""
    payload = panel.payload
    assert (payload["figure"] is None) == (panel._state.outcome.problem is not None)
    if payload["figure"] is None:
        assert payload["problem"]["what"]
    else:
        assert (
            payload["figure"].get("shapes")
            or payload["figure"]["data"]
            or payload["figure"]["layout"]["annotations"]
        )
        assert payload["summary"]
    assert payload["status"] or payload["problem"]
    assert for_browser(payload["figure"]) == payload["figure"]
    assert repr(panel).startswith("Explorer: ")
    assert str(panel.snapshot().summary)


def changed(**values: Any) -> Explorer:
    """That job with controls moved."""
    panel = lp.explorer(**AT_8K)
    panel.set(**values)
    return panel


def random_change(draw: random.Random, panel: Explorer) -> dict[str, Any]:
    """What a hand, or a script, may send: mostly sensible, sometimes not."""
    control = draw.choice([c for group in SCHEMA for c in group["controls"]])
    if draw.random() < 0.08:
        return {control["name"]: draw.choice(HOSTILE)}
    if control["kind"] == "slider":
        return {control["name"]: draw.choice([*(2**n for n in range(12)), 3, 5, 6, 7, 12, 126, 2**20])}
    if control["kind"] == "choice":
        return {control["name"]: draw.choice([value for value, _ in control["options"]])}
    if control["kind"] == "bool":
        return {control["name"]: draw.random() < 0.5}
    if draw.random() < 0.3:
        return {control["name"]: None}
    return {control["name"]: draw.choice([1, 2, 7, 8, 16, 100, 126, 128, 1000, 4096, 16384, 131072, 2**20])}


def test_opens_on_the_papers_job_with_its_heads() -> None:
    """With all that the paper says of it; its layout ran, and its step is near the 38 % that are printed."""
    panel = lp.explorer()
    job = lp.JOBS["paper-131k-tokens"].job.replace(cp_method="all_gather")  # as its control says
    assert panel.report is not None
    assert panel.report.job == job
    assert panel.payload["values"]["job"] == "paper-131k-tokens"
    assert panel.payload["ok"] is True
    assert panel.payload["seq"] == 0
    assert repr(panel) == (
        "Explorer: llama3.1-405b  tp=8 cp=16 pp=16 dp=8 (16384 ranks) for Llama 3's trainer, "
        "judged by the paper's rules: 2 notes"
    )
    legal, fits, fast, _ = panel.answers["now"]
    assert (legal["verdict"], fits["verdict"]) == ("yes", "yes")
    assert re.search(r"(3[6-9]|4[01])% MFU$", fast["text"])
    assert_shows(panel)
    panel.set(tab="time", dp=16)
    panel.reset()
    assert panel.report.job == job
    assert lp.explorer(tab="memory").payload["values"]["job"] == "paper-131k-tokens"


KEPT = {"tp", "cp", "pp", "dp", "gpus", "global_batch", "framework", "gpu", "zero", "rank", "tab"}


@pytest.mark.parametrize(
    ("preset", "changed", "told"),
    [
        ("llama3.1-70b", {"virtual_stages": 4}, "virtual stages changed with it"),
        ("llama3.1-405b-mp16", {}, "layout, GPUs, sequence and batch stay"),
        (
            "llama3-8b",
            {"virtual_stages": 2, "seq_len": 8192},
            "virtual stages and sequence length changed with it",
        ),
        (
            "qwen2.5-7b",
            {"tp": 4, "dp": 16, "virtual_stages": 1},
            "TP, DP and virtual stages changed with it",
        ),
        (
            "tiny",
            {"pp": 4, "dp": 32, "virtual_stages": 1, "seq_len": 4096},
            "PP, DP, virtual stages and sequence length changed with it",
        ),
    ],
)
def test_another_model_keeps_what_it_can(preset: str, changed: dict[str, int], told: str) -> None:
    panel = lp.explorer()
    before = panel.payload["values"]
    panel.set(preset=preset)
    values = panel.payload["values"]
    assert {name: values[name] for name in KEPT | changed.keys()} == {
        name: before[name] for name in KEPT
    } | changed
    assert panel.gave == (f"{preset} replaced llama3.1-405b: {told}.")
    assert panel.payload["problem"] is None
    assert panel.report.ok
    assert panel.payload["summary"].startswith(f"{preset}: ")  # the picture is of this model
    panel.undo()
    assert panel.payload["values"] == before


@pytest.mark.parametrize("preset", few(lp.PRESETS, 1))
def test_every_preset_has_every_picture(preset: str) -> None:
    panel = lp.explorer(preset)
    panel.set(tp=math.gcd(8, panel.job.model.n_kv_heads), pp=2)  # a rank is able to compute
    for tab in MAPS:
        panel.set(tab=tab)
        assert panel.payload["figure"] is not None
        assert_shows(panel)


def test_the_memory_tab_is_lp_memory_beside_the_gpu() -> None:
    panel = lp.explorer(**AT_8K | {"zero": 1}, tab="memory", micro_batch=1, global_batch=2048)
    said = lp.memory("llama3.1-405b", panel.job.layout, seq_len=8192, micro_batch=1, global_batch=2048)
    assert panel.payload["summary"] == lp.view(said).summary
    assert (panel.payload["fits"], said.fits) == (None, False)
    options = {"recompute": "none", "schedule": "gpipe", "gpu": "b200-180gb"}
    panel.set(zero=2, **options)
    said = lp.memory("llama3.1-405b", panel.job.layout, seq_len=8192, global_batch=2048, **options)
    assert panel.payload["summary"] == lp.view(said).summary
    panel.set(micro_batch=None, global_batch=None, batch_per_dp=None, micro_batches=7)
    said = lp.memory("llama3.1-405b", panel.job.layout, seq_len=8192, global_batch=7 * 128, **options)
    assert panel.payload["summary"] == lp.view(said).summary


def test_a_gpu_of_ones_own_travels_with_the_panels_job() -> None:
    own = {"base": "h100", "memory_gib": 70.5, "name": "my card"}
    panel = lp.explorer("llama3.1-8b", dp=8, zero=3, seq_len=8192, gpu=own, tab="memory")
    assert panel.report is not None
    assert panel.report.job.gpu == hardware(own)
    assert "GiB of my card: " in panel.snapshot().summary
    json.dumps(panel.payload)
    assert lp.explorer(panel.line).report == panel.report
    panel.apply_fix()
    assert panel.report.job.gpu == hardware(own)
    panel.set(gpu="A100")
    assert panel.payload["values"]["gpu"] == "a100-80gb"
    with pytest.raises(lp.LlamaparError, match="gpu='h10' is not known"):
        panel.set(gpu="h10")


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"tp": 4},
        {"seq_len": 131072, "cp": 16, "dp": 8},
        {"preset": "llama3.1-70b", "pp": 1, "dp": 8, "recompute": "none", "micro_batch": 4},
        {"preset": "llama3.1-70b", "pp": 4, "schedule": "gpipe", "micro_batch": 2, "global_batch": 4096},
        {"preset": "llama3.1-8b", "tp": 4, "pp": 1, "dp": 2, "sequence_parallel": False, "seq_len": 65536},
        {"preset": "llama3.1-8b", "tp": 1, "pp": 1, "dp": 1},
        {"preset": "llama3.1-8b", "pp": 1, "dp": 8, "framework": "torchtitan", "micro_batch": 32},
    ],
    ids=str,
)
def test_every_remedy_can_be_clicked_passes_and_fits(state: dict[str, Any]) -> None:
    state = {"zero": 1, **state}
    offered = changed(**state, tab="memory").offered["fixes"]
    assert 0 < len(offered) <= 4
    for k, (text, effect) in enumerate(offered):
        panel = changed(**state, tab="memory")
        ranks, warnings = (
            panel.job.layout.world,
            {f.code for f in panel.report.findings if f.severity == "warning"},
        )
        receive(panel, kind="remedy", remedy=k)
        summary = panel.payload["summary"]
        # Without a trainer the memory of each offered fix may stay open; then its estimate fits.
        if panel.payload["fits"] != "It fits.":
            assert "undecided" in summary, text
            assert "--framework would narrow" in summary, text
            warnings.add("LP512")
        assert panel.payload["ok"] is True, text
        assert panel.job.layout.world == ranks
        assert {f.code for f in panel.report.findings if f.severity == "warning"} <= warnings
        total = re.search(r"worst: stage \d+, (.*) GiB ≤", summary)
        assert total is not None
        assert f"{total[1]} GiB" in effect


def test_remedies_are_told_apart_and_missing_ones_said() -> None:
    panel = lp.explorer(**AT_8K | {"zero": 1})
    assert panel.offered == {}  # they take ten times as long as the rest of a move
    panel.set(tab="memory")
    texts = [": ".join(fix) for fix in panel.offered["fixes"]]
    assert texts == ["recompute=full: 24.71 GiB, 22% slower"]
    assert panel.offered["seq"] == panel.payload["seq"]
    assert f"try  {texts[0]}" in panel.snapshot().summary
    with pytest.raises(lp.LlamaparError, match=f"remedy={len(texts)}: there are {len(texts)}"):
        panel.apply_remedy(len(texts))
    panel.apply_remedy(0)
    assert panel.payload["values"]["recompute"] == "full"
    assert "LP511" not in panel.snapshot().summary
    panel.set(recompute="selective", pp=1, dp=1)
    assert (panel.payload["fits"], panel.offered["fixes"]) == (None, [])
    panel.set(dp=128, pp=16, seq_len=None)
    assert panel.payload["fits"] == "What makes it fit is looked for at a sequence length: set the tokens."
    panel.set(seq_len=8192, framework="vllm")
    assert panel.payload["fits"] == ""  # it does not fit, and vLLM does not train


def test_the_pipeline_tab_draws_the_schedule_of_the_controls() -> None:
    panel = lp.explorer(**AT_8K, tab="pipeline", virtual_stages=8, micro_batches=16)
    paper = lp.schedule("interleaved-1f1b", pp=16, virtual_stages=8, micro_batches=16)  # 1F1B of several
    assert panel.payload["summary"] == lp.view(paper).summary
    panel.set(schedule="flexible", micro_batches=40, nc=20, virtual_stages=2)
    longer = lp.schedule("flexible", pp=16, virtual_stages=2, micro_batches=40, nc=20).timeline()
    assert panel.payload["summary"] == lp.view(longer).summary
    panel.set(beside="gpipe")
    breadth = lp.schedule("looped-bfs", pp=16, virtual_stages=2, micro_batches=40).timeline()
    assert panel.payload["figure"] == lp.view(longer.beside(breadth)).spec
    panel.set(time=12)
    assert panel.payload["figure"] == lp.view(longer.beside(breadth).at(12)).spec
    panel.set(beside="")
    assert panel.payload["summary"] == lp.view(longer.at(12)).summary
    panel.set(time=10**9)
    assert panel.payload["summary"] == lp.view(longer.at(longer.end)).summary


def test_random_moves_never_raise(counts: Callable[[int, int, int], int]) -> None:
    moves = counts(30, 80, 10_000)
    draw = random.Random(405)
    panel = lp.explorer()
    pictures = 0
    for _move in range(moves):
        roll = draw.random()
        if roll < 0.65:
            receive(panel, kind="set", changes=random_change(draw, panel))
        elif roll < 0.75:
            receive(panel, kind="set", changes={"tab": draw.choice([*MAPS, "nowhere"])})
        elif roll < 0.82:
            receive(panel, kind="fix", finding=draw.randrange(4), fix=draw.randrange(4))
        elif roll < 0.85:
            receive(panel, kind="remedy", remedy=draw.randrange(4))
        elif roll < 0.9:
            receive(panel, kind="copy", name=draw.choice([*panel.exports, "nothing"]))
        else:  # start over, so that one broken value does not hide the rest for long
            fresh = {name: value for name, value in DEFAULTS.items() if name not in DIMS}
            panel.set(**fresh | {"preset": draw.choice(list(lp.PRESETS))})
        assert_shows(panel)
        assert len(json.dumps(panel.payload["figure"])) < 80 * 1024
        told = max(6, len(panel.payload["findings"]))  # each says what ten frameworks do, with their sources
        assert len(json_packer(panel.get_state(["payload", "offered"]))) < (80 + 2.25 * told) * 1024
        pictures += panel.payload["figure"] is not None
    assert moves * 0.3 < pictures < moves


HOSTILE_MESSAGES: list[Any] = [
    *("junk", None, [], {}, {"kind": "set"}, {"kind": "nothing"}, {"kind": "copy", "name": "nothing"}),
    *({"kind": "set", "changes": changes} for changes in (5, {"payload": 1}, {"__class__": 1})),
    *({"kind": "fix", "finding": n, "fix": k} for n, k in ((99, 0), ("x", None))),
    *({"kind": "remedy", "remedy": k} for k in (99, {})),
    *({"kind": "load", "text": text, "name": "x"} for text in ("{", "/etc/passwd", "[" * 100_000)),
    {"kind": "load", "text": json.dumps({"hidden_size": 7}), "name": "x"},
]


def test_a_hostile_message_changes_nothing() -> None:
    panel = lp.explorer()
    before = panel.payload
    for content in HOSTILE_MESSAGES:
        deliver(panel, content)
        assert panel.payload == before, content


KERNEL: dict[str, tuple[dict[str, Any], Callable[[Explorer], Any]]] = {
    "fix": ({"tp": 16}, Explorer.apply_fix),
    "remedy": ({"zero": 1}, Explorer.apply_remedy),
    "set": ({}, lambda panel: panel.set(tp=2)),
    "load": ({}, lambda panel: panel.set(model=EIGHT_KV_HEADS)),
    "files": ({}, lambda panel: panel.bring(read(FILES))),
    "undo": ({}, lambda panel: (panel.set(tp=4), panel.undo())),
    "swap": ({}, lambda panel: (panel.pin(), panel.set(tp=4), panel.swap())),
}
MESSAGES: list[dict[str, Any]] = [
    *({"kind": "set", "changes": changes} for changes in ({"tp": 4}, {"tab": "heads"}, {})),
    {"kind": "fix", "finding": 0, "fix": 0},
    {"kind": "remedy", "remedy": 0},
    {"kind": "load", "name": "config.json", "text": json.dumps(EIGHT_KV_HEADS)},
    {"kind": "copy", "name": "CLI"},
    {"kind": "settings", "files": FILES},
    *({"kind": kind} for kind in ("run", "cancel", "plotly", "nothing", "search", "adopt")),
    *({"kind": kind} for kind in ("pin", "swap", "undo", "redo", "reset")),
]


@pytest.mark.parametrize("change", KERNEL)
def test_each_message_is_answered_once_after_a_change_of_the_kernel(change: str) -> None:
    start, make = KERNEL[change]
    for message in MESSAGES:
        panel = changed(**start)
        make(panel)
        for _ in range(2):  # the second time most change nothing
            press(panel, **message)
        receive(panel, kind="set", changes={"tab": "vocab"})
        assert panel.payload["values"]["tab"] == "vocab", message


def plotly_sent(panel: Explorer) -> bytes:
    """The script that a page receives which has no plotly yet."""
    with pytest.MonkeyPatch.context() as patch:
        sent: list[list[bytes] | None] = []
        patch.setattr(panel, "send", lambda content, buffers=None: sent.append(buffers))
        panel._answer("plotly", {})
    ((script,),) = sent
    return script


def test_plotly_travels_without_the_functions_around_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = Path(str(files("plotly"))) / "package_data" / "plotly.min.js"
    panel = lp.explorer()
    script = plotly_sent(panel)
    before, after = bundle.read_bytes().split(script)
    assert re.fullmatch(
        rb"/\*\*.*?\*/\s*\(\s*function\(root, factory\) \{.*, \(\) => \{\s*", before, re.DOTALL
    )
    assert re.fullmatch(rb"window\.Plotly = Plotly;\s*return Plotly;\s*\}\)\);\s*", after)
    assert script.startswith(b'"use strict";var Plotly=')

    other = tmp_path / "package_data" / "plotly.min.js"  # of a version that is wrapped otherwise
    other.parent.mkdir()
    other.write_bytes(b"window.Plotly = function () { return 1; };")
    monkeypatch.setattr("llamapar.panels.page.files", lambda _: tmp_path)
    assert plotly_sent(panel) == other.read_bytes()


def test_what_was_shown_leaves_before_what_takes_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    panel = changed(tp=8)
    with listening(panel) as heard:
        rests: list[tuple[float, int]] = []
        monkeypatch.setattr("llamapar.panels.page.time.sleep", lambda s: rests.append((s, len(heard))))
        panel._receive(None, {"id": "a", "kind": "set", "changes": {"tp": 16}}, None)
    assert rests == [(BREATH, 1), (BREATH, 2)]
    assert ["answers" in heard[0]["state"], "payload" in heard[1]["state"]] == [True, True]
    rests.clear()
    panel.set(tp=4)  # a cell of the notebook waits for nothing
    assert {seconds for seconds, _ in rests} == {0.0}


FAULTS = [ZeroDivisionError("of ours"), KeyError("tp"), KeyboardInterrupt()]


@pytest.mark.parametrize("fault", FAULTS, ids=repr)
@pytest.mark.parametrize("broken", ["state.State.outcome", "state.State.change", "state.plain_finding"])
def test_a_fault_of_ours_is_told_and_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, broken: str, fault: BaseException
) -> None:
    panel = lp.explorer()
    before = panel.payload
    module, *owner, name = broken.split(".")
    place: Any = importlib.import_module(f"llamapar.panels.{module}")
    for part in owner:
        place = getattr(place, part)

    def fail(*_: Any) -> Any:
        raise fault

    with monkeypatch.context() as patch:
        patch.setattr(place, name, property(fail) if name == "outcome" else fail)
        told = receive(panel, kind="set", changes={"tp": 4})
    assert told is not None
    assert told["what"].startswith(f"not done: {type(fault).__name__}: ")
    assert told["why"].startswith("raised in test_explorer.py, line ")
    assert panel.payload is before
    assert panel.job.layout.tp == 8
    assert receive(panel, kind="set", changes={"tp": 4}) is None
    assert panel.job.layout.tp == 4


@pytest.mark.parametrize("name", [name for name in DEFAULTS if name not in ("job", "preset", "tab")])
def test_what_no_page_can_hold_is_sent_in_words(name: str) -> None:
    panel = lp.explorer()
    cycle: list[Any] = []
    cycle.append(cycle)
    for value, words in (
        (10**5000, "an integer of 16610 bits"),
        (2**53 + 1, "9007199254740993"),
        ("\ud800", "\\ud800"),
        (float("nan"), "nan"),
        ({1, 2}, "{1, 2}"),
        (cycle, None),
    ):
        panel._show(lambda state, value=value: state.change({name: value}))
        sent = unpacked(panel.get_state("payload"))["payload"]
        assert sent["values"][name] == words or words is None
        assert sent["status"]
        assert panel.snapshot().summary


def test_two_threads_lose_no_change() -> None:
    panel = lp.explorer()
    names = ["gpus", "quant_group"]

    def turn(name: str) -> None:
        for n in range(1, 9):
            panel.set(**{name: n})

    threads = [threading.Thread(target=turn, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [panel.payload["values"][name] for name in names] == [8, 8]
    assert panel.payload["seq"] == 16


def test_a_preset_sets_the_dimensions_and_a_dimension_makes_it_custom() -> None:
    panel = lp.explorer(preset="llama3.1-8b")
    assert panel.payload["values"]["dim"] == 4096
    panel.set(n_kv_heads=4)
    assert panel.payload["values"]["preset"] == "custom"
    assert panel.job.model == lp.PRESETS["llama3.1-8b"].replace(n_kv_heads=4, name="custom")
    panel.set(head_dim=None, n_heads=64)
    assert panel.job.model.head_dim == 64
    panel.set(preset="llama3.1-8b")
    assert panel.job.model is lp.PRESETS["llama3.1-8b"]


def test_every_fix_can_be_clicked_and_works(sample: Callable[[Any, int], list[Any]]) -> None:
    states = [
        {"tp": 16},
        {"tp": 8, "cp": 16, "dp": 4, "gpus": 16384, "seq_len": 131072},
        {"tp": 6, "pp": 1, "dp": 4},
        {"cp": 4, "seq_len": 1001},
        {"framework": "megatron-lm"},
        {"preset": "llama3.1-70b", "tp": 8, "pp": 1, "dp": 1, "framework": "colossalai"},
        {"preset": "llama3.2-1b", "tp": 1, "pp": 4, "dp": 2, "framework": "torchtitan"},
        {"tp": 16, "cp": 1, "pp": 1, "dp": 1, "framework": "llama-models"},
        {"preset": "llama3-8b", "tp": 3, "pp": 1, "dp": 8},
    ]
    clicked = 0
    for state in sample(states, 4):
        findings = changed(**state).report.findings
        for i, finding in enumerate(findings):
            for k in range(len(finding.fixes)):
                panel = changed(**state)
                panel.apply_fix(i, k)
                assert panel.payload["ok"], (state, finding.code, finding.fixes[k].text)
                left = {f.code for f in panel.report.findings if f.severity != "note"}
                assert finding.code not in left
                clicked += 1
    assert clicked > 10


def test_the_shown_rank_stays_within_the_layout() -> None:
    panel = lp.explorer(**AT_8K, tab="ranks", rank=12345)
    panel.set(dp=1)
    assert panel.payload["values"]["rank"] == 12345 % 128  # the same place in a machine of fewer
    assert panel.payload["figure"] is not None
    panel.set(rank=500)
    assert panel.payload["problem"]["what"] == "rank=500: rank must be a whole number from 0 to 127"
    panel.set(tab="heads", rank=0)
    press(panel, kind="look", place=5, seq=0)  # on a picture that is gone
    assert panel.payload["values"]["rank"] == 0
    press(panel, kind="look", place=5)
    assert panel.payload["values"]["rank"] == 5


def test_copies_every_setting_as_text() -> None:
    panel = lp.explorer()
    for name in panel.exports:
        heard = press(panel, kind="copy", name=name)
        (copied,) = customs(heard, "copied")
        assert copied["name"] == name
        assert "8" in copied["text"]


def test_controls_and_defaults_are_the_same_names() -> None:
    named = {c["name"] for group in SCHEMA for c in group["controls"]} - {"config"}
    assert named | {"tab", "gives"} == set(DEFAULTS)  # a row of tabs, and a button beside each axis
    assert json.loads(json.dumps(SCHEMA)) is not None


# -- a job of the reader's own ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "model", ["llama3-8b", TEN_KV_HEADS, lp.PRESETS["llama3.1-70b"]], ids=lambda m: str(m)[:20]
)
@pytest.mark.parametrize("degrees", [{}, {"tp": 2, "dp": 4}, {"pp": 4}], ids=str)
def test_a_job_of_one_s_own_has_nothing_of_the_first_one(model: Any, degrees: dict[str, int]) -> None:
    """What is not given is as in lp.check: degrees are 1, and GPUs, batch and sequence are not known."""
    panel = lp.explorer(model, **degrees)
    assert panel.job.layout == lp.Layout(**degrees)
    known = {"gpu": "h100-80gb", "cp_method": "all_gather"}  # a control says how CP ranks share attention
    assert panel.report.job == lp.Job.of(lp.model(model), lp.Layout(**degrees), **known)
    assert panel.payload["values"]["rank"] == 0
    assert panel.past == 0  # the first job is not one step back
    panel.set(tp=8, framework="torchtitan")
    panel.reset()
    assert panel.job.layout == lp.Layout(**degrees)
    assert panel.report.judge is None


def test_a_degree_alone_begins_a_job_of_one_s_own() -> None:
    assert lp.explorer(tp=16).job.layout == lp.Layout(tp=16)
    assert lp.explorer(seq_len=4096).job.layout == lp.explorer().job.layout != lp.Layout()
    assert lp.explorer(n_layers=32).report.job.gpus is None


def test_the_page_is_made_of_text_nodes() -> None:
    sources = [path.read_text(encoding="utf-8") for path in sorted(PANELS.glob("*.js"))]
    assert len(sources) >= 4
    for source in sources:
        assert not re.findall(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", source
        )


# -- what people type ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "number"),
    [
        ("gpus", "16k", 16384),
        ("seq_len", "128K", 131072),
        ("seq_len", "1,024", 1024),
        ("batch_tokens", "16M", 2**24),
        ("vocab_size", "128_256", 128256),
    ],
)
def test_a_typed_number_stands_in_its_box_as_read(name: str, text: str, number: int) -> None:
    panel = Explorer()
    receive(panel, kind="set", seq=1, changes={name: text})
    assert panel.payload["values"][name] == number
    assert panel.payload["problem"] is None


@pytest.mark.parametrize(
    ("tp", "what", "choices"),
    [
        (0, "tp=0: tp must be a whole number from 1 to 1048576", ["tp=1"]),
        ("1,02", "tp='1,02': a whole number is needed", ["tp=102", "tp=1"]),
        (None, "tp is empty: tp must be a whole number from 1 to 1048576", ["tp=1"]),
    ],
)
def test_what_leaves_no_job_is_refused_with_its_reason_and_the_nearest(
    tp: Any, what: str, choices: list[str]
) -> None:
    panel = lp.explorer()
    before, seen = panel.payload, []
    problem = receive(panel, kind="set", changes={"cp": 8, "tp": tp})
    panel.observe(seen.append)
    assert problem is not None
    assert (problem["what"], problem["why"], problem["field"]) == (what, "", "tp")
    assert [text for text, _ in problem["choose"]] == choices
    with pytest.raises(lp.LayoutError, match=re.escape(what)):
        panel.set(tp=tp)
    with pytest.raises(TraitError, match=re.escape(what)):
        panel.tp = tp
    assert (panel.payload, panel.tp, seen) == (before, 8, [])
    panel.set(**problem["choose"][-1][1])
    assert panel.job.layout.tp == 1
    with pytest.raises(lp.LayoutError, match="argument='tpp' is not known"):
        panel.set(tpp=4)


def test_every_copied_command_line_runs(
    counts: Callable[[int, int, int], int], capsys: pytest.CaptureFixture[str]
) -> None:
    draw, seen = random.Random(5), list[str]()
    panel = Explorer()
    for step in range(counts(24, 36, 1000)):
        if step % 12 == 0:
            panel = Explorer()
        change = random_change(draw, panel) | {"tab": draw.choice(["memory", "memory", *MAPS])}
        receive(panel, kind="set", changes=change)  # one that names no model changes nothing
        sent = customs(press(panel, kind="copy", name="CLI"), "copied")
        if not sent:
            assert panel.report is None
            continue
        words = shlex.split(sent[-1]["text"], comments=True)
        assert words[0] == "llamapar"
        status = cli.main(words[1:])
        told, err = capsys.readouterr()
        assert (status in (0, 1), err) == (True, ""), words
        counted = panel.payload["values"]["tab"] == "memory" and panel.payload["figure"] is not None
        counted = counted and panel.report.job.seq_len is not None
        assert words[1] == ("memory" if counted else "check")
        first = panel.snapshot().summary.splitlines()
        assert told.splitlines()[0] in first if words[1] == "check" else told.splitlines()[-1] in first
        seen.append(words[1])
    assert {"check", "memory"} == set(seen)

"""Live pictures without a browser: every rung is what the map itself says, whatever the page sends."""

from __future__ import annotations

import json
import random
from fractions import Fraction
from typing import Any

import pytest

import llamapar as lp
from llamapar.panels.ladders import SUBJECTS
from llamapar.panels.page import plain
from wire import deliver

OPENED: list[tuple[str, dict[str, Any]]] = [
    ("heads", {"model": "llama3.1-405b", "tp": 16}),
    ("heads", {"model": "llama3.2-3b", "tp": 5, "kv_replication": True}),
    ("heads", {"model": "llama3.1-405b", "tp": 32, "kv_replication": True, "interleave": False}),
    ("vocab", {"model": "llama3-8b", "tp": 12, "padding": "megatron-lm"}),
    ("sequence", {"cp": 3, "seq_len": 8191, "chunking": "contiguous"}),
    ("stages", {"model": "llama3.1-405b", "pp": 16, "virtual_stages": 2}),
]


@pytest.mark.parametrize(("what", "arguments"), OPENED)
def test_each_rung_is_what_its_own_line_of_code_gives(what: str, arguments: dict[str, Any]) -> None:
    panel = lp.live(what, **arguments)
    knob = SUBJECTS[what].knob
    values = [rung["value"] for rung in panel.ladder]
    assert values == sorted(set(values))
    assert arguments[knob] in values
    for rung in panel.ladder:
        record = eval(rung["code"], {"lp": lp})
        drawn = lp.view(record)
        assert getattr(record, knob) == rung["value"]
        assert (rung["figure"], rung["summary"]) == (drawn.spec, drawn.summary)
        assert rung["problem"] == record.reason
    assert panel.record == eval(panel.code, {"lp": lp})
    assert panel.get_state("ladder")["ladder"] == panel.ladder, "plain values travel as they are"
    assert json.loads(json.dumps(panel.get_state("payload"), allow_nan=False))


@pytest.mark.parametrize("name", sorted(lp.PRESETS))
def test_a_rung_of_heads_counts_as_a_hand_does(name: str) -> None:
    model = lp.model(name)
    for rung in lp.live("heads", name).ladder:
        tp, kv = rung["value"], model.n_kv_heads
        broken = bool(model.n_heads % tp or kv % tp)
        assert bool(rung["problem"]) == broken
        share = Fraction(model.n_heads, tp) if model.n_heads % tp else Fraction(kv, tp)
        *said, word, _ = rung["gives"].split()
        assert sum(map(Fraction, said)) == share
        assert word == ("query" if model.n_heads % tp else "KV")
        if "cuts through" in rung["says"]:
            ways = [range(kv * r, kv * (r + 1)) for r in range(tp)]  # in units of 1/tp of a KV head
            torn = sum(
                1
                for h in range(kv)
                if sum(way.start < (h + 1) * tp and way.stop > h * tp for way in ways) > 1
            )
            assert f"through {'each' if torn == kv else torn} of the {kv} KV heads" in rung["says"]


def test_pictures_of_one_job_move_together_and_others_stay() -> None:
    heads, vocab = lp.live("heads", "llama3-8b", tp=4), lp.live("vocab", "llama3-8b", tp=4)
    other, tokens = lp.live("vocab", "llama3.1-70b", tp=4), lp.live("sequence", cp=4)
    heads.set(tp=16)
    assert vocab.code == "lp.vocab('llama3-8b', tp=16)"
    assert other.code == "lp.vocab('llama3.1-70b', tp=4)"
    assert tokens.code == "lp.sequence(cp=4, seq_len=8192)"
    heads.set(kv_replication=True)
    assert vocab.code == "lp.vocab('llama3-8b', tp=16)"
    vocab.set(model="llama3.2-3b")
    assert heads.code == "lp.heads('llama3.2-3b', tp=16, kv_replication=True)"
    vocab.undo()
    assert heads.code == "lp.heads('llama3-8b', tp=16, kv_replication=True)"
    heads.undo()
    assert heads.past


def test_undo_takes_back_one_change_after_another() -> None:
    panel = lp.live("stages", "llama3-8b", pp=4)
    for pp in (8, 2, 32):
        panel.set(pp=pp)
    assert panel.past == 3
    codes = []
    while panel.past:
        panel.undo()
        codes.append(panel.code)
    assert codes == [f"lp.stages('llama3-8b', pp={pp})" for pp in (2, 8, 4)]
    panel.undo()
    assert panel.code == "lp.stages('llama3-8b', pp=4)"


def test_a_record_is_shown_as_it_is() -> None:
    wide = lp.model("llama3-8b").replace(name="yours", n_kv_heads=4)
    for record in (
        lp.heads("llama3.1-405b", tp=16, kv_replication=True, interleave=False),
        lp.vocab("llama3-8b", tp=3, padding="megatron-lm"),
        lp.vocab("llama3-8b", tp=3),
        lp.sequence(cp=4, seq_len=100, chunking="contiguous"),
        lp.stages("llama3.1-405b", pp=8, layer_split="remainder last"),
        lp.heads(wide, tp=8),
    ):
        assert lp.live(record).record == record


def test_what_cannot_be_shown_is_refused_with_what_can() -> None:
    with pytest.raises(lp.LayoutError, match="known are heads, vocab, sequence, stages"):
        lp.live("head")
    with pytest.raises(
        lp.LayoutError, match=r"RankGrid cannot be shown live\n  why  live pictures are made of"
    ):
        lp.live(lp.ranks(tp=2))
    with pytest.raises(lp.LlamaparError, match="sequence takes no model: it is the same for all"):
        lp.live("sequence", "llama3-8b")
    with pytest.raises(lp.LayoutError, match="argument='cp' is not known"):
        lp.live("heads", "llama3-8b", cp=2)
    panel = lp.live("heads", "llama3-8b", tp=8)
    with pytest.raises(lp.LayoutError, match="tp must be a whole number from 1"):
        panel.set(tp=0)
    assert panel.code == "lp.heads('llama3-8b', tp=8)", "a refused change changes nothing"


HOSTILE: list[Any] = [
    *(0, -1, 2.5, "8", "", "<script>alert(1)</script>", None, True, False, [], {}, [[1]], [1, 2]),
    *(10**30, -(10**30), 10**5000, float("nan"), float("inf"), "x" * 10_000, "\ud800", {"tp": 8}),
]


def test_whatever_a_page_sends_is_answered_once_and_the_picture_stands(soak: bool) -> None:
    draw = random.Random(7)
    panels = [lp.live(what, **arguments) for what, arguments in OPENED]
    for number in range(2000 if soak else 200):
        panel = draw.choice(panels)
        name = draw.choice([*panel.payload["values"], "what", "", "cp"])
        value = draw.choice([*HOSTILE, 1, 2, 3, 16, "llama3-8b", "none"])
        kind = draw.choice(("set", "set", "set", "undo", "nonsense"))
        deliver(panel, {"kind": kind, "id": f"p-{number}", "seq": 0, "changes": {name: value}})
        assert eval(panel.code, {"lp": lp}) == panel.record
        assert plain(panel.payload) == panel.payload
        assert panel.payload["values"][SUBJECTS[panel.payload["what"]].knob] in [
            r["value"] for r in panel.ladder
        ]


def test_the_text_form_says_the_whole_ladder() -> None:
    said = lp.live("heads", "llama3.1-405b", tp=16).snapshot().summary.splitlines()
    assert said[:7] == [
        "lp.heads('llama3.1-405b', tp=16)",
        "  TP 1: 8 KV heads",
        "  TP 2: 4 KV heads",
        "  TP 4: 2 KV heads",
        "  TP 8: 1 KV head",
        "> TP 16: 1/2 KV head ✕ tp=16 does not divide n_kv_heads=8",
        "  TP 32: 1/4 KV head ✕ tp=32 does not divide n_kv_heads=8",
    ]
    assert (
        said[9] == "TP 16 cuts through each of the 8 KV heads. A rank has eight query heads and 1/2 KV head."
    )

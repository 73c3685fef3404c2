"""What the clinic offers and draws: its examples, live facts, the ranks of a log, and memory that ran out."""

import json
from pathlib import Path

import pytest
import torch

import llamapar as lp
from llamapar.panels.clinic_panel import EXAMPLES
from llamapar.panels.page import for_browser
from wire import receive

ORACLES = Path(__file__).parent / "oracles"
HEADS, RANKS, MEMORY = (example["fields"] for example in EXAMPLES)


def messages(name):
    lines = (ORACLES / f"{name}.jsonl").read_text("utf-8").splitlines()
    return [json.loads(line)["message"] for line in lines]


# -- examples --------------------------------------------------------------------------------------


def test_an_empty_clinic_offers_three_real_messages():
    panel = lp.clinic()
    assert panel.payload["examples"] == EXAMPLES
    assert len(EXAMPLES) == 3
    panel.set(text="something else")
    assert panel.payload["examples"] == []
    panel.set(text="")
    assert panel.payload["examples"] == EXAMPLES
    course = (Path(__file__).parents[1] / "notebooks" / "12_shape_debugger.ipynb").read_text("utf-8")
    assert HEADS["text"].removeprefix("RuntimeError: ") in course
    assert EXAMPLES[0]["source"][1] in course
    assert RANKS["text"] in messages("raised_again")
    assert MEMORY["text"] in messages("error-cases")


@pytest.mark.parametrize(
    ("fields", "verdict", "cause", "title"),
    [
        (
            HEADS,
            "sharding",
            "a rank holds 64 columns, half a head of 128: 4 KV heads over tp=8",
            "TP 8 cuts through each of the 4 KV heads. A rank has four query heads and half a KV head.",
        ),
        (
            RANKS,
            "unknown",
            "a token is past the rows of the table: "
            "a whole id meets a rank's rows, or another tokenizer does",
            None,
        ),
        (
            MEMORY,
            "sharding",
            "a rank needs more than its memory of 79.35 GiB: "
            "68976648192 parameters × 2 B = 138 GB of weights",
            None,
        ),
    ],
)
def test_a_press_of_an_example_gives_its_answer(fields, verdict, cause, title):
    panel = lp.clinic()
    assert receive(panel, kind="set", changes=fields) is None
    payload = panel.payload
    assert payload["verdict"] == verdict
    assert payload["status"].endswith(cause)
    figure = payload["figure"]
    assert (figure["says"] if figure else None) == title


# -- an exception ----------------------------------------------------------------------------------


def project(x, wq, head_dim):
    return (x @ wq.T).unflatten(-1, (-1, head_dim))


def failed():
    with pytest.raises(RuntimeError, match="don't multiply up") as caught:
        project(torch.zeros(2, 16, 512), torch.zeros(4096, 512)[:96], head_dim=64)
    return caught.value


def test_an_exception_opens_it_with_the_live_facts():
    error = failed()
    panel = lp.clinic(error)
    parts = panel.payload["parts"]
    assert parts["where"][0].endswith(": (x @ wq.T).unflatten(-1, (-1, head_dim))")
    assert [(name, is_.partition(",")[0], whole) for name, _, is_, whole in parts["operands"][1:]] == [
        ("x", "", ""),
        ("wq", "a slice", "[4096, 512]"),
        ("head_dim", "", ""),
    ]
    assert panel.text.startswith("Traceback (most recent call last):\n")
    assert panel.explanation == lp.explain(error)
    assert for_browser(panel.payload) == panel.payload
    receive(panel, kind="set", changes={"tp": 4})
    assert panel.payload["parts"]["operands"] == parts["operands"]
    receive(panel, kind="set", changes={"text": panel.text})  # as text it has no frames
    assert panel.payload["parts"]["operands"] == []


def test_facts_of_the_frame_are_told_from_those_of_the_text():
    def attend(q, n_heads, n_kv_heads, head_dim, tp):
        return q.view(1, 4, n_heads, head_dim) if n_kv_heads * tp else q

    with pytest.raises(RuntimeError, match="invalid for input") as caught:
        attend(torch.zeros(1, 4, 256), 8, 2, 64, 2)
    panel = lp.clinic(caught.value)
    assert panel.payload["values"]["n_heads"] == 8
    assert panel.payload["origins"]["n_heads"] == "in the frame"


class Silent(RuntimeError):
    def __str__(self):
        raise ValueError("of the reader's own code")


@pytest.mark.parametrize("text", ["<img src=x onerror=alert(1)>", "\ud800", "", "x" * 10**6, None])
def test_any_exception_is_taken(text):
    panel = lp.clinic(RuntimeError(text) if text is not None else Silent())
    assert panel.snapshot().summary
    json.dumps(panel.payload)
    if text is None:
        assert panel.payload["verdict"] == "unknown"
        assert "<exception str() failed>" in panel.text


# -- the ranks of a log ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("known", "placed"),
    [
        ({"tp": 4, "gpus": 4}, True),
        ({"tp": 2, "cp": 1, "pp": 1, "dp": 2}, True),
        ({"tp": 2, "cp": 1, "pp": 1, "gpus": 8}, True),
        ({}, False),
        ({"tp": 4}, False),  # of how many?
        ({"tp": 2, "gpus": 8}, False),  # the other 4 may be any axis
        ({"tp": 8, "dp": 2, "gpus": 8}, False),
        ({"tp": 2, "gpus": 2}, False),  # rank 3 speaks
    ],
)
def test_ranks_are_placed_only_in_a_layout_that_is_known(known, placed):
    ranks = lp.clinic(RANKS["text"], **known).payload["ranks"]
    told = "Ranks 1, 3 report the error; fill in tp, cp, pp and dp to see what they share."
    assert (ranks == told) is not placed
    assert not placed or ranks.startswith("The error is on 2 ranks of ")


def test_the_index_that_failing_ranks_share_is_said():
    log = "\n".join(
        f"[rank{rank}]: RuntimeError: shape '[1, 8192, -1, 128]' is invalid for input of size 524288"
        for rank in (1, 5, 9, 13)
    )
    panel = lp.clinic(f"{log}\n[rank2]: waits", framework="torchtitan", tp=4, cp=1, pp=2, dp=2)
    said = "The error is on 4 ranks of 16: 1, 5, 9, 13, all at tp 1"
    assert panel.payload["ranks"] == f"{said}. The log has lines of 5 ranks."
    assert panel.payload["ranks"] in str(panel.snapshot())
    panel.set(framework=None)
    assumed = ", if the order of ranks is tp-cp-pp-dp. The log"
    assert panel.payload["ranks"].startswith(f"{said}{assumed}")
    one = lp.clinic(f"{log.splitlines()[0]}\n[rank2]: waits", tp=4, gpus=4).payload["ranks"]
    assert one.startswith("The error is on 1 rank of 4: 1. ")
    alone = lp.clinic("[rank0]: RuntimeError: 25 is not divisible by 4", tp=4, gpus=4).payload
    assert alone["ranks"] == ""


# -- memory that ran out ---------------------------------------------------------------------------

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {}. GPU 0 has a total capacity of "
OOM += "79.11 GiB of which 3.20 GiB is free."
RUN = {"model": "llama3-8b", "cp": 1, "dp": 1, "seq_len": 8192, "micro_batch": 1}


def test_the_memory_of_the_run_is_drawn():
    known = RUN | {"tp": 1, "pp": 4, "micro_batch": 4}
    figure = lp.view(lp.explain(OOM.format("15.66 GiB"), **known))
    account = lp.view(lp.memory("llama3-8b", tp=1, pp=4, seq_len=8192, micro_batch=4))
    assert figure.summary == account.summary
    assert figure.spec["data"] == account.spec["data"]


@pytest.mark.parametrize(
    ("known", "missing"),
    [
        ({}, "model, tp, cp, pp or dp and seq_len"),
        ({"model": "llama3-8b"}, "tp, cp, pp or dp and seq_len"),
        ({"model": "llama3-8b", "tp": 8}, "seq_len"),
    ],
)
def test_an_account_says_what_it_needs_and_is_not_drawn_of_a_server(known, missing):
    panel = lp.clinic(OOM.format("2.00 GiB"), **known)
    said = f"fill in {missing} to draw the memory of a rank in training"
    assert (panel.payload["figure"], panel.payload["reason"]) == (None, said)
    panel.set(model="llama3-8b", tp=8, seq_len=8192)
    title = panel.payload["figure"]["layout"]["title"]
    assert title["subtitle"]["text"].startswith("Degrees that nobody gave are drawn as 1. ")
    with pytest.raises(lp.LayoutError, match="this cause has no map to draw"):
        lp.view(lp.explain(OOM.format("2.00 GiB"), framework="vllm", **RUN | {"tp": 1, "pp": 1}))

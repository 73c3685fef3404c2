"""`lp.incidents`: each happens again from its configuration, and is green with its cure, on real ranks."""

from __future__ import annotations

import errno
import io
import re
import tempfile
from typing import Any

import pytest

import llamapar as lp
from llamapar.course import replays

pytestmark = pytest.mark.usefixtures("no_ranks_left")

HAPPENED: dict[int, tuple[str, str]] = {
    1: (
        "16 of 16 ranks raise ZeroDivisionError: integer division or modulo by zero",
        "all 16 ranks have what one process computes",
    ),
    2: (
        "rank 0 has [16064, 16], and [128256, 16] is needed",
        "all 8 ranks have what one process computes",
    ),
    3: (
        "16 of 16 ranks raise RuntimeError: shape '[16, 8, -1, 8]' is invalid for input of size 512",
        "all 16 ranks have what one process computes",
    ),
    4: (
        "missingBytes is 4,294,967,296 of 237,908,328,448; 1,136 of 1,137 tensors are read wrongly, "
        "layers.0.attention.wq.weight first",
        "all 1,137 tensors are read to the last of 237,908,328,448 bytes",
    ),
    5: (
        "tp·cp·pp·dp = 8·16·16·4 = 8192, but there are 16384 GPUs; batch_per_dp·dp·seq_len = 16·4·131072 = "
        "8388608 tokens, but the batch has 16777216",
        "16,384 GPUs, and 16,777,216 tokens in a batch",
    ),
    6: (
        "2 of 2 ranks raise RuntimeError: The size of tensor a (16) must match the size of tensor b (32) at "
        "non-singleton dimension 0",
        "the second step equals that of one process",
    ),
    7: (
        "2 of 2 ranks raise ValueError: expected (75968, 4), got (151936, 4)",
        "both ranks gather the embedding of the checkpoint, row for row",
    ),
    8: (
        "no rank made progress for 3 s: a send to rank 1: rank 0 arrived; rank 1 never did, it is waiting in "
        "a send to rank 0; a send to rank 0: rank 1 arrived; rank 0 never did, it is waiting in a send to "
        "rank 1",
        "both messages have arrived",
    ),
}
"""Incident → what comes out as it was, and once it is mended."""


@pytest.mark.parametrize("number", HAPPENED)
def test_from_configuration_through_error_and_cure_to_green(number: int) -> None:
    replay = lp.incidents[number].replay()
    (_, before, broken), (_, after, cured) = replay.runs
    assert (before, after, replay.ok) == (False, True, True)
    assert (broken, cured) == HAPPENED[number]


REPAIRS: list[tuple[int, dict[str, Any], bool, str]] = [
    (1, {"tp": 8, "dp": 2}, True, "all 16 ranks"),
    (1, {"n_kv_heads": 16, "copies": "in turn"}, False, "it runs, and out is wrong on 16 of 16 ranks"),
    (1, {"tp": 8}, False, "that layout uses 8 of the 16 GPUs"),
    (1, {"n_kv_heads": 12}, False, "12 is not a multiple of the 8 KV heads there are"),
    (2, {"divisible_by": 32}, True, "all 8 ranks"),
    (2, {"tp": 4}, True, "all 4 ranks"),
    (2, {"divisible_by": 32, "tp": 16}, False, "rank 0 has [8032, 16], and [128256, 16] is needed"),
    (2, {"tp": 17}, False, "17 ranks; a replay starts 16 at most"),
    (3, {"kv_replication": True}, True, "all 16 ranks"),
    (4, {"size_bits": 32}, False, "1,136 of 1,137 tensors"),
    (4, {"size_bits": 33}, True, "all 1,137 tensors"),
    (5, {"cp": 32}, False, "but the batch has 16777216"),
    (6, {"resumed_dp": 4}, True, "equals that of one process"),
    (6, {"resumed_dp": 8, "loads": "all files"}, True, "equals that of one process"),
    (6, {"resumed_dp": 3}, False, "a DP of 1, 2, 4, 8 or 16 is needed, for 64 parameters"),
    (8, {"rank_1": "receive, send"}, True, "both messages"),
    (8, {"rank_0": "receive, send", "rank_1": "receive, send"}, False, "waiting in a receive from rank 0"),
]


@pytest.mark.parametrize(("number", "changes", "ok", "text"), REPAIRS)
def test_what_repairs_it_and_what_does_not(number: int, changes: dict[str, Any], ok: bool, text: str) -> None:
    tried = lp.incidents[number].repair(**changes)
    assert tried.ok == ok
    assert text in tried.runs[0][2]
    assert lp.incidents[number].fix not in str(tried)  # a try does not give the answer away


def test_a_disk_without_room_for_the_file_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a right repair would be red."""

    class Short(io.BytesIO):
        def truncate(self, size: int | None = None) -> int:
            raise OSError(errno.EFBIG, "File too large")

    monkeypatch.setattr(tempfile, "TemporaryFile", Short)
    message = f"""a file of 237,908,328,448 bytes, nearly all of them holes, cannot be made
  why  {tempfile.gettempdir()}: File too large
  try  a folder on another disk, named by TMPDIR"""
    with pytest.raises(lp.LlamaparError, match=f"^{re.escape(message)}$"):
        lp.incidents[4].repair(size_bits=64)


def test_how_an_incident_and_its_replay_read() -> None:
    assert [one.number for one in lp.incidents] == list(HAPPENED)
    assert str(lp.incidents).splitlines()[-1].startswith("lp.incidents[1].replay() makes it happen again")
    incident = lp.incidents[5]
    assert str(incident).splitlines()[0] == "Incident 5: The DP of the Llama 3 paper"
    assert "tp=8, cp=16, pp=16, dp=4" in str(incident)
    lines = str(incident.replay()).splitlines()
    assert lines[0] == "The DP of the Llama 3 paper, with the printed row"
    assert [line[4:8].strip() for line in lines[1:] if line[4] != " "] == ["seen", "why", "red", "ok", "fix"]
    page = incident.replay()._repr_html_()
    assert page.index("<b>why</b>") < page.index("<table>") < page.index("<b>fix</b>")
    assert "author&#x27;s" in page


@pytest.mark.parametrize("number", HAPPENED)
def test_the_words_agree_with_the_library(number: int) -> None:
    """Each number that the table tells is one that the library computes, or that a report has."""
    incident = lp.incidents[number]
    assert hasattr(replays, incident.run)
    assert incident.configuration.keys() >= incident.cure.keys() | incident.choices.keys()
    padded = lp.Padding(64, per_tp=True).padded(128256, 8)
    embedding = 128256 * 16384 * 4
    computed: dict[int, tuple[int, ...]] = {
        2: (padded, padded // 8),
        3: (8 * 128, 8 * 128 // 16, 8192 * 64),
        4: (embedding, embedding % 2**32),
        5: (8 * 16 * 16 * 4, 131072),
        7: (2 * 151936, 151936 // 2),
    }
    for value in computed.get(number, ()):
        assert re.search(rf"\b{value}\b", incident.seen + incident.why), value

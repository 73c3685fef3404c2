"""`lp.incidents`: the words agree with the library, a full disk is told. The runs: texts/incidents.txt."""

import errno
import io
import re
import tempfile

import pytest

import llamapar as lp
from llamapar.course import replays


def test_a_disk_without_room_for_the_file_is_said(monkeypatch):
    """Else a right repair would be red."""

    class Short(io.BytesIO):
        def truncate(self, size=None):
            raise OSError(errno.EFBIG, "File too large")

    monkeypatch.setattr(tempfile, "TemporaryFile", Short)
    message = f"""a file of 237,908,328,448 bytes, nearly all of them holes, cannot be made
  why  {tempfile.gettempdir()}: File too large
  try  a folder on another disk, named by TMPDIR"""
    with pytest.raises(lp.LlamaparError, match=f"^{re.escape(message)}$"):
        lp.incidents[4].repair(size_bits=64)


@pytest.mark.parametrize("number", [incident.number for incident in lp.incidents])
def test_the_words_agree_with_the_library(number):
    """Each number that the table tells is one that the library computes, or that a report has."""
    incident = lp.incidents[number]
    assert hasattr(replays, incident.run)
    assert incident.configuration.keys() >= incident.cure.keys() | incident.choices.keys()
    padded = lp.Padding(64, per_tp=True).padded(128256, 8)
    embedding = 128256 * 16384 * 4
    computed = {
        2: (padded, padded // 8),
        3: (8 * 128, 8 * 128 // 16, 8192 * 64),
        4: (embedding, embedding % 2**32),
        5: (8 * 16 * 16 * 4, 131072),
        7: (2 * 151936, 151936 // 2),
    }
    for value in computed.get(number, ()):
        assert re.search(rf"\b{value}\b", incident.seen + incident.why), value

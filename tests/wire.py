"""Between a panel and its page, without a kernel: as ipywidgets takes messages and Jupyter packs them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from comm.base_comm import BaseComm
from jupyter_client.session import json_packer

from inputs import TEN_KV_HEADS
from llamapar.panels.page import Page

AT_8K: dict[str, Any] = {"preset": "llama3.1-405b", "tp": 8, "pp": 16, "dp": 128, "zero": 2, "seq_len": 8192}
"""405B on 16,384 GPUs, of whose batch nothing is said."""

EIGHT_KV_HEADS = TEN_KV_HEADS | {"num_key_value_heads": 8, "num_hidden_layers": 48}
"""A config.json with which that job has nothing to mend: a search for fixes takes seconds."""


def unpacked(content: Any) -> Any:
    """What a browser reads of it: its numbers are doubles."""
    return json.loads(json_packer(content), parse_int=lambda digits: int(float(digits)))


class Line(BaseComm):
    """What a panel sends over, without a kernel at its other end."""

    def __init__(self, comm_id: str) -> None:
        self.heard: list[dict[str, Any]] = []
        super().__init__(comm_id=comm_id, target_name="jupyter.widget", primary=False)

    def publish_msg(self, msg_type: str, data: Any = None, *_: Any, **__: Any) -> None:
        if msg_type == "comm_msg":
            self.heard.append(json.loads(json_packer(data)))


@contextmanager
def listening(panel: Page[Any]) -> Iterator[list[dict[str, Any]]]:
    """What the panel's page receives meanwhile."""
    with pytest.MonkeyPatch.context() as patch:
        line = Line(panel.comm.comm_id)
        patch.setattr(panel, "comm", line)
        yield line.heard


def customs(heard: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [m["content"] for m in heard if m["method"] == "custom" and m["content"]["kind"] == kind]


def deliver(panel: Page[Any], content: Any) -> list[dict[str, Any]]:
    """Send a message as it stands; what the page receives, of which the last is the one answer."""
    with listening(panel) as heard:
        panel._handle_msg({"content": {"data": {"method": "custom", "content": content}}, "buffers": []})
    (answer,) = customs(heard, "answered")
    while heard[-1]["method"] == "update":  # of traits, which observers hear of once the panel is free
        assert "payload" not in heard.pop()["state"]
    assert heard[-1]["content"] is answer
    assert answer["id"] == (content.get("id") if isinstance(content, dict) else None)
    assert answer["problem"] is None or answer["problem"]["what"]
    return heard


def press(panel: Page[Any], **content: Any) -> list[dict[str, Any]]:
    """What the page receives after it sent a message, while it showed what the panel shows."""
    return deliver(panel, {"id": "view-7", "seq": panel.payload["seq"], **content})


def receive(panel: Page[Any], **content: Any) -> dict[str, Any] | None:
    """The same; the problem that the answer names."""
    problem: dict[str, Any] | None = press(panel, **content)[-1]["content"]["problem"]
    return problem

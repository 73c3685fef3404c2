"""The names under which publishers put models, as the names of presets.

Strict: a name is read as a whole, and only where the published config has the preset's dimensions, its
context and its RoPE. A fine-tune, a quantised copy or a later revision is another model.
"""

from __future__ import annotations

import re

_PUBLISHERS = re.compile(r"(?:meta-llama/(?=(?:meta-)?llama)|mistralai/(?=mistral)|qwen/(?=qwen))")
_FAMILY = re.compile(r"(?:meta-(?=llama-?3))?(llama|qwen)-?(?=\d)")
_SAME = {
    "llama2": re.compile(r"(?:-chat)?(?:-hf)?$"),
    "llama3": re.compile(r"(?:-instruct)?(?=(?:-mp16)?$)"),
    "mistral": re.compile(r"(?:-instruct)?-v0\.1$"),
}
"""What a family's names may end in, with the same config.json. Mistral's v0.2 has another RoPE, v0.3 another
vocabulary; the Qwen2.5 that follow instructions have another context."""


def preset_name(text: str) -> str:
    """ "meta-llama/Llama-3.1-8B-Instruct" as "llama3.1-8b", whether that is a preset or not."""
    name = _PUBLISHERS.sub("", re.sub(r"[\s_]+", "-", text[:200].strip().lower()), count=1)
    name = _FAMILY.sub(r"\1", name, count=1) if _FAMILY.match(name) else name
    for family, end in _SAME.items():
        if name.startswith(family):
            return end.sub("", name, count=1)
    return name

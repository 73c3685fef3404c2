"""Publishers' model names, mapped to preset names.

The match is strict: the whole name must fit, and the published config must have the preset's dimensions,
context and RoPE. A fine-tune, a quantised copy or a later revision is another model.
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
"""Family → endings of names that share the base model's config.json.

Mistral's v0.2 has another RoPE and v0.3 another vocabulary; the Qwen2.5 Instruct models have another context.
"""


def preset_name(text: str) -> str:
    """The name in the form of a preset: "meta-llama/Llama-3.1-8B-Instruct" gives "llama3.1-8b".

    The preset need not exist.
    """
    name = _PUBLISHERS.sub("", re.sub(r"[\s_]+", "-", text[:200].strip().lower()), count=1)
    if _FAMILY.match(name):
        name = _FAMILY.sub(r"\1", name, count=1)
    for family, end in _SAME.items():
        if name.startswith(family):
            return end.sub("", name, count=1)
    return name

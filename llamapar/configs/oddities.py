"""What a row of `formats.toml` cannot say: rules of one trainer that are arithmetic, or need two settings.

A row names these functions under `oddities`; each gets the row's source, after the fields are read.
"""

from __future__ import annotations

import itertools
import re

from llamapar.describe.configfile import Values
from llamapar.frameworks.settings import MODEL, Contradiction

from .documents import Entry
from .draft import (
    Draft,
    Fact,
    SettingsSource,
    scalar,
    section_of,
)
from .files import Files
from .flags import Flags, is_known

# -- the model, by its name ------------------------------------------------------------------------


def named_model(source: SettingsSource, entry: Entry, spec: Values) -> None:
    """Set the model from a name. As a "hub" name it may tell that the model is no Llama."""
    draft, hub = source.draft, spec["as"] == "hub"
    if not hub and not is_known(entry):
        return
    if not draft.take_model(str(entry.value), source.origin(entry)):
        draft.unknown |= spec.get("open", {"dims": f"from the config of {entry.value}"})
    if hub:
        draft.put("hf", str(entry.value), source.origin(entry))
        refuse_other_models(source, entry)


def refuse_other_models(source: SettingsSource, entry: Entry) -> None:
    """Refuse a Hub model whose name tells that it is no dense Llama."""
    draft, text = source.draft, scalar(entry.value)
    for pattern, why in (
        (r"mixtral|moe|-a\d+b|deepseek-v[23]|gpt-oss", "MoE"),
        (
            r"(?:^|[/_-])(?:opt|bloom|gpt2|gpt-j|gpt-neo|pythia|falcon|mpt|phi|gemma)[-\d]",
            "not Llama's architecture",
        ),
    ):
        if re.search(pattern, text):
            draft.covered = False
            draft.refuse(f"{entry.value}: {why}", source.origin(entry))
            drop_model(draft)
            return


def drop_model(draft: Draft) -> None:
    """Forget what was read of a model that is not covered."""
    for name in [name for name in draft.facts if section_of(name) == MODEL]:
        del draft.facts[name]


_IMAGE = "vllm-openai"
"""In the name of the container images whose entry point serves: what follows are vLLM's arguments."""


def served_model(source: SettingsSource, files: Files) -> None:
    """The word behind `vllm serve`, or behind a container whose entry point is that command."""
    if not isinstance(source.held, Flags) or source.get("model") is not None:
        return
    for before, word in itertools.pairwise(source.held.words):
        if (before.text == "serve" or _IMAGE in before.text) and not word.text.startswith("-"):
            named_model(source, Entry("vllm serve", word.text, word.line), {"as": "model"})
            return


# -- sharing and ranks -----------------------------------------------------------------------------


def ulysses(source: SettingsSource, files: Files) -> None:
    """Ulysses' ranks share sequences, so they are an axis of their own and not part of dp."""
    ways = source.count("parallelism_config.parallelism_config_sp_size") or 1
    draft = source.draft
    replicate, shard = draft.number("dp_replicate") or 1, draft.number("dp_shard")
    gpus = draft.facts.get("gpus")
    # The product of the axes would otherwise not be the number of GPUs.
    if ways > 1 and shard is not None and gpus is not None and isinstance(gpus.value, int):
        draft.derive("dp", replicate * shard, f"{replicate} replicas · {shard} shards")
        draft.facts["other_axes"] = Fact({"ulysses_sp": ways}, gpus.origin)


def accelerate_mesh(source: SettingsSource, files: Files) -> None:
    """FSDP's mesh has the dims dp_shard and cp, where they are over one (parallelism_config.py)."""
    draft, tp = source.draft, source.draft.number("tp") or 1
    many = tp * (draft.number("dp_replicate") or 1)
    shares = (draft.number("dp_shard") or 0) * (draft.number("cp") or 1)
    if many > 1 and shares == 1 and (draft.number("zero") or 0) > 0:
        why = "FSDP is on and dp_shard·cp = 1, so its mesh has no dimension"
        cure = f"dp_shard {many} with tp 1, or no FSDP"
        draft.contradictions.append(Contradiction("dp_shard", (1, many), f"{why}; {cure}"))


def trainer_sharding(source: SettingsSource, files: Files) -> None:
    """A command shares nothing unless it says so; a file of arguments leaves it to the command."""
    if "zero" in source.draft.facts or "zero" in source.draft.unknown:
        return
    if files.scripts:
        source.draft.derive("zero", 0, "DDP, unless --fsdp or --deepspeed")
    else:
        source.draft.missing("zero", "the launch says it, which is not among these files")

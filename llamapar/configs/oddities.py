"""What a row of `formats.toml` cannot say: rules of one trainer that are arithmetic, or need two settings.

A row names these functions under `oddities`; each gets the row's source, after the fields are read.
"""

from __future__ import annotations

import itertools
import re

from llamapar.describe.configfile import Values
from llamapar.describe.models import PRESETS
from llamapar.frameworks.settings import MODEL, Contradiction

from .documents import Entry
from .draft import (
    Draft,
    Fact,
    Origin,
    SettingsSource,
    public,
    scalar,
    section_of,
)
from .files import Files
from .flags import Flags, is_known

# -- the model, by its name ------------------------------------------------------------------------


def named_model(source: SettingsSource, entry: Entry, spec: Values) -> None:
    """Set the model from a name. As a "hub" name it may tell that the model is no Llama."""
    draft = source.draft
    hub = spec["as"] == "hub"
    if not hub and not is_known(entry):
        return
    if not draft.take_model(str(entry.value), source.origin(entry)):
        draft.unknown |= spec.get("open", {"dims": f"from the config of {entry.value}"})
    if not hub:
        return
    draft.put("hf", str(entry.value), source.origin(entry))
    for pattern, why in _NO_LLAMA:
        if re.search(pattern, scalar(entry.value)):
            draft.covered = False
            draft.refuse(f"{entry.value}: {why}", source.origin(entry))
            drop_model(draft)
            return


_NO_LLAMA = (
    (r"mixtral|moe|-a\d+b|deepseek-v[23]|gpt-oss", "MoE"),
    (
        r"(?:^|[/_-])(?:opt|bloom|gpt2|gpt-j|gpt-neo|pythia|falcon|mpt|phi|gemma)[-\d]",
        "not Llama's architecture",
    ),
)
"""What the name of a Hub model tells → why it is no dense Llama."""


def drop_model(draft: Draft) -> None:
    """Forget what was read of a model that is not covered."""
    for name in [name for name in draft.facts if section_of(name) == MODEL]:
        del draft.facts[name]


_TUNE = re.compile(r"torchtune\.models\.\w+\.((?:q?lora_)?)(llama\d)_(?:(\d)_)?(\d+b)$")


def torchtune_model(source: SettingsSource, files: Files) -> None:
    """A builder's name is a version of Llama and a size, with an adapter in front."""
    entry = source.get("model._component_")
    match = _TUNE.match(source.text("model._component_"))
    if match and entry is not None:
        version = f"{match[2]}.{match[3]}" if match[3] else match[2]
        source.draft.take_model(f"{version}-{match[4]}", Origin(source.name, 0, entry.path))
        if match[1]:
            source.draft.refuse(f"{match[1].rstrip('_')}: less memory", source.origin(entry), "lora")
    elif entry is not None:
        source.draft.missing("model", f"{entry.value} is a table of torchtune's own")


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


def distributed_llama(source: SettingsSource, files: Files) -> None:
    """The root computes beside its workers. A file's name says the model and the type of its weights."""
    draft = source.draft
    model = source.get("model")
    workers = source.get("workers")
    text = source.text("model")
    many = 0
    if isinstance(source.held, Flags):
        many = len(source.held.values.get("workers", ()))
    source.put("tp", 1 + many, "workers")
    if workers is not None:
        draft.put("tp", 1 + many, source.origin(workers, "--workers and the root"))
    weights = re.search(r"(q40|q80|f16|f32)", text)
    if weights and (buffers := source.text("buffer-float-type")):
        source.put("dtype", f"{weights[1]} weights, {buffers} buffers", "buffer-float-type")
    match = re.search(r"llama[_-]?(\d)(?:[_.-](\d))?[_-](\d+)b", text)
    if match and model is not None:
        version = f"{match[1]}.{match[2]}" if match[2] else match[1]
        draft.take_model(f"llama{version}-{match[3]}b", source.origin(model))


_GPT2 = 50257
"""Tokens of GPT-2's vocabulary, which gpt2-vocab.json holds."""


def nemo_vocabulary(source: SettingsSource, files: Files) -> None:
    """The tokenizer's vocabulary, where it is a public model's or GPT-2's."""
    kind = source.get("model.tokenizer.type")
    file = source.get("model.tokenizer.vocab_file")
    if kind is None or "vocab_size" in source.draft.facts:
        return
    config = public(str(kind.value))
    if config is not None:
        origin = Origin(source.name, kind.line, f"the vocabulary of {config.name}")
        source.draft.put("vocab_size", PRESETS.get(config.name, config).vocab_size, origin)
    elif kind.value == "GPT2BPETokenizer" and file and file.value == "gpt2-vocab.json":
        source.draft.put("vocab_size", _GPT2, Origin(source.name, file.line, "GPT-2's vocabulary"))


# -- sharing and ranks -----------------------------------------------------------------------------


def ulysses(source: SettingsSource, files: Files) -> None:
    """Ulysses' ranks share sequences, so they are an axis of their own and not part of dp."""
    ways = source.count("parallelism_config.parallelism_config_sp_size") or 1
    draft = source.draft
    replicate = draft.number("dp_replicate") or 1
    shard = draft.number("dp_shard")
    gpus = draft.facts.get("gpus")
    # The product of the axes would otherwise not be the number of GPUs.
    if ways > 1 and shard is not None and gpus is not None and isinstance(gpus.value, int):
        draft.derive("dp", replicate * shard, f"{replicate} replicas · {shard} shards")
        draft.facts["other_axes"] = Fact({"ulysses_sp": ways}, gpus.origin)


def accelerate_mesh(source: SettingsSource, files: Files) -> None:
    """FSDP's mesh has the dims dp_shard and cp, where they are over one (parallelism_config.py)."""
    draft = source.draft
    tp = source.draft.number("tp") or 1
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

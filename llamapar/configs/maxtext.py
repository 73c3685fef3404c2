"""MaxText's key=value command: AI-Hypercomputer/maxtext src/maxtext/configs/base.yml @e591f30cbb."""

from __future__ import annotations

import math
import re

from llamapar.describe.configfile import Values

from .documents import Document, Entry
from .draft import Draft, SettingsSource, positive_number, whole_count
from .files import Files
from .shell_words import Word

_AXES = {
    "tp": ("tensor", "tensor_sequence"),
    "cp": ("context", "sequence"),
    "pp": ("pipeline",),
    "dp_replicate": ("data",),
    "dp_shard": ("fsdp",),
}
"""Degree → the axes of MaxText's mesh whose product it is."""


def read_maxtext(row: Values, files: Files, draft: Draft) -> None:
    """An axis is its ways within a slice (ici) times those between (dcn); -1 takes the rest."""
    held = dict[str, Entry]()
    name, unread = "", ""
    for file, script in files.scripts.items():
        name = file
        texts = [*script.variables.values(), *(command.words for command in script.commands)]
        starts = [dict[str, str]() for _ in texts]
        words = [(Word(part, w.line), n) for n, ws in enumerate(texts) for w in ws for part in w.text.split()]
        for word, start in words:
            config = word.text.rpartition("/")[2]
            if config.endswith(".yml") and config != "base.yml" and config not in files.documents:
                unread = config
            if match := re.fullmatch(r"([a-z]\w*)=([^=]*)", word.text):
                held[match[1]] = Entry(match[1], match[2], word.line)
                starts[start][match[1]] = match[2]
            elif re.fullmatch(r"[a-z]\w*:", word.text):
                draft.ignored.append(f"{word.text} ({name}:{word.line}) is no key=value argument")

        # A test starts several runs; which of them is meant nobody says.
        for key in held:
            several = {start[key] for start in starts[len(script.variables) :] if key in start}
            if len(several) > 1:
                held[key] = Entry(key, " or ".join(sorted(several)), held[key].line)

    def ways(axis: str) -> int | None:
        total = 1
        # -1, "the rest of the devices", is the default of fsdp within a slice and of data between slices.
        for where, default in (("ici", -1 if axis == "fsdp" else 1), ("dcn", -1 if axis == "data" else 1)):
            entry = held.get(f"{where}_{axis}_parallelism")
            said = whole_count(entry.value) if entry else None
            if entry is None and default == -1:
                draft.fills = "dp"
            if entry is not None and said is None and str(entry.value) != "-1":
                return None
            total *= said or 1
        return total

    many = {axis: ways(axis) for names in _AXES.values() for axis in names}
    fsdp = many["fsdp"]
    if "ici_fsdp_parallelism" in held and "dcn_fsdp_parallelism" in held:
        draft.fills = ""  # The remainder for data between slices is one.
    for field, names in _AXES.items():
        found = [many[name] for name in names]
        if None in found:
            draft.missing(field, f"the files give several numbers of {' and '.join(names)} ways")
        else:
            draft.derive(field, math.prod(n for n in found if n), f"ici · dcn {names[0]}")
    if fsdp is None:
        draft.missing("zero", "the files give several numbers of fsdp ways")
    else:
        draft.derive("zero", 3 if fsdp > 1 or draft.fills else 0, "fsdp axes share parameters")
    draft.derive("sequence_parallel", False, "no tensor_sequence axis")
    command = SettingsSource(Document(name, tuple(held.values())), draft, row["by"])

    def holder(key: str) -> SettingsSource:
        found = None if key in held else files.with_key(key)
        return SettingsSource(found, draft) if found else command

    source = holder("max_target_length")
    if unread and source.get("max_target_length") is None:
        draft.missing("seq_len", f"{unread} may say it, which is not in these files")
    else:
        source.take("seq_len", "max_target_length", default=2048)
    source = holder("per_device_batch_size")
    batch = source.get("per_device_batch_size")
    each = whole_count(positive_number(batch.value)) if batch else None
    if each and batch is not None:
        shared = math.prod(draft.number(axis) or 1 for axis in ("tp", "cp", "pp"))
        how = f"{batch.path} {each} · {shared} devices that share sequences"
        draft.put("micro_batch", each * shared, source.origin(batch, how))
        draft.derive("micro_batches", 1, "one batch a step")
    source = holder("remat_policy")
    if policy := source.text("remat_policy"):
        source.put("recompute", policy, "remat_policy")
    inside = [held[k] for k in held if k.startswith("ici_")]
    if inside and (product := math.prod(whole_count(e.value) or 1 for e in inside)) > 1:
        draft.derive("gpus_per_node", product, "the product of the ici degrees")
    source = holder("model_name")
    if model := source.get("model_name"):
        draft.take_model("", source.name, model)
    files.take_world(draft)

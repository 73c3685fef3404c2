"""Settings that nothing reads, and what they leave open: no default counts beside one that may change it.

A key or an argument that names a degree, a batch, a sequence or a model opens that fact, and so does one that
is a letter away from a known one. An argument also contradicts what a file says, for a command line wins.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from llamapar.errors import is_slip
from llamapar.frameworks.settings import DIMS, Contradiction

from .documents import Entry
from .draft import Draft, public, scalar, whole_count
from .launch_lines import Word

_SIZE = r"(?:_(?:size|degree|dim|ways|world_size))?"
_NAMES = {
    "tp": rf"(?:\w+_)?(?:tp|tensor(?:_model)?_parallel(?:ism)?|model_parallel){_SIZE}",
    "cp": rf"(?:\w+_)?(?:cp|sp|ulysses|context_parallel(?:ism)?|sequence_parallel){_SIZE}",
    "pp": rf"(?:\w+_)?(?:pp|pipe(?:line)?(?:_model)?_parallel(?:ism)?){_SIZE}",
    "dp": rf"(?:\w+_)?(?:dp|data_parallel(?:ism)?)(?:_(?:shard|replicate))?{_SIZE}",
    "micro_batch": r"(?:\w+_)?(?:micro_?batch_size|mbs|local_batch_size|train_batch_size_per_\w+)",
    "micro_batches": r"grad(?:ient)?_acc(?:um(?:ulation)?)?(?:_steps)?|num_micro_?batches",
    "global_batch": r"(?:global_|train_|total_)?batch_size|gbs",
    "seq_len": r"(?:max_|model_max_)?(?:seq(?:uence)?_len(?:gth)?|seq|length)|pack(?:ing|ed)\w*",
    "n_kv_heads": r"\w*(?:kv_?heads?|kv_head_count|query_?groups?|proj_?groups?)\w*",
    "zero": r"\w*(?:distributed_?optimizer|zero_?stage)\w*",
    "ffn_dim": r"(?:\w+_)?(?:moe|experts?)(?:_\w+)?",
    "model": r"model(?:_name)?(?:_or_path)?|model_path|base_model|model_size|flavou?r",
}
"""Fact → names of keys and arguments that say it, in lower case and with underscores."""

_SILENT = ("n_kv_heads", "zero", "ffn_dim")
"""Facts that such a name opens only where nothing else says them."""

_SAVING = {
    "offload": re.compile(r"offload(?:ing|ed)?"),
    "lora": re.compile(r"q?lora|dora|peft"),
    "4-bit": re.compile(r"qlora|quant(?:ized?|ization)?"),
}
"""What takes less memory than is counted, as in `saves` of `memory` → words of keys that say it."""

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_OFF = ("", "none", "null", "false", "no", "off", "0", "1", "-1", "disabled")


def question(draft: Draft, unread: Iterable[tuple[str, Entry]]) -> None:
    """Open what the unread settings may say."""
    asked = {_bare(path) for _, path, _ in draft.asked}
    wanted = {key: _bare(key) for key in draft.wanted}
    for name, entry in unread:
        said = f"{entry.path} {entry.value} ({name}:{entry.line})"
        bare = _bare(entry.path)
        key = entry.path.rpartition(".")[2].lstrip("-+").replace("-", "_").lower()
        for field, names in _NAMES.items():
            if re.fullmatch(names, key):
                _open(draft, field, entry, said)
        # The same key in another section is no slip.
        meant = []
        if bare not in asked:
            meant = [key for key, known in wanted.items() if is_slip(bare, known)]
        if meant:
            beside = entry.path.rpartition(".")[0]
            nearest = next((key for key in meant if key.rpartition(".")[0] == beside), meant[0])
            slip = f"{entry.path} ({name}:{entry.line}) is not read: did you mean {nearest}?"
            draft.notes.append(slip)
            for field in {draft.defaulted[key]: None for key in meant if key in draft.defaulted}:
                draft.missing(field, slip)
        words = {word.lower() for word in _WORDS.findall(entry.path)}
        if {"float", "8"} <= words:
            continue  # torchtitan's quantize.linear.float8 is of matmuls, and keeps the weights
        for saved, telling in _SAVING.items():
            if draft.covered and scalar(entry.value) not in _OFF and any(map(telling.fullmatch, words)):
                draft.refuse(f"{said}: may take less memory", saves=saved)


def _open(draft: Draft, field: str, entry: Entry, said: str) -> None:
    """Open a fact, unless the setting says what is known, or nothing. Arguments have a file of their own."""
    old = draft.facts.get(field)
    value = scalar(entry.value)
    if field == "model":
        config = public(str(entry.value))
        names = {str(draft.get(name)) for name in ("preset", "hf", "name")}
        if not entry.file or entry.value is True or names & {str(entry.value), config.name if config else ""}:
            return
        for name in (*DIMS, "preset"):
            draft.facts.pop(name, None)
    else:
        if field in ("global_batch", "micro_batches") and not entry.file:
            return  # A section of a file may have batches of its own, as for an evaluation.
        counts = whole_count(entry.value) is not None or field == "zero" or (entry.file and "$" in value)
        same = old is not None and old.value == whole_count(entry.value)
        # What a file says under one key is not taken back for another key of it.
        said_there = old is not None and old.origin.line and not (entry.file and field not in _SILENT)
        if not counts or same or said_there or value in _OFF[1:6]:
            return
        if field == "ffn_dim" and "preset" in draft.facts:
            return
    draft.missing(field, f"{said} may say it")
    draft.doubted.add(field)
    if entry.file and field not in _SILENT:
        values = (old.value if old else "unknown", entry.value)
        draft.contradictions.append(Contradiction(field, values, f"{said} is not read"))


_OF_A_FRAMEWORK = ("dp_replicate",)
"""Facts that hold for a framework whatever its arguments are."""

_BY_SWITCHES = ("layer_split", "recompute")
"""Facts that a switch sets, and that no reader mentions without one."""


def question_unresolved(draft: Draft, word: Word, file: str) -> None:
    """Open every fact that nothing sets, where a word of a command may hold further arguments."""
    why = f"{word.text} ({file}:{word.line}) may say it"
    for field, fact in [*draft.facts.items()]:
        if not fact.origin.line and field not in _OF_A_FRAMEWORK:
            draft.missing(field, why)
    for field in _BY_SWITCHES:
        if field not in draft.facts:
            draft.missing(field, why)
    # Only after the reader is it known which degree would take what is left of the GPUs.
    draft.fills = ""


def _bare(key: str) -> str:
    """A key's last part, without dashes and underscores."""
    return re.sub(r"[-_]", "", key.rpartition(".")[2].lower())

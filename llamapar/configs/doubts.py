"""Doubts about the settings read: keys that look misspelt, keys of forks that may replace a default, and
numbers in a file's name that contradict the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from llamapar.errors import is_slip
from llamapar.frameworks.settings import Contradiction

from .documents import Entry
from .draft import Draft, scalar, whole_count
from .flags import Flags
from .shell_words import HOLE


def question_spelling(draft: Draft, unread: Iterable[tuple[str, Entry]]) -> None:
    """Ask about an unread key one letter away from a known one; that one's default then does not count."""
    asked, wanted = {_bare(path) for _, path, _ in draft.asked}, {key: _bare(key) for key in draft.wanted}
    for name, entry in unread:
        bare = _bare(entry.path)
        meant = [key for key, known in wanted.items() if is_slip(bare, known)]
        if not meant or bare in asked:  # the same key in another section is no slip
            continue
        beside = entry.path.rpartition(".")[0]
        nearest = next((key for key in meant if key.rpartition(".")[0] == beside), meant[0])
        said = f"{entry.path} ({name}:{entry.line}) is not read: did you mean {nearest}?"
        draft.notes.append(said)
        # A default that counts although the person set the value under a misspelt key would be asserted
        # wrongly.
        for field in {draft.defaulted[key]: None for key in meant if key in draft.defaulted}:
            draft.missing(field, said)


_TELLING = {
    "n_kv_heads": re.compile(r"kv_?head|query_?group|proj_?group"),
    "zero": re.compile(r"distributed_?optimizer|zero_?stage"),
}
"""Field → words of a fork's own key that may set it, so that the default is no longer certain."""


def question_silence(draft: Draft, unread: Iterable[tuple[str, Entry]]) -> None:
    """Ask whether an unknown key sets a value for which otherwise the default would count."""
    for name, entry in unread:
        key = entry.path.rpartition(".")[2].replace("-", "_").lower()
        for field, words in _TELLING.items():
            fact = draft.facts.get(field)
            # A fact without a line came from a default and not from the files.
            silent = fact is not None and not fact.origin.line and entry.value not in (None, False, 0)
            if silent and words.search(key):
                draft.missing(field, f"{entry.path} {entry.value} ({name}:{entry.line}) may say it")


_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_OFF = ("", "none", "null", "false", "no", "off", "0", "1", "-1", "disabled")
_SAVING = {
    "offload": ("offload", "offloading", "offloaded"),
    "lora": ("lora", "qlora", "dora", "quant", "quantize", "quantized", "quantization"),
}
"""What takes less memory than is counted, as in `saves` of `memory` → words of keys that say it."""

_OPENED = {
    "cp": ("cp", "ulysses"),
    "ffn_dim": ("expert", "experts", "moe"),
    "seq_len": ("packing", "packed"),
}
"""Field → words of keys that may set it or change what it means."""


def question_unread(draft: Draft, unread: Iterable[tuple[str, Entry]]) -> None:
    """Open the figure that a key touches which nothing here reads: what it says is then not certain."""
    for name, entry in unread:
        if scalar(entry.value) in _OFF or not draft.covered:
            continue
        words = {word.lower() for word in _WORDS.findall(entry.path)}
        said = f"{entry.path} {entry.value} ({name}:{entry.line})"
        for saved, telling in _SAVING.items():
            if words.intersection(telling):
                draft.refuse(f"{said}: may take less memory", saves=saved)
        for field, telling in _OPENED.items():
            # A switch changes neither a length nor a degree, and a published model has its own width.
            applies = "preset" not in draft.facts if field == "ffn_dim" else whole_count(entry.value)
            if applies and words.intersection(telling):
                draft.missing(field, f"{said} may say it")


_OF_A_FRAMEWORK = ("dp_replicate",)
"""Facts that hold for a framework whatever its arguments are."""


_BY_SWITCHES = ("layer_split", "recompute")
"""Facts that a switch sets, and that no reader mentions without one."""


def question_unresolved(draft: Draft, flags: Flags) -> None:
    """Ask about every fact that no argument sets, where a word of the command may hold further arguments."""
    if flags.unresolved is None:
        return
    why = f"{flags.unresolved.text.replace(HOLE, '$')} ({flags.name}:{flags.unresolved.line}) may say it"
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


_IN_NAMES = re.compile(
    r"(?<![a-z0-9])(?:(?P<axis>tp|cp|pp|dp)[-_=]?(?P<degree>[0-9]{1,4})"
    r"|(?P<nodes>[0-9]{1,5})[-_]?(?:nodes?)|(?P<gpus>[0-9]{1,6})[-_]?(?:gpus?))(?![a-z0-9])"
)


def question_name(draft: Draft, name: str) -> None:
    """Ask about numbers in a file's name that contradict the file."""
    for match in _IN_NAMES.finditer(name.lower()):
        field_name = match["axis"] or "gpus"
        said, found = int(match["degree"] or match["gpus"] or match["nodes"]), draft.number(field_name)
        # Nodes say the GPUs only where it is known how many each has.
        if match["nodes"]:
            each = draft.number("gpus_per_node")
            said, found = said * (each or 0), found if each else None
        if found is not None and found != said:
            why = f"the file's name says {match.group()}, its settings {found}"
            draft.contradictions.append(Contradiction(field_name, (said, found), why))

"""The rows of `formats.toml`: by which marks files are recognised, and how a row's keys find settings.

The formats of settings that are read, in the order in which they are tried: a special format stands before
the general one that its files also fit. To read another trainer's settings, add a row.

title, framework  what the format is called, and the framework whose rules judge it (none: the paper's)
by                whose defaults count, with the place where they stand
reader            "nobody": the format is recognised and refused, so that it is not taken for another one; or
                  a
                  function in `mapped.py:READERS`, where a row would be a program
training          false: nothing is trained, so batch sizes are not asked for
launch            false: what the scripts start is not the run
variables         of a script, for the nodes and the ranks of each
named             a command names the file of settings; without that file no default counts
references        values may name other keys, as ${.key}
before, beside    other formats whose files a run may have too, read before and after its own
oddities          functions of `oddities.py`, `torchtitan.py` and `megatron.py`, for what a row cannot say

recognised        marks, of which one is enough. All that a mark says has to hold:
  keys            a file of settings has one of these keys, or a section of that name
  flags           a command has one of these arguments
  command         a pattern of some command or variable of a script, or several
  text            a pattern of some Python file
  beside          the same file, or some command, has one of these too
  two             and two of these
  arguments       the section that holds the arguments of a command
  base            what the file changes, which is not among the files: no default counts
settings          where the settings stand (marks again), if not in what was recognised
unseen            fact = "why it is unknown", if no settings are found; without it nothing is known then

[format.fields]   fact = "key", or ["key", "older key"], or a table; of several tables the last that says
                  something counts. "--name" is an argument of a command; where a field has one, a command is
                  asked for no other name.
  as              how the value is read:
                  "count" (without `as`), "number", "text", "word" (text as it is written), "stage" (of ZeRO),
                  "padding" (rows of a rank), "model" (a name), "hub" (a repository's name),
                  "switch" (true and false become `on` and `off`), "on" (the same, of any word),
                  "within" (the value of the first word that is part of the text), "values" (no other than
                  these),
                  "other" (whatever it is, `other`), "elsewhere" (it names a file that says it)
  values          text = value, asked first; "none" is null. A value "" says nothing
  absent          texts that mean "not given"
  strip           what a text may begin with
  default         the value where the key is absent; why: its reason
  needs           the default counts only where one of these facts is known
  missing         why the fact is unknown where the key is absent
  fills           a degree that takes what is left of the GPUs where the key is absent
  like            another fact whose value it has then; times: a factor; over: a key that divides it
  product         the keys of two numbers
  agrees          another value that was read before is a contradiction
  else            only where no table before has said something
  where           conditions, of which each has to hold: a key that is on; or with over (a number), not
                  (texts),
                  matches (a pattern), off. Texts are compared in lower case. default: the value of an absent
                  key
  open            fact = "why it is unknown", for a model that no table has
[[format.refuse]] a condition, and what is then not counted; saves: as in `memory`; covered = false: the model
                  is not covered; drops: nothing of it is kept
[format.other_model]  signs of a model that is no Llama: conditions, each with `what`, asked once the width is
                  known. One may be a fork's own setting; with two the model is not covered. unless: a key
                  with
                  which nothing is asked
[format.fixed]    fact = [value, "why"]: what the trainer always does
[format.unknown]  fact = "why": what its settings never say
[format.ignored]  key = "why": what has no effect
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from llamapar.describe.configfile import Values

from .documents import UNREAD, Document, Entry
from .draft import OFF, SettingsSource, as_list, scalar, whole_count
from .files import Files
from .flags import Flags

ROWS: list[Values] = tomllib.loads(Path(__file__).with_name("formats.toml").read_text("utf-8"))["format"]
"""The formats, in the order in which they are tried."""


def settings_at(files: Files, mark: Values) -> Document | None:
    """The file or command that a mark describes."""
    if keys := mark.get("keys"):
        found = files.with_key(*keys)
        if found is not None and "arguments" in mark:
            # A false of the section stands for a switch that is not given.
            said = (entry for entry in found.under(mark["arguments"]) if entry.value is not False)
            given = (Entry(entry.path.partition(".")[2], entry.value, entry.line) for entry in said)
            return Flags(found.name, tuple(given))
        if found is not None and "base" in mark:
            return found.overridden([Entry(mark["base"], UNREAD, 0)])
        return found
    if "flags" in mark:
        return files.flags(*mark["flags"])
    return None


def bears(files: Files, mark: Values) -> bool:
    """Whether the files bear a mark: all that it says holds."""
    found = settings_at(files, mark)
    if found is None and mark.keys() & {"keys", "flags"}:
        return False
    if found is not None and (beside := mark.get("beside")):
        also = files.flags(*beside) if "flags" in mark else found.get(*beside)
        if also is None:
            return False
    if found is not None and sum(found.get(key) is not None for key in mark.get("two", ())) == 1:
        return False
    sources = [text for name, text in files.texts.items() if name.endswith(".py")]
    if "text" in mark and not any(re.search(mark["text"], text) for text in sources):
        return False
    patterns = as_list(mark.get("command", []))
    return all(any(re.search(each, line) for line in files.command_lines()) for each in patterns)


def holds(source: SettingsSource, condition: Values) -> tuple[bool, Entry | None]:
    """Whether a setting is as a condition says, and the setting."""
    entry = source.find(condition["key"], whole=True)
    value = entry.value if entry and entry.value is not None else condition.get("default")
    text = ""
    if value is not None:
        text = scalar(value)
    if "over" in condition:
        return (whole_count(value) or 0) > condition["over"], entry
    if "not" in condition:
        return value is not None and text not in condition["not"], entry
    if "matches" in condition:
        return re.search(condition["matches"], text) is not None, entry
    on = text not in ("", *OFF)
    return on is not condition.get("off", False), entry

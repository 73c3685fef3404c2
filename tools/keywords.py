"""The options of public functions as TypedDicts, written from the table of options. For authors.

    python tools/keywords.py            # write them anew, each where it stands
    python tools/keywords.py --check    # write nothing; exit 1 where a file would change

Type checkers read a TypedDict's names and types from source alone, so they have to be written out. Which
names there are is known already: they are fields of `Layout`, `Job` or `RunOptions`, arguments of `memory`,
`cost` or `plan`, facts of `explain`, or controls of a panel. The type is the field's or the argument's own,
or follows from the table in llamapar/describe/options.py. Functions take them as `Unpack[…]` (PEP 692).
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import fields
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(PROJECT))

import llamapar  # noqa: E402
from llamapar.describe.job import Job  # noqa: E402
from llamapar.describe.options import OPTIONS, default  # noqa: E402
from llamapar.diagnosis.known import ARGUMENTS  # noqa: E402
from llamapar.execution.run_options import RunOptions  # noqa: E402
from llamapar.panels import clinic_panel, controls, watch_state  # noqa: E402
from llamapar.panels.ladders_of_jobs import JOBS  # noqa: E402
from llamapar.panels.ladders_of_maps import MAPS  # noqa: E402

Types = dict[str, str]
"""The name of an option → its type, as source."""

PADDING = "str | Padding | None"
PROGRESS = {"Progress | None": "Callable[[int, int], object] | None"}
"""A name of `plan`'s own file, which imports the file with its TypedDict."""


def fields_of(record: type, *without: str) -> Types:
    """Fields of a dataclass."""
    return {field.name: str(field.type) for field in fields(record) if field.name not in without}


def arguments_of(function: Callable[..., object], *without: str) -> Types:
    """Keyword arguments of a public function, its degrees left out."""
    found = inspect.signature(inspect.unwrap(function), follow_wrapped=False).parameters.values()
    kinds = {p.name: str(p.annotation) for p in found if p.kind is p.KEYWORD_ONLY and p.name not in without}
    return {name: PROGRESS.get(kind, kind) for name, kind in kinds.items()}


DEGREES = fields_of(llamapar.Layout)
OF_MODULES = ("dtype", "seed", "seq_len", "global_batch")


def options(names: Iterable[str], function: str = "", typed: bool = False) -> Types:
    """Options of the table. typed: a number may be a text, as a person types it: "16k"."""
    found = {}
    for name in names:
        option = OPTIONS.get(name)
        kinds = [option.kind.__name__.replace("tuple", "tuple[int, ...]") if option else "str"]
        kinds += ["str"] * (typed and bool(option and option.is_count))
        kinds += ["None"] * (default(name, function) is None)
        found[name] = " | ".join(kinds)
    return found | ({"padding": PADDING} if "padding" in found else {})


def made() -> dict[str, Types]:
    """The name of each TypedDict → its options."""
    job = DEGREES | fields_of(Job, "model", "layout", "padding") | {"gpu": "GpuLike | None"}
    check = {"framework": "str | None", "padding": PADDING} | job
    beside = {"layout": "LayoutLike"}  # settings say the model, and most often the layout
    facts = dict.fromkeys(ARGUMENTS.values(), "int | str | None")  # a change is "1->2"
    shown = [name for found in (MAPS | JOBS).values() for name in found.opens if name != "model"]
    live = options(dict.fromkeys(shown)) | {"virtual_stages": "int | None"}  # None: the schedule's own
    explorer = options(controls.DEFAULTS, "explorer", typed=True)
    explorer |= {"gpu": "GpuLike", "preset": "ModelLike", "documents": "str | tuple[int, ...] | None"}
    clinic = options(clinic_panel.FIELDS, "clinic", typed=True) | {"model": "ModelLike | None"}
    of_modules = fields_of(RunOptions)
    return {
        "Degrees": DEGREES,
        "JobKeywords": job,
        "CheckKeywords": check,
        "CheckSettings": beside | check,
        "MemoryKeywords": arguments_of(llamapar.memory, "seq_len", "accounting") | DEGREES,
        "CostSettings": beside | arguments_of(llamapar.cost) | DEGREES,
        "PlanSettings": {"gpus": "int"} | arguments_of(llamapar.plan),
        "ExplainKeywords": facts,
        "RunKeywords": fields_of(RunOptions, "layout") | DEGREES,
        "TapeKeywords": fields_of(RunOptions, "layout", "force") | DEGREES,
        "CompareKeywords": {name: of_modules[name] for name in OF_MODULES} | DEGREES,
        "LiveKeywords": live,
        "WatchKeywords": DEGREES | options([*watch_state.OPTIONS, "data", "case"]),
        "ExplorerKeywords": explorer,
        "ClinicFields": clinic,
        "ClinicKeywords": {"text": "str | BaseException"} | clinic,
    }


def written() -> dict[Path, str]:
    """Each file with a TypedDict → its text, with every TypedDict as it should be."""
    dicts, found = made(), {}
    for path in sorted((PROJECT / "llamapar").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for name in re.findall(r"^(\w+) = TypedDict\(", text, re.MULTILINE):
            rows = "".join(f'        "{option}": "{kind}",\n' for option, kind in dicts.pop(name).items())
            new = f'    "{name}",\n    {{\n{rows}    }},\n    total=False,\n'
            text = re.sub(rf"(?ms)^({name} = TypedDict\([^\n]*\n).*?^\)", lambda old: f"{old[1]}{new})", text)  # noqa: B023
            found[path] = text
    assert not dicts, f"no file of llamapar has {', '.join(dicts)} = TypedDict("
    return found


if __name__ == "__main__":
    from generated import settle  # It lies beside this script.

    sys.exit(settle(__doc__, files := written(), files))

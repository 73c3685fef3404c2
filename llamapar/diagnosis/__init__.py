"""Explain an error text, an exception or an observed shape: find the cause behind its numbers.

A text becomes observations (`observations`: relations and roles, not whole messages). Where two sizes meet
(`meetings`), cuts of known sizes by known degrees come first, then the kind of tensor (`tensors`, `views`),
then cuts of assumed sizes and degrees. Every cut is a `cuts.Cut`, from the placement table and the framework
data that `check` uses, and `slips` turns it into causes. `causes` and `counts` read relations of counts,
`limits` reads memory, counters and checkpoints, and `engine` ranks all hypotheses. Words without numbers are
no evidence, unless they are a framework's own: `steps` then says how to go on. No text is ever evaluated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Unpack, cast

from llamapar.describe.arguments import named_options
from llamapar.describe.keywords import ExplainKeywords
from llamapar.describe.layout import Layout, LayoutLike
from llamapar.describe.models import ModelLike
from llamapar.describe.models import model as find_model
from llamapar.describe.options import OPTIONS
from llamapar.errors import MAX_SIZE, one_of, shown, whole
from llamapar.late import offered

from .explanation import Diagnosis, Explanation, Said
from .hypothesis import Level
from .known import FACTS, Known
from .vocabulary import CATEGORIES, NOT_SHARDING, SHARDING, SUBTYPES, UNKNOWN, VERDICTS


@named_options("explain")
def explain(
    what: Any = None,
    model: ModelLike | None = None,
    layout: LayoutLike | None = None,
    framework: str | None = None,
    *,
    context: Mapping[str, Any] | None = None,
    **facts: Unpack[ExplainKeywords],
) -> Explanation:
    """Explain why this error, or this shape, came about: a verdict, with the causes likeliest first.

    what: a text of any length (a line, a traceback, a log), an exception, whose frames give live facts too,
        a shape such as (16064, 8192), a mapping from a tensor's name to its shape, or a Result, which
        supplies its model and layout;
        for a log larger than memory, an open file or another iterator of its lines, which is read in
        bounded memory;
        for a run that hangs, the pathlib.Path of a folder with torch's flight records, one file for each
        rank. They are read as data; layout and model say which group waits, and for what.
    model: a preset's name, a ModelConfig, a config.json or its dict; a public model's name in free words
        ("Llama-2-70b-hf") also works. layout: a Layout or a dict of degrees, which may be partial.
    framework: the framework whose wording and rules to prefer.
    facts: other known facts: degrees, gpus, n_heads, n_kv_heads, dim, seq_len and so on, each by its
        name; a change is given as "1->2".
    context: the same facts, model, layout and framework, under the names of the program that reports them
        ("heads", "num_attention_heads": `known.FACTS` lists all); unknown names are ignored.

    Raises ModelError or LayoutError for a model, layout or framework that is itself broken, and for an
    argument that is no known name and holds no number. An unknown model in `context` is named in the answer.
    """
    from .engine import explain_lines, explain_text
    from .of_error import explain_error

    said = {name: value for name, value in facts.items() if value is not None}
    by_argument = model is not None
    # A mapping may be partial, so it need not make a Layout.
    arguments: dict[str, object] = {**layout, **said} if isinstance(layout, Mapping) else {**said}
    if not isinstance(layout, Mapping | None):
        layout = Layout.of(layout)
    if context is not None:
        given = dict(context)
        if model is None:
            model = given.pop("model", None)
        if layout is None:
            layout = given.pop("layout", None)
        if framework is None:
            framework = given.pop("framework", None)
        said = given | said
    known = Known.of(model, layout, framework, said)
    if known.unknown_model and (by_argument or what is None):
        find_model(known.name)  # This says which names are near.
    for name, value in arguments.items():
        _refuse_unread(name, value, known)
    if isinstance(what, Path):
        return cast("Explanation", offered("hangs", "explain_dumps")(what, known))
    if hasattr(what, "explanation"):  # A Result, whose room may not be imported here.
        failed: Explanation = what.explanation or Explanation(UNKNOWN, "no rank raised anything")
        return failed
    if isinstance(what, BaseException):
        return explain_error(what, known)
    text = _text_of(what)
    if isinstance(text, str):
        return explain_text(text, known)
    return explain_lines(text, known)


def _text_of(what: Any) -> str | Iterator[str]:
    """Bytes and shapes as text, an open file or another iterator as its lines."""
    if isinstance(what, bytes | bytearray):
        return what.decode("utf-8", "replace")
    if isinstance(what, Iterator) or hasattr(what, "readline"):
        return (line.decode("utf-8", "replace") if isinstance(line, bytes) else str(line) for line in what)
    if isinstance(what, str):
        return what
    if isinstance(what, Mapping):
        return "\n".join(f"{name} is {_shape(s)}" for name, s in list(what.items())[:50])
    return f"tensor is {_shape(what)}"


def _refuse_unread(name: str, value: object, known: Known) -> None:
    """Raise LayoutError for an argument of `explain` that is no choice, or that no number was read from."""
    if name not in FACTS:
        one_of("layout", name, Layout.__dataclass_fields__)
    elif FACTS[name] not in {*known.numbers, *known.changes}:
        whole(name, value, int(name != "zero"), OPTIONS[name].most if name in OPTIONS else MAX_SIZE)


def _shape(what: object) -> str:
    """A shape, or the shape of a tensor, as "[16064, 8192]"."""
    shape = getattr(what, "shape", what)
    if isinstance(shape, list | tuple):
        return str(list(shape))
    return shown(what, 2000)


__all__ = [
    "CATEGORIES",
    "NOT_SHARDING",
    "SHARDING",
    "SUBTYPES",
    "UNKNOWN",
    "VERDICTS",
    "Diagnosis",
    "Explanation",
    "Level",
    "Said",
    "explain",
]

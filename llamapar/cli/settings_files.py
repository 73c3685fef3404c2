"""`--config` and `--launch`: your own files of settings, read and then judged, timed or planned for."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from llamapar.describe.options import LAYOUT
from llamapar.errors import LlamaparError
from llamapar.frameworks.settings import JOB_FACTS, Settings
from llamapar.late import late

from .commands import CommandAnswer, Given
from .output import as_text, error_as_dict

KNOWN = ("model", *JOB_FACTS)
"""What a person says beside the files."""


def of_settings(
    given: Given,
    make: Callable[[Settings], CommandAnswer],
    if_known: Callable[[Settings, Callable[..., Settings]], list[str]] = lambda settings, read: [],
    **nothing: object,
) -> CommandAnswer:
    """The settings in the named files, with the answer made from them below.

    if_known: if the files are too incomplete for an answer, the answers with values of what is missing; it
    gets the settings, and what reads them with other known facts. nothing: the data's value then.
    """
    typed = given.of(*LAYOUT)
    if typed:
        name = next(iter(typed))
        why = "the layout is read from the files"
        choose = ["what the framework's command takes, after --", "the command without --config"]
        raise LlamaparError(f"{name}={typed[name]} beside files of settings", why, choose, name)
    read = partial(late("read_settings"), *given.files, overrides=given["overrides"])
    settings: Settings = read(known=given.of(*KNOWN))
    if given.values.get("settings"):
        return CommandAnswer(True, lambda: as_text(settings), settings.as_dict)
    try:
        made = make(settings)
    except LlamaparError as problem:
        made = _too_little(problem, if_known(settings, read), nothing)
    if made.ok and given.of("export"):  # The output is settings to run with, so add nothing around them.
        return made
    return CommandAnswer(
        made.ok,
        lambda: f"{as_text(settings)}\n\n{made.text()}",
        lambda: {**made.data(), "settings": settings.as_dict()},
    )


def _too_little(problem: LlamaparError, tried: list[str], nothing: dict[str, object]) -> CommandAnswer:
    return CommandAnswer(
        False,
        lambda: "\n".join([f"not judged: {problem}", *(f"  if   {line}" for line in tried)]),
        lambda: {"ok": None, **nothing, "error": error_as_dict(problem), "if_known": tried},
    )

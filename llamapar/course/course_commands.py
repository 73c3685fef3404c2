"""The commands of the course as rows: `llamapar course` and `lesson`."""

from __future__ import annotations

from collections.abc import Mapping

from llamapar.cli.commands import Command, CommandAnswer, Given, answer_of, returned
from llamapar.cli.output import patience


def _lesson(given: Given) -> CommandAnswer:
    """The script of a lesson, or a sentence for each file that was written."""
    from .lessons import lesson, require_new  # Here, because the help of a command needs only its row.

    require_new(*given.of("out", "slides").values())
    with patience("works out the answers"):
        found = returned(given, lesson)
    written = found.write(**given.of("out", "slides"))
    return CommandAnswer(
        True, lambda: "\n".join(written) or found.text(), lambda: found.as_dict() | {"written": written}
    )


def _course(given: Given) -> CommandAnswer:
    """The files that were copied, if no server is to follow."""
    from .opening import open_course

    return answer_of(given, returned(given, open_course))


COURSE_COMMANDS: Mapping[str, Command] = {
    "course": Command(
        "copy the course's notebooks into a folder, and open them in JupyterLab",
        "course",
        "llamapar course llama-course\n  llamapar course llama-course --no-browser --port 8889",
        exits="0 copied, and the status of JupyterLab once it has ended",
        positional=(
            ("folder", "folder for the copies (default: llamapar-course); no file in it is overwritten"),
        ),
        answer=_course,
    ),
    "lesson": Command(
        "a script and slides for a session on a notebook of the course, or on a section of a paper",
        "lesson",
        "llamapar lesson paper-3.3 --minutes 60 --slides slides.html\n"
        "  llamapar lesson 03_attention_heads --out script.md",
        exits="0 written",
        positional=(("name", "paper-3.3, or a notebook: 03_attention_heads, 03, or its path"),),
        needs={"name": ("a lesson is needed", "", ("llamapar lesson 03", "llamapar lesson paper-3.3"))},
        answer=_lesson,
        helps={"out": "new file for the script, in Markdown (default: the output)"},
    ),
}
"""Name → the command `llamapar NAME`."""

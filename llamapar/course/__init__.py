"""What the notebooks import: questions with their answer boxes, exercises, puzzles and progress.

`exercises` is the door: `predict("…")` and `check("…")` look up a question by its name. The questions of a
lesson stand in `questions_of_….py`, each with a truth that the library computes. `boxes` asks them, `guesses`
judges, `puzzles` runs what a reader wrote on real ranks, and `progress` keeps what was answered. `lessons`
makes a script for a reading group of the notebooks, which `notebook_cells` reads.
"""

OFFERS = {"COURSE_COMMANDS": "course_commands"}
"""What the doors get from this room → its module."""


def __getattr__(name: str) -> object:
    """`course.collective`, imported when it is used: the commands lie here as well, without widgets."""
    if name != "collective":
        raise AttributeError(f"llamapar.course has no {name!r}")
    from .collective_costs import collective

    return collective

"""What the notebooks import: questions with their answer boxes, exercises, puzzles and progress.

`exercises` is the door: `predict("…")` and `check("…")` look up a question by its name. The questions of a
lesson stand in `questions_of_….py`, each with a truth that the library computes. `boxes` asks them, `guesses`
judges, `puzzles` runs what a reader wrote on real ranks, and `progress` keeps what was answered. `lessons`
makes a script for a reading group of the notebooks, which `notebook_cells` reads.
"""

from importlib import import_module

OFFERS = {"COURSE_COMMANDS": "course_commands", "SUBJECTS": "lesson_pictures"}
"""What the doors get from this room → its module."""


PICTURES = {"collective": "collective_costs", "overlap": "overlap_pictures", "roofline": "overlap_pictures"}
"""Pictures with knobs that lessons import → their modules."""


def __getattr__(name: str) -> object:
    """A picture of PICTURES, imported when it is used: the commands lie here as well, without widgets."""
    if name not in PICTURES:
        raise AttributeError(f"llamapar.course has no {name!r}")
    return getattr(import_module(f".{PICTURES[name]}", __name__), name)

"""How the numbers of a module that a plan cut differ from the whole module's: where in them, and why.

Its outputs are looked at, or where those are right its gradients. What the rows of a dim are is found by
their number, in the module's config.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from torch import Tensor

from llamapar.describe.models import model as find_model
from llamapar.errors import LlamaparError

from .differences import Difference, first_kind, tell
from .ends import End, pieces_of
from .module_reading import Culprit, Part, part_of, taken
from .module_run import ModuleOutcome
from .module_task import ModuleTask, sequences
from .patterns import UNITS, Axis, Pieces, axes_of, pattern_of
from .rows import GRADIENT, OUTPUT, Row
from .wrappers import inner_module


def module_difference(
    task: ModuleTask,
    rows: Sequence[Row],
    one: ModuleOutcome,
    outcomes: Mapping[int, ModuleOutcome],
    culprit: Culprit | None,
) -> Difference:
    """How the rows of a module that differ do so. one, outcomes: of the whole module and of its ranks."""
    first = first_kind(rows)
    story = Difference(f"{first[0].kind} {', '.join(row.name for row in first)}", ranks=first[0].ranks)
    if culprit is not None:
        story.line = f"{culprit.name or 'the module itself'}: {culprit.words}"
    degrees = dict[str, float]({axis: task.layout.size(axis) for axis in task.layout.axes})
    found = list[tuple[Pieces, str]]()
    for end in _ends(task, first, one, outcomes):
        t = pieces_of(end, _axes(task, end.whole.shape))
        # The cut of an output is not known, only the sequences of a rank.
        if t.ranks and not (end.kind == OUTPUT and t.missing):
            found.append((t, pattern_of(t, task.layout, degrees)))
    tell(story, found)
    return story


def _ends(
    task: ModuleTask, rows: Sequence[Row], one: ModuleOutcome, outcomes: Mapping[int, ModuleOutcome]
) -> Iterator[End]:
    """The first output, or those gradients of which the ranks hold parts that are known."""

    def take_of(parts: Mapping[int, Part]) -> Callable[[Tensor, int], Tensor]:
        return lambda t, rank: taken(t, parts[rank])

    coords = {rank: task.layout.coord_of(rank)._asdict() for rank in outcomes}
    if rows[0].kind == OUTPUT:
        outputs = {rank: outcome.outputs[0] for rank, outcome in outcomes.items()}
        yield End(
            OUTPUT, "out", one.outputs[0], outputs, lambda t, rank: sequences(task, "", t, coords[rank])
        )
    for name in [row.name for row in rows if row.kind == GRADIENT and row.name in one.gradient]:
        parts = {rank: part_of(outcome.here[name], one.here[name]) for rank, outcome in outcomes.items()}
        known = {rank: part for rank, part in parts.items() if part is not None}
        if len(known) == len(outcomes):
            owns = {rank: outcome.gradient.get(name) for rank, outcome in outcomes.items()}
            yield End(GRADIENT, name, one.gradient[name], owns, take_of(known))


def _axes(task: ModuleTask, shape: Sequence[int]) -> list[Axis]:
    """What the dims of a module's tensor are, by its config."""
    config = getattr(inner_module(task.made("meta")), "config", None)
    sizes = {"batch": task.batch}
    try:
        model = find_model(vars(config) | getattr(config, "to_dict", dict)())
    except (LlamaparError, TypeError):
        return axes_of(shape, sizes, 1)
    sizes |= {name: getattr(model, name) for name in UNITS if hasattr(model, name)}
    return axes_of(shape, sizes, model.head_dim)

"""How the numbers of a module that a plan cut differ from the whole module's: where in them, and why.

Its outputs are looked at, or where those are right its gradients. What the rows of a dim are is found by
their number, in the module's config.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from torch import Tensor
from torch.utils._pytree import tree_leaves

from llamapar.describe.models import ModelConfig
from llamapar.describe.models import model as find_model
from llamapar.errors import LlamaparError
from llamapar.place.cut import Cut

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
    cut = _cut(task, one)
    found = list[tuple[Pieces, str]]()
    for end in _ends(task, first, one, outcomes):
        t = pieces_of(end, ())
        t = replace(t, axes=_axes(task, t, cut.model))
        # The cut of an output is not known, only the sequences of a rank.
        if t.ranks and not (end.kind == OUTPUT and t.missing):
            found.append((t, pattern_of(t, task.layout, degrees)))
    tell(story, found, cut)
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


def _cut(task: ModuleTask, one: ModuleOutcome) -> Cut:
    """Who holds what of the module's model, as the placement table has it; of a module without a config what
    its tensors say of it.
    """
    config = getattr(inner_module(task.made("meta")), "config", None)
    try:
        model = find_model(vars(config) | getattr(config, "to_dict", dict)())
    except (LlamaparError, TypeError):
        layers = [int(n) for name in one.here for n in re.findall(r"\blayers\.(\d+)\.", name)]
        model = ModelConfig(1, max(layers, default=0) + 1, 1, 1, 1, 1)
    return Cut(model, task.layout, seq_len=_tokens(task), kv_replication=task.layout.tp > model.n_kv_heads)


def _tokens(task: ModuleTask) -> int | None:
    """The tokens of a sequence: dim 1 of the first input that has one."""
    given = (t for t in tree_leaves(task.given) if isinstance(t, Tensor) and t.dim() > 1)
    return next((t.shape[1] for t in given if t.shape[0] == task.batch), None)


def _axes(task: ModuleTask, t: Pieces, model: ModelConfig) -> list[Axis]:
    """What the dims of a module's tensor are: by which of them the ranks' parts cut, and by their sizes where
    those leave no choice.
    """
    sizes = {name: getattr(model, name) for name in UNITS if hasattr(model, name)}
    sizes |= {"batch": task.batch, "seq": _tokens(task)}
    axes = list[Axis]()
    for dim, size in enumerate(t.whole.shape):
        names = ["dim", "vocab_size"]
        if t.kind == OUTPUT and dim < t.whole.dim() - 1:
            names = [["batch"], ["seq"]][min(dim, 1)]
        elif len({tuple(part[dim]) for part in t.parts.values()}) > 1:
            names = ["q_dim", "ffn_dim", "vocab_size"]
            if model.kv_dim != model.q_dim:
                names.append("kv_dim")
        alike = [name for name in names if sizes[name] == size]
        known = dict.fromkeys(alike if len(alike) == 1 else (), size)
        axes += axes_of([size], known, model.head_dim)
    return axes

"""The order of what a rank sends: each collective of a Llama step with its layer and its part of the layer.

Sizes and kinds come from `wire`, the passes from the schedule. The order holds along each axis. What the same
layer sends over another axis may come before or after, so each group is compared by itself. After the passes
layers are not distinguished, because only convention orders their gradients.

Left out: sends between stages. Not in the programs' order: gradients that are reduced in the middle of a
backward (ZeRO 3 without a pipeline).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from llamapar.count.wire import Sending, block_parts
from llamapar.place.stage_map import Stage
from llamapar.records.trace import PHASES

FORWARD, BACKWARD, GRADIENTS, UPDATE = PHASES

_ENDS = {
    "tok_embeddings": "the embedding",
    "row output": "the embedding",
    "norm": "the last norm",
    "loss": "the loss",
}


@dataclass(frozen=True)
class Sent:
    """A collective and where in the program it belongs.

    layer, micro_batch: None outside of any. bytes: the payload, as in a trace.
    """

    axis: str
    kind: str
    bytes: int
    phase: str
    part: str
    layer: int | None = None
    micro_batch: int | None = None

    def __str__(self) -> str:
        part = self.part if self.layer is None else f"layer {self.layer}'s {self.part}"
        ends = "" if self.micro_batch is None else f", micro-batch {self.micro_batch}"
        phase = f", {self.phase}" if self.phase in (FORWARD, BACKWARD) else ""
        return f"{part}{phase}{ends}"


def collectives_in_order(sent: Sending) -> tuple[Sent, ...]:
    """What a rank sends in a step, in order along each axis."""
    if sent.table is None:
        whole = Stage(0, 0, range(sent.cut.model.n_layers), embedding=True, head=True)
        return tuple(
            _sized(
                sent, [*_pass(sent, whole, True), *_pass(sent, whole, False), *_of_parameters(sent, [whole])]
            )
        )
    pp_rank = sent.cut.layout.coord_of(sent.rank).pp
    stages = {stage.stage: stage for stage in sent.cut.stages_of(sent.table, pp_rank)}
    found = list[Sent]()
    for kind, number, micro_batch in sent.table.ranks[pp_rank]:
        stage = stages[number]
        if not (kind == "I" and stage.embedding):  # tokens have no gradient
            passed = _pass(sent, stage, kind == "F")
            if kind in "BW":
                # `_rows` repeats a row once for each of the step's reductions, so each micro-batch takes
                # every n-th.
                own = [one for one in _of_parameters(sent, [stage]) if _scattered(sent, one)]
                passed += own[:: sent.reductions]
            found += [replace(one, micro_batch=micro_batch) for one in passed]
    # A dict as an ordered set: the stages in the order of their first B or W.
    backward = dict.fromkeys(number for kind, number, _ in sent.table.ranks[pp_rank] if kind in "BW")
    late = [stages[number] for number in backward]  # sums of gradients lie as they were begun
    found += [one for one in _of_parameters(sent, late) if not _scattered(sent, one)]
    if sent.program == "step":
        found += _rows(sent, "sum of squares", UPDATE, "the norm of the gradients")
        found += _of_parameters(sent, late, UPDATE)
    return tuple(_sized(sent, found))


def _scattered(sent: Sending, one: Sent) -> bool:
    """Whether it reduces gradients to shards after every micro-batch, rather than after the last one."""
    return sent.reductions > 1 and one.kind == "reduce_scatter"


def _sized(sent: Sending, found: Sequence[Sent]) -> Iterator[Sent]:
    return (one for one in found if sent.cut.layout.size(one.axis) > 1 and one.axis != "pp")


def _rows(sent: Sending, key: str, phase: str, part: str, layer: int | None = None) -> Iterator[Sent]:
    for when, axis, kind, count, size, _ in sent.rows[key]:
        if when == phase:
            # torch has no send within a group: a ring's is an all-to-all, as in `spmd.compat.ring_shift`.
            kind = "all_to_all" if kind == "send" and axis != "pp" else kind
            # One Sent for each call, so that a recorded call can be matched with exactly one.
            yield from [Sent(axis, kind, size, phase, part, layer)] * count


def _pass(sent: Sending, stage: Stage, forward: bool) -> list[Sent]:
    """One micro-batch through a stage. The backward reverses the order of the forward."""
    # On one stage the head reads the embedding's own tensor, whose gradient counts with the embedding.
    same = sent.cut.model.tied and stage.embedding
    head = ("norm", "column input", "the same as head" if same else "output", "loss")
    keys: list[tuple[str, str, int | None]] = []
    if stage.embedding:
        keys += [(key, _ENDS[key], None) for key in ("tok_embeddings", "row output")]
    parts = block_parts(sent.cut.model)
    for layer in stage.layers:
        for i, key in enumerate(parts):
            keys.append((key, "attention" if i <= parts.index("row output") else "MLP", layer))
    if stage.head:
        keys += [(key, _ENDS.get(key, "the output layer"), None) for key in head]
    phase = FORWARD if forward else BACKWARD
    found = [_rows(sent, key, phase, part, layer) for key, part, layer in keys[:: 1 if forward else -1]]
    return [one for rows in found for one in rows]


def _of_parameters(sent: Sending, stages: Sequence[Stage], phase: str = GRADIENTS) -> list[Sent]:
    """What the parameters of the stages send after the passes, in the model's order of parameters."""
    what = "the gradients" if phase == GRADIENTS else "the weights"
    found = list[Sent]()
    for stage in stages:
        ends = {"tok_embeddings": stage.embedding, "norm": stage.head, "output": stage.head}
        for p in sent.cut.model.parameters():
            if ends[p.key] if p.layer is None else p.layer in stage.layers:
                found += _rows(sent, p.key, phase, what)
    return found

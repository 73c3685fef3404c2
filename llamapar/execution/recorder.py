"""The recorder: every collective, attention call and tensor shape of any torch code that runs under it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from llamapar.describe.layout import Layout
from llamapar.records.tables import Plain
from llamapar.records.trace import AttentionCall, CollectiveEvent, Trace
from llamapar.spmd import compat
from llamapar.spmd.compat import Arguments, OpOverload

from .ledger import Ledger

_FUNCTIONAL = {
    "all_reduce": "all_reduce",
    "all_gather_into_tensor": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "all_to_all_single": "all_to_all",
    "broadcast": "broadcast",
}
"""Functional collectives → kind; the input comes first and the group last."""

_SPLITS = {"all_to_all_single": 2, "alltoall_base_": 4}
"""An all-to-all → the argument with the rows that go to each rank; without it all get as many."""

_CALLS = {
    "allreduce_": ("all_reduce", 0),
    "allgather_": ("all_gather", 1),
    "_allgather_base_": ("all_gather", 1),
    "reduce_scatter_": ("reduce_scatter", 1),
    "_reduce_scatter_base_": ("reduce_scatter", 1),
    "broadcast_": ("broadcast", 0),
    "reduce_": ("reduce", 0),
    "gather_": ("gather", 1),
    "scatter_": ("scatter", 1),
    "alltoall_": ("all_to_all", 1),
    "alltoall_base_": ("all_to_all", 1),
    "send": ("send", 0),
    "recv_": ("recv", 0),
}
"""Collectives of torch.distributed → kind, and which argument is the input."""

_ATTENTION = (
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
)
"""torch's attention kernels: q, k, v [batch, heads, seq, head_dim] first, whether causal by name."""


class _OperationFacts(NamedTuple):
    """Facts about an operation that do not depend on its arguments.

    ticks: whether it returns tensors and waits for no rank; C++ asks for sizes, where an exception would kill
    the process. sends: the kind of a collective, and the argument that is its input.
    """

    name: str
    ticks: bool
    sends: tuple[str, int] | None
    waits: bool
    attends: bool


@cache
def _known(func: OpOverload) -> _OperationFacts:
    name = func.overloadpacket.__name__
    functional = func.namespace == "_c10d_functional"
    sends = None
    if func.namespace == "c10d":
        sends = _CALLS.get(name)
    if functional and name in _FUNCTIONAL:
        sends = _FUNCTIONAL[name], 0
    makes_tensors = any("Tensor" in str(made.type) for made in func._schema.returns)
    waits = functional and name == "wait_tensor"
    return _OperationFacts(name, makes_tensors and name != "wait_tensor", sends, waits, name in _ATTENTION)


def _event(kind: str, axis: str, group: tuple[int, ...], own: Tensor, phase: str) -> CollectiveEvent:
    """The event of a rank that gives its tensor `own` to a collective."""
    payload = own.numel() * own.element_size() * (len(group) if kind == "all_gather" else 1)
    dtype = str(own.dtype).removeprefix("torch.")
    return CollectiveEvent(kind, axis, group, tuple(own.shape), dtype, payload, phase)


def _uneven(event: CollectiveEvent, rows: list[int], own: int) -> CollectiveEvent:
    """An all-to-all that sends each rank of the group its `rows`; of the one at `own`, they stay."""
    other = next((i for i, n in enumerate(rows) if n and n == sum(rows) and i != own), None)
    if other is not None:
        return replace(event, kind="send", group=(event.group[own], event.group[other]))
    return replace(event, kept=event.payload * rows[own] // (sum(rows) or 1))


class Recorder(TorchDispatchMode):
    """Context manager that records what ranks do.

    world: number of ranks in the local engine, each with its own events. places: the global rank of each
    rank, if it differs from its number. note: called with a text and the group before each collective, and
    with "" when the rank has passed it. tick: called before each operation that makes tensors; it can raise
    to stop the run. ledger: receives every new tensor and every collective, for one rank on the meta device.
    """

    def __init__(
        self,
        rank: int = 0,
        world: int = 0,
        note: Callable[[str, tuple[int, ...] | None, int], None] | None = None,
        tick: Callable[[], None] | None = None,
        places: Mapping[int, int] | None = None,
        ledger: Ledger | None = None,
    ) -> None:
        super().__init__()
        self.ledger = ledger
        self.ranks = range(world) if world else (rank,)
        self.places = places or {}
        self.raised = False
        self.axes: dict[str, str] = {}
        """Names of groups whose axis is known from a mesh → axis."""
        self.note = note
        self.tick = tick
        self._last: tuple[str, tuple[int, ...] | None] = "", None
        self._calls = Counter[tuple[int, ...] | None]()
        self._noted = ""
        self.phase: str | None = None
        """Set to name what follows; None tells forward from backward by itself."""
        self.errors: dict[int, Exception] = {}
        """rank → error of an operation on LocalTensors that failed."""
        self._events: dict[int, list[CollectiveEvent]] = {r: [] for r in self.ranks}
        self._attention: dict[int, list[AttentionCall]] = {r: [] for r in self.ranks}
        self._shapes: dict[int, set[tuple[int, ...]]] = {r: set() for r in self.ranks}
        self._groups: dict[str, tuple[str, dict[int, tuple[int, ...]]]] = {}

    @property
    def traces(self) -> dict[int, Trace]:
        """rank → the events so far."""
        return {
            r: Trace(
                self.place(r),
                tuple(self._events[r]),
                tuple(self._attention[r]),
                frozenset(map(tuple, shapes)),
            )
            for r, shapes in self._shapes.items()
        }

    def place(self, r: int) -> int:
        """The global rank of one of the recorder's ranks."""
        return self.places.get(r, r)

    def __torch_dispatch__(
        self, func: OpOverload, types: object, args: Arguments = (), kwargs: Plain | None = None
    ) -> object:
        kwargs = kwargs or {}
        name, ticks, sends, waits, attends = _known(func)
        if ticks and self.tick is not None:
            self.tick()
        if sends is not None:
            kind, at = sends
            # A functional collective has its group's name as last argument; torch.distributed has an object.
            group = next((a for a in args if isinstance(a, torch.ScriptObject)), args[-1])
            peer = None
            if kind in ("send", "recv"):
                peer = args[2]
            place = _SPLITS.get(name, len(args))
            splits = None
            if place < len(args):
                splits = args[place]
            self._add_event(kind, args[at], compat.group_named(group), peer, splits)
            # It returns at once; the rank waits in what comes next.
        elif waits:
            self._set_note(*self._last)
        elif self._noted:
            self._set_note("")
        try:
            # On the meta device, and only there, torch's wait makes a copy.
            out = args[0] if waits and self.ledger is not None else func(*args, **kwargs)
        except Exception:
            if sends is None and not waits:
                self.errors = self._each_error(func, args, kwargs)
            raise
        if waits:
            self._set_note("")
        elif attends:
            self._add_attention(args, kwargs)
        for made in (out,) if isinstance(out, Tensor) else tree_leaves(out):  # quicker where it is one
            if isinstance(made, Tensor):
                if self.ledger is not None:
                    self.ledger.made(made, name)
                for r, own in self._parts(made):
                    self._shapes[r].add(own.shape)
        return out

    def _parts(self, t: Tensor) -> Iterable[tuple[int, Tensor]]:
        """(rank, its tensor): one for each rank of a LocalTensor, else one for the current rank."""
        local = compat.by_rank(t)
        if local is not None:
            return [(r, own) for r, own in local.items() if r in self._shapes]
        if len(self.ranks) == 1:
            return ((self.ranks[0], t),)
        acting = compat.acting_rank.get()
        if acting is None:
            return ()
        return ((acting, t),)

    def _each_error(self, func: OpOverload, args: Arguments, kwargs: Plain) -> dict[int, Exception]:
        """rank → its own error, if an operation on LocalTensors failed on some ranks."""
        found: dict[int, Exception] = {}
        if any(isinstance(t, compat.LocalTensor) for t in tree_leaves((args, kwargs))):
            for r in self.ranks:
                own_of_rank = partial(compat.of_rank, rank=r)
                own_args, own_kwargs = tree_map_only(Tensor, own_of_rank, (args, kwargs))
                try:
                    func(*own_args, **own_kwargs)
                except Exception as error:
                    found[r] = error
        return found

    def _phase(self) -> str:
        if self.phase is not None:
            return self.phase
        if torch._C._current_graph_task_id() != -1:
            return "backward"
        return "forward"

    def _group(self, group: dist.ProcessGroup) -> tuple[str, dict[int, tuple[int, ...]]]:
        """The axis of a group, and rank → its group on that axis."""
        key = str(group.group_name)
        if key not in self._groups:
            members = tuple(dist.get_process_group_ranks(group))
            of = {}
            if len(self.ranks) > 1:
                of = compat.translates(members, len(self.ranks))
            placed = {r: tuple(map(self.place, own)) for r, own in (of or {self.ranks[0]: members}).items()}
            self._groups[key] = self.axes.get(key) or compat.axis_of(group), placed
        return self._groups[key]

    def _add_event(
        self, kind: str, sent: object, group: dist.ProcessGroup, peer: object, splits: object
    ) -> None:
        """Record a collective of a group; of a send or recv, its two ranks are the group, its own first.

        splits: of an all-to-all with uneven pieces, the rows for each rank. Where one other rank gets all of
        them it is a send, as in a ring of context parallelism.
        """
        axis, members = self._group(group)
        if isinstance(peer, int):
            members = {r: (self.place(r), of_group[peer]) for r, of_group in members.items()}
        self._last = kind, None
        for t in (leaf for leaf in tree_leaves(sent) if isinstance(leaf, Tensor)):
            for r, own in self._parts(t):
                of_group = members[r]
                event = _event(kind, axis, of_group, own, self._phase())
                # Every rank of the group takes part in the call, and a rank that waits may wait for each.
                self._last = str(event), of_group
                if isinstance(splits, Sequence) and splits:
                    rows = [compat.int_of_rank(n, r) for n in splits]
                    event = _uneven(event, rows, of_group.index(self.place(r)))
                self._add(r, event)
        text, group_now = self._last
        # A rank that gives nothing, as all but the first in a scatter, takes part in the call as well.
        group_called = group_now or members[self.ranks[0]]
        self._calls[group_called] += 1
        self._set_note(text, group_now, self._calls[group_called] if group_now else 0)

    def add_send(self, sent: Tensor, layout: Layout, to: int, phase: str) -> None:
        """Record that every rank sends its `sent` to the rank with the same place on PP rank `to`."""
        for r, own in self._parts(sent):
            place = self.place(r)
            peer = layout.rank_of(**layout.coord_of(place)._replace(pp=to)._asdict())
            self._add(r, _event("send", "pp", (place, peer), own, phase))

    def _add(self, r: int, event: CollectiveEvent) -> None:
        self._events[r].append(event)
        if self.ledger is not None:
            self.ledger.event(event)

    @property
    def length(self) -> tuple[int, int]:
        """Number of events and number of attention calls of the first rank."""
        first = self.ranks[0]
        return len(self._events[first]), len(self._attention[first])

    def again(self, since: tuple[int, int], until: tuple[int, int]) -> None:
        """Record the events between two lengths once more."""
        first = self.ranks[0]
        self._events[first] += self._events[first][since[0] : until[0]]
        self._attention[first] += self._attention[first][since[1] : until[1]]

    def _set_note(self, text: str, group: tuple[int, ...] | None = None, call: int = 0) -> None:
        """Write the rank's position for the kernel, if somebody reads it and it has changed."""
        if self.note is not None and (call or text != self._noted):
            self._noted = text
            self.note(text, group, call)

    def __exit__(self, *error: object) -> None:
        self.raised = error[0] is not None
        if not self.raised:  # An error in a collective keeps its note, which then says where the rank was.
            self._set_note("")
        super().__exit__(*error)

    def _add_attention(self, args: Arguments, kwargs: Plain) -> None:
        q = args[0]
        k = args[1]
        causal = kwargs.get("is_causal", False) or any(a is True for a in args[3:])
        for (r, own_q), (_, own_k) in zip(self._parts(q), self._parts(k), strict=True):
            batch, heads, queries, _ = own_q.shape
            call = AttentionCall(batch, heads, queries, own_k.shape[2], causal, self._phase())
            self._attention[r].append(call)


class Recording:
    """The value of `with record()`: its `trace` grows while the block runs."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    @property
    def trace(self) -> Trace:
        return self._recorder.traces[self._recorder.ranks[0]]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.trace, name)

    def __repr__(self) -> str:
        return repr(self.trace)


@contextmanager
def record(mesh: DeviceMesh | None = None) -> Iterator[Recording]:
    """Record every collective of this process in the block, including those of DTensor and torch.distributed.

    `with lp.record() as trace: …`; then `trace.events`, `trace.by_axis`, `lp.view(trace)`. The axis is the
    DeviceMesh's name for the group. A mesh axis with all ranks is torch's default group, named "world" unless
    `mesh` is given.
    """
    world = None
    if dist.is_initialized():
        world = dist.group.WORLD
    recorder = Recorder(world.rank() if world is not None else 0)  # get_rank() may be of LocalTensors
    if mesh is not None:
        recorder.axes = compat.axis_names(mesh)
    with recorder:
        yield Recording(recorder)

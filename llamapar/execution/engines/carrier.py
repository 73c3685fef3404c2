"""Messages between real ranks of a pipeline: isend and irecv over the mesh's axis pp."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from llamapar.execution.body import Cut, Results, Task, Work, groups_kept, inputs
from llamapar.execution.messages import Message, Post, dtype_of, posts, shape_of
from llamapar.execution.pipeline_rank import PipelineRank, driven, tensor_names
from llamapar.execution.recorder import Recorder
from llamapar.programs import breaking
from llamapar.spmd import compat, gradients
from llamapar.spmd.setting import Setting
from llamapar.spmd.zero import group_axes

from .rank import Context


class Lanes(NamedTuple):
    """The mesh for messages to a later PP rank, and its twin for messages to an earlier one.

    NCCL matches messages by order alone, so with one mesh a send and a receive of a pair would block each
    other.
    """

    later: DeviceMesh
    earlier: DeviceMesh

    def group(self, message: Message) -> dist.ProcessGroup:
        return (self.later if message.to > message.source else self.earlier).get_group("pp")


class _Coming(NamedTuple):
    """A receive in progress, and the memory that it fills."""

    content: Tensor
    work: dist.Work


class Carrier:
    """Sends and receives of one rank. Receives begin in the order in which their sender sends."""

    def __init__(self, lanes: Lanes, setting: Setting, context: Context) -> None:
        self.lanes = lanes
        self.setting = setting
        self.context = context
        self.coord = compat.coord_of(lanes.later, context.rank)
        self.ahead = {
            pp_rank: deque(m for m in posts(setting, pp_rank) if m.to == self.coord["pp"])
            for pp_rank in range(setting.layout.pp)
        }
        self.coming: dict[Message, _Coming] = {}
        self.sent: list[tuple[Message, dist.Work, Tensor]] = []

    def answer(self, said: Message | Post) -> Tensor | None:
        """Deliver what the rank posts, or what it asks for."""
        if isinstance(said, Message):
            return self.receive(said)
        self.send(said)
        return None

    def send(self, post: Post) -> None:
        """Start a send without waiting for it."""
        content = self._carried(post.content)
        group = self.lanes.group(post.message)
        work = dist.isend(content, group=group, group_dst=post.message.to)
        assert work is not None
        self.sent.append((post.message, work, content))  # Keep the tensor alive until it is sent.

    def receive(self, message: Message) -> Tensor:
        """Wait for a message."""
        ahead = self.ahead[message.source]
        while message not in self.coming:
            self._begin(ahead.popleft())
        content, work = self.coming.pop(message)
        self._wait(work, f"the {message.name} from rank {self._place(message.source)}", message.source)
        return content.to(self.context.device)

    def finish(self) -> None:
        """Wait until every send is received."""
        for message, work, _ in self.sent:
            self._wait(work, f"sending the {message.name} to rank {self._place(message.to)}", message.to)

    def _begin(self, message: Message) -> None:
        shape = shape_of(self.setting, message, self.coord)
        dtype = dtype_of(self.setting, message)
        empty = torch.empty(shape, dtype=dtype, device=self.context.device)
        content = self._carried(empty)
        work = dist.irecv(content, group=self.lanes.group(message), group_src=message.source)
        assert work is not None
        self.coming[message] = _Coming(content, work)

    def _carried(self, t: Tensor) -> Tensor:
        """A tensor in the form the backend needs: gloo sends only host memory."""
        by_host = t.is_cuda and dist.get_backend() == "gloo"
        if by_host:
            return t.cpu()
        return t

    def _place(self, pp_rank: int) -> int:
        """The global rank with this rank's coord on another PP rank."""
        coord = self.setting.layout.coord_of(self.context.rank)
        return self.setting.layout.rank_of(*coord._replace(pp=pp_rank))

    def _wait(self, work: dist.Work, text: str, peer: int) -> None:
        self.context.note(text, (self.context.rank, self._place(peer)))
        work.wait()
        self.context.note("")


def run_stages(
    lanes: Lanes, task: Task, recorder: Recorder, cut: Cut, context: Context
) -> tuple[Results, Work]:
    """Run this rank's row of the pipeline."""
    mesh = lanes.later
    setting = task.setting
    with breaking.injected(task.fault), groups_kept():
        # All ranks call this, even those without layers, because it is collective.
        gradients.kv_copy_mesh(mesh, setting)
        carrier = Carrier(lanes, setting, context)
        recorder.axes = group_axes(mesh, setting)
        pp_rank = carrier.coord["pp"]
        given = inputs(task, cut, wanted=tensor_names(setting, pp_rank))
        own = PipelineRank(mesh, task, pp_rank, recorder, given)
        results = driven(own.turns(), carrier.answer)
        carrier.finish()
        return results, own.work

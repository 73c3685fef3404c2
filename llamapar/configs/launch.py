"""The number of ranks that a launch starts, and their number on each node.

In order of trust: the launcher's own numbers, then the batch system's directives. Names and comments are only
hints to ask about. Sources: torch/distributed/run.py; Slurm's sbatch(1); mpirun(1) of Open MPI; DeepSpeed's
launcher/runner.py; accelerate's commands/launch.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from llamapar.errors import is_slip

from .documents import Entry
from .draft import Draft, Origin, count_of
from .flags import Flags, flags_of
from .launch_lines import UNRESOLVED, Script, Word

_LAUNCHERS = re.compile(
    r"(?:^|/)(torchrun|mpirun|mpiexec|srun|deepspeed|accelerate|tune)$|^torch\.distributed\.(run|launch)$"
)
_UGE_GPUS = {"rt_F": 4, "rt_AF": 8}
"""GPUs of a node by the resource type of ABCI's Grid Engine (docs.abci.ai, job execution)."""


@dataclass(frozen=True)
class Batch:
    """The numbers in a batch system's directives."""

    nodes: Entry | None = None
    per_node: Entry | None = None
    tasks_per_node: Entry | None = None
    resource: str = ""

    @property
    def environment(self) -> dict[str, str]:
        """The variables that the batch system sets for a script."""
        said = (self.nodes, self.per_node, self.tasks_per_node)
        nodes, gpus, tasks = map(count_of, said)
        found = {
            "SLURM_NNODES": nodes,
            "SLURM_JOB_NUM_NODES": nodes,
            "NHOSTS": nodes,
            "SLURM_NTASKS": (nodes or 0) * (tasks or 0),
            "SLURM_NPROCS": (nodes or 0) * (tasks or 0),
            "SLURM_GPUS_ON_NODE": gpus,
            "SLURM_GPUS_PER_NODE": gpus,
            "SGE_RESOURCE_TYPE": self.resource,
        }
        return {name: str(value) for name, value in found.items() if value}


def batch_of(directives: Iterable[Word]) -> Batch:
    """The directives of Slurm, PBS and Grid Engine."""
    words = [*directives]
    flags = flags_of(words)
    nodes = flags.get("nodes", "N")
    each = flags.get("gpus-per-node", "gpus-per-task")
    resource = ""
    for word in words:
        text = word.text
        if match := re.fullmatch(r"--?gres[=:]?gpu(?::[a-z0-9_]+)?:(\d+)(?:\(.*)?", text, re.I):
            each = each or Entry("--gres", match[1], word.line)
        if match := re.match(r"(?:-l)?select=(\d+)(?::.*?n(?:gpus|cpus_gpu)=(\d+))?", text):
            nodes = Entry("select", match[1], word.line)
            gpus = re.search(r"ngpus=(\d+)", text)
            if gpus:
                each = Entry("ngpus", gpus[1], word.line)
        if match := re.fullmatch(r"(rt_A?F)=(\d+)", text):
            resource = match[1]
            nodes = Entry(text, match[2], word.line)
            each = Entry(text, _UGE_GPUS[resource], word.line)
    return Batch(nodes, each, flags.get("ntasks-per-node"), resource)


@dataclass(frozen=True)
class Launch:
    """A launcher's numbers: all ranks, ranks on a node, nodes; None for each that is not given."""

    who: str
    ranks: Entry | None = None
    per_node: Entry | None = None
    nodes: Entry | None = None


_TORCHRUN: tuple[tuple[str, ...], ...] = ((), ("nproc-per-node",), ("nnodes",))
_MPI = (("np", "n"), ("npernode", "ppn", "N"), ())
_NUMBERS = {
    "torchrun": _TORCHRUN,
    "tune": _TORCHRUN,
    "run": _TORCHRUN,
    "launch": _TORCHRUN,
    "mpirun": _MPI,
    "mpiexec": _MPI,
    "deepspeed": ((), ("num-gpus",), ("num-nodes",)),
    "accelerate": (("num-processes",), (), ("num-machines",)),
    "srun": (("ntasks", "n"), ("ntasks-per-node",), ("nodes", "N")),
}
"""Launcher → its arguments for all ranks, for the ranks on a node, and for the nodes."""


def _slots(text: str) -> list[int]:
    """GPUs of each node of `--include host:0,1@other:0,1`; none if a node's are not given."""
    nodes = [re.fullmatch(r"[^:@]+:(\d+(?:,\d+)*)", node) for node in text.split("@")]
    if all(nodes):
        return [node[1].count(",") + 1 for node in nodes if node]
    return []


def _launch(who: str, flags: Flags, line: int) -> Launch:
    """The numbers of a launcher by its arguments and defaults."""
    ranks, each, nodes = (flags.get(*names) for names in _NUMBERS[who])
    if _NUMBERS[who] is _TORCHRUN:
        # A launcher's arguments may be in a variable that only a run resolves; then its defaults must not
        # be assumed.
        unread = any(not w.known and not w.text.startswith("-") for w in flags.words[:1])
        slips = any(is_slip(name, known) for name in flags.by_path for known in ("nnodes", "nproc-per-node"))
        rest = (
            UNRESOLVED if unread or slips else 1
        )  # A word that only a run resolves can contain any of them.
        nodes = nodes or Entry("--nnodes, its default", rest, line)
        each = each or Entry("--nproc-per-node, its default", rest, line)
    chosen = None
    if who == "deepspeed":
        chosen = flags.get("include", "i")
    if chosen is not None and (slots := _slots(str(chosen.value))):
        return Launch(who, Entry(chosen.path, sum(slots), chosen.line), None, Entry("", len(slots), 0))
    # It starts one node unless an argument or a file of hosts says more.
    if nodes is None and who == "deepspeed" and not flags.get("hostfile"):
        nodes = Entry("--num_nodes", 1, line)
    return Launch(who, ranks, each, nodes)


def _last_launch(script: Script) -> Launch:
    """The last launch in a script; for `srun torchrun …` the inner one."""
    found = Launch("")
    lines = script.started
    if not any(_LAUNCHERS.search(w.text) for words in lines for w in words):
        lines = [*script.variables.values()]
    for words in lines:
        hits = [(n, m) for n, w in enumerate(words) if (m := _LAUNCHERS.search(w.text))]
        hits = [
            (n, m) for n, m in hits if m[1] != "tune" or [w.text for w in words[n + 1 : n + 2]] == ["run"]
        ]
        if hits:
            # `srun torchrun …`: the inner launcher starts the ranks, the outer one only the nodes.
            at, match = hits[-1]
            found = _launch(match[1] or match[2], flags_of(words[at + 1 :]), words[at].line)
    return found


def take_world(draft: Draft, file: str, script: Script) -> None:
    """Set the number of GPUs that a script starts, or say why it is unknown."""
    batch = batch_of(script.directives)
    launch = _last_launch(script)
    nodes = launch.nodes
    each = launch.per_node
    # These take the number of nodes from the batch system; torchrun is told its own.
    if launch.who in ("mpirun", "mpiexec", "srun", "") or (nodes is not None and "$" in str(nodes.value)):
        nodes = batch.nodes or nodes
    if launch.who in ("srun", ""):
        each = batch.per_node or each or batch.tasks_per_node
    draft.asked |= {(file, entry.path, entry.line) for entry in (nodes, each, launch.ranks) if entry}
    ranks, per_node, many = map(count_of, (launch.ranks, each, nodes))
    if each and per_node:
        draft.put("gpus_per_node", per_node, Origin(file, each.line, each.path))
    unread = nodes
    if each and not per_node:
        unread = each
    if launch.ranks and ranks:
        draft.put("gpus", ranks, Origin(file, launch.ranks.line, launch.ranks.path))
        if not per_node and many and ranks % many == 0:
            draft.derive("gpus_per_node", ranks // many, f"{ranks} ranks on {many} nodes")
    elif nodes and each and many and per_node:
        how = f"{nodes.path} {many} · {each.path} {per_node}"
        draft.put("gpus", many * per_node, Origin(file, nodes.line or each.line, how))
    elif unread and (launch.who or batch.nodes):
        draft.unknown.setdefault("gpus", f"{unread.path} is only known to a run ({file}:{unread.line})")
    elif launch.who:
        draft.unknown.setdefault("gpus", f"{launch.who} takes the GPUs that it finds ({file})")

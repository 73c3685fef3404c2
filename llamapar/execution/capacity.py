"""Where a run can take place: its device and backend, and whether the machine has enough memory."""

from __future__ import annotations

import math
import os

from llamapar.describe.placement import PARAMETERS
from llamapar.errors import Choice, LayoutError, LlamaparError, one_of
from llamapar.records.tables import plural
from llamapar.spmd import compat
from llamapar.spmd.setting import kind

from .body import Task, asked_shapes
from .shrinking import MAX_RANKS

DEVICES = ("auto", "cpu", "cuda")

RANK_BYTES = 150 * 2**20
"""What a rank's process takes besides its tensors: what it does not share with the server (measured)."""


def choose_device(device: str, engine: str, ranks: int) -> tuple[str, str, str]:
    """(device, backend, one line with the choice and its reason)."""
    one_of("device", device, DEVICES)
    gpus = compat.gpus()
    if device == "cuda" and not gpus:
        what = "device='cuda': torch sees no CUDA device"
        raise LlamaparError(what, "", [Choice.of(device="cpu")], "device")
    if device == "cpu" or not gpus:
        why = "torch sees no CUDA device"
        if device == "cpu":
            why = "asked for"
        backend = "gloo"
        if engine == "local":
            backend = ""
        return "cpu", backend, f"device cpu{' over ' + backend if backend else ''}: {why}"
    if engine == "local":
        return "cuda", "", f"device cuda: {plural(gpus, 'GPU')}, all ranks take turns on the first"
    if gpus >= ranks:
        return "cuda", "nccl", f"device cuda over nccl: {gpus} GPUs, one for each of {ranks} ranks"
    return "cuda", "gloo", f"device cuda over gloo: {ranks} ranks share {plural(gpus, 'GPU')}"


def bytes_needed(task: Task, engine: str) -> int:
    """Upper estimate of a run's bytes: pieces, gradients, reference, and activations.

    Parameters: the reference and its gradient, and each rank's piece, gradient and sum. Activations: the
    residual stream, Q, K, V, the FFN and the logits of every token, eight tensors each.
    """
    setting = task.setting
    size = setting.torch_dtype.itemsize
    found = asked_shapes(task)
    parameters = sum(math.prod(s) for n, s in found.items() if kind(n) in PARAMETERS)
    layout = setting.layout
    m = setting.model
    keys = {kind(n) for n in found}
    width = 4 * m.dim + (m.q_dim + 2 * m.kv_dim * layout.cp if "wq" in keys else 0)
    width += 3 * m.ffn_dim if "w1" in keys else 0
    width += 3 * m.vocab_size if "targets" in found else 0
    layers = 1
    if any(n.startswith("layers.") for n in found):
        layers = m.n_layers
    tokens = setting.global_batch * setting.seq_len
    pieces = parameters * size * 3 * layout.cp * layout.dp
    kept = 8 * tokens * width * size * layers
    processes = 0
    if engine != "local":
        processes = layout.world
    return pieces + 2 * (parameters * size + kept) + RANK_BYTES * processes


def memory_available() -> int:
    """Bytes that this machine can still provide: the smaller of the system's and the control group's
    figure.
    """
    known = []
    try:
        with open("/proc/meminfo") as lines:
            known += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")]
        with open("/sys/fs/cgroup/memory.max") as limit, open("/sys/fs/cgroup/memory.current") as used:
            if (text := limit.read().strip()) != "max":
                known.append(int(text) - int(used.read()))
    except (OSError, ValueError):
        pass
    # Without Linux's files, assume that half of the machine's memory is available.
    if known:
        return min(known)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def require_room(task: Task, engine: str) -> None:
    """Raise LayoutError, with the run's need, if the machine cannot hold it."""
    layout = task.setting.layout
    ranks = layout.world
    needed = bytes_needed(task, engine)
    available = memory_available()
    if engine == "torchrun" or (ranks <= MAX_RANKS and needed <= available):
        return
    if ranks > MAX_RANKS:
        what = f"{ranks} ranks, and at most {MAX_RANKS} run on one machine"
        why = f"they would take about {needed:,} bytes; {available:,} are free"
    else:
        what = f"{ranks} ranks would take about {needed:,} bytes; {available:,} are free"
        why = "parameters, gradients, activations and the unsharded reference are all held at once"
    raise LayoutError(what, why, ["lp.shrink(model, layout)", Choice.of(model="tiny")], "world")

"""`run`: a program in a layout, executed on ranks and compared with the unsharded model.

The layout is checked first; then an engine runs the program on every rank, forward and backward, and
each rank's outputs and gradients are compared with its piece of the reference's.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from html import escape
from typing import Any

import torch
from torch import Tensor

from .errors import LayoutError, LlamaparError, flag, one_of, whole
from .fit import MAX_RANKS, fit
from .frameworks import padding_rule
from .job import Job
from .layout import Layout
from .maps.sequence import CHUNKINGS
from .maps.tables import html_table, text_table
from .model import model as find_model
from .report import Report, check_job
from .shard import NO_PADDING, PARAMETERS, Padding
from .spmd import answers, faults, pool, processes, programs
from .spmd import local as local_engine
from .spmd import tape as tapes
from .spmd.body import RankReport, Task, makers, piece, reference
from .spmd.local import LocalRanks
from .spmd.setting import DTYPES, Setting, kind
from .trace import Tape, Trace, count, some

ENGINES = ("local", "processes", "torchrun")
DEVICES = ("auto", "cpu", "cuda")
CP_METHODS = ("all_gather", "ring")

RANK_BYTES = 150 * 2**20
"""What a rank's process takes besides its tensors: what it does not share with the server (measured)."""


@dataclass(frozen=True, repr=False)
class RunResult:
    """What came of a run.

    reports: of every rank. outputs and gradients by rank and name: pieces, as the rank held them.
    output_errors, gradient_errors: name → max|Δ| / max|reference| over all ranks, {} without a reference.
    """

    task: Task
    engine: str
    device: str
    reports: tuple[RankReport, ...]
    notes: tuple[str, ...] = ()
    why: str = ""
    output_errors: Mapping[str, float] = field(default_factory=dict)
    gradient_errors: Mapping[str, float] = field(default_factory=dict)

    @property
    def ranks(self) -> int:
        return len(self.reports)

    @property
    def layout(self) -> Layout:
        return self.task.setting.layout

    @property
    def tolerance(self) -> float:
        """Largest max|Δ| / max|reference| that counts as equal, for the dtype."""
        return DTYPES[self.task.setting.dtype]

    @property
    def outputs(self) -> dict[int, dict[str, Tensor]]:
        """rank → name → its piece; a program that returns one tensor names it "out"."""
        return {r.rank: r.outputs for r in self.reports}

    @property
    def gradients(self) -> dict[int, dict[str, Tensor]]:
        """rank → argument → gradient of its piece, after the sums over ranks."""
        return {r.rank: r.gradients for r in self.reports}

    @property
    def errors(self) -> dict[int, BaseException]:
        """rank → what it raised, or was waiting in; the first to raise comes first."""
        raised = [r for r in self.reports if r.error is not None]
        raised.sort(key=lambda r: isinstance(r.error, answers.PeerError))
        return {r.rank: r.error for r in raised if r.error is not None}

    @property
    def traces(self) -> dict[int, Trace]:
        return {r.rank: r.trace for r in self.reports if r.trace is not None}

    @property
    def trace(self) -> Trace:
        """What rank 0 did."""
        return self.reports[0].trace or Trace(0)

    @cached_property
    def tape(self) -> Tape:
        """Shapes after each assignment, from the meta device."""
        return tapes.tape(self.task, self.why)

    @property
    def max_error(self) -> float | None:
        """Greatest of output_errors; None where nothing was compared."""
        return max(self.output_errors.values(), default=None)

    @property
    def max_grad_error(self) -> float | None:
        return max(self.gradient_errors.values(), default=None)

    @property
    def ok(self) -> bool:
        """Whether every rank finished and all that was compared is equal within the tolerance."""
        compared = [*self.output_errors.values(), *self.gradient_errors.values()]
        return not self.errors and all(error <= self.tolerance for error in compared)

    @property
    def summary(self) -> str:
        """One line: what ran where, and how it compares."""
        what = f"{self.task.program.name}  {self.layout} ({self.ranks} ranks, {self.engine}, {self.device})"
        if self.task.fault:
            what += f" with {self.task.fault}"
        if self.errors:
            rank, error = next(iter(self.errors.items()))
            return f"{what}: rank {rank} raised {type(error).__name__}"
        if self.max_error is None:
            return f"{what}: ran, nothing to compare with"
        verdict = "equal to the reference" if self.ok else "DIFFERS from the reference"
        return f"{what}: {verdict}"

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "ok": self.ok,
            "max_error": self.max_error,
            "max_grad_error": self.max_grad_error,
            "engine": self.engine,
            "device": self.device,
            "ranks": self.ranks,
            "events": len(self.trace.events),
            "bytes": self.trace.by_axis,
            "errors": {str(r): f"{type(e).__name__}: {e}" for r, e in self.errors.items()},
            "notes": list(self.notes),
        }

    def _table(self) -> tuple[str, list[str], list[list[object]], str]:
        rows: list[list[object]] = []
        for what, errors in (("output", self.output_errors), ("gradient", self.gradient_errors)):
            for name, error in errors.items():
                rows.append([what, name, f"{error:.0e}", "equal" if error <= self.tolerance else "DIFFERS"])
        alike: dict[str, list[int]] = {}
        for rank, raised in self.errors.items():
            text = f"{type(raised).__name__}: {(str(raised).splitlines() or [''])[0]}"
            alike.setdefault(text, []).append(rank)
        rows += [["error", some(ranks), "", text] for text, ranks in alike.items()]
        sent = ", ".join(f"{axis} {n:,} B" for axis, n in self.trace.by_axis.items())
        foot = [f"rank 0: {count(self.trace.events)}{': ' + sent if sent else ''}", *self.notes]
        return self.summary, ["what", "of", "max|Δ| / max|ref|", f"within {self.tolerance:.0e}"], rows, "\n".join(foot)

    def __repr__(self) -> str:
        return text_table(*self._table())

    def _repr_html_(self) -> str:
        title, head, rows, foot = self._table()
        lines = "".join(f"<p>{escape(line)}</p>" for line in foot.splitlines())
        return html_table(title, head, rows) + lines


def run(
    program: Any,
    model: Any,
    layout: Layout | Mapping[str, Any],
    *,
    engine: str = "local",
    device: str = "auto",
    dtype: str = "float32",
    seq_len: int | None = None,
    batch: int | None = None,
    seed: int = 0,
    force: bool = False,
    kv_replication: bool = False,
    padding: str | Padding | None = None,
    chunking: str = "head-tail",
    cp_method: str = "all_gather",
    documents: tuple[int, ...] | None = None,
    pads_in_softmax: bool = False,
    fault: str | None = None,
    inputs: Mapping[str, Tensor] | None = None,
    reference: Callable[..., Any] | None = None,
    out: str = "residual",
    backward: bool = True,
    timeout: float = 60.0,
    cancel: Callable[[], bool] | None = None,
) -> RunResult:
    """Run `program` on every rank of one pipeline stage of `layout`, and compare with the reference.

    program: "attention", "embedding", "loss", "mlp", "block", "llama", or a function
        (mesh, setting, …tensors by name…) of your own, with its `reference` (setting, …) and with the
        row of the placement table, `out`, for a returned tensor.
    engine: "local" (all ranks in this process), "processes" (one process a rank), "torchrun".
    device: "auto", "cpu" or "cuda". dtype: "float64", "float32" or "bfloat16".
    seq_len, batch: tokens and sequences in all; by default small ones that divide.
    force: run what `check` refuses. kv_replication, padding, chunking, cp_method, documents,
        pads_in_softmax: as in `Setting`. fault: a name of `lp.FAULTS`, broken on purpose.
    inputs: global tensors by name in place of seeded random ones. timeout: seconds without progress.

    Raises LayoutError with the report for a layout that check refuses, LlamaparError for bad input or a
    run that does not fit the machine, answers.RankFailure for a killed rank or one that never comes. What
    ranks raise is in `errors`.
    """
    task, notes, report = prepare(
        program,
        model,
        layout,
        dtype=dtype,
        seq_len=seq_len,
        batch=batch,
        seed=seed,
        force=force,
        kv_replication=kv_replication,
        padding=padding,
        chunking=chunking,
        cp_method=cp_method,
        documents=documents,
        pads_in_softmax=pads_in_softmax,
        fault=fault,
        inputs=inputs,
        reference=reference,
        out=out,
        backward=backward,
    )
    one_of("engine", engine, ENGINES)
    used, backend, why = choose_device(device, engine, task.setting.layout.world)
    require_room(task, engine, used)
    reports = _reports(task, engine, used, backend, timeout, cancel)
    if reports is None:  # another rank of torchrun than the one that tells
        raise SystemExit(0)
    result = RunResult(task, engine, used, tuple(reports), (*notes, why), _reason(report))
    if result.errors or task.program.reference is None:
        return result
    return replace(result, **_compare(task, reports))


def prepare(
    program: Any,
    model: Any,
    layout: Layout | Mapping[str, Any],
    *,
    dtype: str = "float32",
    seq_len: int | None = None,
    batch: int | None = None,
    seed: int = 0,
    force: bool = False,
    kv_replication: bool = False,
    padding: str | Padding | None = None,
    chunking: str = "head-tail",
    cp_method: str = "all_gather",
    documents: tuple[int, ...] | None = None,
    pads_in_softmax: bool = False,
    fault: str | None = None,
    inputs: Mapping[str, Tensor] | None = None,
    reference: Callable[..., Any] | None = None,
    out: str = "residual",
    backward: bool = True,
) -> tuple[Task, tuple[str, ...], Report]:
    """The task, what to say about it, and check's report. Arguments and errors as in `run`."""
    chosen, found, given = programs.program(program, reference, out), find_model(model), Layout.of(layout)
    rule = padding_rule(padding) if padding is not None else NO_PADDING
    unit = given.cp * (2 if given.tp % 2 and given.cp > 1 else 1) * (given.tp if given.sp else 1)
    seq = whole("seq_len", seq_len) if seq_len is not None else -(-64 // (2 * unit)) * 2 * unit
    sequences = whole("batch", batch) if batch is not None else given.dp
    for name, value, known in (("dtype", dtype, DTYPES), ("chunking", chunking, CHUNKINGS)):
        one_of(name, value, known)
    one_of("cp_method", cp_method, CP_METHODS)
    if fault is not None:
        one_of("fault", fault, faults.FAULTS)
    if found.qkv_bias or found.o_bias:
        raise LlamaparError(f"{found.name} has biases, which no program here adds", "", ["tiny"], "model")
    if documents is not None and (min(documents, default=0) < 1 or sum(documents) != seq):
        what = f"documents of {sum(documents)} tokens in all for seq_len={seq}"
        raise LayoutError(what, "each is at least one token, and together they are the sequence", field="documents")
    job = Job.of(
        found,
        given,
        seq_len=seq,
        micro_batch=1,
        global_batch=sequences,
        kv_replication=flag("kv_replication", kv_replication),
        padding=rule,
    )
    report = check_job(job)
    wrong = [f for f in report.findings if f.severity == "error"]
    if wrong and not flag("force", force):
        refused = LayoutError("\n".join(str(f) for f in wrong))
        refused.report = report
        raise refused
    setting = Setting(
        found,
        given.replace(pp=1, virtual_stages=1),
        seq,
        sequences,
        dtype,
        seed,
        rule,
        kv_replication,
        chunking,
        cp_method,
        tuple(documents) if documents is not None else None,
        pads_in_softmax,
    )
    if fault is not None:
        setting = replace(setting, **{k: v for k, v in faults.FAULTS[fault].changes.items() if k != "kv_replication"})
    task = Task(chosen, setting, fault, dict(inputs or {}), backward)
    makers(task)  # an argument that is not known is told now
    notes = [f"pp={given.pp}: the ranks of one stage are run"] if given.pp > 1 else []
    notes += [f"forced past {f.code}: {f.message}" for f in wrong]
    return task, tuple(notes), report


def tape(program: Any, model: Any, layout: Layout | Mapping[str, Any], **options: Any) -> Tape:
    """The shape tape of `program` at its true size, from the meta device: nothing is allocated.

    Arguments as in `run`; layouts that check refuses are taped up to the line that raises.
    """
    task, _, report = prepare(program, model, layout, **{"force": True, **options})
    return tapes.tape(task, _reason(report))


def local(program: Any, model: Any, layout: Layout | Mapping[str, Any], **options: Any) -> LocalRanks:
    """All ranks of a layout in this process, to step through a program: see `LocalRanks`.

    Arguments as in `run`.
    """
    task, _, _ = prepare(program, model, layout, **options)
    require_room(task, "local", "cpu")
    return local_engine.local(task)


def show_source(program: Any) -> str:
    """The source of a program, as it runs."""
    import inspect

    return inspect.getsource(programs.program(program).function)


def _reason(report: Report) -> str:
    """Why check refuses the layout, in one line; empty where it does not."""
    wrong = [f for f in report.findings if f.severity == "error"]
    return f"{wrong[0].message}: {wrong[0].why}" if wrong else ""


# -- where it runs -----------------------------------------------------------------------------


def choose_device(device: str, engine: str, ranks: int) -> tuple[str, str, str]:
    """(device, backend, one line that says what was chosen and why)."""
    one_of("device", device, DEVICES)
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device == "cuda" and not gpus:
        raise LlamaparError("device='cuda': torch sees no CUDA device", "", ["device='cpu'"], "device")
    if device == "cpu" or not gpus:
        why = "asked for" if device == "cpu" else "torch sees no CUDA device"
        backend = "" if engine == "local" else "gloo"
        return "cpu", backend, f"device cpu{' over ' + backend if backend else ''}: {why}"
    if engine == "local":
        return "cuda", "", f"device cuda: {gpus} GPU{'s' * (gpus > 1)}, all ranks take turns on the first"
    if gpus >= ranks:
        return "cuda", "nccl", f"device cuda over nccl: {gpus} GPUs, one for each of {ranks} ranks"
    return "cuda", "gloo", f"device cuda over gloo: {ranks} ranks share {gpus} GPU{'s' * (gpus > 1)}"


def need(task: Task, engine: str) -> int:
    """Bytes that a run takes at most, roughly: pieces, gradients, reference, and what lies between.

    Parameters: the reference and its gradient, and each rank's piece, gradient and sum. Activations: the
    residual stream, Q, K, V, the FFN and the logits of every token, eight tensors each.
    """
    setting = task.setting
    size = setting.torch_dtype.itemsize
    shapes = {n: s for n, s in _shapes(task).items() if kind(n) in PARAMETERS}
    parameters = sum(torch.Size(s).numel() for s in shapes.values())
    layout, m = setting.layout, setting.model
    keys = {kind(n) for n in shapes}
    width = 4 * m.dim + (m.q_dim + 2 * m.kv_dim * layout.cp if "wq" in keys else 0)
    width += 3 * m.ffn_dim if "w1" in keys else 0
    width += 3 * m.vocab_size if {"output", "tok_embeddings"} & keys and "targets" in _shapes(task) else 0
    layers = m.n_layers if any("layers." in n for n in shapes) else 1
    tokens = setting.batch * setting.seq_len
    processes_need = RANK_BYTES * layout.world if engine != "local" else 0
    return parameters * size * (2 + 3 * layout.cp * layout.dp) + 16 * tokens * width * size * layers + processes_need


def _shapes(task: Task) -> dict[str, tuple[int, ...]]:
    from .spmd.body import wants

    setting, found = task.setting, {}
    for name in wants(task.program.function):
        found |= setting.weights() if name == "weights" else {name: setting.shape(name)}
    return found


def memory_available() -> int:
    """Bytes that this machine can still give: the least of what the system and its control group say."""
    known = []
    try:
        with open("/proc/meminfo") as lines:
            known += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")]
        with open("/sys/fs/cgroup/memory.max") as limit, open("/sys/fs/cgroup/memory.current") as used:
            if (text := limit.read().strip()) != "max":
                known.append(int(text) - int(used.read()))
    except (OSError, ValueError):
        pass
    return min(known) if known else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def require_room(task: Task, engine: str, device: str) -> None:
    """LayoutError where the machine cannot hold the run, with what it would need and what fits."""
    setting, layout = task.setting, task.setting.layout
    ranks, bytes_needed, there = layout.world, need(task, engine), memory_available()
    if engine == "torchrun" or (ranks <= MAX_RANKS and bytes_needed <= there):
        return
    small = fit(setting.model, layout, padding=setting.padding)
    if ranks > MAX_RANKS:
        what = f"{ranks} ranks, and at most {MAX_RANKS} run on one machine"
        why = f"they would take about {bytes_needed:,} bytes; {there:,} are free"
    else:
        what = f"{ranks} ranks would take about {bytes_needed:,} bytes; {there:,} are free"
        why = "parameters, gradients, activations and the unsharded reference are all held at once"
    choose = [f"{small.layout}"] if small.layout != layout else []
    if small.model != setting.model:
        choose.append(
            f"lp.fit(model, layout): head_dim {small.model.head_dim}, dim {small.model.dim}, "
            f"{small.model.vocab_size} tokens"
        )
    raise LayoutError(what, why, [*choose, 'model="tiny"'], "world")


def _reports(
    task: Task, engine: str, device: str, backend: str, timeout: float, cancel: Callable[[], bool] | None
) -> list[RankReport] | None:
    if engine == "torchrun":
        return processes.run_launched(task, device, backend)
    if engine == "processes":
        ranks = pool.pool(task.setting.layout.world, device=device, backend=backend, preload=processes.PRELOAD)
        told = ranks.run(processes.run_here, task, timeout=timeout, cancel=cancel)
        return [
            a.value if a.error is None else RankReport(a.rank, error=a.error, traceback=a.traceback) for a in told
        ]

    def tick() -> None:
        if cancel is not None and cancel():
            raise answers.Cancelled("the run was cancelled")

    reports = local_engine.run(task, device, tick)
    for report in reports:
        if isinstance(report.error, answers.Cancelled):
            raise report.error
    return reports


def _compare(task: Task, reports: list[RankReport]) -> dict[str, dict[str, float]]:
    """Each rank's outputs and gradients against its pieces of the reference's: name → worst error."""
    outputs, gradients = reference(task)
    found: dict[str, dict[str, float]] = {"output_errors": {}, "gradient_errors": {}}
    for report in reports:
        coord = task.setting.layout.coord_of(report.rank)._asdict()
        for key, wholes, own in (
            ("output_errors", outputs, report.outputs),
            ("gradient_errors", gradients, report.gradients),
        ):
            for name, whole_one in wholes.items():
                expected = piece(task, name, whole_one, coord)
                if expected is None:
                    continue
                worst = found[key].get(name, 0.0)
                found[key][name] = max(worst, _distance(own.get(name), expected, whole_one))
    return found


def _distance(own: Tensor | None, expected: Tensor, whole_one: Tensor) -> float:
    """max|own - expected| / max|whole|; infinite where there is none, or of another shape."""
    if own is None or own.shape != expected.shape or not torch.isfinite(own).all():
        return float("inf")
    if not own.numel():
        return 0.0
    scale = whole_one.double().abs().max().item() or 1.0
    return (own.double() - expected.double()).abs().max().item() / scale

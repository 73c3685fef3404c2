"""The table of options: the name, type, default, choices, help and unit of everything a person may set.

The command's flags and help, the panels' controls, exported settings and the reading of typed numbers are
made from it. A test compares it with the signatures of the public functions. Some choices belong to another
room (frameworks, schedules, file formats): that room hands them in with `offer` when it is imported. Choices
of optional rooms, and of rooms that need torch, are written out here, because asking them would import them;
a test compares them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from llamapar.errors import MAX_DEGREE, MAX_SIZE, one_of

from .configfile import Values as Values
from .hardware import DEFAULT_GPU, HARDWARE, Gpu
from .layout import AXES, AXIS_TITLES, MAX_WORLD, ORDERS, PAPER_ORDER
from .splits import LAYER_SPLITS, Padding


@dataclass(frozen=True)
class Option:
    """One option.

    kind: the type of its value. default: its default value; None means unknown.
    help: one line; {choices} expands to the choices with the default marked, {names} to the choices alone.
    unit: what it counts. most: the largest value of a count.
    """

    name: str
    kind: type[object]
    default: object
    help: str
    unit: str = ""
    choices: tuple[str, ...] = ()
    most: int = MAX_SIZE

    @property
    def flag(self) -> str:
        """Its flag on a command line."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def is_count(self) -> bool:
        """Whether people type a number for it."""
        return self.kind in (int, float)

    def words(self, value: object) -> list[str]:
        """The flag with a value, as a command line takes it."""
        if self.kind is bool:
            return [self.flag if value else f"--no-{self.flag[2:]}"]
        return [self.flag, as_argument(value)]

    def chosen(self, value: object) -> str:
        """`value` if it is one of the choices; else raises LayoutError with the nearest ones."""
        return one_of(self.name, value, self.choices)

    def about(self, default: object, text: str = "") -> str:
        """Its help text, for a function in which it has the default `default`.

        text: replaces the help where the option means something else.
        """
        text = text or self.help
        if self.is_count and default is not None and "(default" not in text:
            return f"{text} (default {as_argument(default)})"
        names = [as_argument(choice) for choice in self.choices] or [""]
        *most, last = [f"{name} (default)" if name == default else name for name in names]
        return text.replace("{names}", ", ".join(names)).replace(
            "{choices}", " or ".join(filter(None, [", ".join(most), last]))
        )


def as_argument(value: object) -> str:
    """A value as a command line takes it: "64*tp", "10,20,34", "balanced-ends"."""
    if isinstance(value, Gpu):
        return value.text
    if isinstance(value, Padding):
        return f"{value.multiple}{'*tp' * value.per_tp}"
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return f"{value:.12g}" if isinstance(value, float) else str(value).replace(" ", "-")


_EXPORTED = ("Python", "CLI", "torchtitan", "Megatron-LM", "Hugging Face")
EXPORT_TITLES = {title.lower().replace(" ", "-"): title for title in _EXPORTED}
"""Export format → its title on a button; `configs` writes these settings."""

_FAULTS = """drop_all_reduce drop_backward_all_reduce sum_twice no_kv_grad_sum tile_kv no_norm_grad_sum
contiguous_positions no_context_grad_sum no_data_grad_sum shards_not_summed replicas_not_summed
shards_out_of_order pad_in_softmax tied_not_summed micro_batches_swapped loss_not_divided
gradients_too_early send_receive_crossed norm_counts_copies norm_forgets_pp clipped_per_rank
averaged_over_context neighbours_shard weights_late last_row_missed maximum_not_shared slices_not_summed
gather_not_summed_backward scale_forgotten batch_for_sequence kv_heads_in_turn rope_by_halves
chunk_at_the_start tokens_as_they_came heads_not_sent_home documents_ignored norm_without_eps
never_clipped means_not_corrected decay_in_gradient"""
_PROGRAMS = ("attention", "embedding", "loss", "mlp", "block", "llama", "step")
_MODEL = "a preset's name, a config.json or params.json, the folder that holds one, or JSON text"
_ORDER = f"rank order, fastest axis first, or a framework's name (default {PAPER_ORDER})"
_REPLICATE = "full replicas among the DP ranks; the ranks of a replica shard it (HSDP)"
_PADDING = "pad the vocabulary to a multiple: N, N*tp, a framework's name, or none"
_FRAMEWORK = "framework whose rules decide: {names} (default: the Llama 3 paper's rules)"
_ENGINE = (
    "local (default), processes (one per rank), torchrun (default under torchrun), or dry (one rank alone)"
)
_CP_METHOD = (
    "attention under CP: all_gather (Llama 3's), ring, ulysses, or ulysses:N, where N ranks trade heads and "
    "groups of N form a ring (default: the trainer's, else all_gather)"
)
_DOCUMENTS = "length of each document in a sequence; attention stays within a document"
_SHRINK = "shrink the model to narrow heads and few layers, on at most 64 ranks: same shards, same faults"
_NC = "micro-batches in a row per stage, in the flexible schedule (default: pp)"
_GPU = "GPU that the job must fit: {choices}; or your own as JSON, or a .toml or .json file"
_SAVES = "what the run does that is not counted, so that figures are upper bounds: {names}"
_JOB = "published job that supplies every value you leave out: {names}"
_CONTEXT = 'other known facts: {"tp": 8, "heads": 32, "kv_heads": 8, ...}'

_TABLE = (
    Option("model", str, None, _MODEL),
    Option("dim", int, None, "width of the residual stream"),
    Option("n_layers", int, None, "transformer layers", "layers"),
    Option("n_heads", int, None, "query heads", "heads"),
    Option("n_kv_heads", int, None, "KV heads to store: fewer drops equal copies, more adds copies", "heads"),
    Option("head_dim", int, None, "width of a head"),
    Option("ffn_dim", int, None, "width of the FFN"),
    Option("vocab_size", int, None, "tokens of the vocabulary"),
    Option("max_seq_len", int, None, "longest sequence that the model's positions support", "tokens"),
    # a layout
    *(Option(a, int, 1, f"{AXIS_TITLES[a]} ranks", "ranks", most=MAX_DEGREE) for a in AXES),
    Option("order", str, PAPER_ORDER, _ORDER, choices=ORDERS),
    Option("dp_replicate", int, 1, _REPLICATE, "ranks", most=MAX_DEGREE),
    Option("virtual_stages", int, 1, "pipeline stages per rank (interleaved)", "stages", most=MAX_DEGREE),
    Option("zero", int, 1, "ZeRO stage", most=3),
    Option("sequence_parallel", bool, None, "shard the residual stream over TP (default: on)"),
    # a job
    Option("job", str, None, _JOB),
    Option("gpus", int, None, "number of GPUs you have", "GPUs", most=MAX_WORLD),
    Option("gpus_per_node", int, 8, "GPUs of a machine, connected by NVLink", "GPUs of a node", most=2**16),
    Option("seq_len", int, None, "sequence length", "tokens"),
    Option("batch_tokens", int, None, "tokens in a global batch", "tokens", most=2**50),
    Option("batch_per_dp", int, None, "sequences in a step, per DP group", "sequences"),
    Option("micro_batch", int, None, "sequences in a micro-batch", "sequences"),
    Option("global_batch", int, None, "sequences in a step, over all DP groups", "sequences"),
    Option("micro_batches", int, None, "micro-batches in a step, per DP group", "micro-batches"),
    Option("kv_replication", bool, False, "store a KV head on several ranks when tp > n_kv_heads"),
    Option("padding", str, None, _PADDING),
    Option("quant_group", int, None, "weights that share one quantisation scale", "weights", most=2**24),
    Option("layer_split", str, None, "layers per stage: {names}", choices=tuple(LAYER_SPLITS)),
    Option("framework", str, None, _FRAMEWORK),
    # maps
    Option("rank", int, 0, "global rank"),
    Option("parameter", str, "wq", "row of the placement table"),
    Option("interleave", bool, True, "put copies of a KV head side by side"),
    Option("chunking", str, "head-tail", "how CP shards the sequence: {choices}"),
    Option("gives", str, "dp", "axis that changes to keep the number of GPUs: {choices}", choices=AXES),
    # a run
    Option("program", str, "attention", "program to run: {choices}", choices=_PROGRAMS),
    Option("engine", str, "local", _ENGINE, choices=("local", "processes", "torchrun", "dry")),
    Option("device", str, "auto", "{choices}", choices=("auto", "cpu", "cuda")),
    Option("dtype", str, "float32", "{choices}", choices=("float64", "float32", "bfloat16")),
    Option("seed", int, 0, "seed of the random tensors"),
    Option("cp_method", str, "all_gather", _CP_METHOD, choices=("all_gather", "ring", "ulysses")),
    Option("documents", tuple, None, _DOCUMENTS, "tokens"),
    Option(
        "fault",
        str,
        None,
        "inject a fault; any other word lists the names",
        choices=tuple(_FAULTS.split()),
    ),
    Option("case", str, None, "fault, puzzle or incident that a watched program opens with"),
    Option(
        "data",
        str,
        "teaching",
        "input of a watched program: {choices}",
        choices=("teaching", "random"),
    ),
    Option("mutants", bool, False, "if all is equal, try which faults the run would have noticed (60 s)"),
    Option("prove", bool, True, "run a fix on real ranks, if it is small enough"),
    Option("timeout", float, 60.0, "time without progress after which ranks are stopped", "seconds"),
    Option("deadline", float, None, "time limit of the whole run, even if it makes progress", "seconds"),
    Option("pads_in_softmax", bool, False, "include the vocabulary's pad rows in the loss"),
    Option("reshard_after_forward", bool, True, "with ZeRO 3, gather parameters again for the backward"),
    Option("force", bool, False, "run a layout that check refuses"),
    Option("steps", int, 1, "weight updates in a run", "steps"),
    Option("steps_done", int, 0, "weight updates before this run", "steps"),
    Option("eval_mode", bool, False, "call module.eval() first, so that dropout draws nothing"),
    Option("out", str, "residual", "row of the placement table for a returned tensor"),
    Option("backward", bool, True, "compute gradients too"),
    # memory
    Option("recompute", str, None, "what the backward recomputes: {names} (default: the trainer's)"),
    Option("schedule", str, "1f1b", "pipeline schedule: {choices}"),
    Option("nc", int, None, _NC, "micro-batches"),
    Option("beside", str, None, "another schedule, drawn below on the same time axis"),
    Option("time", int, None, "time in the timeline for which to say what every rank does", "forwards"),
    Option("step", int, 0, "step of a layer's forward and backward to draw; 0: all", "steps"),
    Option("saves", tuple, (), _SAVES, choices=("lora", "8-bit-adam", "offload", "4-bit", "zero")),
    Option("accounting", str, "exact", "whose memory estimate: {choices}"),
    Option("gpu", str, None, _GPU, choices=tuple(HARDWARE)),
    Option(
        "grad_dtype",
        str,
        None,
        "dtype of gradient sums: {names} (default: the trainer's)",
        choices=("float32", "bfloat16", "float16"),
    ),
    Option("kernels", str, "fused", "fused, or eager like this project's programs"),
    Option("loss", str, None, "how the loss is computed: {choices}"),
    Option(
        "master_weights",
        bool,
        None,
        "keep float32 weights and optimizer states beside 16-bit parameters",
    ),
    Option("float8_all_gather", bool, False, "with ZeRO 3, gather the weights of layers in float8"),
    # time
    Option(
        "precision",
        str,
        "bfloat16",
        "precision of the layers' matmuls: {choices}",
        choices=("bfloat16", "float8"),
    ),
    Option("flash", str, "fa3", "attention kernel: {choices}"),
    Option("overlap_tp", bool, False, "overlap TP collectives with matmuls"),
    Option(
        "imbalance",
        float,
        1.0,
        "attention work of the busiest rank over the mean, under document masks",
    ),
    Option("profile", str, None, "numbers fitted to a trainer's published runs: {choices}"),
    Option("flops", str, "causal", "FLOPs counted in MFU: {choices}"),
    Option("explain", bool, False, "add the Llama 3 papers' arguments for a layout, with these numbers"),
    Option("top", int, 10, "layouts to show", "layouts", most=1000),
    Option(
        "export",
        str,
        None,
        "print the settings of the fastest layout for {choices}",
        choices=tuple(EXPORT_TITLES),
    ),
    Option("all_schedules", bool, False, "try the other pipeline schedules too"),
    # Nine of ten measured peaks are within 8 % of what `memory` says (MARGIN in count/terms.py).
    Option("headroom", float, 0.08, "memory of a GPU to keep free: below 1 a share, else GiB"),
    # files and machines
    Option("format", str, "q40", "file format: {choices}"),
    Option("nodes", int, 1, "machines, each of them a TP rank", "machines"),
    Option("memory_gib", float, 64, "memory of each machine, in 2^30 bytes", "GiB"),
    Option("against", str, None, "another checkpoint of the same model, to compare bit for bit"),
    # the command's own
    Option("file", str, None, "log file to read instead, of any size"),
    Option("context", str, None, _CONTEXT),
    Option("minutes", int, None, "length of a session (default: that of reading it)", "minutes"),
    Option("slides", str, None, "new file for slides: one HTML page, made of the notebooks' pictures"),
    Option("copy", bool, False, "only copy the course's files, and open nothing"),
    Option("browser", bool, True, "open it in a browser"),
    Option("port", int, None, "port to listen on (default: the server's, or the next free one)", most=65535),
    Option("inventory", bool, False, "list every tensor and where it is stored"),
    Option("shrink", bool, False, _SHRINK),
    Option("config", list, None, "settings file of your run: TOML, YAML, JSON or Python; repeatable"),
    Option("launch", list, None, "script that starts your run; repeatable"),
    Option("settings", bool, False, "show what the files say: sources, unknown fields, contradictions"),
    Option("tape", bool, False, "show every assignment of the program with its shape on each rank"),
    Option("trace", bool, False, "show every collective of rank 0"),
    Option("json", bool, False, "answer in JSON"),
)

OPTIONS: dict[str, Option] = {option.name: option for option in _TABLE}
"""Every option by name."""

_TIMED = {"micro_batch": 1, "gpu": DEFAULT_GPU}
_MEMORY = _TIMED | {"dtype": "bfloat16", "kernels": None, "cp_method": None}

OTHER_DEFAULTS: dict[str, Mapping[str, object]] = {
    "cost": _TIMED | {"kernels": None, "cp_method": None},
    "plan": {"gpu": DEFAULT_GPU, "kernels": None, "cp_method": None},
    "check": {"cp_method": None},
    "require": {"cp_method": None},
    "checkpoint": {"format": "hf", "layer_split": "balanced ends"},
    "inside": _TIMED,
    "debug": {"deadline": 2.0},
    "explain": dict.fromkeys((*AXES, "virtual_stages", "zero")),
    "loading": {"seq_len": 4096},
    "memory": _MEMORY,
    "reconcile": _MEMORY,
    "schedule": {"virtual_stages": None},
    "ranks": {"layer_split": "balanced ends"},
    "stages": {"layer_split": "balanced ends"},
}
"""Public function → the defaults in which it differs from the table."""

LAYOUT = (*AXES, "order", "dp_replicate", "virtual_stages", "zero", "sequence_parallel")
FACTS = (
    *("gpus", "gpus_per_node", "seq_len", "batch_tokens", "batch_per_dp", "micro_batch", "global_batch"),
    *("micro_batches", "padding", "quant_group", "layer_split", "kv_replication"),
    *("gpu", "precision", "grad_dtype", "saves", "recompute", "schedule", "nc", "cp_method"),
)
"""Options that are fields of a Layout, and of a Job beside its model and layout."""


def default(name: str, function: str = "") -> object:
    """The default of an option in one public function; None for a name that is not in the table."""
    usual = OPTIONS[name].default if name in OPTIONS else None
    return OTHER_DEFAULTS.get(function, {}).get(name, usual)


def offer(name: str, choices: Iterable[str]) -> None:
    """Set the choices of an option; called by the room that owns them."""
    OPTIONS[name] = replace(OPTIONS[name], choices=tuple(choices))

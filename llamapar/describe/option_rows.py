"""The table of options: a row is everything that is declared of an option.

Flags and help of the command, keywords of public functions with their checks and types, the panels' controls
and the reading of typed numbers are made from it. Some choices belong to another room
(frameworks, schedules, file formats): that room hands them in with `options.offer` when it is imported.
Choices of optional rooms, and of rooms that need torch, are written out here, because asking them would
import them; a test compares them.
"""

from __future__ import annotations

from collections.abc import Mapping

from llamapar.errors import MAX_DEGREE

from .hardware import DEFAULT_GPU, HARDWARE, PRECISIONS
from .layout import AXES, MAX_WORLD, ORDERS, PAPER_ORDER
from .option import Option
from .splits import LAYER_SPLITS

EXPORT_TITLES = {"python": "Python", "cli": "CLI"}
"""Export format → its title on a button."""

_FAULTS = """drop_all_reduce drop_backward_all_reduce sum_twice no_kv_grad_sum tile_kv no_norm_grad_sum
contiguous_positions no_context_grad_sum no_data_grad_sum shards_not_summed replicas_not_summed
shards_out_of_order pad_in_softmax tied_not_summed micro_batches_swapped loss_not_divided
gradients_too_early send_receive_crossed norm_counts_copies norm_forgets_pp clipped_per_rank
averaged_over_context neighbours_shard weights_late last_row_missed maximum_not_shared slices_not_summed
gather_not_summed_backward scale_forgotten batch_for_sequence kv_heads_in_turn rope_by_halves
chunk_at_the_start tokens_as_they_came heads_not_sent_home documents_ignored norm_without_eps
never_clipped means_not_corrected decay_in_gradient"""
_PROGRAMS = ("attention", "embedding", "loss", "mlp", "block", "llama", "step")
_LAYOUT = (
    "Layout() check require() cost memory reconcile() heads() vocab() sequence() stages() ffn() "
    "zero() traffic() inside() run compare() tape() watch() shrink() explorer"
)
_JOB = "Job() check require() --memory explorer"
_COUNTED = "Job() check require() memory reconcile() explorer"
"""Who takes every degree of a layout; every fact of a job; and every fact that memory is counted from."""

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
_PUBLISHED = "published job that supplies every value you leave out: {names}"

# fmt: off
TABLE = (
    Option("model", str, None, _MODEL,
           "--check --memory --cost --plan --run --loading --explorer --explain clinic() "
           "ranks() inspect verify shard gather reshard", python="ModelLike"),
    Option("job", str, None, _PUBLISHED, "--check --memory --cost --plan explorer", label="the paper's jobs",
           hint="what the Llama 3 paper ran, with all its settings"),
    Option("inventory", bool, False, "list every tensor and where it is stored", "--model"),
    Option("preset", str, None, "the Explorer's model, by name or as a file", "explorer()",
           python="ModelLike"),
    Option("dim", int, None, "width of the residual stream", "explain() clinic() explorer()"),
    Option("n_layers", int, None, "transformer layers", "explain() clinic() explorer()", "layers"),
    Option("n_heads", int, None, "query heads", "explain() clinic() explorer()", "heads"),
    Option("n_kv_heads", int, None, "KV heads to store: fewer drops equal copies, more adds copies",
           "explain() clinic() explorer() shard gather reshard", "heads"),
    Option("head_dim", int, None, "width of a head", "explain() clinic() explorer()"),
    Option("ffn_dim", int, None, "width of the FFN", "explain() clinic() explorer()"),
    Option("vocab_size", int, None, "tokens of the vocabulary", "explain() clinic() explorer()"),
    Option("max_seq_len", int, None, "longest sequence that the model's positions support", "explain()",
           "tokens"),
    # a layout
    Option("tp", int, 1, "tensor parallel ranks",
           f"{_LAYOUT} ranks explain clinic() live() shard reshard --model", "ranks", most=MAX_DEGREE,
           label="TP", hint="tensor parallel"),
    Option("cp", int, 1, "context parallel ranks", f"{_LAYOUT} ranks explain clinic() live()", "ranks",
           most=MAX_DEGREE, label="CP", hint="context parallel"),
    Option("pp", int, 1, "pipeline parallel ranks",
           f"{_LAYOUT} ranks explain clinic() live() schedule shard reshard --model", "ranks",
           most=MAX_DEGREE, label="PP", hint="pipeline parallel"),
    Option("dp", int, 1, "data parallel ranks", f"{_LAYOUT} ranks explain clinic() live()", "ranks",
           most=MAX_DEGREE, label="DP", hint="data parallel"),
    Option("ep", int, None, "expert parallel ranks", "explain()"),
    Option("order", str, PAPER_ORDER, _ORDER, f"{_LAYOUT} ranks live()", choices=ORDERS,
           label="rank order", hint="fastest axis first"),
    Option("dp_replicate", int, 1, _REPLICATE, f"{_LAYOUT} ranks()", "ranks", most=MAX_DEGREE,
           label="HSDP replicas",
           hint="dp_replicate: full copies of the model among the DP ranks, each shared by ZeRO"),
    Option("virtual_stages", int, 1, "pipeline stages per rank (interleaved)",
           f"{_LAYOUT} ranks() explain live() schedule --model", "stages", most=MAX_DEGREE,
           label="virtual stages per rank"),
    Option("zero", int, 1, "ZeRO stage", f"{_LAYOUT} ranks() explain() live()", most=3, least=0,
           metavar="0-3", label="ZeRO stage"),
    Option("sequence_parallel", bool, None, "shard the residual stream over TP (default: on)",
           f"{_LAYOUT} ranks()", label="sequence parallel", hint="shares the residual stream over TP"),
    # a job
    Option("gpus", int, None, "number of GPUs you have", f"{_JOB} cost --plan explain clinic()", "GPUs",
           most=MAX_WORLD, label="GPUs", hint="empty: as many as ranks"),
    Option("gpus_per_node", int, 8, "GPUs of a machine, connected by NVLink", _JOB, "GPUs of a node",
           most=2**16, is_open=True, label="GPUs per node"),
    Option("seq_len", int, None, "sequence length",
           f"{_COUNTED} cost plan explain clinic() live() ranks() loading traffic() inside() run tape() "
           "compare()", "tokens", label="sequence length"),
    Option("batch_tokens", int, None, "tokens in a global batch", _JOB, "tokens", most=2**50,
           label="global batch in tokens"),
    Option("batch_per_dp", int, None, "sequences in a step, per DP group", _JOB, "sequences",
           label="batch per DP group"),
    Option("micro_batch", int, None, "sequences in a micro-batch",
           f"{_COUNTED} cost explain clinic() live() inside()", "sequences", label="micro-batch size"),
    Option("global_batch", int, None, "sequences in a step, over all DP groups",
           f"{_COUNTED} cost plan explain clinic() live() ranks() traffic() run tape() compare() watch()",
           "sequences", label="global batch"),
    Option("micro_batches", int, None, "micro-batches in a step, per DP group",
           f"{_JOB} live() traffic() run tape() watch() schedule", "micro-batches",
           label="micro-batches per step"),
    Option("padding", str, None, _PADDING,
           f"{_COUNTED} live() vocab() zero() traffic() run tape() shrink() shard reshard --model",
           python="str | Padding", metavar="RULE", label="vocabulary padding"),
    Option("quant_group", int, None, "weights that share one quantisation scale",
           f"{_JOB} explain clinic()", "weights", most=2**24, label="quantisation group",
           hint="weights that share a scale"),
    Option("layer_split", str, None, "layers per stage: {names}",
           f"{_COUNTED} cost live() ranks() stages() shard reshard --model", choices=tuple(LAYER_SPLITS),
           metavar="SPLIT", label="layers per stage", is_open=True),
    Option("kv_replication", bool, False, "store a KV head on several ranks when tp > n_kv_heads",
           f"{_COUNTED} cost plan live() heads() ranks() zero() traffic() inside() run tape() watch() "
           "shard reshard", label="replicate KV heads", hint="when tp > n_kv_heads"),
    Option("gpu", str, None, _GPU, f"{_COUNTED} cost plan live() inside()", choices=tuple(HARDWARE),
           python="GpuLike", label="GPU", hint="whose HBM must hold it"),
    Option("precision", str, "bfloat16", "precision of the layers' matmuls: {choices}",
           "Job() check require() --memory --explorer cost plan", choices=PRECISIONS,
           metavar="NAME"),
    Option("grad_dtype", str, None, "dtype of gradient sums: {names} (default: the trainer's)",
           "Job() check require() memory reconcile() --explorer plan",
           choices=("float32", "bfloat16", "float16")),
    Option("saves", tuple, (), _SAVES, "Job() check require() memory reconcile() --explorer",
           choices=("lora", "8-bit-adam", "offload", "4-bit", "zero"), python="Sequence[str]",
           metavar="NAME,NAME,..."),
    Option("recompute", str, None, "what the backward recomputes: {names} (default: the trainer's)",
           f"{_COUNTED} cost live()", metavar="NAME", label="recomputation", hint="of activations"),
    Option("schedule", str, "1f1b", "pipeline schedule: {choices}",
           f"{_COUNTED} cost plan traffic() run tape()", metavar="NAME", label="pipeline schedule"),
    Option("name", str, "1f1b", "pipeline schedule of a live picture", "live()"),
    Option("nc", int, None, _NC, f"{_COUNTED} cost live() traffic() run tape() schedule", "micro-batches",
           label="nc, micro-batches in a row", hint="of the flexible schedule; empty: pp"),
    Option("cp_method", str, "all_gather", _CP_METHOD,
           f"{_COUNTED} cost plan live() traffic() inside() run tape() watch()",
           choices=("all_gather", "ring", "ulysses"), metavar="NAME", label="CP attention",
           hint="how CP ranks share attention", is_open=True),
    Option("framework", str, None, _FRAMEWORK,
           "check require() memory reconcile() explorer cost plan live() clinic() --explain",
           python="str | Framework", metavar="NAME", hint="whose rules judge the layout"),
    # maps
    Option("rank", int, 0, "global rank",
           "--ranks zero() traffic() inside() live() explorer() run", least=0,
           label="rank shown",
           hint="in the Ranks tab, or click a cell there; whose group is drawn in a layer; of the engine "
           "dry"),
    Option("parameter", str, "wq", "row of the placement table", "zero()"),
    Option("interleave", bool, True, "put copies of a KV head side by side", "heads() live()"),
    Option("chunking", str, "head-tail", "how CP shards the sequence: {choices}",
           "ranks() sequence() run tape() watch() live() explorer()", metavar="NAME",
           label="sequence chunks"),
    Option("gives", str, "dp", "axis that changes to keep the number of GPUs: {choices}", "explorer()",
           choices=AXES),
    Option("tab", str, "heads", "picture that the Explorer shows", "explorer()"),
    # a run
    Option("program", str, "attention", "program to run: {choices}", "shrink() live() explorer()",
           choices=_PROGRAMS, is_open=True),
    Option("engine", str, "local", _ENGINE, "run compare() explorer()",
           choices=("local", "processes", "torchrun", "dry")),
    Option("device", str, "auto", "{choices}", "run compare()", choices=("auto", "cpu", "cuda")),
    Option("dtype", str, "float32", "{choices}",
           "memory() reconcile() explorer() zero() traffic() run tape() compare()",
           choices=("float64", "float32", "bfloat16"), is_open=True, label="number format"),
    Option("seed", int, 0, "seed of the random tensors", "run tape() compare()", least=0),
    Option("documents", tuple, None, _DOCUMENTS, "sequence() run tape() watch() explorer()", "tokens",
           python="tuple[int, ...]", metavar="N,N,...",
           hint="tokens of each, as 1000, 5000, 2192; one number repeats; each attends to its own"),
    Option("fault", str, None, "inject a fault; any other word lists the names", "run tape() explorer()",
           choices=tuple(_FAULTS.split()), metavar="NAME", label="break on purpose", is_open=True),
    Option("case", str, None, "fault, puzzle or incident that a watched program opens with", "watch()"),
    Option("data", str, "teaching", "input of a watched program: {choices}", "watch()",
           choices=("teaching", "random")),
    Option("timeout", float, 60.0, "time without progress after which ranks are stopped",
           "run compare()", "seconds", metavar="SECONDS"),
    Option("pads_in_softmax", bool, False, "include the vocabulary's pad rows in the loss", "run tape()"),
    Option("reshard_after_forward", bool, True, "with ZeRO 3, gather parameters again for the backward",
           "zero() traffic() run tape()"),
    Option("force", bool, False, "run a layout that check refuses", "run"),
    Option("steps", int, 1, "weight updates in a run", "run tape()", "steps"),
    Option("steps_done", int, 0, "weight updates before this run", "run() tape()", "steps", least=0),
    Option("out", str, "residual", "row of the placement table for a returned tensor",
           "run() tape() --lesson", metavar="FILE"),
    Option("backward", bool, True, "compute gradients too", "run() tape() compare()"),
    Option("inputs", dict, None, "tensors to run on instead of random ones", "run() tape()",
           python="Mapping[str, Tensor]"),
    Option("reference", object, None, "what your own program is compared with", "run() tape()",
           python="Callable[..., Any]"),
    # memory
    Option("beside", str, None, "another schedule, drawn below on the same time axis", "explorer()",
           label="another below"),
    Option("time", int, None, "time in the timeline for which to say what every rank does", "explorer()",
           "forwards", least=0, label="cursor at time",
           hint="what every rank does then; or click in the picture"),
    Option("step", int, 0, "step of a layer's forward and backward to draw; 0: all", "explorer()",
           "steps", least=0, label="cursor at step"),
    Option("kernels", str, "fused", "fused, or eager like this project's programs",
           "memory() reconcile() cost plan", choices=("fused", "eager")),
    Option("loss", str, None, "how the loss is computed: {choices}", "memory reconcile()"),
    Option("master_weights", bool, None,
           "keep float32 weights and optimizer states beside 16-bit parameters", "memory reconcile()"),
    Option("float8_all_gather", bool, False, "with ZeRO 3, gather the weights of layers in float8", "cost"),
    # time
    Option("flash", str, "fa3", "attention kernel: {choices}", "cost plan", metavar="NAME"),
    Option("overlap_tp", bool, None, "overlap TP collectives with matmuls (default: as the trainer does)",
           "cost plan"),
    Option("imbalance", float, 1.0,
           "attention work of the busiest rank over the mean, under document masks", "cost"),
    Option("profile", str, None, "numbers fitted to a trainer's published runs: {choices}", "cost plan"),
    Option("flops", str, "causal", "FLOPs counted in MFU: {choices}", "cost", metavar="NAME"),
    Option("explain", bool, False, "add the Llama 3 papers' arguments for a layout, with these numbers",
           "--cost"),
    Option("top", int, 10, "layouts to show", "plan", "layouts", most=1000),
    Option("export", str, None, "print the fastest layout as a text to copy: {choices}", "--plan",
           choices=tuple(EXPORT_TITLES)),
    # Nine of ten measured peaks are within 8 % of what `memory` says (MARGIN in count/terms.py).
    Option("headroom", float, 0.08, "memory of a GPU to keep free: below 1 a share, else GiB", "plan"),
    # files and machines
    Option("format", str, "q40", "file format: {choices}", "loading shard gather reshard", is_open=True),
    Option("nodes", int, 1, "machines, each of them a TP rank", "loading", "machines", most=2**12),
    Option("memory_gib", float, 64, "memory of each machine, in 2^30 bytes", "loading", "GiB",
           metavar="GIB"),
    Option("against", str, None, "another checkpoint of the same model, to compare bit for bit", "verify",
           metavar="PATH"),
    # the command's own
    Option("file", str, None, "log file to read instead, of any size", "--explain"),
    Option("minutes", int, None, "length of a session (default: that of reading it)", "--lesson",
           "minutes"),
    Option("slides", str, None, "new file for slides: one HTML page, made of the notebooks' pictures",
           "--lesson", metavar="FILE"),
    Option("copy", bool, False, "only copy the course's files, and open nothing", "--course"),
    Option("browser", bool, True, "open it in a browser", "--course --explorer"),
    Option("port", int, None, "port to listen on (default: the server's, or the next free one)",
           "--course --explorer", most=65535),
    Option("shrink", bool, False, _SHRINK, "--run"),
    Option("config", list, None, "settings file of your run: TOML, YAML, JSON or Python; repeatable",
           "--check --cost --plan --explain", metavar="FILE"),
    Option("launch", list, None, "script that starts your run; repeatable",
           "--check --cost --plan --explain", metavar="FILE"),
    Option("settings", bool, False, "show what the files say: sources, unknown fields, contradictions",
           "--check"),
    Option("tape", bool, False, "show every assignment of the program with its shape on each rank",
           "--run"),
    Option("trace", bool, False, "show every collective of rank 0", "--run"),
    Option("json", bool, False, "answer in JSON", ""),
)
# fmt: on

_TIMED = {"micro_batch": 1, "gpu": DEFAULT_GPU}
_MEMORY = _TIMED | {"dtype": "bfloat16", "kernels": None, "cp_method": None}

OTHER_DEFAULTS: dict[str, Mapping[str, object]] = {
    "cost": _TIMED | {"kernels": None, "cp_method": None},
    "plan": {"gpu": DEFAULT_GPU, "kernels": None, "cp_method": None},
    "check": {"cp_method": None},
    "require": {"cp_method": None},
    "shard": {"format": "hf", "layer_split": "balanced ends"},
    "reshard": {"format": "hf", "layer_split": "balanced ends"},
    "gather": {"format": "hf"},
    "inside": _TIMED,
    "explain": dict.fromkeys((*AXES, "virtual_stages", "zero")),
    "loading": {"seq_len": 4096},
    "memory": _MEMORY,
    "reconcile": _MEMORY,
    "schedule": {"virtual_stages": None},
    "live": {"virtual_stages": None},
    "ranks": {"layer_split": "balanced ends"},
    "stages": {"layer_split": "balanced ends"},
}
"""Public function → the defaults in which it differs from the table."""

NEEDED = {
    **dict.fromkeys(("cost", "memory", "reconcile", "inside", "traffic"), ("seq_len",)),
    "plan": ("seq_len", "global_batch"),
    "schedule": ("micro_batches",),
}
"""Public function → the options that it cannot do without."""

AS_TYPED = ("explorer", "clinic", "explain")
"""Where a number may also be a text, as a person types it: "16k"."""

OTHER_TYPES = {
    **{("layer_split", name): "str | Sequence[int]" for name in ("memory", "reconcile", "cost")},
    **{("schedule", name): "str | Schedule" for name in ("run", "tape", "traffic")},
    ("documents", "explorer"): "str | tuple[int, ...]",
}
"""Types that are wider in one public function than in the table."""

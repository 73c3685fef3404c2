"""Megatron-LM's arguments, from launch scripts and from the test suite's YAML; its forks' spellings too.

Names and defaults: megatron/training/arguments.py @d98e8a64dd (2026-08-22) and core_v0.12.0 = d580efc68a.
Megatron-DeepSpeed: deepspeedai 4efb479d53. epfLLM's underscores: 806a83302c.
"""

from __future__ import annotations

from collections.abc import Callable

from .documents import Entry
from .draft import Draft, Origin, count, number, scalar
from .files import Files
from .flags import Flags, is_known

MARKS = ("tensor-model-parallel-size", "num-layers", "pipeline-model-parallel-size", "num-attention-heads")
BY = "Megatron-LM (arguments.py@d98e8a64dd)"

_DIMS = {
    "n_layers": "num-layers",
    "dim": "hidden-size",
    "n_heads": "num-attention-heads",
    "max_seq_len": "max-position-embeddings",
    "head_dim": "kv-channels",
}


def recognised(files: Files) -> bool:
    """Whether a script or a test's YAML has Megatron's arguments."""
    if files.with_key("MODEL_ARGS") is not None:
        return True
    return files.flags(MARKS[0], MARKS[1]) is not None


def _arguments(files: Files) -> tuple[str, Flags]:
    """The arguments, from the script or from `MODEL_ARGS` of a test's YAML, where true is a switch."""
    found = files.with_key("MODEL_ARGS")
    if found is None:
        flags = files.flags(*MARKS)
        assert flags is not None
        return flags
    name, document = found
    entries = {}
    for entry in document.under("MODEL_ARGS"):
        key = entry.path.partition(".")[2].lstrip("-").replace("_", "-")
        if entry.value is not False:
            entries[key] = Entry(entry.path.partition(".")[2], entry.value, entry.line)
    return name, Flags(entries, {}, ())


class _Reader:
    """One set of arguments on its way into the draft."""

    def __init__(self, name: str, flags: Flags, draft: Draft):
        self.name, self.flags, self.draft = name, flags, draft

    def origin(self, entry: Entry | None, said: str = "") -> Origin:
        return Origin(self.name, entry.line if entry else 0, said or (entry.path if entry else "default"))

    def take(self, field: str, *keys: str, default: object = None) -> object:
        return self.draft.take(field, self.flags.get(*keys), self.name, default, BY)


def read(files: Files, draft: Draft) -> None:
    """Fills the draft from the arguments and the launch."""
    name, flags = _arguments(files)
    reader = _Reader(name, flags, draft)
    _read_layout(reader)
    _read_batch(reader)
    _read_model(reader)
    files.take_world(draft)
    if flags.has("use-checkpoint-args"):
        _leave_to_checkpoint(draft, flags)


def _read_layout(reader: _Reader) -> None:
    flags, draft = reader.flags, reader.draft
    reader.take("tp", "tensor-model-parallel-size", default=1)
    reader.take("pp", "pipeline-model-parallel-size", default=1)
    reader.take("cp", "context-parallel-size", default=1)
    on = flags.get("sequence-parallel")
    draft.put("sequence_parallel", flags.has("sequence-parallel"), reader.origin(on))
    draft.derive("dp_replicate", 1, "Megatron's optimizer shares over all of dp")
    _read_zero(reader)
    _read_stages(reader)
    for key, what in (
        ("num-experts", "mixture of experts"),
        ("expert-model-parallel-size", "expert parallel"),
    ):
        entry = flags.get(key)
        if entry is not None and (count(entry.value) or 1) > 1:
            draft.covered = draft.covered and key != "num-experts"
            draft.refuse(f"{entry.path} {entry.value}: {what}", reader.origin(entry))
    ulysses = flags.get("ds-sequence-parallel-size")
    if ulysses is not None:
        if (count(ulysses.value) or 1) > 1:
            draft.refuse(f"{ulysses.path} {ulysses.value}: Ulysses", reader.origin(ulysses))
        else:
            draft.ignored.append(f"{ulysses.path} 1: Ulysses over one rank")
    if flags.has("use-tp-pp-dp-mapping"):
        draft.put("order", "tp-cp-pp-dp", reader.origin(flags.get("use-tp-pp-dp-mapping")))


_SHARDED = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}


def _read_zero(reader: _Reader) -> None:
    flags, draft = reader.flags, reader.draft
    if entry := flags.get("zero-stage"):
        draft.put("zero", int(str(entry.value)) if str(entry.value) in "0123" else 0, reader.origin(entry))
    elif flags.has("use-torch-fsdp2"):
        draft.put("zero", 3, reader.origin(flags.get("use-torch-fsdp2")))
    elif flags.has("use-megatron-fsdp", "use-custom-fsdp"):
        strategy = flags.get("data-parallel-sharding-strategy")
        value = _SHARDED.get(str(strategy.value) if strategy else "no_shard", 0)
        draft.put("zero", value, reader.origin(strategy))
    else:
        entry = flags.get("use-distributed-optimizer")
        draft.put("zero", int(flags.has("use-distributed-optimizer")), reader.origin(entry))


def _read_stages(reader: _Reader) -> None:
    """Virtual stages: said, or layers of a rank over layers of one of its stages."""
    flags, draft = reader.flags, reader.draft
    pp, layers = draft.number("pp"), flags.get("num-layers")
    each = flags.get("num-layers-per-virtual-pipeline-stage")
    n_layers = count(layers.value) if layers else None
    if flags.get("num-virtual-stages-per-pipeline-rank"):
        reader.take("virtual_stages", "num-virtual-stages-per-pipeline-rank")
    elif each is not None and is_known(each) and pp and n_layers and (size := count(each.value)):
        ends = flags.has("account-for-embedding-in-pipeline-split") + flags.has(
            "account-for-loss-in-pipeline-split"
        )
        draft.derive(
            "virtual_stages",
            (n_layers + ends) // pp // size,
            f"{n_layers + ends} layers / {pp} / {size}",
        )
    elif flags.get("pipeline-model-parallel-layout"):
        entry = flags.get("pipeline-model-parallel-layout")
        assert entry is not None
        stages = _layout_stages(str(entry.value))
        if pp and stages and stages % pp == 0:
            draft.derive("virtual_stages", stages // pp, f"{stages} stages of {entry.path} over {pp}")
        else:
            draft.missing("virtual_stages", f"{entry.path} {entry.value}")
    if (draft.number("virtual_stages") or 1) > 1:
        draft.derive("schedule", "interleaved", "several stages on a rank")
    first, last = (
        flags.get("decoder-first-pipeline-num-layers"),
        flags.get("decoder-last-pipeline-num-layers"),
    )
    if pp and n_layers and (first or last) and pp > 1:
        ends_said = {0: count(first.value) if first else None, pp - 1: count(last.value) if last else None}
        left = n_layers - sum(n for n in ends_said.values() if n)
        middle = [stage for stage in range(pp) if ends_said.get(stage) is None]
        if middle and left % len(middle) == 0:
            counts = [ends_said.get(stage) or left // len(middle) for stage in range(pp)]
            draft.derive("layer_counts", counts, "first and last stage as said, the rest shared evenly")


def _layout_stages(text: str) -> int | None:
    """Stages of a layout string: "|" ends one, "(…)*n" repeats; None where it holds more than that."""
    import re

    body = text.strip("\"'")
    while match := re.search(r"\(([^()]*)\)\*(\d{1,3})", body):
        body = body[: match.start()] + match[1] * int(match[2]) + body[match.end() :]
        if len(body) > 10_000:
            return None
    body = re.sub(r"([A-Za-z|])\*(\d{1,3})", lambda m: m[1] * int(m[2]), body)
    return body.count("|") + 1 if re.fullmatch(r"[EtLm|,]+", body) else None


def _read_batch(reader: _Reader) -> None:
    flags, draft = reader.flags, reader.draft
    reader.take("seq_len", "seq-length")
    reader.take("micro_batch", "micro-batch-size")
    reader.take("global_batch", "global-batch-size")
    ramp = flags.get("rampup-batch-size")
    if ramp is not None:
        said = " ".join(flags.values.get("rampup-batch-size", ()))
        draft.ignored.append(f"{ramp.path} {said}: starts at {said.partition(' ')[0]}")
    if "global_batch" not in draft.facts and "global_batch" not in draft.unknown:
        draft.derive("micro_batches", 1, "global batch = micro-batch · dp, unless said")
    for key, dtype in (("bf16", "bf16"), ("fp16", "fp16"), ("fp8-format", "fp8")):
        if flags.has(key):
            draft.put("dtype", dtype, reader.origin(flags.get(key)))
    old = flags.get("checkpoint-activations", "deepspeed-activation-checkpointing")
    if old is not None:
        draft.put("recompute", "full", reader.origin(old))
        return
    granularity = flags.get("recompute-granularity")
    said = str(granularity.value) if granularity else "none"
    if flags.has("recompute-activations"):
        if granularity is not None and said == "full":
            entry = flags.get("recompute-activations")
            why = f"--recompute-activations sets selective after parsing ({reader.origin(entry)})"
            draft.ignored.append(f"{granularity.path} full: {why}")
        said, granularity = "selective", flags.get("recompute-activations")
    if said != "none" or flags.get("recompute-granularity", "recompute-activations") is None:
        draft.put("recompute", said, reader.origin(granularity))


def _read_model(reader: _Reader) -> None:
    flags, draft = reader.flags, reader.draft
    for field, key in _DIMS.items():
        reader.take(field, key)
    dim, heads = draft.number("dim"), draft.number("n_heads")
    gated = flags.has("swiglu")
    if flags.get("ffn-hidden-size"):
        reader.take("ffn_dim", "ffn-hidden-size")
    elif dim is not None:
        width = int(4 * dim * 2 / 3 / 64) * 64 if gated else 4 * dim
        draft.derive("ffn_dim", width, "Megatron's default")
    _read_kv_heads(reader, heads)
    theta = flags.get("rotary-base", "rotary-position-embeddings-theta", "rope-theta")
    value = number(theta.value) if theta else 10000
    if value is not None:
        draft.put("rope_theta", int(value) if float(value).is_integer() else value, reader.origin(theta))
    tied = flags.get("untie-embeddings-and-output-weights")
    draft.put("tied", not flags.has("untie-embeddings-and-output-weights"), reader.origin(tied))
    unit = flags.get("make-vocab-size-divisible-by")
    draft.put("padding", f"{(count(unit.value) if unit else None) or 128}*tp", reader.origin(unit))
    if is_known(flags.get("vocab-size")):
        reader.take("vocab_size", "vocab-size")
    else:
        draft.missing("vocab_size", "from the tokenizer")
    for entry in (flags.get("extra-vocab-size"),):
        if entry is not None:
            draft.ignored.append(f"{entry.path} {entry.value}: added to the tokenizer's in a fork")
    _refuse_other_models(reader)


def _read_kv_heads(reader: _Reader, heads: int | None) -> None:
    """Groups are read only with --group-query-attention, which alone means one (argument_utils.py:330)."""
    flags, draft = reader.flags, reader.draft
    kind = flags.get("attention-head-type")
    if kind is not None and scalar(kind.value) == "multiquery":
        draft.put("n_kv_heads", 1, reader.origin(kind))
    elif flags.get("num-key-value-heads", "num-attention-heads-kv"):
        reader.take("n_kv_heads", "num-key-value-heads", "num-attention-heads-kv")
    elif flags.has("group-query-attention"):
        reader.take("n_kv_heads", "num-query-groups", default=1)
    elif heads is not None:
        draft.derive("n_kv_heads", heads, "without --group-query-attention as many as query heads")
        groups = flags.get("num-query-groups")
        if groups is not None:
            draft.ignored.append(f"{groups.path} {groups.value}: read with --group-query-attention alone")


_CHANGED: tuple[tuple[str, str], ...] = (
    ("xielu", "an MLP without a gate"),
    ("qk-layernorm", "norms of queries and keys"),
    ("squared-relu", "squared ReLU"),
    ("add-bias-linear", "biases"),
    ("multi-latent-attention", "latent attention"),
    ("parallel-transformer-layer", "attention beside the MLP"),
)


def _refuse_other_models(reader: _Reader) -> None:
    """What makes another model than Llama's: said by name, never counted as one."""
    flags, draft = reader.flags, reader.draft
    for key, what in _CHANGED:
        if flags.has(key):
            draft.refuse(f"--{key}: {what}", reader.origin(flags.get(key)))
    if "dim" not in draft.facts or flags.get("model-name"):
        return
    positions = flags.get("position-embedding-type")
    other = list[str]()
    if not flags.has("swiglu", "xielu"):
        other.append("GELU (no --swiglu)")
    norm = flags.get("normalization")
    if norm is None or scalar(norm.value) != "rmsnorm":
        other.append("LayerNorm (no --normalization RMSNorm)")
    rotary = flags.has("use-rotary-position-embeddings") or (
        positions is not None and scalar(positions.value) in ("rope", "rotary")
    )
    if not rotary:
        other.append("learned positions (no --position-embedding-type rope)")
    for what in other:
        draft.refuse(what)
    if len(other) > 1:
        draft.covered = False


def _leave_to_checkpoint(draft: Draft, flags: Flags) -> None:
    """--use-checkpoint-args takes dimensions from the checkpoint; those that no flag gives are unknown."""
    given: Callable[..., Entry | None] = flags.get
    keys = ("group-query-attention", "num-key-value-heads", "num-attention-heads-kv")
    if given(*keys) is None and "n_heads" in draft.facts:
        draft.missing("n_kv_heads", "no flag passes it; --use-checkpoint-args reads it from the checkpoint")
    if given("num-layers") is None:
        for field in ("n_kv_heads", "rope_theta", "tied", "ffn_dim", "vocab_size"):
            draft.facts.pop(field, None)
        draft.missing("model", "--use-checkpoint-args reads it from the checkpoint")
        draft.facts.pop("padding", None)

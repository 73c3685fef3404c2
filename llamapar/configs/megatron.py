"""Megatron-LM's arguments, from launch scripts and from the test suite's YAML; its forks' spellings too.

Names and defaults: megatron/training/arguments.py @d98e8a64dd (2026-08-22) and core_v0.12.0 = d580efc68a.
Megatron-DeepSpeed: deepspeedai 4efb479d53. epfLLM's underscores: 806a83302c.
"""

from __future__ import annotations

import re

from llamapar.describe.cp_methods import of_comm_type

from .documents import Entry
from .draft import Draft, SettingsSource, positive_number, stage, whole_count
from .files import Files
from .flags import Flags, is_known, runs_something

MARKS = ("tensor-model-parallel-size", "num-layers", "pipeline-model-parallel-size", "num-attention-heads")
_OWN = (*MARKS, "micro-batch-size", "use-distributed-optimizer", "position-embedding-type")
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
    # One flag of these names may be anybody's: NeMo's scripts have some, and --num-layers is common.
    found = files.flags(*MARKS)
    return found is not None and sum(found[1].get(key) is not None for key in _OWN) > 1


def _arguments(files: Files) -> tuple[str, Flags]:
    """The arguments from the script, or from `MODEL_ARGS` of a test's YAML, where true is a switch."""
    found = files.with_key("MODEL_ARGS")
    if found is None:
        flags = files.flags(*MARKS)
        assert flags is not None
        return flags
    entries = {}
    for entry in found[1].under("MODEL_ARGS"):
        key = entry.path.partition(".")[2].lstrip("-").replace("_", "-")
        # A YAML's false stands for a switch that is not given.
        if entry.value is not False:
            entries[key] = Entry(entry.path.partition(".")[2], entry.value, entry.line)
    return found[0], Flags(entries, {}, ())


def read(files: Files, draft: Draft) -> None:
    """Fill the draft from the arguments and the launch."""
    name, flags = _arguments(files)
    source = SettingsSource(name, flags.get, draft, BY)
    _read_layout(source)
    _read_batch(source, flags)
    _read_model(source)
    if source.get("data-parallel-size"):  # a log's arguments hold what follows from them too
        source.take("gpus", "world-size")
        source.take("dp", "data-parallel-size")
    files.take_world(draft)
    degrees = source.get("tensor-model-parallel-size", "pipeline-model-parallel-size")
    if degrees is None and name in files.scripts and not runs_something(files.scripts[name]):
        _leave_to_caller(draft)
    if source.on("use-checkpoint-args"):
        _leave_to_checkpoint(source)


def _read_layout(source: SettingsSource) -> None:
    draft = source.draft
    source.take("tp", "tensor-model-parallel-size", default=1)
    source.take("pp", "pipeline-model-parallel-size", default=1)
    source.take("cp", "context-parallel-size", default=1)
    sizes = source.count("hierarchical-context-parallel-sizes")  # the first one, of the groups of a2a
    source.parse("cp_method", "cp-comm-type", lambda word: of_comm_type(word, sizes), None)
    source.put("sequence_parallel", source.on("sequence-parallel"), "sequence-parallel")
    draft.derive("dp_replicate", 1, "Megatron's optimizer shares over all of dp")
    _read_zero(source)
    _read_stages(source)
    for key, what in (
        ("num-experts", "mixture of experts"),
        ("expert-model-parallel-size", "expert parallel"),
        ("ds-sequence-parallel-size", "Ulysses"),
    ):
        if (many := source.count(key) or 1) > 1:
            draft.covered = draft.covered and key != "num-experts"
            source.refuse(f"--{key} {many}: {what}", key)
    if source.count("ds-sequence-parallel-size") == 1:
        draft.ignored.append("--ds-sequence-parallel-size 1: Ulysses over one rank")
    if source.on("use-tp-pp-dp-mapping"):
        source.put("order", "tp-cp-pp-dp", "use-tp-pp-dp-mapping")


SHARDED = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
"""What Megatron-FSDP shares → the stage of ZeRO that does."""


def _read_zero(source: SettingsSource) -> None:
    if source.get("zero-stage"):
        source.parse("zero", "zero-stage", stage, 0)
    elif source.on("use-torch-fsdp2"):
        source.put("zero", 3, "use-torch-fsdp2")
    elif source.on("use-megatron-fsdp", "use-custom-fsdp"):
        source.parse("zero", "data-parallel-sharding-strategy", lambda value: SHARDED.get(str(value)), 0)
    else:
        shares = "use-distributed-optimizer"
        if source.get("overlapped-distributed-optimizer"):  # alibaba/Megatron-LLaMA, arguments.py:1007
            shares = "overlapped-distributed-optimizer"
        source.put("zero", int(source.on(shares)), shares)


def _read_stages(source: SettingsSource) -> None:
    """Virtual stages: given, or a rank's layers divided by the layers of one of its stages."""
    draft = source.draft
    pp, n_layers = draft.number("pp"), source.count("num-layers")
    per_stage = source.get("num-layers-per-virtual-pipeline-stage")
    size = whole_count(per_stage.value) if per_stage else None
    layout = source.get("pipeline-model-parallel-layout")
    if source.get("num-virtual-stages-per-pipeline-rank"):
        source.take("virtual_stages", "num-virtual-stages-per-pipeline-rank")
    elif size and pp and n_layers:
        ends = ("embedding", "loss")
        layers = n_layers + sum(source.on(f"account-for-{end}-in-pipeline-split") for end in ends)
        # Integer division twice, as Megatron itself divides.
        origin = source.origin(per_stage, f"{layers} layers / {pp} / {size}")
        draft.put("virtual_stages", layers // pp // size, origin)
    elif layout is not None:
        stages = _layout_stages(str(layout.value))
        if pp and stages and stages % pp == 0:
            origin = source.origin(layout, f"{stages} stages of {layout.path} over {pp}")
            draft.put("virtual_stages", stages // pp, origin)
        else:
            draft.missing("virtual_stages", f"{layout.path} {layout.value}")
    elif per_stage is None:
        draft.derive("virtual_stages", 1, "no flag says more")
    if (draft.number("virtual_stages") or 1) > 1:
        draft.put("schedule", "interleaved", draft.facts["virtual_stages"].origin)
    if pp and pp > 1 and n_layers:
        _read_ends(source, pp, n_layers)


def _read_ends(source: SettingsSource, pp: int, n_layers: int) -> None:
    """Layers of each stage, if those of the first or the last are given."""
    first = source.count("decoder-first-pipeline-num-layers")
    last = source.count("decoder-last-pipeline-num-layers")
    said = {stage: layers for stage, layers in ((0, first), (pp - 1, last)) if layers}
    left, middle = n_layers - sum(said.values()), pp - len(said)
    if said and middle and left % middle == 0:
        counts = [said.get(stage, left // middle) for stage in range(pp)]
        source.draft.derive("layer_counts", counts, "first and last stage as given, the rest shared evenly")


def _layout_stages(text: str) -> int | None:
    """Stages of a layout string: "|" ends one, "(…)*n" repeats; None where it holds more than that."""
    body = text.strip("\"'")
    # Innermost parentheses first, until none is left.
    while match := re.search(r"\(([^()]*)\)\*(\d{1,3})", body):
        body = body[: match.start()] + match[1] * int(match[2]) + body[match.end() :]
        if len(body) > 10_000:
            return None
    body = re.sub(r"([A-Za-z|])\*(\d{1,3})", lambda m: m[1] * int(m[2]), body)
    return body.count("|") + 1 if re.fullmatch(r"[EtLm|,]+", body) else None


def _read_batch(source: SettingsSource, flags: Flags) -> None:
    draft = source.draft
    source.take("seq_len", "seq-length")
    source.take("micro_batch", "micro-batch-size")
    source.take("global_batch", "global-batch-size")
    if ramp := source.get("rampup-batch-size"):
        said = " ".join(flags.values.get("rampup-batch-size", ()))
        draft.ignored.append(f"{ramp.path} {said}: starts at {said.partition(' ')[0]}")
    if "global_batch" not in draft.facts and "global_batch" not in draft.unknown:
        draft.derive("micro_batches", 1, "global batch = micro-batch · dp by default")
    for key in ("bf16", "fp16", "fp8-format"):
        if source.on(key):
            source.put("dtype", key.partition("-")[0], key)
    old = source.get("checkpoint-activations", "deepspeed-activation-checkpointing")
    if old is not None:
        draft.put("recompute", "full", source.origin(old))
        return
    granularity, again = "recompute-granularity", "recompute-activations"
    if source.on(again):
        if source.text(granularity) == "full":
            why = f"--recompute-activations sets selective after parsing ({source.origin(source.get(again))})"
            draft.ignored.append(f"--recompute-granularity full: {why}")
        source.put("recompute", "selective", again)
    elif source.get(again) is None or source.get(granularity) is not None:
        source.put("recompute", source.text(granularity) or "none", granularity)


def _read_model(source: SettingsSource) -> None:
    draft = source.draft
    for field, key in _DIMS.items():
        source.take(field, key)
    dim, heads = draft.number("dim"), draft.number("n_heads")
    if source.get("ffn-hidden-size"):
        source.take("ffn_dim", "ffn-hidden-size")
    elif dim is not None:
        # Megatron's own rule for a gated MLP (arguments.py): two thirds of 4·dim, down to a multiple of
        # 64.
        gated = int(4 * dim * 2 / 3 / 64) * 64
        draft.derive("ffn_dim", gated if source.on("swiglu") else 4 * dim, "Megatron's default")
    _read_kv_heads(source, heads)
    theta = source.get("rotary-base", "rotary-position-embeddings-theta", "rope-theta")
    value = positive_number(theta.value) if theta else 10000
    if value is not None:
        draft.put("rope_theta", int(value) if float(value).is_integer() else value, source.origin(theta))
    untied = "untie-embeddings-and-output-weights"
    own = source.on("causal-lm")  # a head of its own in alibaba/Megatron-LLaMA, model/llama_model.py:80
    source.put("tied", not source.on(untied) and not own, "causal-lm" if own else untied)
    source.padding("make-vocab-size-divisible-by", 128)
    _read_vocabulary(source)
    if extra := source.get("extra-vocab-size"):
        draft.ignored.append(f"{extra.path} {extra.value}: added to the tokenizer's in a fork")
    _refuse_other_models(source)


_COUNTED = ("", "nulltokenizer", "nullmultimodaltokenizer", "tiktokenizer")
"""Tokenizers that take --vocab-size (megatron/training/tokenizer/tokenizer.py in krafton-ai/Megatron-Dion
@2d0d2518d6); the others have their own size."""


def _read_vocabulary(source: SettingsSource) -> None:
    said, kind = source.get("vocab-size"), source.get("tokenizer-type")
    if is_known(said) and source.text("tokenizer-type") in _COUNTED:
        source.take("vocab_size", "vocab-size")
    elif said is not None and kind is not None:
        why = f"from the tokenizer; {kind.value} does not read {said.path} {said.value}"
        source.draft.missing("vocab_size", why)
    else:
        source.draft.missing("vocab_size", "from the tokenizer")


def _read_kv_heads(source: SettingsSource, heads: int | None) -> None:
    """Groups are read only with --group-query-attention, which alone means one (argument_utils.py:330)."""
    draft, own = source.draft, ("num-key-value-heads", "num-attention-heads-kv")
    if source.text("attention-head-type") == "multiquery":
        source.put("n_kv_heads", 1, "attention-head-type")
    elif source.get(*own):
        source.take("n_kv_heads", *own)
    elif source.on("group-query-attention"):
        source.take("n_kv_heads", "num-query-groups", default=1)
    elif heads is not None:
        draft.derive("n_kv_heads", heads, "without --group-query-attention as many as query heads")
        if groups := source.get("num-query-groups"):
            draft.ignored.append(f"{groups.path} {groups.value}: read with --group-query-attention alone")


_CHANGED = {
    "xielu": "an MLP without a gate",
    "qk-layernorm": "norms of queries and keys",
    "squared-relu": "squared ReLU",
    "add-bias-linear": "biases",
    "multi-latent-attention": "latent attention",
    "parallel-transformer-layer": "attention beside the MLP",
}


def _refuse_other_models(source: SettingsSource) -> None:
    """Refuse, by name, settings of a model that is no Llama; they are never counted as one."""
    draft = source.draft
    for key, what in _CHANGED.items():
        if source.on(key):
            source.refuse(f"--{key}: {what}", key)
    if "dim" not in draft.facts or source.get("model-name"):
        return
    other = list[str]()
    if not source.on("swiglu", "xielu"):
        other.append("GELU (no --swiglu)")
    if source.text("normalization") != "rmsnorm" and not source.on("RMSNorm"):
        other.append("LayerNorm (no --normalization RMSNorm)")
    rotary = source.text("position-embedding-type") in ("rope", "rotary")
    if not (rotary or source.on("use-rotary-position-embeddings")):
        other.append("learned positions (no --position-embedding-type rope)")
    for what in other:
        draft.refuse(what)
    # One deviation may be a fork's flag of another name; two make it a GPT.
    if len(other) > 1:
        draft.covered = False


_CALLERS = ("tp", "pp", "cp", "zero", "sequence_parallel", "virtual_stages", "recompute")


def _leave_to_caller(draft: Draft) -> None:
    """A script that starts nothing holds arguments for another script, which may set the layout."""
    for field in _CALLERS:
        fact = draft.facts.get(field)
        if fact is not None and not fact.origin.line:
            draft.missing(field, "the script that uses these arguments may say it")


def _leave_to_checkpoint(source: SettingsSource) -> None:
    """--use-checkpoint-args reads dimensions from the checkpoint; those without a flag are unknown."""
    draft = source.draft
    keys = ("group-query-attention", "num-key-value-heads", "num-attention-heads-kv")
    if source.get(*keys) is None and "n_heads" in draft.facts:
        draft.missing("n_kv_heads", "no flag passes it; --use-checkpoint-args reads it from the checkpoint")
    if source.get("num-layers") is None:
        for field in ("n_kv_heads", "rope_theta", "tied", "ffn_dim", "vocab_size"):
            draft.facts.pop(field, None)
        draft.missing("model", "--use-checkpoint-args reads it from the checkpoint")
        draft.facts.pop("padding", None)

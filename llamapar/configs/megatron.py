"""Megatron-LM's oddities: what follows from several of its arguments, and its forks' spellings.

Names and defaults: megatron/training/arguments.py @d98e8a64dd (2026-08-22) and core_v0.12.0 = d580efc68a.
Megatron-DeepSpeed: deepspeedai 4efb479d53. epfLLM's underscores: 806a83302c.
"""

from __future__ import annotations

from llamapar.describe.cp_methods import of_comm_type

from .draft import SettingsSource, count_of
from .files import Files
from .flags import Flags, is_known, is_launch


def megatron_cp_method(source: SettingsSource, files: Files) -> None:
    """How attention works under CP; of hierarchical sizes the first one is that of the groups of a2a."""
    said = source.get("cp-comm-type")
    if said is not None:
        method = of_comm_type(said.value, source.count("hierarchical-context-parallel-sizes"))
        if method is None:
            source.unreadable("cp_method", said)
        else:
            source.put("cp_method", method, "cp-comm-type")


def megatron_stages(source: SettingsSource, files: Files) -> None:
    """Virtual stages: given, or a rank's layers divided by the layers of one of its stages."""
    draft = source.draft
    pp = draft.number("pp")
    n_layers = source.count("num-layers")
    per_stage = source.get("num-layers-per-virtual-pipeline-stage")
    size = count_of(per_stage)
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
        source.unreadable("virtual_stages", layout)
    elif per_stage is None:
        draft.derive("virtual_stages", 1, "no flag says more")
    if (draft.number("virtual_stages") or 1) > 1:
        draft.put("schedule", "interleaved", draft.facts["virtual_stages"].origin)
    if not pp or pp == 1 or not n_layers:
        return
    first = source.count("decoder-first-pipeline-num-layers")
    last = source.count("decoder-last-pipeline-num-layers")
    said = {stage: layers for stage, layers in ((0, first), (pp - 1, last)) if layers}
    left = n_layers - sum(said.values())
    middle = pp - len(said)
    if said and middle and left % middle == 0:
        counts = [said.get(stage, left // middle) for stage in range(pp)]
        draft.derive("layer_counts", counts, "first and last stage as given, the rest shared evenly")


def megatron_batch(source: SettingsSource, files: Files) -> None:
    """Without a global batch there is one micro-batch a step; a batch that ramps up is told."""
    draft = source.draft
    if (ramp := source.get("rampup-batch-size")) and isinstance(source.held, Flags):
        said = " ".join(source.held.values.get("rampup-batch-size", ()))
        draft.ignored.append(f"{ramp.path} {said}: starts at {said.partition(' ')[0]}")
    if "global_batch" not in draft.facts and "global_batch" not in draft.unknown:
        draft.derive("micro_batches", 1, "global batch = micro-batch · dp by default")
    if source.count("ds-sequence-parallel-size") == 1:
        draft.ignored.append("--ds-sequence-parallel-size 1: Ulysses over one rank")


def megatron_recomputation(source: SettingsSource, files: Files) -> None:
    """--recompute-activations sets the granularity after parsing; older names mean all of a layer."""
    older = ("checkpoint-activations", "deepspeed-activation-checkpointing")
    old = source.get(*older)
    granularity = "recompute-granularity"
    again = "recompute-activations"
    if source.unsettled("recompute", *older, granularity, again):
        return
    if old is not None:
        source.draft.put("recompute", "full", source.origin(old))
    elif source.on(again):
        if source.text(granularity) == "full":
            why = f"--recompute-activations sets selective after parsing ({source.origin(source.get(again))})"
            source.draft.ignored.append(f"--recompute-granularity full: {why}")
        source.put("recompute", "selective", again)
    elif source.get(again) is None or source.get(granularity) is not None:
        source.put("recompute", source.text(granularity) or "none", granularity)


def megatron_width(source: SettingsSource, files: Files) -> None:
    """The rule for a gated MLP (arguments.py): two thirds of 4·dim, down to a multiple of 64."""
    dim = source.draft.number("dim")
    if source.unsettled("ffn_dim", "swiglu"):
        return
    if dim is not None and source.get("ffn-hidden-size") is None:
        width = int(4 * dim * 2 / 3 / 64) * 64 if source.on("swiglu") else 4 * dim
        source.draft.derive("ffn_dim", width, "Megatron's default")


def megatron_kv_heads(source: SettingsSource, files: Files) -> None:
    """Groups are read only with --group-query-attention, which alone means one (argument_utils.py:330)."""
    draft = source.draft
    own = ("num-key-value-heads", "num-attention-heads-kv")
    heads = draft.number("n_heads")
    if source.unsettled("n_kv_heads", "group-query-attention", "num-query-groups", "attention-head-type"):
        return
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


_COUNTED = ("", "nulltokenizer", "nullmultimodaltokenizer", "tiktokenizer")
"""Tokenizers that take --vocab-size (megatron/training/tokenizer/tokenizer.py in krafton-ai/Megatron-Dion
@2d0d2518d6); the others have their own size."""


def megatron_vocabulary(source: SettingsSource, files: Files) -> None:
    """The vocabulary's size counts where the tokenizer reads it."""
    said = source.get("vocab-size")
    kind = source.get("tokenizer-type")
    if is_known(said) and source.text("tokenizer-type") in _COUNTED:
        source.take("vocab_size", "vocab-size")
    elif said is not None and kind is not None:
        why = f"from the tokenizer; {kind.value} does not read {said.path} {said.value}"
        source.draft.missing("vocab_size", why)
    else:
        source.draft.missing("vocab_size", "from the tokenizer")
    if extra := source.get("extra-vocab-size"):
        source.draft.ignored.append(f"{extra.path} {extra.value}: added to the tokenizer's in a fork")


_CALLERS = ("tp", "pp", "cp", "zero", "sequence_parallel", "virtual_stages", "recompute")


def megatron_caller(source: SettingsSource, files: Files) -> None:
    """A script that starts nothing holds arguments for another script, which may set the layout."""
    degrees = source.get("tensor-model-parallel-size", "pipeline-model-parallel-size")
    script = files.scripts.get(source.name)
    if degrees is not None or script is None or any(map(is_launch, script.lines)):
        return
    for field in _CALLERS:
        fact = source.draft.facts.get(field)
        if fact is not None and not fact.origin.line:
            source.draft.missing(field, "the script that uses these arguments may say it")


def megatron_checkpoint(source: SettingsSource, files: Files) -> None:
    """--use-checkpoint-args reads dimensions from the checkpoint; those without a flag are unknown."""
    draft = source.draft
    if not source.on("use-checkpoint-args"):
        return
    keys = ("group-query-attention", "num-key-value-heads", "num-attention-heads-kv")
    if source.get(*keys) is None and "n_heads" in draft.facts:
        draft.missing("n_kv_heads", "no flag passes it; --use-checkpoint-args reads it from the checkpoint")
    if source.get("num-layers") is None:
        for field in ("n_kv_heads", "rope_theta", "tied", "ffn_dim", "vocab_size"):
            draft.facts.pop(field, None)
        draft.missing("model", "--use-checkpoint-args reads it from the checkpoint")
        draft.facts.pop("padding", None)

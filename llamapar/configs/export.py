"""A job as text to paste elsewhere: the settings of real frameworks.

Facts for which a framework has no setting become a comment, "left out: …"; nothing is dropped silently. Names
come from people and files, so they are quoted in code, and reduced to plain letters elsewhere.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable

from llamapar.describe.job import Job
from llamapar.describe.layout import divisors
from llamapar.describe.models import PRESETS, ModelConfig
from llamapar.describe.rope import RopeScaling
from llamapar.describe.splits import LAYER_SPLITS, NO_PADDING, Padding
from llamapar.errors import LayoutError
from llamapar.frameworks import FRAMEWORKS
from llamapar.rules.job_text import differing, job_title, left_out, named_values, plain_name


def _times(a: int | None, b: int | None) -> int | None:
    return a * b if a and b else None


def _torchrun(ranks: int, job: Job) -> str:
    """The launch of `ranks` processes on nodes with at most job.gpus_per_node GPUs."""
    # torchrun starts equally many ranks on every node, so it has to be a divisor.
    each = max(d for d in divisors(ranks) if d <= job.gpus_per_node)
    return f"torchrun --nnodes {ranks // each} --nproc-per-node {each}"


def _rope(model: ModelConfig) -> str:
    return f"RoPE scaling by {model.rope_scaling.factor:g}" if model.rope_scaling else "RoPE without scaling"


def _off_batches(job: Job, *settled: str) -> list[str]:
    """Comments for batch sizes that do not follow from the sequences of a step and are not in `settled`."""
    step = job.sequences
    dp = job.layout.dp
    implied = {
        "batch_tokens": _times(step, job.seq_len),
        "batch_per_dp": step // dp if step and step % dp == 0 else None,
        "micro_batches": step // (dp * job.micro_batch) if step and job.micro_batch else None,
    }
    why = f"the other sizes give {step} sequences a step" if step else "the other sizes are not given"
    # A number that follows from the others is in the settings already, under another name.
    held = {name: getattr(job, name) for name in implied if name not in settled}
    return left_out(*((n not in (None, implied[name]), f"{name}={n}", why) for name, n in held.items()))


def _off(job: Job, name: str) -> list[str]:
    """Comments for facts of the job without a setting in the framework called `name`."""
    lay = job.layout
    own = FRAMEWORKS[name].order or job.layout.order
    padding = FRAMEWORKS[name].padding
    # Axes of one rank do not move any rank, so only the order of the others counts.
    there, here = ([a for a in order.split("-") if lay.size(a) > 1] for order in (own, lay.order))
    has_flag = (name, lay.order) == ("megatron-lm", "tp-cp-pp-dp")
    padded = job.padding not in (None, padding) and padding == NO_PADDING
    return left_out(
        (there != here and not has_flag, f"order {lay.order}", f"it places ranks {own}, fastest first"),
        (job.gpus not in (None, lay.world), f"gpus={job.gpus}", f"this layout has {lay.world} ranks"),
        (job.kv_replication, "kv_replication", "it has no such setting"),
        (padded, f"padding {job.padding}", "it pads nothing"),
        (job.quant_group is not None, f"quant_group={job.quant_group}", "not a setting of training"),
    )


REGISTERED = {
    "1B": "llama3.2-1b",
    "3B": "llama3.2-3b",
    "8B": "llama3.1-8b",
    "70B": "llama3.1-70b",
    "405B": "llama3.1-405b",
}
"""The flavours of torchtitan/models/llama3/__init__.py and our names of them."""


def _titan_model(model: ModelConfig) -> tuple[list[str], str, list[str]]:
    """Comments, the configuration to start from, and the lines that select the model in it."""
    # Fields that do not make another flavour: they are set elsewhere or are no part of the table there.
    free = {"name": "", "max_seq_len": 0, "norm_eps": 0.0, "rope_scaling": None}
    for flavour, preset in REGISTERED.items():
        if dict(differing(PRESETS[preset])) | free == dict(differing(model)) | free:
            off = left_out((model.rope_scaling != RopeScaling(), _rope(model), "it scales by 8"))
            if flavour in ("1B", "3B"):  # These flavours have no configuration of their own.
                return off, "llama3_8b", [f'config.model_spec = model_registry("{flavour}")']
            return off, f"llama3_{flavour.lower()}", []
    comments = [
        "# torchtitan has no flavour of these dimensions: add it to torchtitan/models/llama3/__init__.py,",
        f"# {' '.join(named_values(dict(differing(model, 'name', 'rope_scaling'))))}, {_rope(model)}",
        *left_out(
            (model.qkv_bias or model.o_bias, "biases", "its Llama 3 has none"),
            (model.qk_norm, "QK norms", "its Llama 3 has none"),
        ),
    ]
    chosen = [
        f'config.model_spec = model_registry("{plain_name(model.name)}")',
        f"config.loss.loss_fn.global_vocab_size = {model.vocab_size}",
    ]
    return comments, "llama3_8b", chosen


def _titan_pipeline(job: Job) -> tuple[list[str], dict[str, object]]:
    """Comments and settings of a pipeline; torchtitan's default is 2 virtual stages."""
    lay = job.layout
    split = job.layer_split
    layers = job.model.n_layers + 2
    virtual = f"virtual_stages={lay.virtual_stages}"
    if lay.pp == 1:
        return left_out((lay.virtual_stages > 1, virtual, "pp=1")), {}
    values: dict[str, object] = {"schedule": "1F1B" if lay.virtual_stages == 1 else "Interleaved1F1B"}
    even = split == "equal" and job.model.n_layers % lay.stages == 0
    if even or split == "remainder first":
        values |= {"first_stage_less_layers": 0, "last_stage_less_layers": 0}
        layers -= 2
    # torchtitan is told layers per stage and makes as many stages as they need, which may be fewer than
    # asked for.
    each = -(-layers // lay.stages)
    if lay.virtual_stages > 2:
        values["layers_per_stage"] = each
    fewer = lay.virtual_stages > 2 and -(-layers // each) != lay.stages
    uneven = not even and split not in (None, "balanced ends", "remainder first")
    comments = left_out(
        (uneven, f"layer_split={split!r}", "it needs module_fqns_per_model_part"),
        (fewer, virtual, f"no layers_per_stage cuts {layers} layers into {lay.stages} stages"),
    )
    return comments, {f"parallelism.pipeline_parallel_{name}": value for name, value in values.items()}


def as_torchtitan(job: Job) -> str:
    """A configuration function, the form that replaced TOML files.

    pytorch/torchtitan, torchtitan/config/README.md and configs.py @b5bcd76c66d0acb1a08b176d9639425bc55e0b2a.
    """
    lay = job.layout
    step = job.sequences
    shared = job.layout.zero > 0
    comments, base, chosen = _titan_model(job.model)
    function = re.sub(r"\W", "_", f"run_{plain_name(job.model.name)}_{str(lay).replace('=', '')}")
    values: dict[str, object] = {
        "parallelism.tensor_parallel_degree": lay.tp,
        "parallelism.enable_sequence_parallel": lay.sequence_parallel is not False,
        "parallelism.context_parallel_degree": lay.cp,
        "parallelism.pipeline_parallel_degree": lay.pp,
        "parallelism.data_parallel_replicate_degree": lay.dp_replicate if shared else lay.dp,
        "parallelism.data_parallel_shard_degree": lay.dp_shard if shared else 1,
        "parallelism.fsdp_reshard_after_forward": "always" if lay.zero == 3 else "never",
        "parallelism.num_pp_microbatches": job.n_micro_batches if lay.pp > 1 else None,
        "training.max_context_length": job.seq_len,
        "training.num_tokens_per_microbatch_per_dp_rank": _times(job.micro_batch, job.seq_len),
        "training.num_tokens_per_train_step": _times(step, job.seq_len),
    }
    stage_2 = lay.zero == 1 and lay.dp * lay.cp > 1
    uncounted = (step or job.micro_batch) and not job.seq_len
    more, pipeline = _titan_pipeline(job)
    values |= pipeline
    comments += left_out(
        (stage_2, "zero=1", "gradients are shared too; 'never' is stage 2, the nearest"),
        (not shared and lay.cp > 1, "zero=0", "CP ranks always share parameters"),
        (uncounted, "batch sizes", "it counts tokens, and seq_len is not given"),
    )
    batches = ["micro_batches"] if lay.pp > 1 else []
    comments += [*more, *_off_batches(job, *batches), *_off(job, "torchtitan")]
    registry = ["from torchtitan.models.llama3 import model_registry"] if chosen else []
    lines = [
        job_title(job),
        "# torchtitan @b5bcd76c66 (torchtitan/config/README.md); save as my_runs.py and start",
        f"# {_torchrun(lay.world, job)} -m torchtitan.train --module my_runs --config {function}",
        *comments,
        *registry,
        f"from torchtitan.models.llama3.config_registry import {base}",
        "\n",
        f"def {function}():",
        f"    config = {base}()",
        *(f"    {line}" for line in chosen),
        *(f"    config.{name} = {value!r}" for name, value in values.items() if value is not None),
        "    return config",
    ]
    return "\n".join(lines) + "\n"


def _megatron_layers(job: Job) -> tuple[list[str], dict[str, object]]:
    """Comments and flags for virtual stages and for the split of layers over stages."""
    lay = job.layout
    n = job.model.n_layers
    split = job.layer_split
    flags: dict[str, object] = {
        "num-virtual-stages-per-pipeline-rank": lay.virtual_stages if lay.virtual_stages > 1 else None
    }
    if lay.stages == 1 or (split not in ("balanced ends", "equal compute") and n % lay.stages == 0):
        return [], flags
    why = f"# {n} layers do not divide over {lay.stages} stages: embedding and head are counted in"
    comments = [why] if split is None else []
    if split in (None, "balanced ends") and (n + 2) % lay.stages == 0:
        ends = ("account-for-embedding-in-pipeline-split", "account-for-loss-in-pipeline-split")
        return comments, flags | dict.fromkeys(ends, True)
    chosen = split or "balanced ends"
    try:
        counts = LAYER_SPLITS[chosen](n, lay.stages, job.model.head_layers)
    except LayoutError as problem:
        return left_out((True, f"layer_split={chosen!r}", problem.what)), flags
    middle = "|".join(f"t*{count}" if count else "" for count in counts)
    return comments, {"pipeline-model-parallel-layout": f"E{middle}L"}


def _megatron_padding(job: Job) -> tuple[list[str], dict[str, object]]:
    """Comments and the flag that gives Megatron's vocabulary the requested padding."""
    tp = job.layout.tp
    vocab = job.model.vocab_size
    asked = job.padding
    if asked is None:
        return [], {}
    # Megatron multiplies by tp itself, so ours has to be divided by it first; any multiple with the same
    # number of rows will do.
    for multiple in (asked.multiple if asked.per_tp else max(1, asked.multiple // tp), 1):
        if Padding(multiple, per_tp=True).padded(vocab, tp) == asked.padded(vocab, tp):
            return [], {"make-vocab-size-divisible-by": multiple}
    why = f"its multiple is always times tp={tp}, and 128 unless given"
    return left_out((True, f"padding {asked}", why)), {}


def as_megatron(job: Job) -> str:
    """Flags of pretrain_gpt.py. There is none for data parallelism, which follows from the number of ranks.

    NVIDIA/Megatron-LM, megatron/training/arguments.py, megatron/training/config and the fields of
    TransformerConfig that become flags, @d98e8a64ddf34856e74b24714e3bedb2f5a39553.
    """
    lay = job.layout
    m = job.model
    scaling = job.model.rope_scaling
    known = scaling is not None and scaling == RopeScaling(scaling.factor)
    unruled = (scaling and not known) or m.rope_theta % 1
    gqa = m.n_kv_heads != m.n_heads
    comments = [
        "# Megatron-LM @d98e8a64dd (megatron/training/arguments.py)",
        f"# DP is not a flag: {lay.world} ranks / (tp·cp·pp = {lay.tp}·{lay.cp}·{lay.pp}) = {lay.dp}",
        *left_out(
            (unruled, f"{_rope(m)}, theta={m.rope_theta}", "only Llama 3.1's rule has flags"),
            (m.o_bias, "o_bias", "no flag adds a bias to the output projection alone"),
        ),
    ]
    flags: dict[str, object] = {
        "num-layers": m.n_layers,
        "hidden-size": m.dim,
        "ffn-hidden-size": m.ffn_dim,
        "num-attention-heads": m.n_heads,
        "kv-channels": m.head_dim,
        "group-query-attention": gqa,
        "num-query-groups": m.n_kv_heads if gqa else None,
        "vocab-size": m.vocab_size,
        "max-position-embeddings": m.max_seq_len,
        "position-embedding-type": "rope",
        "rotary-base": int(m.rope_theta),
        "use-rope-scaling": known,
        "rope-scaling-factor": scaling.factor if scaling and known else None,
        "swiglu": True,
        "normalization": "RMSNorm",
        "norm-epsilon": m.norm_eps,
        "disable-bias-linear": True,
        "add-qkv-bias": m.qkv_bias,
        "qk-layernorm": m.qk_norm,
        "untie-embeddings-and-output-weights": not m.tied,
        "tensor-model-parallel-size": lay.tp,
        "context-parallel-size": lay.cp,
        "pipeline-model-parallel-size": lay.pp,
        "sequence-parallel": lay.sp,
        "use-tp-pp-dp-mapping": lay.order == "tp-cp-pp-dp",
        "use-distributed-optimizer": lay.zero > 0,
        "num-distributed-optimizer-instances": lay.dp_replicate if lay.zero else None,
        "seq-length": job.seq_len,
        "micro-batch-size": job.micro_batch,
        "global-batch-size": job.sequences,
        "use-megatron-fsdp": lay.zero > 1,
        "data-parallel-sharding-strategy": {2: "optim_grads", 3: "optim_grads_params"}.get(lay.zero),
        "ckpt-format": "fsdp_dtensor" if lay.zero > 1 else None,
    }
    for more, made in (_megatron_layers(job), _megatron_padding(job)):
        comments += more
        flags |= made
    comments += [*_off_batches(job), *_off(job, "megatron-lm")]
    lines = [f"{_torchrun(lay.world, job)} pretrain_gpt.py"]
    for name, value in flags.items():
        if value is not None and value is not False:
            lines.append(f"    --{name}" + ("" if value is True else f" {shlex.quote(str(value))}"))
    return "\n".join([job_title(job), *comments, " \\\n".join(lines)]) + "\n"


EXPORTS: dict[str, Callable[[Job], str]] = {
    "torchtitan": as_torchtitan,
    "Megatron-LM": as_megatron,
}
"""Framework's title → its settings of a job."""

"""Megatron-LM: validates most of a layout, pads the vocabulary to 128·TP, gathers K/V past the KV heads."""

from llamapar.describe.job import Job
from llamapar.describe.splits import Padding

from .base import (
    ADAPTS,
    CLEAR,
    FORWARD,
    INIT,
    NA,
    WORKS,
    Evidence,
    evidence,
    keywords,
    pads,
    takes_what_is_left,
    uneven_chunks,
)
from .citation import Change
from .trainers import ROWS, trainer

_CONFIG = "megatron/core/transformer/transformer_config.py"
_ARGS = "megatron/training/arguments.py"

_BLOCK = "megatron/core/transformer/transformer_block.py"
_PADDING: Padding = ROWS["megatron-lm"]["padding"]
_GATHERS = Change("2025-12-07", "f7dfb99795")
"""The activation of QKV is gathered if TP exceeds the KV heads."""


def _ranks_left_over(job: Job) -> bool:
    return (job.gpus or 0) % job.layout.model_ranks != 0


def _accounted(job: Job) -> bool:
    return job.layer_split == "balanced ends"


def _uneven(job: Job, virtual: bool) -> bool:
    """Whether the layers that the arguments count do not divide over the (virtual) ranks of a pipeline."""
    counted = job.model.n_layers + (2 if _accounted(job) else 0)
    return (job.layout.virtual_stages > 1) == virtual and counted % job.layout.pp != 0


_ACCOUNTED = (
    Evidence(
        WORKS,
        path=f"{_CONFIG}:2234-2382",
        note="with account_for_embedding_in_pipeline_split and account_for_loss_in_pipeline_split",
        when=lambda j: _accounted(j) and (j.model.n_layers + 2) % j.layout.stages == 0,
    ),
    Evidence(
        CLEAR,
        "number of middle layers: {effective_layers} must be divisible by middle "
        "pipeline_model_parallel_size {pp}",
        f"{_CONFIG}:2380-2384",
        note="with both account_for_*_in_pipeline_split flags",
        when=lambda j: _accounted(j) and j.layout.virtual_stages == 1,
    ),
    Evidence(
        CLEAR,
        "num_layers: {effective_layers} after enableaccount_for_embedding_in_pipeline_split or "
        "account_for_loss_in_pipeline_split must be divisibleby pipeline_model_parallel_size {pp}",
        f"{_CONFIG}:2395-2402",
        note="with both flags; the missing spaces are in the source",
        when=lambda j: _accounted(j) and (j.model.n_layers + 2) % j.layout.pp != 0,
    ),
    Evidence(
        CLEAR,
        "number of layers on each pipeline rank: {effective_per_rank}(after enable "
        "account_for_embedding_in_pipeline_split or account_for_loss_in_pipeline_split) must be "
        "divisible byvirtual_pipeline_model_parallel_size{virtual_stages}",
        f"{_CONFIG}:2404-2415",
        note="with both flags; the missing spaces are in the source",
        when=_accounted,
    ),
)
"""Both account_for flags count the embedding and the head as a layer each."""

_ARGUMENTS = (
    Evidence(
        CLEAR,
        "Number of layers should be divisible by the pipeline-model-parallel size",
        f"{_ARGS}:965-998",
        when=lambda j: _uneven(j, virtual=False),
    ),
    Evidence(
        CLEAR,
        "number of layers of the model must be divisible pipeline model parallel size",
        f"{_ARGS}:965-998",
        note="with --num-layers-per-virtual-pipeline-stage",
        when=lambda j: _uneven(j, virtual=True),
    ),
)
_OVER_STAGES = Evidence(
    CLEAR,
    "num_layers={n_layers} should be divisible by config.pipeline_model_parallel_size={pp}",
    f"{_BLOCK}:156-158",
    note="with --num-virtual-stages-per-pipeline-rank",
    when=lambda j: not _accounted(j) and j.model.n_layers % j.layout.pp != 0,
)
_OVER_VIRTUAL = Evidence(
    CLEAR,
    "num_layers_per_pipeline_rank {layers_per_rank}             should be divisible by "
    "vp_size {virtual_stages}",
    f"{_BLOCK}:176-178",
    note="with --num-virtual-stages-per-pipeline-rank",
    when=lambda j: (
        not _accounted(j) and j.model.n_layers % j.layout.pp == 0 and j.model.n_layers % j.layout.stages != 0
    ),
)

MEGATRON = trainer(
    "megatron-lm",
    runs=takes_what_is_left,
    keywords=keywords(
        tp="tensor_model_parallel_size",
        cp="context_parallel_size",
        pp="pipeline_model_parallel_size",
        dp="",
        micro_batch="micro_batch_size",
        global_batch="global_batch_size",
        padding="make_vocab_size_divisible_by",
    ),
    parts={"megatron/training/": "arguments", "megatron/core/": "core"},
    cases=evidence(
        LP001=(
            Evidence(
                CLEAR,
                "world size ({gpus}) is not divisible by total_model_size (total_model_size={model_ranks})",
                f"{_ARGS}:432",
                when=_ranks_left_over,
            ),
            Evidence(
                NA,
                path=f"{_ARGS}:432",
                note="DP is not asked for: it becomes {gpus} / {model_ranks}",
            ),
            Evidence(
                CLEAR,
                "world_size ({gpus}) is not divisible by {model_ranks}",
                "megatron/core/parallel_state.py:823",
                when=_ranks_left_over,
            ),
        ),
        LP101=Evidence(
            CLEAR,
            "num_attention_heads ({n_heads}) must be a multiple of tensor_model_parallel_size ({tp}).",
            f"{_CONFIG}:1446-1450",
        ),
        LP103=Evidence(
            INIT,
            "{ffn_dim} is not divisible by {tp}",
            "megatron/core/utils.py:590-599",
            note="with SwiGLU the doubled width comes first; 'when instantiating TransformerLayer' follows",
        ),
        LP104=(
            Evidence(
                INIT,
                "{qkv_dim} is not divisible by {tp} when instantiating SelfAttention when instantiating "
                "TransformerLayer",
                "megatron/core/transformer/attention.py:1689; megatron/core/utils.py:590-599",
                note="Q, K and V are one matrix of so many rows",
                when=lambda j: (
                    j.layout.tp % j.model.n_kv_heads == 0
                    and (j.model.q_dim + 2 * j.model.kv_dim) % j.layout.tp != 0
                ),
                since=_GATHERS,
            ),
            Evidence(
                ADAPTS,
                path="megatron/core/transformer/attention.py:353-380",
                note="all-gathers the QKV activation over TP and slices group rank // {replicas}; "
                "no weight is stored twice",
                when=lambda j: j.layout.tp % j.model.n_kv_heads == 0,
                since=_GATHERS,
            ),
            Evidence(
                CLEAR,
                "num_query_groups ({n_kv_heads}) must be a multiple or divisor of "
                "tensor_model_parallel_size ({tp}).",
                f"{_CONFIG}:1461-1468",
                since=_GATHERS,
            ),
            Evidence(
                CLEAR,
                "num_query_groups ({n_kv_heads}) must be a multiple of tensor_model_parallel_size ({tp}).",
                f"{_CONFIG}:782-786",
                at="8a5f379eb1",
            ),
        ),
        LP105=(
            Evidence(
                ADAPTS,
                " > padded vocab (size: {vocab_size}) with {pad_rows} dummy tokens "
                "(new size: {vocab_padded})",
                "megatron/training/vocab_utils.py",
                note="the dummy rows join the softmax denominator",
                when=pads(_PADDING),
            ),
            Evidence(
                WORKS, path="megatron/training/vocab_utils.py", note="{vocab_size} needs no dummy rows here"
            ),
        ),
        LP106=Evidence(
            WORKS,
            path="megatron/training/checkpointing.py:194-199",
            note="saved with its {pad_rows} dummy rows; a load under another padded size is refused",
        ),
        LP201=Evidence(
            CLEAR,
            "seq-length should be a multiple of 2 * context-parallel-size if context-parallel-size > 1.",
            f"{_ARGS}:1335-1338",
            when=uneven_chunks,
        ),
        LP202=Evidence(
            FORWARD,
            "First dimension of the tensor should be divisible by tensor parallel size",
            "megatron/core/tensor_parallel/mappings.py:72-74",
        ),
        LP204=Evidence(
            CLEAR,
            "Cannot use sequence parallelism without tensor parallelism",
            "megatron/core/model_parallel_config.py:502",
            note="the command line warns and switches it off",
        ),
        LP206=(
            Evidence(
                CLEAR,
                path=f"{_ARGS}:583-585",
                note="asks for --hierarchical-context-parallel-sizes",  # a message would name heads
                when=lambda j: j.cp_method == "a2a+p2p",
            ),
            Evidence(
                FORWARD,
                "cp_comm_type='a2a' requires num_heads % cp_size == 0 for Q, K, V. Found num_heads_q = "
                "{q_heads_each}, num_heads_kv = {kv_heads_each}, cp_size = {cp}.",
                "transformer_engine/pytorch/attention/dot_product_attention/context_parallel.py:4246-4249",
                note="Transformer Engine copies no KV head",
                repo="NVIDIA/TransformerEngine",
                at="d0067d0da6cb01811b8072a7d304f0e00344ce2b",
                when=lambda j: j.cp_method == "ulysses",
            ),
        ),
        LP301=(*_ACCOUNTED, *_ARGUMENTS, _OVER_STAGES),
        LP302=(*_ACCOUNTED, *_ARGUMENTS, _OVER_STAGES, _OVER_VIRTUAL),
        LP303=(
            *_ACCOUNTED,
            Evidence(
                CLEAR,
                "number of layers per pipeline stage must be divisible number of layers per "
                "virtual pipeline stage",
                f"{_ARGS}:965-998",
                note="with --num-layers-per-virtual-pipeline-stage; before that check existed "
                "{layers_kept} of {n_layers} layers ran without a word (issue #468)",
                when=lambda j: not _accounted(j),
            ),
            _OVER_VIRTUAL,
        ),
        LP306=(
            Evidence(
                CLEAR,
                "The number of contiguous micro-batches in a virtual pipeline stage"
                "should range in [PP={pp} , M={micro_batches}]",
                "megatron/core/pipeline_parallel/schedules.py:1162-1168",
                note="the missing space is in the source",
                when=lambda j: (j.n_micro_batches or 0) < j.layout.pp,
            ),
            Evidence(
                CLEAR,
                "The remainder of M (the total micro-batches) divided by N (number of contiguous "
                "micro-batches in a virtual pipeline stage) should be 0, or larger than or equal to "
                "the pipeline-parallel size, but it is {micro_batches_left}. Otherwise, it introduces "
                "dependency bubbles in the pipeline and reduces throughput.",
                "megatron/core/pipeline_parallel/schedules.py:1173-1180",
                note="with N = PP, its default",
            ),
        ),
        LP307=Evidence(
            CLEAR,
            "When interleaved schedule is used, pipeline-model-parallel size should be greater than 1",
            f"{_ARGS}:1002-1004",
        ),
        LP309=_ACCOUNTED,
        LP401=Evidence(
            CLEAR,
            "global batch size ({global_batch}) is not divisible by micro batch size "
            "({batch}) times data parallel size ({dp})",
            "megatron/core/num_microbatches_calculator.py:381-386",
        ),
    ),
)

"""torchtitan: validates up front since March 2026; pads nothing, replicates nothing."""

from .base import (
    CLEAR,
    FORWARD,
    NA,
    TORCH_1F1B,
    TORCH_ROUNDS,
    TORCH_ROUNDS_FIT,
    WORKS,
    Case,
    Framework,
    Source,
    evidence,
    uneven_vocab,
)

_TOKENS = Case(
    CLEAR,
    "The number of tokens per pipeline microbatch ({tokens_per_micro_batch}) must be "
    "divisible by {token_unit} for the configured sequence/context parallelism.",
    "torchtitan/trainer.py:299-309",
    when=lambda j: (j.micro_batch or 1) * (j.seq_len or 0) % j.token_unit != 0,
)

_REPO, _AT = "pytorch/torchtitan", "b5bcd76c66d0acb1a08b176d9639425bc55e0b2a"

TORCHTITAN = Framework(
    name="torchtitan",
    title="torchtitan",
    repo=_REPO,
    commit=_AT,
    aliases=("titan",),
    order="tp-cp-dp-pp",
    layer_split="balanced ends",
    chunking="head-tail",
    zero=(2, 3),
    sources={"zero": Source(_REPO, "torchtitan/distributed/fsdp.py:112-137", _AT)},
    cases=evidence(
        LP001=Case(
            CLEAR,
            "Invalid parallel dims: dp_replicate({dp_replicate}) * dp_shard({dp_shard}) * "
            "cp({cp}) * tp({tp}) * pp({pp}) != WORLD_SIZE({gpus})",
            "torchtitan/distributed/parallel_dims.py `_validate`",
        ),
        LP101=Case(
            CLEAR,
            "tensor_parallel_degree ({tp}) must divide n_heads ({n_heads}).",
            "torchtitan/models/common/decoder.py:190-193",
        ),
        LP103=Case(
            WORKS,
            path="torchtitan/distributed/spmd_types.py:404-450",
            note="its default backend, spmd_types, gives every rank {ffn_local} columns",
        ),
        LP104=Case(
            CLEAR,
            "tensor_parallel_degree ({tp}) must divide n_kv_heads ({n_kv_heads}).",
            "torchtitan/models/common/decoder.py:195-198",
        ),
        LP105=Case(
            FORWARD,
            "_LossParallelCrossEntropy expected local vocab size {vocab_short} for global vocab size "
            "{vocab_size}, got {vocab_local}.",
            "torchtitan/components/loss.py:127-135",
            note="the loss expects shorter shards on the last ranks, but a model built on meta has "
            "{vocab_local} rows on every rank (spmd_types 0.2.3)",
            when=uneven_vocab,
        ),
        LP106=Case(NA, path="torchtitan/models/llama3/__init__.py", note="pads nothing"),
        LP201=_TOKENS,
        LP202=_TOKENS,
        LP205=_TOKENS,
        LP203=Case(
            CLEAR,
            "Training sequence length {seq_len} exceeds attention RoPE maximum supported "
            "sequence length {max_seq_len}.",
            "torchtitan/models/common/decoder.py",
            when=lambda j: (j.seq_len or 0) > j.model.max_seq_len,
        ),
        LP301=Case(
            WORKS,
            path="torchtitan/distributed/pipeline_parallel.py `_generate_llm_fqn_per_model_part`",
            note="counts embedding and head as a layer each, the first stages take the rest",
        ),
        LP302=Case(
            CLEAR,
            "Number of stages ({stages}) cannot be greater than effective layers ({effective_layers})",
            "torchtitan/distributed/pipeline_parallel.py `_generate_llm_fqn_per_model_part`",
            when=lambda j: j.layout.stages > j.model.n_layers + 2,
        ),
        LP303=Case(
            WORKS,
            path="torchtitan/distributed/pipeline_parallel.py `_generate_llm_fqn_per_model_part`",
            note="virtual stages may differ by a layer",
            when=lambda j: j.layout.stages <= j.model.n_layers + 2,
        ),
        LP304=Case(
            CLEAR,
            "Weight tying is not supported with Pipeline Parallel.",
            "torchtitan/models/common/decoder.py:169",
        ),
        LP305=TORCH_1F1B,
        LP306=(TORCH_ROUNDS, TORCH_ROUNDS_FIT),
    ),
)

"""torchtitan: validates up front since March 2026; pads nothing and replicates nothing.

Older rows come from its last state with TOML files, 238fa9953e. Days of changes are in UTC.
"""

from .base import (
    CLEAR,
    FORWARD,
    NA,
    WORKS,
    Evidence,
    evidence,
    keywords,
    torn_heads,
    torn_kv_heads,
    uneven_vocab,
)
from .citation import Change
from .dtensor import TORCH_1F1B, TORCH_ROUNDS, TORCH_ROUNDS_FIT, torch_case
from .trainers import trainer

REGISTRY = Change("2026-02-23", "#2386")
"""Python functions took the place of TOML files."""

TOKENS = Change("2026-08-21", "#4121")
"""Batches are counted in tokens."""

_VALIDATED = Change("2026-03-15", "#2577")
_SPMD_TYPES = Change("2026-08-18", "#4085")
_ENDS_COUNTED = Change("2025-04-15", "#1103")
_TOML = "238fa9953e"
_PIPELINE = "torchtitan/distributed/pipeline_parallel.py `_generate_llm_fqn_per_model_part`"

_VIEW = "shape '[{{batch}}, {{seq_local}}, -1, {{head_dim}}]' is invalid for input of size {{{}}}"

_SEQUENCE = (
    Evidence(
        CLEAR,
        "The number of tokens per pipeline microbatch ({tokens_per_micro_batch}) must be "
        "divisible by {token_unit} for the configured sequence/context parallelism.",
        "torchtitan/trainer.py:299-309",
        when=lambda j: j.micro_batch_size * (j.seq_len or 0) % j.token_unit != 0,
        since=TOKENS,
    ),
    Evidence(
        CLEAR,
        "Training sequence length ({seq_len}) must be divisible by {token_unit} for the configured "
        "sequence/context parallelism.",
        "torchtitan/trainer.py:241-250",
        when=lambda j: (j.seq_len or 0) % j.token_unit != 0,
        at="565cb810cf",
        since=Change("2026-06-26", "#3664"),
    ),
    Evidence(
        CLEAR,
        "Sequence length {seq_len} must be divisible by the product of TP degree ({tp}) and 2 * CP degree "
        "({cp}).",
        "torchtitan/models/llama3/infra/parallelize.py:69-74",
        note="over three lines; a multiple of tp·2·cp is asked for without CP too",
        when=lambda j: (j.seq_len or 0) % (j.layout.tp * 2 * j.layout.cp) != 0,
        at=_TOML,
        since=Change("2025-06-24", "#1312"),
    ),
)

TORCHTITAN = trainer(
    "torchtitan",
    keywords=(
        (TOKENS, {"seq_len": "max_context_length", "global_batch": "global_batch"}),
        *keywords(
            tp="tensor_parallel_degree",
            cp="context_parallel_degree",
            pp="pipeline_parallel_degree",
            dp_replicate="data_parallel_replicate_degree",
            seq_len="seq_len",
            global_batch="global_batch_size",
        ),
    ),
    cases=evidence(
        LP001=Evidence(
            CLEAR,
            "Invalid parallel dims: dp_replicate({dp_replicate}) * dp_shard({dp_shard}) * "
            "cp({cp}) * tp({tp}) * pp({pp}) != WORLD_SIZE({gpus})",
            "torchtitan/distributed/parallel_dims.py `_validate`",
        ),
        LP101=(
            Evidence(
                CLEAR,
                "tensor_parallel_degree ({tp}) must divide n_heads ({n_heads}).",
                "torchtitan/models/common/decoder.py:190-193",
                since=_VALIDATED,
            ),
            Evidence(
                FORWARD,
                _VIEW.format("q_numel"),
                "torchtitan/models/llama3/model/model.py:256",
                note="the view of Q",
                when=torn_heads,
                at=_TOML,
            ),
        ),
        LP103=(
            Evidence(
                WORKS,
                path="torchtitan/distributed/spmd_types.py:404-450",
                note="its default backend, spmd_types, gives every rank {ffn_local} columns",
                since=_SPMD_TYPES,
            ),
            torch_case(
                FORWARD,
                "a and b must have same reduction dim, but got [{tokens_local}, {ffn_wide}] X "
                "[{ffn_dim}, {dim}].",
                "torch/distributed/tensor/parallel/style.py",
                lambda job: True,
                "colwise then rowwise, of plain local tensors",
            ),
        ),
        LP104=(
            Evidence(
                CLEAR,
                "tensor_parallel_degree ({tp}) must divide n_kv_heads ({n_kv_heads}).",
                "torchtitan/models/common/decoder.py:195-198",
                since=_VALIDATED,
            ),
            Evidence(
                FORWARD,
                _VIEW.format("kv_numel"),
                "torchtitan/models/llama3/model/model.py:257",
                note="the view of K (issue #932)",
                when=torn_kv_heads,
                at=_TOML,
            ),
        ),
        LP105=Evidence(
            FORWARD,
            "_LossParallelCrossEntropy expected local vocab size {vocab_short} for global vocab size "
            "{vocab_size}, got {vocab_local}.",
            "torchtitan/components/loss.py:127-135",
            note="the loss expects shorter shards on the last ranks, but a model built on meta has "
            "{vocab_local} rows on every rank (spmd_types 0.2.3)",
            when=uneven_vocab,
            since=_SPMD_TYPES,
        ),
        LP106=Evidence(NA, path="torchtitan/models/llama3/__init__.py", note="pads nothing"),
        LP201=_SEQUENCE,
        LP202=_SEQUENCE,
        LP205=_SEQUENCE,
        LP203=(
            Evidence(
                CLEAR,
                "Training sequence length {seq_len} exceeds attention RoPE maximum supported "
                "sequence length {max_seq_len}.",
                "torchtitan/models/common/decoder.py",
                when=lambda j: (j.seq_len or 0) > j.model.max_seq_len,
                since=Change("2026-05-28", "#3395"),
            ),
            Evidence(
                WORKS,
                "Sequence length {seq_len} exceeds original maximum {max_seq_len}.",
                "torchtitan/models/llama3/model/args.py `update_from_config`",
                note="a warning; the model's context becomes {seq_len}",
                when=lambda j: (j.seq_len or 0) > j.model.max_seq_len,
                at=_TOML,
            ),
        ),
        LP301=(
            Evidence(
                WORKS,
                path=_PIPELINE,
                note="counts embedding and head as a layer each, the first stages take the rest",
                since=_ENDS_COUNTED,
            ),
            Evidence(
                WORKS,
                path="torchtitan/distributed/pipeline.py:58-76",
                note="the middle stages take the rest",
                at="85e5f4725c",
            ),
        ),
        LP302=(
            Evidence(
                CLEAR,
                "Number of stages ({stages}) cannot be greater than effective layers ({effective_layers})",
                _PIPELINE,
                since=Change("2025-07-30", "#1416"),
            ),
            Evidence(
                CLEAR,
                "The number of total stages cannot be greater than the number of effective layers.",
                "torchtitan/distributed/pipeline.py:95-97",
                at="f1c8c2cd07",
                since=_ENDS_COUNTED,
            ),
            Evidence(
                CLEAR,
                "Total stages cannot be greater than the number of layers",
                "torchtitan/distributed/pipeline.py:58",
                at="85e5f4725c",
            ),
        ),
        LP303=Evidence(
            WORKS,
            path=_PIPELINE,
            note="virtual stages may differ by a layer",
            when=lambda j: j.layout.stages <= j.model.n_layers + 2,
            since=_ENDS_COUNTED,
        ),
        LP304=Evidence(
            CLEAR,
            "Weight tying is not supported with Pipeline Parallel.",
            "torchtitan/models/common/decoder.py:169",
            since=Change("2026-03-24", "#2580"),
        ),
        LP305=TORCH_1F1B,
        LP306=(TORCH_ROUNDS, TORCH_ROUNDS_FIT),
        LP401=(
            Evidence(
                CLEAR,
                "training.num_tokens_per_train_step ({global_tokens}) must be divisible by the number of "
                "tokens processed globally in one gradient accumulation iteration ({unit_tokens}).",
                "torchtitan/trainer.py:419-425",
                since=TOKENS,
            ),
            Evidence(
                CLEAR,
                "global batch size must be multiple of local batch size times data-parallel degree "
                "({global_batch} % ({batch} * {dp}) != 0)",
                "torchtitan/trainer.py `Trainer.__init__`",
                at="8e879cb31d20de5d9872ec97c0f00eaa2c95be20",
            ),
        ),
    ),
)

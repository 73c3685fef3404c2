"""ColossalAI: pads the vocabulary to 64·TP; a sequence axis may be the fastest."""

from llamapar.describe.splits import Padding

from .base import (
    ADAPTS,
    CLEAR,
    FORWARD,
    INIT,
    NA,
    SAVE,
    SILENT,
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

_PLUGIN = "colossalai/booster/plugin/hybrid_parallel_plugin.py"
_EMBEDDING = "colossalai/shardformer/layer/embedding.py:303"
_PADDING: Padding = ROWS["colossalai"]["padding"]

COLOSSALAI = trainer(
    "colossalai",
    runs=takes_what_is_left,
    keywords=keywords(
        tp="tp_size",
        pp="pp_size",
        dp="",
        virtual_stages="num_model_chunks",
        zero="zero_stage",
        sequence_parallel="enable_sequence_parallelism",
        micro_batch="microbatch_size",
        micro_batches="num_microbatches",
        padding="make_vocab_size_divisible_by",
    ),
    cases=evidence(
        LP001=(
            Evidence(
                CLEAR,
                "World size {gpus} is not divisible by tp_size {tp} * pp_size {pp}",
                f"{_PLUGIN}:1052-1054",
                when=lambda j: (j.gpus or 0) % (j.layout.tp * j.layout.pp) != 0,
            ),
            Evidence(
                NA,
                path=f"{_PLUGIN}:1076-1083",
                note="DP is not asked for: it becomes {gpus} / {model_ranks}",
                when=lambda j: (j.gpus or 0) % j.layout.model_ranks == 0,
            ),
            Evidence(
                CLEAR,
                "The product of the size({model_ranks_filled}) must be equal to the world size({gpus}).",
                "colossalai/cluster/process_group_mesh.py:44-46",
            ),
        ),
        LP101=Evidence(
            CLEAR,
            "The number of attention heads must be divisible by tensor parallel size.",
            "colossalai/shardformer/policies/llama.py:97-99",
        ),
        LP103=Evidence(
            INIT,
            "The size of dimension at index 0 is {ffn_dim}, it cannot be sharded over {tp} devices.",
            "colossalai/tensor/d_tensor/layout.py:64-67",
        ),
        LP104=Evidence(
            CLEAR,
            "The number of key_value heads must be divisible by, and must not be less than "
            "tensor parallel size.",
            "colossalai/shardformer/policies/llama.py:101-103",
        ),
        LP105=(
            Evidence(
                ADAPTS,
                path=_EMBEDDING,
                note="pads {vocab_size} to {vocab_padded} = {tp} · {vocab_local}; the head cuts the pad "
                "columns off again",
                when=pads(_PADDING),
            ),
            Evidence(WORKS, path=_EMBEDDING, note="{vocab_size} needs no pad rows here"),
        ),
        LP106=(
            Evidence(
                NA,
                path=_EMBEDDING,
                note="{vocab_size} needs no pad rows here",
                when=lambda j: not pads(_PADDING)(j),
            ),
            Evidence(
                SAVE,
                "The parameter isn't evenly distributed among tensor parallel group:                 "
                "shape before sharding torch.Size([{vocab_size}, {dim}]), "
                "shape after sharding torch.Size([{vocab_local}, {dim}])",
                "colossalai/checkpoint_io/utils.py:113-131",
                note="saving the optimizer",
                when=pads(_PADDING),
                since=Change("2025-01-21", "#6168"),
            ),
            Evidence(
                SILENT,
                path="colossalai/checkpoint_io/hybrid_parallel_checkpoint_io.py `_model_sharder`",
                note="the model is saved as rank 0's [{vocab_local}, {dim}] without a word (issue #6108, "
                "up to v0.4.7); saving the optimizer fails as it does since",
                when=pads(_PADDING),
                at="v0.4.7",
            ),
        ),
        LP201=Evidence(
            FORWARD,
            "Bro, the seq length {seq_len} for tensor 0 can't be split by {cp2}!",
            "colossalai/shardformer/layer/utils.py:358-360",
            note="with sequence_parallelism_mode=ring_attn",
            when=uneven_chunks,
        ),
        LP204=Evidence(
            CLEAR,
            "Sequence parallelism mode split_gather must be enabled when using tensor parallelism",
            f"{_PLUGIN}:1066-1069",
            note="with sequence_parallelism_mode split_gather or ring",
        ),
        LP301=Evidence(
            WORKS,
            path="colossalai/pipeline/stage_manager.py `distribute_layers`",
            note="the middle stages take the remainder",
        ),
        LP308=Evidence(
            CLEAR,
            "To avoid prohibitive gradient synchronization costs, zero stage must be 0 or 1 when "
            "using pipeline parallelism",
            f"{_PLUGIN}:1136",
        ),
    ),
)

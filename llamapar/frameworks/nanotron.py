"""nanotron: clear checks of heads; its linear layers assert without a message; PP is outside DP."""

from llamapar.describe.splits import Padding

from .base import ADAPTS, CLEAR, FORWARD, INIT, NA, WORKS, Evidence, evidence, keywords, pads, uneven_chunks
from .trainers import ROWS, trainer

_PADDING: Padding = ROWS["nanotron"]["padding"]
NANOTRON = trainer(
    "nanotron",
    keywords=keywords(
        cp="context_parallel_size",
        zero="zero_stage",
        seq_len="sequence_length",
        micro_batch="micro_batch_size",
        micro_batches="batch_accumulation_per_replica",
        padding="make_vocab_size_divisible_by",
    ),
    cases=evidence(
        LP503=(
            Evidence(
                NA,
                path="src/nanotron/parallel/pipeline_parallel/engine.py",
                note="a pipeline rank has one stage",
                when=lambda j: j.layout.virtual_stages > 1,
            ),
            Evidence(
                ADAPTS,
                path="src/nanotron/helpers.py:409-434",
                note="one sharded optimizer for any stage: zero={zero} runs as ZeRO 1",
                when=lambda j: j.layout.zero > 1,
            ),
        ),
        LP001=Evidence(
            CLEAR,
            "TP*CP*DP*PP={tp}*{cp}*{dp}*{pp}={world} != WORLD_SIZE={gpus}",
            "src/nanotron/parallel/context.py:26",
        ),
        LP101=Evidence(
            CLEAR,
            "num_attention_heads ({n_heads}) must be divisible by tp ({tp})",
            "src/nanotron/config/config.py:536",
        ),
        LP103=Evidence(
            INIT,
            "AssertionError",
            "src/nanotron/parallel/tensor_parallel/nn.py",
            note="the linear classes assert without a message",
        ),
        LP104=(
            Evidence(
                CLEAR,
                "num_key_value_heads ({n_kv_heads}) must be >= tp ({tp})",
                "src/nanotron/config/config.py:542",
                when=lambda j: j.layout.tp > j.model.n_kv_heads,
            ),
            Evidence(
                CLEAR,
                "Number of key/value heads ({n_kv_heads}) must be divisible by TP size ({tp}).",
                "src/nanotron/models/llama.py:351",
            ),
        ),
        LP105=(
            Evidence(
                ADAPTS,
                "[Vocab Size Padding] Padded vocab (size: {vocab_size}) with {pad_rows} dummy tokens "
                "(new size: {vocab_padded})",
                "src/nanotron/helpers.py:52-66",
                when=pads(_PADDING),
            ),
            Evidence(WORKS, path="src/nanotron/helpers.py:52", note="no row is padded"),
        ),
        LP201=(
            Evidence(
                CLEAR,
                "sequence_length {seq_len} must be divisible by cp_size {cp}",
                "src/nanotron/data/dataloader.py:129",
                when=lambda j: (j.seq_len or 0) % j.layout.cp != 0,
            ),
            Evidence(
                FORWARD,
                "Sequence length {seq_len} must be divisible by {cp2} when using llama3 ring attention",
                "src/nanotron/models/qwen.py:777",
                when=uneven_chunks,
            ),
        ),
        LP301=Evidence(
            WORKS,
            path="src/nanotron/models/base.py:216-232",
            note="cuts where the cumulative compute cost of the blocks passes the next {pp}th",
        ),
    ),
)

"""picotron: short asserts without numbers; ring attention over contiguous chunks."""

from .base import CLEAR, INIT, NA, WORKS, Evidence, evidence, keywords, uneven_vocab
from .trainers import trainer

PICOTRON = trainer(
    "picotron",
    keywords=keywords(
        tp="tp_size",
        cp="cp_size",
        pp="pp_size",
        dp="dp_size",
        seq_len="seq_length",
        micro_batch="micro_batch_size",
        micro_batches="gradient_accumulation_steps",
    ),
    cases=evidence(
        LP001=Evidence(
            CLEAR,
            "World size ({gpus}) != TP ({tp}) * CP ({cp}) * PP ({pp}) * DP ({dp})",
            "picotron/process_group_manager.py:11",
        ),
        LP101=Evidence(
            INIT,
            "num_attention_heads should be divisible by tp world size",
            "picotron/model.py:95",
        ),
        LP103=Evidence(
            INIT,
            "Hidden dimension must be divisible by the tensor parallel world size",
            "picotron/tensor_parallel/tensor_parallel.py:81",
        ),
        LP104=Evidence(
            INIT,
            "num_key_value_heads should be divisible by  tp world size",
            "picotron/model.py:96",
        ),
        LP105=(
            Evidence(
                INIT,
                "{vocab_size} is not divisible by {tp}",
                "picotron/tensor_parallel/tensor_parallel.py:226",
                when=uneven_vocab,
            ),
            Evidence(WORKS, path="picotron/tensor_parallel/tensor_parallel.py:226", note="pads nothing"),
        ),
        LP106=Evidence(NA, path="picotron/tensor_parallel/tensor_parallel.py:226", note="pads nothing"),
        LP201=(
            Evidence(
                CLEAR,
                "seq_length must be divisible by cp_size for Context Parallelism",
                "train.py:85",
                when=lambda j: (j.seq_len or 0) % j.layout.cp != 0,
            ),
            Evidence(
                WORKS,
                path="train.py:85",
                note="cuts contiguous chunks, so it needs a multiple of cp, not of 2·cp",
            ),
        ),
        LP301=Evidence(
            WORKS,
            path="picotron/pipeline_parallel/pipeline_parallel.py",
            note="the first stages take the remainder",
        ),
    ),
)

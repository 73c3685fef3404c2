"""Hugging Face transformers' native TP: no checks of heads, uneven widths by design, no CP."""

from .base import CLEAR, FORWARD, NA, WORKS, Evidence, evidence, torn_heads, torn_kv_heads
from .trainers import trainer

_MESH = "src/transformers/distributed/configuration_utils.py"
_TP = "src/transformers/distributed/tensor_parallel.py"

TRANSFORMERS = trainer(
    "transformers",
    cases=evidence(
        LP001=(
            Evidence(
                NA,
                path="src/transformers/distributed/utils.py:303-307",
                note="of one rank no mesh is made, and the number of processes is not looked at",
                when=lambda j: j.layout.world == 1,
            ),
            Evidence(
                CLEAR,
                "The parallel mesh requires {world} processes, but world_size is {gpus}.",
                "src/transformers/distributed/utils.py:303-307",
                note="with tp_size left out it becomes {gpus} over the other sizes, where they divide it",
                when=lambda j: j.layout.cp == 1,
            ),
        ),
        LP101=Evidence(
            FORWARD,
            "shape '[{batch}, {seq_local}, -1, {head_dim}]' is invalid for input of size {q_numel}",
            "src/transformers/models/llama/modeling_llama.py:243",
            note="the view of Q; no head is checked before",
            when=lambda j: j.layout.cp == 1 and torn_heads(j),
        ),
        LP104=Evidence(
            FORWARD,
            "shape '[{batch}, {seq_local}, -1, {head_dim}]' is invalid for input of size {kv_numel}",
            "src/transformers/models/llama/modeling_llama.py",
            note="issue #48307; KV heads are not replicated",
            when=lambda j: j.layout.cp == 1 and torn_kv_heads(j),
        ),
        LP103=Evidence(
            WORKS,
            path=f"{_TP}:146",
            note="widths need not divide by the TP size; the last rank is shorter",
        ),
        LP105=Evidence(
            WORKS,
            path=f"{_TP}:146",
            note="the embedding and lm_head may be uneven",
        ),
        LP106=Evidence(NA, path="src/transformers/models/llama/configuration_llama.py", note="pads nothing"),
        LP301=Evidence(
            WORKS,
            path="src/transformers/distributed/pipeline_parallel.py:109-124",
            note="{layers_each} layers a stage, the last stage takes all the remainder",
        ),
        LP501=(
            Evidence(
                NA,
                path="src/transformers/distributed/utils.py:321-325",
                note="its mesh is (pp, dp_replicate, fsdp, tp): no cp axis",
                when=lambda j: j.layout.cp > 1,
            ),
            Evidence(
                CLEAR,
                "Combining FSDP with pipeline parallelism is not supported yet. "
                "Use DistributedConfig(tp_size=N, fsdp_size=M), or combine TP and PP.",
                f"{_MESH}:187-191",
                when=lambda j: j.layout.dp > 1 and j.layout.pp > 1,
            ),
        ),
    ),
)

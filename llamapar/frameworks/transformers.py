"""Hugging Face transformers' native TP: no head checks, uneven widths by design, no CP."""

from .base import FORWARD, NA, WORKS, Case, Framework

_MESH = "src/transformers/distributed/configuration_utils.py"

TRANSFORMERS = Framework(
    name="transformers",
    title="Hugging Face transformers",
    repo="huggingface/transformers",
    commit="v5.23.0",
    aliases=("huggingface", "hugging face", "hf"),
    order="tp-cp-dp-pp",
    layer_split="remainder last",
    cases={
        "LP104": (
            Case(
                FORWARD,
                "shape '[{batch}, {seq_local}, -1, {head_dim}]' is invalid for input of size {kv_numel}",
                "src/transformers/models/llama/modeling_llama.py",
                note="issue #48307; KV heads are not replicated",
                when=lambda j: j.model.n_heads % j.layout.tp == 0 and j.layout.cp == 1,
            ),
        ),
        "LP103": (
            Case(
                WORKS,
                path="src/transformers/models/llama/configuration_llama.py:49-57",
                note="widths need not divide by the TP size; the last rank is shorter",
            ),
        ),
        "LP105": (
            Case(
                WORKS,
                path="src/transformers/models/llama/configuration_llama.py:49-57",
                note="the embedding is not cut; lm_head may be uneven",
            ),
        ),
        "LP106": (
            Case(NA, path="src/transformers/models/llama/configuration_llama.py", note="pads nothing"),
        ),
        "LP301": (
            Case(
                WORKS,
                path="src/transformers/models/llama/configuration_llama.py",
                note="{layers_each} layers a stage, the last stage takes all the remainder",
            ),
        ),
        "LP501": (
            Case(
                NA,
                path="src/transformers/models/llama/configuration_llama.py",
                note="its mesh is (pp, dp_replicate, fsdp, tp): no cp axis",
                when=lambda j: j.layout.cp > 1,
            ),
        ),
    },
)

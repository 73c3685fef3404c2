"""vLLM: replicates KV heads, pads the vocabulary to 64, gives remaining layers to inner stages."""

from llamapar.shard import Padding

from .base import ADAPTS, CLEAR, INIT, WORKS, Case, Framework

_LINEAR = "vllm/model_executor/layers/linear.py"
_VOCAB = "vllm/model_executor/layers/vocab_parallel_embedding.py"

VLLM = Framework(
    name="vllm",
    title="vLLM",
    repo="vllm-project/vllm",
    commit="v0.33.0",
    order="tp-cp-pp-dp",
    padding=Padding(64),
    layer_split="remainder before last",
    cases={
        "LP101": (
            Case(
                CLEAR,
                "Total number of attention heads ({n_heads}) must be divisible by tensor parallel "
                "size ({tp}).",
                "vllm/config/model.py:1559-1564",
            ),
        ),
        "LP103": (
            Case(
                INIT,
                "AssertionError",
                f"{_LINEAR} `MergedColumnParallelLinear`",
                note="a bare assert on the output sizes",
            ),
        ),
        "LP104": (
            Case(
                ADAPTS,
                path=f"vllm/model_executor/models/llama.py:156; {_LINEAR}:1066-1071",
                note="each KV head on {replicas} ranks: rank r loads head r // {replicas}",
                when=lambda j: j.layout.tp % j.model.n_kv_heads == 0,
            ),
            Case(
                INIT,
                "AssertionError",
                "vllm/model_executor/models/llama.py:148-155",
                note="a bare assert",
            ),
        ),
        "LP105": (
            Case(
                INIT,
                "{vocab_padded} is not divisible by {tp}",
                _VOCAB,
                when=lambda j: -(-j.model.vocab_size // 64) * 64 % j.layout.tp != 0,
            ),
            Case(
                ADAPTS,
                path=_VOCAB,
                note="pads {vocab_size} to {vocab_padded}, a multiple of 64",
                when=lambda j: j.model.vocab_size % 64 != 0,
            ),
            Case(WORKS, path=_VOCAB, note="{vocab_size} is a multiple of 64: no row is padded"),
        ),
        "LP107": (
            Case(
                CLEAR,
                "The input size is not aligned with the quantized weight shape. This can be caused "
                "by too large tensor parallel size.",
                "issues #13640, #26182",
                when=lambda j: (j.quant_group or 0) > 0 and j.model.ffn_dim % j.layout.tp == 0,
            ),
        ),
        "LP301": (
            Case(
                WORKS,
                path="vllm/distributed/utils.py:216-223",
                note="the stages before the last take the remainder",
            ),
        ),
    },
)

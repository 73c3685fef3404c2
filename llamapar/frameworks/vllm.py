"""vLLM: replicates KV heads, pads the vocabulary to 64, gives remaining layers to inner stages."""

from llamapar.describe.splits import Padding

from .base import ADAPTS, CLEAR, INIT, WORKS, Evidence, evidence, keywords, pads
from .trainers import ROWS, trainer

_LINEAR = "vllm/model_executor/layers/linear.py"
_VOCAB = "vllm/model_executor/layers/vocab_parallel_embedding.py"
_PADDING: Padding = ROWS["vllm"]["padding"]


VLLM = trainer(
    "vllm",
    keywords=keywords(
        tp="tensor_parallel_size",
        pp="pipeline_parallel_size",
        dp="data_parallel_size",
        seq_len="max_model_len",
    ),
    cases=evidence(
        LP101=Evidence(
            CLEAR,
            "Total number of attention heads ({n_heads}) must be divisible by tensor parallel size ({tp}).",
            "vllm/config/model.py:1559-1564",
        ),
        LP103=Evidence(
            INIT,
            "AssertionError",
            f"{_LINEAR} `MergedColumnParallelLinear`",
            note="a bare assert on the output sizes",
        ),
        LP104=(
            Evidence(
                ADAPTS,
                path=f"vllm/model_executor/models/llama.py:156; {_LINEAR}:1066-1071",
                note="each KV head on {replicas} ranks: rank r loads head r // {replicas}",
                when=lambda j: j.layout.tp % j.model.n_kv_heads == 0,
            ),
            Evidence(
                INIT,
                "AssertionError",
                "vllm/model_executor/models/llama.py:148-155",
                note="a bare assert",
            ),
        ),
        LP105=(
            Evidence(
                INIT,
                "{vocab_padded} is not divisible by {tp}",
                _VOCAB,
                when=lambda job: (
                    (job.padding or _PADDING).padded(job.model.vocab_size, job.layout.tp) % job.layout.tp != 0
                ),
            ),
            Evidence(
                ADAPTS,
                path=_VOCAB,
                note="pads {vocab_size} to {vocab_padded} ({padding})",
                when=pads(_PADDING),
            ),
            Evidence(WORKS, path=_VOCAB, note="{vocab_size} needs no pad rows ({padding})"),
        ),
        LP107=Evidence(
            CLEAR,
            "The input size is not aligned with the quantized weight shape. This can be caused "
            "by too large tensor parallel size.",
            "vllm/model_executor/layers/quantization/auto_awq.py:821-826",
            note="with AWQ weights; GPTQ and Marlin kernels say it in their own words (issue #13640)",
        ),
        LP301=Evidence(
            WORKS,
            path="vllm/distributed/utils.py:216-223",
            note="the stages before the last take the remainder",
        ),
    ),
)

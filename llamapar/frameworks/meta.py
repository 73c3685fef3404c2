"""Meta's llama-models on fairscale: floor division without validation in the attention."""

from .base import CLEAR, FORWARD, INIT, NA, SILENT, Case, Framework

_FAIRSCALE = "facebookresearch/fairscale"
_FAIRSCALE_AT = "146f160241"
_UTILS = "fairscale/nn/model_parallel/utils.py:28-37"


def _divide(numerator: str) -> tuple[Case, ...]:
    """fairscale's `ensure_divisibility`, which every column-, row- and vocab-parallel layer calls."""
    return (
        Case(
            INIT,
            f"{{{numerator}}} is not divisible by {{tp}}",
            _UTILS,
            repo=_FAIRSCALE,
            at=_FAIRSCALE_AT,
        ),
    )


META = Framework(
    name="llama-models",
    title="Meta llama-models + fairscale",
    repo="meta-llama/llama-models",
    commit="a9c89c471f793423afd4cc3ca8671d6e56fe64cb",
    aliases=("meta", "fairscale", "llama", "llama3"),
    order="tp-cp-pp-dp",
    cases={
        "LP001": (
            Case(
                SILENT,
                path="fairscale/nn/model_parallel/initialize.py:92",
                note="model_parallel_size = min(requested {tp}, world {gpus}): clamped without a word",
                when=lambda j: j.layout.tp > (j.gpus or 0),
                repo=_FAIRSCALE,
                at=_FAIRSCALE_AT,
            ),
            Case(
                CLEAR,
                "{gpus} is not divisible by {model_ranks}",
                "fairscale/nn/model_parallel/initialize.py:93-95",
                when=lambda j: (j.gpus or 0) % (j.layout.tp * j.layout.cp * j.layout.pp) != 0,
                repo=_FAIRSCALE,
                at=_FAIRSCALE_AT,
            ),
            Case(
                NA,
                path="fairscale/nn/model_parallel/initialize.py:93-106",
                note="DP is not asked for: it becomes {gpus} / {model_ranks}",
                repo=_FAIRSCALE,
                at=_FAIRSCALE_AT,
            ),
        ),
        "LP101": (
            Case(
                INIT,
                "{q_dim} is not divisible by {tp}",
                _UTILS,
                when=lambda j: j.model.q_dim % j.layout.tp != 0 and j.layout.tp <= j.model.n_kv_heads,
                repo=_FAIRSCALE,
                at=_FAIRSCALE_AT,
            ),
            Case(
                INIT,
                "integer division or modulo by zero",
                "models/llama3/model.py:115",
                when=lambda j: j.layout.tp > j.model.n_kv_heads,
            ),
        ),
        "LP103": _divide("ffn_dim"),
        "LP104": (
            Case(
                INIT,
                "integer division or modulo by zero",
                "models/llama3/model.py:115",
                note="n_local_kv_heads = {n_kv_heads} // {tp} = 0",
                when=lambda j: j.layout.tp > j.model.n_kv_heads,
            ),
            Case(
                INIT,
                "{q_dim} is not divisible by {tp}",
                _UTILS,
                when=lambda j: j.model.q_dim % j.layout.tp != 0,
                repo=_FAIRSCALE,
                at=_FAIRSCALE_AT,
            ),
            Case(
                INIT,
                "{kv_dim} is not divisible by {tp}",
                _UTILS,
                when=lambda j: j.model.kv_dim % j.layout.tp != 0,
                repo=_FAIRSCALE,
                at=_FAIRSCALE_AT,
            ),
            Case(
                FORWARD,
                path="models/llama3/model.py:112-116",
                note="n_local_kv_heads = {n_kv_heads} // {tp} rounds down while the projection keeps "
                "{kv_local} columns: the view does not fit",
            ),
        ),
        "LP105": _divide("vocab_size"),
        "LP106": (Case(NA, path="models/llama3/model.py", note="pads nothing"),),
        "LP203": (
            Case(
                CLEAR,
                "max_seq_len must be between 1 and 8192, got {seq_len}.",
                "llama/generation.py",
                when=lambda j: (j.seq_len or 0) > 8192,
                note="the reference inference code of Llama 3",
                repo="meta-llama/llama3",
                at="a0940f9cf7",
            ),
        ),
    },
)

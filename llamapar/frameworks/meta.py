"""Meta's llama-models on fairscale: its attention divides heads by floor division, without validation."""

from collections.abc import Callable

from llamapar.describe.job import Job
from llamapar.describe.layout import Layout

from .base import (
    CLEAR,
    FORWARD,
    INIT,
    NA,
    SILENT,
    WORKS,
    Evidence,
    evidence,
    takes_what_is_left,
    tp_alone,
    uneven_vocab,
)
from .trainers import trainer

_FAIRSCALE = "facebookresearch/fairscale"
_FAIRSCALE_AT = "146f160241"
_UTILS = "fairscale/nn/model_parallel/utils.py:28-37"
_INITIALIZE = "fairscale/nn/model_parallel/initialize.py"
_MODEL = "models/llama3/model.py"


def _fairscale(
    verdict: str, message: str, path: str, when: Callable[[Job], bool] = lambda job: True, note: str = ""
) -> Evidence:
    return Evidence(verdict, message, path, note, when, _FAIRSCALE, _FAIRSCALE_AT)


def _divide(numerator: str, when: Callable[[Job], bool]) -> Evidence:
    """fairscale's `ensure_divisibility`, which every column-, row- and vocab-parallel layer calls."""
    return _fairscale(INIT, f"{{{numerator}}} is not divisible by {{tp}}", _UTILS, when)


def _clamped(job: Job) -> bool:
    return job.gpus is not None and job.layout.tp > job.gpus


def _runs(job: Job) -> Job:
    """The job with fairscale's tp, min(tp, world), and the dp that remains."""
    if _clamped(job):
        job = job.replace(layout=job.layout.replace(tp=job.gpus))
    return takes_what_is_left(job)


def _world_by(ranks: Callable[[Layout], int], number: str) -> Evidence:
    """fairscale's three checks of the world size, in order; a clamped tp passes the first."""
    return _fairscale(
        CLEAR,
        f"{{gpus}} is not divisible by {{{number}}}",
        f"{_INITIALIZE}:93-95",
        lambda j: (j.gpus or 0) % ranks(_runs(j).layout) != 0,
    )


_NO_KV_HEAD = Evidence(
    INIT,
    "integer division or modulo by zero",
    f"{_MODEL}:115",
    "n_local_kv_heads = {n_kv_heads} // {tp} = 0",
    lambda j: j.layout.tp > j.model.n_kv_heads,
    line="self.n_local_heads // self.n_local_kv_heads",
)

_NO_PROJECTION = (
    _NO_KV_HEAD,
    _divide("q_dim", lambda j: j.model.q_dim % j.layout.tp != 0),
    _divide("kv_dim", lambda j: j.model.kv_dim % j.layout.tp != 0),
)
"""What stops before attention is called: Q, K or V has no whole share."""

_AS_CLAMPED = _fairscale(WORKS, "", f"{_INITIALIZE}:92", note="with tp={tp}, to which it is clamped")

META = trainer(
    "llama-models",
    runs=_runs,
    cases=evidence(
        LP001=(
            _world_by(lambda lay: lay.tp, "tp"),
            _world_by(lambda lay: lay.cp, "cp"),
            _world_by(lambda lay: lay.model_ranks, "model_ranks_there"),
            _fairscale(
                SILENT,
                "",
                f"{_INITIALIZE}:92",
                _clamped,
                "model_parallel_size = min(requested {tp}, world {gpus}): clamped without a word",
            ),
            _fairscale(
                NA,
                "",
                f"{_INITIALIZE}:93-106",
                note="DP is not asked for: it becomes {gpus} / {model_ranks}",
            ),
        ),
        LP101=(
            *_NO_PROJECTION,
            Evidence(
                FORWARD,
                "shape '[{batch}, {seq_len}, {q_heads_each}, {head_dim}]' is invalid for input of size "
                "{q_seen}",
                f"{_MODEL}:200",
                "n_local_heads = {n_heads} // {tp} rounds down while the projection keeps {q_local} columns",
                when=lambda j: j.model.n_heads % j.layout.tp != 0,
            ),
            _AS_CLAMPED,
        ),
        LP103=(_divide("ffn_dim", lambda j: j.model.ffn_dim % j.layout.tp != 0), _AS_CLAMPED),
        LP104=(
            *_NO_PROJECTION,
            Evidence(
                FORWARD,
                "shape '[{batch}, {seq_len}, {kv_floor}, {head_dim}]' is invalid for input of size {kv_seen}",
                f"{_MODEL}:201",
                "n_local_kv_heads = {n_kv_heads} // {tp} rounds down while the projection keeps "
                "{kv_local} columns",
                when=lambda j: j.model.n_kv_heads % j.layout.tp != 0,
            ),
            _AS_CLAMPED,
        ),
        LP105=(
            _divide("vocab_size", uneven_vocab),
            _fairscale(WORKS, "", _UTILS, note="pads nothing: {tp} shards of the {vocab_size} rows"),
        ),
        LP106=Evidence(NA, path=_MODEL, note="pads nothing"),
        **tp_alone("models/llama3/generation.py:67-70"),  # initialize_model_parallel(world_size), no more
        LP203=Evidence(
            CLEAR,
            "max_seq_len must be between 1 and 8192, got {seq_len}.",
            "llama/generation.py",
            when=lambda j: (j.seq_len or 0) > 8192,
            note="the reference inference code of Llama 3",
            repo="meta-llama/llama3",
            at="a0940f9cf7",
        ),
    ),
)

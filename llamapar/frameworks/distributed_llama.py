"""distributed-llama: tensor parallelism over home machines, at most one node a KV head."""

from .base import CLEAR, INIT, NA, WORKS, Evidence, evidence, tp_alone, uneven_vocab
from .trainers import trainer

_CORE = "src/nn/nn-core.cpp"

DISTRIBUTED_LLAMA = trainer(
    "distributed-llama",
    cases=evidence(
        LP101=Evidence(INIT, "Assertion `nHeads % nNodes == 0' failed.", f"{_CORE}:280"),
        LP103=Evidence(INIT, "Assertion `d % nNodes == 0' failed.", f"{_CORE}:222"),
        LP104=(
            Evidence(
                CLEAR,
                "This version does not support more nodes than the number of KV heads in the model",
                "src/app.cpp:236-238",
                when=lambda j: j.layout.tp > j.model.n_kv_heads,
            ),
            Evidence(
                INIT,
                "Assertion `kvDim % nNodes == 0' failed.",
                f"{_CORE}:213",
                when=lambda j: j.model.kv_dim % j.layout.tp != 0,
            ),
        ),
        LP105=(
            Evidence(INIT, "Assertion `d % nNodes == 0' failed.", f"{_CORE}:222", when=uneven_vocab),
            Evidence(WORKS, path="src/llm.cpp:176", note="pads nothing; only the head is cut"),
        ),
        LP106=Evidence(NA, path="src/llm.cpp", note="the embedding stays whole on the root node"),
        LP107=Evidence(
            INIT,
            "Assertion `slice->n0 % blockSize == 0' failed.",
            f"{_CORE}:310",
            note="Q40 and Q80 blocks hold 32 weights",
            when=lambda j: j.model.ffn_dim % j.layout.tp == 0 and j.model.ffn_dim // j.layout.tp % 32 != 0,
        ),
        **tp_alone("src/app.cpp"),
    ),
)

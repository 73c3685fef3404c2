"""Plain torch: DTensor's `parallelize_module`, DeviceMesh and torch.distributed.pipelining."""

from .base import (
    CLEAR,
    FORWARD,
    NA,
    SILENT,
    TORCH_1F1B,
    TORCH_ROUNDS,
    TORCH_ROUNDS_FIT,
    WORKS,
    Evidence,
    evidence,
    torn_heads,
    torn_kv_heads,
    uneven_vocab,
)
from .trainers import trainer

DTENSOR = trainer(
    "dtensor",
    cases=evidence(
        LP001=(
            Evidence(
                CLEAR,
                "Mesh should not be bigger than default world size {gpus}, but found {world} ranks!",
                "torch/distributed/device_mesh.py",
                when=lambda j: j.layout.world > (j.gpus or 0),
            ),
            Evidence(
                SILENT,
                path="torch/distributed/device_mesh.py",
                note="a mesh smaller than the world is accepted: {gpus} - {world} ranks stay out of it",
            ),
        ),
        LP101=Evidence(
            FORWARD,
            "shape '[{batch}, {seq_local}, -1, {head_dim}]' is invalid for input of size {q_numel}",
            "torch/distributed/tensor/parallel/style.py",
            note="the view of Q on a plain local tensor",
            when=torn_heads,
        ),
        LP103=Evidence(
            FORWARD,
            "a and b must have same reduction dim, but got [{tokens_local}, {ffn_wide}] X "
            "[{ffn_dim}, {dim}].",
            "torch/distributed/tensor/parallel/style.py",
            note="colwise then rowwise takes rank 0's {ffn_local} columns for those of every rank",
        ),
        LP104=Evidence(
            FORWARD,
            "shape '[{batch}, {seq_local}, -1, {head_dim}]' is invalid for input of size {kv_numel}",
            "torch/distributed/tensor/parallel/style.py",
            note="the view of K on a plain local tensor; as a DTensor it says 'Cannot unflatten "
            "unevenly sharded tensor'",
            when=torn_kv_heads,
        ),
        LP105=Evidence(
            WORKS,
            path="torch/distributed/tensor/placement_types.py:340",
            note="uneven shards by torch.chunk; only DTensor.from_local without shape= takes them for "
            "{vocab_local} · {tp} rows",
            when=uneven_vocab,
        ),
        LP106=Evidence(NA, path="torch/distributed/tensor/_api.py", note="pads nothing"),
        LP108=Evidence(
            FORWARD,
            "Expected trailing dimension of mat1 to be divisible by 16 but got mat1 shape: "
            "({tokens_local}x{ffn_local}).",
            "aten/src/ATen/native/cuda/Blas.cpp",
            note="torch._scaled_mm",
            when=lambda j: j.float8_sizes.keys() == {"ffn_dim"},
        ),
        LP201=Evidence(
            SILENT,
            path="torch/distributed/tensor/experimental/_context_parallel/_load_balancer.py:470",
            note="context_parallel drops its load balancing without a word",
            when=lambda j: (j.seq_len or 0) % (2 * j.layout.cp) != 0,
        ),
        LP305=TORCH_1F1B,
        LP306=(TORCH_ROUNDS, TORCH_ROUNDS_FIT),
    ),
)

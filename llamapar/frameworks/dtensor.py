"""Plain torch: DTensor's `parallelize_module`, DeviceMesh and torch.distributed.pipelining."""

from collections.abc import Callable

from llamapar.describe.job import Job

from .base import (
    CLEAR,
    FORWARD,
    NA,
    SILENT,
    WORKS,
    Evidence,
    evidence,
    torn_heads,
    torn_kv_heads,
    uneven_chunks,
    uneven_vocab,
)
from .trainers import trainer


def torch_case(verdict: str, message: str, path: str, when: Callable[[Job], bool], note: str) -> Evidence:
    """Evidence from torch itself, for frameworks built on it."""
    return Evidence(verdict, message, path, note, when, "pytorch/pytorch", "v2.13.0")


_SCHEDULES = "torch/distributed/pipelining/schedules.py"


def _off_rounds(job: Job) -> bool:
    count = job.n_micro_batches or 0
    return count % max(1, count // job.layout.pp) != 0


TORCH_1F1B = torch_case(
    CLEAR,
    "Number of microbatches ({micro_batches}) must be greater than or equal to the number of "
    "stages ({stages}).",
    _SCHEDULES,
    lambda j: j.layout.virtual_stages == 1,
    "Schedule1F1B; ScheduleGPipe accepts it",
)
TORCH_ROUNDS = torch_case(
    CLEAR,
    "Interleaved 1F1B requires the number of microbatches to be a multiple of the number of "
    "rounds ({rounds}), but got {micro_batches}.",
    _SCHEDULES,
    _off_rounds,
    "ScheduleInterleaved1F1B",
)
TORCH_ROUNDS_FIT = torch_case(
    WORKS,
    "",
    _SCHEDULES,
    lambda j: not _off_rounds(j),
    "ScheduleInterleaved1F1B needs a multiple of its rounds, here {rounds}",
)


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
            when=uneven_chunks,
        ),
        LP305=TORCH_1F1B,
        LP306=(TORCH_ROUNDS, TORCH_ROUNDS_FIT),
    ),
)

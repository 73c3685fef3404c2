"""What each public function takes by name, for type checkers. tools/keywords.py writes it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Required, TypedDict

from torch import Tensor

from llamapar.frameworks import Framework
from llamapar.place.pipeline import Schedule

from .hardware import GpuLike
from .layout import LayoutLike
from .models import ModelLike
from .splits import Padding

class Degrees(TypedDict, total=False):
    tp: int
    cp: int
    pp: int
    dp: int
    order: str
    dp_replicate: int
    virtual_stages: int
    zero: int
    sequence_parallel: bool | None

class CheckOptions(Degrees, total=False):
    gpus: int | None
    gpus_per_node: int
    seq_len: int | None
    batch_tokens: int | None
    batch_per_dp: int | None
    micro_batch: int | None
    global_batch: int | None
    micro_batches: int | None
    padding: str | Padding | None
    quant_group: int | None
    layer_split: str | None
    kv_replication: bool
    gpu: GpuLike | None
    precision: str
    grad_dtype: str | None
    saves: Sequence[str]
    recompute: str | None
    schedule: str
    nc: int | None
    cp_method: str | None
    framework: str | Framework | None

class CheckSettings(CheckOptions, total=False):
    layout: LayoutLike

class CheckKeywords(CheckOptions, total=False): ...

class ClinicKeywords(TypedDict, total=False):
    model: ModelLike | None
    dim: int | str | None
    n_layers: int | str | None
    n_heads: int | str | None
    n_kv_heads: int | str | None
    head_dim: int | str | None
    ffn_dim: int | str | None
    vocab_size: int | str | None
    tp: int | str | None
    cp: int | str | None
    pp: int | str | None
    dp: int | str | None
    gpus: int | str | None
    seq_len: int | str | None
    micro_batch: int | str | None
    global_batch: int | str | None
    quant_group: int | str | None
    framework: str | Framework | None

class CompareKeywords(Degrees, total=False):
    seq_len: int | None
    global_batch: int | None
    engine: str
    device: str
    dtype: str
    seed: int
    timeout: float
    backward: bool

class CostOptions(Degrees, total=False):
    gpus: int | None
    micro_batch: int
    global_batch: int | None
    layer_split: str | Sequence[int] | None
    kv_replication: bool
    gpu: GpuLike
    precision: str
    recompute: str | None
    schedule: str
    nc: int | None
    cp_method: str | None
    framework: str | Framework | None
    kernels: str | None
    float8_all_gather: bool
    flash: str
    overlap_tp: bool | None
    imbalance: float
    profile: str | None
    flops: str

class CostSettings(CostOptions, total=False):
    seq_len: int
    layout: LayoutLike

class CostKeywords(CostOptions, total=False):
    seq_len: Required[int]

class ExplainKeywords(TypedDict, total=False):
    dim: int | str | None
    n_layers: int | str | None
    n_heads: int | str | None
    n_kv_heads: int | str | None
    head_dim: int | str | None
    ffn_dim: int | str | None
    vocab_size: int | str | None
    max_seq_len: int | str | None
    tp: int | str | None
    cp: int | str | None
    pp: int | str | None
    dp: int | str | None
    ep: int | str | None
    virtual_stages: int | str | None
    zero: int | str | None
    gpus: int | str | None
    seq_len: int | str | None
    micro_batch: int | str | None
    global_batch: int | str | None
    quant_group: int | str | None

class ExplorerKeywords(TypedDict, total=False):
    job: str
    preset: ModelLike
    dim: int | str | None
    n_layers: int | str | None
    n_heads: int | str | None
    n_kv_heads: int | str | None
    head_dim: int | str | None
    ffn_dim: int | str | None
    vocab_size: int | str | None
    tp: int | str
    cp: int | str
    pp: int | str
    dp: int | str
    order: str
    dp_replicate: int | str
    virtual_stages: int | str
    zero: int | str
    sequence_parallel: bool | None
    gpus: int | str | None
    gpus_per_node: int | str
    seq_len: int | str | None
    batch_tokens: int | str | None
    batch_per_dp: int | str | None
    micro_batch: int | str | None
    global_batch: int | str | None
    micro_batches: int | str | None
    padding: str | Padding | None
    quant_group: int | str | None
    layer_split: str | None
    kv_replication: bool
    gpu: GpuLike
    recompute: str | None
    schedule: str
    nc: int | str | None
    cp_method: str
    framework: str | Framework
    rank: int | str
    chunking: str
    gives: str
    tab: str
    program: str
    engine: str
    dtype: str
    documents: str | tuple[int, ...] | None
    fault: str
    beside: str
    time: int | str | None
    step: int | str

class FfnKeywords(Degrees, total=False): ...

class GatherKeywords(TypedDict, total=False):
    model: ModelLike | None
    n_kv_heads: int | None
    format: str

class HeadsKeywords(Degrees, total=False):
    kv_replication: bool
    interleave: bool

class InsideKeywords(Degrees, total=False):
    micro_batch: int
    kv_replication: bool
    gpu: GpuLike
    cp_method: str
    rank: int
    seq_len: Required[int]

class InspectKeywords(TypedDict, total=False):
    model: ModelLike | None

class LiveKeywords(TypedDict, total=False):
    tp: int
    cp: int
    pp: int
    dp: int
    order: str
    virtual_stages: int | None
    zero: int
    seq_len: int | None
    micro_batch: int | None
    global_batch: int | None
    micro_batches: int | None
    padding: str | Padding | None
    layer_split: str | None
    kv_replication: bool
    gpu: GpuLike | None
    recompute: str | None
    name: str
    nc: int | None
    cp_method: str
    framework: str | Framework | None
    rank: int
    interleave: bool
    chunking: str
    program: str

class LoadingKeywords(TypedDict, total=False):
    seq_len: int
    format: str
    nodes: int
    memory_gib: float

class MemoryKeywords(Degrees, total=False):
    micro_batch: int
    global_batch: int | None
    padding: str | Padding | None
    layer_split: str | Sequence[int] | None
    kv_replication: bool
    gpu: GpuLike
    grad_dtype: str | None
    saves: Sequence[str]
    recompute: str | None
    schedule: str
    nc: int | None
    cp_method: str | None
    framework: str | Framework | None
    dtype: str
    kernels: str | None
    loss: str | None
    master_weights: bool | None
    seq_len: Required[int]

class PlanOptions(TypedDict, total=False):
    kv_replication: bool
    gpu: GpuLike
    precision: str
    grad_dtype: str | None
    schedule: str
    cp_method: str | None
    framework: str | Framework | None
    kernels: str | None
    flash: str
    overlap_tp: bool | None
    profile: str | None
    top: int
    headroom: float

class PlanSettings(PlanOptions, total=False):
    seq_len: int
    global_batch: int
    gpus: int
    progress: Callable[[int, int], object] | None
    cancel: Callable[[], bool] | None

class PlanKeywords(PlanOptions, total=False):
    seq_len: Required[int]
    global_batch: Required[int]

class RanksKeywords(Degrees, total=False):
    model: ModelLike | None
    seq_len: int | None
    global_batch: int | None
    layer_split: str
    kv_replication: bool
    chunking: str

class ReconcileKeywords(Degrees, total=False):
    micro_batch: int
    global_batch: int | None
    padding: str | Padding | None
    layer_split: str | Sequence[int] | None
    kv_replication: bool
    gpu: GpuLike
    grad_dtype: str | None
    saves: Sequence[str]
    recompute: str | None
    schedule: str
    nc: int | None
    cp_method: str | None
    framework: str | Framework | None
    dtype: str
    kernels: str | None
    loss: str | None
    master_weights: bool | None
    seq_len: Required[int]

class RequireKeywords(Degrees, total=False):
    gpus: int | None
    gpus_per_node: int
    seq_len: int | None
    batch_tokens: int | None
    batch_per_dp: int | None
    micro_batch: int | None
    global_batch: int | None
    micro_batches: int | None
    padding: str | Padding | None
    quant_group: int | None
    layer_split: str | None
    kv_replication: bool
    gpu: GpuLike | None
    precision: str
    grad_dtype: str | None
    saves: Sequence[str]
    recompute: str | None
    schedule: str
    nc: int | None
    cp_method: str | None
    framework: str | Framework | None

class ReshardKeywords(TypedDict, total=False):
    model: ModelLike | None
    n_kv_heads: int | None
    tp: int
    pp: int
    padding: str | Padding | None
    layer_split: str
    kv_replication: bool
    format: str

class RunKeywords(Degrees, total=False):
    seq_len: int | None
    global_batch: int | None
    micro_batches: int | None
    padding: str | Padding | None
    kv_replication: bool
    schedule: str | Schedule
    nc: int | None
    cp_method: str
    rank: int
    chunking: str
    engine: str
    device: str
    dtype: str
    seed: int
    documents: tuple[int, ...] | None
    fault: str | None
    timeout: float
    pads_in_softmax: bool
    reshard_after_forward: bool
    force: bool
    steps: int
    steps_done: int
    out: str
    backward: bool
    inputs: Mapping[str, Tensor] | None
    reference: Callable[..., Any] | None

class ScheduleKeywords(TypedDict, total=False):
    pp: int
    virtual_stages: int | None
    nc: int | None
    micro_batches: Required[int]

class SequenceKeywords(Degrees, total=False):
    chunking: str
    documents: tuple[int, ...] | None

class ShardKeywords(TypedDict, total=False):
    model: ModelLike | None
    n_kv_heads: int | None
    tp: int
    pp: int
    padding: str | Padding | None
    layer_split: str
    kv_replication: bool
    format: str

class ShrinkKeywords(Degrees, total=False):
    padding: str | Padding | None
    program: str

class StagesKeywords(Degrees, total=False):
    layer_split: str

class TapeKeywords(Degrees, total=False):
    seq_len: int | None
    global_batch: int | None
    micro_batches: int | None
    padding: str | Padding | None
    kv_replication: bool
    schedule: str | Schedule
    nc: int | None
    cp_method: str
    chunking: str
    dtype: str
    seed: int
    documents: tuple[int, ...] | None
    fault: str | None
    pads_in_softmax: bool
    reshard_after_forward: bool
    steps: int
    steps_done: int
    out: str
    backward: bool
    inputs: Mapping[str, Tensor] | None
    reference: Callable[..., Any] | None

class TrafficKeywords(Degrees, total=False):
    global_batch: int | None
    micro_batches: int | None
    padding: str | Padding | None
    kv_replication: bool
    schedule: str | Schedule
    nc: int | None
    cp_method: str
    rank: int
    dtype: str
    reshard_after_forward: bool
    seq_len: Required[int]

class VerifyKeywords(TypedDict, total=False):
    model: ModelLike | None
    against: str | None

class VocabKeywords(Degrees, total=False):
    padding: str | Padding | None

class WatchKeywords(Degrees, total=False):
    global_batch: int | None
    micro_batches: int | None
    kv_replication: bool
    cp_method: str
    chunking: str
    documents: tuple[int, ...] | None
    case: str | None
    data: str

class ZeroKeywords(Degrees, total=False):
    padding: str | Padding | None
    kv_replication: bool
    rank: int
    parameter: str
    dtype: str
    reshard_after_forward: bool

"""messages.json: what the real tools say when a layout does not fit, word for word.

    pip install torch==2.13.0 fairscale==0.4.13 megatron-core==0.16.1 (--no-deps for the last two)
    git clone meta-llama/llama3, pytorch/torchtitan, huggingface/picotron, hpcaitech/ColossalAI and
        NVIDIA/Megatron-LM (commits in fixture.py)
    pip download --no-deps vllm==0.33.0
    python oracles/make_messages.py --llama3 PATH --torchtitan PATH --picotron PATH \\
        --colossalai PATH --megatron PATH --vllm WHEEL

Each case: framework, condition, numbers, error (its class) and message, from running the code that
raises: one process, no GPU, torch's fake process group where ranks are wanted. "megatron-core" is
the installed release, "megatron" the repository's commit; of the repositories the one function, or
the few statements of a method too big to call ("statement": true), is run from its source. Two
texts are Python's own: an empty one (a bare assert) and llama3's, the same in Python 3.6 to 3.13.
"""

import math
import re
import warnings
from argparse import Namespace
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from fairscale.nn.model_parallel.utils import ensure_divisibility
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, schedules
from torch.distributed.tensor import Shard
from torch.distributed.tensor.experimental._context_parallel import _load_balancer
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from fixture import arguments, extract, fragment, outcome, ranks, source, write

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from megatron.core.parallel_state import RankGenerator, initialize_model_parallel
    from megatron.core.tensor_parallel.mappings import _split_along_first_dim
    from megatron.core.transformer.transformer_config import TransformerConfig
    from megatron.core.utils import divide

TOOLS = ("llama3", "torchtitan", "picotron", "colossalai", "megatron", "vllm")
CASES: list[dict[str, Any]] = []


def record(
    framework: str,
    condition: str,
    numbers: dict[str, Any],
    call: Callable[..., Any],
    *given: Any,
    statement: bool = False,
    **named: Any,
) -> None:
    """One case; a call that does not fail is a mistake of this script."""
    said = outcome("returned", call, *given, **named)
    if "error" not in said:
        raise AssertionError(f"{framework}: {condition} with {numbers} was accepted: {said}")
    case = {"framework": framework, "condition": condition, "numbers": numbers, **said}
    CASES.append({**case, "statement": True} if statement else case)


def fairscale() -> None:
    for n, by in ((4096, 3), (128257, 16)):
        record("fairscale", "dimension % tp", {"n": n, "tp": by}, ensure_divisibility, n, by)


def llama3(args: Namespace) -> None:
    text = source(args, "llama3", "llama/model.py")
    marks = (
        "self.n_local_heads = args.n_heads //",
        "self.n_local_kv_heads = self",
        "self.n_rep = ",
    )
    sizes = SimpleNamespace(n_heads=32, n_kv_heads=8)
    me = SimpleNamespace(n_kv_heads=8)
    heads = fragment(text, *marks, self=me, args=sizes, model_parallel_size=16)
    numbers = {"n_heads": 32, "n_kv_heads": 8, "tp": 16}
    record("llama3", "tp > n_kv_heads", numbers, heads, statement=True)


def megatron_core() -> None:
    name = "megatron-core"
    record(name, "dimension % tp", {"n": 4096, "tp": 3}, divide, 4096, 3)

    def config(**fields: Any) -> Callable[[], Any]:
        asked = {"num_layers": 2, "hidden_size": 128, "num_attention_heads": 32, **fields}
        return lambda: TransformerConfig(**asked)

    tp3 = config(num_query_groups=8, tensor_model_parallel_size=3)
    record(name, "n_heads % tp", {"n_heads": 32, "tp": 3}, tp3)
    groups = {"n_heads": 36, "n_kv_heads": 8, "tp": 12}
    tp12 = {"num_query_groups": 8, "tensor_model_parallel_size": 12}
    bad = config(num_attention_heads=36, hidden_size=144, **tp12)
    record(name, "n_kv_heads % tp and tp % n_kv_heads", groups, bad)
    alone = config(sequence_parallel=True)
    record(name, "sequence parallelism without tp", {"tp": 1}, alone)
    pipe = {"pipeline_model_parallel_size": 16, "pipeline_dtype": torch.bfloat16}
    uneven = config(num_layers=126, num_layers_in_first_pipeline_stage=5, **pipe)
    record(name, "uneven first stage", {"n_layers": 126, "pp": 16, "first": 5}, uneven)
    with ranks(16):
        sizes = {"world": 16, "tp": 3, "pp": 1, "cp": 1}
        record(name, "world % (tp*pp*cp)", sizes, initialize_model_parallel, 3)
        seq = torch.empty(10, 1)
        record(name, "seq % tp", {"seq": 10, "tp": 16}, _split_along_first_dim, seq, dist.group.WORLD)
    both = {"tp": 1, "ep": 2, "dp": 1, "pp": 1, "cp": 2, "order": "tp-cp-ep-dp-pp"}
    record(name, "ep > 1 and cp > 1", both, lambda: RankGenerator(**both))
    short = {"tp": 2, "ep": 1, "dp": 2, "pp": 2, "cp": 2, "order": "tp-dp-pp"}
    record(name, "axis not in order", short, lambda: RankGenerator(**short))


def megatron(args: Namespace) -> None:
    text = source(args, "megatron", "megatron/core/transformer/transformer_block.py")
    build = extract(text, "get_num_layers_to_build")["get_num_layers_to_build"]
    config = SimpleNamespace(
        pipeline_model_parallel_layout=None,
        num_layers_in_first_pipeline_stage=None,
        num_layers_in_last_pipeline_stage=None,
        account_for_embedding_in_pipeline_split=False,
        account_for_loss_in_pipeline_split=False,
        num_layers=126,
        pipeline_model_parallel_size=16,
    )
    record("megatron", "n_layers % pp", {"n_layers": 126, "pp": 16}, build, config, None, 0)
    text = source(args, "megatron", "megatron/training/arguments.py")
    given = SimpleNamespace(world_size=100)
    world = fragment(text, "world_size % total_model_size", args=given, total_model_size=16)
    numbers = {"world": 100, "tp*pp*cp": 16}
    record("megatron", "world % (tp*pp*cp)", numbers, world, statement=True)
    given = SimpleNamespace(seq_length=8200, context_parallel_size=16)
    seq = fragment(text, "args.seq_length % (args.context_parallel_size * 2)", args=given)
    record("megatron", "seq % (2*cp)", {"seq": 8200, "cp": 16}, seq, statement=True)


def torchtitan(args: Namespace) -> None:
    name = "torchtitan"
    text = source(args, "torchtitan", "torchtitan/models/common/decoder.py")
    heads = fragment(text, "if n_heads % tp != 0", n_heads=32, tp=3)
    record(name, "n_heads % tp", {"n_heads": 32, "tp": 3}, heads, statement=True)
    groups = fragment(text, "if n_kv_heads % tp != 0", n_kv_heads=8, tp=16)
    record(name, "n_kv_heads % tp", {"n_kv_heads": 8, "tp": 16}, groups, statement=True)
    for seq in (131072, 131073):  # the context itself is taken, one token more is not
        context = fragment(text, "if seq_len > max_context_length", seq_len=seq, max_context_length=131072)
        if seq == 131072:
            context()
        else:
            record(name, "seq > context", {"seq": seq, "context": 131072}, context, statement=True)
    text = source(args, "torchtitan", "torchtitan/trainer.py")
    parallelism = SimpleNamespace(enable_sequence_parallel=True)
    tokens = fragment(
        text,
        "parallel_dims.cp > 1 else 1",
        "num_tokens_per_pp_microbatch % seq_len_divisor",
        parallel_dims=SimpleNamespace(tp=8, cp=16),
        config=SimpleNamespace(parallelism=parallelism),
        num_tokens_per_pp_microbatch=8200,
    )
    numbers = {"tokens": 8200, "tp": 8, "cp": 16, "sequence_parallel": True}
    record(name, "tokens % (tp*2*cp)", numbers, tokens, statement=True)
    text = source(args, "torchtitan", "torchtitan/distributed/parallel_dims.py")
    validate = extract(text, "_validate", logger=None)["_validate"]
    sizes = {
        "dp_replicate": 1,
        "dp_shard": 3,
        "cp": 1,
        "tp": 8,
        "pp": 4,
        "ep": 1,
        "world_size": 128,
    }
    record(name, "product of degrees = world", sizes, validate, SimpleNamespace(**sizes))
    text = source(args, "torchtitan", "torchtitan/distributed/pipeline_parallel.py")
    split = extract(text, "_generate_llm_fqn_per_model_part")["_generate_llm_fqn_per_model_part"]
    for stages, layers, first, last in ((144, 126, 1, 1), (16, 32, 4, 1), (16, 32, 1, 4)):
        numbers = {"stages": stages, "n_layers": layers, "input": first, "output": last}
        record(name, "layers per stage", numbers, split, stages, layers, first, last)
    stages = extract(
        text,
        "_get_pipeline_metadata",
        math=math,
        get_schedule_class=schedules.get_schedule_class,
        PipelineScheduleSingle=schedules.PipelineScheduleSingle,
    )["_get_pipeline_metadata"]
    for schedule, per_stage in (("1F1B", 5), ("1F1B", 3), ("Interleaved1F1B", 9)):
        numbers = {"n_layers": 32, "pp": 4, "layers_per_stage": per_stage, "schedule": schedule}
        asked = SimpleNamespace(
            pipeline_parallel_schedule=schedule,
            pipeline_parallel_layers_per_stage=per_stage,
            pipeline_parallel_first_stage_less_layers=1,
            pipeline_parallel_last_stage_less_layers=1,
        )
        dims, model = SimpleNamespace(pp=4), SimpleNamespace(layers=range(32))
        record(name, "virtual stages and schedule", numbers, stages, dims, asked, model)


def picotron(args: Namespace) -> None:
    name = "picotron"
    text = source(args, "picotron", "picotron/process_group_manager.py")
    me = SimpleNamespace(world_size=16)
    sizes = {"tp_size": 3, "cp_size": 1, "pp_size": 1, "dp_size": 4}
    world = fragment(text, "assert self.world_size", self=me, **sizes)
    record(name, "product of degrees = world", {"world": 16, **sizes}, world, statement=True)
    text = source(args, "picotron", "picotron/model.py")
    for tp, check in ((3, "config.num_attention_heads %"), (16, "config.num_key_value_heads %")):
        pgm = SimpleNamespace(process_group_manager=SimpleNamespace(tp_world_size=tp))
        config = SimpleNamespace(num_attention_heads=32, num_key_value_heads=8)
        heads = fragment(text, f"assert {check}", pgm=pgm, config=config)
        condition = "n_heads % tp" if tp == 3 else "n_kv_heads % tp"
        record(name, condition, {"n_heads": 32, "n_kv_heads": 8, "tp": tp}, heads, statement=True)


def colossalai(args: Namespace) -> None:
    name = "colossalai"
    text = source(args, "colossalai", "colossalai/nn/layer/utils.py")
    record(name, "dimension % tp", {"n": 4096, "tp": 3}, extract(text, "divide")["divide"], 4096, 3)
    text = source(args, "colossalai", "colossalai/shardformer/policies/llama.py")
    heads = fragment(text, "num_q_heads % tp_size == 0", num_q_heads=32, tp_size=3)
    record(name, "n_heads % tp", {"n_heads": 32, "tp": 3}, heads, statement=True)
    groups = fragment(text, "num_kv_heads >= tp_size", num_kv_heads=8, tp_size=16)
    record(name, "n_kv_heads % tp", {"n_kv_heads": 8, "tp": 16}, groups, statement=True)
    text = source(args, "colossalai", "colossalai/shardformer/layer/utils.py")
    group = SimpleNamespace(get_world_size=lambda group: 16, get_rank=lambda group: 0)
    split = extract(text, "split_batch_zigzag", dist=group, torch=torch)["split_batch_zigzag"]
    for seq in (8200, 32):  # 32 = 2*sp divides, and is refused all the same
        numbers = {"seq": seq, "sp": 16}
        record(name, "seq % (2*sp), more than 2*sp", numbers, split, torch.empty(1, seq), None)
    text = source(args, "colossalai", "colossalai/tensor/d_tensor/misc.py")
    errors = extract(text, "LayoutException", "ShardingNotDivisibleError")
    text = source(args, "colossalai", "colossalai/tensor/d_tensor/layout.py")
    mesh = SimpleNamespace(logical_mesh_id=None, shape=(3,))
    error = errors["ShardingNotDivisibleError"]
    layout = extract(text, "Layout", ShardingNotDivisibleError=error)["Layout"]
    spec = SimpleNamespace(dim_partition_dict={0: [0]})
    numbers = {"shape": [4096, 4096], "dim": 0, "tp": 3}
    record(name, "weight dimension % tp", numbers, layout, mesh, spec, torch.Size([4096, 4096]))
    text = source(args, "colossalai", "colossalai/checkpoint_io/utils.py")
    find = extract(text, "search_tp_partition_dim")["search_tp_partition_dim"]
    shapes = torch.Size([16064, 8192]), torch.Size([128256, 8192])
    numbers = {"local": list(shapes[0]), "whole": list(shapes[1]), "tp": 8}
    record(name, "optimizer state of a padded vocabulary", numbers, find, *shapes, 8)


def vllm(args: Namespace) -> None:
    text = source(args, "vllm", "vllm/distributed/utils.py")
    cut = extract(text, "divide", "ensure_divisibility")["divide"]
    record("vllm", "dimension % tp", {"n": 4096, "tp": 3}, cut, 4096, 3)
    for partition in ("32,32,31", "32,32,31,30"):
        envs = SimpleNamespace(VLLM_PP_LAYER_PARTITION=partition)
        indices = extract(text, "get_pp_indices", envs=envs)["get_pp_indices"]
        numbers = {"n_layers": 126, "pp": 4, "VLLM_PP_LAYER_PARTITION": partition}
        record("vllm", "layer partition", numbers, indices, 126, 0, 4)
    text = source(args, "vllm", "vllm/config/model.py")
    config = SimpleNamespace(tensor_parallel_size=3)
    heads = fragment(
        text,
        "total_num_attention_heads % tensor_parallel_size",
        total_num_attention_heads=32,
        tensor_parallel_size=config.tensor_parallel_size,
    )
    record("vllm", "n_heads % tp", {"n_heads": 32, "tp": 3}, heads, statement=True)


class _Projection(nn.Module):
    """One k projection as in torchtitan's model at the time of its issue #932, on meta."""

    def __init__(self, dim: int, out: int) -> None:
        super().__init__()
        self.wk = nn.Linear(dim, out, bias=False, device="meta")

    def forward(self, x: torch.Tensor, head_dim: int) -> torch.Tensor:
        return self.wk(x).view(x.shape[0], x.shape[1], -1, head_dim)


def torch_tensors() -> None:
    with ranks(16):
        shape = {"world": 16, "mesh": [4, 8]}
        names = ("dp", "tp")
        record(
            "torch",
            "mesh > world",
            shape,
            lambda: init_device_mesh("cpu", (4, 8), mesh_dim_names=names),
        )
        mesh = init_device_mesh("cpu", (16,), mesh_dim_names=("tp",))
        for local in (True, False):
            plan = {"wk": ColwiseParallel(use_local_output=local)}
            model = parallelize_module(_Projection(4096, 1024), mesh, plan)
            x = torch.empty(1, 8192, 4096, device="meta")
            numbers = {"seq": 8192, "n_kv_heads": 8, "head_dim": 128, "tp": 16}
            numbers["use_local_output"] = local
            record("torch", "n_kv_heads % tp, view per head", numbers, model, x, 128)
    with ranks(8):
        mesh = init_device_mesh("cpu", (8,), mesh_dim_names=("tp",))
        plan = {"0": ColwiseParallel(), "1": RowwiseParallel()}
        mlp = nn.Sequential(nn.Linear(8, 100, bias=False), nn.Linear(100, 8, bias=False)).to("meta")
        mlp = parallelize_module(mlp, mesh, plan)
        x = torch.empty(2, 8, device="meta")
        record("torch", "ffn % tp, default plan", {"ffn": 100, "tp": 8}, mlp, x)
        odd = nn.Linear(7, 10, bias=False, device="meta")
        fsdp = init_device_mesh("cpu", (8,), mesh_dim_names=("fsdp",))
        numbers = {"shape": [10, 7], "dim": 1, "world": 8}
        by = {"mesh": fsdp, "shard_placement_fn": lambda parameter: Shard(1)}
        record("torch", "fsdp uneven, not dim 0", numbers, fully_shard, odd, **by)
    balancer = _load_balancer._HeadTailLoadBalancer(20, 8, "cpu")._generate_indices
    record("torch", "seq % (2*cp)", {"seq": 20, "cp": 8}, balancer)


def torch_schedules() -> None:
    with ranks(4):

        def stages(*indices: int) -> list[PipelineStage]:
            count = 4 * len(indices)
            return [PipelineStage(nn.Identity(), i, count, torch.device("cpu")) for i in indices]

        one, two, zbv = stages(0)[0], stages(0, 4), stages(0, 7)
        numbers = {"microbatches": 2, "stages": 4}
        record("torch", "1F1B: microbatches < stages", numbers, schedules.Schedule1F1B, one, 2)
        for n in (9, 13):
            numbers = {"microbatches": n, "pp": 4, "stages": 8}
            condition = "Interleaved1F1B: microbatches % rounds"
            record("torch", condition, numbers, schedules.ScheduleInterleaved1F1B, two, n)
        numbers = {"microbatches": 9, "pp": 4, "stages": 8}
        condition = "InterleavedZeroBubble: microbatches % rounds"
        record("torch", condition, numbers, schedules.ScheduleInterleavedZeroBubble, two, 9)
        numbers = {"microbatches": 4, "pp": 4, "stages": 8}
        condition = "DualPipeV: microbatches < stages"
        record("torch", condition, numbers, schedules.ScheduleDualPipeV, zbv, 4)
        numbers = {"pp": 4, "stages": 4}
        condition = "ZBVZeroBubble: stages per rank"
        record("torch", condition, numbers, schedules.ScheduleZBVZeroBubble, [one], 8)
    find = schedules.get_schedule_class
    record("torch", "unknown schedule", {"schedule": "1F1C"}, find, "1F1C")


if __name__ == "__main__":
    args = arguments(__doc__, *TOOLS)
    fairscale()
    llama3(args)
    megatron_core()
    megatron(args)
    torchtitan(args)
    picotron(args)
    colossalai(args)
    vllm(args)
    torch_tensors()
    torch_schedules()
    for case in CASES:
        if re.search(r"0x[0-9a-f]{6,}|/site-packages/", case["message"]):
            raise SystemExit(f"an address or a path in the message of {case['condition']}")
    write(
        __file__,
        CASES,
        packages=("fairscale", "megatron-core", "torch"),
        tools=TOOLS,
    )

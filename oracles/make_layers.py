"""layers.json: how many layers each pipeline stage gets, by the frameworks' own functions.

    pip install torch==2.13.0 megatron-core==0.16.1 (--no-deps, with packaging and pyyaml)
    git clone pytorch/torchtitan, huggingface/picotron, hpcaitech/ColossalAI (commits in fixture.py)
    pip download --no-deps vllm==0.33.0
    python oracles/make_layers.py --torchtitan PATH --picotron PATH --colossalai PATH \\
        --vllm WHEEL

torchtitan `_generate_llm_fqn_per_model_part` (weights 1 and 1, its defaults); picotron
`PipelineParallel.distribute_layers`; ColossalAI `PipelineStageManager.distribute_layers`; vLLM
`get_pp_indices`; Megatron-core `get_num_layers_to_build` behind a real `TransformerConfig`, also
with the embedding and the loss counted as a layer each ("account": true). `counts` lists the
stages in model order, pp * v of them (stage s runs on rank s mod pp); else the refusal.
"""

import logging
import warnings
from argparse import Namespace
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from fixture import arguments, extract, outcome, source, write

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from megatron.core.transformer.transformer_block import get_num_layers_to_build
    from megatron.core.transformer.transformer_config import TransformerConfig

SIZES = [(32, pp) for pp in range(1, 9)]
SIZES += [(80, 8), (80, 16), (126, 4), (126, 8), (126, 16), (28, 4), (126, 7), (4, 6), (4, 8)]
# Every remainder of 2 to 6 stages: an odd one over an even number of stages has a side to lean to.
SIZES += [(layers, pp) for pp in range(2, 7) for layers in range(33, 33 + pp) if layers % pp]
VIRTUAL = [(32, 4, 2), (80, 8, 2), (126, 16, 2), (126, 16, 8), (126, 16, 9), (32, 8, 4), (32, 8, 5)]


def torchtitan(args: Namespace) -> Callable[[int, int], list[int]]:
    text = source(args, "torchtitan", "torchtitan/distributed/pipeline_parallel.py")
    split = extract(text, "_generate_llm_fqn_per_model_part")["_generate_llm_fqn_per_model_part"]

    def counts(layers: int, stages: int) -> list[int]:
        parts = split(stages, layers, 1, 1)
        return [sum(name.startswith("layers.") for name in part) for part in parts]

    return counts


def picotron(args: Namespace) -> Callable[[int, int], list[int]]:
    text = source(args, "picotron", "picotron/pipeline_parallel/pipeline_parallel.py")
    me = SimpleNamespace()
    real = extract(text, "distribute_layers", pgm=SimpleNamespace(process_group_manager=me))

    def counts(layers: int, stages: int) -> list[int]:
        me.pp_world_size, held = stages, []
        for me.pp_rank in range(stages):
            held.append(len(real["distribute_layers"](None, layers)))
        return held

    return counts


def colossalai(args: Namespace) -> Callable[[int, int, int], list[int]]:
    text = source(args, "colossalai", "colossalai/pipeline/stage_manager.py")
    split = extract(text, "distribute_layers")["distribute_layers"]

    def counts(layers: int, pp: int, chunks: int) -> list[int]:
        return split(SimpleNamespace(num_layers_per_stage=None), layers, pp, chunks)

    return counts


def vllm(args: Namespace) -> Callable[[int, int], list[int]]:
    text = source(args, "vllm", "vllm/distributed/utils.py")
    no_override = SimpleNamespace(VLLM_PP_LAYER_PARTITION=None)
    logger = logging.getLogger("vllm")
    given = extract(text, "get_pp_indices", envs=no_override, logger=logger)

    def counts(layers: int, stages: int) -> list[int]:
        spans = [given["get_pp_indices"](layers, rank, stages) for rank in range(stages)]
        return [end - start for start, end in spans]

    return counts


def megatron(layers: int, pp: int, chunks: int, account: bool) -> list[int]:
    config = TransformerConfig(
        num_layers=layers,
        hidden_size=64,
        num_attention_heads=8,
        pipeline_model_parallel_size=pp,
        virtual_pipeline_model_parallel_size=chunks if chunks > 1 else None,
        account_for_embedding_in_pipeline_split=account,
        account_for_loss_in_pipeline_split=account,
        pipeline_dtype=torch.bfloat16,
    )
    stages = [(chunk if chunks > 1 else None, rank) for chunk in range(chunks) for rank in range(pp)]
    return [get_num_layers_to_build(config, chunk, rank) for chunk, rank in stages]


if __name__ == "__main__":
    args = arguments(__doc__, "torchtitan", "picotron", "colossalai", "vllm")
    titan, pico, colossal, vllm_counts = (f(args) for f in (torchtitan, picotron, colossalai, vllm))
    cases: list[dict[str, Any]] = []
    for layers, pp, v in [(layers, pp, 1) for layers, pp in SIZES] + VIRTUAL:
        size = {"layers": layers, "pp": pp, "v": v}
        runs: list[tuple[str, Callable[..., list[int]], tuple[Any, ...], dict[str, Any]]] = [
            ("torchtitan", titan, (layers, pp * v), {}),
            ("colossalai", colossal, (layers, pp, v), {}),
            ("megatron", megatron, (layers, pp, v, False), {"account": False}),
            ("megatron", megatron, (layers, pp, v, True), {"account": True}),
        ]
        if v == 1:  # these two have no virtual stages
            runs += [("picotron", pico, (layers, pp), {}), ("vllm", vllm_counts, (layers, pp), {})]
        for tool, call, given, more in runs:
            cases.append({"tool": tool, **size, **more, **outcome("counts", call, *given)})
    cases.sort(key=lambda case: case["tool"])
    write(
        __file__,
        cases,
        packages=("megatron-core", "torch"),
        tools=("torchtitan", "picotron", "colossalai", "vllm"),
    )

"""genuine.json: what fairscale and torchtitan raise under wrong layouts, word for word.

    pip install torch==2.13.0 fairscale==0.4.13 torchtitan==0.3.0 (--no-deps for the last two, and with
        them spmd_types==0.2.3 tyro docstring_parser typeguard shtab triton)
    python oracles/make_genuine.py

Each case: framework, model, layout and seq (what was run), categories (of the fault that was injected, in
the words of llamapar.diagnosis), error, message, and code (the last lines of source of the traceback). One
process, no GPU: torch's fake process group and the meta device, the sizes of the real models.

fairscale: a Llama is built of its parallel layers in the order of meta-llama/llama3's model.py, until one
refuses. torchtitan: its own Llama 3, by its own check; then one layer of it run past that check, as users of
spmd_backend="spmd_types" and "partial_dtensor" would see it without the check; degrees that do not multiply
out; stages that do not divide.
"""

import copy
import itertools
import logging
import traceback
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from fixture import ranks, write

warnings.simplefilter("ignore")
from fairscale.nn.model_parallel import initialize as fairscale_groups  # noqa: E402
from fairscale.nn.model_parallel import layers as fairscale_layers  # noqa: E402
from fairscale.nn.model_parallel.layers import (  # noqa: E402
    ColumnParallelLinear,
    RowParallelLinear,
    VocabParallelEmbedding,
)
from torchtitan.config import ParallelismConfig  # noqa: E402
from torchtitan.distributed import ParallelDims, parallel_dims, pipeline_parallel  # noqa: E402
from torchtitan.models.llama3 import llama3_configs  # noqa: E402
from torchtitan.models.llama3.sharding import set_llama3_sharding_config  # noqa: E402

logging.disable(logging.WARNING)
parallel_dims.device_type = "cpu"
fairscale_layers._initialize_affine_weight = lambda *given, **named: None  # sizes are checked before it

HEADS, KV, FFN = "heads_not_divisible", "kv_heads_lt_tp", "hidden_or_ffn_not_divisible"
VOCAB, WORLD, LAYERS = "vocab_not_divisible", "world_size_product", "layers_not_divisible_pp"
MODELS = {  # name: dim, heads, KV heads, FFN, vocabulary, layers
    "llama3-8b": (4096, 32, 8, 14336, 128256, 32),
    "llama3-70b": (8192, 64, 8, 28672, 128256, 80),
    "llama3.1-405b": (16384, 128, 8, 53248, 128256, 126),
    "llama3.2-1b": (2048, 32, 8, 8192, 128256, 16),
    "llama3.2-3b": (3072, 24, 8, 8192, 128256, 28),
    "llama2-13b": (5120, 40, 40, 13824, 32000, 40),
    "llama2-7b": (4096, 32, 32, 11008, 32000, 32),
}
FLAVORS = {
    "llama3-8b": "8B",
    "llama3-70b": "70B",
    "llama3.1-405b": "405B",
    "llama3.2-1b": "1B",
    "llama3.2-3b": "3B",
}
CASES: list[dict[str, Any]] = []


def record(framework: str, model: str, layout: dict[str, int], call: Callable[[], Any], *categories: str,
           **given: int) -> None:  # fmt: skip
    """One case, if the call fails."""
    try:
        call()
    except ImportError:
        raise
    except Exception as error:
        code = [frame.line or "" for frame in traceback.extract_tb(error.__traceback__)][-3:]
        known = {"framework": framework, "model": model, "layout": layout, **given}
        told = {"categories": categories, "error": type(error).__name__, "message": str(error)[:1500]}
        CASES.append({**known, **told, "code": code})


# -- fairscale -------------------------------------------------------------------------------------


def build(model: str, part: int) -> None:
    """The first `part` parallel layers of Meta's Llama."""
    dim, heads, kv_heads, ffn, vocab, _ = MODELS[model]
    size = dim // heads
    parts: list[Callable[[], Any]] = [
        lambda: VocabParallelEmbedding(vocab, dim),
        lambda: ColumnParallelLinear(dim, heads * size, bias=False, gather_output=False),
        lambda: ColumnParallelLinear(dim, kv_heads * size, bias=False, gather_output=False),
        lambda: RowParallelLinear(heads * size, dim, bias=False, input_is_parallel=True),
        lambda: ColumnParallelLinear(dim, ffn, bias=False, gather_output=False),
    ]
    with torch.device("meta"):
        parts[part]()


def fairscale() -> None:
    blamed = ((VOCAB,), (HEADS, FFN), (KV,), (HEADS, FFN), (FFN,))
    for model, tp in itertools.product(MODELS, (3, 5, 6, 7, 12, 20, 24, 48)):
        with ranks(tp):
            fairscale_groups.initialize_model_parallel(tp)
            for part, categories in enumerate(blamed):  # Meta's order: the first that refuses ends it
                before = len(CASES)
                record("fairscale", model, {"tp": tp}, lambda m=model, p=part: build(m, p), *categories)
                if len(CASES) > before:
                    break
            fairscale_groups.destroy_model_parallel()
    for world, tp in ((8, 3), (16, 6), (4, 8), (12, 5)):
        with ranks(world):
            call = lambda tp=tp: fairscale_groups.initialize_model_parallel(tp)  # noqa: E731
            record("fairscale", "llama3-8b", {"tp": tp}, call, WORLD, world=world)


# -- torchtitan ------------------------------------------------------------------------------------


def config(model: str) -> Any:
    """torchtitan's configuration of the model with one layer."""
    made = copy.deepcopy(llama3_configs[FLAVORS[model]](attn_backend="flex"))
    made.layers = made.layers[:1]
    return made


def forward(model: str, tp: int, seq: int, backend: str) -> None:
    """One layer of torchtitan's Llama 3 on rank 0, without its check of the heads."""
    made = config(model)
    set_llama3_sharding_config(made, enable_sp=False)
    with ranks(tp):
        dims = ParallelDims(1, 1, 1, tp, 1, 1, tp, spmd_backend=backend)
        dims.build_mesh()
        with torch.device("meta"):
            layer = made.build()
        layer.parallelize(dims)
        tokens = torch.zeros(1, seq, dtype=torch.int64, device="meta")
        layer(tokens, torch.arange(seq, device="meta").unsqueeze(0))


def torchtitan() -> None:
    for model, tp in itertools.product(FLAVORS, (3, 5, 6, 12, 16, 24, 32, 64)):
        _, heads, kv_heads, _, _, layers = MODELS[model]
        category = HEADS if heads % tp else KV
        if kv_heads % tp:
            job = SimpleNamespace(parallelism=ParallelismConfig(tensor_parallel_degree=tp))
            check = lambda m=model, j=job: config(m).update_from_config(config=j)  # noqa: E731
            record("torchtitan", model, {"tp": tp}, check, category)
        for backend, seq in (("spmd_types", 8192), ("partial_dtensor", 2048)):
            if kv_heads % tp:  # one weight holds Q, K and V by KV heads: that these divide is what is needed
                run = lambda m=model, t=tp, s=seq, b=backend: forward(m, t, s, b)  # noqa: E731
                record("torchtitan", model, {"tp": tp}, run, KV, HEADS, seq=seq)
        pp = tp
        if layers % pp:
            stages = lambda m=model, pp=pp: pipeline_parallel._get_pipeline_metadata(  # noqa: E731
                SimpleNamespace(pp=pp),
                ParallelismConfig(pipeline_parallel_degree=pp, pipeline_parallel_layers_per_stage=1),
                SimpleNamespace(layers=llama3_configs[FLAVORS[m]](attn_backend="flex").layers),
            )
            record("torchtitan", model, {"pp": pp}, stages, LAYERS)
    for tp, cp, pp, dp, world in ((8, 1, 1, 2, 8), (4, 2, 2, 1, 8), (8, 16, 16, 4, 16384), (3, 1, 1, 1, 8)):
        dims = lambda t=tp, c=cp, p=pp, d=dp, w=world: ParallelDims(1, d, c, t, p, 1, w)  # noqa: E731
        record("torchtitan", "llama3-8b", {"tp": tp, "cp": cp, "pp": pp, "dp": dp}, dims, WORLD, world=world)


if __name__ == "__main__":
    fairscale()
    torchtitan()
    write(__file__, CASES, packages=("torch", "fairscale", "torchtitan", "spmd_types"))

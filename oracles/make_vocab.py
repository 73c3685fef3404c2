"""vocab.json: which vocabulary rows a TP rank owns, and how frameworks pad the vocabulary first.

    pip install torch==2.13.0 fairscale==0.4.13 megatron-core==0.16.1 (--no-deps for the last two)
    git clone NVIDIA/Megatron-LM and hpcaitech/ColossalAI (commits in fixture.py)
    pip download --no-deps vllm==0.33.0
    python oracles/make_vocab.py --megatron PATH --colossalai PATH --vllm WHEEL

tool "fairscale": `VocabUtility.vocab_range_from_global_vocab_size`, unpadded, or its refusal.
tool "megatron": the size from Megatron-LM's `vocab_size_with_padding` and, on that size,
Megatron-core's `VocabUtility` ranges. tool "colossalai": the real constructor of
`VocabParallelEmbedding1D` with the process group replaced by a number. tool "vllm":
`pad_vocab_size` and `vocab_range_from_global_vocab_size`. `divisible_by` is the setting that the
padding starts from. `ranges` are [first row, row after the last] by rank.
"""

import math
import warnings
from argparse import Namespace
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from fairscale.nn.model_parallel.utils import VocabUtility as FairscaleVocab

from fixture import arguments, extract, outcome, source, write

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from megatron.core.tensor_parallel.utils import VocabUtility as MegatronVocab

VOCABS = (128256, 32000, 152064)
POWERS = (1, 2, 4, 8, 16, 32, 64)


def ranges(split: Callable[..., Any], vocab: int, tp: int) -> list[list[int]]:
    return [list(split(vocab, rank, tp)) for rank in range(tp)]


def fairscale(vocab: int, tp: int) -> dict[str, Any]:
    split = FairscaleVocab.vocab_range_from_global_vocab_size
    return {
        "tool": "fairscale",
        "vocab": vocab,
        "tp": tp,
        **outcome("ranges", ranges, split, vocab, tp),
    }


def megatron(args: Namespace) -> Callable[[int, int, int], dict[str, Any]]:
    path = "megatron/core/tokenizers/utils/build_tokenizer.py"
    pad = extract(source(args, "megatron", path), "vocab_size_with_padding", math=math)
    split = MegatronVocab.vocab_range_from_global_vocab_size

    def run(vocab: int, tp: int, multiple: int) -> dict[str, Any]:
        asked = SimpleNamespace(make_vocab_size_divisible_by=multiple, tensor_model_parallel_size=tp, rank=1)
        padded = pad["vocab_size_with_padding"](vocab, asked)
        return {"padded": padded, "ranges": ranges(split, padded, tp)}

    return run


class _Padded:
    """Stands in for ColossalAI's PaddingParallelModule: keeps what the real one is handed."""

    def __init__(self, new: int, old: int, weight: torch.Tensor) -> None:
        self.new, self.old, self.weight = new, old, weight


def colossalai(args: Namespace) -> Callable[[int, int, int], dict[str, Any]]:
    divide = extract(source(args, "colossalai", "colossalai/nn/layer/utils.py"), "divide")["divide"]
    where = SimpleNamespace()  # the rank and the size that the constructor asks its group for
    given = {
        "PaddingParallelModule": _Padded,
        "divide": divide,
        "dist": SimpleNamespace(get_world_size=lambda group: where.tp, get_rank=lambda group: where.rank),
        "init": SimpleNamespace(normal_=lambda: None),
        "torch": torch,
        "create_randomizer_with_offset": lambda seed, process_group: None,
        "is_distributed_tensor": lambda weight: True,  # sharding the weight is not the question
    }
    text = source(args, "colossalai", "colossalai/shardformer/layer/embedding.py")
    name = "VocabParallelEmbedding1D"
    real = extract(text, name, **given)[name]

    def run(vocab: int, tp: int, multiple: int) -> dict[str, Any]:
        held, padded = [], 0
        for rank in range(tp):
            where.tp, where.rank = tp, rank
            weight = torch.nn.Parameter(torch.empty(vocab, 1, device="meta"))
            made = real(vocab, 1, weight=weight, make_vocab_size_divisible_by=multiple)
            held.append([made.vocab_start_index, made.vocab_end_index])
            padded = made.new
        return {"padded": padded, "ranges": held}

    return run


def vllm(args: Namespace) -> Callable[[int, int, int], dict[str, Any]]:
    utils = source(args, "vllm", "vllm/distributed/utils.py")
    divide = extract(utils, "divide", "ensure_divisibility")["divide"]
    real = extract(
        source(args, "vllm", "vllm/model_executor/layers/vocab_parallel_embedding.py"),
        "DEFAULT_VOCAB_PADDING_SIZE",
        "pad_vocab_size",
        "vocab_range_from_per_partition_vocab_size",
        "vocab_range_from_global_vocab_size",
        divide=divide,
    )

    def run(vocab: int, tp: int, multiple: int) -> dict[str, Any]:
        padded = real["pad_vocab_size"](vocab, multiple)
        return {
            "padded": padded,
            "ranges": ranges(real["vocab_range_from_global_vocab_size"], padded, tp),
        }

    return run


if __name__ == "__main__":
    args = arguments(__doc__, "megatron", "colossalai", "vllm")
    cases = [fairscale(vocab, tp) for vocab in VOCABS for tp in (*POWERS, 3, 6, 12)]
    cases += [fairscale(128257, tp) for tp in (1, 16)]
    padders = [("megatron", megatron, 128), ("colossalai", colossalai, 64), ("vllm", vllm, 64)]
    for tool, make, default in padders:
        pad = make(args)
        asked = [(vocab, tp, default) for vocab in VOCABS for tp in POWERS]
        if tool == "colossalai":  # 32 is the setting with which its issue #6108 goes away
            asked += [(128256, tp, 32) for tp in POWERS]
        for vocab, tp, multiple in asked:
            case = {"tool": tool, "vocab": vocab, "tp": tp, "divisible_by": multiple}
            cases.append(case | pad(vocab, tp, multiple))
    write(
        __file__,
        cases,
        packages=("fairscale", "megatron-core", "torch"),
        tools=("megatron", "colossalai", "vllm"),
    )

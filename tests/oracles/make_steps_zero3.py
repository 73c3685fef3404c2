"""steps_zero3.json: ZeRO 3 beside tensor and pipeline parallelism on the same GPUs, measured by one paper.

    python tests/oracles/make_steps_zero3.py

Table 2 of arXiv:2104.04473, read in a text copy of the paper. Its FLOP/s are the hardware's, with all
recomputation, as in its table 1. Rows have the fields of steps_published.json. The table does not say how
many virtual stages a rank has; one is taken. All are
"seen": the term of parameters gathered one by one was made with them in sight.
"""

from __future__ import annotations

from typing import Any

from fixture import write_tables

COMMAND = "python tests/oracles/make_steps_zero3.py"
SOURCE = "arXiv:2104.04473 table 2 and section 5.2: ZeRO 3 by DeepSpeed's Python library in Megatron-LM"
DIMS = {"175b": (12288, 96, 96), "530b": (20480, 105, 128)}
ZERO_3 = (
    *(("175b", 384, 1536, 4, 144), ("175b", 768, 1536, 2, 88), ("175b", 1536, 1536, 1, 44)),
    *(("530b", 640, 2560, 4, 138), ("530b", 1120, 2240, 2, 98), ("530b", 2240, 2240, 1, 48)),
)
"""Model, GPUs, sequences of a step, micro-batch, TFLOP/s a GPU."""
TP_PP = (
    *(("175b", 384, 1536, 12, 153), ("175b", 768, 1536, 12, 149), ("175b", 1536, 1536, 12, 141)),
    *(("530b", 560, 2240, 35, 171), ("530b", 1120, 2240, 35, 167), ("530b", 2240, 2240, 35, 159)),
)
"""Model, GPUs, sequences of a step, pipeline ranks, TFLOP/s a GPU; a micro-batch is one sequence."""


def row(way: str, model: str, gpus: int, batch: int, rate: int, **said: Any) -> dict[str, Any]:
    """A row of steps_published.json."""
    dim, layers, heads = DIMS[model]
    dims = {"hidden": dim, "layers": layers, "heads": heads, "kv_heads": heads, "ffn": 4 * dim}
    dims |= {"vocab": 51200, "tied_embeddings": True, "mlp": "gelu"}
    said |= {"gpus": gpus, "seq_len": 2048, "global_batch_seqs": batch, "tflops_per_gpu": rate}
    said |= {"recompute": "full", "precision": "fp16 mixed", "half": "seen"}
    return {"id": f"sc21-t2-{way}-{model}-{gpus}", "model": f"GPT-3 {model}", "dims": dims, **said}


def main() -> None:
    rows = [
        row("zero3", *ways, rate, tp=1, pp=1, dp=ways[1], micro_batch=micro, zero=3, source=SOURCE)
        for *ways, micro, rate in ZERO_3
    ]
    rows += [
        row("tp-pp", *ways, rate, tp=8, pp=pp, dp=ways[1] // 8 // pp, micro_batch=1, source=SOURCE)
        for *ways, pp, rate in TP_PP
    ]
    write_tables("steps_zero3.json", COMMAND, {"rows": rows})


if __name__ == "__main__":
    main()

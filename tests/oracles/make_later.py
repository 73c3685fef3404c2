"""peaks_later.json: measured peaks written down after those of make_fresh.py, before any was predicted.

    python tests/oracles/make_later.py

Left out: attention that is no softmax or has a gate, models of fewer than a billion parameters,
optimizers on the CPU or with states of 8 bits, logs that end before a backward has met Adam's states, and
further runs of one configuration. `half` is a hash of the row's name: the first is there to learn from.
"""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from make_fresh import LLAMA3_8B, row

HERE = Path(__file__).parent
SIMUMAX = {"repo": "MooreThreads/SimuMax", "commit": "4dcaae513ba7679d56c116a17cd4a691ec41e252"}
GOLDEN = {"repo": "NVIDIA/Megatron-LM", "commit": "d98e8a64ddf34856e74b24714e3bedb2f5a39553"}
ATTENTION = {
    "repo": "elena-lyulina/Megatron-LM-Attention-Benchmark",
    "commit": "4e1ee1fe110a59d9d830613690f6c164a0e79013",
}
CLOCK = {
    "repo": "stark-sim/megatron-deepspeed-lock-clock",
    "commit": "f3bf150e188e74e8ecc332fe36e67369fa916603",
}
AUTOMODEL = {"repo": "NVIDIA-NeMo/Automodel", "commit": "36044ad3d139363fb6c73c24af2e7c6b65ec52f6"}

LLAMA3_1B = {"hidden": 2048, "layers": 16, "heads": 32, "kv_heads": 8, "ffn": 8192, "vocab": 128256}
LLAMA3_1B |= {"tied": True}
LLAMA3_70B_12 = {"hidden": 8192, "layers": 12, "heads": 64, "kv_heads": 8, "ffn": 28672, "vocab": 128256}
LLAMA3_405B_4 = {"hidden": 16384, "layers": 4, "heads": 128, "kv_heads": 16, "ffn": 53248, "vocab": 128256}
QWEN25_7B = {"hidden": 3584, "layers": 28, "heads": 28, "kv_heads": 4, "ffn": 18944, "vocab": 152064}


def simumax() -> Iterator[dict[str, Any]]:
    """Runs of Megatron-LM, `real alloc GiB`; the table's other configurations are in peaks_measured.json."""
    same = {"source": SIMUMAX | {"path": "docs/b200/b200_release_v1.2_summary.json"}, "counter": "allocated"}
    same |= {"trainer": "Megatron-LM 23e00ed0 (run by SimuMax authors)", "recompute": "none"}
    same |= {"hardware": "B200-SXM (180GB class)"}
    runs = (
        ("llama3_70b_tp2_pp1_dp4_l12", LLAMA3_70B_12, 2, 1, 1, 4, 4096, 60.68),
        ("llama3_405b_l4_tp1_pp2_dp4", LLAMA3_405B_4, 1, 1, 2, 4, 4096, 87.08),
        ("llama3_405b_l4_tp2_pp1_dp4", LLAMA3_405B_4, 2, 1, 1, 4, 4096, 81.59),
        ("llama3_70b_l12_tp1_cp8_pp1_dp1_seq32768", LLAMA3_70B_12, 1, 8, 1, 1, 32768, 104.51),
        ("llama3_405b_l4_tp2_cp4_pp1_dp1_seq32768", LLAMA3_405B_4, 2, 4, 1, 1, 32768, 87.03),
    )
    for name, dims, tp, cp, pp, dp, seq_len, gib in runs:
        more = same | {"cp": cp, "seq_len": seq_len, "global_batch_seqs": 4 * dp}
        yield row(f"simumax-b200-{name}", dims, (tp, pp, dp), gib, **more)


def golden() -> Iterator[dict[str, Any]]:
    """The largest mem-max-allocated-bytes of 25 steps; a GPT with GELU, as in peaks_measured.json."""
    path = "tests/functional_tests/test_cases/gpt/gpt3_7b_tp4_pp1_memory_speed/golden_values_dev_dgx_"
    dims = LLAMA3_8B | {"ffn": 16384, "vocab": 131073, "mlp": "gelu (2 matrices)"}
    for gpu, peak in (("a100", 58188115968), ("gb200", 58217476096), ("h100", 57143791616)):
        more = {"source": GOLDEN | {"path": f"{path}{gpu}.json"}, "trainer": "Megatron-LM", "seq_len": 8192}
        more |= {"counter": "allocated", "recompute": "none", "micro_batch": 2, "global_batch_seqs": 8}
        more |= {"sequence_parallel": False, "peak_mem_unit": "bytes"}
        yield row(f"megatron-golden-7b-tp4-{gpu}", dims, (4, 1, 2), peak, **more)


def attention() -> Iterator[dict[str, Any]]:
    """Rank 0's `max allocated` in MB of 2**20 after two steps or more, of logs that print every argument.

    The last has no cross_entropy_loss_fusion. That compiles the exponentials (core/fusions/
    fused_cross_entropy.py @d98e8a64dd), so that they stand beside the logits: logs 3108434 and 3108079 differ
    in nothing else, and by one such tensor, 12,033 MB. This was read after the rows' first sight.
    """
    runs = (
        ("1729544", 1, 1, 2048, 2, 80, 32896, 28940.23, "bfloat16"),
        ("1861140", 1, 40, 8192, 2, 80, 128256, 45008.92, "bfloat16"),
        ("2340717", 2, 28, 8192, 4, 336, 128256, 43476.05, "float32"),
        ("2403450", 1, 56, 8192, 2, 336, 128256, 47194.25, "float32"),
        ("3108456", 1, 32, 8192, 3, 288, 128256, 54933.75, "float32"),
    )
    for log, tp, dp, seq_len, micro, batch, vocab, peak, grads in runs:
        more = {"source": ATTENTION | {"path": f"attn_bench/logs/{log}.out"}, "trainer": "Megatron-LM"}
        more |= {"counter": "allocated", "recompute": "none", "seq_len": seq_len, "micro_batch": micro}
        more |= {"global_batch_seqs": batch, "grad_dtype": grads, "peak_mem_unit": "MiB"}
        more |= {"loss": "vocab_parallel"} if log != "3108456" else {}
        yield row(f"megatron-1b-log-{log}", LLAMA3_1B | {"vocab": vocab}, (tp, 1, dp), peak, **more)


def clock() -> Iterator[dict[str, Any]]:
    """Rank 0's `max allocated` in MB of 2**20, so the first stage's; attention is not fused there.

    After a single step: its backward has not met Adam's states, as was seen after the rows' first sight.
    """
    runs = (
        ("dual-node-pilot/dual16_tp1pp4dp4_base20_20260320/node0.log", 1, 4, 4, 13790.05),
        ("dual-node-pilot/dual16_tp2pp2dp4_base20_20260320/node0.log", 2, 2, 4, 12007.17),
        ("dual-node-pilot/dual16_tp2pp4dp2_base50_20260320/node0.log", 2, 4, 2, 11651.62),
        ("dual-node-pilot/dual8_tp2pp4dp1_base1_r1_free4_zero1_20260319/node0.log", 2, 4, 1, 20907.01),
        ("dual16_tp4pp1dp4_20260325.log", 4, 1, 4, 12506.68),
        ("dual8_tp4pp1dp2_collect_20260402.log", 4, 1, 2, 20653.22),
        ("dual32_run_v2.log", 4, 1, 8, 10825.77),
    )
    for path, tp, pp, dp, peak in runs:
        more = {"source": CLOCK | {"path": f".context/{path}"}, "trainer": "Megatron-DeepSpeed"}
        more |= {"counter": "allocated", "recompute": "full", "seq_len": 2048, "sequence_parallel": False}
        batch = 8 if tp * pp * dp == 8 else 16 if tp * pp * dp == 16 else 32
        more |= {"global_batch_seqs": batch, "peak_mem_unit": "MiB", "pp_rank": 0}
        yield row(f"megatron-deepspeed-qwen7b-tp{tp}pp{pp}dp{dp}", QWEN25_7B, (tp, pp, dp), peak, **more)


def automodel() -> Iterator[dict[str, Any]]:
    """Table of max_memory_allocated; the row with recomputation alone does not say on how many GPUs."""
    same = {"source": AUTOMODEL | {"path": "docs/guides/gradient-checkpointing.mdx"}, "counter": "allocated"}
    same |= {"trainer": "NeMo Automodel", "micro_batch": 8, "seq_len": 2048, "hardware": "H100 80GB"}
    same |= {"unknown": ["GB vs GiB", "dtype of parameters"]}
    dims = LLAMA3_1B
    yield row("automodel-1b-baseline", dims, (1, 1, 1), 53.03, **same | {"recompute": "none", "zero": 0})
    yield row("automodel-1b-fsdp", dims, (1, 1, 8), 47.59, **same | {"recompute": "none", "zero": 3})
    least = same | {"recompute": "full", "loss": "chunked", "zero": 3}
    yield row("automodel-1b-fsdp-full-fused-loss", dims, (1, 1, 8), 7.30, **least)


def half(name: str) -> str:
    """Which half a row belongs to."""
    return "second" if hashlib.sha256(name.encode()).digest()[0] % 2 else "first"


if __name__ == "__main__":
    rows = [*simumax(), *golden(), *attention(), *clock(), *automodel()]
    rows = [found | {"half": half(found["id"])} for found in rows]
    lines = ",\n".join(json.dumps(found, separators=(",", ":")) for found in rows)
    made = json.dumps({"command": "python tests/oracles/make_later.py"})
    (HERE / "peaks_later.json").write_text(f'{{"made_by": {made},\n"rows": [\n{lines}\n]}}\n')

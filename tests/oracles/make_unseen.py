"""peaks_unseen.json: measured peaks from public sources, written down whole before any of them was predicted.

    python tests/oracles/make_unseen.py

A row was taken where its source tells a model of at least a billion parameters with softmax attention and
SwiGLU, the layout, the sequence and the batch, or a configuration of the source's repository tells them; and
its peak stands after at least two steps of training all parameters, in a message or table that no other
fixture quotes. Left out: further runs of one configuration with the same figure, runs of a fault that the
same source mends, lengths that vary from batch to batch, states of fewer than sixteen bits or on the CPU,
compilers that choose what is kept (thunder, cudagraphs), figures that equal the GPU's size, InternEvo's other
rows, which were looked at when its step was worked out, and what only a picture tells. `words` is what the
source prints.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from make_fresh import LLAMA2_7B, LLAMA3_8B, QWEN25_7B, row

HERE = Path(__file__).parent
TITAN = {"repo": "pytorch/torchtitan", "path": "commit message"}
AO = {"repo": "pytorch/ao", "path": "commit message", "commit": "988c5c978"}
LITGPT = {"repo": "Lightning-AI/litgpt", "commit": "26857050fe3ff627cd714fe92f5838f51a3d5efa"}
THUNDER = {"repo": "Lightning-AI/lightning-thunder"}
SWIFT = {"repo": "modelscope/ms-swift", "commit": "3602360a562313afbf2ef6065fdf61f271a2c5b9"}
PRIME = {"repo": "PrimeIntellect-ai/prime-rl", "commit": "559b44772e471d1538537b8805cc77f3824a5e64"}

TINY_LLAMA = {"hidden": 2048, "layers": 22, "heads": 32, "kv_heads": 4, "ffn": 5632, "vocab": 32000}
LLAMA2_13B = {"hidden": 5120, "layers": 40, "heads": 40, "kv_heads": 40, "ffn": 13824, "vocab": 32000}
QWEN25_14B = {"hidden": 5120, "layers": 48, "heads": 40, "kv_heads": 8, "ffn": 13824, "vocab": 152064}
QWEN25_3B = {"hidden": 2048, "layers": 36, "heads": 16, "kv_heads": 2, "ffn": 11008, "vocab": 151936}
QWEN3_4B = {"hidden": 2560, "layers": 36, "heads": 32, "kv_heads": 8, "head_dim": 128, "ffn": 9728}
QWEN3_4B |= {"vocab": 151936, "tied": True, "qk_norm": True}


def titan() -> Iterator[dict[str, Any]]:
    """torchtitan's own log, `memory`, after two steps or more: max_memory_reserved. One sequence a rank."""
    eight = {
        "selective": "selective (op)",
        "float8": "tensorwise",
        "gathered": "tensorwise, float8 all-gather",
    }
    runs: tuple[tuple[str, str, str, float, dict[str, Any]], ...] = (
        ("996-baseline", "e23bb707d", "2025-03-20", 49.58, {"compile": False}),
        ("996-chunked", "e23bb707d", "2025-03-20", 42.26, {"compile": False, "loss": "chunked"}),
        ("822-always", "5940ddeb5", "2025-02-05", 49.41, {"compile": False}),
        ("822-never", "5940ddeb5", "2025-02-05", 62.18, {"compile": False, "zero": 2}),
        ("808-bf16", "069bae286", "2025-02-27", 47.65, {"compile": True}),
        ("808-rowwise", "069bae286", "2025-02-27", 47.77, {"compile": True, "float8": "rowwise"}),
        ("808-gathered", "069bae286", "2025-02-27", 47.32, {"compile": True, "float8": eight["gathered"]}),
        ("812-float8", "2271b6386", "2025-01-31", 47.77, {"compile": True, "float8": eight["float8"]}),
        ("812-float8-eager", "2271b6386", "2025-01-31", 81.77, {"compile": False, "float8": eight["float8"]}),
        ("698-float8", "aff949468", "2024-11-25", 37.98, {"compile": True, "float8": eight["float8"]}),
        ("1625", "d48445865", "2025-08-22", 47.38, {"compile": False}),
    )
    same = {
        "trainer": "torchtitan",
        "counter": "reserved",
        "zero": 3,
        "seq_len": 8192,
        "global_batch_seqs": 8,
    }
    same |= {"recompute": eight["selective"], "hardware": "H100 96GB", "gpu_gib": 94.99}
    for name, commit, date, gib, more in runs:
        told = {"source": TITAN | {"commit": commit, "date": date}, "words": f"memory: {gib:.2f}GiB"}
        yield row(f"titan-{name}", LLAMA3_8B, (1, 1, 8), gib, **same | told | more)
    flex = {"source": {"url": "https://github.com/pytorch/torchtitan/pull/1884", "date": "2025-10-15"}}
    flex |= {
        "cp": 2,
        "recompute": "full",
        "global_batch_seqs": 2,
        "compile": False,
        "words": "memory: 44.84GiB",
    }
    yield row("titan-1884-flex-cp2", LLAMA3_8B, (1, 1, 2), 44.84, **same | flex)
    for name, gib, float8 in (
        ("bf16", 35.56, None),
        ("tensorwise", 35.57, "tensorwise"),
        ("rowwise", 35.55, "rowwise"),
    ):
        told = {"source": AO | {"date": "2025-02-14"}, "words": f"memory: {gib}GiB", "float8": float8}
        told |= {"compile": True, "global_batch_seqs": 4, "unknown": ["GPUs (the script's default, 8)"]}
        yield row(f"titan-ao-1718-{name}", LLAMA3_8B, (2, 1, 4), gib, **same | told)
    graph = same | {"trainer": "torchtitan (whole-graph)", "compile": True}
    whole = (
        ("2570-none", "fca8ab7be", "2026-03-13", (2, 4), 49.65, {"recompute": "none"}),
        (
            "2570-eager-sac",
            "fca8ab7be",
            "2026-03-13",
            (2, 4),
            28.54,
            {"trainer": "torchtitan (eager SAC, compiled)"},
        ),
        ("2570-graph-sac", "fca8ab7be", "2026-03-13", (2, 4), 28.09, {"recompute": "graph default SAC"}),
        ("3429-tp2", "27aa49077", "2026-06-02", (2, 4), 30.92, {"recompute": "graph default SAC"}),
        ("3429-tp2-full", "27aa49077", "2026-06-02", (2, 4), 20.70, {"recompute": "full"}),
        ("3429-fsdp8", "27aa49077", "2026-06-02", (1, 8), 52.44, {"recompute": "graph default SAC"}),
        ("3429-fsdp8-full", "27aa49077", "2026-06-02", (1, 8), 32.07, {"recompute": "full"}),
    )
    for name, commit, date, (tp, dp), gib, more in whole:
        told = {
            "source": TITAN | {"commit": commit, "date": date},
            "words": f"{gib:.2f}",
            "global_batch_seqs": dp,
        }
        yield row(f"titan-graph-{name}", LLAMA3_8B, (tp, 1, dp), gib, **graph | told | more)


def litgpt() -> Iterator[dict[str, Any]]:
    """max_memory_allocated / 1e9, all in bfloat16: pretrain.py, eager; benchmark_litgpt.py, compiled."""
    same = {"counter": "allocated", "peak_mem_unit": "GB", "recompute": "none", "master_weights": False}
    page = same | {"source": LITGPT | {"path": "extensions/thunder/README.md"}, "trainer": "litgpt, eager"}
    page |= {"micro_batch": 4, "seq_len": 2048, "hardware": "A100 40GB", "compile": False}
    for name, dp, zero, batch, gb in (
        ("fsdp", 8, 3, 32, 22.13),
        ("ddp", 8, 0, 512, 32.04),
        ("one", 1, 0, 512, 29.84),
    ):
        told = {"zero": zero, "global_batch_seqs": batch, "words": f"Eager {gb}"}
        yield row(f"litgpt-tinyllama-{name}", TINY_LLAMA, (1, 1, dp), gb, **page | told)
    issue = {"url": "https://github.com/Lightning-AI/lightning-thunder/issues/474", "date": "2024-06-11"}
    cut = same | {"source": issue, "trainer": "litgpt, torch.compile", "micro_batch": 2, "seq_len": 4096}
    cut |= {"compile": True, "hardware": "H100 80GB"}
    for layers, one, many in ((2, 11.33, 6.27), (4, 18.35, 9.95), (10, 39.43, 21.0), (20, 74.56, 39.41)):
        dims = LLAMA2_13B | {"layers": layers}
        for dp, zero, gb in ((1, 0, one), (8, 3, many)):
            told = {"zero": zero, "global_batch_seqs": 2 * dp, "words": f"{layers} layers inductor {gb}"}
            yield row(f"litgpt-13b-l{layers}-dp{dp}", dims, (1, 1, dp), gb, **cut | told)
    source = THUNDER | {"path": "commit message", "commit": "bdc1e8ae1d2a0a8dbd5d22928ab0fc3cd7dfe40b"}
    eight = same | {"source": source, "trainer": "litgpt, torch.compile", "seq_len": 4096, "zero": 2}
    eight |= {
        "compile": True,
        "hardware": "H100 80GB",
        "unknown": ["ZeRO stage: the command's example has 2"],
    }
    for batch, gathered, plain in ((1, 34.26, 40.64), (2, 49.70, 56.12)):
        for name, gb, float8 in (
            ("all-gather", gathered, "linear & all-gather"),
            ("linear", plain, "linear"),
        ):
            told = {
                "micro_batch": batch,
                "global_batch_seqs": 8 * batch,
                "words": f"fp8: {float8} {batch} {gb}",
            }
            yield row(
                f"litgpt-7b-float8-{name}-mb{batch}", LLAMA2_7B, (1, 1, 8), gb, **eight | told, float8=float8
            )


def swift() -> Iterator[dict[str, Any]]:
    """The comment at the head of a script that packs sequences to max_length."""
    same = {"unknown": ["counter", "recompute is the tool's default"], "recompute": "full (swift default)"}
    megatron = {"trainer": "Megatron-SWIFT", "loss": "vocab_parallel", "unknown": ["counter"]}
    path = "examples/megatron/base_to_chat.sh"
    told = {
        "source": SWIFT | {"path": path},
        "recompute": "selective",
        "seq_len": 8192,
        "global_batch_seqs": 16,
    }
    yield row("swift-megatron-14b", QWEN25_14B, (4, 1, 2), 65, **megatron | told, words="8 * 65GiB")
    path = "examples/megatron/long_text.sh"
    told = {"source": SWIFT | {"path": path}, "recompute": "full", "seq_len": 32768, "global_batch_seqs": 8}
    told |= {"unknown": ["counter", "GB vs GiB"], "hardware": "A100"}
    yield row("swift-megatron-7b-32k", QWEN25_7B, (4, 1, 1), 50, **megatron | told, words="4 * 50GB")
    path = "examples/train/agent/qwen2_5.sh"
    told = {"source": SWIFT | {"path": path}, "trainer": "HF Trainer (ms-swift)", "seq_len": 8192, "zero": 0}
    told |= {"global_batch_seqs": 8, "master_weights": False, "loss": "chunked"}
    dims = QWEN25_3B | {"tied": True}
    yield row("swift-liger-3b-one", dims, (1, 1, 1), 35, **same | told, words="35GiB")
    path = "examples/train/liger/sft.sh"
    told = {"source": SWIFT | {"path": path}, "trainer": "DeepSpeed (ms-swift)", "seq_len": 8192, "zero": 3}
    told |= {"global_batch_seqs": 8, "hardware": "A100", "recompute": "full (swift default)"}
    told |= {"unknown": ["counter", "GB vs GiB", "recompute is the tool's default"]}
    words = "Using use_liger_kernel and packing: 4 * 42GB"
    yield row("swift-liger-7b", QWEN25_7B, (1, 1, 4), 42, **told, loss="chunked", words=words)
    yield row("swift-7b", QWEN25_7B, (1, 1, 4), 54, **told, words="Not using use_liger_kernel: 4 * 54GB")


def prime() -> Iterator[dict[str, Any]]:
    """peak_memory of the RL trainer's benchmark, max_memory_reserved; its head works in chunks by default."""
    same = {"trainer": "prime-rl RL trainer", "counter": "reserved", "recompute": "full", "zero": 3}
    same |= {"global_batch_seqs": 16, "compile": True, "loss": "chunked"}
    for gpu, attention, seq_len, gib in (
        ("b200", "flash_attention_2", 16384, 17.037109375),
        ("h100", "flash_attention_3", 16384, 17.095703125),
        ("h100", "flash_attention_3", 65536, 36.104817708333336),
    ):
        name = f"benchmark-8x{gpu}-Qwen--Qwen3-4B-Instruct-2507-rl-full-8gpu-Recompute-{attention}-{seq_len}"
        source = PRIME | {"path": f"benchmarks/baselines/{name}-cp1-ep1.json"}
        told = {"source": source, "seq_len": seq_len, "hardware": gpu, "words": f"peak_memory gib {gib}"}
        yield row(f"prime-rl-4b-{gpu}-{seq_len}", QWEN3_4B, (1, 1, 8), gib, **same | told)


if __name__ == "__main__":
    rows = [*titan(), *litgpt(), *swift(), *prime()]
    lines = ",\n".join(json.dumps(found, separators=(",", ":")) for found in rows)
    made = json.dumps({"command": "python tests/oracles/make_unseen.py"})
    (HERE / "peaks_unseen.json").write_text(f'{{"made_by": {made},\n"rows": [\n{lines}\n]}}\n')

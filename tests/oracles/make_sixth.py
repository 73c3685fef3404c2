"""peaks_sixth.json: a sixth set of measured peaks, written down whole before any of them was predicted.

    python tests/oracles/make_sixth.py

The rule of make_unseen.py, but for two things: a model may be of half a billion parameters, and a table may
tell a peak of a few steps. At most twelve rows of one source. Left out besides: attention that is no flash
kernel's, batches whose lengths vary, and states on the CPU or of eight bits. What a source does not say is
the default of its own script at that commit, and `unknown` names what even that leaves open. The date of
RECIPES was added after the rows' first sight.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from make_fresh import LLAMA2_7B, LLAMA3_8B, LLAMA3_70B, QWEN25_7B, row
from make_later import LLAMA3_1B
from make_unseen import LLAMA2_13B, QWEN25_14B

HERE = Path(__file__).parent
FLAGPERF = {"repo": "FlagOpen/FlagPerf", "commit": "1b5a030398ab719e406f77877eb34c9599b17fd2"}
PRIME = {"repo": "PrimeIntellect-ai/prime-rl", "commit": "559b44772e471d1538537b8805cc77f3824a5e64"}
ATTENTION = {"repo": "elena-lyulina/Megatron-LM-Attention-Benchmark"}
ATTENTION |= {"commit": "4e1ee1fe110a59d9d830613690f6c164a0e79013"}
RECIPES = {"repo": "fyh2001/megatron-sft-recipes", "commit": "d16a2d13b085813825f07228648551bd08370e1e"}
RECIPES |= {"date": "2026-04-21"}
TUNE = {"repo": "meta-pytorch/torchtune", "commit": "1814feb17", "date": "2024-11-18", "path": "README.md"}
STAS = {"repo": "stas00/ml-engineering", "commit": "744d01e18b79512572f64a6bbd8b5f4a725203a7"}

MISTRAL_7B = {"hidden": 4096, "layers": 32, "heads": 32, "kv_heads": 8, "ffn": 14336, "vocab": 32000}
CODE_34B = {"hidden": 8192, "layers": 48, "heads": 64, "kv_heads": 8, "ffn": 22016, "vocab": 32000}
GLM3_6B = {"hidden": 4096, "layers": 28, "heads": 32, "kv_heads": 2, "ffn": 13696, "vocab": 65024}
LLAMA3_3B = {"hidden": 3072, "layers": 28, "heads": 24, "kv_heads": 8, "ffn": 8192, "vocab": 128256}
LLAMA3_3B |= {"tied": True}
LLAMA2_70B = LLAMA3_70B | {"vocab": 32000}
QWEN3_06B = {"hidden": 1024, "layers": 28, "heads": 16, "kv_heads": 8, "head_dim": 128, "ffn": 3072}
QWEN3_06B |= {"vocab": 151936, "tied": True, "qk_norm": True}


def flagperf() -> Iterator[dict[str, Any]]:
    """Tables of `mem` in GiB, whole numbers of the device's 80, with flagscale_main.sh and config/*.py."""
    same = {"trainer": "FlagScale (Megatron)", "counter": "device", "recompute": "none", "seq_len": 2048}
    same |= {"sequence_parallel": False, "hardware": "A800 80GB"}
    told = {"source": FLAGPERF | {"path": "training/nvidia/aquila2_7b-flagscale/README.md"}}
    dims = LLAMA2_7B | {"vocab": 100008}
    for tp, pp, dp, micro, gib in ((1, 1, 8, 1, 74), (8, 1, 1, 8, 55), (1, 8, 1, 4, 57), (2, 2, 2, 4, 52)):
        more = same | told | {"micro_batch": micro, "global_batch_seqs": micro * 9 * dp, "words": f"{gib}/80"}
        yield row(f"flagperf-aquila2-7b-tp{tp}pp{pp}dp{dp}", dims, (tp, pp, dp), gib, **more)
    told = {"source": FLAGPERF | {"path": "training/nvidia/aquila2_7b_finetune-flagscale/README.md"}}
    more = same | told | {"global_batch_seqs": 32, "words": "TP2PP1DP4 | GAS=8 | 41/80"}
    yield row("flagperf-aquila2-7b-finetune-tp2dp4", dims, (2, 1, 4), 41, **more)
    told = {"source": FLAGPERF | {"path": "training/nvidia/chatglm3_6b-deepspeed/README.md"}}
    more = same | told | {"trainer": "DeepSpeed (FlagPerf)", "zero": 3, "seq_len": 4096, "words": "61/80"}
    more |= {"global_batch_seqs": 8, "hardware": "H100 80GB"}
    yield row("flagperf-chatglm3-6b", GLM3_6B, (1, 1, 8), 61, **more)


def prime() -> Iterator[dict[str, Any]]:
    """peak_memory of the RL trainer's benchmark, max_memory_reserved; two micro-batches a rank."""
    same = {"trainer": "prime-rl RL trainer", "counter": "reserved", "recompute": "full", "zero": 3}
    for gpu, gpus, seq_len, gib in (
        ("h100", 1, 16384, 12.527994791666666),
        ("h100", 1, 65536, 19.560546875),
        ("a6000", 4, 65536, 6.298828125),
    ):
        attention = "flash_attention_3" if gpu == "h100" else "flash_attention_2"
        name = f"benchmark-{gpus}x{gpu}-Qwen--Qwen3-0.6B-rl-full-{gpus}gpu-Recompute-{attention}-{seq_len}"
        told = {"source": PRIME | {"path": f"benchmarks/baselines/{name}-cp1-ep1.json"}, "seq_len": seq_len}
        told |= {"compile": True, "loss": "chunked", "global_batch_seqs": 2 * gpus, "words": f"gib {gib}"}
        yield row(f"prime-rl-0.6b-{gpus}x{gpu}-{seq_len}", QWEN3_06B, (1, 1, gpus), gib, **same | told)


def litgpt() -> Iterator[dict[str, Any]]:
    """thunder's benchmark_litgpt.py, max_memory_allocated / 1e9, all in bfloat16; sequences of block_size."""
    threads = "https://github.com/Lightning-AI/lightning-thunder/"
    same = {"counter": "allocated", "peak_mem_unit": "GB", "recompute": "none", "master_weights": False}
    same |= {"trainer": "litgpt, torch.compile", "compile": True, "hardware": "H100 80GB"}
    told = same | {"source": {"url": threads + "issues/1426", "date": "2024-12-12"}, "zero": 0}
    for layers, gb in ((2, 8.18), (4, 12.88), (16, 41.68)):
        dims = MISTRAL_7B | {"layers": layers}
        more = {"seq_len": 4096, "global_batch_seqs": 8, "words": f"{layers} | {gb}"}
        yield row(f"litgpt-mistral-ddp-l{layers}", dims, (1, 1, 8), gb, **told | more)
    told = same | {"source": {"url": threads + "pull/940", "date": "2024-08-14"}, "zero": 2, "seq_len": 4096}
    for name, gb in (("torch", 40.21), ("eager", 47.45)):
        more = {"compile": name == "torch", "global_batch_seqs": 8, "trainer": f"litgpt, {name}"}
        more |= {"words": f"{name} | N/A (FSDP2) | {gb}"}
        yield row(f"litgpt-llama2-7b-fsdp2-{name}", LLAMA2_7B, (1, 1, 8), gb, **told | more)
    told = same | {"source": {"url": threads + "pull/1261", "date": "2024-10-31"}, "zero": 3}
    for name, dims, seq_len, micro, gb in (
        ("longchat-13b-16k", LLAMA2_13B, 16384, 3, 48.59),
        ("CodeLlama-34b-hf", CODE_34B, 16384, 1, 50.8),
        ("Mistral-7B-v0.2", MISTRAL_7B, 32768, 3, 64.63),
        ("vicuna-7b-v1.5-16k", LLAMA2_7B, 16384, 5, 51),
    ):
        more = {"recompute": "full", "seq_len": seq_len, "micro_batch": micro, "global_batch_seqs": 8 * micro}
        more |= {"words": f"{name} | {micro} | {gb}"}
        yield row(f"litgpt-{name}-full", dims, (1, 1, 8), gb, **told | more)
    told = same | {"source": {"url": threads + "pull/1528", "date": "2024-12-09"}, "zero": 2}
    eight = {"float8": "linear & all-gather", "global_batch_seqs": 8}
    for name, dims, seq_len, gb in (
        ("7b-again", LLAMA2_7B, 4096, 27.69),
        ("8b", LLAMA3_8B, 8192, 58.65),
        ("8b-again", LLAMA3_8B, 8192, 51.67),
    ):
        more = eight | {"seq_len": seq_len, "words": f"{gb}"}
        if "again" in name:
            more["notes"] = "force_recompute_fp8_weight_in_bwd"
        yield row(f"litgpt-float8-{name}", dims, (1, 1, 8), gb, **told | more)


def logged() -> Iterator[dict[str, Any]]:
    """Rank 0's `max allocated` in MB of 2**20 after two steps, of a log that prints every argument."""
    more = {"source": ATTENTION | {"path": "attn_bench/logs/2398105.out"}, "trainer": "Megatron-LM"}
    more |= {"counter": "allocated", "recompute": "none", "seq_len": 8192, "micro_batch": 4, "zero": 0}
    more |= {"global_batch_seqs": 4, "peak_mem_unit": "MiB", "words": "max allocated: 42287.39"}
    yield row("megatron-1b-log-2398105", LLAMA3_1B, (2, 1, 1), 42287.39, **more)


def seventy() -> Iterator[dict[str, Any]]:
    """A report of two sharded trainers (id 52064728538 of the index of public code): full recomputation."""
    source = {"url": "GitHub, id 52064728538: LLaMA3-70B MFSDP vs Automodel FSDP2", "date": "2026-04-14"}
    same = {"source": source, "counter": "allocated", "recompute": "full", "zero": 3, "seq_len": 4096}
    same |= {"global_batch_seqs": 128, "hardware": "H100 80GB"}
    told = {"trainer": "Megatron-LM (--use-megatron-fsdp)", "peak_mem_unit": "MiB"}
    told |= {"words": "max allocated: 47345.90 MB"}
    yield row("mfsdp-llama3-70b-dp64", LLAMA3_70B, (1, 1, 64), 47345.90, **same | told)
    told = {"trainer": "NeMo Automodel FSDP2", "unknown": ["GB vs GiB"]}
    told |= {"words": "Max Memory Allocated: 53.13 GB"}
    yield row("automodel-llama3-70b-dp64", LLAMA3_70B, (1, 1, 64), 53.13, **same | told)


def tables() -> Iterator[dict[str, Any]]:
    """max_memory_reserved of a script in bf16, and torchtune's active memory of packed sequences of 4096."""
    path = "insights/when-to-upgrade-gpus/bench_decompose.py"
    same = {"source": STAS | {"path": path}, "trainer": "DeepSpeed 0.19.2 (HF)", "counter": "reserved"}
    same |= {
        "recompute": "none",
        "zero": 2,
        "seq_len": 8192,
        "global_batch_seqs": 8,
        "hardware": "H200 141GB",
    }
    yield row("ml-engineering-8b", LLAMA3_8B, (1, 1, 8), 99, **same | {"words": "99 to 80GiB"})
    liger = {"loss": "chunked", "words": "99 to 80GiB"}
    yield row("ml-engineering-8b-liger", LLAMA3_8B, (1, 1, 8), 80, **same | liger)
    same = {"source": TUNE, "trainer": "torchtune single device", "counter": "allocated", "zero": 0}
    same |= {"recompute": "none", "seq_len": 4096, "micro_batch": 2, "global_batch_seqs": 2}
    same |= {"hardware": "A100 80GB", "unknown": ["whether AdamW is fused"]}
    for name, gib, more in (
        ("packed", 60.0, {"compile": False, "loss": "torch"}),
        ("compile", 51.0, {"compile": True, "loss": "torch"}),
        ("chunked", 42.9, {"compile": True, "loss": "pieces"}),
    ):
        yield row(f"torchtune-3b-{name}", LLAMA3_3B, (1, 1, 1), gib, **same | more, words=f"+ {name} | {gib}")


def cookbook() -> Iterator[dict[str, Any]]:
    """memory_utils.py's whole numbers of 2**30 bytes, rounded down; batch 4 of 2048 tokens by default."""
    threads = "https://github.com/meta-llama/llama-cookbook/issues/"
    same = {"trainer": "llama-recipes", "recompute": "full", "zero": 3, "seq_len": 2048, "micro_batch": 4}
    same |= {"unknown": ["batch and length are the defaults of August 2023"]}
    told = same | {"source": {"url": threads + "120", "date": "2023-08-22"}, "master_weights": False}
    told |= {"global_batch_seqs": 64, "hardware": "A100 80GB"}
    for counter, gib in (("allocated", 42), ("reserved", 63)):
        more = {"counter": counter, "words": f"Max CUDA memory {counter} was {gib} GB"}
        yield row(f"llama-recipes-70b-{counter}", LLAMA2_70B, (1, 1, 16), gib, **told | more)
    told = same | {"source": {"url": threads + "100", "date": "2023-08-07"}, "global_batch_seqs": 16}
    told |= {"counter": "reserved", "hardware": "A100 40GB", "words": "it reduced the max reserved to 27"}
    yield row("llama-recipes-7b", LLAMA2_7B, (1, 1, 4), 27, **told)


def recipes() -> Iterator[dict[str, Any]]:
    """Megatron-SWIFT's memory(GiB), max_memory_reserved, or nvidia-smi's MiB over 1024; flash attention 2."""
    same = {"source": RECIPES | {"path": "docs/qwen2_5_14b_benchmark_plan.md"}, "hardware": "H100 80GB"}
    same |= {"seq_len": 16384, "global_batch_seqs": 8}
    mega = same | {
        "trainer": "Megatron-SWIFT (mcore 0.16.1)",
        "counter": "reserved",
        "loss": "vocab_parallel",
    }
    for tp, mode, gib in ((2, "full", 56.5), (4, "full", 42.5), (4, "selective", 53.1), (4, "none", 50.8)):
        told = mega | {"recompute": mode, "words": f"TP={tp} {mode} MBS=1 | {gib}"}
        yield row(f"recipes-14b-tp{tp}-{mode}", QWEN25_14B, (tp, 1, 8 // tp), gib, **told)
    hf = same | {"counter": "device", "recompute": "full", "zero": 3}
    fsdp = hf | {"trainer": "accelerate FSDP2 (transformers 5.5)"}
    for compiled, gib in ((False, 67.9), (True, 53.8)):
        told = fsdp | {"compile": compiled, "words": f"{gib} GB"}
        name = "compile" if compiled else "eager"
        yield row(f"recipes-14b-fsdp2-{name}", QWEN25_14B, (1, 1, 8), gib, **told)
    told = hf | {"trainer": "DeepSpeed 0.18.9 (accelerate)", "words": "76.3 GB"}
    yield row("recipes-14b-zero3", QWEN25_14B, (1, 1, 8), 76.3, **told)
    same |= {"source": RECIPES | {"path": "docs/fsdp_vs_megatron_report.md"}, "seq_len": 4096}
    same |= {"recompute": "none", "counter": "device"}
    told = same | {"trainer": mega["trainer"], "loss": "vocab_parallel", "words": "39.6 GB"}
    yield row("recipes-7b-tp2", QWEN25_7B, (2, 1, 4), 39.6, **told)
    told = same | {"trainer": fsdp["trainer"], "zero": 3, "compile": True, "words": "38.6 GB"}
    yield row("recipes-7b-fsdp2-compile", QWEN25_7B, (1, 1, 8), 38.6, **told)


if __name__ == "__main__":
    rows = [*flagperf(), *prime(), *litgpt(), *logged(), *seventy()]
    rows += [*tables(), *cookbook(), *recipes()]
    lines = ",\n".join(json.dumps(found, separators=(",", ":")) for found in rows)
    made = json.dumps({"command": "python tests/oracles/make_sixth.py"})
    (HERE / "peaks_sixth.json").write_text(f'{{"made_by": {made},\n"rows": [\n{lines}\n]}}\n')

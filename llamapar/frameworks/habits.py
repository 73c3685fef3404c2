"""How each trainer uses memory, as data: what it keeps, gathers and buffers, with the code that shows it."""

from __future__ import annotations

from dataclasses import replace

from .base import Framework, Source
from .trainer import EACH, LAST, LAST_IN_PIPELINE, UNKNOWN_TRAINER, Habits

_MEGATRON, _MEGATRON_AT = "NVIDIA/Megatron-LM", "d98e8a64ddf34856e74b24714e3bedb2f5a39553"
_TITAN, _TITAN_AT = "pytorch/torchtitan", "b5bcd76c66d0acb1a08b176d9639425bc55e0b2a"
_NANOTRON, _NANOTRON_AT = "huggingface/nanotron", "2411b022a75fb7f7561a1bb4166706da5e1b76de"
_DEEPSPEED, _DEEPSPEED_AT = "deepspeedai/DeepSpeed", "edaa7221267243c7be7fb49c5d5f5c4fb97b4641"
_INTERNEVO, _INTERNEVO_AT = "InternLM/InternEvo", "77766933730388101ede10797f5699698c04897a"
_LITGPT, _LITGPT_AT = "Lightning-AI/litgpt", "26857050fe3ff627cd714fe92f5838f51a3d5efa"
_TUNE, _TUNE_AT = "meta-pytorch/torchtune", "bd2a0fc7c31430972728494fa01aaeeb0ebf1ba1"
_PRIME, _PRIME_AT = "PrimeIntellect-ai/prime-rl", "559b44772e471d1538537b8805cc77f3824a5e64"
_PICOTRON, _PICOTRON_AT = "huggingface/picotron", "59714b1bf25541dbeb6f5a721ed15f6d0768e786"
_NEOX, _NEOX_AT = "EleutherAI/gpt-neox", "ea7aefd8f8e183256992d9fede4d7c71a46d67a5"
_FLAGSCALE, _FLAGSCALE_AT = "FlagOpen/FlagScale", "6fc099c85"
_FMS, _FMS_AT = "foundation-model-stack/fms-fsdp", "5a296afe42f9932f590783cb053fa0f9384e01fc"
_COOKBOOK, _COOKBOOK_AT = "meta-llama/llama-cookbook", "0e0033518623d03ac5c1654bf04b7e480f7d5e5a"
_TORCH, _TORCH_AT = "pytorch/pytorch", "v2.13.0"
_AUTOGRAD = Source(_TORCH, "torch/nn/functional.py", _TORCH_AT)
_NONE_AT_FIRST = Source(_TORCH, "torch/optim/optimizer.py", _TORCH_AT)

HABITS: dict[str, Habits] = {
    "megatron-lm": Habits(  # silu_kept is False where bias_swiglu_fusion is on, which is an option
        regather=True,
        elementwise_kept=True,
        gradients_stay=True,
        step_copies=0,
        loss="in_place",
        selective="attention",
        reduces=EACH,
        sources={
            "reduces": Source(
                _MEGATRON,
                "megatron/core/distributed/fsdp/src/megatron_fsdp/megatron_fsdp.py (grad_reduce_every_bprop)",
                "00caa53af30912914981c86f39db123961678bbd",
            ),
            "regather": Source(_MEGATRON, "megatron/core/tensor_parallel/layers.py:604-627", _MEGATRON_AT),
            "gradients_stay": Source(
                _MEGATRON, "megatron/core/distributed/param_and_grad_buffer.py:1168", _MEGATRON_AT
            ),
            "loss": Source(_MEGATRON, "megatron/core/tensor_parallel/cross_entropy.py", _MEGATRON_AT),
            "selective": Source(
                _MEGATRON, "megatron/core/transformer/transformer_config.py:560-565", _MEGATRON_AT
            ),
        },
    ),
    "torchtitan": Habits(
        regather=False,
        silu_kept=True,
        elementwise_kept=True,
        gradients_stay=False,
        step_copies=0,
        loss="torch",
        tp_loss="loss_parallel",
        reduces=LAST_IN_PIPELINE,
        sources={
            "reduces": Source(
                _TORCH, "torch/distributed/pipelining/stage.py (backward_maybe_with_nosync)", _TORCH_AT
            ),
            "regather": Source(_TITAN, "torchtitan/parallelisms/parallelize_llama.py", "004b3148a9"),
            "silu_kept": _AUTOGRAD,
            "gradients_stay": Source(_TITAN, "torchtitan/trainer.py:845", _TITAN_AT),
            "loss": Source(_TITAN, "torchtitan/components/loss.py:32", _TITAN_AT),
        },
    ),
    "nanotron": Habits(
        silu_kept=True,
        elementwise_kept=True,
        gradients_stay=True,
        step_copies=0,
        loss="vocab_parallel",
        merged_qkv=True,
        transposes=True,
        reduces_after=6,  # qkv, o, gate and up, down, two norms
        reduces=LAST,
        sources={
            "reduces": Source(
                _NANOTRON,
                "src/nanotron/trainer.py (sync_gradients_across_dp)",
                "069c21cf3cacb90d535d486cb6623e7bf53605e6",
            ),
            "reduces_after": Source(
                _NANOTRON,
                "src/nanotron/trainer.py (sync_gradients_across_dp, reduce_scatter=False); "
                "src/nanotron/optim/gradient_accumulator.py (one float32 buffer, all_reduce); "
                "src/nanotron/optim/zero.py (_all_gather_params); src/nanotron/distributed.py "
                "(all_gather_coalesced)",
                "069c21cf3cacb90d535d486cb6623e7bf53605e6",
            ),
            "merged_qkv": Source(
                _NANOTRON,
                "src/nanotron/models/llama.py:465-475; src/nanotron/models/llama.py:670",
                _NANOTRON_AT,
            ),
            "silu_kept": Source(_NANOTRON, "src/nanotron/models/llama.py:184-190", _NANOTRON_AT),
            "gradients_stay": Source(_NANOTRON, "src/nanotron/optim/gradient_accumulator.py", _NANOTRON_AT),
            "loss": Source(
                _NANOTRON, "src/nanotron/parallel/tensor_parallel/functional.py:30-90", _NANOTRON_AT
            ),
        },
    ),
    "transformers": Habits(
        regather=False,
        silu_kept=True,
        elementwise_kept=True,
        gradients_stay=False,
        step_copies=1,
        loss="torch",
        reduces=LAST,
        unreduced_in_dtype=True,
        sources={
            "unreduced_in_dtype": Source(
                _TORCH, "torch/distributed/fsdp/_runtime_utils.py (_post_backward_hook)", _TORCH_AT
            ),
            "reduces": Source(
                "huggingface/transformers",
                "src/transformers/trainer.py (accelerator.no_sync)",
                "000945a9b726d87a93e61e873b88ff8f3cd411b5",
            ),
            "silu_kept": _AUTOGRAD,
            "gradients_stay": _NONE_AT_FIRST,
            "step_copies": Source(_TORCH, "torch/optim/adamw.py; torch/optim/adam.py", _TORCH_AT),
            "loss": _AUTOGRAD,
        },
    ),
    "deepspeed": Habits(
        regather=False,
        silu_kept=True,
        elementwise_kept=True,
        gradients_stay=True,
        step_copies=0,
        loss="torch",
        tp_loss="in_place",
        grads_in_dtype=True,
        # Under ZeRO 3 a group of at most sub_group_size numbers at a time; the others' gradients wait.
        step_gradients="own * (item + wide) if zero < 3 else own * item + min(own, 10**9) * (item + wide)",
        bucket=10**9,
        overlaps=False,
        live=10**9,
        reduces=EACH,
        sources={
            "reduces": Source(
                _DEEPSPEED,
                "deepspeed/runtime/engine.py (allreduce_gradients, no_sync)",
                "007cca6a2ffe3ed9d393459f4a3081bd54341ba6",
            ),
            "live": Source(_DEEPSPEED, "deepspeed/runtime/zero/config.py:227", _DEEPSPEED_AT),
            "grads_in_dtype": Source(_DEEPSPEED, "deepspeed/runtime/zero/stage_1_and_2.py", _DEEPSPEED_AT),
            "step_gradients": Source(
                _DEEPSPEED,
                "deepspeed/runtime/zero/stage_1_and_2.py:829-835; "
                "deepspeed/runtime/zero/stage_1_and_2.py:2346-2383; "
                "deepspeed/runtime/zero/stage3.py (_prepare_fp32_grad_for_sub_group)",
                _DEEPSPEED_AT,
            ),
            "bucket": Source(
                _DEEPSPEED,
                "deepspeed/runtime/zero/config.py:113; deepspeed/runtime/zero/config.py:383-385; "
                "deepspeed/runtime/zero/stage_1_and_2.py:869",
                _DEEPSPEED_AT,
            ),
        },
    ),
    "internevo": Habits(
        # A flat float32 tensor of a rank's parameters for Adam, which torch 1.13 and 2.0 take the root of and
        # add eps to in two tensors of that size. FSDP's sixteen-bit gradients stay beside the float32 ones.
        regather=False,
        elementwise_kept=True,
        gradients_stay=False,
        step_copies=2,
        loss="in_place",
        grads_in_dtype=True,
        step_gradients="own * (wide + item * (zero == 3))",
        reduces=EACH,
        sources={
            "reduces": Source(
                _INTERNEVO,
                "internlm/core/scheduler/no_pipeline_scheduler.py (skip_grad_reduce)",
                "00a2a3428ea3f9f61d070d939a52bc5e202edc75",
            ),
            "step_copies": Source(_TORCH, "torch/optim/adamw.py", "v1.13.1"),
            "step_gradients": Source(
                _INTERNEVO,
                "internlm/solver/optimizer/hybrid_zero_optim.py:735-755; "
                "internlm/solver/optimizer/fsdp_optimizer.py:128-140",
                _INTERNEVO_AT,
            ),
            "loss": Source(_INTERNEVO, "internlm/model/loss.py:29-34", _INTERNEVO_AT),
        },
    ),
    "litgpt": Habits(
        regather=False,
        silu_kept=True,
        elementwise_kept=None,  # torch.compile decides
        gradients_stay=False,
        step_copies=0,
        loss="narrow",
        grads_in_dtype=True,
        merged_v=True,
        repeats_kv=True,
        reduces=LAST,
        sources={
            "reduces": Source(
                _LITGPT,
                "litgpt/pretrain.py (fabric.no_backward_sync)",
                "0363060b9b9952baada5e5e91c5f2ca1030acd35",
            ),
            "merged_v": Source(_LITGPT, "litgpt/model.py (CausalSelfAttention.forward)", "b042058e"),
            "silu_kept": Source(_LITGPT, "litgpt/model.py (LLaMAMLP)", _LITGPT_AT),
            "gradients_stay": _NONE_AT_FIRST,
            "step_copies": Source(_LITGPT, "litgpt/pretrain.py:216", _LITGPT_AT),
            "loss": Source(_LITGPT, "litgpt/utils.py:302-320", _LITGPT_AT),
            "repeats_kv": Source(_LITGPT, "litgpt/model.py:538-539", _LITGPT_AT),
        },
    ),
    "torchtune": Habits(
        regather=False,
        silu_kept=True,
        elementwise_kept=True,
        gradients_stay=False,
        step_copies=0,
        loss="pieces",
        grads_in_dtype=True,
        master_weights=False,
        repeats_kv=True,
        reduces=EACH,
        sources={
            "reduces": Source(
                _TUNE,
                "recipes/full_finetune_distributed.py (train)",
                "723b69c8be7d25173ca09317eb44332d064348d4",
            ),
            "silu_kept": Source(_TUNE, "torchtune/modules/feed_forward.py", _TUNE_AT),
            "gradients_stay": _NONE_AT_FIRST,
            "step_copies": Source(_TUNE, "recipes/configs/llama3_1/8B_full.yaml (fused: True)", _TUNE_AT),
            "loss": Source(_TUNE, "torchtune/modules/loss/ce_chunked_output_loss.py", _TUNE_AT),
            "master_weights": Source(_TUNE, "recipes/full_finetune_distributed.py:84-86", _TUNE_AT),
            "repeats_kv": Source(_TUNE, "torchtune/modules/attention.py:280-287", _TUNE_AT),
        },
    ),
    "prime-rl": Habits(
        regather=False,
        silu_kept=True,
        elementwise_kept=True,
        gradients_stay=False,
        step_copies=0,
        loss="chunked",
        reduces=EACH,
        sources={
            "reduces": Source(
                _PRIME,
                "src/prime_rl/trainer/sft/train.py (set_requires_all_reduce)",
                "01c3ad6e4ef066d7afe8bb4bc6dd92345fee061d",
            ),
            "silu_kept": Source(_PRIME, "src/prime_rl/trainer/models/layers/mlp.py", _PRIME_AT),
            "gradients_stay": _NONE_AT_FIRST,
            "step_copies": Source(_PRIME, "src/prime_rl/trainer/optim/__init__.py:56", _PRIME_AT),
            "loss": Source(_PRIME, "src/prime_rl/trainer/models/layers/lm_head.py", _PRIME_AT),
        },
    ),
    "picotron": Habits(  # its optimizer's fusion and its gradients' dtype are settings
        regather=False,
        silu_kept=True,
        elementwise_kept=True,
        gradients_stay=True,
        step_copies=1,
        loss="narrow",
        master_weights=False,
        repeats_kv=True,
        reduces=LAST,
        sources={
            "reduces": Source(_PICOTRON, "train.py (train_step)", "12e81c32687e09a7a96cff46770bdb2f783df6d9"),
            "silu_kept": Source(_PICOTRON, "picotron/model.py:180", _PICOTRON_AT),
            "gradients_stay": Source(_PICOTRON, "picotron/data_parallel/bucket.py", _PICOTRON_AT),
            "step_copies": Source(_TORCH, "torch/optim/adamw.py; torch/optim/adam.py", _TORCH_AT),
            "loss": Source(_PICOTRON, "train.py:49", _PICOTRON_AT),
            "master_weights": Source(_PICOTRON, "train.py:190-209", _PICOTRON_AT),
            "repeats_kv": Source(_PICOTRON, "picotron/model.py:142-143", _PICOTRON_AT),
        },
    ),
    "fms-fsdp": Habits(
        regather=False,
        silu_kept=True,
        elementwise_kept=None,  # torch.compile decides
        gradients_stay=False,
        step_copies=1,
        loss="narrow",
        sources={
            "gradients_stay": _NONE_AT_FIRST,
            "step_copies": Source(_TORCH, "torch/optim/adamw.py; torch/optim/adam.py", _TORCH_AT),
            "loss": Source(_FMS, "fms_fsdp/utils/train_utils.py (train)", _FMS_AT),
        },
    ),
}
HABITS["llama-cookbook"] = replace(
    HABITS["transformers"],
    reduces=EACH,
    sources={
        **HABITS["transformers"].sources,
        "reduces": Source(
            "meta-llama/llama-recipes",
            "src/llama_recipes/utils/train_utils.py (train)",
            "03f1ca78171ec3dbd0bdbd0b19ac97e334db1a6b",
        ),
        "step_copies": Source(_COOKBOOK, "src/llama_cookbook/finetuning.py:399-415", _COOKBOOK_AT),
    },
)
HABITS["gpt-neox"] = replace(
    HABITS["deepspeed"],
    loss="in_place",
    tp_loss=None,
    sources={
        **HABITS["deepspeed"].sources,
        "loss": Source(_NEOX, "megatron/mpu/cross_entropy.py; megatron/model/gpt2_model.py", _NEOX_AT),
        "bucket": Source(_NEOX, "megatron/neox_arguments/arguments.py:74-80", _NEOX_AT),
    },
)
HABITS["flagscale"] = replace(
    HABITS["megatron-lm"],
    silu_kept=True,
    transposes=True,
    sources={
        **HABITS["megatron-lm"].sources,
        "silu_kept": Source(_FLAGSCALE, "megatron/model/transformer.py:142-144", _FLAGSCALE_AT),
        "transposes": Source(_FLAGSCALE, "megatron/model/transformer.py:893-900", _FLAGSCALE_AT),
    },
)
HABITS["graph_trainer"] = replace(
    HABITS["torchtitan"],
    regather=None,
    silu_kept=None,
    elementwise_kept=None,
    selective="elementwise",
    sources={
        "selective": Source(
            _TITAN,
            "torchtitan/experiments/graph_trainer/passes.py:624-720",
            "a364b4b4fd6ac6ecd23d40c08a21dc7fb824a722",
        ),
    },
)
ONE_BY_ONE = Habits(
    gathers_alone=4,  # qkv, dense, h to 4h, 4h to h; smaller ones are not shared
    sources={
        "gathers_alone": Source(
            "samyam/DeepSpeed",
            "deepspeed/runtime/zero/partition_parameters.py (_allgather_param, _reduce_scatter_gradient)",
            "67f957a4d7c433db6446ca14f7bbd13b1c702d3b",
        ),
    },
)
"""ZeRO 3 of DeepSpeed in 2021, by which arXiv:2104.04473 table 2 was measured."""

HABITS["megatron-deepspeed"] = replace(
    HABITS["deepspeed"],
    loss="in_place",
    selective="attention",
    gathers_alone=ONE_BY_ONE.gathers_alone,
    sources={**HABITS["deepspeed"].sources, **ONE_BY_ONE.sources},
)
"""Trainer → its habits; a trainer is a framework, or a library that trains on top of one."""


def habits_of(framework: str | Framework | None) -> Habits:
    """The habits of a framework; UNKNOWN_TRAINER if none are recorded."""
    name = framework.name if isinstance(framework, Framework) else framework
    return HABITS.get(name or "", UNKNOWN_TRAINER)

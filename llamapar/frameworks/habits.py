"""How trainers use memory, as data: what each keeps, gathers and buffers, with the code that says so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from llamapar.describe.configfile import Values

from .base import Framework, Source


@dataclass(frozen=True)
class Habits:
    """What a trainer does with memory; None where it is not known, or a run's own settings decide.

    regather: under sequence parallelism the inputs of column-parallel matmuls are gathered again in the
        backward, rather than kept.
    silu_kept: the backward of SwiGLU keeps SiLU's output, rather than computing it again.
    elementwise_kept: outputs of norms and SwiGLU's product are kept for the matmuls that read them, rather
        than computed again.
    gradients_stay: gradients are buffers that stay between steps; else the first micro-batch of a step finds
        none, and they come as activations go.
    step_copies: the optimizer's step makes so many copies of the size of its parameters, as torch's foreach
        does one.
    loss: one of `losses.LOSSES`; where tp > 1 `tp_loss`.
    selective: what "selective" recomputation computes again: "matmuls", every second of them and norms,
        "attention" alone, of which flash attention keeps nothing more anyway, or "elementwise", all but
        matmuls and attention.
    grads_in_dtype: sums of gradients are in the dtype of parameters, not in float32.
    master_weights: float32 ones and states beside parameters of fewer bits; else all is in their dtype.
    step_gradients: what the optimizer's step makes of a rank's own gradients, as a formula of own, item, wide
        and zero; all others and the reduction's buffers are gone by then.
    bucket: numbers in the buffers of a gradient reduction.
    overlaps: whether those are two, of which one is reduced while the other fills, below ZeRO 3 too.
    live: most parameters that ZeRO 3 keeps gathered; 0: those of two layers.
    merged_qkv: without GQA Q stays a view of the merged Q, K and V, beside K and V of their own (flash-attn's
        rotary works in place on Q).
    merged_v: without GQA V stays a view of the merged Q, K and V, beside Q and K of their own, unless a
        compiler parts them.
    transposes: of several sequences the output of attention is transposed by a copy.
    repeats_kv: K and V are repeated for every query head before attention, which keeps them so.
    reduces_after: under ZeRO 1 gradients are reduced whole, in one collective once the last backward has
        ended, and parameters gathered in one before the next step, which is then copied apart: for every
        tensor as many pieces as ranks share it. 0, or the tensors of a layer.
    sources: where each of them stands, by the name of the field.
    """

    regather: bool | None = None
    silu_kept: bool | None = None
    elementwise_kept: bool | None = None
    gradients_stay: bool | None = None
    step_copies: int | None = None
    loss: str | None = None
    tp_loss: str | None = None
    selective: str = "matmuls"
    grads_in_dtype: bool = False
    master_weights: bool = True
    step_gradients: str = ""
    bucket: int = 0
    overlaps: bool = True
    live: int = 0
    merged_qkv: bool = False
    merged_v: bool = False
    transposes: bool = False
    repeats_kv: bool = False
    reduces_after: int = 0
    sources: Mapping[str, Source] = field(default_factory=dict)

    def source(self, name: str) -> str:
        """Where a choice stands, as text."""
        return str(self.sources.get(name, ""))

    @property
    def open(self) -> tuple[str, ...]:
        """The choices that are not known."""
        return tuple(name for name in LEAST if getattr(self, name) is None)

    def under(self, recompute: str) -> tuple[Habits, str]:
        """These, and a mode of recomputation, where "selective" is one of the others with its own choices."""
        if recompute != "selective" or self.selective == "matmuls":
            return self, recompute
        again = {"regather": True, "silu_kept": False, "elementwise_kept": False}
        return (replace(self, **Values(again)) if self.selective == "elementwise" else self), "none"

    def least(self) -> Habits:
        """With every open choice as it takes least memory."""
        return replace(self, **Values({name: LEAST[name] for name in self.open}))

    def most(self) -> Habits:
        """With every open choice as it takes most."""
        return replace(self, **Values({name: MOST[name] for name in self.open}))


LEAST: dict[str, bool | int | str] = {
    "regather": True,
    "silu_kept": False,
    "elementwise_kept": False,
    "gradients_stay": False,
    "step_copies": 0,
    "loss": "in_place",
}
MOST: dict[str, bool | int | str] = {
    "regather": False,
    "silu_kept": True,
    "elementwise_kept": True,
    "gradients_stay": True,
    "step_copies": 0,
    "loss": "vocab_parallel",
}
"""Choice → how it takes least memory, and most. No trainer is taken to copy at the step unless it does, nor
to keep a loss worse or better than the vocabulary-parallel ones."""

UNKNOWN_TRAINER = Habits()
"""Nothing is known: every choice is open."""

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
        sources={
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
        sources={
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
        sources={
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
        sources={
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
        sources={
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
        sources={
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
        sources={
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
        sources={
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
        sources={
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
        sources={
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
    sources={
        **HABITS["transformers"].sources,
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
HABITS["megatron-deepspeed"] = replace(HABITS["deepspeed"], loss="in_place", selective="attention")
"""Trainer → its habits: a framework's name, or that of a library that trains on top of others."""


def habits_of(framework: str | Framework | None) -> Habits:
    """The habits of a framework; UNKNOWN_TRAINER where none are recorded."""
    name = framework.name if isinstance(framework, Framework) else framework
    return HABITS.get(name or "", UNKNOWN_TRAINER)

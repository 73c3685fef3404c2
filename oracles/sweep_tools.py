"""Real frameworks, handed a layout: each function runs one layout's own code and lets its error through.

Ranks are torch's fake process group, seen as the first and as the last rank, but for DTensor, whose ranks are
real (`make_sweep.py`). Models are tiny, everything else is what a user's job would call, in its order.
"""

from __future__ import annotations

import contextlib
import sys
from argparse import Namespace
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from fixture import fragment

Asked = dict[str, Any]
Tool = Callable[[Asked], str]
"""Runs a layout; "" where it runs as asked, else what it did instead. Raises what the framework raises."""


# -- Meta: llama-models on fairscale ---------------------------------------------------------------


def llama_models(args: Namespace) -> Tool:
    """Groups, a model of one layer, and its forward."""
    sys.path[:0] = [str(args.fairscale), str(args.llama_models)]
    from fairscale.nn.model_parallel import initialize
    from models.llama3.args import ModelArgs
    from models.llama3.model import Transformer

    def run(asked: Asked) -> str:
        model = asked["model"]
        hidden = int(2 * 4 * model["dim"] / 3)
        try:
            initialize.initialize_model_parallel(asked["tp"], asked["pp"], asked["cp"])
            ways = initialize.get_model_parallel_world_size()
            made = Transformer(
                ModelArgs(
                    dim=model["dim"],
                    n_layers=1,
                    n_heads=model["n_heads"],
                    n_kv_heads=model["n_kv_heads"],
                    vocab_size=model["vocab_size"],
                    multiple_of=1,
                    ffn_dim_multiplier=(model["ffn_dim"] + 0.5) / hidden,
                    max_batch_size=asked["micro_batch"],
                    max_seq_len=asked["seq_len"],
                )
            )
            made(torch.zeros(asked["micro_batch"], asked["seq_len"], dtype=torch.long), 0)
        finally:
            initialize.destroy_model_parallel()
            for name in ("_CONTEXT_PARALLEL_GROUP", "_CONTEXT_PARALLEL_GROUP_RANKS"):
                setattr(initialize, name, None)
        return "" if ways == asked["tp"] else f"tp={ways}"

    return run


# -- torchtitan ------------------------------------------------------------------------------------


def torchtitan(args: Namespace) -> Tool:
    """What its Trainer does in its order: degrees, tokens, the model's config, stages or one step."""
    sys.path.insert(0, str(args.torchtitan))
    from torchtitan.tools import utils as tools

    tools.device_type, tools.device_module = "cpu", torch.cpu
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    from torchtitan.components.loss import CrossEntropyLoss
    from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
    from torchtitan.distributed import ParallelDims, utils
    from torchtitan.distributed.pipeline_parallel import pipeline_llm
    from torchtitan.models import llama3
    from torchtitan.models.common import ComplexRoPE, Embedding, Linear, RMSNorm, attention
    from torchtitan.models.common.attention import FlexAttention
    from torchtitan.models.llama3 import Llama3Model, _build_llama3_layers, parallelize, parallelize_llama
    from torchtitan.trainer import Trainer

    text = (args.torchtitan / "torchtitan/trainer.py").read_text()
    parallelize.apply_fsdp_to_decoder = lambda *given, **named: None  # asks for a newer torch
    FlexAttention._compiled_flex_attn = staticmethod(flex_attention)
    attention._compiled_create_block_mask = create_block_mask

    def config_of(model: dict[str, Any]) -> Any:
        dim, vocab = model["dim"], model["vocab_size"]
        return Llama3Model.Config(
            dim=dim,
            vocab_size=vocab,
            enable_weight_tying=model["tied"],
            tok_embeddings=Embedding.Config(
                num_embeddings=vocab, embedding_dim=dim, param_init=llama3._EMBEDDING_INIT
            ),
            norm=RMSNorm.Config(normalized_shape=dim, param_init=llama3._NORM_INIT),
            lm_head=Linear.Config(
                in_features=dim, out_features=vocab, param_init=llama3._output_linear_init(dim)
            ),
            layers=_build_llama3_layers(
                n_layers=model["n_layers"],
                dim=dim,
                n_heads=model["n_heads"],
                n_kv_heads=model["n_kv_heads"],
                hidden_dim=model["ffn_dim"],
                rope=ComplexRoPE.Config(
                    dim=dim // model["n_heads"], max_context_length=model["max_seq_len"], theta=500000
                ),
                attn_backend="flex",
            ),
        )

    def run(asked: Asked) -> str:
        model = asked["model"]
        tokens = asked["micro_batch"] * asked["seq_len"]
        parallelism = ParallelismConfig(
            data_parallel_shard_degree=asked["dp"],
            tensor_parallel_degree=asked["tp"],
            context_parallel_degree=asked["cp"],
            pipeline_parallel_degree=asked["pp"],
            enable_sequence_parallel=asked["sequence_parallel"] is not False,
            num_pp_microbatches=asked.get("micro_batches", 1),
            pipeline_parallel_schedule="1F1B" if asked["virtual_stages"] == 1 else "Interleaved1F1B",
        )
        training = TrainingConfig(
            num_tokens_per_microbatch_per_dp_rank=tokens, max_context_length=asked["seq_len"]
        )
        config = object.__new__(Trainer.Config)
        for name, value in (("parallelism", parallelism), ("training", training)):
            object.__setattr__(config, name, value)
        object.__setattr__(config, "debug", SimpleNamespace(moe_force_load_balance=False))
        dims = ParallelDims.from_config(parallelism, asked["gpus"])
        dims.build_mesh()
        fragment(
            text,
            "parallel_dims.cp > 1 else 1",
            "num_tokens_per_pp_microbatch % seq_len_divisor",
            parallel_dims=dims,
            config=config,
            num_tokens_per_pp_microbatch=tokens,
        )()
        utils.set_spmd_backend(parallelism.spmd_backend)
        built = config_of(model)
        built.update_from_config(config=config)
        with torch.device("meta"):
            made = built.build()
        loss = CrossEntropyLoss.Config(global_vocab_size=model["vocab_size"]).build(
            compile_config=CompileConfig()
        )
        options = {
            "parallel_dims": dims,
            "training": training,
            "parallelism": parallelism,
            "compile_config": CompileConfig(),
            "ac_config": None,
            "dump_folder": "",
        }
        if asked["pp"] > 1:
            pipeline_llm(
                made,
                **options,
                device=torch.device("cpu"),
                model_config=built,
                parallelize_fn=parallelize_llama,
                loss_fn=loss,
            )
            return ""
        made = parallelize_llama(made, **options)
        made.to_empty(device="cpu")
        with torch.no_grad():
            for tensor in (*made.parameters(), *made.buffers()):
                tensor.fill_(0.1)
        if asked["cp"] == 1:
            step(made, built, loss, dims, config, asked)
        return ""

    def step(made: nn.Module, built: Any, loss: Any, dims: Any, config: Any, asked: Asked) -> None:
        """The forward of a step by the Trainer's own methods, on random tokens."""
        me = object.__new__(Trainer)
        me.config, me.parallel_dims, me.device = config, dims, torch.device("cpu")
        me.model_parts, me.model_config, me.loss_fn, me.ntokens_seen = [made], built, loss, 0
        me.train_context = utils.get_spmd_context(parallel_dims=dims)
        tokens = asked["micro_batch"] * asked["seq_len"]
        size, positions = asked["model"]["vocab_size"], torch.arange(tokens) % asked["seq_len"]
        ids, labels = torch.randint(0, size, (tokens,)), torch.randint(0, size, (tokens,))
        with torch.no_grad():  # FlexAttention has no backward on a CPU
            ids, labels, more = me.post_dataloading_process({"input": ids, "positions": positions}, labels)
            with me.train_context():
                loss(made(ids, **more), labels, torch.tensor(tokens))

    return run


# -- Hugging Face transformers ---------------------------------------------------------------------


def transformers(args: Namespace) -> Tool:
    """Its mesh, a Llama cut by its own plan as `from_pretrained` does it, and the forward."""
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.distributed.configuration_utils import DistributedConfig

    def run(asked: Asked) -> str:
        model = asked["model"]
        plain = LlamaConfig(
            hidden_size=model["dim"],
            num_hidden_layers=model["n_layers"],
            num_attention_heads=model["n_heads"],
            num_key_value_heads=model["n_kv_heads"],
            head_dim=model["head_dim"],
            intermediate_size=model["ffn_dim"],
            vocab_size=model["vocab_size"],
            max_position_embeddings=model["max_seq_len"],
            tie_word_embeddings=model["tied"],
        )
        sizes = DistributedConfig(tp_size=asked["tp"], fsdp_size=asked["dp"], pp_size=asked["pp"])
        sizes, _, mesh = LlamaForCausalLM.prepare_distribute_model(sizes)
        made = LlamaForCausalLM(plain)
        if mesh is not None:
            made = LlamaForCausalLM.maybe_distribute_model(made, sizes, mesh)
        ids = torch.randint(0, model["vocab_size"], (asked["micro_batch"], asked["seq_len"]))
        with torch.no_grad():
            made(ids, labels=ids)
        return ""

    return run


# -- plain torch -----------------------------------------------------------------------------------


class Block(nn.Module):
    """Embedding, one layer of attention and SwiGLU, and a head, as a user of DTensor writes them."""

    def __init__(self, model: dict[str, Any]) -> None:
        super().__init__()
        dim, head_dim = model["dim"], model["head_dim"]
        self.head_dim = head_dim
        self.embed = nn.Embedding(model["vocab_size"], dim)
        self.wq = nn.Linear(dim, model["n_heads"] * head_dim, bias=False)
        self.wk = nn.Linear(dim, model["n_kv_heads"] * head_dim, bias=False)
        self.wv = nn.Linear(dim, model["n_kv_heads"] * head_dim, bias=False)
        self.wo = nn.Linear(model["n_heads"] * head_dim, dim, bias=False)
        self.w1 = nn.Linear(dim, model["ffn_dim"], bias=False)
        self.w3 = nn.Linear(dim, model["ffn_dim"], bias=False)
        self.w2 = nn.Linear(model["ffn_dim"], dim, bias=False)
        self.head = nn.Linear(dim, model["vocab_size"], bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        batch, seq = ids.shape
        x = self.embed(ids)
        q, k, v = (
            w(x).view(batch, seq, -1, self.head_dim).transpose(1, 2) for w in (self.wq, self.wk, self.wv)
        )
        seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.wo(seen.transpose(1, 2).reshape(batch, seq, -1))
        x = x + self.w2(nn.functional.silu(self.w1(x)) * self.w3(x))
        return self.head(x)


def dtensor(args: Namespace) -> Tool:
    """A mesh of (dp, tp), and a block cut by ColwiseParallel and RowwiseParallel with their defaults."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    def run(asked: Asked) -> str:
        model = asked["model"]
        mesh = init_device_mesh("cpu", (asked["dp"], asked["tp"]), mesh_dim_names=("dp", "tp"))
        if dist.get_rank() >= asked["dp"] * asked["tp"]:
            return "ranks left out"
        torch.manual_seed(0)
        made = Block(model)
        plan = {name: ColwiseParallel() for name in ("wq", "wk", "wv", "w1", "w3")}
        plan |= {name: RowwiseParallel() for name in ("wo", "w2")}
        plan["embed"] = RowwiseParallel(input_layouts=Replicate())
        plan["head"] = ColwiseParallel(output_layouts=Replicate())
        if asked["tp"] > 1:
            made = parallelize_module(made, mesh["tp"], plan)
        ids = torch.randint(0, model["vocab_size"], (asked["micro_batch"], asked["seq_len"]))
        made(ids).sum().backward()
        return ""

    return run


# -- Megatron-LM -----------------------------------------------------------------------------------


def megatron_core(args: Namespace) -> Tool:
    """Megatron-core alone: groups, a GPT model with rope and SwiGLU, and its forward."""
    sys.path.insert(0, str(args.megatron))
    torch.cuda.current_device = lambda: torch.device("cpu")
    from megatron.core import parallel_state
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer import dot_product_attention, torch_norm
    from megatron.core.transformer.transformer_block import get_num_layers_to_build
    from megatron.core.transformer.transformer_config import TransformerConfig

    torch_norm.WrappedTorchNorm.__new__ = lambda cls, config, hidden_size, eps=0.0, **more: nn.LayerNorm(
        hidden_size
    )
    tracker = SimpleNamespace(fork=contextlib.nullcontext)  # of random states, which live on a GPU
    dot_product_attention.tensor_parallel.get_cuda_rng_tracker = lambda: tracker

    def run(asked: Asked) -> str:
        model, tp, pp, stages = asked["model"], asked["tp"], asked["pp"], asked["virtual_stages"]
        virtual = stages if stages > 1 else None
        split = tp > 1 if asked["sequence_parallel"] is None else asked["sequence_parallel"]
        try:
            parallel_state.initialize_model_parallel(
                tp, pp, virtual, context_parallel_size=asked["cp"], create_gloo_process_groups=False
            )
            config = TransformerConfig(
                num_layers=model["n_layers"],
                hidden_size=model["dim"],
                num_attention_heads=model["n_heads"],
                num_query_groups=model["n_kv_heads"],
                kv_channels=model["head_dim"],
                ffn_hidden_size=model["ffn_dim"],
                tensor_model_parallel_size=tp,
                pipeline_model_parallel_size=pp,
                virtual_pipeline_model_parallel_size=virtual,
                context_parallel_size=asked["cp"],
                sequence_parallel=split,
                pipeline_dtype=torch.float32,
                use_cpu_initialization=True,
                gated_linear_unit=True,
                add_bias_linear=False,
                bias_dropout_fusion=False,
                attention_dropout=0.0,
                hidden_dropout=0.0,
            )
            if pp > 1:
                for stage in range(stages):
                    get_num_layers_to_build(config, stage if virtual else None)
                return ""
            if asked["cp"] > 1:
                return ""
            made = GPTModel(
                config,
                get_gpt_layer_local_spec(),
                vocab_size=-(-model["vocab_size"] // (128 * tp)) * 128 * tp,
                max_sequence_length=asked["seq_len"],
                position_embedding_type="rope",
                share_embeddings_and_output_weights=model["tied"],
            )
            ids = torch.randint(0, model["vocab_size"], (asked["micro_batch"], asked["seq_len"]))
            positions = torch.arange(asked["seq_len"]).expand_as(ids)
            hidden = torch.ones(1, 1, asked["seq_len"], asked["seq_len"], dtype=torch.bool).triu(1)
            with torch.no_grad():
                made(ids, positions, hidden, labels=ids)
        finally:
            parallel_state.destroy_model_parallel()
        return ""

    return run


def megatron_arguments(args: Namespace) -> Tool:
    """The statements of Megatron-LM's `validate_args` that speak of a layout, in their order."""
    text = (args.megatron / "megatron/training/arguments.py").read_text()
    given = SimpleNamespace()
    validate = fragment(
        text,
        "total_model_size = (",
        "args.world_size % total_model_size == 0",
        "args.virtual_pipeline_model_parallel_size = None\n    else:\n        # Only set VPP",
        "if args.virtual_pipeline_model_parallel_size is not None:\n        if args.overlap_p2p_comm:",
        "if args.seq_length is not None and args.context_parallel_size > 1",
        args=given,
    )

    def run(asked: Asked) -> str:
        layers, pp, virtual = asked["model"]["n_layers"], asked["pp"], asked["virtual_stages"]
        vars(given).update(
            world_size=asked["gpus"],
            tensor_model_parallel_size=asked["tp"],
            pipeline_model_parallel_size=pp,
            transformer_pipeline_model_parallel_size=pp,
            context_parallel_size=asked["cp"],
            gtp_weight_remat_size=1,
            num_layers=layers,
            num_layers_per_virtual_pipeline_stage=-(-(layers // pp) // virtual) or 1 if virtual > 1 else None,
            num_virtual_stages_per_pipeline_rank=None,
            virtual_pipeline_model_parallel_size=None,
            hybrid_layer_pattern=None,
            decoder_first_pipeline_num_layers=None,
            decoder_last_pipeline_num_layers=None,
            account_for_embedding_in_pipeline_split=False,
            account_for_loss_in_pipeline_split=False,
            overlap_p2p_comm=True,
            align_param_gather=False,
            rank=0,
            seq_length=asked["seq_len"],
        )
        validate()
        return ""

    return run


TOOLS: dict[str, Callable[[Namespace], Tool]] = {
    "llama-models": llama_models,
    "torchtitan": torchtitan,
    "megatron-core": megatron_core,
    "megatron-arguments": megatron_arguments,
    "transformers": transformers,
    "dtensor": dtensor,
}

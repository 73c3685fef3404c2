"""The "copy as" texts: each says the same job again, in the words of whoever will read it."""

from __future__ import annotations

import argparse
import re
import shlex
import sys
import types
from dataclasses import replace
from functools import wraps
from typing import Any

import pytest
from hypothesis import given

import llamapar as lp
from inputs import jobs
from llamapar.cli import main as cli
from llamapar.configs import export
from llamapar.configs.export import EXPORTS
from llamapar.describe.options import EXPORT_TITLES
from llamapar.describe.splits import LAYER_SPLITS
from llamapar.rules.job_text import as_cli, as_python, exported

PAPER = lp.Job.of(
    "llama3.1-405b", lp.Layout(tp=8, cp=16, pp=16, dp=4), gpus=16384, seq_len=131072, batch_per_dp=16
)
NAMES = ["it's", 'a"b\\', "$(touch x) `id`", "line\nbreak", "\x1b[31m", "é→😀\u2028", "#", "", "-" * 300]


def job_of(asked: dict[str, Any]) -> tuple[lp.Job, str | None]:
    """The Job, and the framework's name, of the arguments of `lp.check`."""
    report = lp.check(**asked)
    return report.job, asked["framework"]


def from_python(text: str) -> lp.Report:
    """The report that the Python text makes, without the fixes that a refusal of `require` would look for."""
    names: dict[str, Any] = {}
    exec(text.replace("lp.require(", "lp.check("), names)
    return names["report"]  # type: ignore[no-any-return]


class Seen(Exception):
    """Carries the report that a command would print."""


def from_cli(text: str) -> lp.Report:
    """The report that the shell's words make."""
    check = lp.check

    @wraps(check)
    def watched(*arguments: Any, **options: Any) -> lp.Report:
        raise Seen(check(*arguments, **options))

    program, *words = shlex.split(text, comments=True)
    assert program == "llamapar"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("llamapar.rules.report.check", watched)
        try:
            cli.main(words)
        except Seen as seen:
            return seen.args[0]  # type: ignore[no-any-return]
    raise AssertionError(text)


def comments(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("#")]


# -- Python and the command line -----------------------------------------------------------------


@given(jobs())
def test_python_and_the_command_line_say_the_job_again(asked: dict[str, Any]) -> None:
    job, framework = job_of(asked)
    for report in (from_python(as_python(job, framework)), from_cli(as_cli(job, framework))):
        assert report.job == job
        assert (report.judge.name if report.judge else None) == framework


def test_python_whole() -> None:
    assert as_python(PAPER, "titan") == (
        "# llama3.1-405b: tp=8 cp=16 pp=16 dp=4 (8192 ranks)\n"
        "import llamapar as lp\n\n"
        "report = lp.require(\n"
        "    'llama3.1-405b',\n"
        "    lp.Layout(tp=8, cp=16, pp=16, dp=4),\n"
        "    gpus=16384,\n    seq_len=131072,\n    batch_per_dp=16,\n    framework='torchtitan',\n)\n"
    )


def test_cli_whole() -> None:
    assert as_cli(PAPER.replace(padding=lp.Padding(128, per_tp=True))) == (
        "# llama3.1-405b: tp=8 cp=16 pp=16 dp=4 (8192 ranks)\n"
        "llamapar check --model llama3.1-405b --tp 8 --cp 16 --pp 16 --dp 4 --gpus 16384 --seq-len 131072 "
        "--batch-per-dp 16 --padding '128*tp'\n"
    )


def test_a_preset_with_other_dimensions_is_written_out() -> None:
    job = PAPER.replace(model=PAPER.model.replace(n_kv_heads=16))
    assert from_python(as_python(job)).job == job
    text = as_cli(job)
    assert "# left out: rope_scaling (no rule asks for it)" in comments(text)
    assert from_cli(text).job == job.replace(model=replace(job.model, rope_scaling=None))


# -- every text ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("title", EXPORT_TITLES.values())
def test_hostile_names_stay_names(title: str, name: str) -> None:
    plain = re.compile(r"# [A-Za-z0-9._+-]{1,60}: tp=8 cp=1 pp=1 dp=2 \(16 ranks\)")
    model = lp.model("llama2-7b").replace(name=name, n_layers=30)
    text = exported(title, lp.Job.of(model, lp.Layout(tp=8, dp=2)))
    assert plain.fullmatch(text.splitlines()[0])
    assert text.isascii() or title == "Megatron-LM"
    assert all(line.isprintable() for line in text.split("\n"))
    if title == "torchtitan":
        compile(text, title, "exec")
    if title == "Python":
        assert from_python(text).job.model == model
    if title == "CLI":
        assert from_cli(text).job.model == model


LEFT_OUT = {
    "torchtitan": ["zero=1", "order tp-cp-pp-dp", "padding multiple of 64", "kv_replication"],
    "Megatron-LM": ["padding multiple of 100", "kv_replication", "gpus=8", "quant_group=32"],
}


def test_nothing_is_dropped_in_silence() -> None:
    layout = lp.Layout(tp=8, cp=2, pp=2, dp=2, virtual_stages=2)
    known: dict[str, Any] = {"kv_replication": True, "quant_group": 32, "padding": lp.Padding(64)}
    texts = [EXPORTS["torchtitan"](lp.Job.of("llama3-8b", layout, **known))]
    known |= {"padding": lp.Padding(100), "gpus": 8, "quant_group": 32}
    texts.append(EXPORTS["Megatron-LM"](lp.Job.of("llama3-8b", layout, **known)))
    for text, expected in zip(texts, LEFT_OUT.values(), strict=True):
        for what in expected:
            assert f"\n# left out: {what} (" in text, (what, text)


# -- torchtitan ----------------------------------------------------------------------------------

TITAN_FIELDS = {
    *("data_parallel_replicate_degree", "data_parallel_shard_degree", "fsdp_reshard_after_forward"),
    *("tensor_parallel_degree", "enable_sequence_parallel", "context_parallel_degree", "num_pp_microbatches"),
    *("pipeline_parallel_degree", "pipeline_parallel_schedule", "pipeline_parallel_layers_per_stage"),
    *("pipeline_parallel_first_stage_less_layers", "pipeline_parallel_last_stage_less_layers"),
    *("max_context_length", "num_tokens_per_microbatch_per_dp_rank", "num_tokens_per_train_step"),
}
"""Fields of ParallelismConfig and TrainingConfig: pytorch/torchtitan, torchtitan/config/configs.py
@b5bcd76c66d0acb1a08b176d9639425bc55e0b2a."""


def from_torchtitan(text: str) -> tuple[dict[str, Any], types.SimpleNamespace]:
    """The settings that the function makes, and the whole configuration."""

    def base() -> types.SimpleNamespace:
        parts = {part: types.SimpleNamespace() for part in ("parallelism", "training")}
        return types.SimpleNamespace(
            loss=types.SimpleNamespace(loss_fn=types.SimpleNamespace()), model_spec=None, **parts
        )

    llama3 = types.ModuleType("torchtitan.models.llama3")
    llama3.model_registry = lambda flavour: flavour  # type: ignore[attr-defined]
    registry = types.ModuleType("torchtitan.models.llama3.config_registry")
    for name in ("llama3_8b", "llama3_70b", "llama3_405b"):
        setattr(registry, name, base)
    names: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        parents = (types.ModuleType(name) for name in ("torchtitan", "torchtitan.models"))
        for module in (*parents, llama3, registry):
            patch.setitem(sys.modules, module.__name__, module)
        exec(text, names)
    config = next(made for name, made in names.items() if name.startswith("run_"))()
    return {**vars(config.parallelism), **vars(config.training)}, config


@given(jobs())
def test_torchtitan_settings_are_its_own(asked: dict[str, Any]) -> None:
    job, _ = job_of(asked)
    lay = job.layout
    values, _ = from_torchtitan(export.as_torchtitan(job))
    assert set(values) <= TITAN_FIELDS
    degrees = [values[f"{axis}_parallel_degree"] for axis in ("tensor", "context", "pipeline")]
    assert degrees == [lay.tp, lay.cp, lay.pp]
    shared = values["data_parallel_replicate_degree"], values["data_parallel_shard_degree"]
    assert shared == ((lay.dp_replicate, lay.dp_shard) if lay.zero else (lay.dp, 1))
    assert values["enable_sequence_parallel"] is (lay.sequence_parallel is not False)
    assert values.get("max_context_length") == job.seq_len
    if lay.pp > 1:
        schedule = "1F1B" if lay.virtual_stages == 1 else "Interleaved1F1B"
        assert values["pipeline_parallel_schedule"] == schedule
        assert values.get("num_pp_microbatches") == job.n_micro_batches


def test_torchtitan_batch_is_counted_in_tokens() -> None:
    job = lp.Job.of("llama3.1-8b", lp.Layout(dp=4, pp=2), seq_len=8192, micro_batch=2, global_batch=64)
    values, _ = from_torchtitan(export.as_torchtitan(job))
    assert values["num_tokens_per_microbatch_per_dp_rank"] == 16384
    assert values["num_pp_microbatches"] == 8
    assert values["num_tokens_per_train_step"] == 16384 * 8 * 4 == 64 * 8192


@pytest.mark.parametrize(
    ("name", "base", "spec"),
    [
        ("llama3.1-8b", "llama3_8b", None),
        ("llama3.3-70b", "llama3_70b", None),
        ("llama3.1-405b", "llama3_405b", None),
        ("llama3.2-1b", "llama3_8b", "1B"),
        ("llama2-7b", "llama3_8b", "llama2-7b"),
        ("llama3.1-405b-mp16", "llama3_8b", "llama3.1-405b-mp16"),
    ],
)
def test_torchtitan_model(name: str, base: str, spec: str | None) -> None:
    text = export.as_torchtitan(lp.Job.of(name, lp.Layout()))
    assert f"    config = {base}()\n" in text
    _, config = from_torchtitan(text)
    assert config.model_spec == spec
    own = spec in (None, "1B")
    assert vars(config.loss.loss_fn) == ({} if own else {"global_vocab_size": lp.model(name).vocab_size})
    assert own == ("has no flavour of these dimensions" not in text)


# -- Megatron-LM ---------------------------------------------------------------------------------

MEGATRON_FLAGS: dict[Any, tuple[str, ...]] = {
    int: (
        *("num-layers", "hidden-size", "ffn-hidden-size", "num-attention-heads", "kv-channels"),
        *("num-query-groups", "vocab-size", "max-position-embeddings", "rotary-base", "seq-length"),
        *("tensor-model-parallel-size", "context-parallel-size", "micro-batch-size"),
        *("pipeline-model-parallel-size", "num-virtual-stages-per-pipeline-rank"),
        *("num-distributed-optimizer-instances", "make-vocab-size-divisible-by"),
        "global-batch-size",
    ),
    float: ("rope-scaling-factor", "norm-epsilon"),
    str: (
        *("normalization", "position-embedding-type", "pipeline-model-parallel-layout"),
        *("ckpt-format", "data-parallel-sharding-strategy"),
    ),
    bool: (
        *("group-query-attention", "use-rope-scaling", "swiglu", "disable-bias-linear"),
        *("add-qkv-bias", "qk-layernorm"),
        *("untie-embeddings-and-output-weights", "sequence-parallel"),
        *("use-tp-pp-dp-mapping", "use-distributed-optimizer", "use-megatron-fsdp"),
        *("account-for-embedding-in-pipeline-split", "account-for-loss-in-pipeline-split"),
    ),
}
"""Flags and their types: NVIDIA/Megatron-LM @d98e8a64ddf34856e74b24714e3bedb2f5a39553, megatron/training/
arguments.py and the config dataclasses that become flags (ArgumentGroupFactory)."""


def from_megatron(text: str) -> tuple[argparse.Namespace, int]:
    """The flags as pretrain_gpt.py would see them, and the number of processes."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for kind, names in MEGATRON_FLAGS.items():
        for name in names:
            parser.add_argument(f"--{name}", **({"action": "store_true"} if kind is bool else {"type": kind}))
    torchrun, nodes, n, per_node, each, script, *flags = shlex.split(text.replace("\\\n", ""), comments=True)
    assert (torchrun, nodes, per_node) == ("torchrun", "--nnodes", "--nproc-per-node")
    assert script == "pretrain_gpt.py"
    return parser.parse_args(flags), int(n) * int(each)


def megatron_counts(flags: argparse.Namespace, stages: int) -> list[int] | None:
    """Layers per stage that Megatron makes of its flags; None where it refuses."""
    if layout := flags.pipeline_model_parallel_layout:
        drawn = re.sub(r"(.)\*(\d+)", lambda m: m[1] * int(m[2]), layout).split("|")
        assert (drawn[0][0], drawn[-1][-1], len(drawn)) == ("E", "L", stages)
        return [stage.count("t") for stage in drawn]
    ends = flags.account_for_embedding_in_pipeline_split
    assert ends == flags.account_for_loss_in_pipeline_split
    layers = flags.num_layers + 2 * ends
    if layers % stages:
        return None
    counts = [layers // stages] * stages
    counts[0] -= ends
    counts[-1] -= ends
    return counts


@given(jobs())
def test_megatron_flags_say_the_numbers(asked: dict[str, Any]) -> None:
    job, _ = job_of(asked)
    lay, m = job.layout, job.model
    text = export.as_megatron(job)
    flags, processes = from_megatron(text)
    sizes = flags.tensor_model_parallel_size, flags.context_parallel_size, flags.pipeline_model_parallel_size
    assert sizes == (lay.tp, lay.cp, lay.pp)
    assert processes == lay.world
    assert processes // (lay.tp * lay.cp * lay.pp) == lay.dp
    assert (flags.num_layers, flags.hidden_size, flags.ffn_hidden_size) == (m.n_layers, m.dim, m.ffn_dim)
    groups = flags.num_query_groups if flags.group_query_attention else flags.num_attention_heads
    assert (flags.num_attention_heads, groups, flags.kv_channels) == (m.n_heads, m.n_kv_heads, m.head_dim)
    assert flags.untie_embeddings_and_output_weights is not m.tied
    assert (flags.add_qkv_bias, flags.qk_layernorm) == (m.qkv_bias, m.qk_norm)
    assert flags.sequence_parallel is lay.sp
    assert flags.seq_length == job.seq_len
    assert flags.use_distributed_optimizer is (lay.zero > 0)
    padding = job.padding or lp.Padding(128, per_tp=True)
    if "left out: padding" not in text:
        multiple = flags.make_vocab_size_divisible_by or 128
        own = lp.Padding(multiple, per_tp=True)
        assert own.padded(m.vocab_size, lay.tp) == padding.padded(m.vocab_size, lay.tp)


@given(jobs())
def test_megatron_splits_the_layers_as_asked(asked: dict[str, Any]) -> None:
    job, _ = job_of(asked)
    stages, layers, text = job.layout.stages, job.model.n_layers, export.as_megatron(job)
    counts = megatron_counts(from_megatron(text)[0], stages)
    if "left out: layer_split" in text:
        assert stages > layers + 2 or (job.layer_split == "equal" and layers % stages)
    elif stages > 1:
        own = "equal" if layers % stages == 0 else "balanced ends"
        assert counts == LAYER_SPLITS[job.layer_split or own](layers, stages, job.model.head_layers)


def test_megatron_405b_needs_the_account_for_flags() -> None:
    text = export.as_megatron(PAPER)
    assert "# 126 layers do not divide over 16 stages: embedding and head are counted in" in comments(text)
    assert "# DP is not a flag: 8192 ranks / (tp·cp·pp = 8·16·16) = 4" in comments(text)
    flags, _ = from_megatron(text)
    assert megatron_counts(flags, 16) == [7, *[8] * 14, 7]
    assert flags.use_tp_pp_dp_mapping
    assert not any("order" in comment for comment in comments(text))


def test_qk_norms_in_settings() -> None:
    job = lp.Job.of("qwen3-8b", {"tp": 2})
    assert "# left out: QK norms (its Llama 3 has none)" in EXPORTS["torchtitan"](job)
    assert "--qk-layernorm \\\n" in EXPORTS["Megatron-LM"](job)

"""One row per rule: when it applies, its severity, its message, and its repairs.

The severity here is the judgement of the paper's own semantics (The Llama 3 Herd of Models, section 3.3): KV
heads are not replicated unless asked, uneven stages are allowed, vocabulary padding is a note. What a real
framework does instead is evidence in `frameworks`, by rule code.
"""

from __future__ import annotations

from llamapar.describe.cp_methods import WHOLE_HEADS

from . import repairs
from .memory_rows import MEMORY
from .repairs import ERROR, NOTE, SEVERITIES, WARNING, indivisible, multiples, product_differs
from .rule import Rule

# -- the table -------------------------------------------------------------------------------------

ARITHMETIC: tuple[Rule, ...] = (
    Rule(
        "LP001",
        "ranks and GPUs",
        lambda j, _: product_differs(j.gpus, j.layout.world),
        "tp·cp·pp·dp = {tp}·{cp}·{pp}·{dp} = {world}, but {there_are_gpus}",
        "every GPU is one rank; {idle} would be missing or idle",
        repairs=lambda j: [{"gpus": j.layout.world}],
        layouts_first=True,
        if_na=WARNING,
    ),
    Rule(
        "LP002",
        "tokens of a batch",
        lambda j, _: product_differs(j.batch_tokens, j.batch_per_dp, j.layout.dp, j.seq_len),
        "batch_per_dp·dp·seq_len = {batch_per_dp}·{dp}·{seq_len} = {tokens_got} tokens, "
        "but the batch has {batch_tokens}",
        "each of the dp groups reads its own sequences; CP and TP ranks share them",
        repairs=repairs.products("batch_tokens", ("dp", "batch_per_dp", "seq_len"), ("dp", "batch_per_dp")),
        layouts_first=True,
        of_facts=True,
    ),
    Rule(
        "LP003",
        "TP inside a node",
        lambda j, _: j.leaves_node("tp"),
        "a TP group of {tp} ranks spans {node_span} consecutive GPUs and leaves its node of {gpus_per_node}",
        "TP communicates in every layer; across nodes it runs at the speed of the network",
        severity=lambda j: WARNING,
        repairs=repairs.tp_fastest,
        axis="tp",
    ),
    Rule(
        "LP101",
        "query heads",
        lambda j, _: j.model.n_heads % j.layout.tp != 0,
        "tp={tp} does not divide n_heads={n_heads} ({model})",
        "a rank would need {heads_share}",
        axis="tp",
    ),
    Rule(
        "LP103",
        "FFN columns",
        lambda j, _: j.model.ffn_dim % j.layout.tp != 0 and not j.model.experts,
        "tp={tp} does not divide ffn_dim={ffn_dim} ({model})",
        "a rank would need {ffn_each} FFN columns",
        axis="tp",
    ),
    Rule(
        "LP104",
        "KV heads",
        lambda j, _: j.model.n_kv_heads % j.layout.tp != 0,
        "tp={tp} does not divide n_kv_heads={n_kv_heads} ({model})",
        "a rank would need {kv_share}",
        severity=lambda j: NOTE if j.kv_replication and j.kv_replicas > 1 else ERROR,
        repairs=repairs.copied_kv_heads,
        layouts_first=True,
        axis="tp",
    ),
    Rule(
        "LP105",
        "vocabulary rows",
        lambda j, p: bool(
            j.model.vocab_size % j.layout.tp or j.model.vocab_size % (j.padding or p).unit(j.layout.tp)
        ),
        "vocab_size={vocab_size} over tp={tp}: a full rank holds {vocab_local} of {vocab_padded} rows, "
        "{padded}",
        "{vocab_size} / {tp} = {vocab_each}; {pads_where}",
        severity=lambda j: NOTE,
    ),
    Rule(
        "LP106",
        "padded vocabulary in checkpoints",
        lambda j, p: j.model.vocab_size % (j.padding or p).unit(j.layout.tp) != 0,
        "{pad_rows} pad rows ({vocab_size} → {vocab_padded}) reach the checkpoint code",
        "a shard of {vocab_local} rows times tp={tp} is {vocab_padded}, not {vocab_size}",
        severity=lambda j: None,
        repairs=repairs.smaller_padding,
    ),
    Rule(
        "LP107",
        "quantisation groups",
        lambda j, _: (
            j.model.ffn_dim % j.layout.tp == 0
            and indivisible(j.model.ffn_dim // j.layout.tp, j.quant_group)
            and not j.model.experts
        ),
        "ffn_dim/tp = {ffn_dim}/{tp} = {ffn_exact} is not a multiple of the quantisation group {quant_group}",
        "a group of weights shares one scale and cannot lie on two ranks",
        axis="tp",
    ),
    Rule(
        "LP108",
        "sizes of float8 matmuls",
        lambda j, _: bool(j.float8_sizes),
        "float8 matmuls need multiples of 16 on a rank, and tp={tp} leaves {float8_sizes} ({model})",
        "torch's float8 matmul refuses other sizes",
        repairs=lambda j: [{"precision": "bfloat16"}],
        layouts_first=True,
    ),
    Rule(
        "LP109",
        "experts",
        lambda j, _: j.model.experts is not None,
        "not judged: {unjudged} ({model})",
        "which rank holds an expert, and which tokens travel to it, depends on the trainer; "
        "everything else is judged as of a dense model",
        severity=lambda j: NOTE,
    ),
    Rule(
        "LP201",
        "sequence over CP",
        lambda j, _: j.layout.cp > 1 and indivisible(j.seq_len, 2 * j.layout.cp),
        "seq_len={seq_len} does not divide into 2·cp = {cp2} chunks",
        "each CP rank takes one chunk from the head and one from the tail; a chunk would have "
        "{seq_chunk} tokens",
        repairs=lambda j: multiples("seq_len", j.seq_len, j.token_unit),
        axis="cp",
    ),
    Rule(
        "LP202",
        "sequence over TP",
        repairs.sequence_sp,
        "seq_len/cp = {seq_len}/{cp} = {seq_local} tokens do not divide over tp={tp} "
        "with sequence parallelism",
        "a rank would need {seq_sp} tokens of the residual stream",
        repairs=lambda j: [*multiples("seq_len", j.seq_len, j.token_unit), {"sequence_parallel": False}],
        axis="tp",
    ),
    Rule(
        "LP203",
        "context length",
        lambda j, _: bool(j.seq_len and (j.seq_len > j.model.max_seq_len or j.seq_len > 8192)),
        "seq_len={seq_len} is longer than the model's context of {max_seq_len} ({model})",
        "positions past it were never trained",
        severity=lambda j: WARNING if (j.seq_len or 0) > j.model.max_seq_len else None,
        repairs=lambda j: [{"seq_len": j.model.max_seq_len}, {"seq_len": 8192}],
    ),
    Rule(
        "LP204",
        "sequence parallel without TP",
        lambda j, _: j.layout.sequence_parallel is True and j.layout.tp == 1,
        "sequence_parallel=True has no effect at tp=1",
        "it shares the residual stream among the ranks of a TP group",
        severity=lambda j: NOTE,
        repairs=lambda j: [{"sequence_parallel": None}],
    ),
    Rule(
        "LP205",
        "tokens of a micro-batch",
        repairs.off_the_unit,
        "{tokens_per_micro_batch} tokens of a micro-batch are not a multiple of tp·2·cp = {token_unit}",
        "a chunk of the head or the tail has {seq_chunk} tokens, which do not divide over tp={tp}",
        severity=lambda j: None,
        repairs=lambda j: multiples("seq_len", j.seq_len, j.token_unit),
    ),
    Rule(
        "LP206",
        "heads over CP",
        lambda j, _: j.cp_method not in WHOLE_HEADS and bool(j.untradable(False)),
        "cp_method={cp_method}: {heads_traded}",
        "an all-to-all gives each CP rank all tokens of whole heads{kv_traded}",
        severity=lambda j: ERROR if j.untradable(j.kv_replication) else NOTE,
        repairs=repairs.other_cp_methods,
        axis="cp",
    ),
    Rule(
        "LP301",
        "layers over stages",
        lambda j, _: j.layout.pp > 1 and j.model.n_layers % j.layout.pp != 0,
        "n_layers={n_layers} does not divide over pp={pp} ({model})",
        "{n_layers}/{pp} = {layers_per_rank} is not whole, so stages differ in length",
        severity=lambda j: ERROR if j.layer_split == "equal" else NOTE,
        repairs=repairs.account_for_ends,
    ),
    Rule(
        "LP302",
        "more stages than layers",
        lambda j, _: j.layout.stages > j.model.n_layers + 2,
        "pp·virtual_stages = {pp}·{virtual_stages} = {stages} stages for {n_layers} layers ({model})",
        "embedding and head counted as a layer each, there is work for {effective_layers} stages",
        repairs=lambda j: [{"virtual_stages": 1}],
        layouts_first=True,
        of_facts=True,
    ),
    Rule(
        "LP303",
        "layers over virtual stages",
        lambda j, _: (
            j.layout.virtual_stages > 1
            and j.model.n_layers % j.layout.pp == 0
            and j.model.n_layers % j.layout.stages != 0
        ),
        "n_layers={n_layers} does not divide over pp·virtual_stages = {pp}·{virtual_stages} = {stages}",
        "flooring twice keeps {layers_kept} of {n_layers} layers; virtual stages must differ instead",
        severity=lambda j: ERROR if j.layer_split == "equal" else NOTE,
        repairs=lambda j: [*repairs.account_for_ends(j), {"virtual_stages": 1}],
    ),
    Rule(
        "LP304",
        "tied embedding over PP",
        lambda j, _: j.model.tied and j.layout.pp > 1,
        "{model} ties its head to the embedding, and pp={pp} puts them on different stages",
        "the first and the last stage each need the tensor, and its gradients must be summed",
        severity=lambda j: WARNING,
        axis="pp",
    ),
    Rule(
        "LP305",
        "micro-batches and stages",
        lambda j, _: (
            j.layout.pp > 1
            and j.layout.virtual_stages == 1
            and (j.n_micro_batches or j.layout.pp) < j.layout.pp
        ),
        "micro_batches={micro_batches} is less than pp={pp}",
        "1F1B needs one for every stage; with fewer, some stages always wait",
        severity=lambda j: WARNING,
        repairs=repairs.more_micro_batches,
    ),
    Rule(
        "LP306",
        "micro-batches when interleaved",
        lambda j, _: (
            j.layout.pp > 1 and j.layout.virtual_stages > 1 and indivisible(j.n_micro_batches, j.layout.pp)
        ),
        "micro_batches={micro_batches} is not a multiple of pp={pp} with virtual_stages={virtual_stages}",
        "the interleaved schedule runs micro-batches in groups of pp; Llama 3's own takes any number",
        severity=lambda j: NOTE,
        repairs=repairs.more_micro_batches,
    ),
    Rule(
        "LP307",
        "interleaving without PP",
        lambda j, _: j.layout.virtual_stages > 1 and j.layout.pp == 1,
        "virtual_stages={virtual_stages} with pp=1",
        "interleaving shortens a pipeline's bubble; one stage has none",
        severity=lambda j: WARNING,
        repairs=lambda j: [{"virtual_stages": 1}],
    ),
    Rule(
        "LP308",
        "ZeRO with PP",
        lambda j, _: j.layout.zero >= 2 and j.layout.pp > 1,
        "zero={zero} with pp={pp}",
        "{reductions}",
        severity=lambda j: WARNING if j.layout.zero == 3 else NOTE,
        repairs=lambda j: [{"zero": 1}],
    ),
    Rule(
        "LP309",
        "ends counted as layers",
        repairs.ends_do_not_fit,
        "n_layers + 2 = {effective_layers} does not divide over pp·virtual_stages = {stages} ({model})",
        "the embedding and the head were asked to count as a layer each",
        severity=lambda j: None,
        repairs=lambda j: [{"layer_split": None}],
    ),
    Rule(
        "LP401",
        "global batch",
        lambda j, _: indivisible(j.global_batch, j.layout.dp * (j.micro_batch or 1)),
        "global_batch={global_batch} is not a multiple of dp·micro_batch = {dp}·{batch} = {batch_unit}",
        "every DP group must run the same whole number of micro-batches",
        repairs=lambda j: multiples("global_batch", j.global_batch, j.layout.dp * (j.micro_batch or 1)),
        of_facts=True,
    ),
    Rule(
        "LP402",
        "batch of a DP group",
        lambda j, _: product_differs(j.global_batch, j.batch_per_dp, j.layout.dp),
        "batch_per_dp·dp = {batch_per_dp}·{dp} = {sequences_got}, but global_batch={global_batch}",
        "both count the sequences of one step",
        repairs=repairs.products("global_batch", ("dp", "batch_per_dp"), ("dp",)),
        layouts_first=True,
        of_facts=True,
    ),
    Rule(
        "LP403",
        "micro-batch in a DP group",
        lambda j, _: indivisible(j.batch_per_dp, j.micro_batch),
        "batch_per_dp={batch_per_dp} is not a multiple of micro_batch={micro_batch}",
        "a DP group cuts its sequences into whole micro-batches",
        repairs=lambda j: multiples("batch_per_dp", j.batch_per_dp, j.micro_batch or 1),
        of_facts=True,
    ),
    Rule(
        "LP404",
        "global batch in tokens",
        lambda j, _: product_differs(j.batch_tokens, j.global_batch, j.seq_len),
        "global_batch·seq_len = {global_batch}·{seq_len} = {global_tokens} tokens, "
        "but the batch has {batch_tokens}",
        "both count the tokens of one step",
        repairs=repairs.products("batch_tokens", ("global_batch", "seq_len")),
        of_facts=True,
    ),
    Rule(
        "LP405",
        "micro-batches of a step",
        lambda j, _: (
            bool(j.micro_batches)
            and product_differs(j.sequences, j.micro_batches, j.micro_batch_size, j.layout.dp)
        ),
        "micro_batches·micro_batch·dp = {micro_batches}·{batch}·{dp} = {sequences_cut}, "
        "but a step has {sequences} sequences",
        "the micro-batches of all DP groups are the sequences of one step",
        repairs=repairs.micro_batches_of_step,
        of_facts=True,
    ),
    Rule(
        "LP501",
        "axes of the framework",
        lambda j, _: j.layout.world > 1,
        "tp={tp} cp={cp} pp={pp} dp={dp}: not every framework offers all of these axes together",
        "a layout can only use the axes that are there",
        severity=lambda j: None,
        repairs=lambda j: [{"cp": 1}, {"cp": 1, "pp": 1, "dp": 1}],
        if_na=ERROR,
        layouts_first=True,
        axis="axes",
    ),
    Rule(
        "LP503",
        "features of the framework",
        lambda j, _: j.layout.zero > 1 or j.layout.virtual_stages > 1,
        "the framework does not offer all of zero={zero}, virtual_stages={virtual_stages}",
        "a run uses what its trainer has",
        severity=lambda j: None,
        repairs=lambda j: [{"zero": 1}, {"virtual_stages": 1}, {"zero": 1, "virtual_stages": 1}],
        if_na=ERROR,
    ),
)

RULES = (*ARITHMETIC, *MEMORY)

RULE_BY_CODE = {rule.code: rule for rule in RULES}

__all__ = ["ARITHMETIC", "ERROR", "MEMORY", "NOTE", "RULES", "RULE_BY_CODE", "SEVERITIES", "WARNING", "Rule"]

"""Conditions and repairs of rules that need more than a line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from llamapar.describe.job import Job
from llamapar.describe.splits import Padding

Changes = dict[str, Any]
"""New values of fields of a Job or of its Layout."""

ERROR, WARNING, NOTE = "error", "warning", "note"
SEVERITIES = (ERROR, WARNING, NOTE)


def multiples(field: str, value: int, unit: int) -> Iterator[Changes]:
    """`field` set to the multiples of `unit` on either side of `value`."""
    down = value // unit * unit
    if down:
        yield {field: down}
    yield {field: down + unit}


def batch_products(job: Job) -> Iterator[Changes]:
    """dp, or else the batch of a DP group, that makes the tokens of the batch come out."""
    if not (job.batch_tokens and job.batch_per_dp and job.seq_len):
        return
    per_way = job.batch_per_dp * job.seq_len
    if job.batch_tokens % per_way == 0:
        yield {"dp": job.batch_tokens // per_way}
    per_sequence = job.layout.dp * job.seq_len
    if job.batch_tokens % per_sequence == 0:
        yield {"batch_per_dp": job.batch_tokens // per_sequence}
    yield {"batch_tokens": per_way * job.layout.dp}


def batch_of_groups(job: Job) -> Iterator[Changes]:
    """dp, or else the global batch, that makes the sequences of a step come out."""
    if not (job.global_batch and job.batch_per_dp):
        return
    if job.global_batch % job.batch_per_dp == 0:
        yield {"dp": job.global_batch // job.batch_per_dp}
    yield {"global_batch": job.batch_per_dp * job.layout.dp}


def tp_leaves_node(job: Job, _: Padding) -> bool:
    lay = job.layout
    block = lay.stride("tp") * lay.tp
    return lay.tp > 1 and lay.world > job.gpus_per_node and job.gpus_per_node % block != 0


def tp_fastest(job: Job) -> Iterator[Changes]:
    """TP moved to the front of the rank order, where its ranks are neighbours."""
    lay = job.layout
    if lay.stride("tp") > 1:
        yield {"order": "-".join(["tp", *(axis for axis in lay.axes if axis != "tp")])}


def smaller_padding(job: Job) -> Iterator[Changes]:
    """The largest padding unit per TP rank that adds no row."""
    for multiple in (64, 32, 16, 8, 4, 2, 1):
        if job.model.vocab_size % (multiple * job.layout.tp) == 0:
            yield {"padding": Padding(multiple, per_tp=True)}
            return


def quant_cut(job: Job, _: Padding) -> bool:
    group, tp, m = job.quant_group, job.layout.tp, job.model
    if not group or m.ffn_dim % tp:
        return False
    return m.ffn_dim // tp % group != 0


def kv_severity(job: Job) -> str:
    return NOTE if job.kv_replication and job.kv_replicas > 1 else ERROR


def off_the_unit(job: Job, _: Padding) -> bool:
    """CP and TP each cut the sequence evenly, but not one inside the other."""
    lay, seq = job.layout, job.seq_len
    even = bool(seq and lay.cp > 1 and seq % (2 * lay.cp) == 0 and not sequence_sp(job, _))
    return even and (job.micro_batch or 1) * (seq or 0) % job.token_unit != 0


def ends_do_not_fit(job: Job, _: Padding) -> bool:
    """The layers divide, but not with the embedding and the head counted, which was asked for."""
    layers, stages = job.model.n_layers, job.layout.stages
    counted = job.layer_split == "balanced ends" and job.layout.pp > 1
    return counted and layers % stages == 0 and (layers + 2) % stages != 0


def uneven_severity(job: Job) -> str:
    return ERROR if job.layer_split == "equal" else NOTE


def account_for_ends(job: Job) -> Iterator[Changes]:
    if job.layer_split != "balanced ends":
        yield {"layer_split": "balanced ends"}


def replicate(job: Job) -> Iterator[Changes]:
    if job.kv_replicas > 1 and not job.kv_replication:
        yield {"kv_replication": True}


def few_micro_batches(job: Job, _: Padding) -> bool:
    count, lay = job.n_micro_batches, job.layout
    return count is not None and lay.pp > 1 and lay.virtual_stages == 1 and count < lay.pp


def ragged_micro_batches(job: Job, _: Padding) -> bool:
    count, lay = job.n_micro_batches, job.layout
    return count is not None and lay.pp > 1 and lay.virtual_stages > 1 and count % lay.pp != 0


def more_micro_batches(job: Job) -> Iterator[Changes]:
    if job.micro_batches is not None:
        yield from multiples("micro_batches", max(job.micro_batches, job.layout.pp), job.layout.pp)


def sequence_sp(job: Job, _: Padding) -> bool:
    lay, seq = job.layout, job.seq_len
    return bool(seq and lay.sp and seq % lay.cp == 0 and seq // lay.cp % lay.tp)

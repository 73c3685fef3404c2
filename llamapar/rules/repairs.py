"""Conditions and repairs of rules that need more than a line."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from llamapar.describe.job import Job
from llamapar.describe.models import PRESETS
from llamapar.describe.splits import Padding

Changes = Mapping[str, object]
"""New values of fields of a Job or of its Layout."""

Repairs = Callable[[Job], Iterable[Changes]]

ERROR = "error"
WARNING = "warning"
NOTE = "note"
SEVERITIES = (ERROR, WARNING, NOTE)


def product(*factors: int | None) -> int:
    """All factors multiplied; 0 if one of them is unknown."""
    # 0 stands for "unknown" in every rule, because no factor here can be 0 itself.
    known = [factor for factor in factors if factor]
    if len(known) == len(factors):
        return math.prod(known)
    return 0


def product_differs(total: int | None, *factors: int | None) -> bool:
    """Whether the product of the factors differs from the total; False if one of them is unknown."""
    return bool(total and product(*factors) not in (0, total))


def indivisible(total: int | None, unit: int | None) -> bool:
    """Whether the unit does not divide the total; False if one of them is unknown."""
    return bool(total and unit and total % unit)


def multiples(field: str, value: int | None, unit: int) -> Iterator[Changes]:
    """`field` set to the multiples of `unit` on either side of `value`."""
    # A value below the unit has no multiple below it but 0, which is no setting.
    down = (value or 0) // unit * unit
    if down:
        yield {field: down}
    yield {field: down + unit}


def products(total: str, factors: Sequence[str], changed: Sequence[str] = ()) -> Repairs:
    """Repairs so that the factors multiply to the total: one of the `changed` factors, else the total."""

    def repairs(job: Job) -> Iterator[Changes]:
        values = {name: job.layout.dp if name == "dp" else getattr(job, name) for name in factors}
        made = product(*values.values())
        wanted = getattr(job, total)
        if not (made and wanted):
            return
        for name in changed:
            # `made` is the product of all factors, so this is the product of the other ones.
            others = made // values[name]
            if wanted % others == 0:
                yield {name: wanted // others}
        yield {total: made}

    return repairs


def copied_kv_heads(job: Job) -> Iterator[Changes]:
    """Each KV head on several ranks: a preset whose checkpoint stores it so, or the trainer's copies."""
    m = job.model
    # Some checkpoints store each KV head several times, so the same model exists with more KV heads.
    for stored in PRESETS.values() if job.kv_replicas > 1 else ():
        if stored.n_kv_heads == job.layout.tp and stored.replace(name=m.name, n_kv_heads=m.n_kv_heads) == m:
            yield {"model": stored, "kv_replication": False}
    if job.kv_replicas > 1 and not job.kv_replication:
        yield {"kv_replication": True}


def tp_fastest(job: Job) -> Iterator[Changes]:
    """TP moved to the front of the rank order, where its ranks are neighbours."""
    lay = job.layout
    # TP that is already fastest leaves its node by its size, which no order mends.
    if lay.stride("tp") > 1:
        yield {"order": "-".join(["tp", *(axis for axis in lay.axes if axis != "tp")])}


def other_cp_methods(job: Job) -> Iterator[Changes]:
    """Heads traded by as many ranks as can, in a ring of such groups; else a ring alone."""
    lay = job.layout
    kv = max(1, job.model.n_kv_heads // job.layout.tp)
    heads = math.gcd(lay.cp, kv, max(1, job.model.n_heads // lay.tp))
    yield {"cp_method": f"ulysses:{heads}" if heads > 1 else "ring"}
    yield {"cp_method": "ring"}


def smaller_padding(job: Job) -> Iterator[Changes]:
    """The largest padding unit per TP rank that adds no row."""
    # Powers of two down to 1, so the first that divides is the largest.
    for multiple in (64, 32, 16, 8, 4, 2, 1):
        if job.model.vocab_size % (multiple * job.layout.tp) == 0:
            yield {"padding": Padding(multiple, per_tp=True)}
            return


def off_the_unit(job: Job, _: Padding) -> bool:
    """Whether CP and TP each divide the sequence, but not one inside the other."""
    # LP201 and LP202 speak of each cut alone. This is what is left: both divide, the chunks within do
    # not.
    lay = job.layout
    seq = job.seq_len
    even = bool(seq and lay.cp > 1 and seq % (2 * lay.cp) == 0)
    return even and job.micro_batch_size * (seq or 0) % job.token_unit != 0 and not sequence_sp(job, _)


def ends_do_not_fit(job: Job, _: Padding) -> bool:
    """Whether the layers divide, but not when embedding and head count as layers, as was asked for."""
    layers = job.model.n_layers
    stages = job.layout.stages
    counted = job.layer_split == "balanced ends" and job.layout.pp > 1
    return counted and layers % stages == 0 and (layers + 2) % stages != 0


def account_for_ends(job: Job) -> Iterator[Changes]:
    if job.layer_split != "balanced ends":
        yield {"layer_split": "balanced ends"}


def micro_batches_of_step(job: Job) -> Iterator[Changes]:
    """As many as the sequences of a step make, if they make one."""
    many = (job.sequences or 0) // job.layout.dp // job.micro_batch_size
    if many:
        yield {"micro_batches": many}


def more_micro_batches(job: Job) -> Iterator[Changes]:
    if job.micro_batches is not None:
        yield from multiples("micro_batches", max(job.micro_batches, job.layout.pp), job.layout.pp)


def sequence_sp(job: Job, _: Padding) -> bool:
    lay = job.layout
    seq = job.seq_len
    return bool(seq and lay.sp and seq % lay.cp == 0 and seq // lay.cp % lay.tp)

"""The arithmetic between facts from readers: missing facts are derived, and contradictions are kept.

A degree of data parallelism is derived, and never taken from a name. Contradicting numbers are all kept.
"""

from __future__ import annotations

import math

from llamapar.frameworks.settings import DIMS, Contradiction

from .draft import Draft


def settle(draft: Draft) -> None:
    """Derive the facts that follow from the others, and record each contradiction."""
    _settle_ranks(draft)
    if draft.training:
        _settle_batch(draft)
        if "zero" in draft.unknown:
            saves = draft.get("saves")
            held = ()
            if isinstance(saves, tuple):
                held = saves
            draft.derive("saves", (*held, "zero"), "the stage of ZeRO is not known")
    asked = draft.facts.get("sequence_parallel")
    if draft.number("tp") == 1:
        if asked and asked.value and asked.origin.line:
            draft.ignored.append(f"sequence parallelism ({asked.origin}): tp=1")
        draft.derive("sequence_parallel", False, "tp = 1")
    if draft.number("pp") is not None:
        draft.unless_said("virtual_stages", 1, "none given")
    _say_unknown(draft)


def _settle_ranks(draft: Draft) -> None:
    degrees = {axis: draft.number(axis) for axis in ("tp", "cp", "pp")}
    gpus = draft.number("gpus")
    dp = draft.number("dp")
    replicate = draft.number("dp_replicate")
    # Without all three degrees the GPUs that are left for dp cannot be counted, so a stated dp would
    # prove nothing.
    if None in degrees.values():
        for name in ("dp", "dp_shard"):
            draft.facts.pop(name, None)
        open_degrees = ", ".join(axis for axis, n in degrees.items() if n is None)
        draft.unknown.setdefault("dp", f"gpus and {open_degrees} would say it")
        return
    ways = math.prod(n for n in degrees.values() if n)
    words = "·".join(str(n) for n in degrees.values())
    shard = draft.number("dp_shard")
    # `fills` means that one degree takes the remaining GPUs (-1 in a file), so its value follows from the
    # world and not the other way round.
    if draft.fills:
        dp = shard = None
    elif dp is None and shard is not None:
        dp = shard * (replicate or 1)
        draft.derive("dp", dp, f"{replicate or 1} replicas · {shard} shards")
    if gpus is not None and dp is not None:
        # Both numbers are kept: which of the files is wrong is for a person to say.
        if ways * dp != gpus:
            why = f"tp·cp·pp·dp = {words}·{dp} = {ways * dp}"
            draft.contradictions.append(Contradiction("gpus", (gpus, ways * dp), why))
    elif gpus is not None and gpus % ways:
        why = f"tp·cp·pp = {words} = {ways} does not divide {gpus} GPUs"
        draft.contradictions.append(Contradiction("gpus", (gpus, ways), why))
        draft.missing("dp", why)
    elif gpus is not None:
        dp = gpus // ways
        draft.derive("dp", dp, f"{gpus} GPUs / (tp·cp·pp = {words})")
    elif dp is not None:
        draft.derive("gpus", ways * dp, f"tp·cp·pp·dp = {words}·{dp}")
    else:
        draft.missing("dp", f"GPUs / (tp·cp·pp = {words})")
        draft.unknown.setdefault("gpus", "no launch says how many")
    if replicate is None and "dp_replicate" in draft.unknown:
        draft.facts.pop("dp_shard", None)
        return
    if replicate is None:
        replicate = 1
        draft.derive("dp_replicate", 1, "no replicas given")
    if dp is None:
        if draft.fills:
            draft.facts.pop("dp_shard", None)
    elif dp % replicate:
        why = f"{replicate} replicas do not divide dp = {dp}"
        draft.contradictions.append(Contradiction("dp_replicate", (replicate, dp), why))
    elif shard is None:
        draft.derive("dp_shard", dp // replicate, f"dp = {dp} / {replicate} replicas")
    elif shard * replicate != dp:
        why = f"{replicate} replicas · {shard} shards = {shard * replicate}, dp = {dp}"
        draft.contradictions.append(Contradiction("dp", (shard * replicate, dp), why))


def _settle_batch(draft: Draft) -> None:
    """global_batch = micro_batch · micro_batches · dp: derive any one from the others."""
    dp = draft.number("dp")
    each = draft.number("micro_batch")
    many = draft.number("micro_batches")
    whole = draft.number("global_batch")
    if many is None and each is not None and draft.number("batch_per_dp") is not None:
        many, left = divmod(draft.number("batch_per_dp") or 0, each)
        if left == 0:
            draft.derive("micro_batches", many, "batch_per_dp / micro_batch")
    if each is None and dp and many and whole:
        # Where this is not whole, the contradiction below says so.
        each = max(1, whole // (many * dp))
        draft.derive("micro_batch", each, f"{whole} / ({many}·{dp})")
    if dp is None or each is None:
        if whole is None:
            draft.unknown.setdefault("global_batch", "micro_batch · micro_batches · dp")
        # Even with dp unknown one thing is certain: a batch below two micro-batches leaves no room for a
        # second dp way.
        elif each is not None and many is None and draft.fills and whole < 2 * each:
            why = f"a multiple of micro_batch · dp is needed: with {whole} and {each} only dp = 1 runs"
            draft.contradictions.append(Contradiction("global_batch", (whole, f"{each}·dp"), why))
        return
    if many is not None:
        batch = each * many * dp
        if whole is None:
            draft.derive("global_batch", batch, f"{each}·{many}·{dp}")
        elif whole != batch:
            why = f"micro_batch · micro_batches · dp = {each}·{many}·{dp} = {batch}"
            draft.contradictions.append(Contradiction("global_batch", (whole, batch), why))
    elif whole is not None:
        if whole % (each * dp):
            why = f"no multiple of micro_batch · dp = {each}·{dp} = {each * dp}"
            draft.contradictions.append(Contradiction("global_batch", (whole, each * dp), why))
            draft.unknown.setdefault("micro_batches", why)
        else:
            draft.derive("micro_batches", whole // (each * dp), f"{whole} / ({each}·{dp})")


def _say_unknown(draft: Draft) -> None:
    """List every field that a run needs and no file gives."""
    if not draft.covered:
        return
    wanted = ["seq_len"]
    if draft.training:
        wanted += ["micro_batch", "global_batch"]
    if any(name in draft.facts for name in (*DIMS, "preset")):
        wanted = [*DIMS, *wanted]
    else:
        draft.unknown.setdefault("model", "nothing here says its dimensions")
    for name in wanted:
        if name not in draft.facts:
            draft.unknown.setdefault(name, "not in these files")
    if "gpus" in draft.facts and "gpus_per_node" not in draft.facts:
        draft.unknown.setdefault("gpus_per_node", "no launch says how many GPUs a node has")

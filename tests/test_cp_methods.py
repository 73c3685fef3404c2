"""Methods of context parallelism: their names, the heads that can be traded, and what a trade takes."""

import pytest

import llamapar as lp
from llamapar.describe.hardware import hardware
from llamapar.timing.layer import Conditions, layer
from llamapar.timing.rings import HOP, NET_HOP, START

B8 = lp.model("llama3-8b")


@pytest.mark.parametrize("method", ["ulysses", "ulysses:4", "ring"])
def test_fixes_are_found_at_the_size_of_the_papers_run(method):
    """The search tries cp up to the number of GPUs, which times the job's own pp and dp is no layout."""
    job = {"tp": 8, "pp": 16, "dp": 128, "zero": 2, "seq_len": 8192, "gpu": "h100-80gb"}
    [memory] = [f for f in lp.check("llama3.1-405b", **job, cp_method=method).findings if f.code == "LP512"]
    assert memory.fixes
    for fix in memory.fixes:
        assert fix.layout.world == 16384
        assert not fix.job.untradable(False)


# -- time --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("cp", "outside"), [(4, 0), (8, 0), (16, 8)])
def test_an_all_to_all_takes_each_ranks_own_links(cp, outside):
    """7B, as many KV heads as query heads: 32 of each, dealt to cp ranks. Nothing runs beside it."""
    model, gpu = lp.model("llama2-7b"), hardware("h100-80gb")
    how = Conditions(gpu, recompute="none", cp_method="ulysses")
    term = layer(how, model, lp.Layout(cp=cp), 32768, 1).forward["exposed CP"]
    each = 32768 // cp * 4096 * 2  # bytes of Q, of K, of V and of the output
    inside = 4 * each * (min(cp, 8) - 1) / cp / (gpu.link_rate * gpu.link)
    slowest = max(inside, 4 * each * outside / cp / (gpu.net_rate * gpu.net))
    assert term.value == pytest.approx(slowest + 4 * (START + (NET_HOP if outside else HOP)), rel=1e-9)


def test_a_ring_of_groups_hides_its_keys_and_no_trade():
    gpu = hardware("h100-80gb")
    seconds = {
        way: layer(Conditions(gpu, recompute="none", cp_method=way), B8, lp.Layout(cp=8), 131072, 1)
        for way in ("ring", "ulysses:2", "ulysses")
    }
    exposed = [found.forward["exposed CP"].value for found in seconds.values()]
    assert exposed[0] == 0 < exposed[1] < exposed[2]

"""What other tools say of the same memory, and the steps from our figure to theirs."""

import pytest

import llamapar as lp
from llamapar.count.reconciliation import by_step, peers_of

GIB = 2**30

CONFIGURATIONS = (
    ("llama3.1-405b", {"tp": 8, "pp": 16, "dp": 128}, 8192, 9),
    ("llama3.1-8b", {"dp": 8}, 8192, 3),
    ("llama3.1-8b", {"tp": 2, "dp": 4}, 8192, 3),
    ("llama3.1-70b", {"tp": 8, "pp": 4, "dp": 2}, 8192, 3),
    ("llama3.1-405b", {"tp": 8, "cp": 16, "pp": 16, "dp": 8}, 131072, 2),
)


@pytest.mark.parametrize(("model", "degrees", "seq_len", "tools"), CONFIGURATIONS)
def test_every_waterfall_leads_from_ours_to_theirs(model, degrees, seq_len, tools):
    layout = lp.Layout(**degrees)  # type: ignore[arg-type]
    found = lp.reconcile(model, layout, seq_len=seq_len)
    peers = list(peers_of(model, layout, seq_len))
    assert len(peers) == tools
    assert {t.name for t in found.tools} == {peer["tool"] for peer in peers}
    for tool in found.tools:
        assert found.ours.total_bytes + sum(n for _, n in tool.steps) == tool.total_bytes
    totals = [tool.total_bytes for tool in found.tools]
    assert totals == sorted(totals)
    assert sum(by_step(found.ours).values()) == found.ours.total_bytes


def test_the_550_fold():
    """The tools' totals for 405B on 16,384 GPUs, the issue's starting point."""
    found = lp.reconcile("llama3.1-405b", lp.Layout(tp=8, pp=16, dp=128), seq_len=8192)
    assert round(found.tools[-1].total_bytes / found.tools[0].total_bytes) == 550
    assert [found.tools[n].name for n in (0, -1)] == ["Vizuara planner", "EleutherAI cookbook"]
    bridge = next(t for t in found.tools if t.name == "Megatron-Bridge")
    assert dict(bridge.steps)["states"] / GIB == pytest.approx(0, abs=0.01)

"""Memory against what was measured, and against itself: the page's figures, and pairs that have an order."""

import statistics
from collections import Counter

import pytest

import _page
import llamapar as lp
import memory_pairs
import memory_rows
from as_printed import percentile
from llamapar.count.terms import SHARES


def test_no_pair_is_out_of_order(counts):
    """Recomputation, TP, DP under ZeRO, micro-batches; and a trainer lies within any trainer's interval."""
    seen = Counter[str]()
    for kind, less, more, about in memory_pairs.pairs(counts(600, 5_000, 15_000), seed=1):
        assert less <= more, f"{kind}: {about}"
        seen[kind] += 1
    assert len(seen) >= 9


def test_measured_peaks_as_printed():
    found, left = memory_rows.rows()
    others = [row for row in found if row.file != "ultrascale"]
    assert (len(others), len(found) - len(others), len(left)) == (308, 873, 5)
    errors = [abs(row.error) for row in others]
    assert statistics.median(errors) < 0.08
    assert percentile(errors, 0.9) < 0.33
    assert statistics.mean(row.held for row in others) > 0.73
    assert statistics.mean(row.held for row in found) > 0.79
    assert _page.PAGE.read_text("utf-8") == _page.filled(memory_rows.tables()), "--page"


def test_shares_are_the_fitted_halfs():
    """To two digits; the half that scores them is not looked at."""
    for counter, half, _rows, *ends, _shares in memory_rows.fits(memory_rows.rows()[0]):
        if half == "even":
            assert [float(end) for end in ends] == list(SHARES[counter])


DIMS = {"hidden": 4096, "layers": 32, "heads": 32, "kv_heads": 8, "ffn": 14336, "vocab": 128256}
PLAIN = {
    "dims": DIMS,
    "tp": 2,
    "pp": 1,
    "dp": 4,
    "seq_len": 8192,
    "micro_batch": 1,
    "zero": 2,
}
PLAIN |= {"peak_mem": 30, "peak_mem_unit": "GiB", "counter": "reserved"}
PLAIN |= {"recompute": "selective (op)", "trainer": "torchtitan"}


def test_a_row_is_told_to_the_command_and_nothing_else():
    dated = PLAIN | {"source": {"date": "2025-03-20"}, "hardware": "8x H200 141GB"}
    told = {"tp": 2, "cp": 1, "pp": 1, "dp": 4, "seq_len": 8192, "micro_batch": 1, "virtual_stages": 1}
    told |= {"kv_replication": True, "framework": "torchtitan@2025-03-20", "zero": 2}
    assert memory_rows.facts_of(dated, {}, {}) == told | {"recompute": "selective", "gpu": "h200-141gb"}
    one = memory_rows.score(PLAIN, "x", {})
    known = {"seq_len": 8192, "recompute": "selective", "framework": "torchtitan"}
    said = lp.memory("llama3.1-8b", lp.Layout(tp=2, dp=4, zero=2), **known)
    assert (one.low, one.expected, one.high) == said.counters["max_reserved"]
    assert (one.counter, one.measured, one.held) == ("max_reserved", 30 * 2**30, one.low <= 30 * 2**30)
    untold = memory_rows.facts_of({**PLAIN, "recompute": "mlp", "trainer": "mine"}, {}, {})
    assert not {"recompute", "framework", "gpu"} & untold.keys()


def test_the_sft_trainer_of_prime_rl_kept_whole_logits():
    """Qwen3 4B on 8 H100 in January 2026: 54.6 GiB measured."""
    [row] = [row for row in memory_rows.rows()[0] if row.name.startswith("benchmark-8xh100-Qwen--Qwen3-4B")]
    assert row.measured / 2**30 == pytest.approx(54.6, abs=0.05)
    assert row.terms / 2**30 == pytest.approx(49.0, abs=0.1)
    assert row.held

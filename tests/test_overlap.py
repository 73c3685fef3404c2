"""llamapar/course/overlap_pictures.py: the clock against sums on paper, the two limits against lp.cost."""

from itertools import pairwise

import pytest

import llamapar as lp
from llamapar.course import overlap, roofline
from llamapar.course.overlap_pictures import LAYERS


def ends(record):
    """Row → when its last bar ends; no two bars of a row are there at once."""
    found = {}
    for row in (0, 1):
        bars = sorted(
            (start, long) for each in record.spans.values() for at, start, long in each if at == row
        )
        for (start, long), (after, _) in pairwise(bars):
            assert after >= start + long - 1e-12
        found[row] = sum(bars[-1])
    return found


def count(record, name):
    return len(record.spans.get(name, ()))


def test_with_many_tokens_only_the_first_weights_and_the_last_gradients_show():
    for zero in range(4):
        record = overlap(16384, zero=zero)
        last = record.spans["gradients are added up"][-1][2]
        first = record.spans["weights arrive"][0][2] if zero else 0.0
        idle = ends(record)[1] - record.seconds("forward", "backward")
        assert idle == pytest.approx(first + last)
        assert record.waiting == pytest.approx(idle / ends(record)[1])


def test_with_few_tokens_the_network_is_never_idle_and_the_gpu_waits():
    record = overlap(64)
    sent = record.seconds("weights arrive", "gradients are added up")
    assert ends(record)[1] == pytest.approx(sent, rel=0.05)
    assert record.waiting > 0.8


def test_what_travels_how_often_at_each_stage():
    """Once a step, but ZeRO 2 adds up and ZeRO 3 also gathers for each micro-batch, forward and backward."""
    often = [
        (count(record, "weights arrive") / LAYERS, count(record, "gradients are added up") / LAYERS)
        for record in (overlap(2048, zero=zero, micro_batches=3) for zero in range(4))
    ]
    assert often == [(0, 1), (1, 1), (1, 3), (6, 3)]
    reduced = [overlap(2048, zero=zero).spans["gradients are added up"][0][2] for zero in (0, 1)]
    gathered = overlap(2048).spans["weights arrive"][0][2]
    assert reduced[0] == pytest.approx(reduced[1] + gathered), "an all-reduce is both halves"


def test_tp_waits_in_every_layer_and_nothing_hides_it():
    record = overlap(8192, tp=8)
    assert count(record, "waits for TP") == 2 * LAYERS
    cost = lp.cost("llama3-8b", tp=8, dp=64, zero=3, seq_len=8192, global_batch=64, recompute="none")
    assert record.seconds("waits for TP") == pytest.approx(cost.seconds["exposed TP"] * LAYERS / 32)


@pytest.mark.parametrize(("tokens", "limited"), [(1, 3), (4096, 1)])
def test_memory_limits_products_of_few_tokens_and_norms_always(tokens, limited):
    record = roofline(tokens)
    assert len(record.limited) == limited
    assert "norms" in record.limited
    products = 2 * 218_103_808 * tokens / 989.4e12
    assert record.spans["computing takes"][0][2] == pytest.approx(products)
    weights = 2 * 218_103_808 / 3.35e12
    assert record.spans["moving bytes takes"][0][2] == pytest.approx(
        weights + 2 * tokens * (7 * 4096 + 2 * 5120 + 3 * 14336) / 3.35e12
    )


def test_a_picture_has_a_bar_for_each_span_and_its_words():
    for record in (overlap(1024, tp=2, zero=1, micro_batches=2), roofline()):
        view = lp.view(record)
        assert sum(len(trace["x"]) for trace in view.spec["data"]) == sum(map(len, record.spans.values()))
        for name, spans in record.spans.items():
            assert f"{name} " in view.summary
            assert spans
        assert record.sentence in record.live().snapshot().summary

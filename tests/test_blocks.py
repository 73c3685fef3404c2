"""The map at the head of a lesson: a rank's share, and the same in one line."""

import llamapar as lp
from llamapar.course.blocks import block

BIG = "llama3.1-405b"


def test_it_is_the_share_of_the_rank_in_one_line():
    made = block(BIG, 5, tp=8)
    assert made.spec == lp.view(lp.ranks(tp=8, rank=5, model=BIG)).spec
    assert repr(made) == made.summary == "rank 5 of 8 in llama3.1-405b: heads 80–95"
    assert repr(block(BIG, tp=1)) == "rank 0 of 1 in llama3.1-405b: the whole step"


def test_a_name_is_text():
    made = block(lp.model("tiny").replace(name='<b>&amp;"</b>'), 1, tp=2)
    assert made.summary == 'rank 1 of 2 in <b>&amp;"</b>: heads 8–15'
    assert set(made._repr_mimebundle_()) == {"text/plain", "text/html"}
    assert "<b>" not in made._repr_mimebundle_()["text/html"]

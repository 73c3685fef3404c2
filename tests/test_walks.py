"""Four journeys through the code, from what a person does to what comes of it, each short enough to be read.

A journey is followed by running it. Its stops are the functions that stand on the stack when the last one is
called, which is what a reader opens one after the other. Its nodes are those of their syntax trees, without
docstrings and annotations. `called` counts all functions that ran on the way: how much a journey touches in
passing. docs/architecture.md tells them. A journey may become shorter, and its row then says so.
"""

import inspect
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest

import llamapar as lp
from llamapar.diagnosis import hypothesis
from llamapar.figures import head_map
from llamapar.spmd import collectives
from llamapar.timing import fixes
from test_architecture import nodes_in
from wire import deliver

PACKAGE = Path(lp.__file__).parent
SMALL = lp.ModelConfig(dim=16, n_layers=1, n_heads=4, n_kv_heads=4, ffn_dim=32, vocab_size=64)


@dataclass(frozen=True)
class Walk:
    """stops: the functions from the first to the last, by file and name. called: how many ran in all."""

    stops: tuple[str, ...]
    nodes: int
    called: int


def ours(code):
    """Whether a function is one of the package that a reader would open: no comprehension within another."""
    return Path(code.co_filename).is_relative_to(PACKAGE) and "<" not in code.co_name


def walked(go, last):
    """Run `go` and note how the code comes to `last` for the first time."""
    stops = []
    ran = set()

    def follow(frame, event, _):
        if event != "call" or stops or not ours(frame.f_code):
            return
        ran.add(frame.f_code)
        if frame.f_code is last:
            at = frame
            while at is not None:
                if ours(at.f_code):
                    stops.insert(0, at.f_code)
                at = at.f_back

    before = sys.getprofile()
    sys.setprofile(follow)
    try:
        go()
    finally:
        sys.setprofile(before)
    assert stops, "the journey does not come there"
    names = tuple(f"{Path(c.co_filename).relative_to(PACKAGE)}:{c.co_qualname}" for c in stops)
    return Walk(names, sum(map(nodes_of, set(stops))), len(ran))


def nodes_of(code):
    """Nodes of a function, counted as the package's are: plainer lines do not make a journey longer."""
    return nodes_in(textwrap.dedent(inspect.getsource(code)))


def knob():
    """A knob of the Explorer is turned, and the map of heads is drawn anew."""
    panel = lp.explorer("llama3-8b", tp=8, tab="heads")
    return walked(
        lambda: deliver(panel, {"id": 1, "kind": "set", "changes": {"tp": 4}}), head_map.picture.__code__
    )


def run():
    """A program is run on two ranks, and they sum their parts."""
    last = collectives.all_reduce.__code__
    return walked(lambda: lp.run("mlp", SMALL, lp.Layout(tp=2, sequence_parallel=False), seq_len=8), last)


def message():
    """An error text is explained: the cause that its numbers lead to."""
    text = "n_kv_heads (8) must be divisible by tp (16)"
    return walked(lambda: lp.explain(text, model="llama3-70b"), hypothesis.found.__code__)


def check():
    """A layout that fails is checked, and its report is printed with a fix that was not found before."""
    fixes.find_fixes.cache_clear()
    return walked(lambda: str(lp.check("llama3-8b", tp=16)), fixes._passing.__code__)


WALKS = {
    "a knob to its picture": (knob, 8, 698, 55),
    "run to a collective": (run, 9, 1002, 137),
    "a message to its cause": (message, 10, 1216, 66),
    "check to a fix": (check, 6, 509, 54),
}
"""Journey → what walks it, and its most stops, nodes and functions that ran: what stands today."""


@pytest.mark.parametrize("name", WALKS)
def test_a_journey_does_not_grow(name):
    walk, stops, nodes, called = WALKS[name]
    walk()  # what is imported and cached on the first way is no part of it
    found = walk()
    assert len(found.stops) <= stops, found
    assert found.nodes <= nodes, found
    assert found.called <= called, found


def test_a_journey_that_does_not_arrive_is_noticed():
    with pytest.raises(AssertionError, match="does not come there"):
        walked(lambda: lp.heads("llama3-8b", tp=4), head_map.picture.__code__)

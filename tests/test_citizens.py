"""Panels as widgets: what they show are traits that code, links and the browser set alike."""

import threading

import ipywidgets
import pytest
from traitlets import TraitError

import llamapar as lp
from llamapar.panels.box_panel import Box, BoxQuestion, GuessVerdict
from wire import customs, listening

PANELS = {
    "explorer": lambda: lp.explorer("llama3-8b", tp=2),
    "live": lambda: lp.live("heads", tp=2),
    "watch": lambda: lp.watch("mlp", tp=2),
    "clinic": lambda: lp.clinic("an error", tp=2),
}


def heard(panel):
    """The changes of which observers are told from now on."""
    seen = []
    panel.observe(lambda change: seen.append((change.name, change.old, change.new)), list(panel._names))
    return seen


@pytest.mark.parametrize("name", PANELS)
def test_code_a_link_and_the_browser_set_one_trait(name):
    panel = PANELS[name]()
    assert {"tp", "model"} <= set(panel.traits(sync=True))
    assert isinstance(panel.layout, ipywidgets.Layout)
    seen = heard(panel)
    panel.tp = 4
    assert ("tp", 2, 4) in seen
    assert panel.payload["values"]["tp"] == 4
    before, payload = len(seen), panel.payload
    panel.tp = 4
    with panel.hold_trait_notifications():
        panel.tp = 4
    panel.set_state({"tp": 4})
    assert (len(seen), panel.payload) == (before, payload)  # an equal value is no move
    slider = ipywidgets.IntSlider(1, 1, 8)
    ipywidgets.link((slider, "value"), (panel, "tp"))
    slider.value = 2
    assert (panel.tp, slider.value) == (2, 2)
    panel.set_state({"tp": 1})
    assert (panel.tp, slider.value, panel.payload["values"]["tp"]) == (1, 1, 1)
    assert panel.get_state("tp") == {"tp": 1}


@pytest.mark.parametrize("name", PANELS)
@pytest.mark.parametrize("wrong", [0, 2.5, "x", True])
def test_no_value_is_refused_in_the_words_of_set_and_nothing_changes(name, wrong):
    panel = PANELS[name]()
    seen, payload = heard(panel), panel.payload
    with pytest.raises(lp.LlamaparError, match=r"^tp=.* a whole number") as by_set:
        panel.set(tp=wrong)
    with pytest.raises(TraitError, match=r"^tp=.* a whole number") as by_trait:
        panel.tp = wrong
    assert str(by_set.value) == str(by_trait.value)
    with listening(panel) as sent:
        panel.set_state({"tp": wrong})
    assert customs(sent, "refused")[0]["problem"]["what"] == by_set.value.what
    assert {"tp": 2} in [message.get("state") for message in sent]  # the browser's springs back
    assert (panel.tp, panel.payload, seen) == (2, payload, [])


def test_value_is_the_job_the_record_the_tape_and_the_explanation():
    explorer, live = PANELS["explorer"](), PANELS["live"]()
    assert explorer.value == explorer.job == explorer.report.job
    jobs = []
    moving = ipywidgets.interactive(lambda job, heads: jobs.append((job, heads)), job=explorer, heads=live)
    moving.update()
    explorer.set(tp=4, n_heads=16, n_kv_heads=4)
    assert (explorer.model, explorer.n_heads, explorer.dim) == ("custom", 16, 4096)
    assert jobs[-1][0].layout.tp == 4
    moves = len(jobs)
    explorer.tab = "memory"
    assert len(jobs) == moves  # the same job
    other = lp.explorer()
    ipywidgets.link((explorer, "value"), (other, "value"))
    explorer.pp = 2
    assert other.job == explorer.job
    live.value = lp.heads("llama3-8b", tp=8)
    assert (live.tp, live.value) == (8, lp.heads("llama3-8b", tp=8))
    for wrong, said in (
        (3, "int cannot be shown live"),
        (lp.vocab("llama3-8b", tp=2), "what='vocab' is not known"),
    ):
        with pytest.raises(TraitError, match=said):
            live.value = wrong
    watch, clinic = PANELS["watch"](), lp.clinic("tp 4: 8 heads")
    assert (watch.value, clinic.value) == (watch.record, clinic.explanation)
    for panel in (watch, clinic):
        with pytest.raises(TraitError, match=f"the value of {type(panel).__name__} cannot be set"):
            panel.value = 3


def test_observers_are_called_once_the_panel_is_free():
    """One that waits for another thread, which moves a panel itself, ends."""
    panel, other = PANELS["live"](), lp.live("vocab", "llama3.1-70b", tp=4)

    def elsewhere(_):
        thread = threading.Thread(target=other.set, kwargs={"tp": 8}, daemon=True)
        thread.start()
        thread.join(20)
        assert not thread.is_alive()

    panel.observe(elsewhere, "tp")
    panel._receive(None, {"id": "a", "kind": "set", "changes": {"tp": 4}}, None)
    assert (panel.tp, other.tp) == (4, 8)


def test_an_observer_that_raises_keeps_nothing_from_the_others():
    panel, told = PANELS["explorer"](), []

    def broken(_):
        raise ZeroDivisionError

    panel.observe(broken, "tp")
    panel.observe(told.append, "value")
    with pytest.raises(ZeroDivisionError, match=r"^$"):
        panel.set(tp=4)
    assert len(told) == 1


def test_a_step_of_a_watched_program_is_a_trait_and_no_payload():
    panel = PANELS["watch"]()
    steps, payload, past = panel.film["steps"], panel.payload, panel.past
    back = next(n for n, step in enumerate(steps) if step["phase"] != "forward")
    panel.step = back
    assert (panel.step, panel.phase) == (back, "backward")
    panel.phase = "forward"
    assert steps[panel.step]["phase"] == "forward"
    panel.set_state({"step": 1})
    assert (panel.step, panel.payload, panel.past) == (1, payload, past)
    with pytest.raises(TraitError, match=rf"^step={len(steps)}: "):
        panel.step = len(steps)
    panel.case = "drop_all_reduce"
    begins = next(n for n, step in enumerate(panel.film["steps"]) if step["fault"] == "begins")
    assert panel.payload["values"]["step"] == panel.step == begins


def test_a_guess_is_the_value_of_its_box():
    right = GuessVerdict(True, "yes", "8", truth="8", value=8)
    panel = Box(BoxQuestion("how many?", "number", lambda _: right, hints=("few",)))
    answers = []
    panel.observe(lambda change: answers.append(change.new), "value")
    assert (panel.value, panel.hints) == (None, 0)
    panel.set(guess="8")
    assert (panel.value, answers) == (8, [8])

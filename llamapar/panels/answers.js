
// -- the four answers --------------------------------------------------------------------------
// Legal, fits, how fast, what travels: always in sight, each opens its tab; below them those of what is pinned.

const AXIS = /^(TP|CP|PP|DP)/;

function answerButton({ question, tab, text, note, verdict }, send) {
  const parts = text.split(" · ").map((part) => make("span", { class: "lp-part", "data-axis": part.match(AXIS)?.[0].toLowerCase() }, part));
  return button([make("span", { class: "lp-question" }, question), make("b", {}, parts), make("span", { class: "lp-why" }, note)],
    { class: "lp-answered", "data-opens": tab, "data-verdict": verdict, title: note, onclick: () => send({ tab }) });
}

function buildAnswers(send, ask) {
  const now = make("div", { class: "lp-answers", role: "group", "aria-label": "legal, fits, how fast, what travels" });
  const kept = make("div", { class: "lp-pinned", hidden: true });
  const press = (kind, title) => button(kind, { title, "data-step": kind, onclick: () => ask({ kind }) });
  const steps = [press("pin", "keep this layout beside those that come"), press("undo", "take the last change back"),
    press("redo", "do again what was taken back"), press("reset", "back to the first layout")];
  const node = make("div", {}, now, kept);
  function draw(answers, seq) {
    node.classList.toggle("lp-stale", answers.seq !== seq || !answers.now.length);
    if (answers.seq !== seq) return;
    steps[0].textContent = answers.pinned ? "unpin" : "pin";
    steps[1].disabled = !answers.undo;
    steps[2].disabled = !answers.redo;
    if (answers.now.length) refill(now, answers.now, () => answers.now.map((one) => answerButton(one, send)));
    kept.hidden = !answers.pinned;
    if (answers.pinned) refill(kept, [answers.title, answers.pinned], () => [
      make("b", {}, "pinned "), answers.title, ` · ${answers.pinned.map(({ text }) => text).join(" · ")} `,
      button("swap", { title: "this one into the controls, and the other pinned", onclick: () => ask({ kind: "swap" }) })]);
  }
  return { node, steps: make("div", { class: "lp-steps" }, steps), draw };
}

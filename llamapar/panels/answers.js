
// -- the four answers --------------------------------------------------------------------------
// Always in sight, each the door to its tab; what is pinned stands under the picture.

const WORDS = { yes: "yes", unsure: "not sure", no: "no" };
const SIGNS = { yes: "✓", unsure: "?", no: "✕" };
const state = (verdict) => make("span.lp-sign", { "data-verdict": verdict, role: "img", "aria-label": WORDS[verdict] }, SIGNS[verdict]);

function answerButton({ question, tab, text, note, verdict, more }, send) {
  return button([state(verdict), make("span.lp-question", question), make("b", text), make("span.lp-brief", note)],
    { class: "lp-answered", "data-opens": tab, "data-verdict": verdict, title: more || note, onclick: () => send({ tab }) });
}

// The pinned job's answers, each over what it is here.
function drawPinned({ title, answers }, now, ask) {
  const cells = answers.map(({ question, text }, k) => make("div", make("span.lp-question", question), make("b", text), make("span.lp-why", `now ${now[k]?.text ?? "not known"}`)));
  const swap = button("swap", { title: "this one into the controls, and the other pinned", onclick: () => ask({ kind: "swap" }) });
  return [make("div.lp-line", title, swap), make("div.lp-against", cells)];
}

function buildAnswers(send, ask) {
  const node = make("div.lp-answers", { role: "group", "aria-label": "is it legal, does it fit, how fast, what travels" });
  const ran = make("p.lp-why");
  const kept = make("div");
  const press = (kind, title) => button(kind, { class: "lp-link", title, "data-step": kind, onclick: () => ask({ kind }) });
  const pin = press("pin", "keep this layout beside those that come");
  const steps = [press("undo", "take the last change back"), press("redo", "do again what was taken back"), press("reset", "back to the first layout")];
  const showSteps = (past, future) => { steps[0].disabled = !past; steps[1].disabled = !future; };
  const ahead = (now) => refill(node, now, () => now.map((one) => answerButton(one, send)));
  function draw(answers) {
    pin.textContent = answers.pinned ? "unpin" : "pin this layout";
    ahead(answers.now);
    ran.textContent = answers.published;
    refill(kept, [answers.pinned, answers.now], () => (answers.pinned ? drawPinned(answers.pinned, answers.now, ask) : []));
  }
  return { node, ran, pinned: [pin, kept], steps: make("div.lp-steps", steps), showSteps, ahead, draw };
}

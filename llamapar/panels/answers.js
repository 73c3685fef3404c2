
// -- the four answers --------------------------------------------------------------------------
// Legal, fits, how fast, what travels: always in sight, each opens its tab; below them what is pinned.

const AXIS = /^(TP|CP|PP|DP)/;

const partsOf = (text) => text.split(" · ").map((part) => make("span", { class: "lp-part", "data-axis": part.match(AXIS)?.[0].toLowerCase() }, part));

function answerButton({ question, tab, text, note, verdict }, send) {
  return button([make("span", { class: "lp-question" }, question), make("b", {}, partsOf(text)), make("span", { class: "lp-why" }, note)],
    { class: "lp-answered", "data-opens": tab, "data-verdict": verdict, title: note, onclick: () => send({ tab }) });
}

// The pinned job's answers under these ones, each with what is other here, and one sentence why.
function drawPinned({ title, answers, differences, why: sentence }, ask) {
  const cells = answers.map(({ text }, k) => make("div", {}, make("b", {}, partsOf(differences[k] ?? "")), make("span", { class: "lp-why" }, `pinned: ${text}`)));
  const swap = button("swap", { title: "this one into the controls, and the other pinned", onclick: () => ask({ kind: "swap" }) });
  return [make("div", { class: "lp-against" }, cells), make("div", { class: "lp-line" }, make("span", { class: "lp-what" }, `Against ${title}: ${sentence}`), swap)];
}

function buildAnswers(send, ask) {
  const now = make("div", { class: "lp-answers", role: "group", "aria-label": "legal, fits, how fast, what travels" });
  const ran = make("div", { class: "lp-ran", hidden: true });
  const kept = make("div", { class: "lp-pinned", hidden: true });
  const press = (kind, title) => button(kind, { title, "data-step": kind, onclick: () => ask({ kind }) });
  const steps = [press("pin", "keep this layout beside those that come"), press("undo", "take the last change back"),
    press("redo", "do again what was taken back"), press("reset", "back to the first layout")];
  const node = make("div", {}, now, ran, kept);
  function draw(answers, seq) {
    node.classList.toggle("lp-stale", answers.seq !== seq || !answers.now.length);
    if (answers.seq !== seq) return;
    steps[0].textContent = answers.pinned ? "unpin" : "pin";
    steps[1].disabled = !answers.undo;
    steps[2].disabled = !answers.redo;
    if (answers.now.length) refill(now, answers.now, () => answers.now.map((one) => answerButton(one, send)));
    ran.hidden = !answers.published;
    ran.textContent = answers.published;
    kept.hidden = !answers.pinned;
    if (answers.pinned) refill(kept, answers.pinned, () => drawPinned(answers.pinned, ask));
  }
  return { node, steps: make("div", { class: "lp-steps" }, steps), draw };
}

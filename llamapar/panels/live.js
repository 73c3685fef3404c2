// A live picture: a knob's values as a ladder, what the chosen one gives, its picture, and the line of code.
// Every rung came with its picture, so pointing, stepping and playing ask nobody; the kernel is told the value.

const SETTLING = 250; // ms after a scroll in which the mouse enters rungs without moving
const PACE = 1100; // ms that a rung stands while the ladder plays

function render({ model, el }) {
  const uid = newName();
  const payload = () => model.get("payload");
  const rungs = () => model.get("ladder");
  const knob = () => payload().knob;
  const several = () => payload().knobs.length > 1;
  const title = () => payload().knobs.find(([name]) => name === knob())[1];
  const { send, ask, note, close } = buildSender(model, uid, () => { pending = null; show(); }, (on) => stage.classList.toggle("lp-kept", on));

  let chosen = payload().values[payload().knob]; // what stands, as soon as it is pressed
  let pending = null; // what the kernel has not confirmed yet
  let looked; // what is pointed at; null is a value
  let playing = 0;
  let scrolled = -Infinity; // when the ladder last did, by itself
  let seq = 0; // of the pictures: one ladder shows many
  const at = (value) => rungs().find((rung) => rung.value === value);

  const knobs = make("div.lp-knobs");
  const whose = make("div.lp-whose", { role: "group", "aria-label": "ladder of" });
  const ladder = make("div.lp-ladder", { role: "radiogroup" });
  const legend = make("p.lp-legend", payload().legend);
  const says = make("p.lp-says", { role: "status" });
  const code = buildCode(model, ask, (draw) => keepFocus(root, play, draw));
  const play = button("", { class: "lp-play", onclick: () => (playing ? stop() : start()) });
  const figure = buildFigure(model, null, (painted) => { root.dataset.painted = painted; });
  const stage = make("div.lp-stage", whose, ladder, legend, says, figure.node);
  const root = make("div.llamapar.lp-live", { "data-what": payload().what }, note, knobs, stage);
  el.append(root);

  // -- the knob --

  function step(value) {
    if (value === chosen) return;
    chosen = value;
    pending = { knob: knob(), value };
    draw();
    send({ [knob()]: value });
  }

  function stop() {
    clearTimeout(playing);
    playing = 0;
    drawPlay();
  }

  // Once through the ladder, from its start where it stands at the end; it halts where what worked breaks.
  function start() {
    const all = rungs();
    const from = all.findIndex(({ value }) => value === chosen);
    const breaks = (k) => all[k].problem && !all[k - 1]?.problem && k > 0;
    const next = (k) => {
      step(all[k].value);
      if (breaks(k) || k + 1 >= all.length || all !== rungs()) stop();
      else playing = setTimeout(next, PACE, k + 1);
    };
    playing = -1;
    drawPlay();
    next(breaks(from) || from + 1 >= all.length ? 0 : from + 1);
  }

  function drawPlay() {
    play.textContent = playing ? "■ stop" : `▶ play ${title()}`;
  }

  walkKeys(ladder, () => rungs().length, () => rungs().findIndex(({ value }) => value === chosen), (to) => {
    stop();
    step(rungs()[to].value);
    ladder.querySelector("[aria-checked=true]").focus();
  });

  // A rung that came under a resting mouse, for the ladder scrolled, is not pointed at.
  const look = (value) => {
    const slid = value !== undefined && performance.now() - scrolled < SETTLING;
    if (playing || slid || looked === value) return;
    looked = value;
    draw();
  };

  function rungButton({ name, value, gives, problem, doubt, figure: drawn }) {
    return button([make("b.lp-part", { "data-axis": knob() }, name), make("span.lp-gives", drawn ? gives : problem)], {
      class: "lp-rung", role: "radio", "data-value": String(value), "data-broken": problem ? "yes" : null, "data-doubt": doubt ? "yes" : null, "data-refused": drawn ? null : "yes", title: problem || doubt || null,
      onclick: () => { stop(); looked = undefined; step(value); draw(); },
      onpointerenter: ({ pointerType }) => { if (pointerType === "mouse") look(value); },
      onpointerleave: () => look(undefined),
    });
  }

  // With several knobs, one of them has its ladder here; the others wait with their values.
  function knobButton([name, , shown]) {
    return button(make("span.lp-part", { "data-axis": name }, shown), {
      "data-knob": name, "aria-pressed": String(name === knob()), title: "what each value of this gives",
      onclick: () => { stop(); looked = undefined; send({ knob: name }); },
    });
  }

  // A ladder that is wider than the panel scrolls to what stands; the page stays where it is.
  function reveal() {
    const rung = ladder.querySelector("[aria-checked=true]");
    if (!rung) return;
    const past = rung.offsetLeft + rung.offsetWidth - ladder.clientWidth;
    const from = ladder.scrollLeft;
    if (past <= from && rung.offsetLeft >= from) return;
    ladder.scrollLeft = Math.min(rung.offsetLeft, Math.max(past + rung.offsetWidth, from));
    scrolled = performance.now();
  }

  // -- drawing --

  function draw() {
    const rung = at(looked) ?? at(chosen);
    if (!rung) return; // another knob's ladder is there, and its payload follows
    for (const node of ladder.children) {
      const { value } = node.dataset;
      node.setAttribute("aria-checked", String(value === String(chosen)));
      node.tabIndex = value === String(chosen) ? 0 : -1;
      node.classList.toggle("lp-looked", value === String(looked));
    }
    if (looked === undefined) reveal();
    says.textContent = rung.says;
    if (rung.problem) says.dataset.broken = "yes"; else delete says.dataset.broken;
    code.show((at(chosen) ?? rung).code, payload().line); // not of a rung that is pointed at: a longer line would move it away
    seq += 1;
    figure.draw({ seq, figure: rung.figure, summary: rung.summary, values: { tab: payload().what }, problem: null });
  }

  let built = []; // the controls beside the knob, each with how to show a value
  function show() {
    const { values } = payload();
    if (pending?.knob !== knob() || values[knob()] === pending.value || !at(pending.value)) pending = null;
    chosen = pending ? pending.value : values[knob()]; // what was pressed since then stays
    if (!at(looked)) looked = undefined;
    refill(knobs, model.get("schema"), () => {
      built = model.get("schema").map((spec) => controlRow(spec, uid, send));
      return [...built.map(({ row }) => row), ...(several() ? [] : [play]), code.node];
    });
    for (const { name, show: put } of built) put(values[name]);
    if (several()) refill(whose, [knob(), payload().knobs], () => [...payload().knobs.map(knobButton), play]);
    ladder.setAttribute("aria-label", title());
    refill(ladder, [knob(), rungs().map(({ value, gives, problem, doubt }) => [value, gives, problem, doubt])], () => rungs().map(rungButton));
    drawPlay();
    draw();
  }

  const changed = () => { // a ladder or a knob that had the focus is built anew: what is chosen there takes it
    const box = [whose, ladder].find((each) => each.contains(root.getRootNode().activeElement));
    const next = () => box?.querySelector("[aria-pressed=true], [aria-checked=true]") ?? play;
    keepFocus(root, { focus: () => next().focus() }, show);
  };
  model.on("change:payload", changed);
  show();
  const resized = new ResizeObserver(reveal); // the ladder has no width before it is on the page
  resized.observe(ladder);
  code.begin();
  return () => {
    stop();
    model.off("change:payload", changed);
    code.close();
    close();
    resized.disconnect();
    figure.close();
  };
}

export default { render };

// The Explorer's face. Python says what to show (schema once, payload after every change); this draws it
// and says what was touched.

const BEFORE = 60; // pixels of tabs in sight before the chosen one, where they scroll

// -- findings --

function verdictTable({ verdicts, unknown }) {
  const rows = verdicts.map(([title, verdict, message, note, links]) =>
    [title, verdict, [message && make("code", message), note && make("div", note), sources(links)].filter(Boolean)]);
  const made = frameworksTable(rows, ["framework", "verdict", "what it says or does"]);
  if (unknown.length) made.firstChild.append(make("tr", make("td", { colspan: 3, class: "lp-source" }, `not known: ${unknown.join(", ")}`)));
  return made;
}

// A fold that is filled when it is first opened, and that a new card of the same name finds open.
function remembered(opened, name, title, attributes, build) {
  const details = fold(title, { ...attributes, open: opened.has(name) });
  const fill = () => { if (details.open && details.childElementCount === 1) details.append(...build()); };
  details.addEventListener("toggle", () => {
    fill();
    if (details.open) opened.add(name); else opened.delete(name);
  });
  fill();
  return details;
}

const findingLine = ({ severity, code, message }) => [mark(severity), make("b", code), make("span.lp-what", { title: message }, message)];

// Why, the other fixes and what the frameworks do: folded behind the finding's one line.
function findingFold(finding, opened, others) {
  const judged = finding.verdicts.length || finding.unknown.length;
  const more = () => [why(finding.why), others.length ? make("div.lp-tries", "or ", others) : null,
    judged ? verdictTable(finding) : null].filter(Boolean);
  return remembered(opened, finding.code, others.length ? `why, ${others.length} more` : "why", { class: "lp-more" }, more);
}

// fits: what opens the tab in which the fixes of memory stand.
function findingCard(finding, index, opened, fix, fits) {
  const [best, ...others] = fixes(finding.fixes, "apply this fix", (k) => fix(index, k));
  const remedy = finding.later ? button("what makes it fit", { onclick: fits }) : best ?? null;
  return make("div", { class: `lp-finding lp-${finding.severity}`, "data-code": finding.code },
    make("div.lp-line.lp-one", findingLine(finding), remedy, findingFold(finding, opened, others)));
}

// What makes it fit, once it is found; until then what was found before stands there, dimmed and inert.
function drawRemedies(box, { offered, payload, apply }) {
  const now = offered.seq === payload.seq;
  box.inert = !now;
  box.classList.toggle("lp-stale", !now && payload.fits === null);
  if (payload.fits !== null) box.replaceChildren(payload.fits);
  else if (now) box.replaceChildren(offered.fixes.length ? "To make it fit: " : "No change of one or two settings, of an axis or of the GPU makes it fit.",
    ...fixes(offered.fixes, "make this change", apply));
}

// -- the head --
// What the chosen rank works on; where the layout is refused, why, and what mends it.

const pieces = (sentence) => sentence.map(([text, axis]) => (axis ? make("span.lp-part", { "data-axis": axis }, text) : text));

const FEW = 2; // fixes beside a reason; the others fold with the finding

function buildHead(send, fix, id) {
  const sentence = make("h3.lp-sentence", { id });
  const repairs = make("div.lp-repairs");
  const status = make("div.lp-status", { role: "status", tabindex: -1 });
  const legend = make("div.lp-signs", ["yes", "unsure", "no"].map((verdict) => make("span", state(verdict), WORDS[verdict])));
  const node = make("div.lp-head", make("div", sentence), make("div.lp-under", status, repairs, legend));
  function draw({ sentence: said, problem, findings, about, gave }) {
    const error = findings.findIndex(({ severity, later }) => severity === "error" && !later);
    if (findings[error]?.fixes.length && said.some(([text]) => text.includes(problem?.field))) problem = null; // said, and mended
    const refused = problem ? -1 : error;
    refill(node.firstChild, [said, problem], () => [problem ? problemCard(problem, send, id) : (sentence.replaceChildren(...pieces(said)), sentence)]);
    sentence.title = sentence.textContent;
    const offered = refused < 0 ? [] : findings[refused].fixes.slice(0, FEW);
    refill(repairs, [refused, offered], () => offered.flatMap(([text, effect], k) => [k ? "or" : "try",
      button(text.split(" (")[0], { class: "lp-link", title: `apply this fix: ${text}, ${effect}`, onclick: () => fix(refused, k) })]));
    refill(status, [about, gave], () => [gave || about]);
    status.title = gave || about;
  }
  return { node, status, draw };
}

// -- the pictures --

// Tabs that the arrow keys walk; each is [key, title], and `pick` is told the key.
function buildTabs(label, items, pick) {
  const tabs = items.map(([key, title]) => button(title, { role: "tab", "data-tab": key, onclick: () => pick(key) }));
  const node = make("div.lp-tabs", { role: "tablist", "aria-label": label }, tabs);
  walkKeys(node, () => tabs.length, ({ target }) => tabs.indexOf(target), (to) => {
    tabs[to].focus();
    tabs[to].click();
  });
  const show = (chosen) => tabs.forEach((tab, k) => {
    const on = items[k][0] === chosen;
    const moved = on && tab.tabIndex;
    tab.setAttribute("aria-selected", String(on));
    tab.tabIndex = on ? 0 : -1;
    if (moved) node.scrollLeft = tab.offsetLeft - node.offsetLeft - BEFORE;
  });
  return { node, tabs, show };
}

// -- everything --

function render({ model, el }) {
  const panel = buildPanel({ model, el }, "lp-explorer", (event) => {
    const { x, y, data, pointNumber } = event.points[0];
    const { tab, rank, tp, cp, pp, dp } = payload().values;
    // in a cell of several ranks, the one that stands as this one does in its own; else the last
    const there = Number(x) + Number(y) + (data.type === "heatmap" ? rank % data.dx : 0);
    if (tab === "ranks") send({ rank: Math.min(there, tp * cp * pp * dp - 1) });
    if (tab === "plan" && data.mode === "markers" && event.points[0].curveNumber === 1) ask({ kind: "adopt", place: pointNumber });
    if (tab === "layer") send({ step: Math.round(Number(y)) });
    if (tab === "pipeline") send({ time: Math.floor(Number(x)) });
  }, (place) => ask({ kind: "look", place }));
  const { payload, send, ask, figure, listen } = panel;
  const opened = new Set(); // what the reader unfolded
  const fix = (finding, k) => ask({ kind: "fix", finding, fix: k });

  const head = buildHead(send, fix, `${panel.uid}-problem`);
  const times = model.get("times");
  const tabs = buildTabs("pictures", model.get("tabs"), (tab) => send({ tab }));
  const inner = buildTabs("pictures of a step", times, (tab) => send({ tab }));
  inner.node.classList.add("lp-inner");
  const run = buildRun(ask, send);
  const plan = buildPlan(ask, send);
  const strip = buildAnswers(send, ask);
  const own = buildDrop(panel.uid, ask);
  const { column, rows } = panel.controls;
  const product = make("p.lp-product");
  rows.Cut.append(product);
  for (const name of ["Cut", "Model", "Job"]) {
    const row = rows[name];
    row.classList.add(`lp-of-${name.toLowerCase()}`);
    row.prepend(make("h4", `The ${name.toLowerCase()}`));
    if (name === "Cut") continue;
    // In a narrow window the model and the job are one line each, which unfolds.
    const unfold = button("", { class: "lp-unfold", "aria-expanded": "false", onclick: () =>
      unfold.setAttribute("aria-expanded", String(row.classList.toggle("lp-open"))) });
    row.prepend(unfold);
  }
  const knobs = make("div.lp-side", rows.Cut, rows.Model, rows.Job);
  column.prepend(own.node);

  const remedies = make("div.lp-tries.lp-remedies");
  const found = fold("", { class: "lp-found" }, panel.cards, strip.ran);
  const line = make("input.lp-state", { type: "text", spellcheck: "false", id: `${panel.uid}-line`, title: "lp.explorer and llamapar check take it too",
    onchange: () => ask({ kind: "restore", text: line.value }) });
  const open = openLink(model);
  const text = make("pre.lp-copied", { hidden: true, tabindex: 0 });
  const copies = model.get("exports").map((name) => button(name, { onclick: () => ask({ kind: "copy", name }) }));
  const copying = fold("copy and save", { class: "lp-copy" }, make("div.lp-line", "copy as ", copies, button("save the picture", { title: "maps as SVG, charts as PNG", onclick: figure.save })),
    make("label", { for: line.id }, "This job as a line. Paste one to bring it back."), line, open.node, text);
  // The kernel sends the maps and answers one step to each side: a step is drawn before the kernel hears of it.
  let ahead = { steps: {} };
  knobs.addEventListener("focusin", ({ target }) => { if (target.dataset.axis) ask({ kind: "ahead", knob: target.dataset.axis }); });
  knobs.addEventListener("input", ({ target }) => {
    const { seq, steps } = payload();
    const name = target.dataset.axis;
    const next = ahead.seq === seq && name && ahead.steps[`${name}=${steps[name][target.value]}`];
    if (!next) return;
    figure.ahead(next[0]);
    strip.ahead(next[1]);
  }, true);
  const showCopied = async (message) => {
    if (message.kind === "ahead") ahead = message;
    if (message.kind !== "copied") return;
    text.hidden = false;
    text.textContent = message.text;
    try { await navigator.clipboard.writeText(message.text); text.dataset.copied = "yes"; }
    catch { delete text.dataset.copied; } // no clipboard: the text is there to select
  };
  const foot = make("div.lp-foot", found, fold("more settings", { class: "lp-group lp-settings" }, column),
    fold("compare", { class: "lp-compare" }, strip.pinned), copying, strip.steps);
  const picturing = Object.values(rows).filter((row) => row.dataset.tab); // the controls of a picture, above it
  panel.main.append(tabs.node, inner.node, ...picturing, remedies, run.head, plan.head, figure.node, run.tables);
  panel.columns.replaceChildren(head.node, strip.node, make("div.lp-body", knobs, panel.main), foot);

  // The Run tab has a picture once something ran, and keeps it, dimmed, until the next run has one.
  let result = null;
  const inTab = (name) => payload().values.tab === name && !payload().problem;
  const inRunTab = () => inTab("run");
  const dim = () => {
    const { state, result } = model.get("running");
    figure.node.classList.toggle("lp-stale", inRunTab() && state === "running" && !result);
  };
  const drawFigure = () => {
    const running = model.get("running");
    const runs = inRunTab();
    const plans = inTab("plan");
    result = running.result ?? (running.state === "running" ? result : null);
    run.head.hidden = run.tables.hidden = !runs;
    plan.head.hidden = !plans;
    const planned = model.get("planned");
    const own = runs ? result : plans ? planned : null; // a picture that a thread of the kernel sends
    figure.node.hidden = Boolean(own ?? runs) && !own?.figure;
    dim();
    figure.draw(own || runs ? { ...payload(), figure: own?.figure, summary: own?.summary ?? "" } : payload());
  };
  const showPlan = () => {
    plan.draw(model.get("planned"));
    if (inTab("plan")) drawFigure();
  };
  const showAnswers = () => {
    strip.draw(model.get("answers"));
    const said = model.get("answers").line ?? "";
    if (!isActive(line)) line.value = said;
    open.show(said);
  };
  const showSteps = () => strip.showSteps(model.get("past"), model.get("future"));
  const showRun = () => {
    const running = model.get("running");
    if (!running.state) return; // nothing was ever asked for
    run.draw(running);
    dim();
    const more = running.result || running.state !== "running"; // than how far it is
    if (more && inRunTab()) drawFigure();
  };
  const showRemedies = () => drawRemedies(remedies, { offered: model.get("offered"), payload: payload(), apply: (k) => ask({ kind: "remedy", remedy: k }) });
  const show = () => {
    const now = payload();
    const { tab, preset, gpus, seq_len: tokens } = now.values;
    drawFigure(); // first: plotly measures the page, which the rest of this then changes, once
    panel.controls.show(now);
    head.draw(now);
    const { findings, status } = now;
    product.textContent = status;
    found.firstChild.textContent = `${findings.length || "no"} finding${findings.length === 1 ? "" : "s"}`;
    rows.Model.firstChild.textContent = `The model: ${preset === "custom" ? "no preset" : preset}`;
    rows.Job.firstChild.textContent = `The job: ${gpus ? `${inWords(gpus)} GPUs` : "a GPU for each rank"}${tokens ? `, ${inWords(tokens)} tokens` : ""}`;
    refill(panel.cards, findings, () => findings.map((finding, index) => findingCard(finding, index, opened, fix, () => send({ tab: "memory" }))));
    remedies.hidden = tab !== "memory" || !!now.problem;
    inner.node.hidden = !times.some(([name]) => name === tab);
    tabs.show(inner.node.hidden ? tab : "time");
    inner.show(tab);
    showRemedies();
    text.hidden = true;
  };
  const keeping = (draw) => () => keepFocus(panel.columns, head.status, draw);
  listen("change:payload", keeping(show));
  listen("change:running", showRun);
  listen("change:offered", keeping(showRemedies));
  const showTold = () => own.draw(model.get("told"));
  listen("change:told", showTold);
  listen("change:answers", keeping(showAnswers));
  for (const way of ["past", "future"]) listen(`change:${way}`, keeping(showSteps));
  listen("change:planned", showPlan);
  listen("msg:custom", showCopied);
  show();
  showAnswers();
  showSteps();
  showRun();
  showPlan();
  showTold();
  return panel.end;
}

export default { render };

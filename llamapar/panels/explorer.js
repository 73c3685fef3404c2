// The Explorer's face. Python says what to show (schema once, payload after every change); this file
// draws it and says what was touched.

const LIMIT_OPEN = 3; // findings that stand open; the rest folds
const BEFORE = 60; // pixels of tabs that stay in sight before the one that is chosen, where they scroll

// -- findings ----------------------------------------------------------------------------------

function verdictTable({ verdicts, unknown }) {
  const rows = verdicts.map(([title, verdict, message, note, links]) =>
    [title, verdict, [message && make("code", {}, message), note && make("div", {}, note), sources(links)].filter(Boolean)]);
  const made = frameworksTable(rows, ["framework", "verdict", "what it says or does"]);
  if (unknown.length) made.firstChild.append(make("tr", {}, make("td", { colspan: 3, class: "lp-source" }, `not known: ${unknown.join(", ")}`)));
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

const findingLine = ({ severity, code, message }) => [mark(severity), make("b", {}, code), make("span", { class: "lp-what", title: message }, message)];

// Why, the other fixes and what the frameworks do: folded behind the finding's one line.
function findingFold(finding, opened, others) {
  const judged = finding.verdicts.length || finding.unknown.length;
  const more = () => [why(finding.why), others.length ? make("div", { class: "lp-tries" }, "or ", others) : null,
    judged ? verdictTable(finding) : null].filter(Boolean);
  return remembered(opened, finding.code, others.length ? `why, ${others.length} more` : "why", { class: "lp-more" }, more);
}

// Findings with the same best fix are one card. later: the node of what is tried after the picture is shown.
function findingCard(group, opened, fix, later) {
  const [[first, index], ...same] = group;
  const [best, ...others] = fixes(first.fixes, "apply this fix", (k) => fix(index, k));
  const line = (finding, ...rest) => make("div", { class: "lp-line lp-one" }, findingLine(finding), rest);
  return make("div", { class: `lp-finding lp-${first.severity}`, "data-code": first.code },
    line(first, first.later ? later : best ?? null, findingFold(first, opened, others)),
    same.map(([finding]) => make("div", { "data-code": finding.code }, line(finding, findingFold(finding, opened, [])))));
}

function grouped(findings) {
  const groups = new Map();
  findings.forEach((finding, index) => {
    const key = finding.fixes.length ? finding.fixes[0][0] : index;
    groups.set(key, [...(groups.get(key) ?? []), [finding, index]]);
  });
  return [...groups.values()];
}

function drawFindings(box, { findings, problem, judged }, opened, fix, later, sentence) {
  box.inert = !judged; // what was found before stays, dimmed, where nothing can be judged
  box.classList.toggle("lp-kept", !judged);
  if (!judged) return;
  refill(box, [findings, problem], () => { // a change of tab leaves them as they are
    const cards = [...(problem ? [sentence(problem)] : []), ...grouped(findings).map((group) => findingCard(group, opened, fix, later))];
    const rest = cards.splice(LIMIT_OPEN);
    const title = `${rest.length} more finding${rest.length > 1 ? "s" : ""}`;
    return rest.length ? [...cards, remembered(opened, "rest", title, { class: "lp-folded" }, () => rest)] : cards;
  });
}

// What makes it fit, once it is found; until then what was found before stands there, dimmed and inert.
function drawRemedies(box, { offered, payload, apply, opened }) {
  const now = offered.seq === payload.seq;
  box.hidden = payload.fits || (!now && !box.hasChildNodes());
  box.inert = !now;
  box.classList.toggle("lp-stale", !now);
  if (!now) return;
  const words = offered.fixes.length ? "" : "one or two settings, axes or the GPU changed: nothing makes it fit";
  const [best, ...others] = fixes(offered.fixes, "make this change", apply);
  const more = others.length ? remembered(opened, "remedies", `${others.length} more`, {}, () => others) : "";
  box.replaceChildren(words, best ?? "", more);
}

// -- the pictures --------------------------------------------------------------------------------

// Tabs that the arrow keys walk; each is [key, title, attributes], and `pick` is told the key.
function buildTabs(label, items, pick) {
  const tabs = items.map(([key, title, attributes]) => button(title, { role: "tab", ...attributes, onclick: () => pick(key) }));
  const node = make("div", { class: "lp-tabs", role: "tablist", "aria-label": label }, tabs);
  node.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const there = tabs.filter((tab) => !tab.hidden);
    const at = there.findIndex(isActive);
    if (!step || at < 0) return;
    event.preventDefault();
    event.stopPropagation();
    const next = there[(at + step + there.length) % there.length];
    next.focus();
    next.click();
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

// Four doors, each a question; behind a door its pictures, and it opens on the one that was last looked at.
function buildDoors(doors, send) {
  const last = new Map(doors.map(([door, [[first]]]) => [door, first]));
  const questions = buildTabs("questions", doors.map(([door]) => [door, door, { "data-door": door }]), (door) => send({ tab: last.get(door) }));
  const all = doors.flatMap(([door, pictures]) => pictures.map(([tab, title]) => [tab, title, { "data-tab": tab, "data-of": door }]));
  const pictures = buildTabs("pictures", all, (tab) => send({ tab }));
  pictures.node.classList.add("lp-pictures");
  const show = (tab) => {
    const [door, its] = doors.find(([, each]) => each.some(([name]) => name === tab)) ?? ["", []];
    if (door) last.set(door, tab);
    for (const one of pictures.tabs) one.hidden = one.dataset.of !== door;
    pictures.node.hidden = its.length < 2;
    questions.show(door);
    pictures.show(tab);
  };
  return { node: make("div", { class: "lp-doors" }, questions.node, pictures.node), show };
}

// -- everything --------------------------------------------------------------------------------

function render({ model, el }) {
  const panel = buildPanel({ model, el }, "lp-explorer", (event) => {
    const { x, y, data, pointNumber } = event.points[0];
    const { tab, rank, tp, cp, pp, dp } = payload().values;
    // of a cell of several ranks, the one that stands in it as this one does in its own; the last where there are fewer
    const there = Number(x) + Number(y) + (data.type === "heatmap" ? rank % data.dx : 0);
    if (tab === "ranks") send({ rank: Math.min(there, tp * cp * pp * dp - 1) });
    if (tab === "plan" && data.mode === "markers" && event.points[0].curveNumber === 1) ask({ kind: "adopt", place: pointNumber });
    if (tab === "layer") send({ step: Math.round(Number(y)) });
    if (tab === "pipeline") send({ time: Math.floor(Number(x)) });
  });
  const { payload, send, ask, figure, status, listen } = panel;
  const opened = new Set(); // what the reader unfolded
  const sentence = (problem) => problemCard(problem, send, `${panel.uid}-problem`);
  const fix = (finding, k) => ask({ kind: "fix", finding, fix: k });

  const doors = buildDoors(model.get("doors"), send);
  const run = buildRun(ask, send);
  const plan = buildPlan(ask, send);
  const steps = buildSteps(panel.uid, send);
  const strip = buildAnswers(send, ask);
  const own = buildDrop(panel.uid, ask);
  const { column, rows } = panel.controls;
  rows.Job.classList.add("lp-job");
  rows.Axes.classList.add("lp-axes");
  // GPUs are held: one axis gives where another moves, and each can be chosen for it.
  const givers = [...rows.Axes.children].map((row) => {
    const axis = row.dataset.control;
    const title = `${axis.toUpperCase()} gives where another axis moves, so that the GPUs stay`;
    const giver = button("⇄", { class: "lp-gives", title, "aria-label": title, onclick: () => send({ gives: axis }) });
    row.append(giver);
    return [axis, giver];
  });
  column.prepend(own.node);
  const settings = fold("settings", { class: "lp-group lp-settings" }, column);
  const remedies = make("div", { class: "lp-tries lp-remedies", hidden: true });
  // In a narrow window the model, the axes, what fails and the picture stand alone: this unfolds the other findings.
  const found = button("", { class: "lp-unfold", "aria-expanded": "false", onclick: () =>
    found.setAttribute("aria-expanded", String(panel.columns.classList.toggle("lp-found"))) });

  const text = make("pre", { class: "lp-copied", hidden: true, tabindex: 0 });
  const copies = model.get("exports").map((name) => button(name, { onclick: () => ask({ kind: "copy", name }) }));
  const saves = ["SVG", "PNG"].map((name) => button(name, { title: "save the picture", onclick: () => figure.save(name.toLowerCase()) }));
  const line = make("input", { type: "text", class: "lp-state", spellcheck: "false", id: `${panel.uid}-line`, title: "lp.explorer and llamapar check take it too" });
  const open = openLink(model);
  line.addEventListener("change", () => ask({ kind: "restore", text: line.value }));
  const copying = make("div", { class: "lp-copy" }, "copy as ", copies, "save as ", saves,
    make("label", { for: line.id }, "this job as a line; paste one to bring it back"), line, open.node, text);
  const showCopied = async (message) => {
    if (message.kind !== "copied") return;
    text.hidden = false;
    text.textContent = message.text;
    try { await navigator.clipboard.writeText(message.text); text.dataset.copied = "yes"; }
    catch { delete text.dataset.copied; } // no clipboard here: the text is there to select
  };
  const picturing = Object.values(rows).filter((row) => row.dataset.tab); // the controls of a picture, above it
  panel.main.append(doors.node, ...picturing, run.head, plan.head, steps.head, figure.node, run.tables, copying);
  panel.columns.replaceChildren(rows.Job, rows.Axes, make("div", { class: "lp-top" }, status, found, settings, strip.steps),
    strip.node, panel.cards, panel.main);

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
    steps.draw(payload());
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
    strip.draw(model.get("answers"), payload().seq);
    const said = model.get("answers").line ?? "";
    if (!isActive(line)) line.value = said;
    open.show(said);
  };
  const showRun = () => {
    const running = model.get("running");
    if (!running.state) return; // nothing was ever asked for
    run.draw(running);
    dim();
    const more = running.result || running.state !== "running"; // than how far it is
    if (more && inRunTab()) drawFigure();
  };
  const showRemedies = () =>
    drawRemedies(remedies, { offered: model.get("offered"), payload: payload(), opened, apply: (k) => ask({ kind: "remedy", remedy: k }) });
  const show = () => {
    const now = payload();
    drawFigure(); // first: plotly measures the page, which the rest of this then changes, once
    panel.controls.show(now);
    refill(status, [now.judged ? now.status : now.problem, now.gave], () => [now.judged ? make("b", {}, now.status) : sentence(now.problem),
      now.gave ? make("span", { class: "lp-gave" }, ` ${now.gave}`) : ""]);
    for (const [axis, giver] of givers) giver.setAttribute("aria-pressed", String(axis === now.values.gives));
    status.dataset.ok = !now.ok ? "no" : now.fits ? "yes" : "unsure";
    drawFindings(panel.cards, now, opened, fix, remedies, sentence);
    if (now.judged) [found.disabled, found.textContent] = [!now.findings.length, now.findings.length === 1 ? "1 finding" : `${now.findings.length} findings`];
    showRemedies();
    showAnswers();
    doors.show(now.values.tab);
    text.hidden = true;
  };
  const keeping = (draw) => () => keepFocus(panel.columns, status, draw);
  listen("change:payload", keeping(show));
  listen("change:running", showRun);
  listen("change:offered", keeping(showRemedies));
  const showTold = () => own.draw(model.get("told"));
  listen("change:told", showTold);
  listen("change:answers", keeping(showAnswers));
  listen("change:planned", showPlan);
  listen("msg:custom", showCopied);
  show();
  showRun();
  showPlan();
  showTold();
  return panel.end;
}

export default { render };

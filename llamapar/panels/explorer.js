// The Explorer's face. Python says what to show (schema once, payload after every change); this file
// draws it and says what was touched.

const LIMIT_OPEN = 3; // findings that stand open; the rest folds

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

// later: the node of what is tried after the picture is shown, for the card whose fixes take that long.
function findingCard(finding, index, opened, fix, later) {
  const [best, ...others] = fixes(finding.fixes, "apply this fix", (k) => fix(index, k));
  const title = others.length ? "more fixes, and what each framework does" : "what each framework does";
  const more = () => [...(others.length ? [make("div", { class: "lp-tries" }, others)] : []), verdictTable(finding)];
  const judged = finding.verdicts.length || finding.unknown.length;
  return card(finding.severity, { "data-code": finding.code },
    [mark(finding.severity), make("b", {}, finding.code), make("span", {}, finding.message)],
    why(finding.why), finding.later ? later : tries(best ? [best] : []),
    judged ? remembered(opened, finding.code, title, { class: "lp-more" }, more) : null);
}

function drawFindings(box, { findings, problem }, opened, fix, later, send) {
  refill(box, [findings, problem], () => { // a change of tab leaves them as they are
    const cards = [...(problem ? [problemCard(problem, send)] : []), ...findings.map((one, index) => findingCard(one, index, opened, fix, later))];
    const rest = cards.splice(LIMIT_OPEN);
    const title = `${rest.length} more finding${rest.length > 1 ? "s" : ""}`;
    return rest.length ? [...cards, remembered(opened, "rest", title, { class: "lp-folded" }, () => rest)] : cards;
  });
}

// What makes it fit, once it is found; until then what was found before stands there, dimmed and inert.
function drawRemedies(box, { offered, payload, apply }) {
  const now = offered.seq === payload.seq;
  box.hidden = payload.fits || (!now && !box.hasChildNodes());
  box.inert = !now;
  box.classList.toggle("lp-stale", !now);
  if (!now) return;
  const words = offered.fixes.length ? "try " : "one or two settings, axes or the GPU changed: nothing makes it fit";
  box.replaceChildren(words, ...fixes(offered.fixes, "make this change", apply));
}

// -- everything --------------------------------------------------------------------------------

function render({ model, el }) {
  const panel = buildPanel({ model, el }, "", (event) => {
    const { x, y, data } = event.points[0];
    const { tab, beside } = payload().values;
    if (tab === "ranks" && data.type === "heatmap") send({ rank: Number(x) + Number(y) });
    if (tab === "pipeline" && !beside) send({ time: Math.floor(Number(x)) });
  });
  const { payload, send, ask, figure, status, listen } = panel;
  const opened = new Set(); // what the reader unfolded
  const fix = (finding, k) => ask({ kind: "fix", finding, fix: k });

  const tabs = model.get("tabs").map(([name, title]) => button(title, { role: "tab", "data-tab": name, onclick: () => send({ tab: name }) }));
  const bar = make("div", { class: "lp-tabs", role: "tablist", "aria-label": "maps" }, tabs);
  bar.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const at = tabs.findIndex(isActive);
    if (!step || at < 0) return;
    event.preventDefault();
    event.stopPropagation();
    const next = tabs[(at + step + tabs.length) % tabs.length];
    next.focus();
    next.click();
  });
  const run = buildRun(ask);
  const remedies = make("div", { class: "lp-tries lp-remedies", hidden: true });

  const text = make("pre", { class: "lp-copied", hidden: true, tabindex: 0 });
  const copies = model.get("exports").map((name) => button(name, { onclick: () => ask({ kind: "copy", name }) }));
  const copying = make("div", { class: "lp-copy" }, "copy as ", copies, text);
  const showCopied = async (message) => {
    if (message.kind !== "copied") return;
    text.hidden = false;
    text.textContent = message.text;
    try { await navigator.clipboard.writeText(message.text); text.dataset.copied = "yes"; }
    catch { delete text.dataset.copied; } // no clipboard here: the text is there to select
  };
  panel.main.append(panel.note, status, panel.cards, bar, run.head, figure.node, run.tables, copying);

  // The Run tab has a picture once something ran, and keeps it, dimmed, until the next run has one.
  let result = null;
  const inRunTab = () => payload().values.tab === "run" && !payload().problem;
  const dim = () => {
    const { state, result } = model.get("running");
    figure.node.classList.toggle("lp-stale", inRunTab() && state === "running" && !result);
  };
  const drawFigure = () => {
    const running = model.get("running");
    const runs = inRunTab();
    result = running.result ?? (running.state === "running" ? result : null);
    run.head.hidden = run.tables.hidden = !runs;
    figure.node.hidden = runs && !result?.figure;
    dim();
    figure.draw(runs ? { ...payload(), figure: result?.figure, summary: result?.summary ?? "" } : payload());
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
    drawRemedies(remedies, { offered: model.get("offered"), payload: payload(), apply: (k) => ask({ kind: "remedy", remedy: k }) });
  const show = () => {
    const now = payload();
    drawFigure(); // first: plotly measures the page, which the rest of this then changes, once
    panel.controls.show(now.values);
    status.textContent = now.status;
    status.dataset.ok = now.ok ? "yes" : "no";
    drawFindings(panel.cards, now, opened, fix, remedies, send);
    showRemedies();
    for (const tab of tabs) {
      const on = tab.dataset.tab === now.values.tab;
      tab.setAttribute("aria-selected", String(on));
      tab.tabIndex = on ? 0 : -1;
    }
    text.hidden = true;
  };
  listen("change:payload", show);
  listen("change:running", showRun);
  listen("change:offered", showRemedies);
  listen("msg:custom", showCopied);
  show();
  showRun();
  return panel.end;
}

export default { render };

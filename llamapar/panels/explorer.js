// The Explorer's face. Python says what to show (schema once, payload after every change); this file
// draws it and says what was touched.

const LIMIT_OPEN = 3; // findings that stand open; the rest folds

// -- findings ----------------------------------------------------------------------------------

function verdictTable({ verdicts, unknown }) {
  const head = make("tr", {}, ...["framework", "verdict", "what it says or does"].map((text) => make("th", {}, text)));
  const rows = verdicts.map(([title, verdict, message, note, links]) => {
    const words = make("td", {}, message ? make("code", {}, message) : null, note ? make("div", {}, note) : null, sources(links));
    return make("tr", {}, make("td", {}, title), make("td", {}, verdict), words);
  });
  if (unknown.length) rows.push(make("tr", {}, make("td", { colspan: 3, class: "lp-source" }, `not known: ${unknown.join(", ")}`)));
  return make("div", { class: "lp-wide" }, make("table", { class: "lp-frameworks" }, head, ...rows));
}

function findingCard(finding, index, opened, fix) {
  const button = (text, k) =>
    make("button", { type: "button", class: "lp-fix", title: "apply this fix", onclick: () => fix(index, k) }, text);
  const [best, ...others] = finding.fixes;
  const more = make("details", { class: "lp-more", open: opened.has(finding.code) },
    make("summary", {}, others.length ? "more fixes, and what each framework does" : "what each framework does"),
    others.length ? make("p", {}, ...others.map((text, k) => button(text, k + 1))) : null);
  const fill = () => { if (more.open && !more.querySelector("table")) more.append(verdictTable(finding)); };
  more.addEventListener("toggle", () => {
    fill();
    if (more.open) opened.add(finding.code); else opened.delete(finding.code);
  });
  fill();
  return make("div", { class: `lp-finding lp-${finding.severity}`, "data-code": finding.code },
    make("div", { class: "lp-line" },
      make("span", { class: "lp-mark", title: finding.severity, role: "img", "aria-label": finding.severity }, MARKS[finding.severity]),
      make("b", {}, finding.code), make("span", {}, finding.message)),
    make("div", { class: "lp-why" }, finding.why),
    best ? make("div", { class: "lp-best" }, "try ", button(best, 0)) : null,
    more);
}

function drawFindings(box, payload, opened, fix, send) {
  const now = JSON.stringify([payload.findings, payload.problem]);
  if (box.llamaparDrawn === now) return; // a change of tab leaves them as they are
  box.llamaparDrawn = now;
  const cards = payload.findings.map((finding, index) => findingCard(finding, index, opened, fix));
  if (payload.problem) cards.unshift(problemCard(payload.problem, send));
  const shown = cards.slice(0, LIMIT_OPEN);
  const rest = cards.slice(LIMIT_OPEN);
  if (rest.length) {
    const folded = make("details", { class: "lp-folded", open: opened.has("rest") },
      make("summary", {}, `${rest.length} more finding${rest.length > 1 ? "s" : ""}`), ...rest);
    folded.addEventListener("toggle", () => (folded.open ? opened.add("rest") : opened.delete("rest")));
    shown.push(folded);
  }
  box.replaceChildren(...shown);
}

// -- the Memory tab ----------------------------------------------------------------------------

// What makes it fit, once it is found; until then what was found before stands there, dimmed and inert.
function drawRemedies(box, { offered, payload, apply }) {
  const { tab } = payload.values;
  const now = offered.seq === payload.seq;
  box.hidden = tab !== "memory" || payload.fits || (!now && !box.hasChildNodes());
  box.inert = !now;
  box.classList.toggle("lp-stale", !now);
  if (!now) return;
  const words = offered.texts.length ? "to make it fit" : "one or two settings, axes or the GPU changed: nothing makes it fit";
  box.replaceChildren(words, ...offered.texts.map((text, k) =>
    make("button", { type: "button", class: "lp-fix", title: "make this change", onclick: () => apply(k) }, text)));
}

// -- everything --------------------------------------------------------------------------------

function render({ model, el }) {
  const uid = `lp${++views}`;
  const opened = new Set();
  const { send, ask, note, close } = buildSender(model, () => controls.show(model.get("payload").values));
  const fix = (finding, k) => ask({ kind: "fix", finding, fix: k });

  const controls = buildControls(model.get("schema"), uid, send, (name, text) => ask({ kind: "load", name, text }));
  const status = make("div", { class: "lp-status", role: "status", "aria-live": "polite" });
  const findings = make("div", { class: "lp-findings" });

  const tabs = model.get("tabs").map(([name, title]) =>
    make("button", { type: "button", role: "tab", "data-tab": name, onclick: () => send({ tab: name }) }, title));
  const bar = make("div", { class: "lp-tabs", role: "tablist", "aria-label": "maps" }, ...tabs);
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
  const figure = buildFigure(model, (event) => {
    const { x, y, data } = event.points[0];
    if (model.get("payload").values.tab === "ranks" && data.type === "heatmap") send({ rank: Number(x) + Number(y) });
  }, (painted) => { root.dataset.painted = painted; });

  const run = buildRun(ask);
  const remedies = make("div", { class: "lp-copy lp-remedies", hidden: true });

  const text = make("pre", { class: "lp-copied", hidden: true, tabindex: 0 });
  const copies = model.get("exports").map((name) =>
    make("button", { type: "button", onclick: () => ask({ kind: "copy", name }) }, name));
  const copying = make("div", { class: "lp-copy" }, "copy as ", ...copies, text);
  const onMessage = async (message) => {
    if (message.kind !== "copied") return;
    text.hidden = false;
    text.textContent = message.text;
    try { await navigator.clipboard.writeText(message.text); text.dataset.copied = "yes"; }
    catch { delete text.dataset.copied; } // no clipboard here: the text is there to select
  };

  const root = buildRoot("", controls, note, status, findings, bar, run.head, remedies, figure.node, run.tables, copying);
  el.append(root);

  // The Run tab has a picture once something ran, and keeps it, dimmed, until the next run has one.
  let result = null;
  const inRunTab = () => model.get("payload").values.tab === "run" && !model.get("payload").problem;
  const dim = () => {
    const { state, result } = model.get("running");
    figure.node.classList.toggle("lp-stale", inRunTab() && state === "running" && !result);
  };
  const drawFigure = (payload) => {
    const running = model.get("running");
    const runs = inRunTab();
    result = running.result ?? (running.state === "running" ? result : null);
    run.head.hidden = run.tables.hidden = !runs;
    figure.node.hidden = runs && !result?.figure;
    dim();
    figure.draw(runs ? { ...payload, figure: result?.figure, summary: result?.summary ?? "" } : payload);
  };
  const showRun = () => {
    const running = model.get("running");
    if (!running.state) return; // nothing was ever asked for
    run.draw(running);
    dim();
    const more = running.result || running.state !== "running"; // than how far it is
    if (more && inRunTab()) drawFigure(model.get("payload"));
  };

  const showRemedies = () => drawRemedies(remedies, {
    offered: model.get("offered"), payload: model.get("payload"), apply: (k) => ask({ kind: "remedy", remedy: k }) });

  const show = () => {
    const payload = model.get("payload");
    drawFigure(payload); // first: plotly measures the page, which the rest of this then changes, once
    controls.show(payload.values);
    status.textContent = payload.status;
    status.dataset.ok = payload.problem ? "no" : payload.ok ? "yes" : "no";
    drawFindings(findings, payload, opened, fix, send);
    showRemedies();
    for (const tab of tabs) {
      const on = tab.dataset.tab === payload.values.tab;
      tab.setAttribute("aria-selected", String(on));
      tab.tabIndex = on ? 0 : -1;
    }
    text.hidden = true;
  };
  model.on("change:payload", show);
  model.on("change:running", showRun);
  model.on("change:offered", showRemedies);
  model.on("msg:custom", onMessage);
  show();
  showRun();

  return () => {
    model.off("change:payload", show);
    model.off("change:running", showRun);
    model.off("change:offered", showRemedies);
    model.off("msg:custom", onMessage);
    close();
    figure.close();
  };
}

export default { render };

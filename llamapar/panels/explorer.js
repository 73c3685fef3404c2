// The Explorer's face. Python says what to show (schema once, payload after every change); this file
// draws it and says what was touched. Texts only ever become text nodes, never markup.

const LIMIT_OPEN = 3; // findings that stand open; the rest folds

const KEYED = new Set(["input", "select", "button", "summary", "pre"]);

function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  // JupyterLab's shortcuts (arrows, Enter, letters) must not take the keys that a control needs.
  if (KEYED.has(tag)) node.setAttribute("data-lm-suppress-shortcuts", "true");
  node.append(...children.filter((child) => child != null));
  return node;
}

// One plotly.js to a page: the one that is there, or plotly's own bundle sent by the kernel once.
function loadPlotly(model) {
  if (window.Plotly) return Promise.resolve(window.Plotly);
  window.llamaparPlotly ??= new Promise((resolve, reject) => {
    const receive = (message, buffers) => {
      if (message.kind !== "plotly") return;
      model.off("msg:custom", receive);
      const url = URL.createObjectURL(new Blob([buffers[0]], { type: "text/javascript" }));
      const script = make("script", { src: url });
      script.onload = () => { URL.revokeObjectURL(url); resolve(window.Plotly); };
      script.onerror = () => reject(new Error("plotly.js did not load"));
      document.head.append(script);
    };
    model.on("msg:custom", receive);
    model.send({ kind: "plotly" });
  });
  return window.llamaparPlotly;
}

// -- controls ----------------------------------------------------------------------------------

const number = (text) => (/^-?\d{1,15}$/.test(text.trim()) ? Number(text) : text.trim() === "" ? null : text.trim());
const isActive = (node) => node.getRootNode().activeElement === node;

function intControl(control, send) {
  const input = make("input", { type: "text", inputmode: "numeric", id: control.id, title: control.help, placeholder: control.placeholder });
  let timer = 0;
  const commit = () => { clearTimeout(timer); send({ [control.name]: number(input.value) }); };
  input.addEventListener("change", commit);
  input.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(commit, 400); });
  const show = (value) => {
    const text = value == null ? "" : String(value);
    if (!isActive(input) || number(input.value) === value) { if (input.value !== text) input.value = text; }
  };
  return { nodes: [input], show };
}

function axisControl(control, send) {
  const box = intControl(control, send);
  const slider = make("input", {
    type: "range", min: 0, max: control.steps - 1, step: 1,
    "aria-label": `${control.label} in powers of two`, "data-axis": control.name,
  });
  slider.addEventListener("input", () => {
    const value = 2 ** Number(slider.value);
    box.nodes[0].value = String(value);
    slider.setAttribute("aria-valuetext", String(value));
    send({ [control.name]: value });
  });
  const show = (value) => {
    box.show(value);
    const step = Number.isInteger(value) && value > 0 ? Math.min(Math.round(Math.log2(value)), control.steps - 1) : 0;
    if (Number(slider.value) !== step) slider.value = String(step);
    slider.setAttribute("aria-valuetext", String(value));
  };
  return { nodes: [slider, ...box.nodes], show };
}

function choiceControl(control, send) {
  const select = make("select", { id: control.id, title: control.help },
    ...control.options.map(([, label]) => make("option", {}, label)));
  const values = control.options.map(([value]) => value);
  select.addEventListener("change", () => send({ [control.name]: values[select.selectedIndex] }));
  const show = (value) => {
    if (!values.includes(value)) { values.push(value); select.append(make("option", {}, String(value))); }
    select.selectedIndex = values.indexOf(value);
  };
  return { nodes: [select], show };
}

function boolControl(control, send) {
  const input = make("input", { type: "checkbox", id: control.id });
  input.addEventListener("change", () => send({ [control.name]: input.checked }));
  return { nodes: [input], show: (value) => { input.checked = value === true; } };
}

function fileControl(control, load) {
  const input = make("input", { type: "file", accept: ".json,application/json", id: control.id, title: control.help });
  input.addEventListener("change", async () => {
    const file = input.files[0];
    if (file) load(file.name, file.size > 1 << 20 ? " ".repeat((1 << 20) + 1) : await file.text());
    input.value = ""; // so that the same file can be loaded again
  });
  return { nodes: [input], show: () => {} };
}

const KINDS = { int: intControl, axis: axisControl, choice: choiceControl, bool: boolControl };

// Builds all groups; returns the column and a function that shows values.
function buildControls(schema, uid, send, load) {
  const shows = {};
  const groups = schema.map(({ group, open, tab, controls }) => {
    const rows = controls.map((spec) => {
      const control = { ...spec, id: `${uid}-${spec.name}` };
      const built = control.kind === "file" ? fileControl(control, load) : KINDS[control.kind](control, send);
      shows[control.name] = built.show;
      const label = make("label", { for: control.id, title: control.help }, control.label);
      return make("div", { class: `lp-row lp-${control.kind}`, "data-control": control.name }, label, ...built.nodes);
    });
    return make("details", { class: "lp-group", open, "data-tab": tab }, make("summary", {}, group), ...rows);
  });
  const show = (values) => {
    for (const [name, value] of Object.entries(values)) shows[name]?.(value);
    for (const group of groups) group.hidden = Boolean(group.dataset.tab) && group.dataset.tab !== values.tab;
  };
  return { column: make("div", { class: "lp-controls" }, ...groups), show };
}

// -- findings ----------------------------------------------------------------------------------

const MARKS = { error: "✕", warning: "!", note: "i" };

function verdictTable(verdicts) {
  const head = make("tr", {}, ...["framework", "verdict", "what it says or does", "source"].map((t) => make("th", {}, t)));
  const rows = verdicts.map(([title, verdict, message, note, source]) => {
    const said = make("td", {});
    if (message) said.append(make("code", {}, message));
    if (note) said.append(make("div", {}, note));
    return make("tr", {}, make("td", {}, title), make("td", {}, verdict), said, make("td", { class: "lp-source" }, source));
  });
  return make("table", {}, head, ...rows);
}

function findingCard(finding, index, opened, fix) {
  const button = (text, k) =>
    make("button", { type: "button", class: "lp-fix", title: "apply this fix", onclick: () => fix(index, k) }, text);
  const [best, ...others] = finding.fixes;
  const more = make("details", { class: "lp-more", open: opened.has(finding.code) },
    make("summary", {}, others.length ? "more fixes, and what each framework does" : "what each framework does"),
    others.length ? make("p", {}, ...others.map((text, k) => button(text, k + 1))) : null);
  const fill = () => { if (more.open && !more.querySelector("table")) more.append(verdictTable(finding.verdicts)); };
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

function problemCard({ what, why, choose }) {
  return make("div", { class: "lp-finding lp-error" },
    make("div", { class: "lp-line" }, make("span", { class: "lp-mark" }, MARKS.error), make("span", {}, what)),
    why ? make("div", { class: "lp-why" }, why) : null,
    choose.length ? make("div", { class: "lp-why" }, `try ${choose.join(", or ")}`) : null);
}

function drawFindings(box, payload, opened, fix) {
  const said = JSON.stringify([payload.findings, payload.problem]);
  if (box.llamaparSaid === said) return; // a change of tab leaves them as they are
  box.llamaparSaid = said;
  const cards = payload.findings.map((finding, index) => findingCard(finding, index, opened, fix));
  if (payload.problem) cards.unshift(problemCard(payload.problem));
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

// -- the figure --------------------------------------------------------------------------------

const CONFIG = { responsive: false, displaylogo: false, modeBarButtonsToRemove: ["select2d", "lasso2d", "toImage"] };

function buildFigure(model, onRank, onPainted) {
  const plot = make("div", { class: "lp-plot" });
  const reason = make("div", { class: "lp-reason" });
  const summary = make("pre", { class: "lp-summary" });
  let last = null;
  let color = ""; // of text: the theme's, read once
  let drawn = ""; // the tab whose figure stands there
  async function draw(payload) {
    last = payload;
    summary.textContent = payload.summary;
    const { figure, values } = payload;
    plot.hidden = !figure;
    reason.hidden = Boolean(figure);
    if (figure) {
      const Plotly = window.Plotly ?? (await loadPlotly(model));
      if (last !== payload || !plot.isConnected) return; // overtaken, or not on the page yet: see below
      color ||= getComputedStyle(plot).getPropertyValue("--jp-ui-font-color1").trim() || "#777";
      const layout = { ...figure.layout, autosize: true, font: { ...figure.layout.font, color } };
      if (drawn === values.tab) {
        await Plotly.react(plot, figure.data, layout, CONFIG);
      } else { // another kind of picture starts afresh: react keeps axis titles where the old one had them
        drawn = values.tab;
        await Plotly.newPlot(plot, figure.data, layout, CONFIG);
        plot.on("plotly_click", onRank);
      }
    } else {
      reason.textContent = payload.problem ? payload.problem.what : "nothing to draw";
    }
    requestAnimationFrame(() => onPainted(payload.seq));
  }
  // Fires when the plot comes onto the page, which may be after the first draw, and when it changes size.
  const resized = new ResizeObserver(() => {
    if (!plot.clientWidth || !last?.figure) return;
    if (plot.data) window.Plotly.Plots.resize(plot); else draw(last);
  });
  resized.observe(plot);
  const node = make("div", { class: "lp-figure", role: "tabpanel" }, reason, plot,
    make("details", {}, make("summary", {}, "as text"), summary));
  return { node, draw, redraw: () => { color = ""; if (last) draw(last); }, close: () => { resized.disconnect(); window.Plotly?.purge(plot); } };
}

// -- everything --------------------------------------------------------------------------------

let views = 0;

function render({ model, el }) {
  const uid = `lp${++views}`;
  const opened = new Set();
  let pending = null; // changes not yet sent: one message is under way at a time
  let busy = false;
  let seq = 0;

  const flush = () => {
    if (busy || !pending) return;
    busy = true;
    model.send({ kind: "set", changes: pending, seq: ++seq });
    pending = null;
  };
  const send = (changes) => { pending = { ...pending, ...changes }; flush(); };
  const fix = (finding, k) => model.send({ kind: "fix", finding, fix: k });

  const controls = buildControls(model.get("schema"), uid, send,
    (name, text) => model.send({ kind: "load", name, text, seq: ++seq }));
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

  const run = buildRun(model);

  const text = make("pre", { class: "lp-copied", hidden: true, tabindex: 0 });
  const copies = model.get("exports").map((name) =>
    make("button", { type: "button", onclick: () => model.send({ kind: "copy", name }) }, name));
  const copying = make("div", { class: "lp-copy" }, "copy as ", ...copies, text);
  const onMessage = async (message) => {
    if (message.kind !== "copied") return;
    text.hidden = false;
    text.textContent = message.text;
    try { await navigator.clipboard.writeText(message.text); text.dataset.copied = "yes"; }
    catch { delete text.dataset.copied; } // no clipboard here: the text is there to select
  };

  const root = make("div", { class: "llamapar" }, controls.column,
    make("div", { class: "lp-main" }, status, findings, bar, run.head, figure.node, run.tables, copying));
  el.append(root);

  // The Run tab has a picture once something ran, and keeps it, dimmed, until the next run has one.
  let told = null;
  const inRunTab = () => model.get("payload").values.tab === "run" && !model.get("payload").problem;
  const dim = () => {
    const { state, told: result } = model.get("running");
    figure.node.classList.toggle("lp-stale", inRunTab() && state === "running" && !result);
  };
  const drawFigure = (payload) => {
    const running = model.get("running");
    const runs = inRunTab();
    told = running.told ?? (running.state === "running" ? told : null);
    run.head.hidden = run.tables.hidden = !runs;
    figure.node.hidden = runs && !told?.figure;
    dim();
    figure.draw(runs ? { ...payload, figure: told?.figure, summary: told?.summary ?? "" } : payload);
  };
  const showRun = () => {
    const running = model.get("running");
    if (!running.state) return; // nothing was ever asked for
    run.draw(running);
    dim();
    const more = running.told || running.state !== "running"; // than how far it is
    if (more && inRunTab()) drawFigure(model.get("payload"));
  };

  const show = () => {
    const payload = model.get("payload");
    busy = false;
    flush();
    drawFigure(payload); // first: plotly measures the page, which the rest of this then changes, once
    controls.show(payload.values);
    status.textContent = payload.status;
    status.dataset.ok = payload.problem ? "no" : payload.ok ? "yes" : "no";
    drawFindings(findings, payload, opened, fix);
    for (const tab of tabs) {
      const on = tab.dataset.tab === payload.values.tab;
      tab.setAttribute("aria-selected", String(on));
      tab.tabIndex = on ? 0 : -1;
    }
    text.hidden = true;
  };
  model.on("change:payload", show);
  model.on("change:running", showRun);
  model.on("msg:custom", onMessage);
  show();
  showRun();

  const theme = new MutationObserver(figure.redraw);
  theme.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-light", "data-jp-theme-name"] });
  return () => {
    theme.disconnect();
    model.off("change:payload", show);
    model.off("change:running", showRun);
    model.off("msg:custom", onMessage);
    figure.close();
  };
}

export default { render };

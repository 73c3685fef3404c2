// What the panels' pages share: elements, plotly, controls, cards, the figure. Texts only ever become
// text nodes, never markup.

const KEYED = new Set(["input", "select", "textarea", "button", "summary", "pre", "canvas"]);

// make("div.lp-line", { id }, ...children): an element of some classes. It may have no attributes.
function make(kind, ...children) {
  const [tag, ...classes] = kind.split(".");
  const node = document.createElement(tag);
  if (classes.length) node.className = classes.join(" ");
  const attributes = children[0]?.constructor === Object ? children.shift() : {};
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  // JupyterLab's shortcuts (arrows, Enter, letters) must not take the keys that a control needs.
  if (KEYED.has(tag)) node.setAttribute("data-lm-suppress-shortcuts", "true");
  node.append(...children.flat().filter((child) => child != null));
  return node;
}

const put = (node, attributes) => { for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value); return node; };
function svgNode(tag, attributes = {}, ...children) {
  const node = put(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes);
  node.append(...children);
  return node;
}

// One page holds more panels, and one model more views: each has names of its own.
const newName = () => `lp${Math.random().toString(36).slice(2)}`;
function onTheme(changed) {
  const observer = new MutationObserver(changed);
  observer.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-light", "data-jp-theme-name"] });
  return observer;
}

const button = (text, attributes) => make("button", { type: "button", ...attributes }, ...[text].flat());
const fold = (title, attributes, ...children) => make("details", attributes, make("summary", title), ...children);

// Fills a box where what it shows is new, so that what stands open in it stays open.
function refill(box, shown, build) {
  const now = JSON.stringify(shown);
  if (box.llamaparShown === now) return;
  box.llamaparShown = now;
  box.replaceChildren(...build());
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
    setTimeout(() => { window.llamaparPlotly = null; }, 30_000); // a kernel may end before it answers: ask another
    model.send({ kind: "plotly" });
  });
  return window.llamaparPlotly;
}

const PATIENCE = 5000; // ms until a page without an answer says so, and sends on

// Messages to Python, one at a time. `send` takes changes of controls, which go together while they wait; `ask`
// any other message. `note` says what was refused, and `refused` puts the controls back; without an answer
// `dim` is called.
function buildSender(model, uid, refused, dim) {
  const note = make("div.lp-answer", { "aria-live": "polite" });
  const waiting = [];
  let count = 0;
  let awaited = null; // the id of the message on its way
  let timer = 0;
  const showProblem = (problem, silent = false) => {
    dim(silent);
    note.replaceChildren(...(problem ? [problemCard(problem, (changes) => put(changes.line ? { kind: "restore", text: changes.line } : { kind: "set", changes }))] : []));
  };
  const flush = () => {
    clearTimeout(timer);
    awaited = null;
    if (!waiting.length) return;
    awaited = `${uid}-${++count}`;
    timer = setTimeout(unanswered, model.patience ?? PATIENCE);
    try { model.send({ ...waiting.shift(), id: awaited }); } catch { gone(); }
  };
  const unanswered = () => { // must not hold up the next; anywidget hears nothing for a panel that loads for over 2 s
    const why = "It is busy. Or it was restarted or shut down, or this panel was slow to load: then run this cell again.";
    showProblem({ what: "no answer from the kernel", why, choose: [] }, true);
    flush();
  };
  const gone = () => { // JupyterLab closes the panel's line when a kernel restarts; a closed one raises
    waiting.length = 0;
    flush();
    refused();
    const why = "It was restarted or shut down. What stands below is its last answer: run this cell again.";
    showProblem({ what: "the kernel of this panel is gone", why, choose: [] }, true);
  };
  // Maps ahead are of the last knob alone, and wait until changes went together.
  const ahead = () => (waiting.at(-1)?.kind === "ahead" ? waiting.pop() : null);
  const put = (message) => {
    ahead();
    waiting.push({ ...message, seq: model.get("payload").seq }); // what stood there when this was pressed
    if (!awaited) flush();
  };
  const onAnswer = ({ kind, id, problem }) => {
    if (kind === "refused") showProblem(problem); // of a link in this page
    if (kind !== "answered" || !id?.startsWith(uid)) return;
    showProblem(problem);
    if (problem) refused();
    if (id === awaited) flush();
  };
  const clear = () => showProblem(null); // a payload comes before its answer
  model.on("msg:custom", onAnswer);
  model.on("change:payload", clear);
  model.on("comm_live_update", gone);
  return {
    note,
    ask: put,
    send: (changes) => {
      const maps = ahead();
      const last = waiting.at(-1);
      if (last?.kind === "set") Object.assign(last.changes, changes); else put({ kind: "set", changes: { ...changes } });
      if (maps) waiting.push(maps);
    },
    close: () => { model.off("msg:custom", onAnswer); model.off("change:payload", clear); model.off("comm_live_update", gone); clearTimeout(timer); },
  };
}

// Arrow keys, Home and End walk `count()` things: `go` is told the next one's index. at: where a key was pressed.
function walkKeys(node, count, at, go) {
  node.addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const to = { Home: 0, End: count() - 1 }[event.key] ?? at(event) + by;
    if (!(to >= 0 && to < count())) return;
    event.preventDefault();
    event.stopPropagation();
    go(to, event);
  });
}

// Draws anew, and hands the focus on where what had it went away or can no longer be pressed.
function keepFocus(root, next, draw) {
  const active = () => root.getRootNode().activeElement;
  const had = root.contains(active());
  draw();
  if (had && (!root.contains(active()) || active().disabled)) next.focus();
}

// -- controls ----------------------------------------------------------------------------------

// A number as a box shows it is read back; any other text goes to Python, which knows more forms.
function number(text) {
  const typed = text.trim();
  const digits = typed.replaceAll(/(?<=^-?\d{1,3}(,\d{3})*),(?=\d{3}(,\d{3})*$)/g, "");
  if (/^-?\d{1,15}$/.test(digits)) return Number(digits);
  return typed === "" ? null : typed;
}
const inWords = (value) => (typeof value === "number" ? value.toLocaleString("en-US") : String(value ?? ""));
const isActive = (node) => node.getRootNode().activeElement === node;

function intControl(control, send, read = number, more = { inputmode: "numeric" }) {
  const input = make("input", { type: "text", id: control.id, title: control.help, placeholder: control.placeholder, ...more });
  let value = null; // what belongs in the box, which keeps what is typed until the focus leaves it
  let timer = 0; // set while something typed is not sent yet
  const put = () => {
    const text = inWords(value);
    if (input.value !== text) input.value = text;
  };
  const commit = () => {
    if (!timer) return;
    clearTimeout(timer);
    timer = 0;
    value = read(input.value);
    send({ [control.name]: value });
  };
  input.addEventListener("change", commit);
  input.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(commit, 400); });
  input.addEventListener("blur", () => { commit(); put(); });
  const show = (now) => {
    value = now;
    if (!isActive(input) || read(input.value) === value) put();
  };
  return { nodes: [input], show };
}

function textControl(control, send) {
  const list = make("datalist", { id: `${control.id}-names` }, ...control.options.map((name) => make("option", { value: name })));
  const built = intControl(control, send, (text) => text.trim() || null, { list: list.id, spellcheck: "false" });
  return { ...built, nodes: [...built.nodes, list] };
}

// A slider over steps that Python says, beside a box for any number.
function sliderControl(control, send) {
  const box = intControl(control, send);
  let steps = [];
  const oninput = () => {
    const value = steps[slider.value];
    box.show(value);
    slider.setAttribute("aria-valuetext", String(value));
    send({ [control.name]: value });
  };
  const slider = make("input", { type: "range", min: 0, step: 1, "aria-label": `${control.label}, in steps`, "data-axis": control.name, oninput });
  const show = (value, now) => {
    box.show(value);
    steps = now.steps[control.name];
    slider.hidden = steps.length < 2;
    slider.parentElement.hidden = String(steps) === "0";
    slider.max = steps.length - 1; // first: a slider holds no more than that
    slider.value = Math.max(0, steps.findLastIndex((step) => step <= value));
    slider.setAttribute("aria-valuetext", String(value));
  };
  return { nodes: [slider, ...box.nodes], show };
}

// A value beside the choices: a GPU of one's own is JSON, of which the name is enough to see.
function nameOf(value) {
  if (!String(value).startsWith("{")) return String(value);
  try {
    const { name, base } = JSON.parse(value);
    return name ?? (base ? `own ${base}` : "own GPU");
  } catch { return value; }
}

function choiceControl(control, send) {
  const select = make("select", { id: control.id, title: control.help });
  for (const [, label, group] of control.options) { // those of a group stand together
    if (group && select.lastChild?.label !== group) select.append(make("optgroup", { label: group }));
    (group ? select.lastChild : select).append(make("option", label));
  }
  const values = control.options.map(([value]) => value);
  select.addEventListener("change", () => send({ [control.name]: values[select.selectedIndex] }));
  const show = (value) => {
    if (!values.includes(value)) { values.push(value); select.append(make("option", { title: value }, nameOf(value))); }
    select.selectedIndex = values.indexOf(value);
  };
  return { nodes: [select], show };
}

function boolControl(control, send) {
  const input = make("input", { type: "checkbox", id: control.id, onchange: () => send({ [control.name]: input.checked }) });
  return { nodes: [input], show: (value) => { input.checked = value === true; } };
}

const WIDEST = 16; // characters of a choice that stand whole beside its label
const isLong = ({ kind, options }) => kind === "choice" && options.some(([, label]) => label.length > WIDEST);

const KINDS = { int: intControl, text: textControl, slider: sliderControl, choice: choiceControl, bool: boolControl };

// A control beside its label; `show` puts a value into it.
function controlRow(spec, uid, send) {
  const control = { ...spec, id: `${uid}-${spec.name}` };
  const { name, kind, label, help } = control;
  const { nodes, show } = KINDS[kind](control, send);
  const field = nodes.find(({ id }) => id === control.id);
  const called = label ? make(field ? "label.lp-called" : "span.lp-called", { for: field?.id, title: help }, label) : null;
  if (!label) nodes[0].setAttribute("aria-label", name);
  return { name, field, show, row: make("div", { class: `lp-row lp-${kind}${isLong(control) ? " lp-long" : ""}`, "data-control": name, "data-axis": /^[tcpd]p$/.test(name) ? name : null }, called, ...nodes) };
}

// Returns the column of groups, its rows by name, and a function that shows values and marks the wrong one.
function buildControls(schema, uid, send) {
  const all = [];
  const wrong = { "aria-invalid": "true", "aria-describedby": `${uid}-problem` };
  const rows = {}; // groups without a fold, which a panel places itself
  const groups = schema.map(({ group, open, row, tab, controls }) => {
    const built = controls.map((spec) => controlRow(spec, `${uid}-${group}`, send));
    const made = built.map(({ row }) => row);
    all.push(...built);
    if (!row) return fold(group, { class: "lp-group", open, "data-tab": tab }, made);
    return rows[group] = make("div.lp-group.lp-knobs", { role: "group", "aria-label": group, "data-tab": tab }, made);
  });
  const show = (now) => {
    const { values, problem } = now;
    for (const { name, field, show } of all) {
      if (name in values) show(values[name], now);
      for (const [key, value] of Object.entries(wrong)) name === problem?.field ? field.setAttribute(key, value) : field.removeAttribute(key);
    }
    for (const group of groups) group.hidden = Boolean(group.dataset.tab) && group.dataset.tab !== values.tab;
  };
  return { column: make("div.lp-controls", ...groups), rows, show };
}

// A link to the page that shows this state alone, where there is such a page: its address ends with the line.
function openLink(model) {
  const node = model.address ? make("a.lp-open", "open this state") : null;
  return { node, show: (line) => { if (node) node.href = model.address(line); } };
}

// The line of code that gives what is shown, with buttons that copy it and undo the last change, and `more`.
// keep: draws while the focus stays where it was.
function buildCode(model, ask, keep, ...more) {
  const code = make("code");
  const copy = button("copy", { title: "copy this line of code", onclick: async () => {
    try { await navigator.clipboard.writeText(code.textContent); copy.textContent = "copied"; }
    catch { getSelection().selectAllChildren(code); } // no clipboard: the line is selected
    setTimeout(() => { copy.textContent = "copy"; }, 1500);
  } });
  const open = openLink(model);
  const undo = button("undo", { title: "take the last change back", "data-step": "undo", onclick: () => ask({ kind: "undo" }) });
  const showUndo = () => keep(() => { undo.disabled = !model.get("past"); });
  model.on("change:past", showUndo);
  return {
    node: make("div.lp-code", code, copy, undo, ...more, open.node),
    show: (text, line) => { code.textContent = text; open.show(line); },
    begin: showUndo,
    close: () => model.off("change:past", showUndo),
  };
}

// -- cards -------------------------------------------------------------------------------------

const MARKS = { error: "✕", warning: "!", note: "i" };
const mark = (kind) => make("span.lp-mark", { title: kind, role: "img", "aria-label": kind }, MARKS[kind]);
const why = (text) => (text ? make("div.lp-why", text) : null);

// Buttons that do what there is to do, each beside what that gains and costs; `press` is told which.
const fixes = (offered, title, press) => offered.map(([text, effect], k) => make("div.lp-fix",
  button(text, { title: effect ? `${title}: ${effect}` : title, onclick: () => press(k) }), effect ? make("span.lp-price", { title: effect }, make("span", effect)) : null));
const tries = (parts, more = "") => (parts.length ? make("div", { class: `lp-tries ${more}` }, "try ", parts) : null);

// A card: its first line, and what stands under it.
const card = (kind, data, line, ...rest) => make("div", { class: `lp-finding lp-${kind}`, ...data }, make("div.lp-line", line), rest);

// id: of the sentence, by which a box says what is wrong with it.
function problemCard({ what, why: reason, choose }, send, id) {
  const offer = ([text, changes], k) => [k ? ", or " : "",
    Object.keys(changes).length ? button(text, { title: "set this", onclick: () => send(changes) }) : text];
  return card("error lp-problem", {}, [mark("error"), make("span", { id }, what)], why(reason), tries(choose.flatMap(offer), "lp-choices"));
}

// What frameworks do or say: rows of cells, each a list of what stands in it.
function frameworksTable(rows, head = []) {
  const top = head.length ? make("tr", head.map((text) => make("th", text))) : null;
  const lines = rows.map((cells) => make("tr", cells.map((cell) => make("td", cell))));
  return make("div.lp-wide", make("table.lp-frameworks", top, lines));
}

// Where evidence stands: links whose long paths break after a slash, never inside a word.
function sources(links) {
  const broken = (text) => text.split(/(?<=\/)/).flatMap((part, k) => (k ? [make("wbr"), part] : [part]));
  const address = (path) => `https://github.com/${path}`; // nowhere else, whatever is sent
  const made = links.flatMap(([text, path]) => [make("a", { href: address(path), target: "_blank", rel: "noopener" }, broken(text)), " "]);
  return make("div.lp-source", made);
}

// -- the figure --------------------------------------------------------------------------------

const CONFIG = { responsive: false, displaylogo: false, modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d", "toImage"] };
const TOUCH = matchMedia("(pointer: coarse)").matches; // a finger scrolls what a mouse zooms
const ABOVE = 14; // pixels over the axes: the title stands above the plot, where it wraps

// The words of a plotly text, which is a little HTML; an inert document runs and fetches nothing.
const plain = (text) => new DOMParser().parseFromString(text.replaceAll("<br>", " "), "text/html").body.textContent;

// A chart, which plotly draws, or a map, which `map.js` does. onPick: called with the rank of a map that is pressed.
function buildFigure(model, onRank, onPainted, onPick) {
  const title = make("h3.lp-name");
  const note = make("div.lp-subtitle");
  const heading = make("div.lp-heading", title, note);
  const plot = make("div.lp-plot");
  const stage = make("div");
  let map = null; // there once a scene was drawn
  const reason = make("div.lp-reason");
  const summary = make("pre.lp-summary", { tabindex: 0 });
  let last = null;
  let color = ""; // of text: the theme's, read once
  let drawn = ""; // the kind of picture that stands there
  let seq = 0;
  async function draw(payload) {
    const anew = payload !== last; // else for another theme or width
    if (anew) seq = payload.seq;
    // While something is wrong the picture of before stays, dimmed, but not in another tab.
    const kept = Boolean(!payload.figure && payload.problem && last?.figure && last.values.tab === payload.values.tab);
    if (anew) node.classList.toggle("lp-kept", kept);
    if (kept) { onPainted(seq); return; }
    last = payload;
    summary.textContent = payload.summary;
    const { figure } = payload;
    const isMap = Boolean(figure?.shapes);
    plot.hidden = heading.hidden = !figure || isMap;
    stage.hidden = !isMap;
    reason.hidden = Boolean(figure);
    if (isMap) {
      if (!map) map = drawMap(stage, figure, { pick: onPick, rank: payload.chosen });
      else if (anew) map.update(figure, payload.chosen);
    } else if (figure) {
      const { text, subtitle } = figure.layout.title;
      title.textContent = plain(text);
      note.textContent = plain(subtitle?.text ?? "");
      note.classList.toggle("lp-warned", Boolean(subtitle?.font.color));
      const Plotly = window.Plotly ?? (await loadPlotly(model));
      if (last !== payload || !plot.isConnected) return; // overtaken, or not on the page yet: see below
      color ||= getComputedStyle(plot).getPropertyValue("--jp-ui-font-color1").trim() || "#777";
      const { title: _, margin, ...rest } = figure.layout;
      const height = rest.height - margin.t + ABOVE;
      plot.style.height = `${height}px`; // else a resize lets it grow with its own content
      plot.style.minWidth = rest.meta?.least ? `${rest.meta.least}px` : ""; // a narrower page scrolls it
      const look = { paper_bgcolor: "rgba(0,0,0,0)", font: { ...rest.font, color }, dragmode: TOUCH ? false : "zoom" };
      const layout = { ...rest, ...look, height, margin: { ...margin, t: ABOVE }, autosize: true };
      if (drawn === figure.layout.uirevision) {
        await Plotly.react(plot, figure.data, layout, CONFIG);
      } else { // another kind of picture starts afresh: react keeps axis titles where the old one had them
        drawn = figure.layout.uirevision;
        await Plotly.newPlot(plot, figure.data, layout, CONFIG);
        if (onRank) plot.on("plotly_click", onRank);
      }
    } else {
      reason.textContent = payload.reason ?? "nothing to draw";
    }
    requestAnimationFrame(() => onPainted(seq));
  }
  // Fires when the plot comes onto the page, maybe after the first draw, and when it is resized.
  const resized = new ResizeObserver(() => {
    if (!plot.clientWidth || !last?.figure?.data) return;
    if (plot.data) window.Plotly.Plots.resize(plot); else draw(last);
  });
  resized.observe(plot);
  const theme = onTheme(() => { color = ""; if (last) draw(last); });
  const node = make("div.lp-figure", { role: "tabpanel" }, heading, reason, stage, make("div.lp-wide", plot),
    fold("as text", {}, summary));
  const save = async () => { // on white paper, with its title
    if (!last?.figure) return;
    if (last.figure.shapes) { map.save(model.get("_css")); return; }
    const Plotly = await loadPlotly(model);
    const { layout, data } = last.figure;
    const filename = plain(layout.title.text).replaceAll(/[^\w.=-]+/g, "-");
    const paper = { paper_bgcolor: "#fff", font: { ...layout.font, color: "#212121" }, width: 900 };
    await Plotly.downloadImage({ data, layout: { ...layout, ...paper } }, { format: "png", filename, width: 900, height: layout.height, scale: 2 });
  };
  const ahead = (scene) => map?.update(scene); // of a step whose answer is on its way
  return { node, draw, ahead, save, close: () => { theme.disconnect(); resized.disconnect(); map?.close(); window.Plotly?.purge(plot); } };
}

// -- a panel -----------------------------------------------------------------------------------

// What every panel has: controls, messages, a line of status, cards, a figure. A panel lays itself out by the
// width of the box around its columns. `listen` lasts until the view is closed.
function buildPanel({ model, el }, kind, onRank, onPick) {
  const uid = newName();
  const payload = () => model.get("payload");
  const { send, ask, note, close } = buildSender(model, uid, () => controls.show(payload()), (on) => columns.classList.toggle("lp-kept", on));
  const controls = buildControls(model.get("schema"), uid, send);
  const figure = buildFigure(model, onRank, (painted) => { root.dataset.painted = painted; }, onPick);
  const status = make("div.lp-status", { role: "status", tabindex: -1 });
  const cards = make("div.lp-findings");
  const main = make("div.lp-main");
  const columns = make("div.lp-columns", controls.column, main);
  const root = make("div", { class: `llamapar ${kind}`.trim() }, note, columns);
  el.append(root);
  const handlers = [];
  const listen = (event, handler) => { handlers.push([event, handler]); model.on(event, handler); };
  const end = () => {
    for (const [event, handler] of handlers) model.off(event, handler);
    close();
    figure.close();
  };
  return { uid, payload, send, ask, controls, figure, status, cards, main, columns, listen, end };
}

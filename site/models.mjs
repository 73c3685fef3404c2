// Panels in a page: what anywidget would be to them, and their Python in a worker.
// What is touched before Python is there waits for it.

const PATIENT = 60_000; // ms: this Python is far from a kernel, and searches where it answers
export const base = new URL(".", import.meta.url).href;

const load = (src) => new Promise((resolve, reject) => {
  const script = document.createElement("script");
  Object.assign(script, { src, onload: resolve, onerror: () => reject(new Error(`${src} did not load`)) });
  document.head.append(script);
});
export function loadPlotly() {
  return window.llamaparPlotly ??= load(`${base}plotly.min.js`).then(() => window.Plotly); // the panels wait for it
}

export function followTheme() {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const show = () => { document.body.dataset.jpThemeLight = String(!dark.matches); }; // the panels look at it
  dark.addEventListener("change", show);
  show();
}

// What an anywidget page is given: the state of its Python side, its changes, and messages both ways.
class Model {
  constructor(id, kind, state) {
    Object.assign(this, { id, kind, state, heard: {}, patience: PATIENT, widget_manager: manager });
    const own = document.body.dataset.panel === kind; // whose address says what stands there
    if (!own) this.address = (line) => `${base}${kind}.html#${encodeURIComponent(line)}`;
  }
  get(name) { return this.state[name]; }
  on(event, hear) { (this.heard[event] ??= new Set()).add(hear); }
  off(event, hear) { this.heard[event]?.delete(hear); }
  emit(event, ...rest) { for (const hear of [...(this.heard[event] ?? [])]) hear(...rest); }
  set(name, value) {
    if (this.state[name] === value) return;
    this.unsaved = { ...this.unsaved, [name]: value };
    this.take({ [name]: value });
  }
  save_changes() {
    if (this.unsaved) tell({ to: this.id, state: this.unsaved });
    this.unsaved = null;
  }
  send(content) { tell({ to: this.id, content }); }
  take(state) {
    const changed = Object.keys(state).filter((name) => JSON.stringify(state[name]) !== JSON.stringify(this.state[name]));
    Object.assign(this.state, state);
    for (const name of changed) this.emit(`change:${name}`);
  }
}

const models = new Map();
const manager = {
  get_model: async (id) => models.get(id),
  create_view: async (model) => {
    const el = document.createElement("div");
    const end = await draw(model, el);
    return { el, remove: () => { end(); el.remove(); } };
  },
};
const draw = async (model, el) => (await import(`${base}${model.kind}.mjs`)).default.render({ model, el });

// A panel as Python left it, in an element.
export async function open(id, kind, state, el) {
  const model = new Model(id, kind, state);
  models.set(id, model);
  if (kind !== "watch") loadPlotly(); // whose tiles are its own
  await draw(model, el);
  return model;
}

// -- Python ------------------------------------------------------------------------------------

let waiting = [];
let toPython = (text) => waiting.push(text);
export const tell = (message) => toPython(JSON.stringify(message));

// Starts Python with these archives; `name` says what it opens, `said` tells how far it is, and `more` hears
// what is for no panel.
export function startPython(name, archives, said, more = () => {}) {
  const code = `import("${base}worker.mjs").then(({ start }) => start("${base}", "${name}", ${JSON.stringify(archives)}))
    .catch((error) => postMessage(JSON.stringify({ failed: String(error) })));`;
  const worker = new Worker(URL.createObjectURL(new Blob([code], { type: "text/javascript" })), { type: "module" });
  const fail = (why) => { said.textContent = `Python did not start: ${why}`; document.documentElement.dataset.python = "failed"; };
  worker.onerror = (event) => fail(event.message ?? "the worker did not load");
  worker.onmessage = ({ data }) => {
    const message = JSON.parse(data);
    const { to, opened, state, content, ready, failed } = message;
    if (failed && !to) fail(failed);
    else if (ready) {
      toPython = (text) => worker.postMessage(text);
      waiting.forEach(toPython);
      waiting = [];
      document.documentElement.dataset.python = "ready";
      performance.mark("python");
      said.textContent = "Python is ready";
    } else if (!to || failed) more(message);
    else if (opened && !models.has(to)) models.set(to, new Model(to, "explorer", state)); // the one panel that another opens
    else if (state) models.get(to)?.take(state);
    else models.get(to)?.emit("msg:custom", content, []);
  };
}

export async function painted(mark) {
  await window.llamaparPlotly;
  await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  performance.mark(mark);
}

// A page with a panel: its picture from the state that was made with the site, then Python in a worker.
// What is touched before Python is there waits for it.

import { takeLinks } from "./links.mjs";

const PATIENT = 60_000; // ms: this Python is far from a kernel, and searches where it answers
const kind = document.body.dataset.panel;
const base = new URL(".", import.meta.url).href;
const said = document.querySelector("#python");
const box = document.querySelector("#panel");
const link = kind === "explorer" && location.hash.length > 1; // to another job than the one in the page

const load = (src) => new Promise((resolve, reject) => {
  const script = document.createElement("script");
  Object.assign(script, { src, onload: resolve, onerror: () => reject(new Error(`${src} did not load`)) });
  document.head.append(script);
});
window.llamaparPlotly = kind === "watch" ? null : load("plotly.min.js").then(() => window.Plotly); // the panels wait for it

function theme() {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const show = () => { document.body.dataset.jpThemeLight = String(!dark.matches); }; // the panels look at it
  dark.addEventListener("change", show);
  show();
}

// What an anywidget page is given: the state of its Python side, its changes, and messages both ways.
class Model {
  constructor(id, state) {
    Object.assign(this, { id, state, heard: {}, patience: PATIENT, widget_manager: manager });
  }
  get(name) { return this.state[name]; }
  on(event, hear) { (this.heard[event] ??= new Set()).add(hear); }
  off(event, hear) { this.heard[event]?.delete(hear); }
  emit(event, ...rest) { for (const hear of [...(this.heard[event] ?? [])]) hear(...rest); }
  send(content) { toPython(JSON.stringify({ to: this.id, content })); }
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
    const end = await draw(model, "explorer", el); // the one panel that another opens
    return { el, remove: () => { end(); el.remove(); } };
  },
};
const draw = async (model, name, el) => (await import(`./${name}.mjs`)).default.render({ model, el });

let worker = null;
let waiting = [];
let toPython = (text) => waiting.push(text);

function hear({ data }) {
  const { to, opened, state, content, ready } = JSON.parse(data);
  if (ready) {
    toPython = (text) => worker.postMessage(text);
    waiting.forEach(toPython);
    waiting = [];
    document.documentElement.dataset.python = "ready";
    performance.mark("python");
    said.textContent = "Python is ready";
  } else if (opened && !models.has(to)) models.set(to, new Model(to, state));
  else if (state) models.get(to).take(state);
  else models.get(to).emit("msg:custom", content, []);
}

function startPython() {
  const code = `import("${base}worker.mjs").then(({ start }) => start("${base}", "${kind}"))
    .catch((error) => postMessage(JSON.stringify({ failed: String(error) })));`;
  worker = new Worker(URL.createObjectURL(new Blob([code], { type: "text/javascript" })), { type: "module" });
  const fail = (why) => { said.textContent = `Python did not start: ${why}`; document.documentElement.dataset.python = "failed"; };
  worker.onerror = (event) => fail(event.message ?? "the worker did not load");
  worker.onmessage = (event) => {
    const { failed } = JSON.parse(event.data);
    if (failed) fail(failed); else hear(event);
  };
}

theme();
said.textContent = link ? "Python is loading, and then the job of this link" : "Python is loading; what you touch meanwhile waits for it";
box.hidden = link;
const opening = await (await fetch(`${kind}.json`)).json();
const panel = new Model("w0", opening);
models.set("w0", panel);
await draw(panel, kind, box);
if (kind === "explorer") takeLinks(panel, (problem) => {
  box.hidden = false;
  said.classList.toggle("off", Boolean(problem));
  said.textContent = problem ? `This link says no job that can be read: ${problem.what}. The panel shows another.` : "Python is ready";
});
await window.llamaparPlotly;
await new Promise((painted) => requestAnimationFrame(() => requestAnimationFrame(painted)));
performance.mark("picture");
document.documentElement.dataset.picture = "there";
startPython();

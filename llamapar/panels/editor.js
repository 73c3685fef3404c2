// `lp.watch`'s own controls: values side by side, and the source as a text box with marks.

const PAUSE = 500; // ms without a key until an edited source is run
const GUTTER = 34; // pixels: of the line numbers

// Values as buttons side by side, one of them pressed.
function segments(control, send) {
  const box = make("div.lp-segments", { role: "radiogroup", "aria-label": control.label });
  let values = [];
  const put = (value, focus) => {
    for (const [k, node] of [...box.children].entries()) {
      node.setAttribute("aria-checked", String(values[k] === value));
      node.tabIndex = values[k] === value ? 0 : -1;
      if (focus && values[k] === value) node.focus();
    }
  };
  const press = (value, focus) => { put(value, focus); send({ [control.name]: value }); };
  const one = ([value, label]) => button(label, { role: "radio", title: control.help || null, onclick: () => press(value) });
  values = control.options.map(([value]) => value);
  box.append(...control.options.map(one));
  walkKeys(box, () => values.length, ({ target }) => [...box.children].indexOf(target), (to) => press(values[to], true));
  const show = (value) => {
    if (!values.includes(value)) { values.push(value); box.append(one([value, String(value)])); }
    put(value);
  };
  return { nodes: [box], show };
}

KINDS.steps = segments;

// The source as a text box, over a copy of it that carries the marks: what runs, what communicates, what is wrong.
function buildSource(send, uid, goTo) {
  const copy = make("div.lp-copy-of-source", { "aria-hidden": "true" });
  const box = make("textarea.lp-text", { id: `${uid}-source`, "aria-label": "source", spellcheck: "false", autocapitalize: "off", autocomplete: "off", wrap: "off" });
  const node = make("div.lp-source-box", make("div.lp-layers", copy, box));
  let sent = null; // what was sent last and is not answered
  let timer = 0;
  let marks = { axes: {}, line: 0, faults: {}, errors: {}, folds: [] };
  let open = false; // until one edits, lines in which no rank does anything are folded
  const commit = () => {
    clearTimeout(timer);
    timer = 0;
    sent = box.value;
    send({ source: sent });
  };
  box.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(commit, PAUSE);
    draw();
  });
  box.addEventListener("keydown", (event) => {
    event.stopPropagation();
    if (event.key !== "Enter" || event.isComposing) return;
    event.preventDefault(); // a new line begins where the one before it does
    const line = box.value.slice(0, box.selectionStart).split("\n").at(-1);
    document.execCommand("insertText", false, `\n${line.match(/^ */)[0]}`);
  });
  box.addEventListener("focus", () => { open = true; draw(); });
  box.addEventListener("pointerdown", (event) => { if (event.offsetX <= GUTTER) event.preventDefault(); });
  box.addEventListener("click", (event) => { // on a line's number
    if (event.offsetX > GUTTER) return;
    const hit = [...copy.children].findIndex((line) => line.offsetTop + line.offsetHeight > event.offsetY);
    if (hit >= 0) goTo(hit + 1);
  });
  let drawn = ""; // the text and its marks
  function draw() {
    for (const line of copy.querySelectorAll("[data-runs]")) delete line.dataset.runs;
    const now = JSON.stringify([open, box.value, { ...marks, line: 0 }]);
    if (now !== drawn) build();
    drawn = now;
    if (copy.children[marks.line - 1]) copy.children[marks.line - 1].dataset.runs = "yes";
  }
  function build() {
    const lines = box.value.split("\n").map((text, k) => {
      const number = k + 1;
      const folded = !open && marks.folds.find(({ first, last }) => first <= number && number <= last);
      if (folded) return make("div", { hidden: number > folded.first }, make("i", `${text.match(/^ */)[0]}⋯ ${folded.words}`));
      const [, code, comment] = text.match(/^((?:[^#"']|"[^"]*"|'[^']*')*)(#.*)?$/) ?? [null, text, ""];
      const axes = (marks.axes[number] ?? []).map((axis) => make("span.lp-badge", { "data-axis": axis }, axis.toUpperCase()));
      const error = marks.errors[number];
      const data = { "data-line": number, "data-fault": marks.faults[number] ?? null, "data-wrong": error ? "yes" : null };
      return make("div", data, code, comment ? make("i", comment) : null, text ? null : "\u200b",
        axes.length ? make("span.lp-badges", axes) : null, error ? make("span.lp-lens", `✕ ${error}`) : null);
    });
    copy.replaceChildren(...lines);
  }
  // Scrolls the box, and never the page, to the line that runs.
  function reveal() {
    const line = copy.children[marks.line - 1];
    if (!line) return;
    const room = node.clientHeight;
    if (line.offsetTop < node.scrollTop + 20) node.scrollTop = line.offsetTop - room / 3;
    else if (line.offsetTop + line.offsetHeight > node.scrollTop + room - 20) node.scrollTop = line.offsetTop + line.offsetHeight - (2 * room) / 3;
  }
  const resized = new ResizeObserver(() => { if (!timer) reveal(); }); // a narrower page makes the box lower
  resized.observe(node);
  return {
    node,
    get waits() { return Boolean(timer) || sent !== null; },
    // What the kernel has; what is typed since stays. The kernel drops empty lines at the end.
    show: (text) => {
      if (sent?.trimEnd() === text.trimEnd()) sent = null;
      if (timer || sent !== null || box.value.trimEnd() === text.trimEnd()) return;
      box.value = text;
      draw();
    },
    fold: (closed) => { open = !closed; draw(); },
    forget: () => { clearTimeout(timer); timer = 0; sent = null; }, // what was typed
    mark: (now) => { marks = now; draw(); if (!timer) requestAnimationFrame(reveal); },
    reveal: () => { if (!timer) reveal(); }, // it was folded away, and has lost its place
    close: () => { clearTimeout(timer); resized.disconnect(); },
  };
}

// The clinic's face: a box to paste into, what is known, what is wrong, and the Explorer that a fix opens.

const MOST = 1_500_000; // characters of a text that travel; the box itself holds fewer, or it grows slow

// What of a text is sent: of one too long its first third and its last two; and what to say of the rest.
function cut(text) {
  if (text.length <= MOST) return [text, ""];
  const left = (text.length - MOST).toLocaleString("en");
  const note = `too long: ${left} characters in its middle are left out; lp.explain(open(file)) reads them all`;
  return [`${text.slice(0, MOST / 3)}\n${text.slice((-MOST / 3) * 2)}`, note];
}

function diagnosisCard(one, index, fix) {
  const button = (text, k) =>
    make("button", { type: "button", class: "lp-fix", title: "open the Explorer on this layout", onclick: () => fix(index, k) }, text);
  const why = (text) => make("div", { class: "lp-why" }, text);
  const says = one.says.map(([framework, message, links]) =>
    make("tr", {}, make("td", {}, framework), make("td", {}, make("code", {}, message), sources(links))));
  return make("div", { class: `lp-finding ${index ? "lp-note" : "lp-error"}`, "data-category": one.category },
    make("div", { class: "lp-line" }, make("b", {}, one.title), make("span", { class: "lp-sure" }, one.sure), make("span", {}, one.cause)),
    one.equations.length ? make("pre", {}, one.equations.join("\n")) : null,
    one.fixes.length ? make("p", { class: "lp-fixes" }, "try ", ...one.fixes.map(button)) : null,
    one.words.length ? why(`try ${one.words.join(", or ")}`) : null,
    one.needs.length ? why(`tell ${one.needs.join(", ")}, to be sure`) : null,
    says.length ? make("details", { class: "lp-more" }, make("summary", {}, "who says so"), make("div", { class: "lp-wide" }, make("table", { class: "lp-frameworks" }, ...says))) : null);
}

function render({ model, el }) {
  const uid = `lp${++views}`;
  const { send, ask, note, close } = buildSender(model, () => controls.show(model.get("payload").values));
  const fix = (diagnosis, k) => ask({ kind: "fix", diagnosis, fix: k });
  const controls = buildControls(model.get("schema"), uid, send, (name, text) => ask({ kind: "load", name, text }));
  const box = make("textarea", { class: "lp-box", id: `${uid}-text`, rows: 7, spellcheck: "false", autocomplete: "off", wrap: "off" });
  const label = make("label", { for: box.id, class: "lp-ask" }, "Paste an error, a traceback or a log");
  const left = make("div", { class: "lp-why", hidden: true });
  const status = make("div", { class: "lp-status", role: "status", "aria-live": "polite" });
  const line = make("pre", {});
  const cards = make("div", { class: "lp-findings" });
  const figure = buildFigure(model, null, (painted) => { root.dataset.painted = painted; });
  const root = buildRoot("lp-clinic", controls, label, box, left, note, status, line, cards, figure.node);
  const below = make("div", { class: "lp-opened", hidden: true });
  el.append(root, below);

  let sent = ""; // what this page sent last: only another text, set from code or cut, takes the box's place
  let timer = 0;
  const commit = (text) => {
    clearTimeout(timer);
    if (text === sent) return;
    const [kept, note] = cut(text);
    left.textContent = note;
    left.hidden = !note;
    send({ text: (sent = kept) });
  };
  box.addEventListener("input", (event) => {
    clearTimeout(timer);
    if (event.inputType === "insertFromPaste") commit(box.value); else timer = setTimeout(() => commit(box.value), 400);
  });
  box.addEventListener("change", () => commit(box.value));
  box.addEventListener("paste", (event) => { // the box gets of a long text what the kernel says fits
    const text = event.clipboardData?.getData("text/plain") ?? "";
    if (text.length <= model.get("limit")) return;
    event.preventDefault();
    commit(text);
  });

  let cardsShown = "";
  const show = () => {
    const payload = model.get("payload");
    figure.draw(payload); // first: plotly measures the page, which the rest of this then changes, once
    figure.node.classList.toggle("lp-none", !payload.figure);
    controls.show(payload.values);
    for (const row of controls.column.querySelectorAll("[data-control]")) row.dataset.origin = payload.origins[row.dataset.control] ?? "";
    status.textContent = payload.status;
    status.dataset.verdict = payload.verdict;
    line.textContent = payload.line;
    line.hidden = !payload.line || payload.line === box.value.trim();
    const now = JSON.stringify([payload.diagnoses, payload.problem]);
    if (cardsShown === now) return; // what stands open stays open
    cardsShown = now;
    const [best, ...others] = payload.diagnoses.map((one, index) => diagnosisCard(one, index, fix));
    const more = make("details", { class: "lp-folded" }, make("summary", {}, `or else: ${others.length} more`), ...others);
    cards.replaceChildren(...[payload.problem && problemCard(payload.problem, send), best, others.length && more].filter(Boolean));
  };
  const showText = () => { if (model.get("text") !== sent) box.value = sent = model.get("text"); };
  let shown = null; // the Explorer's view
  const showOpened = async (message) => {
    const id = model.get("opened");
    if (!id || !model.widget_manager || (message && message.kind !== "opened")) return;
    if (!shown) {
      shown = model.widget_manager.get_model(id).then((child) => model.widget_manager.create_view(child));
      below.replaceChildren((await shown).el);
      below.hidden = false;
    }
    if (message) below.scrollIntoView({ block: "nearest" });
  };
  const heard = { "change:payload": show, "change:text": showText, "msg:custom": showOpened };
  for (const [event, hear] of Object.entries(heard)) model.on(event, hear);
  loadPlotly(model); // while the reader looks for a text
  showText();
  show();
  showOpened();
  return () => {
    for (const [event, hear] of Object.entries(heard)) model.off(event, hear);
    close();
    figure.close();
    shown?.then((view) => view.remove());
  };
}

export default { render };

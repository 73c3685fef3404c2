// The clinic's face: a box to paste into, what is known, what is wrong, and the Explorer that a fix opens.

const MOST = 1_500_000; // characters of a text that travel; the box itself holds fewer, or it grows slow

// What of a text is sent: of one too long its first third and its last two; and what to say of the rest.
function cut(text) {
  if (text.length <= MOST) return [text, ""];
  const left = (text.length - MOST).toLocaleString("en");
  const note = `too long: ${left} characters in its middle are left out; lp.explain(open(file)) reads them all`;
  return [`${text.slice(0, MOST / 3)}\n${text.slice((-MOST / 3) * 2)}`, note];
}

// A log goes into the box, other files are a run's settings.
async function readRun(files, ask, log) {
  const isLog = (file) => /\.(log|txt|out|err)$/i.test(file.name);
  files.filter(isLog).forEach((file) => file.text().then(log));
  await readFiles(files.filter((file) => !isLog(file)), ask);
}

// What to do next: commands, and a box for each missing fact that a field knows, its name for another.
function nextSteps({ next, asks }, send) {
  const box = ([need, field]) => {
    const size = field === "model" ? 16 : 7;
    const give = (event) => send({ [field]: event.target.value.trim() || null });
    const onkeydown = (event) => { if (event.key === "Enter") give(event); };
    return make("label", need, make("input", { type: "text", "data-tell": field, size, onchange: give, onkeydown }));
  };
  const boxes = asks.filter(([, field]) => field).map(box);
  const others = asks.filter(([, field]) => !field).map(([need]) => need);
  const steps = next.filter((text) => !text.startsWith("pass "));
  return [...steps.map((text) => make("div", make("code", text))),
    asks.length ? make("div.lp-why.lp-asked", ...(boxes.length ? ["Fill in ", ...boxes, " to narrow this down."] : []),
      others.length ? `Of use: ${others.join(", ")}` : null) : null];
}

const block = (lines) => (lines.length ? make("pre", { tabindex: 0 }, lines.join("\n")) : null);

// The parts of an explanation in their order: where, operands, edit, proof, else, next, how sure, who says so.
function explanationCard(parts, fix, send) {
  const { where, operands, edit, proof, source } = parts;
  const [head, ...cells] = operands.map((row) => row.map((cell) => [cell]));
  const says = parts.says.map(([framework, message, links]) => [framework, [make("code", message), sources(links)]]);
  const diff = edit.filter((line) => /^[-+] /.test(line));
  const words = edit.filter((line) => !diff.includes(line));
  return card("error", { "data-category": parts.category }, where.map((line) => make("div", make("code", line))),
    head ? frameworksTable(cells, head) : null,
    block(diff), tries(fixes(parts.fixes, "open the Explorer on this layout", fix)),
    words.length ? make("div", `try ${words.join(", or ")}`) : null, block(proof),
    parts.else.length ? fold("or else", {}, parts.else.map(why)) : null,
    ...nextSteps(parts, send), parts.sure ? make("div.lp-sure", `how sure: ${parts.sure}`) : null, ...source.map(why),
    says.length ? fold("who says so", { class: "lp-more" }, frameworksTable(says)) : null);
}

// Real messages to press, while nothing else is there.
const exampleRows = (examples, send) => examples.map(({ title, source: [name, path], fields }) => make("div.lp-line",
  button(title, { title: "fill in this message and what its source says of the run", onclick: () => send(fields) }),
  path ? sources([[name, path]]) : make("div.lp-source", name)));

function render({ model, el }) {
  const panel = buildPanel({ model, el }, "lp-clinic");
  const { uid, payload, send, ask, figure, status, cards, controls } = panel;
  const fix = (k) => ask({ kind: "fix", fix: k });
  const box = make("textarea.lp-box", { id: `${uid}-text`, rows: 7, spellcheck: "false", autocomplete: "off" });
  const label = make("label", { for: box.id }, "Paste an error, a traceback or a log; drop its file here, the run's settings or the model's config.json");
  const left = make("div.lp-why", { hidden: true });
  const told = make("div.lp-told", { hidden: true, "aria-live": "polite" });
  const open = button("open the Explorer on it", { hidden: true, onclick: () => ask({ kind: "open" }) });
  const asSettings = button("read the text as settings", { onclick: () => { if (box.value.trim()) ask({ kind: "settings", files: [["", box.value]] }); } });
  const paste = (text) => { if (text.length <= model.get("limit")) box.value = text; commit(text); };
  const read = (files) => readRun(files, ask, paste);
  const drop = make("div.lp-ask", label, box, left, make("div.lp-line.lp-files", buildFiles(uid, ask, read), asSettings), told, open);
  panel.columns.prepend(drop);
  takeDrops(drop, ask, read);
  const examples = make("div.lp-examples", { hidden: true });
  const ranks = make("div.lp-ranks", { hidden: true });
  panel.main.append(status, cards, ranks, figure.node, examples);
  const below = make("div.lp-opened", { hidden: true });
  el.append(below);

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

  const show = () => {
    const now = payload();
    figure.draw({ ...now, problem: null }); // a wrong field costs no picture. First: plotly measures the page, which the rest of this then changes, once
    figure.node.classList.toggle("lp-none", !now.figure);
    controls.show(now);
    for (const row of controls.column.querySelectorAll("[data-control]")) row.dataset.origin = now.origins[row.dataset.control] ?? "";
    status.textContent = now.status;
    status.dataset.verdict = now.verdict;
    figure.node.hidden = !now.figure && Boolean(now.ranks || now.examples.length); // no reason
    ranks.textContent = now.ranks;
    ranks.hidden = !now.ranks;
    examples.hidden = !now.examples.length;
    refill(examples, now.examples, () => [make("b", "Or press a real message:"), ...exampleRows(now.examples, send)]);
    refill(cards, [now.parts, now.problem], () =>
      [now.problem && problemCard(now.problem, send, `${uid}-problem`), now.parts && explanationCard(now.parts, fix, send)].filter(Boolean));
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
  panel.listen("change:payload", show);
  panel.listen("change:text", showText);
  const showTold = () => { drawTold(told, model.get("told")); open.hidden = told.hidden; };
  panel.listen("change:told", showTold);
  panel.listen("msg:custom", showOpened);
  loadPlotly(model); // while the reader looks for a text
  showText();
  show();
  showOpened();
  showTold();
  return () => {
    panel.end();
    shown?.then((view) => view.remove());
  };
}

export default { render };

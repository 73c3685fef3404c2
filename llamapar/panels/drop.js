
// -- one's own files --
// Files are dropped, chosen or pasted as text; what they say comes back as the trait `told`. They are data.

const MOST_FILE = 1 << 20; // characters of a file that travel: of a longer one, one more, so that it is refused
const textOf = async (file) => (file.size > MOST_FILE ? " ".repeat(MOST_FILE + 1) : file.text());
const OF_A_MODEL = /^\s*\{[^]*"(model_type|architectures|n_heads)"\s*:/; // config.json, params.json

function readTexts(files, ask) {
  const [name, text] = files[0];
  ask(files.length === 1 && OF_A_MODEL.test(text) ? { kind: "load", name, text } : { kind: "settings", files });
}
const readFiles = async (files, ask) => files.length && readTexts(await Promise.all([...files].map(async (file) => [file.name, await textOf(file)])), ask);

// Takes what is dropped on a node; `read` takes files. Where there is none, or only a folder, the kernel says so.
function takeDrops(node, ask, read = readFiles) {
  node.addEventListener("dragover", (event) => { event.preventDefault(); node.classList.add("lp-over"); });
  node.addEventListener("dragleave", () => node.classList.remove("lp-over"));
  node.addEventListener("drop", (event) => {
    node.classList.remove("lp-over");
    if (!event.dataTransfer?.files.length) return; // a text: the box takes it
    event.preventDefault();
    const files = [...event.dataTransfer.items].filter((item) => !item.webkitGetAsEntry?.()?.isDirectory).map((item) => item.getAsFile());
    if (files.length) read(files, ask); else ask({ kind: "settings", files });
  });
}

function buildFiles(uid, ask, read = readFiles) {
  const onchange = async () => { await read([...input.files], ask); input.value = ""; };
  const input = make("input", { type: "file", multiple: true, id: `${uid}-files`, "aria-label": "settings and launch scripts", onchange });
  return make("div.lp-file", input);
}

// What the files said: a fact a line with its source, and what contradicts, is unknown or not covered.
function drawTold(box, { title, head, rows, said }) {
  box.hidden = !title;
  if (!title) return;
  refill(box, [title, rows, said], () => [
    make("b", title),
    make("ul.lp-notes", said.map(([kind, text]) => make("li", { "data-said": kind }, make("b", `${kind}: `), text))),
    fold(`${rows.length} facts and where they stand`, { class: "lp-more" }, frameworksTable(rows.map((cells) => cells.map((cell) => [cell])), head))]);
}

function buildDrop(uid, ask) {
  const text = make("textarea.lp-box", { rows: 3, spellcheck: "false", wrap: "off", "aria-label": "settings as text",
    placeholder: "drop a model's config.json, or settings and launch scripts, or paste their text" });
  const send = () => { if (text.value.trim()) readTexts([["", text.value]], ask); };
  text.addEventListener("paste", () => setTimeout(send));
  const told = make("div.lp-told", { hidden: true, "aria-live": "polite" });
  const line = make("div.lp-line", buildFiles(uid, ask), button("Read", { title: "read the text as settings", onclick: send }));
  const node = fold("Your own run", { class: "lp-group lp-own" }, text, line, told);
  takeDrops(node, ask);
  return { node, draw: (answer) => { drawTold(told, answer); if (answer.title) node.open = true; } };
}

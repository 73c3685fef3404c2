// An answer box: a question, an input for its kind of answer, hints, and a guess beside the truth. The truth
// comes with the verdict on a guess, never before.

// -- inputs: each has its nodes, and how to show the payload --

// A line of text that is a guess once it is handed in.
function typedInput(uid, { kind, unit }, guess) {
  const hint = { number: "a number", list: "as 3, 5", text: "a word or two" }[kind];
  const spec = { id: `${uid}-guess`, name: "guess", placeholder: hint };
  const built = kind === "number" ? KINDS.int(spec, () => {}, (text) => text) : KINDS.text({ ...spec, options: [] }, () => {});
  const [input] = built.nodes;
  input.setAttribute("aria-label", unit ? `your guess, in ${unit}` : "your guess");
  input.classList.add("lp-typed");
  input.addEventListener("keydown", (event) => { if (event.key === "Enter") { event.preventDefault(); event.stopPropagation(); guess(input.value); } });
  const check = button("check", { class: "lp-check", onclick: () => guess(input.value) });
  return { node: make("div.lp-form", ...built.nodes, unit ? make("span", unit) : null, check), tools: [], show: () => {} };
}

// Buttons: a press is the guess. What each gives stands on it as soon as the truth is told.
function choiceInput(uid, payload, guess) {
  const node = make("div.lp-choose", { role: "group", "aria-label": "your guess" });
  const show = ({ choices, verdict }) => refill(node, [choices, verdict], () => choices.map(([value, label, note]) => {
    const same = (other) => verdict && other != null && JSON.stringify(other) === JSON.stringify(value);
    const [own, right] = [same(verdict?.value), same(verdict?.answer)];
    const marks = [right ? "✓ it is" : null, own && !right ? `${verdict.right === false ? "✕ " : ""}you said` : null, own && right ? " · you said" : null];
    const marked = marks.filter(Boolean).join("");
    return button([make("b", label), make("span.lp-gives", note), make("span", marked)], {
      class: "lp-choice", "data-value": JSON.stringify(value), "aria-pressed": String(Boolean(own)), "data-right": right ? "yes" : own && verdict.right === false ? "no" : null,
      onclick: () => guess(value),
    });
  }));
  return { node, tools: [], show };
}

// A grid on which things are placed: one takes a thing from the row, and presses a cell.
function boardInput(uid, payload, guess, put) {
  let thing = 0;
  let at = "0-0"; // the cell that the Tab key reaches
  const things = make("div.lp-things", { role: "radiogroup", "aria-label": "what you place" });
  const table = make("table.lp-board");
  const check = button("check", { class: "lp-check", onclick: () => guess(null) });
  const clear = button("clear", { title: "take everything off", onclick: () => put("clear", true) });
  const node = make("div.lp-placed", things, make("div.lp-wide", table));
  let shown = null;

  const pick = (k) => { thing = k; drawThings(); };
  function drawThings() {
    for (const [k, one] of [...things.querySelectorAll("button")].entries()) {
      one.setAttribute("aria-checked", String(k === thing));
      one.tabIndex = k === thing ? 0 : -1;
    }
  }
  walkKeys(things, () => things.querySelectorAll("button").length, () => thing, (to) => {
    pick(to);
    things.querySelectorAll("button")[to].focus();
  });
  table.addEventListener("keydown", (event) => {
    const [down, right] = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key] ?? [0, 0];
    const own = event.target.closest("button[data-at]");
    if (!own || (!down && !right)) return;
    event.preventDefault();
    event.stopPropagation();
    const row = own.closest("tr");
    const cells = [...row.querySelectorAll("button[data-at]")];
    const rows = [...table.querySelectorAll("tr[data-row]")];
    const column = Number(own.dataset.at.split("-")[1]);
    const beside = rows[rows.indexOf(row) + down];
    const next = right ? cells[cells.indexOf(own) + right]
      : [...(beside?.querySelectorAll("button[data-at]") ?? [])].filter((one) => Number(one.dataset.at.split("-")[1]) <= column).at(-1);
    if (next) { reach(next); next.focus(); }
  });
  const reach = (next) => {
    at = next.dataset.at;
    for (const one of table.querySelectorAll("button[data-at]")) one.tabIndex = one === next ? 0 : -1;
  };

  // The next thing after one that stands everywhere.
  function follow(board) {
    const before = shown?.left ?? [];
    const most = board.rows.length;
    if (most > 1 && board.left[thing] >= most && before[thing] < most) {
      const next = board.left.findIndex((n) => n < most);
      if (next >= 0) thing = next;
    }
    shown = board;
  }

  const tinted = (tag, { text, tint, span }, attributes = {}) => make(tag, { "data-tint": tint, colspan: span > 1 ? span : null, ...attributes }, text);

  function show({ board }) {
    follow(board);
    refill(things, board.things, () => (board.things.length < 2 ? [make("span", "place "), thingButton(board.things[0], 0)] : board.things.map(thingButton)));
    drawThings();
    check.disabled = board.left.every((n) => !n);
    clear.disabled = check.disabled;
    const focus = table.contains(table.getRootNode().activeElement);
    refill(table, board, () => [
      make("thead", make("tr", make("th", { scope: "row" }, board.across), ...board.columns.map((name) => make("th", { scope: "col" }, name)))),
      make("tbody",
        ...board.above.map(([label, cells]) => make("tr.lp-above", make("th", { scope: "row" }, label), ...cells.map(([text, tint]) => tinted("td", { text, tint })))),
        ...board.cells.flatMap((cells, r) => {
          const own = make("tr", { "data-row": r }, make("th", { scope: "row" }, board.rows[r]), ...cells.map((cell) => slot(board, r, cell)));
          const true_ = board.true?.[r];
          if (!true_) return [own];
          return [own, make("tr.lp-true", make("th", { scope: "row" }, "it is"), ...true_.map((cell) => tinted("td", cell)))];
        })),
    ]);
    const reached = table.querySelector(`button[data-at="${at}"]`) ?? table.querySelector("button[data-at]");
    if (reached) { reach(reached); if (focus) reached.focus(); }
  }

  function slot(board, r, cell) {
    const { column, text, tint, span, wrong } = cell;
    const label = `${board.rows[r]}, ${board.columns[column]}: ${text || "empty"}${wrong ? ", not right" : ""}`;
    const press = button(text || " ", {
      class: "lp-slot", "data-at": `${r}-${column}`, "data-tint": tint, "data-wrong": wrong ? "yes" : null, "aria-label": label,
      onclick: ({ currentTarget }) => { reach(currentTarget); put("place", [r, column, thing]); },
    });
    return make("td.lp-cell", { colspan: span > 1 ? span : null }, press);
  }

  function thingButton([name, tint], k) {
    return button(name, { class: "lp-thing", role: "radio", "data-tint": tint, onclick: () => pick(k) });
  }
  return { node, tools: [check, clear], show };
}

const INPUTS = { choice: choiceInput, board: boardInput };

// -- a guess beside the truth --

// Two lists, the entries that differ marked.
function lists(guess, truth) {
  const row = (label, list, other) => make("tr", make("th", { scope: "row" }, label),
    ...list.map((entry, k) => make("td", { "data-wrong": JSON.stringify(entry) === JSON.stringify(other[k]) ? null : "yes" }, String(entry))));
  return make("div.lp-wide", make("table.lp-lists", make("tbody", row("you said", guess, truth), row("it is", truth, guess))));
}

// A line from 0 with a mark for each.
function line(guess, truth, verdict) {
  const mark_ = (at, kind, text) => make("div", { class: `lp-at lp-${kind}`, style: `left: ${at * 100}%`, "data-side": at > 0.5 ? "left" : null }, make("span", text));
  return make("div.lp-scale", { role: "img", "aria-label": `on a line: you said ${verdict.guess}, it is ${verdict.truth}` },
    mark_(truth, "truth", `it is ${verdict.truth}`), guess === truth ? null : mark_(guess, "guess", `you said ${verdict.guess}`),
    make("div.lp-end", "0"));
}

function beside({ verdict, kind }) {
  if (!verdict || verdict.truth == null || verdict.right || verdict.drawn) return []; // a picture has both
  if (kind === "list" && Array.isArray(verdict.value) && Array.isArray(verdict.answer)) return [lists(verdict.value, verdict.answer)];
  const { value, answer } = verdict;
  const most = 1.15 * Math.max(value, answer);
  return kind === "number" && Math.min(value, answer) >= 0 && most > 0 ? [line(value / most, answer / most, verdict)] : [];
}

// -- what follows a question, folded until its answer --

// The cells down to the next question or section: JupyterLab's, or those of a page.
function following(root) {
  const next = ".lp-quiz, [data-kind=box], h2";
  const cells = [];
  let cell = root.closest(".jp-Cell, .alive")?.nextElementSibling;
  for (; cell && !cell.matches(next) && !cell.querySelector(next); cell = cell.nextElementSibling) cells.push(cell);
  return cells;
}

function unfold(root, uid) {
  for (const cell of document.querySelectorAll(`[data-lp-behind="${uid}"]`)) delete cell.dataset.lpBehind;
  for (const cell of following(root)) {
    for (const one of cell.matches("details") ? [cell] : cell.querySelectorAll("details"))
      if (one.firstElementChild.textContent === "After your guess") one.open = true;
    cell.querySelector(".jp-OutputPlaceholder")?.click();
  }
}

// -- the box --

function render({ model, el }) {
  const uid = newName();
  const payload = () => model.get("payload");
  const { ask, note, close } = buildSender(model, uid, () => {}, (on) => stage.classList.toggle("lp-kept", on));
  const put = (kind, value) => ask({ kind, value });
  const question = make("h3.lp-asks", { id: `${uid}-asked` }, payload().question);
  const input = (INPUTS[payload().kind] ?? typedInput)(uid, payload(), (value) => put("guess", value), put);
  const hint = button("", { class: "lp-hint", onclick: () => put("hint", true) });
  const giveUp = button("show the answer", { onclick: () => put("give_up", true) });
  const skip = button("skip", { title: "show what follows", hidden: true, onclick: () => open() });
  const hints = make("ol.lp-hints", { "aria-live": "polite" });
  const says = make("div.lp-verdict", { role: "status" });
  const drawn = make("div");
  const figure = buildFigure(model, null, (painted) => { root.dataset.painted = painted; });
  const text = make("pre.lp-told", { tabindex: "0" }); // of a record that has no picture
  const stage = make("div", make("div.lp-form", input.node, ...input.tools, hint, giveUp, skip), hints, says, drawn, figure.node, text);
  const root = make("div.llamapar.lp-quiz", { role: "group", "aria-labelledby": question.id }, question, note, stage);
  el.append(root);
  let folds = payload().folds;

  function open() {
    folds = false;
    skip.hidden = true;
    unfold(root, uid);
  }

  // Once the box stands in its cell.
  function fold() {
    if (!root.isConnected) return requestAnimationFrame(fold);
    root.closest(".jp-Cell")?.removeAttribute("data-lp-behind"); // of an earlier question
    if (!folds) return;
    if (payload().verdict) return open();
    const cells = following(root);
    for (const cell of cells) if (cell.matches(".jp-Cell")) cell.dataset.lpBehind = uid;
    skip.hidden = !cells.length;
  }

  function show() {
    const now = payload();
    const { verdict } = now;
    input.show(now);
    const one = now.hints.length ? "another hint" : "a hint";
    hint.textContent = now.more === 1 && now.hints.length ? "the last hint" : one;
    hint.hidden = !now.more || verdict?.truth != null;
    giveUp.hidden = !now.gives_up;
    refill(hints, now.hints, () => now.hints.map((text) => make("li", text)));
    if (verdict && verdict.right != null) says.dataset.ok = verdict.right ? "yes" : "no"; else delete says.dataset.ok;
    says.textContent = verdict?.says ?? "";
    says.hidden = !verdict;
    refill(drawn, verdict, () => beside(now));
    figure.node.hidden = !now.figure;
    text.textContent = now.figure ? "" : now.summary;
    text.hidden = !text.textContent;
    if (figure.node.hidden) root.dataset.painted = now.seq;
    else figure.draw(now);
    if (verdict && folds && root.isConnected) open();
  }

  const changed = () => keepFocus(root, root.querySelector(".lp-check, .lp-choice, .lp-slot") ?? root, show);
  model.on("change:payload", changed);
  show();
  fold();
  return () => { folds = false; unfold(root, uid); model.off("change:payload", changed); close(); figure.close(); };
}

export default { render };

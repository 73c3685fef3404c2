
// -- the Run tab --
// How far a run is, and what came of it. Python sends both as the trait `running`; two buttons answer.

const STATES = { idle: "Nothing has run yet.", cancelled: "The run was cancelled: nothing came of it." };

function runTable({ name, title, head, rows, wrong }) {
  const cells = (tag, texts) => texts.map((text) => make(tag, {}, text));
  const lines = rows.map((row, i) => make("tr", { class: wrong.includes(i) ? "lp-wrong" : null }, ...cells("td", row)));
  return make("section",
    make("h4", title),
    make("div.lp-scroll", { role: "region", "aria-label": title, tabindex: 0, "data-lm-suppress-shortcuts": "true" },
      make("table", { "data-table": name }, make("thead", make("tr", ...cells("th", head))), make("tbody", ...lines))));
}

// Two buttons, and how far work in a thread of the kernel is; `draw` is told whether it goes on.
function buildWork(label, ...buttons) {
  const bar = make("progress", { max: 1, "aria-label": label });
  const title = make("span.lp-title");
  const far = make("span.lp-phase");
  const draw = (on, { title: text, fraction }, words) => {
    title.textContent = text ?? "";
    bar.hidden = !on;
    if (fraction == null) bar.removeAttribute("value"); else bar.value = fraction;
    far.textContent = words ?? "";
  };
  return { lines: [make("div.lp-line", ...buttons, title), make("div.lp-line.lp-far", bar, far)], draw };
}

// head stands above the figure, tables below it; draw fills both.
function buildRun(ask, send) {
  const start = button("Run", { class: "lp-start", onclick: () => ask({ kind: "run" }) });
  const stop = button("Cancel", { onclick: () => ask({ kind: "cancel" }) });
  const work = buildWork("progress of the run", start, stop);
  const verdict = make("div.lp-verdict", { "aria-live": "polite" });
  const cards = make("div");
  const notes = make("ul.lp-notes");
  const head = make("div.lp-run", ...work.lines, verdict, cards, notes);
  const tables = make("div.lp-tables");
  let shown = ""; // what stands there: a run that goes on leaves the last result in place, dimmed

  function draw(running) {
    const on = running.state === "running";
    const busy = on || running.state === "writing"; // the shape tape, of a result that is there
    const { result } = running;
    const focused = isActive(start) || isActive(stop);
    start.disabled = on;
    stop.disabled = !busy;
    if (focused && (on || !busy)) (on ? stop : start).focus();
    const far = running.fraction == null ? "" : `${Math.floor(100 * running.fraction)} %`;
    const when = running.quick ? "It is quick and runs at each move of a control" : "It is long and runs when you press Run";
    work.draw(busy, running, (running.phase ? [running.phase, far, on ? running.expects : ""] : [when, running.expects]).filter(Boolean).join(" · "));
    for (const part of [verdict, cards, notes, tables]) part.classList.toggle("lp-stale", on && !result && tables.hasChildNodes());
    const now = JSON.stringify([running.state, result, running.problem, running.notes]);
    if (shown === now || (on && !result && tables.hasChildNodes())) return;
    shown = now;
    verdict.textContent = result ? result.verdict : STATES[running.state] ?? "";
    verdict.dataset.ok = result ? (result.ok ? "yes" : "no") : "";
    verdict.hidden = !verdict.textContent;
    cards.replaceChildren(...[...(result?.cards ?? []), ...(running.problem ? [running.problem] : [])].map((problem) => problemCard(problem, send)));
    notes.replaceChildren(...(result ? result.notes : running.notes).map((text) => make("li", text)));
    tables.replaceChildren(...(result ? result.tables : []).map(runTable));
    for (const box of tables.querySelectorAll(".lp-scroll")) {
      const row = box.querySelector(".lp-wrong");
      if (row) box.scrollTop = row.offsetTop - box.clientHeight / 2;
    }
  }
  return { head, tables, draw };
}

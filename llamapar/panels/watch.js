// `lp.watch`: the source with the line that runs, a tile for every rank, and a dot for every step.
// The whole film came at once, so stepping asks nobody; the kernel runs the ranks again for a new source,
// layout or case, and says which numbers made a number.

const PACE = 1600; // ms that a step stands while the film plays
const REST = 90; // ms that a pointer rests on a cell until its makers are asked for

const phaseOf = ({ phase }) => (phase === "forward" ? "forward" : "backward");

function render({ model, el }) {
  const uid = newName();
  const payload = () => model.get("payload");
  const film = () => model.get("film");
  const refused = () => { source.forget(); pending = {}; show(); };
  const { send, ask, note, close } = buildSender(model, uid, refused, (on) => stage.classList.toggle("lp-kept", on || Boolean(payload().problem)));

  let pending = {}; // what is pressed and not confirmed
  let phase = "forward"; // of the step that stands
  let at = 0; // that step, among all of the film
  let seen = null; // the film that is shown
  let shown = ""; // the program and the case that are
  const opened = new Set(); // steps whose inner ones are shown
  let playing = 0;
  let asked = null; // the cell whose makers were asked for
  let wanted = null; // and the one that is pointed at now
  let resting = 0;

  function change(changes) {
    stop();
    if (changes.phase) { // the film has both
      phase = changes.phase;
      const all = visible();
      go(all.find((k) => film().steps[k].line) ?? all[0] ?? at, false);
      return;
    }
    Object.assign(pending, changes);
    stage.classList.toggle("lp-stale", isStale());
    send(changes);
  }
  const isStale = () => Object.keys(pending).length > 0;
  const source = buildSource(change, uid, (line) => { const to = visible().find((k) => film().steps[k].line === line && !film().steps[k].depth); if (to !== undefined) go(to); });
  const knobs = make("div.lp-knobs");
  const restore = button("restore", { title: "bring back the source that it began with", onclick: () => { source.forget(); change({ source: "" }); } });
  const code = buildCode(model, ask, (draw) => keepFocus(root, play, draw), restore);
  const fault = make("div.lp-answer", { "aria-live": "polite" });
  const caption = make("div.lp-caption", { role: "status" });
  const summary = make("summary", "source");
  const side = make("details.lp-side", { open: true, ontoggle: () => source.reveal() }, summary, source.node);
  const event = make("div.lp-event");
  const readout = make("div.lp-readout", { "aria-live": "polite" });
  const scale = make("div.lp-scale");
  const share = make("div.lp-block"); // what the lit rank holds
  const tiles = buildTiles((cell) => pointed(cell), (rank) => { share.textContent = film().blocks[rank] ?? ""; });
  const dots = make("div.lp-dots", { role: "group", "aria-label": "steps" });
  const place = make("span.lp-at");
  const back = button("◀", { title: "the step before (←)", "aria-label": "the step before", onclick: () => { stop(); move(-1); } });
  const next = button("▶", { title: "the next step (→)", "aria-label": "the next step", onclick: () => { stop(); move(1); } });
  const play = button("", { class: "lp-play", onclick: () => (playing ? stop() : start()) });
  const inner = button("", { class: "lp-inner", onclick: () => toggle(outer(at)) });
  const phases = make("div");
  const bar = make("div.lp-bar", dots, make("div.lp-buttons", phases, back, next, play, inner, place));
  const stage = make("div.lp-stage",
    make("div.lp-left", code.node, side, fault, caption),
    bar, // above the tiles where they stand under the source
    make("div.lp-right", event, tiles.node, make("div.lp-foot", scale, readout)));
  const root = make("div.llamapar.lp-watch", note, make("div.lp-head", knobs, share), stage);
  el.append(root);

  // -- steps --

  // The line that a step belongs to: the next that is no helper's.
  const outer = (k) => { let to = k; while (film().steps[to]?.depth && to + 1 < film().steps.length) to += 1; return to; };
  const insides = (k) => {
    const found = [];
    for (let i = k - 1; i >= 0 && film().steps[i].depth; i--) found.unshift(i);
    return film().steps[k].depth ? [] : found;
  };
  const visible = () => [...film().steps.keys()].filter((k) => phaseOf(film().steps[k]) === phase && (!film().steps[k].depth || opened.has(outer(k))));

  function go(k, moving = true) {
    const far = Math.abs(k - at);
    at = k;
    phase = phaseOf(film().steps[k]);
    saveStep();
    draw(moving && far > 0);
  }

  const saveStep = () => { model.set("step", at); model.save_changes(); };
  const follow = () => { // a step that code or a link set
    const to = model.get("step");
    if (to === at || seen !== film()) return;
    if (seen.steps[to].depth) opened.add(outer(to));
    go(to);
  };

  function move(by) {
    const all = visible();
    const to = all[all.indexOf(at) + by];
    if (to !== undefined) go(to);
    return to;
  }

  function toggle(k) {
    if (opened.has(k)) { opened.delete(k); at = outer(at); saveStep(); } else opened.add(k);
    keepFocus(root, play, () => draw(false));
  }

  function stop() {
    clearTimeout(playing);
    playing = 0;
    drawPlay();
  }

  // Once through, from the start where it stands at the end; it halts where something breaks.
  function start() {
    const all = visible();
    const on = () => {
      const to = move(1);
      if (to === undefined || film().steps[to].fault === "begins" || to === visible().at(-1)) stop();
      else playing = setTimeout(on, PACE);
    };
    playing = -1;
    drawPlay();
    if (at === all.at(-1)) { go(all[0]); playing = setTimeout(on, PACE); } else on();
  }

  const drawPlay = () => { play.textContent = playing ? "■ stop" : "▶▶ play"; };

  walkKeys(bar, () => visible().length, () => visible().indexOf(at), (to, event) => {
    const onDot = event.target.classList.contains("lp-dot");
    stop();
    go(visible()[to]);
    if (onDot) dots.querySelector("[aria-current=step]").focus();
  });

  // -- cells --

  const hasMakers = () => payload().makers !== false; // a page without an install does not work them out
  const isSame = (one, other) => ["tensor", "rank", "row", "column"].every((name) => one[name] === other[name]);

  function pointed(cell) {
    if (cell === wanted || (cell && wanted && isSame(cell, wanted))) return;
    wanted = cell;
    clearTimeout(resting);
    tiles.light([], cell);
    tell(cell, null);
    if (cell) resting = setTimeout(makers, REST);
  }

  function makers() {
    if (asked || !wanted || !hasMakers()) return; // one question at a time, the last one next
    const { tensor, rank, row, column } = wanted;
    if (!film().steps[at].made.includes(tensor)) return;
    asked = { step: at, tensor, rank, row, column };
    ask({ kind: "cell", ...asked });
  }

  const onMessage = (message) => {
    if (message.kind === "answered" && asked) {
      const before = asked;
      asked = null;
      if (wanted && !isSame(wanted, before)) makers();
      return;
    }
    if (message.kind !== "lights" || !wanted || message.step !== at) return;
    if (!isSame(message, wanted)) return;
    tiles.light(message.lights, wanted);
    tell({ ...wanted, value: message.value }, message.lights);
  };

  // The index in a tensor of a shape, of a cell of its picture.
  function index(shape, flat) {
    const found = [];
    for (const size of [...shape].reverse()) { found.unshift(flat % size); flat = Math.floor(flat / size); }
    return found.join(", ");
  }

  const inWhole = (ranges, k) => { for (const [start, stop] of ranges) { if (k < stop - start) return start + k; k -= stop - start; } return null; };

  // "3 of x and 3 of wq on each of ranks 0, 1"
  function countLights(lights) {
    const byRank = new Map();
    for (const { tensor, rank, cells } of lights) byRank.set(rank, [...(byRank.get(rank) ?? []), `${cells.length} of ${film().tensors[tensor].name}`]);
    const alike = new Map();
    for (const [rank, words] of byRank) alike.set(words.join(" and "), [...(alike.get(words.join(" and ")) ?? []), rank]);
    return [...alike].map(([words, ranks]) => `${words} on ${ranks.length > 1 ? "each of ranks" : "rank"} ${ranks.join(", ")}`).join("; ");
  }

  function tell(cell, lights) {
    if (!cell) { readout.replaceChildren(`Point at a cell: ${hasMakers() ? "the cells that made it light up on every rank." : "its number, and where it lies in the whole."}`); return; }
    const tensor = film().tensors[cell.tensor];
    const own = tensor.ranks[cell.rank];
    const whole = own.at && [inWhole(own.at.rows, cell.row), inWhole(own.at.columns, cell.column)];
    const far = whole?.every((k) => k !== null) ? `, of the whole [${index(tensor.whole, whole[0] * tensor.columns + whole[1])}]` : "";
    const made = lights?.length ? `, made of ${countLights(lights)}` : "";
    readout.replaceChildren(make("b", `${tensor.name}[${index(own.shape, cell.row * own.columns + cell.column)}]`),
      ` on rank ${cell.rank} is `, make("b", say(cell.value)), `${far}${made}.`);
  }

  // -- drawing --

  const ticked = (text) => text.split("`").map((part, k) => (k % 2 ? make("code", part) : part));
  const badge = (axis) => make("span.lp-badge", { "data-axis": axis }, axis.toUpperCase());
  const label = (k) => { const { line, code: text, axis, fault: broken } = film().steps[k]; return `${line ? `line ${line}: ` : ""}${text}${axis ? `, ${axis.toUpperCase()} communicates` : ""}${broken ? `, differs: ${broken}` : ""}`; };

  function dot(k) {
    const step = film().steps[k];
    const inside = insides(k).length && !opened.has(k);
    return button(make("span", inside ? "+" : ""), {
      class: `lp-dot${step.depth ? " lp-deep" : ""}`, "data-step": k, "data-axis": step.axis || null, "data-fault": step.fault || null,
      title: label(k), "aria-label": label(k),
      onclick: () => { stop(); go(k); },
    });
  }

  function drawEvent(step) {
    const { event: sent, axis } = step;
    if (!sent) { event.replaceChildren(make("span.lp-quiet", step.line || step.depth ? "nothing is sent" : "")); return; }
    const groups = sent.groups.slice(0, 4).map((group) => `{${group.join(", ")}}`).join(" ") + (sent.groups.length > 4 ? " …" : "");
    const inner = step.moves.length ? "" : " · inside this line: open it below";
    event.replaceChildren(badge(axis), make("b", sent.kind.replaceAll("_", "-")), ` between ranks ${groups} · a rank sends ${sent.bytes.toLocaleString("en")} B${insides(at).length ? inner : ""}`);
  }

  function drawScale(step) {
    scale.hidden = !step.reads.length && !step.made.length;
    const all = [...new Set([...step.reads, ...step.made])].map((n) => film().tensors[n]);
    const most = [...new Map(all.map((tensor) => [`${tensor.name} ${say(tensor.scale)}`, tensor])).values()];
    scale.replaceChildren("−", make("span.lp-ramp", { role: "img", "aria-label": "colours of values, from minus the largest through 0 to the largest" }), "+ up to",
      ...most.map((tensor) => make("span", make("b", tensor.name), ` ±${say(tensor.scale)}`)));
  }

  function draw(moving) {
    const { steps } = film();
    const step = steps[at];
    if (!step) return;
    const outside = steps[outer(at)];
    const own = steps.filter((each) => !each.depth && each.line && phaseOf(each) === phase);
    const axes = {};
    const faults = {};
    const errors = {};
    for (const { line, axis, fault: broken, error } of own) {
      if (axis && !axes[line]?.includes(axis)) (axes[line] ??= []).push(axis);
      if (broken && faults[line] !== "begins") faults[line] = broken;
      if (Object.keys(error).length) errors[line] = Object.values(error)[0];
    }
    const { problem, verdict } = payload();
    if (verdict?.line) faults[verdict.line] = "begins";
    if (problem?.line) errors[problem.line] = problem.what;
    const runs = outside.line ? outside : step; // a pipeline's operation has no line, and the steps inside it have
    source.mark({ axes, line: runs.line, faults, errors, folds: film().folds });
    summary.textContent = runs.line ? `source · line ${runs.line}: ${runs.code}` : "source";
    const cut = step.caption.search(/[.:]( |$)/) + 1; // what the line does, and how its tensors are held then
    const where = step.depth ? [make("div.lp-inside", "in ", make("code", step.where.split(":")[0]), ": ", make("code", step.code))] : [];
    caption.replaceChildren(...where, make("p", { "data-fault": step.fault || null }, make("b", ticked(step.caption.slice(0, cut))), ticked(step.caption.slice(cut))),
      payload().says && !verdict ? make("p", ticked(payload().says)) : "");
    built.find(({ name }) => name === "phase")?.show(phase); // it may be the film's choice: where a fault begins
    const all = visible();
    refill(dots, [all, all.map(label), [...opened]], () => all.map(dot));
    for (const [n, node] of [...dots.children].entries()) {
      if (all[n] === at) node.setAttribute("aria-current", "step"); else node.removeAttribute("aria-current");
      node.tabIndex = all[n] === at ? 0 : -1;
    } // before the tiles are new: a focus asks where all lies
    drawEvent(step);
    drawScale(step);
    tiles.show(film(), step, moving);
    wanted = null;
    clearTimeout(resting);
    tell(null);
    back.disabled = at === all[0];
    next.disabled = at === all.at(-1);
    const inside = insides(outer(at)).length;
    inner.hidden = !inside;
    const what = outside.line ? "line" : "operation"; // of a pipeline
    inner.textContent = opened.has(outer(at)) ? `− close this ${what}` : `+ open this ${what} (${inside} ${inside === 1 ? "step" : "steps"} inside)`;
    inner.setAttribute("aria-expanded", String(opened.has(outer(at))));
    const first = all.find((k) => steps[k].fault === "begins");
    place.textContent = `${all.indexOf(at) + 1} of ${all.length}, ${phase}${first === undefined ? "" : ` · it breaks at step ${all.indexOf(first) + 1}`}${film().shown ? ` · ${film().shown}` : ""}`;
    root.dataset.step = at;
  }

  // Another film begins where the kernel says.
  function settle() {
    if (seen === film()) return;
    opened.clear();
    seen = film();
    at = payload().values.step;
    phase = phaseOf(seen.steps[at] ?? { phase });
    saveStep();
  }

  let built = [];
  function show() {
    const { values, edited, code: line } = payload();
    for (const [name, value] of Object.entries(pending)) if (values[name] === value || (name === "source" && !source.waits)) delete pending[name];
    refill(knobs, model.get("schema"), () => {
      built = model.get("schema").map((spec) => controlRow(spec, uid, change));
      const [below, above] = [true, false].map((is) => built.filter(({ name }) => (name === "phase") === is).map(({ row }) => row));
      phases.replaceChildren(...below);
      return above;
    });
    for (const { name, show: put } of built) put(pending[name] ?? values[name]);
    code.show(line, line);
    const now = `${values.program} ${values.case}`;
    if (shown !== now) {
      source.forget(); // what was typed was of another program
      source.fold(!edited && !payload().verdict);
      if (payload().verdict) side.open = true; // where a line is to be written
    }
    shown = now;
    source.show(values.source);
    restore.hidden = !edited;
    const { problem } = payload();
    const { verdict, says } = payload();
    const task = verdict && make("div.lp-task", { "data-right": verdict.right ? "yes" : "no" }, make("p", ticked(says)), make("p", make("b", verdict.text)));
    fault.replaceChildren(...(problem ? [problemCard(problem, send)] : []), ...(task ? [task] : []));
    stage.classList.toggle("lp-kept", Boolean(problem));
    stage.classList.toggle("lp-stale", isStale());
    settle();
    drawPlay();
    draw(false);
    root.dataset.painted = payload().seq;
  }

  const changed = () => keepFocus(root, play, show);
  model.on("change:payload", changed);
  model.on("change:step", follow);
  model.on("msg:custom", onMessage);
  const folded = new ResizeObserver(([{ contentRect }]) => { // where the source stands above the tiles it is folded
    const narrow = contentRect.width < 560;
    if (narrow !== folded.narrow) { folded.narrow = narrow; side.open = !narrow || Boolean(payload().verdict); }
  });
  folded.observe(root);
  show();
  code.begin();
  return () => {
    stop();
    clearTimeout(resting);
    source.close();
    tiles.close();
    folded.disconnect();
    model.off("change:payload", changed);
    model.off("change:step", follow);
    code.close();
    model.off("msg:custom", onMessage);
    close();
  };
}

export default { render };

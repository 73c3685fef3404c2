// A map of who holds what: intervals of heads, rows, tokens or layers, each in its rank's column, as SVG that
// moves. Python says where everything stands (`figures/scenes.py`); this slides each interval from where its part
// of the lane stood before.

const SLIDE = 250; // ms
const GUTTER = 78; // pixels: of the names of lanes, as in scenes.py
const LETTER = 7; // pixels: of a digit, and a little more
const UNSEEN = 700; // pixels: of a map that is not on the page yet
const calm = matchMedia("(prefers-reduced-motion: reduce)");

// The outline of a band in pixels; an edge that is not level has the height of its right end besides.
function outlineOf([x0, x1, y0, X0, X1, y1, right], wide) {
  [x0, x1, X0, X1] = [x0, x1, X0, X1].map((x) => Math.round(x * wide * 10) / 10);
  if (right != null || (x0 === X0 && x1 === X1)) return `M${x0} ${y0}L${x1} ${right ?? y0}V${y1}H${x0}Z`;
  const half = (y0 + y1) / 2;
  return `M${x0} ${y0}H${x1}C${x1} ${half} ${X1} ${half} ${X1} ${y1}H${X0}C${X0} ${half} ${x0} ${half} ${x0} ${y0}Z`;
}

function tearOf(x, y, end) {
  const steps = Math.max(2, Math.round((end - y) / 6));
  const turns = [...Array(steps - 1).keys()].map((k) => `L${x + (k % 2 ? 3 : -3)} ${y + ((k + 1) * (end - y)) / steps}`);
  return `M${x} ${y}${turns.join("")}L${x} ${end}`;
}

const mix = (from, to, part) => from + (to - from) * part;

// Where the part of a shape that `one` is stands, of a shape that stands at `now`.
function partOf({ from, to }, one, [x0, x1, y0, X0, X1, y1, right]) {
  const [a, b] = [Math.max(one.from, from), Math.min(one.to, to)].map((x) => (to > from ? (x - from) / (to - from) : 0));
  const edges = [mix(x0, x1, a), mix(x0, x1, b), mix(y0, right ?? y0, a), mix(X0, X1, a), mix(X0, X1, b), y1];
  return right == null ? edges : [...edges, mix(y0, right, b)];
}

// Draws a scene into `root`, and others in its place with `update`. pick: told the rank that is pressed.
function drawMap(root, first, { duration = SLIDE, pick = () => {}, rank = 0 } = {}) {
  const [bands, texts, hits] = ["bands", "texts", "hits"].map((name) => svgNode("g", { class: `lp-${name}` }));
  const tears = svgNode("path", { class: "tear" });
  const picture = svgNode("svg", { class: "lp-map", role: "group" }, bands, tears, texts, hits);
  const says = make("h3.lp-map-says");
  const exact = make("p.lp-exact", { role: "status" });
  const legend = make("p.lp-looks");
  const node = make("div.lp-map-box", says, picture, exact, legend);
  let scene = null;
  let standing = new Map(); // key → { node, lane, from, to, copy, now, start, end, fade }
  let leaving = [];
  let frame = 0;
  let chosen = rank;
  let looked = null; // the rank that is pointed at
  const wide = () => Math.max(1, (node.clientWidth || UNSEEN) - GUTTER);

  // -- motion --

  // The shape that stands where the middle of `one` is in its lane, rather of the same copy.
  function under(all, one) {
    const at = (one.from + one.to) / 2;
    const there = all.filter(({ lane, from, to }) => lane === one.lane && from <= at && at < to);
    return there.find(({ copy }) => copy === one.copy) ?? there[0];
  }

  function place(part) {
    const width = wide();
    for (const one of [...standing.values(), ...leaving]) {
      one.now = one.start.map((from, k) => mix(from, one.end[k], part));
      const edge = ((one.now[4] - one.now[3]) * width) / 5; // of a narrow shape
      put(one.node, { d: outlineOf(one.now, width), opacity: one.fade < 0 ? 1 - part : one.fade ? part : 1, style: edge < 1 ? `stroke-width:${edge}` : "" });
    }
    for (const each of [texts, tears]) put(each, { opacity: part });
    if (part < 1) return;
    for (const one of leaving) one.node.remove();
    leaving = [];
  }

  function slide() {
    cancelAnimationFrame(frame);
    const begun = performance.now();
    const step = (time) => {
      const part = Math.min(1, Math.max(0, time - begun) / duration);
      place(part < 0.5 ? 4 * part ** 3 : 1 - (2 - 2 * part) ** 3 / 2);
      if (part < 1) frame = requestAnimationFrame(step);
    };
    if (calm.matches) place(1); else step(begun);
  }

  function drawBands() {
    const before = [...standing.values()];
    const next = new Map();
    for (const [lane, from, to, copy, end, look] of scene.shapes) {
      const key = [lane, from, to, copy].join();
      const one = standing.get(key) ?? { node: svgNode("path"), lane, from, to, copy };
      one.fade = 0;
      if (!one.now) {
        const source = look.includes("far") ? null : under(before, one);
        one.now = source ? partOf(source, one, source.now) : end;
        one.fade = before.length && !source ? 1 : 0;
      }
      Object.assign(one, { start: one.now, end });
      put(one.node, { class: look });
      next.set(key, one);
    }
    const after = [...next.values()];
    leaving = [...leaving, ...before.filter((one) => !after.includes(one))];
    for (const one of leaving) {
      const target = one.lane === "link" ? null : under(after, one);
      Object.assign(one, { start: one.now, end: target ? partOf(target, one, target.end) : one.now, fade: target ? 0 : -1 });
    }
    standing = next;
    bands.replaceChildren(...[...leaving, ...after].map((one) => one.node));
  }

  // -- words: those that have room, and of the numbers of ranks every second, fourth … ---------------

  function drawWords() {
    const width = wide();
    const needs = (text) => LETTER * text.length + 2;
    const ranks = scene.labels.filter(([, , , , look]) => look === "rank");
    const every = 2 ** Math.max(0, ...ranks.map(([, , text, room]) => Math.ceil(Math.log2((needs(text) + 4) / (room * width)))));
    const shown = scene.labels.filter((label) => (label[4] === "rank" ? ranks.indexOf(label) % every === 0 : label[3] * width >= needs(label[2])));
    const lines = scene.lanes.flatMap(([y, name, count]) => (count ? [[y - 3, name], [y + 13, count]] : [[y, name]]));
    texts.replaceChildren(
      ...shown.map(([x, y, text, , look]) => svgNode("text", { class: look, x: x * width, y }, text)),
      ...lines.map(([y, text]) => svgNode("text", { class: "lane", x: -GUTTER, y }, text)));
    put(tears, { d: scene.cuts.map(([x, y, end]) => tearOf(x * width, y, end)).join("") });
    scene.ranks.forEach(([left, right], k) => {
      const top = scene.shapes[k]?.[5] === "card" ? scene.shapes[k][4][2] : 0;
      put(hits.children[k], { x: left * width, y: top + 1, width: (right - left) * width, height: scene.height - top - 2 });
    });
  }

  // -- ranks that are pointed at, and walked with the arrow keys --

  const indexOf = (number) => Math.max(0, scene.ranks.findIndex(([, , , each]) => each === number));
  const look = (number) => {
    looked = number;
    const [at, stop] = [indexOf(looked ?? chosen), indexOf(chosen)];
    exact.textContent = scene.ranks[at][2];
    [...hits.children].forEach((hit, k) => put(hit, { class: k === at ? "lp-on" : "", tabindex: k === stop ? 0 : -1 }));
  };
  const press = (number) => { chosen = number; pick(number); look(looked); };

  function drawHits() {
    while (hits.children.length > scene.ranks.length) hits.lastChild.remove();
    while (hits.children.length < scene.ranks.length) {
      const k = hits.children.length;
      const hit = svgNode("rect", { role: "button", "data-lm-suppress-shortcuts": "true" });
      for (const event of ["pointerenter", "focus"]) hit.addEventListener(event, () => look(scene.ranks[k][3]));
      hit.addEventListener("blur", () => look(null));
      hit.addEventListener("click", () => press(scene.ranks[k][3]));
      hits.append(hit);
    }
    scene.ranks.forEach(([, , words], k) => put(hits.children[k], { "aria-label": words }));
    look(looked);
  }

  picture.addEventListener("pointerleave", () => look(null));
  const at = () => indexOf(looked ?? chosen);
  walkKeys(picture, () => hits.children.length, at, (to) => hits.children[to].focus());
  picture.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    press(scene.ranks[at()][3]);
    event.preventDefault();
    event.stopPropagation();
  });

  function update(next, number = chosen) {
    if (JSON.stringify(scene) === JSON.stringify(next)) { chosen = number; look(looked); return; }
    if (scene?.kind !== next.kind) { standing = new Map(); leaving = []; }
    scene = next;
    chosen = number;
    says.textContent = scene.says;
    says.classList.toggle("lp-warned", scene.warn);
    const key = ([name, words]) => [make("span.lp-key", svgNode("svg", { class: "lp-map" }, svgNode("path", { class: name, d: "M0 0h14v14h-14z" })), ` ${words}`), " "];
    legend.replaceChildren(...scene.legend.flatMap(key), scene.rest);
    put(picture, { height: scene.height, "aria-label": scene.says });
    drawBands();
    drawHits();
    drawWords();
    slide();
  }

  root.append(node);
  update(first);
  const resized = new ResizeObserver(() => { cancelAnimationFrame(frame); drawWords(); place(1); });
  resized.observe(node);

  // Saves it as SVG, with its style in it and on white paper.
  function save(css) {
    const [x, width, height] = [-GUTTER, wide() + GUTTER, scene.height];
    const copy = put(picture.cloneNode(true), { width, height, viewBox: `${x} 0 ${width} ${height}` });
    copy.lastChild.remove();
    copy.prepend(svgNode("style", {}, css.slice(css.indexOf(".lp-map{"))), svgNode("rect", { x, width, height, fill: "#fff" }));
    const href = `data:image/svg+xml,${encodeURIComponent(new XMLSerializer().serializeToString(copy))}`;
    make("a", { href, download: `${scene.kind}.svg` }).click();
  }

  return { node, update, save, close: () => { cancelAnimationFrame(frame); resized.disconnect(); node.remove(); } };
}

// What `lp.watch` draws of the ranks: a tile for each on its mesh, in it the tensors of a step as pictures, and
// between the tiles the rows that a collective moves.

const GAP = 12; // pixels between tiles
const NARROW = 130; // pixels: no tile is narrower
const MOST = 7; // pixels: of a cell's width
const WEIGHT = 72; // pixels: of a weight's height at most
const MOST_ARROWS = 60; // that are all drawn; of more only those of the group that is followed
const FLIGHT = 900; // ms that rows are on their way
const still = matchMedia("(prefers-reduced-motion: reduce)");

// The ranks' tiles; `hear` is called with the cell that is pointed at, and its value, or with null; `follow` with
// the rank that is followed.
function buildTiles(hear, follow) {
  const grid = make("div.lp-mesh");
  const arrows = svgNode("svg", { class: "lp-arrows", "aria-hidden": "true" });
  const sky = make("div.lp-sky", { "aria-hidden": "true" });
  const node = make("div.lp-tiles", grid, arrows, sky);
  let inks = null;
  let film = null;
  let step = null;
  let chosen = 0; // the rank whose rows are followed
  let looked = null; // the one that is pointed at
  let tiles = new Map(); // rank → { tile, body }
  let shown = new Map(); // "tensor rank" → { canvas, own, size, seams, tensor, rank }
  let lights = new Map(); // "tensor rank" → cells
  let pointed = null; // { tensor, rank, row, column }
  let wide = 0; // pixels that the tiles have
  let frame = 0;
  let waiting = null; // what is shown as soon as the tiles are on the page
  const key = (tensor, rank) => `${tensor} ${rank}`;

  function build() {
    const names = Object.keys(film.axes).filter((axis) => film.axes[axis] > 1);
    tiles = new Map(film.ranks.map(({ rank, coord }) => {
      const where = names.map((axis) => make("span.lp-part", { "data-axis": axis }, `${axis} ${coord[axis]}`));
      const head = button([make("b", `rank ${rank}`), make("span.lp-coord", where)], {
        class: "lp-rank", "aria-pressed": "false", title: "follow this rank's rows", onclick: () => choose(rank),
      });
      const body = make("div.lp-body");
      const tile = make("div.lp-tile", {
        role: "group", "aria-label": `rank ${rank}`, "data-rank": rank,
        onpointerenter: ({ pointerType }) => { if (pointerType === "mouse") look(rank); }, onpointerleave: () => look(focused()),
        onfocusin: () => look(rank), onfocusout: () => look(null),
      }, head, body);
      return [rank, { tile, head, body }];
    }));
    if (!tiles.has(chosen)) chosen = film.ranks[0].rank;
    grid.replaceChildren(...[...tiles.values()].map(({ tile }) => tile));
  }

  // TP runs along x; where its ranks do not fit beside each other, in as many equal lines as it takes.
  function lay() {
    wide ||= grid.clientWidth;
    const fits = Math.max(1, Math.floor((wide + GAP) / (NARROW + GAP)));
    const { tp } = film.axes;
    const across = tp === 1 ? Math.min(fits, film.ranks.length, 2) : [...Array(tp).keys()].map((k) => tp - k).find((n) => tp % n === 0 && n <= fits);
    grid.style.gridTemplateColumns = `repeat(${across}, minmax(0, 1fr))`;
    grid.style.gap = `${GAP}px`;
    return (wide - (across - 1) * GAP) / across;
  }

  // One size of cells for all activations of a step, so that their shapes compare; weights have smaller ones.
  function sizes(width, { reads, made }) {
    const all = [...new Set([...reads, ...made])].map((n) => [n, film.tensors[n]]);
    const [rows, columns] = ["rows", "columns"].map((name) => (tensor) => Math.max(1, ...Object.values(tensor.ranks).map((own) => own[name])));
    const room = width - 22;
    const large = Math.max(1, Math.min(MOST, ...all.filter(([, tensor]) => !isWeight(tensor)).map(([, tensor]) => Math.floor(room / columns(tensor)))));
    const high = large < 4 ? 2 * large : large; // narrow cells are high, so that they are seen
    const small = (tensor) => Math.max(1, Math.min(3, large, Math.floor((2 * WEIGHT) / rows(tensor)) / 2, Math.floor((2 * Math.min(room, 2 * WEIGHT)) / columns(tensor)) / 2));
    return new Map(all.map(([n, tensor]) => [n, isWeight(tensor) ? [small(tensor), small(tensor)] : [large, high]]));
  }

  function tensorNode(n, rank, made, size) {
    const tensor = film.tensors[n];
    const own = tensor.ranks[rank];
    if (!own) return null;
    const single = own.rows * own.columns === 1;
    const shape = `[${own.shape.join(", ")}]`;
    const canvas = single ? null : make("canvas.lp-values", {
      role: "img", tabindex: rank === chosen ? 0 : -1,
      "aria-label": `${tensor.name} ${shape} on rank ${rank}, ${own.place}. Arrow keys point at a cell.`,
      onpointermove: ({ offsetX, offsetY }) => point(n, rank, Math.floor(offsetY / size[1]), Math.floor(offsetX / size[0])),
      onpointerleave: () => hear(null),
      onblur: () => hear(null),
      onkeydown: (event) => walk(event, n, rank),
    });
    if (canvas) {
      const picture = { canvas, own, size, seams: seamsOf(own), tensor: n, rank };
      shown.set(key(n, rank), picture);
      paint(picture, inks);
    }
    const words = own.place.split(" · ").map((part, k, all) => (all.slice(0, k).some((before) => before.startsWith("piece:")) ? part.replace("piece: ", "") : part));
    const [word, ...rest] = words.join(" · ").split(/(?= )/);
    const whole = (text) => make("span.lp-whole", text); // never broken into two lines
    const named = (name, made) => name.split(/(?<=\.)/).flatMap((part, k) => [k ? make("wbr") : null, whole([made && !k ? "→ " : "", make("b", part)])]); // a long one after a dot
    return make("div", { class: `lp-tensor ${made ? "lp-made" : "lp-read"}`, "data-tensor": n, "data-differs": own.differs ? "yes" : null, style: `flex: 1 1 ${Math.max(own.columns * size[0] + 2, 120)}px` },
      thumbnail(tensor, own),
      make("div.lp-what", named(tensor.name, made), " ", whole(shape)),
      make("div.lp-dims", listed(tensor.dims.map(dimName))),
      make("div.lp-place", make("b", word), rest.map((part) => (part.includes("–") ? [" ", whole(part.trim())] : part)).flat()),
      single ? make("div.lp-number", say(own.number ?? valueOf(tensor, own, 0, 0))) : canvas);
  }

  const valueOf = (tensor, own, row, column) => ((bytesOf(own)[row * own.columns + column] - 128) / 127) * tensor.scale;

  function point(tensor, rank, row, column) {
    const { own } = shown.get(key(tensor, rank));
    if (row < 0 || column < 0 || row >= own.rows || column >= own.columns) return;
    hear({ tensor, rank, row, column, value: valueOf(film.tensors[tensor], own, row, column) });
  }

  function walk(event, tensor, rank) {
    const by = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key];
    if (!by) return;
    event.preventDefault();
    event.stopPropagation();
    const here = pointed?.tensor === tensor && pointed.rank === rank ? [pointed.row + by[0], pointed.column + by[1]] : [0, 0];
    point(tensor, rank, ...here);
  }

  function repaint() {
    for (const [name, picture] of shown) {
      const { tensor, rank } = picture;
      const ring = pointed?.tensor === tensor && pointed.rank === rank ? [pointed.row, pointed.column] : null;
      const lit = lights.size && step.reads.includes(tensor) ? lights.get(name) ?? [] : null;
      paint(picture, inks, lit, ring);
    }
  }

  const focused = () => { const at = grid.querySelector(":scope > :focus-within"); return at && Number(at.dataset.rank); };
  const look = (rank) => { if (looked !== rank) { looked = rank; drawArrows(); follow(looked ?? chosen); } };

  function showChosen() {
    for (const [rank, { tile, head }] of tiles) {
      head.setAttribute("aria-pressed", String(rank === chosen));
      tile.classList.toggle("lp-chosen", rank === chosen);
    }
  }

  function choose(rank) {
    chosen = rank;
    showChosen();
    for (const { canvas, rank: each } of shown.values()) canvas.tabIndex = each === rank ? 0 : -1;
    drawArrows();
    follow(looked ?? chosen);
  }

  // -- rows on their way --

  // Where rows of a picture stand, from the tiles' corner.
  function band({ canvas, size: [across, down] }, [top, bottom], [left, right]) {
    const box = canvas.getBoundingClientRect();
    const from = node.getBoundingClientRect();
    const [x, y] = [box.left - from.left + canvas.clientLeft, box.top - from.top + canvas.clientTop];
    return { x: x + left * across, y: y + top * down, width: (right - left) * across, height: (bottom - top) * down };
  }

  const moves = () => step.moves.map((move) => ({ ...move, source: shown.get(key(move.tensor, move.from)), target: shown.get(key(move.into, move.to)) }))
    .filter(({ source, target }) => source && target)
    .map((move) => ({ ...move, start: band(move.source, move.rows, move.columns), end: band(move.target, move.at, move.at_columns ?? move.columns) }));

  // Beside each other: between the sides that face. One above the other: along the left side.
  function curve(start, end) {
    const [y, to] = [start.y + start.height / 2, end.y + end.height / 2];
    if (Math.abs(start.x + start.width / 2 - end.x - end.width / 2) > Math.max(start.width, end.width)) {
      const right = end.x > start.x;
      const [x, tip] = right ? [start.x + start.width + 3, end.x - 9] : [start.x - 3, end.x + end.width + 9];
      const bend = (tip - x) / 2;
      return [`M${x} ${y} C${x + bend} ${y} ${tip - bend} ${to} ${tip} ${to}`, [tip, to, right ? 1 : -1]];
    }
    const [x, tip] = [start.x - 3, end.x - 9];
    const out = Math.min(x, tip) - (to > y ? 12 : 7);
    return [`M${x} ${y} C${out} ${y} ${out} ${to} ${tip} ${to}`, [tip, to, 1]];
  }

  function drawArrows() {
    arrows.replaceChildren();
    if (!step?.moves.length) return;
    arrows.dataset.axis = step.axis;
    const rank = looked ?? chosen;
    const group = step.event?.groups.find((ranks) => ranks.includes(rank)) ?? [];
    const few = step.event && step.event.groups.every((group) => group.length < 3);
    const parts = moves().map(({ from, to, start, end }) => {
      const [path, [x, y, way]] = curve(start, end);
      const frame = ({ x: left, y: top, width, height }) => svgNode("rect", { x: left - 1, y: top - 1, width: width + 2, height: height + 2 });
      const followed = few || to === rank;
      if (!followed && step.moves.length > MOST_ARROWS && !group.includes(to)) return null;
      const arrow = svgNode("g", { class: followed ? "lp-followed" : group.includes(to) ? "lp-faint" : "lp-far", "data-from": from, "data-to": to });
      arrow.append(svgNode("path", { d: path }), svgNode("path", { class: "lp-head", d: `M${x + 8 * way} ${y} l${-10 * way} -5 v10 z` }));
      if (followed) arrow.append(frame(start), frame(end));
      return arrow;
    }).filter(Boolean);
    arrows.replaceChildren(...parts.sort((a, b) => a.classList.contains("lp-followed") - b.classList.contains("lp-followed")));
  }

  // The rows themselves, from where they were read to where they end; what they make appears as they land.
  function fly() {
    sky.replaceChildren();
    if (still.matches || !step.moves.length || !node.isConnected) return;
    const on = new Set();
    for (const { source, target, start, end, rows, columns } of moves()) {
      const [across, down] = [columns[1] - columns[0], rows[1] - rows[0]];
      const rowsOf = make("canvas.lp-flying", { width: across, height: down });
      rowsOf.getContext("2d").putImageData(imageOf(source.own, inks, across, down, rows, columns), 0, 0);
      Object.assign(rowsOf.style, { width: `${start.width}px`, height: `${start.height}px` });
      sky.append(rowsOf);
      const at = ({ x, y }, opacity, grown = "") => ({ transform: `translate(${x}px, ${y}px)${grown}`, opacity });
      rowsOf.animate([at(start, 0.95), at(end, 0.95, ` scale(${end.width / start.width}, ${end.height / start.height})`)], { duration: FLIGHT, easing: "ease-in-out" })
        .finished.then(() => rowsOf.remove(), () => {});
      on.add(target.canvas);
    }
    for (const canvas of on) canvas.animate([{ opacity: 0.2 }, { opacity: 0.2, offset: 0.6 }, { opacity: 1 }], { duration: FLIGHT });
  }

  // -- a step --

  // moving: whether the rows fly, as when one steps there; else only arrows stand.
  function show(newFilm, newStep, moving) {
    waiting = node.isConnected ? null : [newFilm, newStep];
    if (waiting) return; // no theme and no width yet
    if (lights.size || pointed) light([], null);
    const anew = film?.ranks.map(({ rank }) => rank).join() !== newFilm.ranks.map(({ rank }) => rank).join() || JSON.stringify(film.axes) !== JSON.stringify(newFilm.axes);
    film = newFilm;
    step = newStep;
    inks ??= mixInks(node);
    if (anew) build();
    follow(looked ?? chosen);
    const size = sizes(lay(), step);
    shown = new Map();
    for (const [rank, { body }] of tiles) {
      const error = step.error[rank];
      const all = [...step.reads.map((n) => [n, false]), ...step.made.map((n) => [n, true])];
      const order = [...all.filter(([n, made]) => !made && !isWeight(film.tensors[n])), ...all.filter(([n, made]) => !made && isWeight(film.tensors[n])), ...all.filter(([, made]) => made)];
      body.replaceChildren(...order.map(([n, made]) => tensorNode(n, rank, made, size.get(n))).filter(Boolean), ...(error ? [make("div.lp-raised", error)] : []));
    }
    showChosen();
    node.dataset.fault = step.fault;
    arrows.replaceChildren();
    sky.replaceChildren();
    cancelAnimationFrame(frame);
    frame = requestAnimationFrame(() => { drawArrows(); if (moving) fly(); }); // the tiles lie where they will
  }

  function light(cells, place) {
    lights = new Map(cells.map(({ tensor, rank, cells: own }) => [key(tensor, rank), own]));
    pointed = place;
    repaint();
  }

  const resized = new ResizeObserver(() => {
    if (waiting) { show(...waiting, false); return; }
    if (!film || !grid.clientWidth || Math.abs(grid.clientWidth - wide) < 1) { drawArrows(); return; }
    wide = grid.clientWidth;
    show(film, step, false);
  });
  resized.observe(node);
  const theme = onTheme(() => { inks = mixInks(node); if (film) show(film, step, false); });

  return {
    node, show, light,
    close: () => { cancelAnimationFrame(frame); resized.disconnect(); theme.disconnect(); },
  };
}

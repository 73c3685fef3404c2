// Numbers of a rank as a small picture: a cell for each, an ink for each sign. A film is never changed, so what
// was decoded of it is kept beside it.

const decoded = new WeakMap(); // a rank's tensor → its bytes
const THUMB = 34; // pixels: of the thumbnail at most

function bytesOf(own) {
  let bytes = decoded.get(own);
  if (!bytes) decoded.set(own, bytes = Uint8Array.from(atob(own.data), (letter) => letter.charCodeAt(0)));
  return bytes;
}

// The colour of each byte, from the theme: 128 is nothing, 0 and 255 the largest value of the tensor.
function mixInks(node) {
  const style = getComputedStyle(node);
  const read = (name) => style.getPropertyValue(name).match(/[0-9a-f]{2}/gi).map((part) => parseInt(part, 16));
  const [paper, plus, minus] = ["--lp-paper", "--lp-plus", "--lp-minus"].map(read);
  const mixed = Uint32Array.from({ length: 256 }, (_, byte) => {
    const part = Math.min(1, Math.abs(byte - 128) / 127) ** 0.7; // small values are seen, too
    const [red, green, blue] = paper.map((from, k) => Math.round(from + ((byte < 128 ? minus : plus)[k] - from) * part));
    return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
  });
  const grid = paper[0] > 127 ? "rgba(110, 110, 120, 0.28)" : "rgba(150, 150, 160, 0.28)";
  return { mixed, grid, text: style.color, paper: `rgb(${paper})` };
}

// The picture of some cells, each a rectangle of pixels; rows and columns are half-open ranges.
function imageOf(own, { mixed }, width, height, [top, bottom] = [0, own.rows], [left, right] = [0, own.columns]) {
  const bytes = bytesOf(own);
  const image = new ImageData(width, height);
  const pixels = new Uint32Array(image.data.buffer);
  for (let row = top; row < bottom; row++) {
    const y = Math.round(((row - top) * height) / (bottom - top));
    const past = Math.round(((row - top + 1) * height) / (bottom - top));
    for (let column = left; column < right; column++) {
      const x = Math.round(((column - left) * width) / (right - left));
      pixels.fill(mixed[bytes[row * own.columns + column]], y * width + x, y * width + Math.round(((column - left + 1) * width) / (right - left)));
    }
    for (let next = y + 1; next < past; next++) pixels.copyWithin(next * width, y * width, (y + 1) * width);
  }
  return image;
}

// One tensor of one rank on a canvas; size: of a cell, [across, down] in pixels. lit: the cells that stay when
// the others fade; ring: the cell that is pointed at.
function paint({ canvas, own, size: [across, down], seams }, inks, lit, ring) {
  const ratio = window.devicePixelRatio || 1;
  const [width, height] = [own.columns * across, own.rows * down];
  const [wide, high] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== wide || canvas.height !== high) {
    Object.assign(canvas, { width: wide, height: high });
    Object.assign(canvas.style, { width: `${width}px`, height: `${height}px` });
  }
  const pen = canvas.getContext("2d", { willReadFrequently: true }); // small and drawn by the processor
  const image = imageOf(own, inks, wide, high);
  pen.putImageData(image, 0, 0);
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  if (lit) {
    pen.globalAlpha = 0.75;
    pen.fillStyle = inks.paper;
    pen.fillRect(0, 0, width, height);
    pen.globalAlpha = 1;
    for (const [row, column] of lit) pen.putImageData(image, 0, 0, Math.round(column * across * ratio), Math.round(row * down * ratio), Math.ceil(across * ratio), Math.ceil(down * ratio));
  }
  pen.fillStyle = inks.grid;
  if (across >= 4) { // a grid, so that cells can be counted
    for (let column = 1; column < own.columns; column++) pen.fillRect(column * across - 0.5, 0, 0.5, height);
    for (let row = 1; row < own.rows; row++) pen.fillRect(0, row * down - 0.5, width, 0.5);
  }
  pen.fillStyle = inks.text;
  pen.globalAlpha = 0.55;
  for (const column of seams.columns) pen.fillRect(column * across - 0.5, 0, 1, height);
  for (const row of seams.rows) pen.fillRect(0, row * down - 0.5, width, 1);
  pen.globalAlpha = 1;
  pen.strokeStyle = inks.text;
  if (lit) {
    pen.lineWidth = 1;
    if (across >= 4) for (const [row, column] of lit) pen.strokeRect(column * across, row * down, across, down);
  }
  if (ring) {
    pen.lineWidth = 2;
    pen.strokeRect(ring[1] * across - 2, ring[0] * down - 2, across + 4, down + 4);
  }
}

// Where a picture has a seam: between chunks of tokens that are no neighbours, and between heads.
function seamsOf(own) {
  const ends = (ranges) => { let past = 0; return ranges.slice(0, -1).map(([start, stop]) => (past += stop - start)); };
  const rows = own.at ? ends(own.at.rows) : [];
  const dim = own.shape.length === 4 ? own.shape[3] : own.columns;
  const columns = [...Array(Math.max(0, Math.ceil(own.columns / (dim || 1)) - 1)).keys()].map((k) => (k + 1) * dim);
  return { rows, columns };
}

// The whole tensor, small; dark is what this rank has, hatched where it is a summand, so not complete.
function thumbnail(tensor, own) {
  if (!own.at || tensor.rows * tensor.columns < 2) return null;
  const down = Math.max(7, Math.min(THUMB, (THUMB * tensor.rows) / tensor.columns));
  const across = Math.max(7, Math.min(THUMB, (THUMB * tensor.columns) / tensor.rows));
  const parts = own.at.rows.flatMap(([top, bottom]) => own.at.columns.map(([left, right]) => make("span", {
    style: `top:${(100 * top) / tensor.rows}%;height:${(100 * (bottom - top)) / tensor.rows}%;left:${(100 * left) / tensor.columns}%;width:${(100 * (right - left)) / tensor.columns}%`,
  })));
  const summand = Object.values(own.kinds).includes("summand");
  const title = `the rank's part of the whole tensor [${tensor.whole.join(", ")}]`;
  return make("div", { class: `lp-thumb${summand ? " lp-summand" : ""}`, title, style: `width:${across}px;height:${down}px` }, parts);
}

// "seq/cp" with the axis in its colour.
const dimName = (dim) => dim.split("/").map((part, k) => (k ? make("span.lp-part", { "data-axis": part }, `/${part}`) : part));
const listed = (items) => ["[", ...items.flatMap((item, k) => (k ? [", ", item] : [item])).flat(), "]"];
const isWeight = ({ dims }) => !dims.some((dim) => /^(batch|seq)/.test(dim));

// A number as people read it.
const say = (value) => (Number.isFinite(value) ? String(Number(value.toPrecision(4))).replace("-", "−") : String(value));

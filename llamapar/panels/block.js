// The small block of a layout: the model and its data as two rectangles, what the axes cut of them, and what one
// rank works on. All places come from `figures/block.py`, as parts of a rectangle.

const CUT_WIDE = 70; // pixels of a rectangle
const CUT_HIGH = 32;

function drawn(tag, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

// `show` takes what `small` made of a layout for each rank, and the rank that is lit.
function buildBlock() {
  const name = make("div", { class: "lp-lit-rank" });
  const panels = make("div", { class: "lp-panels" });
  const node = make("div", { class: "lp-block", role: "group" }, name, panels);

  function panel({ sides, held, marks }) {
    const boxes = marks.map(([kind, axis, x, y, width, height]) => drawn("rect", {
      class: `lp-${kind}`, "data-axis": axis, x: x * CUT_WIDE, y: y * CUT_HIGH,
      width: Math.max(width * CUT_WIDE, 1), height: Math.max(height * CUT_HIGH, 1), // a cut has no width
    }));
    const words = sides.map(([, , side]) => side).join(", ");
    const picture = drawn("svg", { viewBox: `0 0 ${CUT_WIDE} ${CUT_HIGH}`, width: CUT_WIDE, height: CUT_HIGH, role: "img", "aria-label": words }, drawn("title", {}, words), ...boxes);
    // a word joiner on both sides: no line ends at a dash
    return make("div", {}, picture, held.length ? held.map((part) => make("div", {}, part.replaceAll("–", "\u2060–\u2060"))) : make("div", { class: "lp-quiet" }, "not cut"));
  }

  function show(found) {
    refill(panels, found.panels, () => found.panels.map(panel));
    name.textContent = found.rank;
  }

  return { node, show };
}

// The card under a failing cell.

// CodeMirror keeps a cell's editor beside the element with the text.
const editorOf = (cell) => {
  const text = cell.querySelector(".cm-content");
  const own = text?.cmTile ?? text?.cmView;
  return own?.root?.view ?? own?.rootView?.view;
};

// The kernel's own HTML, without what could run or load.
const shown = (html) => {
  const { body } = new DOMParser().parseFromString(html, "text/html");
  for (const node of body.querySelectorAll("*")) {
    if (/^(SCRIPT|IFRAME|OBJECT|EMBED|LINK|IMG)$/.test(node.nodeName)) node.remove();
    for (const { name } of [...node.attributes]) if (!/^(class|style|open)$/.test(name)) node.removeAttribute(name);
  }
  return body.childNodes;
};

// Puts new lines for old ones, in the nearest cell above that has them.
function put(el, edits) {
  const own = el.closest(".jp-CodeCell");
  const cells = [...own.parentElement.querySelectorAll(":scope > .jp-CodeCell")];
  for (const view of cells.slice(0, cells.indexOf(own) + 1).reverse().map(editorOf)) {
    const lines = view?.state.doc.toString().split("\n") ?? [];
    const changes = edits.map(([old, insert]) => {
      const at = lines.findIndex((line) => line.trim() === old);
      const from = at < 0 ? -1 : view.state.doc.line(at + 1).from + lines[at].indexOf(old);
      return { from, to: from + old.length, insert };
    });
    if (changes.some(({ from }) => from < 0)) continue;
    view.dispatch({ changes });
    return "the cell is changed: run it again";
  }
  return "no cell above has the old line: copy the new one";
}

function render({ model, el }) {
  el.classList.add("jp-RenderedHTMLCommon");
  const row = document.createElement("p");
  const status = document.createElement("output");
  const button = (textContent, onclick) => {
    const node = Object.assign(document.createElement("button"), { className: "jupyter-button", onclick, textContent });
    node.style.cssText = "width:auto;margin:0 8px 4px 0";
    row.append(node);
  };
  let frame;
  const draw = () => {
    if (!el.isConnected) return (frame = requestAnimationFrame(draw)); // not yet in its cell
    const { html, edits, asks, said } = model.get("payload");
    el.replaceChildren(...shown(html));
    el.querySelectorAll("table").forEach(({ style }) => (style.margin = 0));
    row.replaceChildren();
    if (edits.length && el.closest(".jp-CodeCell")) {
      button("put it into the cell", () => (status.textContent = put(el, edits)));
    }
    for (const [label, seconds] of asks) {
      button(label, () => {
        for (const node of row.querySelectorAll("button")) node.disabled = true;
        status.textContent = "trying edits …";
        model.send({ seconds });
      });
    }
    status.textContent = said;
    row.append(status);
    el.firstChild.append(row);
  };
  model.on("change:payload", draw);
  draw();
  return () => {
    cancelAnimationFrame(frame);
    model.off("change:payload", draw);
  };
}

export default { render };

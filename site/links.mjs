// The Explorer's state stands in the address, as the line of text that the library takes too.

export function takeLinks(panel) {
  const first = panel.get("answers").line;
  const here = () => { try { return decodeURIComponent(location.hash.slice(1)); } catch { return ""; } };
  let written = here(); // what the address says, and what is on its way
  const restore = (text) => panel.send({ kind: "restore", text, seq: panel.get("payload").seq });
  if (written) restore(written);
  panel.on("change:answers", () => {
    const { line } = panel.get("answers");
    if (!line || line === written) return;
    written = line;
    history.replaceState(null, "", line === first ? location.pathname : `#${encodeURIComponent(line)}`);
  });
  addEventListener("hashchange", () => {
    if (here() && here() !== written) restore((written = here()));
  });
}

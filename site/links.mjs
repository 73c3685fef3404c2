// The Explorer's state stands in the address, as the line of text that the library takes too.

const SETTLED = 300; // ms without a change: a browser takes few new addresses in a while, and each is slow

export function takeLinks(panel) {
  const first = panel.get("answers").line;
  const here = () => { try { return decodeURIComponent(location.hash.slice(1)); } catch { return ""; } };
  let written = here(); // what the address says, and what is on its way
  const restore = (text) => panel.send({ kind: "restore", text, seq: panel.get("payload").seq });
  if (written) restore(written);
  let timer = 0;
  const write = () => {
    const { line } = panel.get("answers");
    if (!line || line === written) return;
    written = line;
    history.replaceState(null, "", line === first ? location.pathname : `#${encodeURIComponent(line)}`);
  };
  panel.on("change:answers", () => { clearTimeout(timer); timer = setTimeout(write, SETTLED); });
  addEventListener("hashchange", () => {
    if (here() && here() !== written) restore((written = here()));
  });
}

// What a panel shows stands in the address, as the line of text that the library takes too. `taken` is called
// when Python has read an address, with the problem where it could not.

const SETTLED = 300; // ms without a change: a browser takes few new addresses in a while, and each is slow
const LINES = { // where each panel has its line
  explorer: ["answers", ({ line }) => line],
  live: ["payload", ({ line }) => line],
  watch: ["payload", ({ code }) => code],
};

export function takeLinks(panel, taken) {
  const [trait, read] = LINES[panel.kind];
  const line = () => read(panel.get(trait));
  const first = line();
  const here = () => { try { return decodeURIComponent(location.hash.slice(1)); } catch { return location.hash.slice(1); } };
  let written = here(); // what the address says, and what is on its way
  const restore = (text) => panel.send({ kind: "restore", text, id: "link", seq: panel.get("payload").seq });
  panel.on("msg:custom", ({ kind, id, problem }) => { if (kind === "answered" && id === "link") taken(problem); });
  if (written) restore(written);
  let timer = 0;
  const write = () => {
    if (!line() || line() === written) return;
    written = line();
    history.replaceState(null, "", written === first ? location.pathname : `#${encodeURIComponent(written)}`);
  };
  panel.on(`change:${trait}`, () => { clearTimeout(timer); timer = setTimeout(write, SETTLED); });
  addEventListener("hashchange", () => {
    if (here() && here() !== written) restore((written = here()));
  });
}

// Python in a worker. The page starts it from a blob, so that the page's own policy holds here too: it can
// ask no other host for anything. Messages are lines of JSON, in both directions.

export async function start(base, panel) {
  const waiting = [];
  onmessage = ({ data }) => waiting.push(data);
  const [{ loadPyodide }, archive] = await Promise.all([
    import(`${base}pyodide/pyodide.mjs`),
    fetch(`${base}llamapar.zip`).then((answer) => answer.arrayBuffer()),
  ]);
  const pyodide = await loadPyodide({ indexURL: `${base}pyodide/` });
  pyodide.unpackArchive(archive, "zip", { extractDir: "/panels" });
  pyodide.runPython("import sys; sys.path.insert(0, '/panels')");
  const receive = pyodide.pyimport("page_python").begin(panel, (text) => postMessage(text));
  onmessage = ({ data }) => receive(data);
  postMessage(JSON.stringify({ ready: true }));
  waiting.forEach((text) => receive(text));
}

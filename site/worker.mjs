// Python in a worker. The page starts it from a blob, so that the page's own policy holds here too: it can
// ask no other host for anything. Messages are lines of JSON, in both directions.

// A recording of lp.watch: Python waits for it.
function film(url) {
  const ask = new XMLHttpRequest();
  ask.open("GET", url, false);
  ask.responseType = "arraybuffer";
  ask.send();
  if (ask.status !== 200) throw new Error(`${url} did not load: ${ask.status}`);
  return new Uint8Array(ask.response);
}

export async function start(base, panel) {
  const waiting = [];
  onmessage = ({ data }) => waiting.push(data);
  const names = panel === "watch" ? ["llamapar.zip", "watch.zip"] : ["llamapar.zip"];
  const [{ loadPyodide }, ...archives] = await Promise.all([
    import(`${base}pyodide/pyodide.mjs`),
    ...names.map((name) => fetch(`${base}${name}`).then((answer) => answer.arrayBuffer())),
  ]);
  const pyodide = await loadPyodide({ indexURL: `${base}pyodide/` });
  for (const archive of archives) pyodide.unpackArchive(archive, "zip", { extractDir: "/panels" });
  pyodide.runPython("import sys; sys.path.insert(0, '/panels')");
  const more = panel === "watch" ? [pyodide.runPython("lambda film: lambda name: film(name).to_bytes()")((name) => film(`${base}films/${name}`))] : [];
  const receive = pyodide.pyimport("page_python").begin(panel, (text) => postMessage(text), ...more);
  onmessage = ({ data }) => receive(data);
  postMessage(JSON.stringify({ ready: true }));
  waiting.forEach((text) => receive(text));
}

// Python in a worker. The page starts it from a blob, so that the page's own policy holds here too: it can
// ask no other host for anything. Messages are lines of JSON, in both directions.

// A file beside the page that Python waits for.
function fetched(url) {
  const ask = new XMLHttpRequest();
  ask.open("GET", url, false);
  ask.responseType = "arraybuffer";
  ask.send();
  if (ask.status !== 200) throw new Error(`${url} did not load: ${ask.status}`);
  return new Uint8Array(ask.response);
}

export async function start(base, name, archives) {
  const waiting = [];
  onmessage = ({ data }) => waiting.push(data);
  const [{ loadPyodide }, ...files] = await Promise.all([
    import(`${base}pyodide/pyodide.mjs`),
    ...archives.map((archive) => fetch(`${base}${archive}.zip`).then((answer) => answer.arrayBuffer())),
  ]);
  const pyodide = await loadPyodide({ indexURL: `${base}pyodide/` });
  for (const file of files) pyodide.unpackArchive(file, "zip", { extractDir: "/panels" });
  pyodide.runPython("import sys; sys.path.insert(0, '/panels')");
  const film = pyodide.runPython("lambda film: lambda name: film(name).to_bytes()")((film) => fetched(`${base}films/${film}`));
  const receive = pyodide.pyimport("page_python").begin(name, (text) => postMessage(text), film);
  onmessage = ({ data }) => receive(data);
  postMessage(JSON.stringify({ ready: true }));
  waiting.forEach((text) => receive(text));
}

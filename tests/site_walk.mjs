// The same walk in a built site's Python: node site_walk.mjs SITE WALK.PY STEPS SEED
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [site, walk, steps, seed] = process.argv.slice(2);
const { loadPyodide } = await import(pathToFileURL(`${site}/pyodide/pyodide.mjs`));
const pyodide = await loadPyodide({ indexURL: `${site}/pyodide/` });
pyodide.unpackArchive(new Uint8Array(readFileSync(`${site}/llamapar.zip`)), "zip", { extractDir: "/panels" });
pyodide.FS.writeFile("/panels/site_walk.py", readFileSync(walk, "utf8"));
pyodide.runPython("import sys; sys.path.insert(0, '/panels')");
console.log(pyodide.runPython(`import json, site_walk; json.dumps(site_walk.walk(${steps}, ${seed}))`));

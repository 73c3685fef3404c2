// Compiles Python sources with the Python that will run them: node compile.mjs PYODIDE LIBRARY OURS WATCH
// Each .py is replaced by its .pyc; those of Python's library, which nobody reads here, have no docstrings.
import { readdirSync, readFileSync, unlinkSync, writeFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";

const [folder, library, ours, watch] = process.argv.slice(2).map((path) => resolve(path));
const { loadPyodide } = await import(pathToFileURL(join(folder, "pyodide.mjs")));
const pyodide = await loadPyodide({ indexURL: `${folder}/` });
const compiled = pyodide.runPython(`
import importlib.util, marshal

def compiled(source, name, optimize):
    code = compile(source, name, "exec", dont_inherit=True, optimize=optimize)
    return importlib.util.MAGIC_NUMBER + bytes(12) + marshal.dumps(code)  # no date: nothing to compare it with

compiled`);
for (const [tree, optimize] of [[library, 2], [ours, 0], [watch, 0]]) {
  for (const name of readdirSync(tree, { recursive: true }).filter((each) => each.endsWith(".py"))) {
    const path = join(tree, name);
    writeFileSync(`${path}c`, compiled(readFileSync(path, "utf8"), name, optimize).toJs());
    unlinkSync(path);
  }
}

// A page with one panel: its picture from the state that was made with the site, then Python in a worker.

import { takeLinks } from "./links.mjs";
import { followTheme, loadPlotly, open, painted, startPython } from "./models.mjs";

const { panel: kind, archives } = document.body.dataset;
const said = document.querySelector("#python");
const box = document.querySelector("#panel");
const link = kind !== "clinic" && location.hash.length > 1; // to something else than what is in the page

if (kind !== "watch") loadPlotly();
followTheme();
said.textContent = link ? "Python is loading, and then what this link says" : "Python is loading; what you touch meanwhile waits for it";
box.hidden = link;
const panel = await open("w0", kind, await (await fetch(`${kind}.json`)).json(), box);
if (kind !== "clinic") takeLinks(panel, (problem) => {
  box.hidden = false;
  said.classList.toggle("off", Boolean(problem));
  said.textContent = problem ? `This link cannot be read: ${problem.what}. The panel shows something else.` : "Python is ready";
});
await painted("picture");
document.documentElement.dataset.picture = "there";
startPython(kind, archives.split(" "), said);

// A lesson: where a stored picture or a folded answer comes into sight, its panel takes its place. One Python
// makes all of a lesson's panels, each by the cell that stands over it. What was guessed is kept in this browser.

import { keepProgress, progress } from "./course.mjs";
import { base, followTheme, open, painted, startPython, tell } from "./models.mjs";

const AHEAD = "600px 0px"; // before it is seen
const { lesson } = document.body.dataset;
const said = document.querySelector("#python");
let started = false;

function start() {
  started = true;
  said.textContent = "Python is loading; what you touch meanwhile waits for it";
  startPython(lesson, ["llamapar", "watch", "lessons"], said, ({ to, failed, progress: kept }) => {
    if (kept) keepProgress(kept);
    if (failed) said.textContent = `${document.querySelector(`[data-key="${to}"]`).dataset.kind} does not answer: ${failed}`;
  });
}

async function show(still) {
  const { key, kind } = still.dataset;
  const box = document.createElement("div");
  box.className = "alive";
  const state = await (await fetch(`${base}lessons/${lesson}/${key}.json`)).json();
  still.after(box);
  tell({ open: key });
  await open(key, kind, state, box);
  still.remove();
  box.dataset.shown = key;
  if (started) return;
  start();
  await painted("picture");
  document.documentElement.dataset.picture = "there";
}

followTheme();
said.textContent = "What moves comes alive where you read"; // until the first of it is near
tell({ progress: progress() });
const seen = new IntersectionObserver((all) => {
  for (const { isIntersecting, target } of all) if (isIntersecting) { seen.unobserve(target); show(target); }
}, { rootMargin: AHEAD });
for (const still of document.querySelectorAll("[data-key]")) seen.observe(still);

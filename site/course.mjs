// How far a reader came, kept in this browser alone: a chapter counts as read when its end was seen, and what
// was guessed and solved is kept as the course's own progress file says it.

const KEY = "llamapar.read", PROGRESS = "llamapar.progress";
const kept = (name) => { try { return localStorage.getItem(name); } catch { return null; } };
const keep = (name, text) => { try { localStorage.setItem(name, text); } catch { /* not kept */ } };
const parsed = (text) => { try { return JSON.parse(text); } catch { return null; } };
const read = () => new Set(parsed(kept(KEY)) ?? []);

export const progress = () => kept(PROGRESS) ?? "";
export const keepProgress = (text) => keep(PROGRESS, text);

const end = document.querySelector("[data-end]");
if (end) {
  new IntersectionObserver((seen) => {
    if (seen.some((one) => one.isIntersecting)) keep(KEY, JSON.stringify([...read().add(end.dataset.end)]));
  }).observe(end);
}

const done = read();
const guessed = parsed(progress()) ?? {};
for (const link of document.querySelectorAll("[data-chapter]")) {
  const said = done.has(link.dataset.chapter) ? ["✓ read"] : [];
  const asked = JSON.parse(link.dataset.asked ?? "[]");
  const answered = asked.map(([kind, name]) => guessed[kind]?.[name]).filter(Boolean);
  const right = answered.filter((one) => one.right === true).length;
  if (answered.length) said.push(`${answered.length} of ${asked.length} questions, ${right} right`);
  if (said.length) link.dataset.read = said.join(" · ");
}

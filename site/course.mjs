// How far a reader came, kept in this browser alone: a chapter counts as read when its end was seen.

const KEY = "llamapar.read";
const read = () => { try { return new Set(JSON.parse(localStorage.getItem(KEY)) ?? []); } catch { return new Set(); } };

const end = document.querySelector("[data-end]");
if (end) {
  new IntersectionObserver((seen) => {
    if (!seen.some((one) => one.isIntersecting)) return;
    try { localStorage.setItem(KEY, JSON.stringify([...read().add(end.dataset.end)])); } catch { /* not kept */ }
  }).observe(end);
}
const done = read();
for (const link of document.querySelectorAll("[data-chapter]")) if (done.has(link.dataset.chapter)) link.dataset.read = "yes";

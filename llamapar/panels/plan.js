
// -- the Plan tab --
// How far the search for layouts is. Python sends it as the trait `planned`; its points are adopted by a click.

const LISTED = 20; // layouts that can be chosen without a mouse

function buildPlan(ask, send) {
  const again = button("Search again", { onclick: () => ask({ kind: "search" }) });
  const stop = button("Stop", { title: "with the best so far", onclick: () => ask({ kind: "cancel" }) });
  const bar = make("progress", { max: 1, "aria-label": "progress of the search" });
  const title = make("span", { class: "lp-title" });
  const far = make("span", { class: "lp-title" });
  const cards = make("div", {});
  const found = make("select", { "aria-label": "a layout that was found, the fastest first" });
  const take = button("Take it", { onclick: () => ask({ kind: "adopt", place: found.selectedIndex }) });
  const listed = make("div", { class: "lp-line" }, found, take);
  const head = make("div", { class: "lp-search" }, make("div", { class: "lp-line" }, again, stop, title),
    make("div", { class: "lp-line lp-far" }, bar, far), make("div", { class: "lp-why" }, "click a point to take its layout, or choose one:"), listed, cards);
  function draw(planned) {
    const on = planned.state === "running";
    again.disabled = on;
    stop.disabled = !on;
    const names = planned.figure?.data[1].hovertext.slice(0, LISTED) ?? [];
    listed.hidden = !names.length;
    refill(found, names, () => names.map((name) => make("option", {}, plain(name))));
    title.textContent = planned.title ?? "";
    bar.hidden = !on;
    if (planned.fraction == null) bar.removeAttribute("value"); else bar.value = planned.fraction;
    far.textContent = planned.far ?? "";
    refill(cards, planned.problem, () => (planned.problem ? [problemCard(planned.problem, send)] : []));
  }
  return { head, draw };
}

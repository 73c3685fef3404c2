
// -- the Plan tab --
// How far the search for layouts is. Python sends it as the trait `planned`; its points are adopted by a click.

const LISTED = 20; // layouts that can be chosen without a mouse

function buildPlan(ask, send) {
  const again = button("Search again", { onclick: () => ask({ kind: "search" }) });
  const stop = button("Stop", { title: "with the best so far", onclick: () => ask({ kind: "cancel" }) });
  const work = buildWork("progress of the search", again, stop);
  const cards = make("div");
  const found = make("select", { "aria-label": "a layout that was found, the fastest first" });
  const take = button("Take it", { onclick: () => ask({ kind: "adopt", place: found.selectedIndex }) });
  const listed = make("div.lp-line", make("span.lp-why", "click a point to take its layout, or choose one:"), found, take);
  const head = make("div.lp-search", ...work.lines, listed, cards);
  function draw(planned) {
    const on = planned.state === "running";
    again.disabled = on;
    stop.disabled = !on;
    const names = planned.figure?.data[1].hovertext.slice(0, LISTED) ?? [];
    listed.hidden = !names.length;
    refill(found, names, () => names.map((name) => make("option", plain(name))));
    work.draw(on, planned, planned.far);
    refill(cards, planned.problem, () => (planned.problem ? [problemCard(planned.problem, send)] : []));
  }
  return { head, draw };
}

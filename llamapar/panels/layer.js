
// -- steps ---------------------------------------------------------------------------------------
// A cursor that steps through a layer's forward and backward, or around a ring: a slider, which takes the keys that sliders take.

function buildSteps(uid, send) {
  const slider = make("input", { type: "range", min: 0, step: 1, id: `${uid}-cursor` });
  const far = make("span", { class: "lp-title" });
  const go = (by) => button(by < 0 ? "back" : "next step", { onclick: () => send({ step: Math.max(0, Number(slider.value) + by) }) });
  const [back, next] = [go(-1), go(1)];
  slider.addEventListener("input", () => send({ step: Number(slider.value) }));
  const head = make("div", { class: "lp-walk" },
    make("div", { class: "lp-line" }, back, next, make("label", { for: slider.id }, "step through it"), slider, far));
  function draw({ figure, values }) {
    const ring = values.tab === "sequence" && values.cp_method === "ring" && Number(values.cp) > 1;
    const steps = figure?.layout.meta?.steps ?? (figure && ring ? Number(values.cp) : 0);
    head.hidden = !steps;
    slider.max = steps;
    const at = Math.min(values.step ?? 0, steps);
    if (Number(slider.value) !== at) slider.value = String(at);
    far.textContent = at ? `step ${at} of ${steps}` : (ring ? `${steps} steps of the ring` : `${steps} steps: forward, then backward`);
    slider.setAttribute("aria-valuetext", far.textContent);
    back.disabled = !at;
    next.disabled = at >= steps;
  }
  return { head, draw };
}

// The values of a drawing under the pointer: a rule at the nearest point, and a label beside it.

import { element, setText } from "./dom.js";

// `plot` is positioned, and as wide as the drawing. `nearest(part)` gets the place of the pointer, from 0 to 1, and
// returns the place of the nearest point and its text; null if there is none.
export function showValues(plot, nearest) {
  const rule = element("i", { class: "rule", hidden: true });
  const label = element("output", { class: "value", hidden: true });
  plot.append(rule, label);
  let part = null;
  const update = () => {
    const found = part == null ? null : nearest(part);
    rule.hidden = label.hidden = !found;
    if (!found) return;
    setText(label, found.text);
    rule.style.left = `${found.part * 100}%`;
    label.style.left = `${found.part * 100}%`;
    label.classList.toggle("before", found.part > 0.5);
  };
  plot.addEventListener("pointermove", (event) => {
    const box = plot.getBoundingClientRect();
    part = Math.min(1, Math.max(0, (event.clientX - box.left) / Math.max(1, box.width)));
    update();
  });
  plot.addEventListener("pointerleave", () => {
    part = null;
    update();
  });
  return update; // after new data: the pointer may rest on it
}

// The point whose time is nearest. Points are sorted by time, which is first in each.
export function nearestPoint(points, at) {
  let low = 0, high = points.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (points[middle][0] < at) low = middle + 1;
    else high = middle;
  }
  const after = points[low], before = points[low - 1];
  if (!after || !before) return after ?? before ?? null;
  return at - before[0] <= after[0] - at ? before : after;
}

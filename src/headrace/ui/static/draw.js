// Drawings: the lag of the last hour, and logs with what is not processed yet, to scale.

import { drawing, element, setAttribute, setText } from "./dom.js";
import { NONE, clock, compact, number, plural, span } from "./format.js";
import { nearestPoint, showValues } from "./hover.js";

const WIDTH = 1000; // of the coordinates; drawings are stretched to their place

// The points of a group's history with the current lag at the end, in parts without gaps.
export function lagParts(history, now, lag) {
  const points = [...(history?.points ?? [])];
  if (now != null && lag != null) points.push([now, lag]);
  const longest = Math.max(3 * (history?.width ?? 1), 45);
  const parts = [];
  for (const point of points) {
    const part = parts.at(-1);
    if (part && point[0] - part.at(-1)[0] <= longest) part.push(point);
    else parts.push([point]);
  }
  return parts;
}

export function extent(parts) {
  const points = parts.flat();
  const first = points[0]?.[0] ?? 0, last = points.at(-1)?.[0] ?? 1;
  return { first, last: Math.max(last, first + 1), most: Math.max(1, ...points.map((point) => point[1])) };
}

function paths(parts, { first, last, most }, height) {
  const x = (at) => (((at - first) / (last - first)) * WIDTH).toFixed(1);
  const y = (lag) => (height - 2 - (lag / most) * (height - 4)).toFixed(1);
  const lines = parts.map((part) => "M" + part.map(([at, lag]) => `${x(at)},${y(lag)}`).join("L"));
  const areas = parts.map((part, at) => `${lines[at]}L${x(part.at(-1)[0])},${height}L${x(part[0][0])},${height}Z`);
  return [lines.join(""), areas.join("")];
}

export function makeLine(height, className) {
  const area = drawing("path", { class: "area" });
  const line = drawing("path", { class: "line" });
  const svg = drawing("svg", { class: className, viewBox: `0 0 ${WIDTH} ${height}`, preserveAspectRatio: "none", "aria-hidden": "true" }, area, line);
  const node = element("div", { class: "values" }, svg);
  let points = [], shown = { first: 0, last: 1 };
  const updateValue = showValues(node, (part) => {
    const found = nearestPoint(points, shown.first + part * (shown.last - shown.first));
    return found && { part: (found[0] - shown.first) / (shown.last - shown.first), text: `${plural(found[1], "record")} · ${clock(found[0])}` };
  });
  return {
    node,
    update(parts, range = extent(parts)) {
      const [lines, areas] = paths(parts, range, height);
      setAttribute(line, "d", lines);
      setAttribute(area, "d", areas);
      points = parts.flat();
      shown = range;
      updateValue();
    },
  };
}

// The chart of a group: lag over time, and below it the rebalances on the same axis.
export function makeChart() {
  const line = makeLine(160, "chart");
  const most = element("span", { class: "axis most" });
  const zero = element("span", { class: "axis zero" }, "0");
  const since = element("span"), until = element("span");
  const timeline = drawing("svg", { class: "timeline", viewBox: `0 0 ${WIDTH} 18`, preserveAspectRatio: "none", "aria-hidden": "true" });
  const figure = element("figure", { class: "panel" },
    element("figcaption", {}, "Lag, in records"),
    element("div", { class: "plot" }, line.node, most, zero),
    element("div", { class: "label" }, element("span", {}, "Rebalances"), element("ul", { class: "legend" },
      element("li", {}, element("i", { class: "swatch moved" }), "partitions moved"),
      element("li", {}, element("i", { class: "swatch unowned" }), "partitions without an owner"))),
    timeline,
    element("div", { class: "times" }, since, until));
  return {
    node: figure,
    update(head) {
      const parts = lagParts(head.history, head.at, head.lag);
      const range = extent(parts);
      line.update(parts, range);
      setText(most, compact(range.most));
      setText(since, clock(range.first));
      setText(until, `${clock(range.last)} · ${span(range.last - range.first)}`);
      const bars = (head.rebalances ?? []).filter((it) => it.at >= range.first - 1).map((it) => {
        const from = ((Math.max(it.at, range.first) - range.first) / (range.last - range.first)) * WIDTH;
        const to = (((it.until ?? range.last) - range.first) / (range.last - range.first)) * WIDTH;
        return drawing("rect", { x: from, y: 2, width: Math.max(4, to - from), height: 14, class: it.unowned ? "unowned" : "moved" },
          drawing("title", {}, rebalanceText(it)));
      });
      timeline.replaceChildren(...bars);
    },
  };
}

export function rebalanceText(it) {
  const parts = [];
  if (it.joined.length) parts.push(`${plural(it.joined.length, "member")} joined`);
  if (it.left.length) parts.push(`${plural(it.left.length, "member")} left`);
  parts.push(`${plural(it.moved, "partition")} moved`);
  if (it.unowned) parts.push(`${number(it.unowned)} without an owner for up to ${span(it.unowned_seconds)}`);
  return parts.join(", ");
}

// A log from its beginning to its end. The live lane is above the backlog lane; a single lane has the whole height.
export function makeLog() {
  const group = drawing("g");
  const node = drawing("svg", { class: "log", viewBox: `0 0 ${WIDTH} 20`, preserveAspectRatio: "none", role: "img" }, group);
  return {
    node,
    update(row, isZoomed) {
      const marks = logMarks(row, isZoomed);
      while (group.children.length < marks.length) group.append(drawing("rect"));
      while (group.children.length > marks.length) group.lastChild.remove();
      marks.forEach((mark, at) => {
        for (const [name, value] of Object.entries(mark)) setAttribute(group.children[at], name, value);
      });
      setAttribute(node, "aria-label", logText(row));
    },
  };
}

function logMarks(row, isZoomed) {
  if (row.begin == null || row.end == null) return [];
  const starts = [...row.lost_ranges, ...row.lanes.flatMap((lane) => lane.open)].map((range) => range[0]);
  const least = Math.min(row.begin, ...row.lost_ranges.map((range) => range[0]));
  let first = least;
  if (isZoomed && starts.length) first = Math.max(least, Math.min(...starts) - (row.end - Math.min(...starts)) * 0.05);
  const length = Math.max(1, row.end - first);
  const mark = (from, to, className, y, height) => {
    const x = ((Math.max(from, first) - first) / length) * WIDTH;
    // At least three units, so that a single record of a large log can be seen.
    const width = Math.max(3, ((to - first) / length) * WIDTH - x);
    return { x: Math.min(x, WIDTH - width).toFixed(1), width: width.toFixed(1), y, height, class: className };
  };
  const two = row.lanes.length > 1 || row.lanes[0]?.lane === "live";
  const marks = [];
  if (row.end > row.begin) {
    if (two) marks.push(mark(row.begin, row.end, "done", 1, 8), mark(row.begin, row.end, "done", 11, 8));
    else marks.push(mark(row.begin, row.end, "done", 3, 14));
  }
  for (const [from, to] of row.lost_ranges) marks.push(mark(from, to, "lost", 1, 18));
  for (const lane of row.lanes) {
    const [y, height] = !two ? [3, 14] : lane.lane === "backlog" ? [11, 8] : [1, 8];
    for (const [from, to] of lane.open) marks.push(mark(from, to, lane.lane || "live", y, height));
  }
  return marks;
}

export function logText(row) {
  if (row.begin == null || row.end == null) return "The log is unknown.";
  const ranges = (list) => list.map(([from, to]) => `${number(from)} to ${number(to)}`).slice(0, 5).join(", ") || "nothing";
  const lanes = row.lanes.map((lane) => `${lane.lane ? `${lane.lane} lane, ` : ""}not processed: ${ranges(lane.open)}`);
  const lost = row.lost_ranges.length ? [`lost: ${ranges(row.lost_ranges)}`] : [];
  return `Offsets ${number(row.begin)} to ${number(row.end)}; ${[...lanes, ...lost].join("; ")}`;
}

export function trendText(trend) {
  if (!trend) return NONE;
  if (trend.outlook === "catching up") return `caught up in ${span(trend.caught_up)}`;
  if (trend.outlook === "falling behind") return `+${compact(Math.round(trend.growth))}/s`;
  return trend.outlook === "waiting" ? "nothing is consumed" : trend.outlook;
}

// What the tile of a group says, and the note below it.
export function outlookTexts(trend) {
  if (!trend || trend.outlook === "unknown") return [NONE, "unknown"];
  if (trend.outlook === "catching up") return [span(trend.caught_up), "at this rate"];
  if (trend.outlook === "caught up") return ["now", "nothing is waiting"];
  if (trend.outlook === "keeping up") return ["keeping up", "the lag is flat"];
  return ["never", trend.outlook === "waiting" ? "nothing is consumed" : "falling behind"];
}

// What the command that offers this page is doing: a pipeline of `headrace run`, or `headrace demo crash`.

import { drawing, element, setAttribute, setText, show } from "./dom.js";
import { makeLog } from "./draw.js";
import { NONE, clock, number, span } from "./format.js";
import { nearestPoint, showValues } from "./hover.js";
import { head as title } from "./parts.js";
import { LiveTable } from "./table.js";

// -- a pipeline --------------------------------------------------------------------------------------------------

const tableRow = (it) => element("tr", {}, element("td", {}, element("span", { class: "name" }, it.name, it.state ? element("span", { class: `badge ${it.state}` }, it.state) : null)),
  element("td", { class: "number" }, number(it.rows)), element("td", { class: "number" }, it.rows == null ? NONE : `+${number(it.rows - it.before)}`));

const queryRow = (it) => element("tr", {}, element("td", {}, queryName(it.query)), element("td", { class: "number" }, number(it.lag)),
  element("td", { class: "number" }, it.lag == null ? NONE : it.lag === 0 ? "up to date" : `${span(it.seconds)} behind`));

const listOf = (heading, titles, body) => element("section", { class: "panel list", "aria-label": heading }, element("h2", {}, heading),
  element("table", {}, element("thead", {}, element("tr", {}, titles.map((title, at) => element("th", { scope: "col", class: at ? "number" : null }, title)))), body));

// The name of a checkpoint is a path; its end is the table and the flow.
const queryName = (path) => path.split("/").filter((part) => part && !/^\d+$/.test(part) && part !== "_checkpoints").slice(-2).join(" / ") || path;

function pipelineParts() {
  const tables = element("tbody"), queries = element("tbody");
  const batches = new LiveTable({
    caption: "Micro-batches", empty: "No batch has been planned yet.", order: (a, b) => b.at - a.at || b.batch - a.batch, matches: () => true,
    columns: [
      { title: "Query", className: "main", value: (row) => [row.query, row.batch], view: (row) => element("span", { class: "name" }, queryName(row.query), element("span", { class: "badge" }, `batch ${row.batch}`)), sort: (row) => row.query },
      { title: "Planned", key: "at", className: "number", view: (row) => clock(row.at), sort: (row) => row.at },
      { title: "Records", className: "number strong", value: (row) => [row.rows, row.exact], view: (row) => (row.rows == null ? NONE : `${row.exact ? "" : "≤ "}${number(row.rows)}`), sort: (row) => row.rows, largestFirst: true },
      { title: "Duration", key: "seconds", className: "number", view: (row) => (row.seconds == null ? "running" : span(row.seconds)), sort: (row) => row.seconds, largestFirst: true },
      { title: "Records/s", className: "number", value: (row) => [row.rows, row.seconds], view: (row) => (row.seconds && row.rows != null ? number(Math.round(row.rows / row.seconds)) : NONE) },
    ],
  });
  const node = [
    element("div", { class: "columns" }, listOf("Tables", ["Table", "Rows", "New"], tables), listOf("Freshness", ["Query that reads Kafka", "Records waiting", ""], queries)),
    element("section", { "aria-label": "Micro-batches" }, element("div", { class: "tools" }, element("h2", {}, "Micro-batches")), batches.node),
  ];
  return {
    node,
    table: batches,
    update(top, rows) {
      show(tables, top.tables, () => (top.tables.length ? top.tables.map(tableRow) : element("tr", {}, element("td", { colspan: 3, class: "empty" }, "Spark has not planned the tables yet."))));
      show(queries, top.queries, () => (top.queries?.length ? top.queries.map(queryRow) : element("tr", {}, element("td", { colspan: 3, class: "empty" }, "No batch is finished yet."))));
      batches.update(rows);
    },
  };
}

// -- a demo ------------------------------------------------------------------------------------------------------

const HEIGHT = 150, WIDTH = 1000;

// How far behind each reader is, over time. The scale is logarithmic: from a tenth of a second to minutes.
function behindChart() {
  const lines = new Map();
  const svg = drawing("svg", { class: "chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" });
  const y = (seconds) => HEIGHT - 4 - (Math.log10(Math.max(seconds, 0.02) / 0.02) / Math.log10(60 / 0.02)) * (HEIGHT - 8);
  const marks = [0.1, 1, 10].map((value) => {
    svg.append(drawing("path", { class: "grid", d: `M0,${y(value)}H${WIDTH}` }));
    const mark = element("span", { class: "axis" }, span(value));
    mark.style.top = `${(y(value) / HEIGHT) * 100}%`;
    return mark;
  });
  const names = element("ul", { class: "legend" });
  const plot = element("div", { class: "plot free" }, svg, marks);
  const node = element("figure", { class: "panel" }, element("figcaption", {}, "Age of the newest consumed record"), names, plot);
  let shown = [], until = 1;
  const updateValue = showValues(plot, (part) => {
    const found = shown.map((it) => [it.label, nearestPoint(it.series, part * until)]).filter(([, point]) => point && Math.abs(point[0] - part * until) < 2.5);
    return found.length ? { part, text: [span(part * until), ...found.map(([label, point]) => `${label}: ${point[1].toFixed(2)} s`)].join(" · ") } : null;
  });
  return {
    node,
    update(readers) {
      show(names, readers.map((it) => it.name), () => readers.map((it) => element("li", {}, element("i", { class: `swatch ${it.name}` }), it.label)));
      const last = Math.max(10, ...readers.flatMap((it) => it.series.map((point) => point[0])));
      for (const it of readers) {
        if (!lines.has(it.name)) lines.set(it.name, svg.appendChild(drawing("path", { class: `line ${it.name}` })));
        let previous = -Infinity;
        const path = it.series.map(([at, behind]) => {
          const step = at - previous > 2.5 ? "M" : "L";
          previous = at;
          return `${step}${((at / last) * WIDTH).toFixed(1)},${y(behind).toFixed(1)}`;
        }).join("");
        setAttribute(lines.get(it.name), "d", path);
      }
      shown = readers;
      until = last;
      updateValue();
    },
  };
}

function readerPanel() {
  const label = element("h2"), value = element("p", { class: "behind" }), note = element("small");
  const logs = element("div", { class: "logs" });
  const drawn = new Map();
  return {
    node: element("section", { class: "panel reader" }, label, value, note, logs),
    update(it, lag, rows) {
      setText(label, it.label);
      setText(value, it.behind == null ? "not running" : `${it.behind.toFixed(2)} s behind`);
      setText(note, lag == null ? "" : `${number(lag)} records waiting`);
      for (const row of rows) {
        if (!drawn.has(row.id)) {
          const log = makeLog();
          drawn.set(row.id, log);
          logs.append(log.node);
        }
        drawn.get(row.id).update(row, false);
      }
    },
  };
}

function demoParts() {
  const panels = new Map();
  const columns = element("div", { class: "columns" });
  const chart = behindChart();
  const legend = element("ul", { class: "legend" }, [["done", "read"], ["live", "not read"], ["backlog", "backlog lane, not read"]].map(([name, text]) => element("li", {}, element("i", { class: `swatch ${name}` }), text)));
  return {
    node: [columns, legend, chart.node],
    update(top, rows) {
      for (const it of top.readers ?? []) {
        if (!panels.has(it.name)) {
          panels.set(it.name, readerPanel());
          columns.append(panels.get(it.name).node);
        }
        const mine = [...rows.values()].filter((row) => row.reader === it.name).sort((a, b) => a.partition - b.partition);
        panels.get(it.name).update(it, top.lags?.[it.name], mine);
      }
      chart.update(top.readers ?? []);
    },
  };
}

export function activityPage() {
  const heading = title("");
  const stage = element("p", { class: "stage" });
  const place = element("div", { class: "parts" });
  let parts = null;
  return {
    title: "Activity",
    query: { view: "activity" },
    node: [heading, stage, place],
    missing: "This page belongs to no pipeline or demo.",
    get table() { return parts?.table; },
    update(top, rows) {
      setText(heading.firstChild, top.title);
      const text = top.failed ? `failed: ${top.failed}` : top.stage ?? "starting";
      const detail = top.message && !top.over && top.kind === "pipeline" ? ` · ${top.message}` : "";
      setText(stage, `${text}${detail} · ${span(Math.max(0, (top.at ?? top.since) - top.since))}`);
      if (!top.kind) return;
      if (!parts) {
        parts = top.kind === "demo" ? demoParts() : pipelineParts();
        place.replaceChildren(...parts.node);
      }
      parts.update(top, rows);
    },
  };
}

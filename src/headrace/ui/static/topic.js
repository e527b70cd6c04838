// One topic: who reads it, its partitions, its newest records.

import { announce, element, setText, show } from "./dom.js";
import { atLeast, bytes, compact, moment, number, plural, rate, span } from "./format.js";
import { Tiles, filteredTable, groupLink, head, kindBadge, lagText, reasons, sinceNote, trail } from "./parts.js";

const NEWEST = 20;

function readerRow(it) {
  const percent = it.done == null ? null : Math.floor(it.done * 100);
  return element("tr", {},
    element("td", {}, element("span", { class: "name" }, element("a", { href: groupLink(it) }, it.name), kindBadge(it.kind))),
    element("td", { class: "number" }, lagText(it), it.lag ? element("small", {}, `oldest ${span(it.seconds)}`) : null),
    element("td", { class: "wide" }, element("div", { class: "history" },
      percent == null ? null : element("progress", { max: 1, value: it.done, "aria-label": `processed: ${percent} %` }), element("span", { class: "trend" }, percent == null ? "unknown" : `${percent} % of the log`))));
}

const valueCell = (it) => (it == null ? element("span", { class: "null" }, "null") : [
  element("code", {}, it.text),
  it.error ? element("small", { class: "reason", "data-level": 2 }, it.error) : it.format ? element("small", {}, `${it.format}, ${plural(it.bytes, "byte")}`) : null]);

function recordRow(it) {
  const headers = it.headers.length ? element("small", {}, it.headers.map(([name, value]) => `${name}=${value?.text ?? "null"}`).join("  ")) : null;
  return element("tr", {}, element("td", { class: "place" }, `${it.partition}:${number(it.offset)}`, element("small", {}, moment(it.at))),
    element("td", { class: "key" }, valueCell(it.key)), element("td", { class: "value" }, valueCell(it.value), headers));
}

function recordsPanel(name) {
  const body = element("tbody");
  const note = element("p", { class: "empty" });
  const load = async () => {
    button.disabled = true;
    setText(note, "Reading the newest records …");
    const response = await fetch(`/api/records?${new URLSearchParams({ topic: name, count: NEWEST })}`).catch(() => null);
    const answer = await response?.json().catch(() => null);
    button.disabled = false;
    setText(button, "Read again");
    if (!response?.ok) {
      setText(note, answer?.error ?? "The server does not answer.");
      return;
    }
    body.replaceChildren(...answer.records.map(recordRow));
    setText(note, answer.records.length ? "" : "The topic has no records.");
    table.hidden = !answer.records.length;
    announce(`${plural(answer.records.length, "record")} read`);
  };
  const button = element("button", { type: "button", class: "plain", onclick: load }, "Show the newest records");
  const table = element("table", { class: "records", hidden: true },
    element("thead", {}, element("tr", {}, ["Offset", "Key", "Value"].map((title) => element("th", { scope: "col" }, title)))), body);
  return element("section", { class: "panel list", "aria-label": "Newest records" }, element("div", { class: "tools" }, element("h2", {}, "Newest records"), button), note, table);
}

export function topicPage(parameters) {
  const name = parameters.get("name") ?? "";
  const problems = element("ul", { class: "reasons" });
  const tiles = new Tiles("Written", "Records", "Size", "Partitions", "Readers");
  const readers = element("tbody");
  const columnOf = (title, key, view = number) => ({ title, key, className: "number", view: (row) => view(row[key]), sort: (row) => row[key], largestFirst: true });
  const found = filteredTable({
    caption: "Partitions", word: "partition", filter: "Filter by partition or broker", empty: "The topic has no partitions.",
    order: (a, b) => a.partition - b.partition,
    matches: (row, text) => `${row.partition}` === text || `broker ${row.leader}`.includes(text),
    columns: [
      { title: "Partition", className: "main", value: (row) => [row.partition, row.problem], sort: (row) => row.partition, view: (row) => element("span", { class: "name" }, String(row.partition), row.problem ? element("span", { class: "reason", "data-level": 3, title: row.problem }, row.problem) : null) },
      { title: "Leader", key: "leader", className: "number", view: (row) => (row.leader == null ? "none" : String(row.leader)), sort: (row) => row.leader },
      { title: "In sync", className: "number", value: (row) => [row.in_sync, row.replicas], view: (row) => `${row.in_sync.length} of ${row.replicas.length}`, sort: (row) => row.in_sync.length - row.replicas.length },
      columnOf("Begin", "begin"), { ...columnOf("End", "end"), value: (row) => [row.end, row.since], view: (row) => [number(row.end), sinceNote(row)] }, columnOf("Size", "size", bytes),
    ],
  });
  return {
    title: name,
    parent: "/topics",
    query: { view: "topic", name },
    node: [
      trail("/topics", "Topics"), head(name), problems, tiles.node,
      element("section", { class: "panel list", "aria-label": "Readers" }, element("h2", {}, "Consumed by"),
        element("table", {}, element("thead", {}, element("tr", {}, element("th", { scope: "col" }, "Group"), element("th", { scope: "col", class: "number" }, "Lag"), element("th", { scope: "col", class: "wide" }, "Processed"))), readers)),
      recordsPanel(name),
      found.node,
    ],
    missing: `There is no topic ${name} in this cluster.`,
    table: found.table,
    filter: found.filter,
    update(top, rows) {
      if (top.reading === undefined) return;
      reasons(problems, top.reasons, top.level);
      tiles.set("Written", rate(top.rate), "records");
      tiles.set("Records", atLeast(compact(top.records), top.unread), "between beginning and end");
      tiles.set("Size", bytes(top.size), top.size == null ? "not reported" : "on the leaders");
      tiles.set("Partitions", number(top.partitions));
      tiles.set("Readers", number(top.readers), "groups");
      show(readers, top.reading, () => (top.reading.length ? top.reading.map(readerRow) : element("tr", {}, element("td", { colspan: 3, class: "empty" }, "No group has committed offsets for it."))));
      found.update(rows);
    },
  };
}

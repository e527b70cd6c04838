// All topics.

import { element } from "./dom.js";
import { atLeast, bytes, compact, number, rate } from "./format.js";
import { Tiles, brokerStrip, filteredTable, head, levelMark, topicLink } from "./parts.js";
import { compareValues } from "./table.js";

function nameCell(row) {
  return element("span", { class: "name" }, levelMark(row.level), element("a", { href: topicLink(row.name) }, row.name), row.internal ? element("span", { class: "badge" }, "internal") : null,
    row.reasons.length ? element("span", { class: "reason", "data-level": row.level, title: row.reasons[0] }, row.reasons[0]) : null);
}

export function topicsPage() {
  const brokers = brokerStrip();
  const tiles = new Tiles("Topics", "Partitions", "Written", "Size");
  let showsInternal = false;
  let latest = new Map();
  const toggle = element("button", { type: "button", class: "plain", "aria-pressed": "false", onclick: () => {
    showsInternal = !showsInternal;
    toggle.setAttribute("aria-pressed", String(showsInternal));
    update();
  } }, "Internal topics");
  const columnOf = (title, key, view, more = {}) => ({ title, key, className: "number", view: (row) => view(row[key]), sort: (row) => row[key], largestFirst: true, ...more });
  const found = filteredTable({
    caption: "Topics", word: "topic", filter: "Filter by name", empty: "There are no topics in this cluster yet.",
    order: (a, b) => b.level - a.level || compareValues(a.name, b.name), link: (row) => topicLink(row.name),
    matches: (row, text) => row.name.toLowerCase().includes(text),
    columns: [
      { title: "Topic", className: "main", value: (row) => [row.name, row.internal, row.level, row.reasons[0]], view: nameCell, sort: (row) => row.name },
      columnOf("Partitions", "partitions", number),
      columnOf("Written", "rate", rate, { className: "number strong" }),
      { ...columnOf("Records", "records", number), value: (row) => [row.records, row.unread], view: (row) => atLeast(number(row.records), row.unread) },
      columnOf("Size", "size", bytes),
      columnOf("Readers", "readers", number),
    ],
  }, toggle);
  const update = () => found.update(new Map([...latest].filter(([, row]) => showsInternal || !row.internal)));
  return {
    title: "Topics",
    query: { view: "topics" },
    node: [head("Topics"), tiles.node, brokers.node, found.node],
    table: found.table,
    filter: found.filter,
    update(top, rows) {
      latest = rows;
      tiles.set("Topics", number(top.topics));
      tiles.set("Partitions", compact(top.partitions));
      tiles.set("Written", rate(top.rate), "records");
      tiles.set("Size", bytes(top.size), top.size == null ? "not reported" : "on the leaders");
      brokers.update(top.nodes);
      update();
    },
  };
}

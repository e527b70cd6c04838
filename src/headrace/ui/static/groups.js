// The overview: all groups, those that need attention first.

import { element, setAttribute, setText } from "./dom.js";
import { makeLine, lagParts, trendText } from "./draw.js";
import { atLeast, compact, number, plural, span } from "./format.js";
import { Tiles, ageCell, brokerStrip, filteredTable, groupLink, head, kindBadge, lagText, levelMark, sinceNote, topicLink } from "./parts.js";
import { compareValues } from "./table.js";

export function byAttention(a, b) {
  return b.level - a.level || compareValues(b.seconds ?? -1, a.seconds ?? -1) || compareValues(b.lag ?? -1, a.lag ?? -1);
}

// The first topic that matches a filter, unless the name already shows why the row is there.
function matchedTopic(row, text) {
  const has = (each) => each.toLowerCase().includes(text);
  return !text || [row.name, row.kind, row.state].some(has) ? null : row.topics.find(has) ?? null;
}

function nameCell(row, text) {
  const topic = matchedTopic(row, text);
  const reason = row.reasons[0] ?? row.state;
  return element("span", { class: "name" }, levelMark(row.level), element("a", { href: groupLink(row) }, row.name), kindBadge(row.kind),
    topic == null ? null : element("a", { class: "badge matched", href: topicLink(topic) }, `topic ${topic}`),
    element("span", { class: "reason", "data-level": row.level, title: reason }, reason));
}

function historyCell(page) {
  return (cell, row) => {
    if (!cell.line) {
      cell.line = makeLine(20, "spark");
      cell.words = element("span", { class: "trend" });
      cell.replaceChildren(element("div", { class: "history" }, cell.line.node, cell.words));
    }
    cell.line.update(lagParts(row.history, page.at, row.lag));
    const text = trendText(row.trend);
    setText(cell.words, text);
    setAttribute(cell, "data-grows", Boolean(row.trend?.grows));
  };
}

export function groupsPage() {
  const page = { at: null };
  const brokers = brokerStrip();
  const tiles = new Tiles("Groups", "Need attention", "Records waiting", "Oldest record");
  const found = filteredTable({
    caption: "Groups", word: "group", filter: "Filter by name, topic, kind or state",
    empty: "There are no groups in this cluster yet.",
    order: byAttention, link: groupLink,
    matches: (row, text) => [row.name, row.kind, row.state, ...row.topics].some((each) => each.toLowerCase().includes(text)),
    columns: [
      { title: "Group", className: "main roomy", value: (row) => [row.name, row.kind, row.level, row.reasons[0], row.state, matchedTopic(row, found.table.filter)], view: (row) => nameCell(row, found.table.filter), sort: (row) => row.name },
      { title: "Members", key: "members", className: "number", value: (row) => [row.members, row.kind], view: (row) => (row.kind === "spark" ? "–" : number(row.members)), sort: (row) => row.members, largestFirst: true },
      { title: "Lag", key: "lag", className: "number strong", value: (row) => [row.lag, row.backlog, row.unread, row.since], view: (row) => [lagText(row), sinceNote(row), row.backlog ? element("small", {}, `${compact(row.backlog)} in the backlog`) : null], sort: (row) => row.lag, largestFirst: true },
      { title: "Oldest", className: "number", value: (row) => [row.lag, row.seconds], view: ageCell, sort: (row) => (row.lag ? row.seconds : null), largestFirst: true },
      { title: "Last hour", className: "wide", update: historyCell(page) },
    ],
  });
  return {
    title: "Groups",
    query: { view: "groups" },
    node: [head("Groups"), tiles.node, brokers.node, found.node],
    table: found.table,
    filter: found.filter,
    update(top, rows) {
      page.at = top.at;
      tiles.set("Groups", number(top.groups), top.topics == null ? "" : plural(top.topics, "topic"));
      tiles.set("Need attention", number(top.attention), top.attention ? "" : "everything is fine", top.attention ? 2 : 0);
      tiles.set("Records waiting", atLeast(compact(top.lag), top.unread), top.unread ? `${plural(top.unread, "partition")} unknown` : "in all groups", top.unread ? 2 : 0);
      tiles.set("Oldest record", top.lag ? span(top.seconds) : "–", "not processed yet");
      brokers.update(top.nodes);
      found.update(rows);
    },
  };
}

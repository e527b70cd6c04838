// One group: lag over time, rebalances, partitions with their lanes, members.

import { element, setAttribute, show } from "./dom.js";
import { logText, makeChart, makeLog, outlookTexts, rebalanceText } from "./draw.js";
import { NONE, atLeast, clock, compact, number, plural, rate, span } from "./format.js";
import { changeButtons } from "./changes.js";
import { Tiles, ageCell, filteredTable, head, kindBadge, reasons, sinceNote, topicLink, trail } from "./parts.js";
import { compareValues } from "./table.js";

const byPlace = (a, b) => compareValues(a.topic, b.topic) || a.partition - b.partition;

function partitionCell(row) {
  return element("span", { class: "name" }, element("a", { href: topicLink(row.topic) }, `${row.topic}-${row.partition}`),
    row.problem ? element("span", { class: "reason", "data-level": 3, title: row.problem }, row.problem) : null);
}

function ownerCell(row) {
  if (row.owner == null) return NONE;
  return [element("span", { class: "owner", title: row.owner }, row.owner), row.revoking ? element("small", { class: "revoking" }, "revoke pending") : null];
}

function lagCell(row) {
  // The rest is the live lane's.
  const notes = row.lanes.filter((lane) => lane.lane === "backlog").map((lane) => element("small", { class: "lane backlog" }, `backlog ${number(lane.lag)}`));
  if (row.lost) notes.push(element("small", { class: "lane lost" }, `lost ${number(row.lost)}`));
  return [number(row.lag), sinceNote(row), ...notes];
}

function logCell(page) {
  return (cell, row) => {
    if (!cell.log) {
      cell.log = makeLog();
      cell.replaceChildren(cell.log.node);
    }
    cell.log.update(row, page.isZoomed);
    setAttribute(cell, "title", logText(row));
  };
}

function columns(page, isShare) {
  const columnOf = (title, key, more = {}) => ({ title, key, className: "number", view: (row) => number(row[key]), sort: (row) => row[key], largestFirst: true, ...more });
  return [
    { title: "Partition", className: "main", value: (row) => [row.topic, row.partition, row.problem], view: partitionCell, sort: (row) => `${row.topic} ${row.partition}` },
    ...(isShare ? [] : [{ title: "Owner", className: "text", value: (row) => [row.owner, row.revoking], view: ownerCell, sort: (row) => row.owner }]),
    columnOf(isShare ? "Start" : "Committed", "committed"),
    columnOf("End", "end"),
    { ...columnOf("Lag", "lag"), className: "number strong", value: (row) => [row.lag, row.lost, row.since, row.lanes.map((lane) => [lane.lane, lane.lag])], view: lagCell },
    { title: "Oldest", className: "number", value: (row) => [row.lag, row.seconds], view: ageCell, sort: (row) => (row.lag ? row.seconds : null), largestFirst: true },
    ...(isShare ? [columnOf("Done out of order", "completed")] : []),
    { title: "Log", className: "wide", update: logCell(page) },
  ];
}

const legend = () => element("ul", { class: "legend", "aria-label": "Colours of the logs" },
  ["done", "live", "backlog", "lost"].map((name, at) => element("li", {}, element("i", { class: `swatch ${name}` }), ["processed", "not processed", "backlog lane", "lost"][at])));

function memberRow(it) {
  return element("tr", {}, element("td", {}, it.label, it.instance ? element("small", {}, `instance ${it.instance}`) : null),
    element("td", { class: "number" }, number(it.partitions), it.revoking ? element("small", {}, `${plural(it.revoking, "revoke")} pending`) : null));
}

function rebalanceRow(it) {
  return element("li", { "data-level": it.unowned ? 1 : 0 }, element("time", {}, clock(it.at)), " ", rebalanceText(it),
    it.until == null ? element("small", {}, " in progress") : it.until > it.at ? element("small", {}, ` took ${span(it.until - it.at)}`) : null);
}

export function groupPage(parameters) {
  const name = parameters.get("name") ?? "";
  const isCheckpoint = parameters.get("checkpoint") === "1";
  const page = { isZoomed: false };
  const badges = element("span", { class: "badges" });
  const changes = changeButtons(name);
  const problems = element("ul", { class: "reasons" });
  const tiles = new Tiles("Lag", "Oldest record", "Written", "Read", "Caught up in", "Backlog", "Lost", "Members");
  const chart = makeChart();
  const note = element("p", { class: "hint", hidden: true }, "Brokers do not report which records of a share group are locked, by whom, or how often they were delivered.");
  const members = element("tbody");
  const memberPanel = element("section", { class: "panel list", "aria-label": "Members" }, element("h2", {}, "Members"),
    element("table", {}, element("thead", {}, element("tr", {}, element("th", { scope: "col" }, "Member"), element("th", { scope: "col", class: "number" }, "Partitions"))), members));
  const events = element("ol", { class: "events" });
  const zoom = element("button", { type: "button", class: "plain", "aria-pressed": "false", onclick: () => {
    page.isZoomed = !page.isZoomed;
    zoom.setAttribute("aria-pressed", String(page.isZoomed));
    found?.table.arrange(false);
  } }, "Zoom to open ranges");
  const place = element("div");
  let found = null;
  let isShare = false;
  return {
    title: name,
    parent: "/groups",
    query: { view: "group", name, ...(isCheckpoint ? { checkpoint: "1" } : {}) },
    node: [
      trail("/groups", "Groups"), head(name, badges, changes.node), problems, tiles.node, chart.node,
      place, note,
      element("div", { class: "columns" }, memberPanel,
        element("section", { class: "panel list", "aria-label": "Rebalances" }, element("h2", {}, "Rebalances"), events)),
    ],
    missing: `There is no group ${name} in this cluster.`,
    get table() { return found?.table; },
    get filter() { return found?.filter; },
    update(top, rows) {
      if (top.kind === undefined) return;
      if (!found || isShare !== (top.kind === "share")) {
        isShare = top.kind === "share";
        found = filteredTable({
          caption: "Partitions", word: "partition", filter: "Filter by topic or owner", empty: "The group has no partitions.",
          order: byPlace, columns: columns(page, isShare),
          matches: (row, text) => `${row.topic}-${row.partition} ${row.owner ?? ""}`.toLowerCase().includes(text),
        }, legend(), zoom);
        place.replaceChildren(found.node);
      }
      show(badges, [top.kind, top.state, top.assignor], () => [
        kindBadge(top.kind), top.state ? element("span", { class: "badge state" }, top.state) : null,
        top.assignor ? element("span", { class: "badge" }, top.assignor) : null]);
      changes.update(top.changes && top.kind !== "spark", top.topics, top.members);
      reasons(problems, top.reasons, top.level);
      const trend = top.trend;
      tiles.set("Lag", atLeast(compact(top.lag), top.unread), top.since == null ? "records" : `partly as of ${clock(top.since)}`, top.level);
      tiles.set("Oldest record", top.lag ? span(top.seconds) : NONE, "not processed yet");
      tiles.set("Written", rate(trend?.written), "records");
      tiles.set("Read", rate(trend?.read), "records");
      tiles.set("Caught up in", ...outlookTexts(trend));
      tiles.set("Backlog", top.backlog == null ? null : compact(top.backlog), "records, consumed in parallel", 1);
      tiles.set("Lost", top.lost ? compact(top.lost) : null, "deleted before processing", 2);
      tiles.set("Members", top.kind === "spark" ? null : number(top.members), plural(top.partitions, "partition"));
      chart.update(top);
      found.update(rows);
      note.hidden = !isShare;
      memberPanel.hidden = top.kind === "spark";
      show(members, [top.list, top.members], () => (top.list.length ? top.list.map(memberRow) : element("tr", {}, element("td", { colspan: 2, class: "empty" }, top.members == null ? "Unknown." : "No members."))));
      show(events, top.rebalances, () => (top.rebalances.length ? [...top.rebalances].reverse().map(rebalanceRow) : element("li", { class: "empty" }, "None since this page was started.")));
    },
  };
}

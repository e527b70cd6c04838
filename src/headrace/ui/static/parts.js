// What several pages have in common: tiles, badges, filters, cells.

import { announce, element, setText, show } from "./dom.js";
import { NONE, atLeast, clock, number, plural, span } from "./format.js";
import { LiveTable } from "./table.js";

export const LEVELS = ["fine", "notice", "warning", "problem"];
const KINDS = { classic: "classic", consumer: "KIP-848", share: "share", streams: "streams", spark: "Spark" };

export const kindBadge = (kind) => element("span", { class: `badge ${kind}` }, KINDS[kind] ?? kind);

export const levelMark = (level) => element("i", { class: "dot", "data-level": level, title: LEVELS[level] });

export function groupLink(row) {
  const query = new URLSearchParams({ name: row.name });
  if (row.kind === "spark") query.set("checkpoint", "1");
  return `/group?${query}`;
}

export const topicLink = (name) => `/topic?${new URLSearchParams({ name })}`;

// Named values at the top of a page, updated in place.
export class Tiles {
  constructor(...titles) {
    this.node = element("dl", { class: "tiles" });
    this.tiles = new Map(titles.map((title) => {
      const value = element("dd"), note = element("dd", { class: "note" });
      const tile = element("div", { class: "panel" }, element("dt", {}, title), value, note);
      this.node.append(tile);
      return [title, { tile, value, note }];
    }));
  }

  set(title, text, note = "", level = 0) {
    const { tile, value, note: below } = this.tiles.get(title);
    tile.hidden = text == null;
    tile.dataset.level = level;
    setText(value, text ?? NONE);
    setText(below, note);
  }
}

// All brokers, those that are away first.
export function brokerStrip() {
  const list = element("ul", { class: "brokers", "aria-label": "Brokers" });
  return {
    node: list,
    update(nodes) {
      const order = [...(nodes ?? [])].sort((a, b) => (b.problem != null) - (a.problem != null) || a.id - b.id);
      show(list, order, () => order.map((it) => {
        const level = it.problem ? 3 : it.behind ? 1 : 0;
        const state = it.problem ? "away" : `leads ${plural(it.leads, "partition")}`;
        const notes = [it.problem, it.rack ? `rack ${it.rack}` : null, it.behind ? `${plural(it.behind, "replica")} not in sync` : null];
        return element("li", { "data-level": level, title: notes.filter(Boolean).join("; ") || null }, levelMark(level),
          element("b", {}, String(it.id)), it.address ? element("span", {}, it.address) : null, element("small", {}, it.behind ? `${state}, ${number(it.behind)} behind` : state));
      }));
    },
  };
}

// A table with a filter above it. `/` focuses the filter.
export function filteredTable(options, ...extra) {
  const table = new LiveTable(options);
  const count = element("span", { class: "count" });
  let timer;
  const filter = element("input", {
    type: "search", class: "filter", placeholder: options.filter, "aria-label": options.filter, autocomplete: "off", spellcheck: "false",
    oninput: () => {
      table.setFilter(filter.value);
      setText(count, shown());
      clearTimeout(timer);
      timer = setTimeout(() => announce(shown()), 700);
    },
  });
  const shown = () => (filter.value ? `${number(table.count)} of ${number(table.rows.size)}` : plural(table.rows.size, options.word));
  const node = element("section", { "aria-label": options.caption }, element("div", { class: "tools" }, filter, count, extra), table.node);
  const update = (rows) => {
    table.update(rows);
    setText(count, shown());
  };
  return { node, table, filter, update };
}

export const lagText = (row) => atLeast(number(row.lag), row.unread);

// When old values were read; nothing if they are current.
export const sinceNote = (row) => (row.since == null ? null : element("small", { class: "old" }, `as of ${clock(row.since)}`));

export function ageCell(row) {
  return row.lag === 0 ? NONE : span(row.seconds);
}

export function reasons(node, list, level) {
  show(node, [list, level], () => list.map((text) => element("li", { "data-level": level }, levelMark(level), text)));
}

export const head = (title, ...children) => element("div", { class: "title" }, element("h1", { tabindex: "-1" }, title), children);
export const trail = (address, text) => element("nav", { class: "trail", "aria-label": "Breadcrumb" }, element("a", { href: address }, text));

// A table whose rows are updated in place, by id.
//
// Rows are sorted again with each update, but not while somebody uses them: while the pointer moves over them or the
// focus is in them, they keep their places, and new rows are added at the end.

import { element, prefersCalm, setAttribute, setText, show } from "./dom.js";
import { plural } from "./format.js";

const HELD_FOR = 4000; // milliseconds after the pointer moved
const SHOWN_ROWS = 300;

const byText = new Intl.Collator("en", { numeric: true }).compare;
export function compareValues(a, b) {
  if (a == null || b == null) return (a == null) - (b == null);
  return typeof a === "string" ? byText(a, b) : a - b;
}

export class LiveTable {
  // columns: { key, title, className, value(row), view(row) -> nodes, sort(row), largestFirst }
  // order: compares two rows, as long as no column is chosen. link(row): the address that a click on the row opens.
  constructor({ caption, columns, order, link, empty, matches }) {
    Object.assign(this, { columns, order, link, matches, empty });
    this.rows = new Map();
    this.nodes = new Map();
    this.filter = "";
    this.sorted = null; // { column, descending }
    this.limit = SHOWN_ROWS;
    this.movedAt = -Infinity;
    this.body = element("tbody", { role: "rowgroup" });
    this.heads = columns.map((column) => this.headOf(column));
    this.table = element("table", { role: "table" },
      element("caption", { class: "hidden" }, caption),
      element("thead", { role: "rowgroup" }, element("tr", { role: "row" }, this.heads)),
      this.body);
    this.note = element("p", { class: "empty", hidden: true });
    this.more = element("button", { class: "plain more", type: "button", hidden: true, onclick: () => {
      this.limit = Infinity;
      this.arrange(true);
    } });
    this.held = element("p", { class: "held", hidden: true }, "The order is kept while you use the table.");
    this.node = element("div", { class: "table" }, this.table, this.note, this.more, this.held);
    this.body.addEventListener("pointermove", () => { this.movedAt = performance.now(); });
    this.body.addEventListener("pointerleave", () => { this.movedAt = -Infinity; this.arrangeSoon(); });
    this.body.addEventListener("focusout", () => this.arrangeSoon());
    this.body.addEventListener("click", (event) => this.open(event));
  }

  headOf(column) {
    const cell = element("th", { scope: "col", role: "columnheader", class: column.className });
    if (column.sort) cell.append(element("button", { type: "button", onclick: () => this.sortBy(column) }, column.title));
    else cell.append(column.title);
    return cell;
  }

  sortBy(column) {
    const first = Boolean(column.largestFirst);
    if (this.sorted?.column !== column) this.sorted = { column, descending: first };
    else if (this.sorted.descending === first) this.sorted.descending = !first;
    else this.sorted = null;
    this.heads.forEach((head, at) => {
      const isSorted = this.columns[at] === this.sorted?.column;
      setAttribute(head, "aria-sort", isSorted ? (this.sorted.descending ? "descending" : "ascending") : null);
    });
    this.arrange(true);
  }

  open(event) {
    const row = this.rows.get(event.target.closest("tr")?.dataset.id);
    if (!row || !this.link || event.target.closest("a, button") || String(getSelection())) return;
    event.target.closest("tr").querySelector("a")?.click();
  }

  update(rows) {
    this.rows = rows;
    for (const [id, node] of this.nodes) {
      if (!rows.has(id)) { node.remove(); this.nodes.delete(id); }
    }
    this.arrange(false);
  }

  setFilter(text) {
    this.filter = text.trim().toLowerCase();
    this.arrange(true);
  }

  get isHeld() {
    return performance.now() - this.movedAt < HELD_FOR || this.body.contains(document.activeElement);
  }

  arrangeSoon() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.arrange(false), 300);
  }

  wanted() {
    const found = [...this.rows.values()].filter((row) => !this.filter || this.matches(row, this.filter));
    const { column, descending } = this.sorted ?? {};
    const compare = column
      ? (a, b) => {
        const x = column.sort(a), y = column.sort(b);
        // What is unknown is last, in either direction.
        if (x == null || y == null) return compareValues(x, y);
        return descending ? compareValues(y, x) : compareValues(x, y);
      }
      : this.order;
    return found.sort((a, b) => compare(a, b) || byText(a.id, b.id));
  }

  // Renders all rows, and puts them into order unless they are held. `isAsked`: somebody asked for another order.
  arrange(isAsked) {
    const wanted = this.wanted();
    let order = wanted;
    const isHeld = !isAsked && this.isHeld;
    if (isHeld) {
      const places = new Map([...this.body.children].map((node, at) => [node.dataset.id, at]));
      order = [...wanted].sort((a, b) => (places.get(a.id) ?? Infinity) - (places.get(b.id) ?? Infinity) || 0);
    }
    this.held.hidden = !isHeld || order.every((row, at) => row === wanted[at]);
    const shown = order.slice(0, this.limit);
    const before = this.positions(shown, isAsked || isHeld);
    this.place(shown);
    this.glide(before);
    this.note.hidden = shown.length > 0;
    setText(this.note, this.rows.size && this.filter ? "Nothing matches the filter." : this.empty);
    this.more.hidden = order.length <= shown.length;
    setText(this.more, `Show ${plural(order.length - shown.length, "more row")}`);
    this.count = order.length;
  }

  place(shown) {
    const kept = new Set(shown.map((row) => row.id));
    for (const [id, node] of this.nodes) if (!kept.has(id)) { node.remove(); this.nodes.delete(id); }
    let next = this.body.firstChild;
    for (const row of shown) {
      const node = this.nodes.get(row.id) ?? this.make(row);
      this.fill(node, row);
      if (node === next) next = next.nextSibling;
      else this.body.insertBefore(node, next);
    }
  }

  make(row) {
    const cells = this.columns.map((column) => element("td", { role: "cell", class: column.className, "data-title": column.title }));
    const node = element("tr", { role: "row", "data-id": row.id }, cells);
    this.nodes.set(row.id, node);
    return node;
  }

  fill(node, row) {
    setAttribute(node, "data-level", row.level);
    this.columns.forEach((column, at) => {
      const cell = node.children[at];
      if (column.update) column.update(cell, row);
      else show(cell, column.value ? column.value(row) : row[column.key] ?? null, () => column.view(row));
    });
  }

  // Rows that change places glide there, if they are few and motion is welcome.
  positions(shown, isSudden) {
    if (isSudden || shown.length > 60 || prefersCalm()) return new Map();
    return new Map([...this.nodes].map(([id, node]) => [id, node.offsetTop]));
  }

  glide(before) {
    for (const [id, top] of before) {
      const node = this.nodes.get(id);
      const moved = node ? top - node.offsetTop : 0;
      if (moved) node.animate([{ transform: `translateY(${moved}px)` }, { transform: "none" }], { duration: 220, easing: "ease-out" });
    }
  }

  // Moves the focus by rows; true if there was a row to go to.
  move(steps) {
    const links = [...this.body.querySelectorAll("tr")].map((node) => node.querySelector("a")).filter(Boolean);
    if (!links.length) return false;
    const at = links.findIndex((link) => link.closest("tr").contains(document.activeElement));
    const next = at < 0 ? (steps > 0 ? 0 : links.length - 1) : Math.min(links.length - 1, Math.max(0, at + steps));
    links[next].focus();
    return true;
  }
}

// The page: which part of it is shown, by the address; the state of its data; keys; the theme.

import { announce, element, setAttribute, setText, show, visible } from "./dom.js";
import { clock, plural } from "./format.js";
import { activityPage } from "./activity.js";
import { groupPage } from "./group.js";
import { groupsPage } from "./groups.js";
import { Live } from "./live.js";
import { topicPage } from "./topic.js";
import { topicsPage } from "./topics.js";

const PAGES = { "/": groupsPage, "/groups": groupsPage, "/group": groupPage, "/topics": topicsPage, "/topic": topicPage, "/activity": activityPage };

const main = document.getElementById("main");
const banner = document.getElementById("banner");
const liveMark = document.getElementById("live");
const cluster = document.getElementById("cluster");
let page = null;
let data = null;
let head = {};
let state = "waiting";
const opened = new Map(); // by the address of a list: the row that was opened there
const here = () => (location.pathname === "/" ? "/groups" : location.pathname);

function open(isBack) {
  data?.close();
  const path = location.pathname;
  page = (PAGES[path] ?? groupsPage)(new URLSearchParams(location.search));
  document.title = visible(`${page.title} · Headrace`);
  main.replaceChildren(...[page.node].flat());
  main.classList.add("loading");
  for (const link of document.querySelectorAll("nav [data-page]")) {
    const isHere = (PAGES[path] ?? groupsPage) === PAGES[`/${link.dataset.page}`] || page.parent === `/${link.dataset.page}`;
    setAttribute(link, "aria-current", isHere ? "page" : null);
  }
  head = {};
  let isFirst = true;
  let isMissing = false;
  data = new Live(page.query, (top, rows) => {
    head = top;
    main.classList.remove("loading");
    if (isMissing) main.replaceChildren(...[page.node].flat()); // it was created since
    isMissing = false;
    page.update(top, rows);
    if (isFirst && isBack) focusOpened();
    isFirst = false;
    showStatus();
  }, (next) => {
    state = next;
    if (next === "missing" && !isMissing) {
      isMissing = true;
      showMissing();
    }
    showStatus();
  });
  if (!isBack) scrollTo(0, 0);
  announce(page.title);
}

function focusOpened() {
  const id = opened.get(here());
  [...main.querySelectorAll("tbody tr")].find((row) => row.dataset.id === id)?.querySelector("a")?.focus();
}

function showMissing() {
  main.classList.remove("loading");
  main.replaceChildren(element("p", { class: "empty" }, page.missing ?? "There is nothing here."), element("p", { class: "empty" }, element("a", { href: page.parent ?? "/groups" }, "Back")));
}

function awayText(away) {
  if (away.final) return `The cluster refuses this client: ${away.error}. Start the page again with other credentials.`;
  return `The cluster has been unreachable since ${clock(away.since)}: ${away.error}`;
}

// Only what has changed is announced: that the cluster or the server is unreachable, and that it responds again.
let spoken = "";
function showStatus() {
  const texts = { live: "Live", paused: "Paused", lost: "Disconnected", waiting: "Connecting", missing: "Live" };
  const isOver = state === "lost" && head.over;
  const away = isOver ? "" : state === "lost" ? "The server of this page does not respond. The page retries every few seconds." : head.away
    ? awayText(head.away) : "";
  const shown = isOver ? "paused" : head.away && state === "live" ? "away" : state;
  setAttribute(liveMark, "data-state", shown);
  setText(liveMark.lastElementChild, isOver ? "Ended" : shown === "away" ? "Cluster unreachable" : texts[state]);
  main.classList.toggle("stale", Boolean(away));
  const lines = away ? [away + (head.at ? ` The data is from ${clock(head.at)}.` : "")] : head.problems ?? [];
  show(banner, lines, () => lines.map((line) => element("p", {}, line)));
  banner.hidden = !lines.length;
  banner.dataset.level = away ? "3" : "2";
  const speech = away ? away : spoken ? "The data is live again." : "";
  if (Boolean(away) !== Boolean(spoken)) { announce(speech); spoken = away; }
  if (head.cluster != null) setText(cluster, `${head.cluster} · ${plural(head.brokers, "broker")} · ${clock(head.at)}`);
  const activity = document.getElementById("activity");
  if (head.activity) { activity.hidden = false; setText(activity, head.activity); }
}

export function navigate(address) {
  history.pushState(null, "", address);
  open(false);
  main.focus({ preventScroll: true });
}

document.addEventListener("click", (event) => {
  const link = event.target.closest("a[href]");
  if (!link || event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  const address = new URL(link.href);
  if (address.origin !== location.origin || !(address.pathname in PAGES) || address.hash) return;
  event.preventDefault();
  const row = link.closest("tr")?.dataset.id;
  if (row) opened.set(here(), row);
  navigate(address.pathname + address.search);
});
addEventListener("popstate", () => open(true));

const ROWS = { j: 1, ArrowDown: 1, k: -1, ArrowUp: -1, Home: -Infinity, End: Infinity };
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
  const isTyping = event.target.matches("input, textarea, select");
  const filter = page?.filter;
  if (event.key === "Escape") {
    if (isTyping && event.target.value) {
      event.target.value = "";
      event.target.dispatchEvent(new Event("input"));
    } else if (isTyping) event.target.blur();
    else if (page?.parent) leave(page.parent);
    else if (main.contains(document.activeElement)) document.activeElement.blur();
  } else if (event.key === "/" && !isTyping && filter) {
    event.preventDefault();
    filter.focus();
  } else if (event.key in ROWS && page?.table) {
    const isIn = page.table.body.contains(document.activeElement);
    const isDown = event.key === "ArrowDown" && event.target === filter;
    const isLetter = event.key === "j" || event.key === "k";
    if (isTyping ? !isDown : !isIn && !isLetter) return;
    if (page.table.move(ROWS[event.key])) event.preventDefault();
  }
});

// To the list, as it was left.
function leave(parent) {
  history.pushState(null, "", parent);
  open(true);
}

const NEXT = { auto: "dark", dark: "light", light: "auto" };
const theme = document.getElementById("theme");
function showTheme() {
  const now = document.documentElement.dataset.theme ?? "auto";
  setText(theme, `◐ ${{ auto: "Auto", dark: "Dark", light: "Light" }[now]}`);
  setAttribute(theme, "aria-label", `Theme: ${now}. Change to ${NEXT[now]}.`);
}
theme.addEventListener("click", () => {
  const next = NEXT[document.documentElement.dataset.theme ?? "auto"];
  if (next === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = next;
  try { localStorage.setItem("headrace-theme", next); } catch { /* private windows may have no storage */ }
  showTheme();
});
showTheme();
open(false);

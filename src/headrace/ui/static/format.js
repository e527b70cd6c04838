// Numbers, spans and times as text.

export const NONE = "–";
const GAP = "\u00a0"; // a number and its unit stay on one line

const whole = new Intl.NumberFormat("en-US");
const short = new Intl.NumberFormat("en-US", { notation: "compact", maximumFractionDigits: 1 });
const clockTime = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const day = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });

export const number = (value) => (value == null ? NONE : whole.format(value));
export const compact = (value) => (value == null ? NONE : value < 100000 ? whole.format(value) : short.format(value));
// A sum of which some parts are unknown, or old, is a lower bound.
export const atLeast = (text, unread) => (unread && text !== NONE ? `≥${GAP}${text}` : text);
export const plural = (count, word) => `${number(count)} ${word}${count === 1 ? "" : "s"}`;

const UNITS = [[86400, "d", 3600, "h"], [3600, "h", 60, "min"], [60, "min", 1, "s"]];

// In at most two units, as `headrace lag` shows it: 0.4 s, 12 s, 3 min 20 s, 5 h 2 min, 3 d 4 h.
export function span(seconds) {
  if (seconds == null) return NONE;
  if (seconds < 0.95) return `${Math.max(0, seconds).toFixed(1)}${GAP}s`;
  const value = Math.round(seconds);
  for (const [size, unit, smaller, name] of UNITS) {
    if (value >= size) {
      const rest = Math.floor((value % size) / smaller);
      return `${whole.format(Math.floor(value / size))}${GAP}${unit}${rest ? `${GAP}${rest}${GAP}${name}` : ""}`;
    }
  }
  return `${value}${GAP}s`;
}

export function bytes(value) {
  if (value == null) return NONE;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let size = value, at = 0;
  while (size >= 1024 && at < units.length - 1) { size /= 1024; at += 1; }
  return `${at === 0 || size >= 100 ? Math.round(size) : size.toFixed(1)}${GAP}${units[at]}`;
}

export const rate = (value) => (value == null ? NONE : `${value >= 10 ? compact(Math.round(value)) : +value.toFixed(1)}/s`);

export const clock = (seconds) => (seconds == null ? NONE : clockTime.format(seconds * 1000));

// A time with its day, unless it is today.
export function moment(milliseconds) {
  if (milliseconds == null || milliseconds < 0) return NONE;
  const at = new Date(milliseconds);
  if (Number.isNaN(at.getTime())) return String(milliseconds);
  const time = `${clockTime.format(at)}.${String(at.getMilliseconds()).padStart(3, "0")}`;
  return at.toDateString() === new Date().toDateString() ? time : `${day.format(at)} ${time}`;
}

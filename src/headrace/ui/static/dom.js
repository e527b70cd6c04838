// Elements, made and changed without markup: no text of a cluster is ever parsed as HTML.

// Characters that show nothing, or change the order in which others are shown: names and records come from anybody.
const HIDDEN = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;
const code = (character) => `<U+${character.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}>`;
export const visible = (text) => (typeof text === "string" ? text.replace(HIDDEN, code) : text);

// The attributes that people read. Others have to keep their values: addresses, ids.
const READ = ["title", "aria-label", "placeholder", "data-title"];

const SVG = "http://www.w3.org/2000/svg";

const shown = (children) => children.flat().filter((child) => child != null && child !== false).map(visible);

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else setAttribute(node, name, value);
  }
  node.append(...shown(children));
  return node;
}

export const element = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
export const drawing = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

export function setAttribute(node, name, given) {
  const value = READ.includes(name) ? visible(given) : given;
  if (value == null || value === false) node.removeAttribute(name);
  else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value === true ? "" : value);
}

export function setText(node, given) {
  const text = visible(given);
  if (node.textContent !== text) node.textContent = text;
}

// Replaces the children if `key` differs from the last call: what looks the same is not touched, and keeps its focus.
export function show(node, key, make) {
  const text = typeof key === "string" ? key : JSON.stringify(key);
  if (node.shownKey === text) return;
  node.shownKey = text;
  node.replaceChildren(...shown([make()]));
}

let announced = "";
export function announce(text) {
  if (text === announced) return;
  announced = text;
  setText(document.getElementById("announcer"), text);
}

export const prefersCalm = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

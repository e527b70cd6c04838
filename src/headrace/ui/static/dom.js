// Elements, made and changed without markup: no text of a cluster is ever parsed as HTML.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else setAttribute(node, name, value);
  }
  node.append(...children.flat().filter((child) => child != null && child !== false));
  return node;
}

export const element = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
export const drawing = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

export function setAttribute(node, name, value) {
  if (value == null || value === false) node.removeAttribute(name);
  else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value === true ? "" : value);
}

export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// Replaces the children if `key` differs from the last call: what looks the same is not touched, and keeps its focus.
export function show(node, key, make) {
  const text = typeof key === "string" ? key : JSON.stringify(key);
  if (node.shownKey === text) return;
  node.shownKey = text;
  node.replaceChildren(...[make()].flat().filter((child) => child != null && child !== false));
}

let announced = "";
export function announce(text) {
  if (text === announced) return;
  announced = text;
  document.getElementById("announcer").textContent = text;
}

export const prefersCalm = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

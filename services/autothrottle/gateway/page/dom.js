// Builds elements. Text is always a text node, never markup, so a name with markup in it is shown as text.

const SVG = "http://www.w3.org/2000/svg";

function add(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name in PROPERTIES) element[name] = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

const PROPERTIES = { value: 0, checked: 0, disabled: 0, hidden: 0, indeterminate: 0 };

/** An HTML element: `h("p", {class: "faint"}, "text", otherElement)`. */
export const h = (tag, attributes = {}, ...children) => add(document.createElement(tag), attributes, children);

/** An SVG element. */
export const s = (tag, attributes = {}, ...children) => add(document.createElementNS(SVG, tag), attributes, children);

/** The element with an id. */
export const byId = (id) => document.getElementById(id);

/** Sets a text if it differs, so that nothing is laid out or announced again. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

const shown = new WeakMap();

/** Replaces the children of an element if `value` differs from the last one; the control with the focus keeps it. */
export function render(element, value, build) {
  const key = JSON.stringify(value);
  if (shown.get(element) === key) return;
  shown.set(element, key);
  const controls = () => [...element.querySelectorAll("button, input")];
  const focused = controls().indexOf(document.activeElement);
  element.replaceChildren(...[build()].flat(Infinity).filter(Boolean));
  if (focused >= 0) controls()[focused]?.focus({ preventScroll: true });
}

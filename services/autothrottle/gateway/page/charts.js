// Draws SVG: the bar of a link side, its lines over the last hour, and the map of flows.

import { h, s } from "./dom.js";
import { MEGABYTE, clock, cut, megabytes, rate } from "./format.js";

const percent = (share) => `${(100 * Math.min(1, Math.max(0, share))).toFixed(2)}%`;

// --- One link side as a stacked bar ----------------------------------------------------------------------------------

/** Where a throttle that rises in steps goes: `rising to 34.0 MB/s by 03:12:45`; empty: it does not rise. */
export function rise(side) {
  if (!side.rise) return "";
  return `rising to ${rate(side.rise.target)}${side.rise.arrival ? ` by ${clock(side.rise.arrival)}` : ""}`;
}

/** What a bar shows, in words. */
export function barText(side) {
  const parts = [`clients ${rate(side.clients)}`, `replication ${rate(side.replication)}`];
  if (side.throttle !== null) parts.push([`throttle ${rate(side.throttle)}`, rise(side)].filter(Boolean).join(" "));
  if (side.headroom !== null) parts.push(`free ${rate(side.headroom)}`);
  return `${parts.join(", ")}, of ${rate(side.capacity)}`;
}

/** Clients, replication and what both leave free, as shares of the capacity; a mark shows the throttle above clients. */
export function bar(side) {
  const { capacity, throttle } = side;
  const [clients, replication] = [side.clients ?? 0, side.replication ?? 0];
  const root = s("svg", { class: "linkbar", width: "100%", height: 18, role: "img", "aria-label": barText(side) });
  root.append(s("rect", { class: "free", x: 0, y: 3, width: "100%", height: 12, rx: 2 }));
  if (!capacity) return root;
  const segment = (name, from, to) => {
    const width = Math.min(to, capacity) - Math.min(from, capacity);
    if (width > 0) root.append(s("rect", { class: name, x: percent(from / capacity), y: 3, width: percent(width / capacity), height: 12 }));
  };
  const copying = clients + replication;
  segment("clients", 0, clients);
  segment("replication", clients, copying);
  if (throttle !== null && throttle !== undefined) {
    const x = percent(Math.min(0.995, (clients + throttle) / capacity));
    root.append(s("rect", { class: "mark-edge", x, y: 0, width: 5, height: 18 }), s("rect", { class: "mark", x, y: 0, width: 3, height: 18 }));
  }
  return root;
}

/** The legend of bars and lines. */
export const legend = (...names) =>
  h("ul", { class: "legend" }, names.map((name) => h("li", {}, h("span", { class: `key ${name}`, "aria-hidden": true }), LEGEND[name])));

const LEGEND = {
  clients: "clients",
  replication: "replication",
  free: "headroom: free",
  mark: "throttle",
  throttle: "throttle",
  capacity: "capacity",
};

// --- One link side over the last hour --------------------------------------------------------------------------------

const LINES = ["capacity", "clients", "replication", "throttle"];
const HEIGHT = 170;
const LEAST_POINTS = 13;
const LEFT = 44;
const BOTTOM = 22;

/**
 * Lines of one role over time: {capacity: [], clients: [], replication: [], throttle: []}, one value each `seconds`.
 *
 * A cursor shows the values of one moment. It follows the pointer, and the arrow keys move it.
 */
export function lines(history, from, seconds, width, title) {
  const length = Math.max(...LINES.map((name) => history[name].length), 0);
  let first = 0;
  while (first < length - 1 && LINES.slice(1).every((name) => (history[name][first] ?? null) === null)) first += 1;
  first = Math.max(0, Math.min(first, length - LEAST_POINTS));
  const top = niceTop(Math.max(...LINES.flatMap((name) => history[name].slice(first).map((value) => value ?? 0)), 1));
  const start = Date.parse(from);
  const span = Math.max(1, length - 1 - first);
  const x = (index) => LEFT + ((index - first) / span) * (width - LEFT - 8);
  const y = (value) => 8 + (1 - value / top) * (HEIGHT - BOTTOM - 8);
  const time = (index) => clock(start + 1000 * seconds * index);
  const root = s("svg", { class: "lines", width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": `${title}: ${summary(history, first)}` });
  for (const share of [0, 0.5, 1]) {
    const at = y(share * top);
    root.append(s("line", { class: "grid", x1: LEFT, x2: width - 8, y1: at, y2: at }));
    root.append(s("text", { x: LEFT - 6, y: at + 4, "text-anchor": "end" }, axisNumber(share * top)));
  }
  const marks = width < 420 ? 2 : 4;
  for (let mark = 0; mark <= marks; mark += 1) {
    const anchor = mark === 0 ? "start" : mark === marks ? "end" : "middle";
    const index = first + Math.round((span * mark) / marks);
    root.append(s("text", { x: x(index), y: HEIGHT - 4, "text-anchor": anchor }, time(index).slice(-8, -3)));
  }
  for (const name of LINES) root.append(s("path", { class: `line ${name}`, d: path(history[name], first, x, y, name === "throttle") }));
  const cursor = s("line", { class: "cursor", y1: 8, y2: HEIGHT - BOTTOM, visibility: "hidden" });
  root.append(cursor);
  const values = h("p", { class: "values faint", "aria-live": "polite" }, summary(history, first));
  let at = length - 1;
  const show = (index) => {
    at = Math.min(length - 1, Math.max(first, index));
    const names = LINES.map((name) => `${name} ${megabytes(history[name][at] ?? null)}`);
    cursor.setAttribute("x1", x(at));
    cursor.setAttribute("x2", x(at));
    cursor.setAttribute("visibility", "visible");
    values.textContent = `${time(at)}: ${names.join(", ")} MB/s`;
  };
  const hide = () => {
    cursor.setAttribute("visibility", "hidden");
    values.textContent = summary(history, first);
  };
  const box = h("div", {
    class: "chart",
    tabindex: 0,
    role: "group",
    "aria-label": `${title}. Arrow keys show the values of one moment.`,
    onpointermove: (event) => show(first + Math.round(((event.offsetX - LEFT) / (width - LEFT - 8)) * span)),
    onpointerleave: hide,
    onblur: hide,
    onkeydown: (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -30, PageDown: 30 }[event.key];
      if (!step) return;
      event.preventDefault();
      show(at + step);
    },
  });
  box.append(root, values);
  return box;
}

function path(values, first, x, y, isStep) {
  let d = "";
  let last = null;
  for (let index = first; index < values.length; index += 1) {
    const value = values[index] ?? null;
    if (value !== null) {
      const point = `${x(index).toFixed(1)} ${y(value).toFixed(1)}`;
      d += last === null ? `M${point}h0.01` : isStep ? `H${x(index).toFixed(1)}V${y(value).toFixed(1)}` : `L${point}`;
    }
    last = value;
  }
  return d;
}

function summary(history, first) {
  const range = (name) => {
    const values = history[name].slice(first).filter((value) => value !== null);
    if (values.length === 0) return `${name} unknown`;
    const low = megabytes(Math.min(...values));
    const high = megabytes(Math.max(...values));
    return low === high ? `${name} ${low}` : `${name} ${low} to ${high}`;
  };
  return `${LINES.slice(1).map(range).join(", ")} MB/s`;
}

function niceTop(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10].find((step) => step * power >= value) * power;
}

const axisNumber = (value) => `${+(value / MEGABYTE).toPrecision(3)}`;

// --- The map of flows ------------------------------------------------------------------------------------------------

const MOST_NODES = 12;
const NODE = 34;

/**
 * Ribbons from leaders on the left to followers on the right, as wide as their rates.
 *
 * Beyond 12 brokers on a side, the slowest ones are drawn as one node.
 */
export function flowMap(flows, width, onPick) {
  const leaders = nodes(flows, "leader");
  const followers = nodes(flows, "follower");
  const height = NODE * Math.max(leaders.size, followers.size, 1) + 8;
  const root = s("svg", { class: "flowmap", width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": true });
  const place = (side) => [...side.values()].forEach((node, n) => (node.y = 4 + ((height - 8) * (n + 0.5)) / side.size));
  place(leaders);
  place(followers);
  const label = width < 480 ? 96 : 150;
  const ribbons = new Map();
  for (const flow of flows) {
    const from = leaders.get(flow.leader) ?? leaders.get("others");
    const to = followers.get(flow.follower) ?? followers.get("others");
    const key = `${from.name} ${to.name}`;
    const ribbon = ribbons.get(key) ?? { from, to, rate: 0 };
    ribbon.rate += flow.rate ?? 0;
    ribbons.set(key, ribbon);
  }
  const most = Math.max(...[...leaders.values(), ...followers.values()].map((node) => node.rate), 1);
  const thickness = (value) => (value / most) * (NODE - 10);
  const [left, right] = [label, width - label];
  const middle = (left + right) / 2;
  for (const ribbon of ribbons.values()) {
    const size = Math.max(1, thickness(ribbon.rate));
    const y1 = ribbon.from.y + offset(ribbon.from, size, thickness);
    const y2 = ribbon.to.y + offset(ribbon.to, size, thickness);
    const d = `M${left} ${y1}C${middle} ${y1} ${middle} ${y2} ${right} ${y2}`;
    const title = s("title", {}, `${ribbon.from.name} to ${ribbon.to.name}: ${rate(ribbon.rate)}`);
    root.append(s("path", { class: ribbon.rate > 0 ? "ribbon" : "ribbon still", d, "stroke-width": size }, title));
  }
  const draw = (node, x, anchor) => {
    const size = Math.max(6, thickness(node.rate));
    const isLeft = anchor === "end";
    root.append(s("rect", { class: "node", x: isLeft ? x : x - 5, y: node.y - size / 2, width: 5, height: size, rx: 1 }));
    const text = s("text", { x: isLeft ? x - 8 : x + 8, y: node.y + 5, "text-anchor": anchor }, s("tspan", { class: "id" }, cut(String(node.name), 12)));
    text.append(s("tspan", { class: "faint", dx: 6 }, width < 480 ? megabytes(node.rate) : rate(node.rate)));
    if (Number.isInteger(node.name)) text.addEventListener("pointerup", () => onPick(node.name));
    root.append(text);
  };
  for (const node of leaders.values()) draw(node, left, "end");
  for (const node of followers.values()) draw(node, right, "start");
  return root;
}

/** Broker -> node; the fastest ones, by id, and the others as one. */
function nodes(flows, role) {
  const rates = new Map();
  for (const flow of flows) rates.set(flow[role], (rates.get(flow[role]) ?? 0) + (flow.rate ?? 0));
  const fastest = [...rates].sort((a, b) => b[1] - a[1]);
  const single = fastest.length > MOST_NODES ? fastest.slice(0, MOST_NODES - 1) : fastest;
  const others = fastest.slice(single.length);
  const all = new Map(single.sort((a, b) => a[0] - b[0]).map(([name, total]) => [name, { name, rate: total, used: 0 }]));
  if (others.length) {
    const total = others.reduce((sum, [, value]) => sum + value, 0);
    all.set("others", { name: `${others.length} others`, rate: total, used: 0 });
  }
  return all;
}

/** Where the next ribbon of a node begins, from its middle; ribbons are stacked. */
function offset(node, size, thickness) {
  const at = -thickness(node.rate) / 2 + node.used + size / 2;
  node.used += size;
  return at;
}

// What happened: events, the audit and the scores of recoveries, in tabs.

import { get } from "./api.js";
import { h, render } from "./dom.js";
import { bytes, clock, duration, rate } from "./format.js";
import { Table } from "./table.js";

const TABS = [
  ["events", "Events"],
  ["audit", "Audit"],
  ["recoveries", "Recoveries"],
];

/** Builds the tabs; returns {showEvents, refresh}. */
export function past(body) {
  const tables = { events: eventTable(), audit: auditTable(), recoveries: recoveryTable() };
  const notes = Object.fromEntries(TABS.map(([name]) => [name, h("div", {})]));
  const panels = Object.fromEntries(
    TABS.map(([name, label]) => [name, h("div", { role: "tabpanel", id: `past-${name}`, "aria-labelledby": `tab-${name}`, hidden: true }, notes[name], tables[name].element)]),
  );
  const tabs = TABS.map(([name, label]) => h("button", { type: "button", role: "tab", id: `tab-${name}`, "aria-controls": `past-${name}`, onclick: () => choose(name) }, label));
  const list = h("div", { role: "tablist", "aria-label": "Past", class: "tabs", onkeydown: (event) => step(event) }, tabs);
  let selected = "events";

  function choose(name) {
    selected = name;
    tabs.forEach((tab, n) => {
      const isChosen = TABS[n][0] === name;
      tab.setAttribute("aria-selected", isChosen);
      tab.tabIndex = isChosen ? 0 : -1;
      panels[TABS[n][0]].hidden = !isChosen;
    });
    tables[name].draw();
    load(name);
  }

  function step(event) {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!move) return;
    const n = (TABS.findIndex(([name]) => name === selected) + move + TABS.length) % TABS.length;
    choose(TABS[n][0]);
    tabs[n].focus();
  }

  async function load(name) {
    if (name === "events") return;
    try {
      if (name === "audit") {
        const { records, warnings } = await get("/v1/auditRecords?limit=200");
        note(name, warnings);
        tables.audit.show(records);
      } else {
        const { recoveries, problem } = await get("/page/recoveries");
        note(name, problem ? [problem] : []);
        tables.recoveries.show(recoveries);
        tables.recoveries.note.hidden = Boolean(problem) || recoveries.length > 0;
      }
    } catch (refusal) {
      note(name, [`This cannot be read: ${refusal.message}`]);
    }
  }

  const note = (name, texts) => render(notes[name], texts, () => texts.map((text) => h("p", { class: "faint" }, text)));

  body.replaceChildren(list, ...Object.values(panels));
  choose("events");
  return { showEvents: (events) => tables.events.show(withoutTwins(events).map((event, n) => ({ ...event, n }))), refresh: () => load(selected) };
}

/** Each event once: what happens twice within a second has the same time and text. */
const withoutTwins = (events) => [...new Map(events.map((event) => [`${event.time} ${event.text}`, event])).values()];

const time = (value) => h("time", { datetime: value, title: value }, clock(value));

function eventTable() {
  return new Table({
    label: "events",
    noun: "event",
    columns: [
      { title: "Time", width: "168px", sort: ({ n }) => -n, cell: (row) => time(row.time), isHeader: true },
      { title: "What happened", width: "minmax(0, 1fr)", sort: (row) => row.text, cell: (row) => wide(row.text) },
    ],
    keyOf: (row) => `${row.time} ${row.text}`,
    textOf: (row) => row.text,
    order: { column: 0, isDescending: true },
    empty: "Nothing has happened yet.",
  });
}

const wide = (text) => h("span", { class: "clamp", title: text }, text);

const ACTIONS = {
  ACTION_SET: "set a rate",
  ACTION_REMOVE: "removed a rate",
  ACTION_PURGE: "the planner removed a rate",
  ACTION_PAUSE: "paused the planner",
  ACTION_RESUME: "resumed the planner",
  ACTION_START_CATCH_UP: "started a catch-up",
  ACTION_STOP_CATCH_UP: "stopped a catch-up",
  ACTION_SUBMIT: "submitted a plan",
  ACTION_CANCEL: "cancelled a reassignment",
  ACTION_REQUEST_CYCLE: "requested a cycle",
  ACTION_SET_REQUEST_QUOTA: "set a request quota",
  ACTION_REMOVE_REQUEST_QUOTA: "removed a request quota",
  ACTION_SET_QUOTA: "set client quotas",
  ACTION_REMOVE_QUOTA: "removed client quotas",
};

/** Who did something, in short: the login or the certificate's name if there is one, else the host. */
function callerName(who) {
  const client = who.includes(" through ") ? who.slice(0, who.lastIndexOf(" through ")) : who;
  if (client.includes(" at ")) return client.slice(0, client.lastIndexOf(" at "));
  if (client.startsWith("unix:")) return "local socket";
  return client.replace(/^ipv[46]:/, "").replace(/:\d+$/, "").replace(/^(%5B|\[)/, "").replace(/(%5D|\])$/, "");
}

function auditText(record) {
  const parts = [ACTIONS[record.action] ?? record.action];
  const isOverride = ["ACTION_SET", "ACTION_REMOVE", "ACTION_PURGE"].includes(record.action);
  if (record.brokerId !== undefined) parts.push(`of broker ${record.brokerId}`);
  else if (isOverride) parts.push("of all brokers");
  const value = (override) => (override ? rate(Number(override.rateBytesPerSecond)) : "none");
  if (isOverride) parts.push(`: ${value(record.before)} → ${value(record.after)}`);
  const details = [record.pause?.reason, record.reason, record.result].filter(Boolean);
  return `${parts.join(" ").replace(" :", ":")}${details.length ? ` (${details.join(", ")})` : ""}`;
}

function auditTable() {
  return new Table({
    label: "audit records",
    noun: "record",
    columns: [
      { title: "Time", width: "168px", sort: (row) => Number(row.number), cell: (row) => time(row.time), isHeader: true },
      { title: "Who", width: "minmax(120px, 220px)", sort: (row) => callerName(row.who), cell: (row) => h("span", { class: "clamp", title: row.who }, callerName(row.who)) },
      { title: "What", width: "minmax(0, 1fr)", sort: auditText, cell: (row) => wide(auditText(row)) },
    ],
    keyOf: (row) => row.number,
    textOf: (row) => `${row.who} ${auditText(row)}`,
    order: { column: 0, isDescending: true },
    empty: "No action is recorded.",
  });
}

function recoveryTable() {
  return new Table({
    label: "recoveries",
    noun: "recovery",
    columns: [
      { title: "Start", width: "168px", sort: (row) => row.start, cell: (row) => time(row.start), isHeader: true },
      { title: "Took", width: "110px", isNumber: true, sort: took, cell: (row) => (row.end ? duration(took(row)) : "unknown") },
      { title: "Copied", width: "100px", isNumber: true, sort: (row) => row.bytesCopied, cell: (row) => bytes(row.bytesCopied) },
      { title: "Brokers", width: "110px", isNumber: true, sort: (row) => brokerCount(row), cell: (row) => `${brokerCount(row)}` },
      { title: "Times the best", width: "130px", isNumber: true, sort: (row) => row.timesBest, cell: (row) => (row.timesBest === null ? "unknown" : row.timesBest.toFixed(2)) },
      { title: "Clients waited", width: "130px", isNumber: true, sort: (row) => row.deferral, cell: (row) => (row.deferral === null ? "unknown" : `${(100 * row.deferral).toFixed(3)} %`) },
      { title: "Time lost to", width: "minmax(140px, 1fr)", sort: (row) => row.lostTo, cell: (row) => wide(row.lostTo) },
    ],
    keyOf: (row) => `${row.start} ${row.end} ${row.brokers}`,
    textOf: (row) => `${row.start} ${row.lostTo} ${Array.isArray(row.brokers) ? row.brokers.join(" ") : row.brokers}`,
    order: { column: 0, isDescending: true },
    empty: "No recovery has a score yet. autothrottle score computes them; start the gateway with --scores DIR.",
  });
}

const took = (row) => (row.end ? (Date.parse(row.end) - Date.parse(row.start)) / 1000 : null);
const brokerCount = ({ brokers }) => (Array.isArray(brokers) ? brokers.length : brokers);

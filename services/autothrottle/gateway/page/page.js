// The page: shows the newest state that the event stream has brought, and opens panels and dialogs.

import { cancelTopic, decommission, limitClients, pause, removeOverride, resume, scope, setOverride, submitFile } from "./actions.js";
import { announcement, cycleText, facts, headline, problems, progress, title } from "./answer.js";
import { logIn, logOut, readSession } from "./api.js";
import { bar, flowMap, legend, rise } from "./charts.js";
import { ask } from "./dialogs.js";
import { byId, h, render, setText } from "./dom.js";
import { bytes, clock, count, duration, listed, megabytes, rate, whole, zone } from "./format.js";
import { acts, compare, hear, onStale, staleText, stateAge, stateTime } from "./news.js";
import { closePanel, openPanel, updatePanel } from "./panel.js";
import { past } from "./past.js";
import { openStream } from "./stream.js";
import { Table } from "./table.js";

const SESSION_RETRY_MS = 3000;
const LATE_SECONDS = 5;
const PAST_MS = 60_000;
const MOST_OVERRIDES = 20;

const state = { now: null, sides: [], flows: [], events: [], clusters: null };
let session = { name: "", role: "", login: false };
let status = "waiting";
let send = null;
let hasAlive = false;
let linkedBroker = location.hash.match(/^#broker-(\d{1,10})$/);
const changed = new Set();

const context = {
  state,
  canAct: () => session.role === "operator" || session.role === "service",
  refusalText: () => (session.login ? "Only an operator can act. Log in with an operator's token." : "Only an operator can act, and your credentials are a viewer's."),
};

// --- Text with brokers in it -----------------------------------------------------------------------------------------

/** A text whose brokers open their panels: `Broker 1006 [follower] has …`. */
function linked(text) {
  return text.split(/(\bbroker \d+)/i).map((part, n) => {
    if (n % 2 === 0) return part;
    const broker = Number(part.match(/\d+/)[0]);
    return h("button", { type: "button", class: "link", onclick: () => openPanel(broker, context) }, part);
  });
}

/** Shows such a text. Its buttons stay while only numbers change, so that a click never misses them. */
function showLinked(element, text) {
  const parts = linked(text);
  const isSame = parts.length === element.childNodes.length && parts.every((part, n) => typeof part === "string" || part.textContent === element.childNodes[n].textContent);
  if (!isSame) return element.replaceChildren(...parts.map((part) => (typeof part === "string" ? document.createTextNode(part) : part)));
  parts.forEach((part, n) => typeof part === "string" && setText(element.childNodes[n], part));
}

// --- Now -------------------------------------------------------------------------------------------------------------

function showNow() {
  const { now, flows } = state;
  if (!now) return;
  setText(byId("cluster"), now.cluster);
  showHeadline();
  const all = progress(now);
  const bar = byId("progress");
  bar.hidden = !all;
  if (all) {
    bar.setAttribute("aria-valuenow", all.percent);
    bar.setAttribute("aria-valuetext", `${all.percent} %, ${bytes(all.copied)} of ${bytes(all.total)}`);
    bar.firstElementChild.style.width = `${(100 * all.copied) / all.total}%`;
  }
  showProblems();
  render(byId("force"), [now.pause, now.overrides, now.catchUps, context.canAct()], force);
  setText(byId("announcement"), announcement(now, flows, status, staleText()));
  showTimes();
}

/** What moves. Without news it says so, and what moved at last comes below. */
function showHeadline() {
  const { now, flows } = state;
  const last = byId("last");
  last.hidden = !(staleText() && now?.at);
  if (!last.hidden) showLinked(last, `The page shows the state of ${clock(stateTime())}. It was: ${headline(now, flows)}.`);
  if (now || (staleText() && session.role)) showLinked(byId("headline"), staleText() || headline(now, flows));
}

/** What counts by the second. */
function showTimes() {
  const { now, flows } = state;
  if (!now) return;
  const values = facts(now, flows, Boolean(staleText()));
  const box = byId("facts");
  if (box.children.length !== values.length) {
    box.replaceChildren(...values.map(() => h("div", {}, h("dt", {}), h("dd", { class: "value" }), h("dd", { class: "faint" }))));
  }
  values.forEach(([label, value, detail], n) => {
    const [dt, dd, small] = box.children[n].children;
    setText(dt, label);
    if (label === "Limited by") showLinked(dd, value);
    else setText(dd, value);
    setText(small, detail);
    box.children[n].classList.toggle("long", label === "Limited by");
  });
  setText(byId("cycle"), cycleText(now));
  showLive();
}

function showLive() {
  const live = byId("live");
  const seconds = state.now?.at ? stateAge() : null;
  const isOld = seconds !== null && seconds > LATE_SECONDS;
  live.dataset.state = status === "open" && !isOld ? "open" : "waiting";
  const text = seconds === null ? (status === "open" ? "connected" : "connecting") : isOld || status !== "open" ? `data of ${duration(seconds)} ago` : "live";
  setText(live, text);
  live.title = `Times in ${zone}`;
}

function showProblems() {
  const list = problems(state.now, status);
  const isKnown = Boolean(state.now.at);
  render(byId("problems"), [list, isKnown, Boolean(staleText())], () =>
    list.length
      ? h("ul", { class: "problems" }, list.slice(0, 8).map(({ level, text }) => h("li", { class: level }, linked(text))), list.length > 8 && h("li", { class: "warn" }, `and ${list.length - 8} more: see the log of the planner.`))
      : isKnown && !staleText() && h("p", { class: "fine" }, "No problem found."),
  );
}

/** The pause and the overrides in force, with what ends them. */
function force() {
  const { now } = state;
  const isAllowed = context.canAct();
  const items = [];
  if (now.pause) {
    const { mode, reason, author, since } = now.pause;
    const throttles = /clear/i.test(mode) ? "throttles are removed" : "throttles keep their values";
    const by = [author && `by ${author}`, since && `at ${clock(since)}`].filter(Boolean).join(" ");
    items.push(h("li", {}, h("span", {}, h("b", {}, "Paused"), ` ${by}: ${throttles}.${reason ? ` Reason: ${reason}` : ""}`), isAllowed && acts(h("button", { type: "button", onclick: () => resume(state) }, "Resume …"))));
  }
  for (const override of now.overrides.slice(0, MOST_OVERRIDES)) {
    const end = override.expires ? `until ${clock(override.expires)}` : override.autoremove ? "until no reassignment is left" : "without an end";
    items.push(
      h("li", {}, h("span", {}, linked(`Set by an operator: ${scope(override.broker)} at `), h("b", {}, rate(override.rate)), ` ${end}.${override.effect && override.effect !== "acts now" ? ` ${override.effect[0].toUpperCase()}${override.effect.slice(1)}.` : ""}`), isAllowed && acts(h("button", { type: "button", "aria-label": `Remove the rate of ${scope(override.broker)}`, onclick: () => removeOverride(state, override) }, "Remove …"))),
    );
  }
  const more = now.overrides.length - MOST_OVERRIDES;
  if (more > 0) items.push(h("li", {}, h("span", {}, `${count(more, "more rate")} set by an operator: throttlectl get lists them.`)));
  for (const text of now.catchUps) items.push(h("li", {}, h("span", {}, linked(text))));
  return items.length ? h("ul", { class: "force" }, items) : null;
}

function showActions() {
  const isAllowed = context.canAct();
  const isPaused = Boolean(state.now?.pause);
  const act = (label, run) => h("button", { type: "button", disabled: !isAllowed || !state.now?.at, onclick: run }, label);
  render(byId("act"), [isAllowed, isPaused, Boolean(state.now?.at), session.role, session.login], () => [
    acts(act("Set a rate …", () => setOverride(state)), isPaused ? act("Resume …", () => resume(state)) : act("Pause …", () => pause(state)), act("Submit a plan …", submitFile), act("Decommission …", decommission), act("Limit clients …", limitClients)),
    isAllowed && h("p", { class: "faint waits" }, "These buttons wait for news. throttlectl works without the page."),
    !isAllowed && session.role && h("p", { class: "faint" }, context.refusalText()),
  ]);
}

// --- Tables and the map ----------------------------------------------------------------------------------------------

const number = (value) => h("span", {}, megabytes(value));
const panelButton = (broker) => h("button", { type: "button", class: "link", "aria-label": `Explain broker ${broker}`, onclick: () => openPanel(broker, context) }, String(broker));
const clamp = (text) => h("span", { class: "clamp", title: text }, text);
const moment = (time) => (time ? h("time", { datetime: time, title: time }, clock(time)) : "unknown");

const sideTable = new Table({
  label: "link sides",
  noun: "link side",
  columns: [
    { title: "Broker", width: "80px", sort: (side) => side.broker, cell: (side) => panelButton(side.broker), isFixed: true, isHeader: true },
    { title: "Direction", width: "96px", sort: (side) => side.role, cell: (side) => (side.role === "leader" ? "outbound" : "inbound") },
    { title: "Throttle", width: "92px", isNumber: true, sort: (side) => side.throttle, cell: (side) => h("b", {}, side.throttle === null ? "none" : megabytes(side.throttle)) },
    { title: "Link", width: "minmax(180px, 1fr)", cell: bar },
    { title: "Clients", width: "84px", isNumber: true, sort: (side) => side.clients, cell: (side) => number(side.clients) },
    { title: "Copies", width: "84px", isNumber: true, sort: (side) => side.replication, cell: (side) => number(side.replication) },
    { title: "Headroom", width: "104px", isNumber: true, sort: (side) => side.headroom, cell: (side) => number(side.headroom) },
    { title: "Why this throttle", width: "minmax(220px, 1.4fr)", sort: (side) => side.reason, cell: (side) => clamp([rise(side), side.reason].filter(Boolean).join(": ")) },
  ],
  keyOf: (side) => `${side.broker} ${side.role}`,
  textOf: (side) => `${side.broker} ${side.role} ${side.role === "leader" ? "outbound" : "inbound"} ${side.reason}`,
  order: { column: 0, isDescending: false },
  empty: "No broker takes part in a reassignment.",
  rowClass: (side) => (isLimit(side) ? "limit" : ""),
});

/** Whether the end of all reassignments depends on this link side: `Broker 1006 [follower] has …`. */
const isLimit = (side) => state.now?.limitedBy.toLowerCase().startsWith(`broker ${side.broker} [${side.role}]`);

const cancelButton = ({ topic }) => acts(h("button", { type: "button", class: "link", "aria-label": `Cancel moves of ${topic}`, onclick: () => cancelTopic(topic) }, "Cancel …"));

const topicTable = new Table({
  label: "topics",
  noun: "topic",
  columns: [
    { title: "Topic", width: "minmax(160px, 1.5fr)", sort: (topic) => topic.topic, cell: (topic) => clamp(topic.topic), isFixed: true, isHeader: true },
    { title: "Partitions", width: "110px", isNumber: true, sort: (topic) => topic.partitions, cell: (topic) => whole(topic.partitions) },
    { title: "Copied", width: "120px", isNumber: true, sort: (topic) => topic.bytesCopied, cell: (topic) => bytes(topic.bytesCopied) },
    { title: "Left", width: "120px", isNumber: true, sort: (topic) => topic.bytesLeft, cell: (topic) => bytes(topic.bytesLeft) },
    { title: "Done", width: "150px", isNumber: true, sort: (topic) => topic.eta && Date.parse(topic.eta), cell: (topic) => moment(topic.eta) },
    { title: "Cancel", width: "110px", cell: cancelButton, isFixed: true },
  ],
  keyOf: (topic) => topic.topic,
  textOf: (topic) => topic.topic,
  order: { column: 3, isDescending: true },
  empty: "No topic is being reassigned.",
});

const flowTable = new Table({
  label: "flows",
  noun: "flow",
  columns: [
    { title: "From", width: "76px", sort: (flow) => flow.leader, cell: (flow) => panelButton(flow.leader), isFixed: true, isHeader: true },
    { title: "To", width: "76px", sort: (flow) => flow.follower, cell: (flow) => panelButton(flow.follower), isFixed: true },
    { title: "Rate", width: "minmax(70px, 1fr)", isNumber: true, sort: (flow) => flow.rate, cell: (flow) => number(flow.rate) },
    { title: "Left", width: "minmax(80px, 1fr)", isNumber: true, sort: (flow) => flow.bytesLeft, cell: (flow) => bytes(flow.bytesLeft) },
    { title: "Partitions", width: "minmax(90px, 1fr)", isNumber: true, sort: (flow) => flow.partitions, cell: (flow) => whole(flow.partitions) },
  ],
  keyOf: (flow) => `${flow.leader} ${flow.follower}`,
  textOf: (flow) => `${flow.leader} ${flow.follower}`,
  order: { column: 2, isDescending: true },
  empty: "Nothing flows.",
});

const clusterTable = new Table({
  label: "clusters",
  noun: "cluster",
  columns: [
    { title: "Cluster", width: "minmax(110px, 1fr)", sort: (cluster) => cluster.name, cell: (cluster) => clamp(cluster.name), isFixed: true, isHeader: true },
    { title: "Leader", width: "minmax(140px, 1fr)", sort: (cluster) => cluster.leader ?? "", cell: (cluster) => clamp(cluster.leader || (isRead(cluster) ? "none" : "unknown")) },
    { title: "Moves", width: "minmax(160px, 1.5fr)", sort: (cluster) => cluster.moving, cell: (cluster) => clamp(cluster.moving || (isRead(cluster) ? "nothing" : "unknown")) },
    { title: "Left", width: "100px", isNumber: true, sort: (cluster) => cluster.bytesLeft, cell: (cluster) => (cluster.bytesLeft === null ? "" : bytes(cluster.bytesLeft)) },
    { title: "Done", width: "120px", isNumber: true, sort: (cluster) => cluster.eta && Date.parse(cluster.eta), cell: (cluster) => (cluster.eta ? moment(cluster.eta) : "") },
    { title: "Problems", width: "minmax(200px, 2fr)", sort: (cluster) => (cluster.problem ? -1000 : 0) - cluster.findings.length, cell: clusterProblem },
  ],
  keyOf: (cluster) => cluster.name,
  textOf: (cluster) => `${cluster.name} ${cluster.leader} ${cluster.moving} ${cluster.problem}`,
  order: { column: 0, isDescending: false },
  empty: "No cluster is listed.",
});

const isRead = (cluster) => !cluster.problem;

function clusterProblem({ problem, findings }) {
  if (problem) return h("span", { class: "clamp bad", title: problem }, problem);
  return findings.length ? h("span", { class: "clamp warn", title: findings.join("\n") }, listed(findings, "finding", 1)) : "none";
}

const map = h("div", { class: "map" });

function showMap() {
  if (map.clientWidth) render(map, [state.flows, map.clientWidth], () => state.flows.length && flowMap(state.flows, map.clientWidth, (broker) => openPanel(broker, context)));
  byId("flows").classList.toggle("nothing", state.flows.length === 0);
}

const pastView = past(byId("past").querySelector(".body"));

let audited = "";

/** Reads the audit again after a change that it records. */
function refreshAudit() {
  const { overrides, pause: current, topics } = state.now;
  const key = JSON.stringify([overrides, current, topics.length]);
  if (key !== audited) pastView.refresh();
  audited = key;
}

/** Name of an event -> what it draws, each in a task of its own. */
const SHOW = {
  now: [showNow, showActions, () => state.now.at && topicTable.show(state.now.topics), refreshAudit],
  sides: [() => sideTable.show(state.sides.map((side) => (isLimit(side) ? { ...side, isLimit: true } : side)))],
  flows: [showNow, showMap, () => flowTable.show(state.flows)],
  events: [() => pastView.showEvents(state.events)],
  clusters: [
    () => {
      byId("clusters").hidden = false;
      clusterTable.show(state.clusters);
    },
  ],
};

// --- Events ----------------------------------------------------------------------------------------------------------

const EMPTY_NOW = { cluster: "", at: null, leader: null, cycle: null, bytesLeft: null, eta: null, limitedBy: "", pause: null, problem: "" };

function receive(name, value, waited) {
  if (name === "alive") {
    hasAlive = true;
    hear(value, waited);
    return;
  }
  if (name === "now") {
    // During an upgrade, a gateway of an earlier version may answer: it sends no event `alive`.
    if (value.at && !hasAlive) hear({ time: value.at, age: 0 }, waited);
    state.now = { ...EMPTY_NOW, ...value, topics: value.topics ?? [], overrides: value.overrides ?? [], warnings: value.warnings ?? [], catchUps: value.catchUps ?? [] };
  } else if (name in SHOW) {
    state[name] = value[name];
  }
  if (name === "now") {
    document.title = title(state.now, Boolean(staleText())); // also of a hidden page
    openLinkedPanel();
  }
  if (changed.size === 0) requestAnimationFrame(() => show(setTimeout));
  changed.add(name);
}

/** Opens the panel that the address names, once: `/#broker-1006`. */
function openLinkedPanel() {
  if (linkedBroker) openPanel(Number(linkedBroker[1]), context);
  linkedBroker = null;
}

/**
 * Draws what has changed, one part per task, so that no task is long. A hidden page draws nothing until it is seen.
 *
 * `later` runs a function in a task of its own, or at once.
 */
function show(later) {
  const parts = [...new Set([...changed].flatMap((name) => SHOW[name])), updatePanel];
  changed.clear();
  const next = () => {
    parts.shift()();
    if (parts.length) later(next);
  };
  next();
}

// --- The session -----------------------------------------------------------------------------------------------------

function showSession() {
  document.body.classList.toggle("viewer", !context.canAct());
  const { name, role, login } = session;
  setText(byId("who"), name ? `${name} (${role})` : role && !login ? "no login" : role);
  byId("log-in").hidden = !login || context.canAct();
  byId("log-out").hidden = !session.canLogOut;
  showActions();
  if (state.now) showNow();
  updatePanel();
}

function useSession(value) {
  // A caller with a name has logged in, or has a certificate and may log in with a token instead.
  session = { ...value, canLogOut: Boolean(value.name && value.csrf && value.login) };
  showSession();
  if (session.role) {
    if (!state.now) {
      setText(byId("headline"), "Connecting");
      setText(byId("cycle"), "");
    }
    if (send) send("reopen");
    else send = openStream(receive, setStatus);
  } else if (!session.login) {
    setText(byId("headline"), "Give a client certificate to see the cluster");
  } else {
    setText(byId("headline"), "Log in to see the cluster");
    if (!document.querySelector("dialog.ask")) askToken();
  }
}

async function startSession() {
  try {
    useSession(await readSession());
  } catch (refusal) {
    setText(byId("headline"), "The gateway does not answer");
    setText(byId("cycle"), `${refusal.message} The page tries again by itself.`);
    setTimeout(startSession, SESSION_RETRY_MS);
  }
}

async function setStatus(value) {
  const wasOpen = status === "open";
  status = value;
  if (state.now) showProblems();
  showLive();
  if (value !== "refused" || !(wasOpen || session.role)) return;
  // Perhaps the session has ended; otherwise the hub tries again by itself.
  const current = await readSession().catch(() => null);
  if (current && !current.role) {
    closePanel();
    forgetData();
    useSession(current);
  }
}

function forgetData() {
  Object.assign(state, { now: null, sides: [], flows: [], events: [], clusters: null });
  location.reload();
}

function askToken() {
  ask({
    title: "Log in",
    needsNews: false,
    fields: [{ name: "token", label: "Token", kind: "password", hint: "From the tokens file of the gateway. The page does not store it; the session is in a cookie." }],
    effect: ({ token }) => (token ? { lines: [], verb: "Log in" } : { error: "" }),
    act: async ({ token }) => {
      const value = await logIn(token);
      useSession(value);
      return { text: `Logged in${value.name ? ` as ${value.name}` : ""} (${value.role}).` };
    },
  });
}

byId("log-in").addEventListener("click", askToken);
byId("log-out").addEventListener("click", async () => {
  await logOut().catch(() => null);
  if (send) send("forget");
  location.reload();
});

// --- Start -----------------------------------------------------------------------------------------------------------

byId("brokers").querySelector(".body").append(legend("clients", "replication", "free", "mark"), sideTable.element);
byId("topics").querySelector(".body").append(topicTable.element);
byId("flows").querySelector(".body").append(map, flowTable.element);
byId("clusters").querySelector(".body").append(clusterTable.element);
new ResizeObserver(showMap).observe(map);

/** Shows how time passes. A hidden page shows it in its title only. */
function tick() {
  compare();
  if (document.hidden) return;
  showHeadline();
  showTimes();
}

onStale((isStale) => {
  if (state.now) {
    document.title = title(state.now, isStale);
    showNow();
  }
  updatePanel();
  if (!isStale) pastView.refresh();
});
setInterval(tick, 1000);
setInterval(() => document.hidden || pastView.refresh(), PAST_MS); // what others have done meanwhile
document.addEventListener("visibilitychange", tick); // timers stand still in a page that sleeps

/** A print has the newest values, and the rows that are out of sight. */
function print(isPrinting) {
  if (isPrinting && changed.size) show((next) => next());
  if (isPrinting) setText(byId("printed"), state.now?.at ? `State of ${new Date(stateTime()).toISOString().replace("T", " ").slice(0, 19)} UTC` : "");
  for (const table of Table.all) table.print(isPrinting);
}
addEventListener("beforeprint", () => print(true));
addEventListener("afterprint", () => print(false));
startSession();

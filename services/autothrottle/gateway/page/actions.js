// What an operator can do: each action asks first, names its effect in numbers, and says how to undo it.

import { Refusal, get, post, put, remove } from "./api.js";
import { ask, reportDone } from "./dialogs.js";
import { h } from "./dom.js";
import { MEGABYTE, age, brokers, bytes, clock, count, currentTime, duration, rate, until, whole } from "./format.js";

const MOST_PARTITIONS = 10_000;

const overridePath = (broker) => (broker === null ? "/v1/override" : `/v1/brokers/${broker}/override`);
export const scope = (broker) => (broker === null ? "all brokers" : `broker ${broker}`);
const direction = (side) => (side.role === "leader" ? "outbound" : "inbound");
const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);
const idsIn = (text) => text.split(/[\s,]+/).filter(Boolean);

// --- Overrides -------------------------------------------------------------------------------------------------------

const ENDS = [
  ["", "no end"],
  ["1800", "in 30 minutes"],
  ["3600", "in 1 hour"],
  ["7200", "in 2 hours"],
  ["28800", "in 8 hours"],
];
const WHEN_DONE = ["done", "when no reassignment is left"];
const LIMITS = [
  ["", "limited by the capacity of each link"],
  ["beyond", "not limited"],
];

/** Asks for a rate and sets it. `broker`: the broker to begin with; null: all; undefined: the operator chooses. */
export function setOverride(state, broker, megabytes = "") {
  const brokerIds = [...new Set(state.sides.map((side) => side.broker))];
  const choice = broker === undefined && brokerIds.length === 1 ? brokerIds[0] : broker;
  ask({
    title: choice === undefined || choice === null ? "Set a rate" : `Set the rate of broker ${choice}`,
    fields: [
      { name: "rate", label: "Rate in each direction", kind: "number", unit: "MB/s", value: megabytes },
      { name: "broker", label: "Broker", value: choice ?? "", hint: "A broker's id. Empty: all brokers that take part." },
      { name: "end", label: "Ends", kind: "select", value: "", options: [...ENDS, WHEN_DONE] },
      { name: "limit", label: "Above the capacity", kind: "select", value: "", options: LIMITS },
    ],
    effect: (values) => overrideEffect(state, values),
    act: async (values, { wish }) => {
      const { overrides } = state.now;
      const previous = overrides.find((override) => override.broker === wish.broker);
      const { override, warnings } = await put(overridePath(wish.broker), { ...wish.body, ...(previous && { etag: previous.etag }) });
      return {
        text: `${capital(scope(wish.broker))}: set to ${rate(Number(override.rateBytesPerSecond))}${ending(values.end)}.${override.effect ? ` ${capital(override.effect)}.` : ""}`,
        warnings,
        undo: () => restore(wish.broker, previous, override.etag),
      };
    },
  });
}

function ending(end) {
  const option = [...ENDS, WHEN_DONE].find(([key]) => key === end);
  return end ? `, ends ${option[1]}` : "";
}

function overrideEffect(state, { rate: text, broker: id, end, limit }) {
  if (text === "") return { error: "" };
  const value = Number(text.replace(",", "."));
  if (!Number.isFinite(value)) return { error: `${text} is not a number. Give a rate in MB/s, for example 20.` };
  if (id !== "" && !/^\d{1,10}$/.test(id)) return { error: `${id} is not a broker's id. Give a number, or nothing for all brokers.` };
  if (id !== "" && end === "done") return { error: "Only a rate of all brokers can end with the reassignment. Choose a time, or leave the broker empty." };
  const broker = id === "" ? null : Number(id);
  const bytesPerSecond = Math.round(value * MEGABYTE);
  const isBeyond = limit === "beyond";
  const body = { rateBytesPerSecond: String(bytesPerSecond), autoremove: end === "done", beyondCapacity: isBeyond };
  if (end && end !== "done") body.expireTime = new Date(currentTime() + 1000 * Number(end)).toISOString();
  const own = new Set(state.now.overrides.map((override) => override.broker).filter((other) => other !== null));
  const sides = state.sides.filter((side) => (broker === null ? !own.has(side.broker) : side.broker === broker));
  return {
    lines: [...sidesChange(sides, bytesPerSecond, broker, isBeyond), ...timeChange(state, sides, bytesPerSecond, isBeyond)],
    warnings: overrideWarnings(sides, bytesPerSecond, broker === null ? own : new Set(), isBeyond),
    verb: `Set ${scope(broker)} to ${rate(bytesPerSecond)}`,
    wish: { broker, body },
  };
}

/** The rate that a side gets: at most the capacity of its link, unless the operator allows more. */
const limited = (side, value, isBeyond) => (isBeyond || side.capacity === null ? value : Math.min(value, side.capacity));

function sidesChange(sides, value, broker, isBeyond) {
  if (sides.length === 0) {
    return [broker === null ? "No broker takes part in a reassignment now. The rate applies when one does." : `Broker ${broker} takes part in no reassignment now. The rate applies when it does.`];
  }
  if (sides.length <= 4) {
    return sides.map((side) => `Broker ${side.broker} ${direction(side)}: throttle ${side.throttle === null ? "none" : rate(side.throttle)} → ${rate(limited(side, value, isBeyond))}.`);
  }
  const lower = sides.filter((side) => side.throttle === null || side.throttle > limited(side, value, isBeyond)).length;
  return [`${count(sides.length, "throttle")} change to ${rate(value)}: ${lower} fall, ${sides.length - lower} rise or stay.`];
}

/** How long the slowest of these sides needs for its bytes at the rate, beside the present estimate. */
function timeChange(state, sides, value, isBeyond) {
  let slowest = null;
  for (const side of sides) {
    const bytesLeft = state.flows.filter((flow) => flow[side.role] === side.broker).reduce((sum, flow) => sum + (flow.bytesLeft ?? 0), 0);
    if (bytesLeft > 0 && (!slowest || bytesLeft > slowest.bytesLeft)) slowest = { side, bytesLeft };
  }
  if (!slowest || value <= 0) return [];
  const throttle = limited(slowest.side, value, isBeyond);
  const seconds = slowest.bytesLeft / throttle;
  const verb = slowest.side.role === "leader" ? "send" : "receive";
  const lines = [`Broker ${slowest.side.broker} has ${bytes(slowest.bytesLeft)} to ${verb}. At ${rate(throttle)} that takes at least ${duration(seconds)}, until ${clock(currentTime() + 1000 * seconds)}.`];
  if (state.now.eta && until(state.now.eta) > 0) lines.push(`The present estimate for everything is ${duration(until(state.now.eta))}, until ${clock(state.now.eta)}.`);
  return lines;
}

function overrideWarnings(sides, value, own, isBeyond) {
  const warnings = [];
  const tight = sides.filter((side) => side.capacity !== null && side.clients !== null && value > side.capacity - side.clients && value <= side.capacity);
  if (tight.length) {
    const least = tight.reduce((a, b) => (a.capacity - a.clients < b.capacity - b.clients ? a : b));
    warnings.push(`Clients of broker ${least.broker} leave ${rate(Math.max(0, least.capacity - least.clients))} free ${direction(least)}. With more, clients may have to wait.`);
  }
  const over = sides.find((side) => side.capacity !== null && value > side.capacity);
  if (over) {
    const effect = isBeyond ? "A higher rate does not limit replication" : "Its throttle is that rate";
    warnings.push(`The link of broker ${over.broker} has ${rate(over.capacity)}. ${effect}, and clients may have to wait.`);
  }
  if (own.size) warnings.push(`The rates set for ${brokers([...own])} stay as they are.`);
  return warnings;
}

/** Brings an override back to what it was; the etag makes sure that nothing newer is lost. */
async function restore(broker, previous, etag) {
  if (!previous || (previous.expires && age(previous.expires) > 0)) {
    await remove(overridePath(broker), etag);
    return { text: `${capital(scope(broker))}: the rate is removed again. The policy decides in the next cycle.` };
  }
  await put(overridePath(broker), { ...bodyOf(previous), ...(etag && { etag }) });
  return { text: `${capital(scope(broker))}: set to ${rate(previous.rate)} again.` };
}

const bodyOf = (override) => ({
  rateBytesPerSecond: String(override.rate),
  autoremove: override.autoremove,
  beyondCapacity: Boolean(override.beyond),
  ...(override.expires && { expireTime: override.expires }),
});

/** Removes an override. */
export function removeOverride(state, override) {
  const sides = state.sides.filter((side) => override.broker === null || side.broker === override.broker);
  const free = sides.filter((side) => side.capacity !== null && side.clients !== null).slice(0, 4);
  ask({
    title: `Remove the rate of ${scope(override.broker)}`,
    effect: () => ({
      lines: [
        `${capital(scope(override.broker))}: ${rate(override.rate)} ends. The policy decides again in the next cycle, which starts at once.`,
        ...free.map((side) => `Broker ${side.broker} ${direction(side)}: clients leave ${rate(Math.max(0, side.capacity - side.clients))} of ${rate(side.capacity)} free.`),
      ],
      verb: "Remove the rate",
    }),
    act: async () => {
      await remove(overridePath(override.broker), override.etag);
      return {
        text: `${capital(scope(override.broker))}: the rate of ${rate(override.rate)} is removed.`,
        undo: () => restore(override.broker, override, ""),
      };
    },
  });
}

// --- Pause -----------------------------------------------------------------------------------------------------------

/** Pauses the planner. */
export function pause(state) {
  const throttled = state.sides.filter((side) => side.throttle !== null);
  ask({
    title: "Pause the planner",
    fields: [
      {
        name: "mode",
        label: "Throttles",
        kind: "select",
        value: "MODE_KEEP",
        options: [
          ["MODE_KEEP", "keep their values"],
          ["MODE_CLEAR", "are removed"],
        ],
      },
      { name: "reason", label: "Reason", hint: "For the audit and for those who see the pause. May be empty." },
    ],
    effect: ({ mode, reason }) => {
      const isKept = mode === "MODE_KEEP";
      const { bytesLeft, topics } = state.now;
      const remainder = bytesLeft ? `${bytes(bytesLeft)} are left to copy` : topics.length ? "How much is left to copy is unknown" : "Nothing is being copied now";
      const lines = isKept
        ? [`${count(throttled.length, "throttle")} keep their values, also when the load of clients changes. ${remainder}.`]
        : [`${count(throttled.length, "throttle")} are removed. ${remainder}${state.now.bytesLeft ? ", as fast as the links allow" : ""}.`];
      lines.push("No rate is decided and no plan is accepted until an operator resumes, also after a change of leader.");
      const warnings = !isKept && state.now.bytesLeft ? ["Replication can take whole links, and clients may have to wait."] : [];
      return { lines, warnings, verb: isKept ? "Pause and keep throttles" : "Pause and remove throttles", wish: { mode, reason } };
    },
    act: async (values, { wish }) => {
      await put("/v1/pause", wish);
      return {
        text: "The planner is paused.",
        undo: async () => {
          await remove("/v1/pause");
          return { text: "The planner is resumed again." };
        },
      };
    },
  });
}

/** Ends the pause. */
export function resume(state) {
  const current = state.now.pause;
  ask({
    title: "Resume the planner",
    effect: () => ({
      lines: [
        `A cycle starts at once and decides the rates of ${count(state.sides.length, "link side")} again.`,
        `The pause began ${current.since ? `${duration(age(current.since))} ago` : "at an unknown time"}.`,
      ],
      verb: "Resume",
    }),
    act: async () => {
      await remove("/v1/pause");
      return {
        text: "The planner is resumed.",
        undo: async () => {
          const mode = /clear/i.test(current.mode) ? "MODE_CLEAR" : "MODE_KEEP";
          await put("/v1/pause", { mode, reason: current.reason });
          return { text: "The planner is paused again." };
        },
      };
    },
  });
}

// --- Plans -----------------------------------------------------------------------------------------------------------

/** Submits a plan from a file, after a dry run. */
export function submitFile() {
  ask({
    title: "Submit a plan",
    isChecked: true,
    checkVerb: "Dry run",
    fields: [{ name: "file", label: "File", kind: "file", accept: ".json,application/json", hint: "In the format of kafka-reassign-partitions.sh. The dry run changes nothing." }],
    effect: async ({ file, choices }) => {
      if (!file) return { error: "Choose a file first." };
      return planEffect(partitionsIn(await file.text()), choices);
    },
    act: ({ choices }, { partitions }) => submit(partitions, choices),
  });
}

/** Partitions of a plan as text. */
function partitionsIn(text) {
  let plan;
  try {
    plan = JSON.parse(text);
  } catch (error) {
    throw new Refusal(0, `The file is not one JSON object: ${error.message}. Keep only the proposed assignment in it.`);
  }
  const rows = plan?.partitions;
  const isRow = (row) => typeof row?.topic === "string" && Number.isInteger(row.partition) && Array.isArray(row.replicas);
  if (!Array.isArray(rows) || rows.length === 0 || !rows.every(isRow)) {
    throw new Refusal(0, 'The file has no plan. It needs {"partitions": [{"topic": …, "partition": …, "replicas": […]}]}.');
  }
  return rows.map(({ topic, partition, replicas }) => ({ topic, partition, replicas }));
}

const parts = (partitions) =>
  Array.from({ length: Math.ceil(partitions.length / MOST_PARTITIONS) }, (_, n) => partitions.slice(n * MOST_PARTITIONS, (n + 1) * MOST_PARTITIONS));

const CHOICES = [
  ["allow_fewer_replicas", "Allow fewer replicas"],
  ["allow_fewer_racks", "Allow fewer racks"],
  ["allow_cordoned", "Allow cordoned brokers"],
  ["allow_full", "Allow brokers without room"],
  ["skip_refused", "Leave the refused partitions out"],
];

/** Fields of a request for the choices of an operator. */
const allowances = (choices) => Object.fromEntries(choices.map((name) => [name, true]));

/** Reason of a refusal, without the option of the command line, which is a choice here. */
const reasonOf = ({ reason, allowedBy }) => (allowedBy ? reason.slice(0, reason.lastIndexOf("; ")) : reason);

/** What a plan would copy and how long that takes, by a dry run and an estimate; or why it is refused, with choices. */
async function planEffect(partitions, selection, lines = [], warnings = [], details = []) {
  const allowed = { ...allowances(selection), skip_refused: true };
  let submitted = 0;
  const leftOut = [];
  for (const part of parts(partitions)) {
    const checked = await post("/v1/reassignments", { partitions: part, validateOnly: true, ...allowed });
    submitted += checked.submitted;
    leftOut.push(...checked.leftOut);
  }
  const isOffered = ([name]) => selection.includes(name) || leftOut.some(({ allowedBy }) => allowedBy === name) || (name === "skip_refused" && leftOut.length && submitted);
  const choices = CHOICES.filter(isOffered);
  const refused = leftOut.map((refusal) => `${capital(reasonOf(refusal))}.`);
  const all = [`${count(submitted, "partition")} of ${whole(partitions.length)} would be submitted.`, ...lines];
  let notes = [...refused, ...warnings];
  if (refused.length && !selection.includes("skip_refused")) return { lines, warnings: notes, details, choices, refused: "The plan is refused, and nothing is submitted." };
  try {
    const estimate = await post("/v1/reassignments/estimate", { partitions: partitions.slice(0, MOST_PARTITIONS), ...allowed });
    all.push(...estimateLines(estimate));
    notes = [...notes, ...estimate.warnings];
    if (partitions.length > MOST_PARTITIONS) notes.push(`The estimate counts the first ${whole(MOST_PARTITIONS)} partitions only.`);
  } catch (refusal) {
    if (refusal.status === 401 || refusal.status === 403) throw refusal;
    notes.push(`No estimate of bytes and time: ${refusal.message}`);
  }
  const shown = { lines: all, warnings: notes, details, choices, partitions, verb: `Submit ${count(submitted, "partition")}` };
  return submitted ? shown : { ...shown, verb: "", isClosed: true, lines: [...all, "Nothing is left to do."] };
}

function estimateLines(estimate) {
  const seconds = estimate.duration ? parseFloat(estimate.duration) : null;
  const bytesToCopy = Number(estimate.bytesToCopy);
  const least = estimate.unknownPartitions ? "At least " : "";
  const size = least && !bytesToCopy ? "An unknown size" : `${least}${bytes(bytesToCopy)}`;
  const lines = [`${size} to copy, in ${count(estimate.partitions, "partition")} (${(100 * estimate.moveRatio).toPrecision(2)} % of the cluster's).`];
  lines.push(seconds === null ? "How long it takes is unknown." : `About ${duration(seconds)} at the throttles of now: done at ${clock(currentTime() + 1000 * seconds)}.`);
  const slowest = estimate.linkSides.filter((side) => side.duration).sort((a, b) => parseFloat(b.duration) - parseFloat(a.duration))[0];
  if (slowest) {
    const isLeader = slowest.role === "REPLICA_ROLE_LEADER";
    const throttle = slowest.rateBytesPerSecond === undefined ? "" : ` at ${rate(Number(slowest.rateBytesPerSecond))}`;
    lines.push(`Slowest: broker ${slowest.brokerId} ${isLeader ? "sends" : "receives"} ${bytes(Number(slowest.bytesToCopy))}${throttle}.`);
  }
  return lines;
}

async function submit(partitions, choices) {
  let submitted = 0;
  const leftOut = new Set();
  const refused = [];
  const warnings = [];
  for (const part of parts(partitions)) {
    try {
      const result = await post("/v1/reassignments", { partitions: part, ...allowances(choices) });
      submitted += result.submitted;
      for (const row of result.leftOut.flatMap((refusal) => refusal.partitions)) leftOut.add(`${row.topic} ${row.partition}`);
      refused.push(...result.refused);
      warnings.push(...result.warnings);
    } catch (refusal) {
      if (submitted === 0) throw refusal;
      warnings.push(`Then a part of the plan failed: ${refusal.message} Submit the plan again for the others.`);
      break;
    }
  }
  if (leftOut.size) warnings.unshift(`${count(leftOut.size, "partition")} left out, as the dry run named them.`);
  if (refused.length) warnings.push(`Kafka refused ${count(refused.length, "partition")}, for example ${refused[0].topic} ${refused[0].partition}: ${refused[0].reason}`);
  return {
    text: `${count(submitted, "partition")} submitted, with throttles.`,
    warnings,
    undoVerb: "Cancel it",
    undo: () => void cancel("Cancel the reassignment", () => partitions.filter(({ topic, partition }) => !leftOut.has(`${topic} ${partition}`)).map(({ topic, partition }) => ({ topic, partition }))),
  };
}

/** Cancels the moves of a topic, whichever tool started them: all of them, or one that the operator chooses. */
export async function cancelTopic(topic) {
  let moves;
  try {
    moves = (await get("/v1/reassignments?withMoves=true")).moves.filter((move) => move.topic === topic);
  } catch (refusal) {
    return reportDone({ text: `The moves of ${topic} cannot be read: ${refusal.message}` });
  }
  if (moves.length === 0) return reportDone({ text: `Nothing of ${topic} is being reassigned any more.` });
  const partitionsOf = (selection) => selection.flatMap((move) => move.partitions.map((partition) => ({ topic, partition })));
  const all = ["", `all ${count(moves.length, "move")}`];
  const options = moves.map((move, n) => [String(n), `partitions ${numbers(move.partitions)}: ${ids(move.removingReplicas)} → ${ids(move.addingReplicas)}`]);
  cancel(`Cancel moves of ${topic}`, ({ move }) => partitionsOf(move ? [moves[Number(move)]] : moves), moves.length > 1 ? [{ name: "move", label: "Move", kind: "select", value: "", options: [all, ...options] }] : []);
}

/** Cancels the reassignment of partitions: shows first what each keeps, what is lost, and what Kafka cannot cancel safely. */
function cancel(title, partitionsOf, fields = []) {
  ask({
    title,
    fields,
    isChecked: true,
    closeVerb: "Let it move",
    effect: async (values) => {
      const partitions = partitionsOf(values);
      const effects = [];
      const refused = [];
      for (const part of parts(partitions)) {
        const checked = await post("/v1/reassignments/cancel/check", { partitions: part });
        effects.push(...checked.effects);
        refused.push(...checked.refused);
      }
      const warnings = notCancelled(refused, "would not be cancelled");
      if (effects.length === 0) return { lines: ["No partition can be cancelled."], warnings, isClosed: true };
      return { lines: cancelLines(effects), warnings, partitions, verb: `Cancel ${count(effects.length, "partition")}` };
    },
    act: async (values, { partitions }) => {
      let cancelled = 0;
      const refused = [];
      for (const part of parts(partitions)) {
        const result = await post("/v1/reassignments/cancel", { partitions: part });
        cancelled += result.cancelled;
        refused.push(...result.refused);
      }
      return { text: `${whole(cancelled)} of ${count(partitions.length, "partition")} cancelled.`, warnings: notCancelled(refused, "was not cancelled") };
    },
  });
}

const MOST_LINES = 6;

/** What partitions keep and lose: one line for those of a topic with the same replicas. */
function cancelLines(effects) {
  const rows = new Map();
  for (const { topic, partition, replicas, droppedReplicas } of effects) {
    const key = JSON.stringify([topic, replicas, droppedReplicas]);
    rows.set(key, [...(rows.get(key) ?? []), partition]);
  }
  const lines = [...rows].slice(0, MOST_LINES).map(([key, partitions]) => {
    const [topic, replicas, dropped] = JSON.parse(key);
    return `${topic} ${numbers(partitions)}: stays on ${ids(replicas)}${dropped.length ? `; the copy on ${ids(dropped)} is deleted` : ""}.`;
  });
  if (rows.size > MOST_LINES) lines.push(`And ${count(rows.size - MOST_LINES, "more row")}: throttlectl cancel --dry-run shows them.`);
  const sizes = effects.map(({ bytesLost }) => bytesLost).filter((size) => size !== undefined);
  const lost = sizes.length === effects.length ? bytes(sizes.reduce((sum, size) => sum + Number(size), 0)) : "An unknown number of bytes";
  return [...lines, `${lost} that the new replicas have copied ${sizes.length === effects.length ? "are" : "is"} lost.`];
}

const ids = (brokerIds) => (brokerIds.length ? brokerIds.join(", ") : "none");

/** Partition numbers with their runs: `0-3, 7`. */
function numbers(partitions) {
  const runs = [];
  for (const number of [...partitions].sort((a, b) => a - b)) {
    const last = runs.at(-1);
    if (last && number === last[1] + 1) last[1] = number;
    else runs.push([number, number]);
  }
  const texts = runs.map(([first, last]) => (first === last ? String(first) : `${first}-${last}`));
  return texts.length > MOST_LINES ? `${texts.slice(0, MOST_LINES).join(", ")} and more` : texts.join(", ");
}

const MOST_REASONS = 5;

/** A sentence for each partition that goes on, and the number of the others. */
function notCancelled(refused, outcome) {
  const lines = refused.slice(0, MOST_REASONS).map(({ topic, partition, reason }) => `${topic}-${partition} ${outcome}: ${reason}`);
  return refused.length > MOST_REASONS ? [...lines, `and ${count(refused.length - MOST_REASONS, "more partition")}`] : lines;
}

/** Empties brokers: the plan is computed and shown first. */
export function decommission() {
  ask({
    title: "Decommission brokers",
    isChecked: true,
    checkVerb: "Compute the plan",
    fields: [
      { name: "leaving", label: "Brokers to empty", placeholder: "1001, 1002", hint: "Their replicas move to the other brokers. The plan changes nothing." },
      { name: "topics", label: "Topics", value: ".*", hint: "Names, or regular expressions that match whole names." },
    ],
    effect: async ({ leaving, topics, choices }) => {
      const ids = idsIn(leaving);
      if (ids.length === 0 || !ids.every((id) => /^\d{1,10}$/.test(id))) return { error: "Give the ids of the brokers, for example 1001, 1002." };
      const { plan } = await post("/v1/placement/decommission", { scope: { topics: idsIn(topics) }, leaving: ids.map(Number) });
      return decommissionEffect(plan, ids, choices);
    },
    act: ({ choices }, { partitions }) => submit(partitions, choices),
  });
}

async function decommissionEffect(plan, ids, choices) {
  const steps = plan.steps.length ? plan.steps.map((step) => step.partitions) : [plan.partitions];
  if (plan.partitions.length === 0) return { lines: [`${capital(brokers(ids))}: no replica of these topics is left there.`], warnings: plan.warnings, isClosed: true };
  const lines = [`The plan moves replicas of ${count(plan.partitions.length, "partition")}, ${bytes(Number(plan.copiedBytes))}, and leaves ${whole(plan.unchangedPartitions)} as they are.`];
  if (steps.length > 1) lines.push(`It has ${steps.length} steps. This submits the first; compute the plan again after its end.`);
  return planEffect(steps[0], choices, lines, [...plan.warnings, ...plan.notes], [planRows(steps[0])]);
}

const planRows = (partitions) =>
  h(
    "details",
    {},
    h("summary", {}, "The plan"),
    h("ul", { class: "plan" }, partitions.slice(0, 200).map(({ topic, partition, replicas }) => h("li", {}, `${topic} ${partition}: ${replicas.join(", ")}`))),
    partitions.length > 200 && h("p", { class: "faint" }, `and ${count(partitions.length - 200, "more partition")}`),
  );

// --- Client quotas ---------------------------------------------------------------------------------------------------

/** Limits clients with Kafka's quotas until the recovery has ended. */
export function limitClients() {
  ask({
    title: "Limit clients until recovered",
    isChecked: true,
    checkVerb: "Dry run",
    fields: [
      {
        name: "kind",
        label: "Clients with this",
        kind: "select",
        value: "clientId",
        options: [
          ["clientId", "client id"],
          ["user", "user"],
        ],
      },
      { name: "name", label: "Name", placeholder: "backfill-1" },
      { name: "produce", label: "They write at most", kind: "number", unit: "MB/s", hint: "To each broker. Empty: as now." },
      { name: "consume", label: "They read at most", kind: "number", unit: "MB/s", hint: "From each broker. Empty: as now." },
    ],
    effect: async (values) => {
      const wish = quotaOf(values);
      const checked = await put("/v1/quota?validateOnly=true", wish);
      return {
        lines: [
          ...Object.keys(wish.values).map((key) => `${values.name} ${key === "producerByteRate" ? "writes" : "reads"}: ${quotaText(checked.before?.[key])} → ${quotaText(wish.values[key])} at each broker.`),
          "The limit ends when no reassignment and no catch-up is left. Then the old quotas come back.",
        ],
        warnings: checked.warnings,
        verb: `Limit ${values.name}`,
        wish,
      };
    },
    act: async (values, { wish }) => {
      const { warnings } = await put("/v1/quota", wish);
      const keys = Object.keys(wish.values).map((key) => (key === "producerByteRate" ? "producer_byte_rate" : "consumer_byte_rate"));
      return {
        text: `${values.name} is limited until recovered.`,
        warnings,
        undo: async () => {
          await post("/v1/quota/remove", { entity: wish.entity, keys });
          return { text: `${values.name}: the limit ends in the next cycle.` };
        },
      };
    },
  });
}

function quotaOf({ kind, name, produce, consume }) {
  if (!name) throw new Refusal(0, "Give the client id or the user.");
  const values = {};
  for (const [key, text] of [["producerByteRate", produce], ["consumerByteRate", consume]]) {
    if (text === "") continue;
    const value = Number(text.replace(",", "."));
    if (!Number.isFinite(value)) throw new Refusal(0, `${text} is not a number. Give a rate in MB/s.`);
    values[key] = String(Math.round(value * MEGABYTE));
  }
  if (Object.keys(values).length === 0) throw new Refusal(0, "Give at least one rate.");
  return { entity: { [kind]: name }, values, untilRecovered: true };
}

const quotaText = (value) => (value === undefined || Number(value) >= 2 ** 53 ? "not limited" : rate(Number(value)));

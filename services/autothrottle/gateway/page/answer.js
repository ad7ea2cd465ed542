// The answer to the first questions: what moves, when is it done, what limits it, is there a problem?

import { age, brokers, bytes, clock, count, duration, listed, rate, until } from "./format.js";

const unique = (values) => [...new Set(values)].sort((a, b) => a - b);

/** What moves, in one sentence. */
export function headline(now, flows) {
  if (!now) return "Loading";
  if (!now.at) return now.problem ? "Nothing is known yet" : "Loading";
  const names = now.topics.map(({ topic }) => topic);
  if (names.length === 0 && !now.bytesLeft) return "Nothing moves";
  const what = names.length ? listed(names, "topic") : bytes(now.bytesLeft);
  const verb = names.length === 1 || names.length === 0 ? "moves" : "move";
  // A destination that is in sync has no flow any more.
  const destinations = unique([...flows.map(({ follower }) => follower), ...now.topics.flatMap(({ destinations }) => destinations ?? [])]);
  return `${what} ${verb}${destinations.length ? ` to ${brokers(destinations)}` : ""}`;
}

/** Bytes copied and all bytes of the reassignments; null: unknown. */
export function progress(now) {
  if (!now || now.topics.length === 0 || now.bytesLeft === null) return null;
  const copied = now.topics.reduce((sum, topic) => sum + (topic.bytesCopied ?? 0), 0);
  const total = copied + now.bytesLeft;
  return total > 0 ? { copied, total, percent: Math.floor((100 * copied) / total) } : null;
}

/** [label, value, detail] of each fact; without news, the end is unknown. */
export function facts(now, flows, isStale) {
  const all = progress(now);
  if (now.topics.length === 0 && !now.bytesLeft) return [];
  const partitions = now.topics.reduce((sum, topic) => sum + topic.partitions, 0);
  const speed = flows.reduce((sum, flow) => sum + (flow.rate ?? 0), 0);
  const remainder = [now.topics.length > 0 && count(partitions, "partition"), all && `of ${bytes(all.total)}`];
  return [
    isStale && now.eta ? ["Done", "unknown", `expected at ${clock(now.eta)}, before the news ended`] : ["Done", whenDone(now), interval(now)],
    ["Left", bytes(now.bytesLeft), remainder.filter(Boolean).join(", ")],
    ["Copies", flows.some((flow) => flow.rate !== null) ? rate(speed) : "unknown", `${count(flows.length, "flow")} from leader to follower`],
    ["Limited by", now.limitedBy || "unknown", ""],
  ];
}

function whenDone(now) {
  if (!now.eta) return now.bytesLeft === 0 ? "now" : "unknown";
  const seconds = until(now.eta);
  return seconds <= 0 ? "any moment" : `in ${duration(seconds)}`;
}

function interval(now) {
  if (!now.eta && now.bytesLeft === 0) return "Kafka ends the reassignment";
  if (now.downBrokers?.length) return `not while ${brokers(now.downBrokers)} ${now.downBrokers.length > 1 ? "are" : "is"} down`;
  if (!now.eta) return now.bytesLeft === null ? "log sizes are not known" : "no rate is measured yet";
  const at = clock(now.eta);
  if (now.etaIsStatic) return `at ${at}, forecast from the throttles`;
  if (!now.etaLow || !now.etaHigh || clock(now.etaLow) === clock(now.etaHigh)) return `at ${at}`;
  return `at ${at} (${clock(now.etaLow)} to ${clock(now.etaHigh)})`;
}

/** What an operator should look at: [{level: "bad" | "warn", text}], the worst first. */
export function problems(now, status) {
  const all = [];
  const bad = (text) => text && all.push({ level: "bad", text });
  const warn = (text) => text && all.push({ level: "warn", text });
  if (status !== "open") bad("The page has no connection to the gateway and shows the last data that it received. It tries again by itself.");
  bad(now.problem);
  if (now.cycle?.error) bad(`The last cycle failed: ${now.cycle.error}`);
  if (now.at && !now.leader && !now.problem) bad("No planner leads: throttles keep their values. If this lasts longer than a minute, see whether a planner runs.");
  for (const text of now.cycle?.findings ?? []) warn(text);
  for (const text of now.warnings) warn(text);
  if (now.cycle?.shadow) warn("Shadow mode: the planner writes nothing to Kafka.");
  return all;
}

/** The last cycle and the leader, in a sentence each. */
export function cycleText(now) {
  const sentences = [];
  const { cycle, leader } = now;
  if (cycle) {
    const ago = duration(Math.max(0, age(cycle.end ?? cycle.start)));
    sentences.push(`Cycle ${cycle.number} ended ${ago} ago${cycle.sentence ? `: ${cycle.sentence}` : ""}`.replace(/\.?$/, "."));
  }
  if (leader) {
    const since = leader.since ? ` since ${clock(leader.since)}` : "";
    const host = leader.host && !leader.address.startsWith(`${leader.host}:`) ? ` on ${leader.host}` : "";
    sentences.push(`The planner at ${leader.address}${host} leads${since}.`);
  }
  return sentences.join(" ");
}

/** The browser's title: the share copied and the time left. It is visible while another tab is active. */
export function title(now, isStale) {
  const parts = [];
  const all = progress(now);
  if (isStale) return `! no news – autothrottle${now.cluster ? ` ${now.cluster}` : ""}`;
  if (now.problem || !now.leader) parts.push("! ");
  if (all) parts.push(`${all.percent} %`, now.eta && until(now.eta) > 0 ? `, ${duration(until(now.eta))} left` : "", " – ");
  return `${parts.join("")}autothrottle${now.cluster ? ` ${now.cluster}` : ""}`;
}

let announced = "";
let sentence = "";

/** What a screen reader says: only a start, an end, a pause or another number of problems, not every topic and number. */
export function announcement(now, flows, status, stale) {
  const all = problems(now, status);
  const moment = JSON.stringify([Boolean(stale), now.topics.length > 0, Boolean(now.pause), all.length, all[0]?.level]);
  if (moment !== announced) {
    announced = moment;
    const pause = now.pause ? "The planner is paused. " : "";
    sentence = `${all.length ? `${all[0].text} ` : ""}${pause}${stale || headline(now, flows)}.`;
  }
  return sentence;
}

// The age of the state that the page shows. On an old state, an operator cannot act.

import { h } from "./dom.js";
import { clock, duration, setClock } from "./format.js";
import { Stopwatch } from "./stopwatch.js";

const MOST_SECONDS = 10;

let watch = new Stopwatch();
let asOf = Date.now();
let isKnown = false;
let isOld = false;
let timer = setTimeout(compare, 1000 * MOST_SECONDS);
const listeners = new Set();

/**
 * Learns the age of the state from an event `alive`: {time, age}.
 *
 * `time`: the gateway's clock. `age`: seconds since the gateway read the state; null: it has not read it yet.
 * `waited`: milliseconds that the event waited for this page.
 */
export function hear({ time, age }, waited) {
  setClock(time, waited);
  isKnown = age !== null;
  watch = new Stopwatch(waited + 1000 * (age ?? 0));
  asOf = Date.parse(time) - 1000 * (age ?? 0);
  compare();
}

/** Seconds since the shown state was read; null: no state was read yet. */
export const stateAge = () => (isKnown ? watch.elapsed / 1000 : null);

/** What the headline says without news; empty: there are some. */
export const staleText = () => (isOld ? `No news since ${clock(asOf)} (${duration(watch.elapsed / 1000)} ago)` : "");

/** The time of the shown state, in milliseconds. */
export const stateTime = () => asOf;

/** Enables and disables what acts, if that has changed; called every second, too, since a timer waits while a page sleeps. */
export function compare() {
  const rest = 1000 * MOST_SECONDS - watch.elapsed;
  clearTimeout(timer);
  if (rest > 0) timer = setTimeout(compare, rest);
  const isOldNow = rest <= 0;
  if (isOldNow === isOld) return;
  isOld = isOldNow;
  document.body.classList.toggle("stale", isOld);
  for (const set of document.querySelectorAll("fieldset.acts")) set.disabled = isOld;
  for (const listener of [...listeners]) listener(isOld);
}

/** Buttons that change the cluster: without news they are disabled. */
export const acts = (...buttons) => h("fieldset", { class: "acts", role: "none", disabled: isOld }, buttons);

/** Calls `listener(isOld)` after each change; returns a function that ends this. */
export function onStale(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

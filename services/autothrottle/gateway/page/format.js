// Numbers, times and lists as text. Null and undefined are unknown.

const UNITS = ["B", "kB", "MB", "GB", "TB", "PB"];
export const MEGABYTE = 1e6;

const digits = (value) => (value >= 100 ? 0 : value >= 10 ? 1 : 2);

/** An amount of bytes: `3.40 GB`. */
export function bytes(amount) {
  if (amount === null || amount === undefined) return "unknown";
  let value = amount;
  let unit = 0;
  while (value >= 999.5 && unit < UNITS.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${unit === 0 ? Math.round(value) : value.toFixed(digits(value))} ${UNITS[unit]}`;
}

/** A rate in MB/s without its unit: `34.0`. */
export function megabytes(rate) {
  if (rate === null || rate === undefined) return "unknown";
  const value = rate / MEGABYTE;
  return value === 0 ? "0" : value.toFixed(digits(value));
}

/** A rate: `34.0 MB/s`. */
export const rate = (value) => {
  if (value === null || value === undefined) return "unknown";
  return value < 10_000 * MEGABYTE ? `${megabytes(value)} MB/s` : `${bytes(value)}/s`;
};

/** A duration in seconds: `4 min 10 s`. */
export function duration(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min${whole % 60 ? ` ${whole % 60} s` : ""}`;
  const minutes = Math.round(whole / 60);
  if (minutes < 48 * 60) return `${Math.floor(minutes / 60)} h${minutes % 60 ? ` ${minutes % 60} min` : ""}`;
  const hours = Math.round(whole / 3600);
  return `${Math.floor(hours / 24)} d${hours % 24 ? ` ${hours % 24} h` : ""}`;
}

let skew = 0;

/** Learns the server's clock, because ages count by it: it was `at` some milliseconds ago. */
export function setClock(at, waited) {
  const time = Date.parse(at);
  if (Number.isFinite(time)) skew = time + waited - Date.now();
}

/** The current time by the server's clock, in milliseconds. */
export const currentTime = () => Date.now() + skew;

/** Seconds since a time. */
export const age = (time) => (currentTime() - Date.parse(time)) / 1000;

/** Seconds until a time. */
export const until = (time) => -age(time);

const pad = (number) => String(number).padStart(2, "0");

/** A time of day in the browser's time zone, with the day if it is another one: `03:12:45`. */
export function clock(time) {
  const at = new Date(time);
  if (Number.isNaN(at.getTime())) return "unknown";
  const text = `${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}`;
  if (at.toDateString() === new Date(currentTime()).toDateString()) return text;
  return `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())} ${text}`;
}

/** The browser's time zone: `UTC`, `CET`. */
export const zone =
  new Intl.DateTimeFormat("en", { timeZoneName: "short" }).formatToParts(new Date()).find(({ type }) => type === "timeZoneName")
    ?.value ?? "local time";

/** A whole number with commas: `12,345`. */
export const whole = (number) => String(number).replace(/\B(?=(\d{3})+$)/g, ",");

/** `1 topic`, `3 topics`. */
export const count = (number, noun) => `${whole(number)} ${noun}${number === 1 ? "" : "s"}`;

/** `a, b and c`; many items are counted instead: `12 topics`. */
export function listed(items, noun, most = 4) {
  if (items.length > most) return count(items.length, noun);
  if (items.length < 2) return items.join("");
  return `${items.slice(0, -1).join(", ")} and ${items.at(-1)}`;
}

/** A text of at most `most` characters. */
export const cut = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

/** A list of brokers: `broker 1006`, `brokers 1004 and 1006`, `120 brokers`. */
export function brokers(ids) {
  if (ids.length > 4) return count(ids.length, "broker");
  return `broker${ids.length === 1 ? "" : "s"} ${listed(ids.map(String), "broker")}`;
}

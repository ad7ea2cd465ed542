// Holds the one event stream of a browser and hands its newest events to all pages.
//
// It opens a stream again by itself: EventSource gives up after any answer but 200, and a connection that died while the
// computer slept reports no error. The gateway sends `alive` every two seconds, and silence means a dead connection.

import { Stopwatch } from "./stopwatch.js";

const NAMES = ["now", "sides", "flows", "events", "clusters", "alive"];
const SILENCE_MS = 8_000;
const CHECK_MS = 2_000;
const FIRST_RETRY_MS = 500;
const LAST_RETRY_MS = 8_000;

export class Hub {
  constructor() {
    this.ports = new Set();
    this.latest = new Map();
    this.status = "waiting";
    this.retry = FIRST_RETRY_MS;
    this.source = null;
    setInterval(() => this.check(), CHECK_MS);
  }

  /** Adds a page: an object with `postMessage`. It gets the newest events at once. */
  add(port) {
    this.ports.add(port);
    port.postMessage({ status: this.status });
    for (const [name, { data, watch }] of this.latest) port.postMessage({ name, data, waited: watch.elapsed });
    if (!this.source) this.open();
    else this.check();
  }

  remove(port) {
    this.ports.delete(port);
    if (this.ports.size === 0) this.close("waiting");
  }

  /** A page asks for a new stream, after a login for example. */
  reopen() {
    this.close("waiting");
    this.retry = FIRST_RETRY_MS;
    this.open();
  }

  /** A page has logged out: no page shows data any more. */
  forget() {
    this.latest.clear();
    this.close("refused");
  }

  open() {
    clearTimeout(this.timer);
    if (this.ports.size === 0) return;
    this.heard = new Stopwatch();
    const source = new EventSource(new URL("../events", import.meta.url));
    this.source = source;
    source.onopen = () => {
      this.heard = new Stopwatch();
      this.retry = FIRST_RETRY_MS;
      this.tell("open");
    };
    for (const name of NAMES) {
      source.addEventListener(name, ({ data }) => {
        this.heard = new Stopwatch();
        this.latest.set(name, { data, watch: this.heard });
        for (const port of this.ports) port.postMessage({ name, data, waited: 0 });
      });
    }
    source.onerror = () => {
      if (source !== this.source) return;
      const wasRefused = source.readyState === EventSource.CLOSED;
      this.close(wasRefused ? "refused" : "waiting");
      this.later();
    };
  }

  later() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.open(), this.retry * (0.8 + 0.4 * Math.random()));
    this.retry = Math.min(2 * this.retry, LAST_RETRY_MS);
  }

  close(status) {
    clearTimeout(this.timer);
    if (this.source) this.source.close();
    this.source = null;
    this.tell(status);
  }

  /** Replaces a stream that is silent for too long. */
  check() {
    if (this.source && this.heard.elapsed > SILENCE_MS) {
      this.close("waiting");
      this.open();
    }
  }

  tell(status) {
    if (status === this.status) return;
    this.status = status;
    for (const port of this.ports) port.postMessage({ status });
  }
}

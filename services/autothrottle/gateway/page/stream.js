// The page's end of the event stream.

import { Hub } from "./hub.js";

/**
 * Calls `onEvent(name, object, waited)` for each event, which waited some milliseconds for this page, and `onStatus("open" | "waiting" | "refused")` for each change.
 *
 * Returns a function that sends `reopen` or `forget` to the hub. All tabs share the hub of a shared worker. A browser
 * without them (Chrome on Android) has a hub in each page, which holds a stream only while the page is visible.
 */
export function openStream(onEvent, onStatus) {
  const receive = ({ name, data, status, waited }) => {
    if (status) onStatus(status);
    if (!name) return;
    let value;
    try {
      value = JSON.parse(data);
    } catch {
      return; // a later event replaces it
    }
    onEvent(name, value, waited);
  };
  return typeof SharedWorker === "undefined" ? ownHub(receive) : sharedHub(receive);
}

function sharedHub(receive) {
  const worker = new SharedWorker(new URL("worker.js", import.meta.url), { name: "autothrottle", type: "module" });
  const send = (word) => worker.port.postMessage(word);
  worker.port.onmessage = ({ data }) => receive(data);
  addEventListener("pagehide", () => send("bye"));
  addEventListener("pageshow", ({ persisted }) => persisted && send("hello"));
  document.addEventListener("visibilitychange", () => document.hidden || send("check"));
  send("hello");
  return send;
}

function ownHub(receive) {
  const hub = new Hub();
  const page = { postMessage: receive };
  const follow = () => (document.hidden ? hub.remove(page) : hub.add(page));
  document.addEventListener("visibilitychange", follow);
  follow();
  return (word) => hub[word]();
}

// The shared worker: one hub for all tabs, because a browser opens only six connections to a host over HTTP/1.1.

import { Hub } from "./hub.js";

const hub = new Hub();

self.onconnect = ({ ports: [port] }) => {
  port.onmessage = ({ data }) => {
    if (data === "hello") hub.add(port);
    else if (data === "bye") hub.remove(port);
    else if (data === "check") hub.check();
    else if (data === "reopen") hub.reopen();
    else if (data === "forget") hub.forget();
  };
};

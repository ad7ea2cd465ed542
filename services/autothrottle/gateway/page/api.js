// Calls of the gateway. The session is in a cookie that no script can read; its CSRF token is in this module's memory.

const READ_MS = 10_000;
const ACT_MS = 120_000;

let csrf = "";

/** A refusal or failure of the gateway; `message` is its sentence. */
export class Refusal extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function call(method, path, body, headers = {}) {
  try {
    return await send(method, path, body, headers);
  } catch (refusal) {
    if (refusal.status !== 403 || method === "GET") throw refusal;
    // Another tab may have logged in, and its session has another CSRF token.
    const previous = csrf;
    await readSession();
    if (csrf === previous) throw refusal;
    return send(method, path, body, headers);
  }
}

async function send(method, path, body, headers) {
  let response;
  const sent = { ...headers };
  if (body !== undefined) sent["content-type"] = "application/json";
  if (method !== "GET") sent["x-csrf-token"] = csrf;
  let text;
  try {
    response = await fetch(new URL(`../..${path}`, import.meta.url), {
      method,
      headers: sent,
      body: body === undefined ? undefined : JSON.stringify(body),
      credentials: "same-origin",
      cache: "no-store",
      signal: AbortSignal.timeout(method === "GET" ? READ_MS : ACT_MS),
    });
    text = await response.text();
  } catch {
    const result = method === "GET" ? "" : " Nothing is known about the result. Check the state, then try again.";
    throw new Refusal(0, `The gateway does not answer.${result}`);
  }
  let value = {};
  try {
    value = text ? JSON.parse(text) : {};
  } catch {
    // a proxy's page: its status is enough
  }
  if (!response.ok) throw new Refusal(response.status, value.message || `The gateway answered with status ${response.status}.`);
  return value;
}

export const get = (path) => call("GET", path);
export const post = (path, body) => call("POST", path, body);
export const put = (path, body) => call("PUT", path, body);

/** Deletes a resource; with an etag only that version. */
export const remove = (path, etag) => call("DELETE", path, undefined, etag ? { "if-match": `"${etag}"` } : {});

const remember = (session) => {
  csrf = session.csrf || "";
  return session;
};

export const readSession = async () => remember(await get("/page/session"));
export const logIn = async (token) => remember(await post("/page/login", { token }));
export const logOut = async () => {
  await post("/page/logout");
  return readSession();
};

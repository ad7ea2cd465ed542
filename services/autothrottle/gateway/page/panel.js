// The panel of one broker: why its throttles have their rates, what to do, and its last hour.

import { get } from "./api.js";
import { removeOverride, setOverride } from "./actions.js";
import { bar, barText, legend, lines } from "./charts.js";
import { byId, h, render, setText } from "./dom.js";
import { clock, rate } from "./format.js";
import { acts, staleText, stateTime } from "./news.js";

const HISTORY_MS = 10_000;
const NAMES = { follower: "Inbound (follower)", leader: "Outbound (leader)" };

let open = null;

/** Opens the panel of a broker. `context`: {state, canAct(), refusalText()}. */
export function openPanel(broker, context) {
  closePanel();
  const title = h("h2", { id: "panel-title" });
  const old = h("p", { class: "old" });
  const links = h("div", { class: "panel-sides" });
  const why = h("div", { class: "why" }, h("p", { class: "faint" }, "Asking …"));
  const actions = h("div", { class: "panel-actions" });
  const charts = h("div", { class: "panel-charts" });
  const dialog = h(
    "dialog",
    { class: "panel", "aria-labelledby": "panel-title" },
    h("div", { class: "panel-head" }, title, h("button", { type: "button", class: "quiet", "aria-label": "Close", onclick: () => dialog.close() }, "×")),
    old,
    links,
    h("h3", {}, "Why these rates"),
    why,
    h("h3", {}, "Change it"),
    actions,
    h("h3", {}, "The last hour, MB/s"),
    charts,
  );
  const returnTo = document.activeElement;
  open = { broker, context, dialog, title, old, links, why, actions, charts, cycle: undefined, timer: 0 };
  dialog.addEventListener("close", () => {
    if (dialog.contains(byId("done"))) document.body.append(byId("done"));
    dialog.remove();
    if (open?.dialog === dialog) {
      clearInterval(open.timer);
      open = null;
    }
    if (location.hash === `#broker-${broker}`) history.replaceState(null, "", location.pathname);
    if (returnTo?.isConnected) returnTo.focus();
  });
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  document.body.append(dialog);
  history.replaceState(null, "", `#broker-${broker}`);
  updatePanel();
  drawHistory(open);
  open.timer = setInterval(() => open?.dialog === dialog && !document.hidden && drawHistory(open), HISTORY_MS);
  dialog.showModal();
}

export function closePanel() {
  open?.dialog.close();
}

/** Shows the newest state in the open panel. */
export function updatePanel() {
  if (!open) return;
  const { broker, context, title, old, links } = open;
  setText(old, staleText() && `No news: this is the state of ${clock(stateTime())}.`);
  const { state } = context;
  const sides = state.sides.filter((side) => side.broker === broker).sort((a, b) => (a.role < b.role ? -1 : 1));
  const rates = sides.filter((side) => side.throttle !== null).map((side) => `${rate(side.throttle)} ${side.role === "leader" ? "out" : "in"}`);
  setText(title, `Broker ${broker}${rates.length ? `: ${rates.join(", ")}` : ""}`);
  render(links, sides, () =>
    sides.length
      ? [sides.map((side) => h("div", { class: "panel-side" }, h("p", { class: "label" }, NAMES[side.role]), bar(side), h("p", { class: "faint" }, barText(side)))), legend("clients", "replication", "free", "mark")]
      : h("p", { class: "faint" }, "This broker takes part in no reassignment."),
  );
  const override = state.now.overrides.find((other) => other.broker === broker);
  const isAllowed = context.canAct();
  render(open.actions, [override, isAllowed], () => actionRow(broker, override, isAllowed, context));
  const cycle = `${state.now.cycle?.term}/${state.now.cycle?.number}/${override?.etag}`;
  if (cycle !== open.cycle) {
    open.cycle = cycle;
    explain(open);
  }
}

function actionRow(broker, override, isAllowed, context) {
  if (!isAllowed) return h("p", { class: "faint" }, context.refusalText());
  const input = h("input", { type: "text", inputmode: "decimal", "aria-label": `New rate of broker ${broker} in MB/s`, autocomplete: "off" });
  const form = h("form", { class: "inline" }, h("span", { class: "input" }, input, h("span", { class: "unit" }, "MB/s")), acts(h("button", { type: "submit" }, "Set this rate …")));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    setOverride(context.state, broker, input.value.trim());
  });
  const current = override && acts(h("button", { type: "button", onclick: () => removeOverride(context.state, override) }, `Remove the set rate of ${rate(override.rate)} …`));
  return [form, current];
}

async function explain(panel) {
  let sentences;
  try {
    sentences = (await get(`/page/explain/${panel.broker}`)).lines;
  } catch (refusal) {
    sentences = [`The explanation cannot be read: ${refusal.message}`];
    panel.cycle = undefined; // the next state asks again
  }
  if (open !== panel) return;
  render(panel.why, sentences, () => sentences.map((line) => h("p", {}, line)));
}

async function drawHistory(panel) {
  let history;
  try {
    history = await get(`/page/history/${panel.broker}`);
  } catch (refusal) {
    if (open === panel) render(panel.charts, refusal.message, () => h("p", { class: "faint" }, `The history cannot be read: ${refusal.message}`));
    return;
  }
  if (open !== panel || panel.charts.contains(document.activeElement) || panel.charts.matches(":hover")) return;
  const width = Math.max(260, panel.charts.clientWidth || 480);
  const roles = ["follower", "leader"].filter((role) => history[role]?.throttle?.some((value) => value !== null) || history[role]?.replication?.some((value) => value));
  render(panel.charts, [history, width], () =>
    roles.length
      ? [roles.map((role) => [h("h4", {}, NAMES[role]), lines(history[role], history.from, history.seconds, width, `Broker ${panel.broker}, ${NAMES[role]}`)]), legend("capacity", "clients", "replication", "throttle")]
      : h("p", { class: "faint" }, `Nothing is known since ${clock(history.from)}: the gateway collects it while this broker takes part in a reassignment.`),
  );
}

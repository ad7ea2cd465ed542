// Dialogs that name the effect of an action before it happens, and the list of actions that this page has done.

import { byId, h, setText } from "./dom.js";
import { acts, onStale, staleText } from "./news.js";

/**
 * Asks for values, shows their effect, and acts on confirmation.
 *
 * @param title of the dialog
 * @param fields [{name, label, kind, value, options, unit, hint}]; kind: text, number, select, password, file
 * @param effect (values) => {lines, warnings, verb, error, refused, choices, ...} or a promise of it. `verb` labels the
 *   button. `refused` says why there is nothing to confirm. `choices` are [name, label] of check boxes that change the
 *   effect; the names of those that are checked are in `values.choices`.
 * @param closeVerb label of the button that closes the dialog without an action
 * @param isChecked the effect comes from the gateway, so that a button asks for it
 * @param needsNews without news, the action cannot be confirmed, and with the next news its effect is computed again
 * @param act (values, effect) => promise of {text, undo}: the sentence for the list, and what undoes the action
 */
export function ask({
  title,
  fields = [],
  effect,
  isChecked = false,
  needsNews = true,
  act,
  checkVerb = "Show the effect",
  closeVerb = "Cancel",
}) {
  const error = h("p", { class: "error", role: "alert" });
  const effects = h("div", { class: "effect", "aria-live": "polite" });
  const old = h("p", { class: "old", role: "status" });
  const confirm = h("button", { type: "submit", class: "primary" });
  const inputs = new Map(fields.map((field) => [field.name, control(field)]));
  const form = h(
    "form",
    {},
    h("h2", { id: "dialog-title" }, title),
    fields.map((field) => labelled(field, inputs.get(field.name))),
    effects,
    old,
    error,
    h("div", { class: "buttons" }, h("button", { type: "button", onclick: () => dialog.close() }, closeVerb), needsNews ? acts(confirm) : confirm),
  );
  const dialog = h("dialog", { class: "ask", "aria-labelledby": "dialog-title" }, form);
  let result = null;
  let request = 0;
  let isWorking = false;
  const selection = new Set();

  const values = () => ({ ...Object.fromEntries([...inputs].map(([name, input]) => [name, read(input)])), choices: [...selection] });

  const choose = (name) => (event) => {
    event.stopPropagation(); // the form would forget the effect
    if (event.target.checked) selection.add(name);
    else selection.delete(name);
    refresh();
  };

  const choice = ([name, label]) => h("label", { class: "choice" }, h("input", { type: "checkbox", checked: selection.has(name), oninput: choose(name) }), label);

  const showEffect = (shown) => {
    result = shown && !("error" in shown) && !shown.refused ? shown : null;
    effects.replaceChildren(
      ...(shown?.lines ?? []).map((line) => h("p", {}, line)),
      ...(shown?.warnings ?? []).map((line) => h("p", { class: "warning" }, line)),
      ...(shown?.choices ?? []).map(choice),
      ...(shown?.details ?? []),
    );
    setText(error, shown?.error ?? shown?.refused ?? "");
    setText(confirm, result?.verb ?? (isChecked ? checkVerb : "Confirm"));
    confirm.disabled = !result && !isChecked;
    if (shown?.isClosed) confirm.hidden = true;
  };

  const refresh = async () => {
    const current = ++request;
    const given = values();
    confirm.disabled = true;
    if (isChecked) setText(confirm, "Asking the planner …");
    let shown;
    try {
      shown = await effect(given);
    } catch (refusal) {
      shown = { error: refusal.message };
    }
    if (current === request) showEffect(shown);
    return result;
  };

  const change = () => {
    request += 1;
    selection.clear();
    if (isChecked) showEffect(null);
    else refresh();
  };

  form.addEventListener("input", change);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (!result) {
      if (isChecked) await refresh();
      return;
    }
    const confirmed = result;
    confirm.disabled = isWorking = true;
    setText(confirm, "Working …");
    try {
      const done = await act(values(), confirmed);
      dialog.close();
      reportDone(done);
    } catch (refusal) {
      if (!dialog.open) reportDone({ text: `${confirmed.verb}: failed. ${refusal.message}` });
      setText(error, refusal.message);
      setText(confirm, confirmed.verb);
      confirm.disabled = isWorking = false;
      confirm.focus();
    }
  });
  const begin = () => (isChecked && fields.length > 0 ? showEffect(null) : refresh());
  const showAge = (isStale) => {
    setText(old, isStale ? "No news: the state may have changed. This waits for news." : "");
    if (!isStale && !isWorking) begin();
  };
  const forget = needsNews ? onStale(showAge) : () => null;
  dialog.addEventListener("close", () => {
    forget();
    dialog.remove();
  });
  document.body.append(dialog);
  if (needsNews && staleText()) showAge(true);
  begin();
  dialog.showModal();
  const [firstInput] = inputs.values();
  if (firstInput) firstInput.focus();
  else confirm.focus();
  return dialog;
}

function control({ kind = "text", value, options = [], placeholder, accept, list }) {
  if (kind === "select") {
    return h("select", {}, options.map(([key, label]) => h("option", { value: key, selected: key === value }, label)));
  }
  if (kind === "file") return h("input", { type: "file", accept });
  if (kind === "password") return h("input", { type: "password", autocomplete: "off", spellcheck: "false" });
  return h("input", { type: "text", inputmode: kind === "number" ? "decimal" : "text", value: value ?? "", placeholder, list, autocomplete: "off", spellcheck: "false" });
}

function read(input) {
  if (input.type === "file") return input.files[0] ?? null;
  return input.value.trim();
}

function labelled({ name, label, unit, hint }, input) {
  input.id = `field-${name}`;
  if (hint) input.setAttribute("aria-describedby", `hint-${name}`);
  return h(
    "div",
    { class: "field" },
    h("label", { class: "label", for: input.id }, label, unit && h("span", { class: "unseen" }, `, ${unit}`)),
    h("span", { class: "input" }, input, unit && h("span", { class: "unit", "aria-hidden": true }, unit)),
    hint && h("span", { class: "hint", id: `hint-${name}` }, hint),
  );
}

/** Adds a sentence to the list of actions, with a button that undoes the action. */
export function reportDone({ text, warnings = [], undo, undoVerb = "Undo" }) {
  const message = h("p", { role: "status" });
  const item = h("div", { class: "item" }, message, warnings.map((warning) => h("p", { class: "warning" }, warning)));
  const dismiss = h("button", { type: "button", class: "quiet", "aria-label": `Dismiss: ${text}`, onclick: () => item.remove() }, "×");
  const button = undo && h("button", { type: "button", class: "undo" }, undoVerb);
  if (button) {
    button.addEventListener("click", async () => {
      button.disabled = true;
      try {
        const done = await undo();
        if (!done) return void (button.disabled = false);
        button.remove();
        setText(message, done.text ?? `Undone: ${text}`);
      } catch (refusal) {
        setText(message, `Not undone: ${refusal.message}`);
        button.disabled = false;
      }
    });
  }
  item.append(h("div", { class: "buttons" }, button && acts(button), dismiss));
  const list = byId("done");
  // A modal panel makes everything outside of it inert, so the list moves into it.
  (document.querySelector("dialog.panel[open]") ?? document.body).append(list);
  list.prepend(item);
  message.textContent = text; // after it is in the page, so that a screen reader says it
  if (button) button.focus();
  while (list.children.length > 3) list.lastChild.remove();
}

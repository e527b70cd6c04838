// Resets and deletions of a group, if the page may change groups (--allow-changes). A reset is shown before it is done.

import { announce, element, setText, show } from "./dom.js";
import { NONE, number, plural } from "./format.js";

async function post(path, body) {
  const response = await fetch(`/api/groups/${path}`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(body),
  }).catch(() => null);
  const answer = await response?.json().catch(() => null);
  if (!response?.ok) throw new Error(answer?.error ?? "The server does not answer.");
  return answer;
}

// A dialog with a form. `act()` is called by its main button; what it throws is shown, and the dialog stays open.
function dialogOf(title, button, act, ...content) {
  const problem = element("p", { class: "problem", role: "alert" });
  const main = element("button", { type: "submit", class: "primary" }, button);
  const node = element("dialog", { class: "panel", "aria-label": title }, element("form", {
    method: "dialog",
    onsubmit: async (event) => {
      event.preventDefault();
      setText(problem, "");
      main.disabled = true;
      try {
        await act();
      } catch (error) {
        setText(problem, error.message);
      } finally {
        main.disabled = false;
      }
    },
  }, element("h2", {}, title), content, problem,
  element("div", { class: "tools" }, main, element("span"), element("button", { type: "button", class: "plain", onclick: () => node.close() }, "Cancel"))));
  // Keys of the page do not apply in a dialog. The browser closes it on Escape.
  node.addEventListener("keydown", (event) => event.stopPropagation());
  return { node, main, problem };
}

const changeRow = (it) => element("tr", {}, element("td", {}, `${it.topic}-${it.partition}`, it.note ? element("small", {}, it.note) : null),
  element("td", { class: "number" }, number(it.current)), element("td", { class: "number" }, it.new == null ? "unchanged" : number(it.new)),
  element("td", { class: "number" }, it.change == null ? NONE : `${it.change > 0 ? "+" : ""}${number(it.change)}`));

function resetDialog(name) {
  const target = element("input", { name: "to", required: true, autocomplete: "off", list: "targets", placeholder: "earliest, latest, 1200, -1h, @2026-11-17T10:00, +100" });
  const targets = element("datalist", { id: "targets" }, ["earliest", "latest", "-1h", "-1d"].map((value) => element("option", { value })));
  const topic = element("select");
  const backlog = element("select", {}, element("option", { value: "" }, "decide"), element("option", { value: "keep" }, "keep: deliver them, too"), element("option", { value: "drop" }, "drop: never deliver them"));
  const ranges = element("label", { hidden: true }, "Ranges below the new offsets that are not processed", backlog);
  const rows = element("tbody");
  const table = element("table", { hidden: true }, element("thead", {}, element("tr", {}, ["Partition", "Current", "New", "Change"].map((text, at) => element("th", { scope: "col", class: at ? "number" : null }, text)))), rows);
  const more = element("p", { hidden: true });
  let plan = null;
  const forget = () => {
    plan = null;
    table.hidden = true;
    more.hidden = true;
    setText(dialog.main, "Preview");
  };
  const preview = async () => {
    const found = await post("plan", { group: name, to: target.value.trim(), topic: topic.value || null, backlog: backlog.value || null });
    show(rows, found.changes, () => found.changes.map(changeRow));
    table.hidden = false;
    const hidden = found.partitions - found.changes.length;
    more.hidden = hidden === 0;
    setText(more, `and ${plural(hidden, "more partition")}, not shown here`);
    ranges.hidden = ranges.hidden && !found.needs_decision;
    if (found.needs_decision) throw new Error("Decide what happens to the ranges that are not processed.");
    plan = found.plan;
    setText(dialog.main, `Set ${plural(found.settable, "partition")}`);
  };
  const apply = async () => {
    const used = plan;
    forget();
    const done = await post("apply", { plan: used });
    dialog.node.close();
    announce(`The offsets of ${plural(done.partitions, "partition")} are set.`);
  };
  const dialog = dialogOf(`Reset ${name}`, "Preview", () => (plan == null ? preview() : apply()),
    element("label", {}, "Resume at", target), targets, element("label", {}, "Topic", topic), ranges, element("div", { class: "scroll" }, table), more);
  for (const field of [target, topic, backlog]) field.addEventListener("input", forget);
  return {
    node: dialog.node,
    open(topics) {
      forget();
      setText(dialog.problem, "");
      topic.replaceChildren(element("option", { value: "" }, "all topics"), ...topics.map((value) => element("option", { value }, value)));
      dialog.node.showModal();
    },
  };
}

function deleteDialog(name) {
  const confirm = element("input", { required: true, autocomplete: "off", spellcheck: "false" });
  const warning = element("p", { class: "problem", role: "alert", hidden: true });
  let asked = null;
  const ask = async () => {
    const found = await post("warning", { group: name });
    warning.hidden = found.warning == null;
    setText(warning, found.warning == null ? "" : `Warning: ${found.warning}.`);
  };
  const dialog = dialogOf(`Delete ${name}`, "Delete the group", async () => {
    const warned = !warning.hidden; // the server refuses the deletion if there is a warning that was not shown yet
    asked ??= ask();
    await asked.catch((error) => {
      asked = null;
      throw error;
    });
    await post("delete", { group: name, confirm: confirm.value, warned });
    dialog.node.close();
    announce(`Group ${name} is deleted.`);
  }, element("p", {}, "All its committed offsets are deleted. This cannot be undone."), warning, element("label", {}, `Type its name: ${name}`, confirm));
  return {
    node: dialog.node,
    open() {
      confirm.value = "";
      warning.hidden = true;
      setText(dialog.problem, "");
      dialog.node.showModal();
      asked = ask();
      asked.catch((error) => setText(dialog.problem, error.message));
    },
  };
}

export function changeButtons(name) {
  const reset = resetDialog(name), remove = deleteDialog(name);
  let topics = [];
  const buttons = [
    element("button", { type: "button", class: "plain", onclick: () => reset.open(topics) }, "Reset offsets …"),
    element("button", { type: "button", class: "plain", onclick: () => remove.open() }, "Delete …"),
  ];
  const node = element("span", { class: "changes", hidden: true }, buttons, reset.node, remove.node);
  return {
    node,
    update(isAllowed, found, members) {
      topics = found;
      node.hidden = !isAllowed;
      for (const button of buttons) {
        button.disabled = members > 0;
        button.title = members > 0 ? "A group with members cannot be changed: stop them first." : "";
      }
    },
  };
}

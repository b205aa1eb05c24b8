// The labels, a line each: the parts of what was measured, its kernel time, the verdict in words.

const MOST_LABELS = 12, LOOK_OF = { "✖": "error", "!": "warning", "✓": "better" };
const every = { label: false };

function drawRows() {
  // wrong timings first: whatever else is said, their numbers are not what is meant
  const rows = [...DATA.labels.filter((row) => row.reason), ...DATA.labels.filter((row) => !row.reason)];
  const { wrong, warnings, right, remarks, file } = DATA.screen;
  const others = rows.length - wrong.length - warnings - right;
  const kind = (sign, look, text) => make("a", { class: `${look} look`, href: "#rows", onclick: (event) => {
    event.preventDefault();
    bringRow(sign);
  } }, text);
  const order = rows.length > 1 && wrong.length ? ", wrong ones first" : "";
  fill($("labels-head"),
    wrong.length ? make("a", { class: "error look", href: "#wrong", onclick: (event) => {
      event.preventDefault();
      remember(true);
      bring($("wrong"));
      $("wrong").focus({ preventScroll: true });
    } }, `✖ ${wrong.length} wrong`) : null,
    warnings ? kind("!", "warning", `! ${plural(warnings, "warning")}`) : null,
    right ? kind("✓", "better", `✓ ${plural(right, "label")} ${right > 1 ? "measure" : "measures"} the kernel`) : null,
    others > 0 ? kind("·", "reading", `· ${plural(others, "other")}`) : null,
    // names of labels are its lines, as in the terminal's table
    make("span", { class: "quiet" }, `${plural(rows.length, "label")}${file ? ` in ${file}` : ""}${order}`));
  const shown = every.label ? rows : rows.slice(0, MOST_LABELS);
  const names = cutApart(shown.map((row) => row.short), stacked() ? 90 : 34);
  fill($("rows"), shown.flatMap((row, at) =>
    [labelRow(row, names[at]), ...row.groups.map((group, kind) => groupRow(row, group, kind))]));
  markSelected();
  const more = () => { every.label = true; drawRows(); };
  fill($("rows-more"), rows.length > shown.length ? make("button",
    { type: "button", onclick: more }, plural(rows.length - shown.length, "more label")) : null,
  rows.length > shown.length ? make("p", { class: "on-paper" }, `${plural(rows.length - shown.length, "more label")}, ` +
    "not printed: open them on the page first.") : null);
  $("savings").hidden = !rows.some((row) => row.saving);
  fill($("screen-remarks"), remarks.map((text) => make("li", null, text)));
}

// To the first label whose row has a sign, also if it is among those that are not listed yet.
function bringRow(sign) {
  const first = () => [...document.querySelectorAll("#rows li:not(.group)")].find((row) =>
    row.querySelector(".sign").textContent === sign);
  if (!first()) {
    every.label = true;
    drawRows();
  }
  remember(true);
  first().scrollIntoView({ behavior: scrolling(), block: "center" });
  first().querySelector("button").focus({ preventScroll: true });
}

// How long kernels are part of a time, and how long they ran beside it: the terminal's column.
function kernelsOf({ parts, beside }) {
  const own = parts.kernel + parts.graph;
  if (!own) return beside ? `${duration(beside)} beside it` : "no kernels";
  return `kernels ${duration(own)}` + (beside ? ` (${duration(beside)})` : "");
}

function labelRow(row, name) {
  const look = LOOK_OF[row.sign] || "reading";
  const open = () => choose(row.label, null, true);
  const item = make("li", null,
    make("span", { class: `sign ${look} look`, "aria-hidden": "true" }, row.sign),
    make("button", { type: "button", class: "link", title: row.sentence || row.label, onclick: open }, name),
    budgetBar(row, row.elapsed || 1, roomOfBar()),
    make("span", { class: "value", title: row.beside ? "beside it: on other streams, or while the CPU went on" : null },
      duration(row.elapsed), make("span", { class: "quiet" }, " " + kernelsOf(row))),
    row.findings.length ? make("button", { type: "button", class: `link words ${look} look`,
      onclick: () => bringFinding(row.label) }, row.words) :
      make("span", { class: `words ${look} look` }, row.words),
    make("span", { class: "value saving", title: row.saved_by || null }, row.saving ? `could save ${duration(row.saving)} in all` : null),
    row.reason ? make("span", { class: "reason" }, `It ${row.reason}`) : null);
  item.dataset.label = row.label;
  return item;
}

// A kind of timings of a label that has several, beneath it: how many, their typical interval.
function groupRow(row, group, kind) {
  const look = LOOK_OF[group.sign] || "reading";
  const item = make("li", { class: "group" },
    make("span", { class: `sign ${look} look`, "aria-hidden": "true" }, group.sign),
    make("button", { type: "button", class: "link", title: row.label,
      onclick: () => takeKind(row, group.interval) }, "\u2003" + group.name),
    budgetBar(group, group.elapsed || 1, roomOfBar()),
    make("span", { class: "value" }, duration(group.elapsed),
      make("span", { class: "quiet" }, " " + kernelsOf(group))),
    make("span", { class: `words ${look} look` }, group.words),
    make("span", { class: "value saving quiet" }, `takes ${duration(group.total)} in all`));
  Object.assign(item.dataset, { label: row.label, kind });
  return item;
}

// Opens a kind's typical repetition; in a comparison of its label it comes in B's place, like any repetition.
function takeKind(row, number) {
  const pairing = view.other !== null && selected.label === row.label;
  if (!pairing) return choose(row.label, number, true);
  takeRepetition(row, DATA.runs[DATA.labels.indexOf(row)], number);
  bringChosen();
}

// What to change, with a button that copies it.
function drawFix(fixes) {
  const lines = fixes.map(({ purpose, sentence, code }) =>
    [`# ${purpose}: ${sentence}`, ...code].join("\n"));
  const said = (one) => [make("strong", null, one.purpose + ": "), one.sentence, " ",
    one.code.map((line) => make("code", { class: one.code.length > 1 ? "line" : null }, line))];
  const copy = make("button", { type: "button",
    onclick: (event) => copyText(lines.join("\n") + "\n", event.currentTarget) }, "copy fix");
  fill($("fix"), fixes.map((fix, i) => make("div", null, said(fix), i === fixes.length - 1 ? copy : null)));
}

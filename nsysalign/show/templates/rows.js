// The labels, a line each: the parts of what was measured, its kernel time, the verdict in words.

const MOST_LABELS = 12, LOOK_OF = { "✖": "error", "!": "warning", "✓": "better" };
const every = { label: false };

function drawRows() {
  const rows = DATA.labels, { wrong, warnings, right, remarks } = DATA.screen;
  fill($("labels-head"),
    wrong ? make("span", { class: "error look" }, `✖ ${wrong} wrong`) : null,
    warnings ? make("span", { class: "warning look" }, `! ${plural(warnings, "warning")}`) : null,
    right ? make("span", { class: "better look" },
      `✓ ${plural(right, "label")} ${right > 1 ? "measure" : "measures"} the kernel`) : null,
    make("span", { class: "quiet" }, `${plural(rows.length, "label")}, the largest saving over the run first (at the right)`));
  const shown = every.label ? rows : rows.slice(0, MOST_LABELS);
  const names = cutApart(shown.map((row) => row.label), narrow() ? 15 : 34);
  fill($("rows"), shown.map((row, at) => labelRow(row, names[at])));
  markSelected();
  const more = () => { every.label = true; drawRows(); };
  fill($("rows-more"), rows.length > shown.length ? make("button",
    { type: "button", onclick: more }, plural(rows.length - shown.length, "more label")) : null);
  fill($("screen-remarks"), remarks.map((text) => make("li", null, text)));
}

function labelRow(row, name) {
  const look = LOOK_OF[row.sign] || "reading";
  const open = () => choose(row.label, null, true);
  const item = make("li", null,
    make("span", { class: `sign ${look} look`, "aria-hidden": "true" }, row.sign),
    make("button", { type: "button", class: "link", title: row.sentence || row.label, onclick: open }, name),
    budgetBar(row, row.elapsed || 1, $("rows").clientWidth * (narrow() ? 0.2 : 0.4)),
    make("span", { class: "value" }, duration(row.elapsed),
      make("span", { class: "quiet" }, row.ran ? ` kernel ${duration(row.ran)}` :
        row.others ? ` ${duration(row.others)} on other streams` : " no kernel")),
    row.findings.length ? make("button", { type: "button", class: `link words ${look} look`,
      onclick: () => bringFinding(row.label) }, row.words) :
      make("span", { class: `words ${look} look` }, row.words),
    make("span", { class: "value saving" }, row.saving ? `−${duration(row.saving)}` : "",
      row.saving ? make("span", { class: "unseen" }, " could be saved over the run") : null));
  item.dataset.label = row.label;
  return item;
}

// What to change, with a button that copies it.
function drawFix() {
  const { fixes } = DATA.screen;
  if (!fixes.length) return;
  const lines = fixes.map(({ purpose, sentence, code }) =>
    code.length ? code.join("\n") : `# ${purpose}: ${sentence}`);
  const said = (one) => [make("strong", null, one.purpose + ": "), one.sentence, " ",
    one.code.length ? make("code", null, one.code.join("; ")) : null];
  fill($("fix"), make("span", null, fixes.map((fix) => make("div", null, said(fix)))), make("button", { type: "button",
    onclick: (event) => copyText(lines.join("\n") + "\n", event.currentTarget) }, "copy fix"));
}

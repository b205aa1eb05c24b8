// The label table: sorted by any column, filtered by text, each row with its budget bar.

// Whether any label's time without nsys is predicted: if none is, it is said once.
const PREDICTED = DATA.labels.some((label) => label.predicted?.ns);
const COLUMNS = [
  { key: "label", text: "label", note: "us; total and idle ms", value: (l) => l.label },
  { key: "bar", text: "breakdown" },
  { key: "count", text: "n", number: true, value: (l) => l.count,
    show: (l) => (l.cold ? `${l.cold}+${(l.count - l.cold).toLocaleString("en")}` :
    l.count.toLocaleString("en")),
    hint: "intervals placed; 1+5: a cold one and 5 warm ones" },
  { key: "total", text: "total", unit: "ms", number: true, value: (l) => l.total,
    show: (l) => milli(l.total), hint: "all intervals together, profiled, in milliseconds" },
  { key: "idle", text: "idle", unit: "ms", number: true, value: (l) => l.idle,
    show: (l) => milli(l.idle), hint: "of it without work on the stream, in milliseconds" },
  { key: "elapsed", text: "time", unit: "us", number: true, value: (l) => l.elapsed,
    show: (l) => micro(l.elapsed), hint: "measured time of the median interval, profiled" },
  ...(PREDICTED ? [{ key: "predicted", text: "unprofiled", unit: "us", number: true,
    value: (l) => l.predicted?.ns?.[0] ?? -1,
    show: (l) => l.predicted?.cell ?? "?",
    hint: "the same interval without nsys, predicted from this trace, and how far that may be off",
  }] : []),
  ...PRESENT.filter((cause) => DATA.labels.some((l) => l.parts[cause.name])).map((cause) => ({
    key: cause.name, text: cause.short, unit: "us", number: true, hint: cause.meaning, cause: true,
    value: (l) => l.parts[cause.name],
    // kernels that ran beside: no part of the sum
    show: ({ parts: { [cause.name]: ns }, beside }) => (cause.name !== "kernel" || !beside ? micro(ns) :
      (ns ? micro(ns) + " " : "") + `(${micro(beside)})`),
  })),
  ...(DATA.labels.some((l) => l.error) ? [{ key: "error", text: "error ±", unit: "us",
    number: true, value: (l) => l.error, show: (l) => micro(l.error),
    hint: "how exactly the two events are placed on the GPU's timeline (95 %)" }] : []),
  { key: "p95", text: "p95", unit: "us", number: true, value: (l) => l.p95,
    show: (l) => micro(l.p95),
    hint: "95th percentile of the measured time, a cold first interval left out" },
];

// The sign of the label's row above, which leads to its finding.
function flag(label) {
  return label.flagged ? make("button", { type: "button", class: `flag look ${LOOK_OF[label.sign] || "reading"}`,
    title: label.findings.join(", "), onclick: () => bringFinding(label.label) }, label.sign,
  make("span", { class: "unseen" }, ` to the finding of ${label.label}`)) : null;
}

function bodyRow(label) {
  const cells = COLUMNS.map((column) => {
    if (column.key === "label") return labelCell(label, () => choose(label.label, null, true),
      flag(label));
    if (column.key === "bar") return make("td", { class: "budget" },
      budgetBar(label, label.elapsed || 1, 150));
    if (column.key === "predicted" && label.predicted?.reason) return make("td",
      { class: "number", title: "no prediction: " + label.predicted.reason },
      label.predicted.cell);
    const text = column.show(label);
    return make("td", { class: "number" + (text === "." ? " zero" : "") }, text);
  });
  const row = make("tr", { class: label.library ? "library" : null }, cells);
  row.dataset.label = label.label;
  if (label.label === selected.label) row.setAttribute("aria-current", "true");
  return row;
}

const ROWS_AT_ONCE = 10;

// The table as it is drawn first: some rows at a time, unless a sorted or filtered table has taken
// its place meanwhile.
function tableStages() {
  let body = null;
  const begin = () => {
    const reason = DATA.labels.find((label) => label.predicted)?.predicted.reason;
    $("without").textContent = (PREDICTED || !reason ? "" :
      `; no time without nsys is predicted (${reason})`) + (DATA.labels.some(({ beside }) => beside) ?
      "; in brackets: kernels that ran beside, on other streams or while the CPU went on" : "");
    drawTable(ROWS_AT_ONCE);
    body = $("budgets").tBodies[0];
  };
  const stages = [begin];
  for (let from = ROWS_AT_ONCE; from < DATA.labels.length; from += ROWS_AT_ONCE) {
    stages.push(() => body.isConnected &&
      body.append(...DATA.labels.slice(from, from + ROWS_AT_ONCE)
      .map(bodyRow)));
  }
  return stages;
}

function drawTable(most = Infinity) {
  const labels = shownLabels(COLUMNS, (l) => [l.label, l.site, ...l.callers,
    ...l.findings].join(" "));
  const again = () => {
    drawTable();
    remember();
  };
  fillLabels($("budgets"), "Breakdown of the median interval of every label, in microseconds", COLUMNS,
    labels, bodyRow, again, most);
}

function markSelected() {
  const at = DATA.labels.findIndex((label) => label.label === selected.label);
  const runs = DATA.runs[at], place = runs ? placeOf(runs, selected.interval) : -1;
  const kind = place < 0 ? null : String(kindOf(runs, place));
  for (const row of document.querySelectorAll("#budgets tbody tr, #rows li")) {
    if (row.dataset.label === selected.label && (row.dataset.kind ?? kind) === kind) {
      row.setAttribute("aria-current", "true");
    } else row.removeAttribute("aria-current");
  }
}

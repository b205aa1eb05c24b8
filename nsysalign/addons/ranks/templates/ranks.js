// A comparison of ranks: a row per label, the chosen label's ranks with their budgets, and who
// waits for whom.

const RANK = Object.fromEntries(DATA.ranks.map((rank) => [rank.rank, rank]));
const MOST_WAITS = 200;
const count = (number) => number.toLocaleString("en");

// A rank's name, linked to its own page where there is one.
function rankLink(number) {
  const rank = RANK[number], text = `rank ${number}`;
  return rank && rank.href ? make("a", { href: rank.href, title: rank.source }, text) : text;
}

function some(list, most) {
  return list.slice(0, most).join(", ") + (list.length > most ? `, … (${list.length})` : "");
}

function drawLabels() {
  const heads = [{ text: "label" }, ...numbers("n", "fastest us", "rank", "slowest us", "rank",
    "waits us"), { text: "what the ranks say" }];
  const rows = DATA.labels.map((label) => {
    const ranks = [...label.ranks].sort((a, b) => a.elapsed.median_ns - b.elapsed.median_ns);
    const fastest = ranks[0], slowest = ranks.at(-1);
    const press = { type: "button", class: "link", onclick: () => choose(label, true) };
    return [make("button", press, label.label), count(label.repetitions),
      micro(fastest.elapsed.median_ns), String(fastest.rank), micro(slowest.elapsed.median_ns),
      String(slowest.rank), micro(Math.max(...ranks.map((row) => row.wait_median_ns))),
      label.words];
  });
  fillTable($("table"), "Every label on all ranks", heads, rows);
}

function choose(label, show) {
  $("label-head").textContent = `${label.label}, rank by rank`;
  $("label-words").textContent = label.words;
  const scale = Math.max(1, ...label.ranks.map((row) => row.elapsed.mean_ns));
  const heads = [{ text: "rank" }, ...numbers("n", "median us", "5 % us", "95 % us"),
    { text: "mean budget" }, ...numbers("slowest in", "arrives last in", "waits us"),
    { text: "for, all intervals" }];
  const rows = label.ranks.map((row) => {
    const part = ({ name }) => [name, row.parts_mean_ns[name] || 0];
    const budget = { parts: Object.fromEntries(DATA.causes.map(part)),
      elapsed: row.elapsed.mean_ns || 1 };
    const bar = budgetBar(budget, scale, 320);
    bar.style.width = "320px";
    const times = ["median_ns", "p05_ns", "p95_ns"].map((name) => micro(row.elapsed[name]));
    const waits = Object.entries(row.waits_for_ns).sort((a, b) => b[1] - a[1]);
    return [rankLink(row.rank), count(row.count), ...times, bar,
      `${row.slowest_in} of ${label.repetitions}`,
      row.collectives ? `${row.arrived_last} of ${row.collectives}` : "-",
      micro(row.wait_median_ns), some(waits.map(([n, ns]) => `rank ${n} ${duration(ns)}`), 3)];
  });
  fillTable($("label-ranks"), `${label.label} on every rank`, heads, rows);
  if (show) {
    bring($("label"));
    $("label-head").focus({ preventScroll: true });
  }
}

showSections();
$("verdict-head").textContent = DATA.verdict.text;
$("advice").textContent = DATA.verdict.advice ? "Change: " + DATA.verdict.advice : "";
fill($("environment"),
  make("div", null, make("dt", null, "compared"), make("dd", null, DATA.title)));
$("failures").hidden = !DATA.failures.length;
fill($("failure-list"), DATA.failures.map((f) => make("li", null,
  make("strong", null, f.source), `: ${f.failure}`,
  f.next ? make("span", { class: "site" }, "next: " + f.next) : null)));
fillTable($("rank-table"), "The ranks", [{ text: "rank" }, { text: "trace" },
  ...numbers("process", "device", "intervals", "not placed", "collectives"),
  { text: "warnings in its own report" }],
DATA.ranks.map((r) => [rankLink(r.rank), make("code", null, r.source), String(r.pid),
  r.device < 0 ? "-" : String(r.device), count(r.intervals), count(r.unplaced),
  count(r.collectives), some(r.warnings, 4)]));
fillTable($("clock-table"), "Clocks of the traces",
  [{ text: "trace" }, { text: "by" }, { text: "accuracy" }],
  DATA.clocks.map((c) => [make("code", null, c.source), c.method, c.words]));
fill($("notes"), DATA.notes.map((note) => make("li", null, note)));
$("waits").hidden = !DATA.waits.length;
fillTable($("wait-table"), "Waits of ranks",
  [{ text: "rank" }, { text: "waits for" }, ...numbers("time", "collectives")],
  DATA.waits.slice(0, MOST_WAITS).map((w) => [rankLink(w.rank), rankLink(w.waits_for),
    duration(w.wait_ns), count(w.collectives)]));
if (DATA.labels.length) {
  legend();
  drawLabels();
  choose(DATA.labels[0], false);
} else for (const id of ["labels", "label"]) $(id).hidden = true;
document.body.dataset.ready = "true";

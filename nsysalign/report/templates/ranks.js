// A comparison of ranks: labels by ranks, the chosen label's ranks with their budgets, who waits for whom.

const chosen = { label: null };
const WIDTH = 200, HEIGHT = 22;
const RANK = Object.fromEntries(DATA.ranks.map((rank) => [rank.rank, rank]));
const MOST_COLUMNS = 4, MOST_MATRIX = 32, MOST_WAITS = 200;
const LOOK = { waits: "warning", slowest: "warning", unclear: "reading", even: "reading", alone: "reading" };

function median(label, rank) {
  const row = label.ranks.find((item) => item.rank === rank);
  return row ? row.elapsed.median_ns : null;
}

const ends = (label) => label.ranks.map((row) => row.elapsed.median_ns);
const waits = (label) => Math.max(...label.ranks.map((row) => row.wait_median_ns));

// Every rank's median as a mark between zero and the largest one.
function strip(label) {
  const most = Math.max(1, ...ends(label)), y = HEIGHT / 2, place = (ns) => 6 + (ns / most) * (WIDTH - 12);
  const marks = label.ranks.map((row) => {
    const slow = row.rank === label.slowest;
    const mark = svg("circle", { cx: place(row.elapsed.median_ns), cy: y, r: slow ? 5 : 4, class: slow ? "fill" : "" });
    mark.append(svg("title", {}, `rank ${row.rank}: ${duration(row.elapsed.median_ns)}`));
    return mark;
  });
  const words = `from ${duration(Math.min(...ends(label)))} to ${duration(most)}`;
  return svg("svg", { width: WIDTH, height: HEIGHT, viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "forest " + LOOK[label.verdict], role: "img", "aria-label": words },
    svg("line", { x1: 6, x2: WIDTH - 6, y1: y, y2: y, class: "zero" }), ...marks);
}

const COLUMNS = [
  { key: "label", text: "label", value: (l) => l.label },
  { key: "n", text: "n", number: true, value: (l) => l.repetitions, show: (l) => l.repetitions.toLocaleString("en"), hint: "intervals that every rank has" },
  ...(DATA.ranks.length <= MOST_COLUMNS
    ? DATA.ranks.map((rank) => ({ key: "rank" + rank.rank, text: `rank ${rank.rank} us`, number: true, value: (l) => median(l, rank.rank) ?? -1, show: (l) => (median(l, rank.rank) === null ? "-" : micro(median(l, rank.rank))), hint: rank.source }))
    : [
        { key: "fastest", text: "fastest us", number: true, value: (l) => Math.min(...ends(l)), show: (l) => micro(Math.min(...ends(l))) },
        { key: "longest", text: "slowest us", number: true, value: (l) => Math.max(...ends(l)), show: (l) => micro(Math.max(...ends(l))) },
      ]),
  { key: "strip", text: "ranks" },
  { key: "spread", text: "spread us", number: true, value: (l) => l.spread_ns, show: (l) => micro(l.spread_ns) },
  { key: "waits", text: "waits us", number: true, value: waits, show: (l) => micro(waits(l)) },
  { key: "words", text: "what the ranks say", value: (l) => l.words },
];

function bodyRow(label) {
  const cells = COLUMNS.map((column) => {
    if (column.key === "label") return labelCell(label, () => choose(label, true));
    if (column.key === "strip") return make("td", null, strip(label));
    if (column.key === "words") return make("td", { class: "words", title: label.words }, label.words);
    const text = column.show(label);
    return make("td", { class: "number" + (text === "." ? " zero" : "") }, text);
  });
  const element = make("tr", { class: label.library ? "library" : null }, cells);
  if (label === chosen.label) element.setAttribute("aria-current", "true");
  return element;
}

function draw() {
  const labels = shownLabels(COLUMNS, (l) => `${l.label} ${l.site} ${l.words}`);
  fillLabels($("table"), "Every label on every rank", COLUMNS, labels, bodyRow, draw);
}

// A rank's name, linked to its own page where there is one.
function rankLink(number) {
  const rank = RANK[number], text = `rank ${number}`;
  return rank && rank.href ? make("a", { href: rank.href, title: rank.source }, text) : text;
}

function waitsFor(row) {
  const all = Object.entries(row.waits_for_ns).sort((a, b) => b[1] - a[1]);
  const shown = all.slice(0, 3).map(([rank, ns]) => `rank ${rank} ${duration(ns)}`).join(", ");
  return shown + (all.length > 3 ? `, … (${all.length})` : "");
}

// One repetition of the label, a row per rank, all on one time axis.
function drawExample(label) {
  const rows = label.example, whole = Math.max(1, ...rows.map((row) => row.end_ns));
  $("example").hidden = !rows.length;
  const piece = (kind, from, to, said) => {
    const element = make("span", { class: "piece " + kind, title: said });
    element.style.left = (100 * from) / whole + "%";
    element.style.width = `max(1px, ${(100 * (to - from)) / whole}%)`;
    return element;
  };
  const row = ({ rank, start_ns: start, end_ns: end, collectives }) => {
    const waited = collectives.reduce((sum, [, , wait]) => sum + wait, 0);
    return make("li", null, make("span", { class: "name" }, rankLink(rank)), make("span", { class: "track" },
      piece("window", start, end, `rank ${rank}: ${duration(end - start)}, from ${duration(start)}`),
      collectives.map(([from, to]) => piece("met", from, to, `collective of ${duration(to - from)}`)),
      collectives.filter(([, , wait]) => wait).map(([from, , wait]) => piece("waits p-flat", from, from + wait, `waits ${duration(wait)} for the last rank`))),
    make("span", { class: "value" }, waited ? `waits ${duration(waited)}` : "arrives last"));
  };
  fill($("axis"), rows.map(row), make("li", { class: "scale", "aria-hidden": "true" }, make("span"), make("span", { class: "track" }, make("span", null, "0"), make("span", null, duration(whole))), make("span")));
}

function choose(label, show) {
  chosen.label = label;
  draw();
  $("label-head").textContent = `${label.label}, rank by rank`;
  $("label-words").textContent = label.words;
  drawExample(label);
  const scale = Math.max(1, ...label.ranks.map((row) => row.elapsed.mean_ns));
  const heads = [{ text: "rank" }, ...["n", "median us", "5 % us", "95 % us"].map((text) => ({ text, number: true })), { text: "mean budget" },
    { text: "slowest in", number: true }, { text: "arrives last in", number: true }, { text: "waits us", number: true }, { text: "for, all intervals" }];
  const rows = label.ranks.map((row) => {
    const parts = Object.fromEntries(DATA.causes.map((cause) => [cause.name, row.parts_mean_ns[cause.name] || 0]));
    const bar = budgetBar({ parts, elapsed: row.elapsed.mean_ns || 1 }, scale, 320);
    bar.style.width = "320px";
    return [rankLink(row.rank), row.count.toLocaleString("en"), micro(row.elapsed.median_ns), micro(row.elapsed.p05_ns), micro(row.elapsed.p95_ns), bar,
      `${row.slowest_in} of ${label.repetitions}`, row.collectives ? `${row.arrived_last} of ${row.collectives}` : "-", micro(row.wait_median_ns), waitsFor(row)];
  });
  fillTable($("label-ranks"), `${label.label} on every rank`, heads, rows);
  if (show) {
    bring($("label"));
    $("label-head").focus({ preventScroll: true });
  }
}

function drawWaits() {
  const numbers = DATA.ranks.map((rank) => rank.rank), ms = (ns) => (ns / 1e6).toFixed(3);
  $("waits").hidden = !DATA.waits.length;
  if (numbers.length > MOST_MATRIX) {
    const rows = DATA.waits.slice(0, MOST_WAITS).map((w) => [rankLink(w.rank), rankLink(w.waits_for), ms(w.wait_ns), w.collectives.toLocaleString("en")]);
    fillTable($("wait-table"), "Waits of ranks", [{ text: "rank" }, { text: "waits for" }, { text: "ms", number: true }, { text: "collectives", number: true }], rows);
    return;
  }
  const found = Object.fromEntries(DATA.waits.map((w) => [`${w.rank}-${w.waits_for}`, w])), most = Math.max(1, ...DATA.waits.map((w) => w.wait_ns));
  const cell = (rank, other) => {
    const wait = found[`${rank}-${other}`];
    if (!wait) return make("td", { class: "number zero" }, ".");
    const element = make("td", { class: "number", title: `rank ${rank} waits for rank ${other} in ${plural(wait.collectives, "collective")}` }, ms(wait.wait_ns));
    element.style.backgroundColor = `color-mix(in srgb, var(--warning) ${(40 * wait.wait_ns) / most}%, transparent)`;
    return element;
  };
  fill($("wait-table"), make("caption", { class: "unseen" }, "Rows wait for columns"),
    make("thead", null, make("tr", null, make("th", { scope: "col" }, "waits ms"), numbers.map((n) => make("th", { scope: "col", class: "number" }, "for ", rankLink(n))))),
    make("tbody", null, numbers.map((n) => make("tr", null, make("th", { scope: "row" }, rankLink(n)), numbers.map((other) => cell(n, other))))));
}

function start() {
  showSections();
  $("verdict-head").textContent = DATA.verdict.text;
  $("advice").textContent = DATA.verdict.advice ? "Change: " + DATA.verdict.advice : "";
  fill($("environment"), [["compared", DATA.title]].map(([key, value]) => make("div", null, make("dt", null, key), make("dd", null, value))));
  $("failures").hidden = !DATA.failures.length;
  fill($("failure-list"), DATA.failures.map((f) => make("li", null, make("strong", null, f.source), `: ${f.failure}`, f.next ? make("span", { class: "site" }, "next: " + f.next) : null)));
  fillTable($("rank-table"), "The ranks", [{ text: "rank" }, { text: "trace" }, ...["process", "device", "intervals", "not placed", "collectives"].map((text) => ({ text, number: true })), { text: "warnings in its own report" }],
    DATA.ranks.map((r) => [rankLink(r.rank), make("code", null, r.source), String(r.pid), r.device < 0 ? "-" : String(r.device), r.intervals.toLocaleString("en"), r.unplaced.toLocaleString("en"), r.collectives.toLocaleString("en"), r.warnings.slice(0, 4).join(", ") + (r.warnings.length > 4 ? `, … (${r.warnings.length})` : "")]));
  fillTable($("clock-table"), "Clocks of the traces", [{ text: "trace" }, { text: "by" }, { text: "accuracy" }], DATA.clocks.map((c) => [make("code", null, c.source), c.method, c.words]));
  fill($("notes"), DATA.notes.map((note) => make("li", null, note)));
  drawWaits();
  if (DATA.labels.length) {
    legend();
    choose(DATA.labels[0], false);
    $("filter").addEventListener("input", draw);
  } else for (const id of ["labels", "label"]) $(id).hidden = true;
  document.body.dataset.ready = "true";
}

start();

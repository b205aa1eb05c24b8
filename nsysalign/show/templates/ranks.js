// A comparison of ranks: labels by ranks, the chosen label's ranks with their budgets, and who
// waits for whom.

const chosen = { label: null };
const WIDTH = 200, HEIGHT = 22;
const RANK = Object.fromEntries(DATA.ranks.map((rank) => [rank.rank, rank]));
const MOST_COLUMNS = 4, MOST_MATRIX = 32, MOST_WAITS = 200;
const LOOK = {
  waits: "warning", slowest: "warning", unclear: "reading", even: "reading", alone: "reading",
};

const count = (number) => number.toLocaleString("en");
const ends = (label) => label.ranks.map((row) => row.elapsed.median_ns);
const fastest = (label) => Math.min(...ends(label));
const longest = (label) => Math.max(...ends(label));
const waits = (label) => Math.max(...label.ranks.map((row) => row.wait_median_ns));

// Every rank's median as a mark between zero and the largest one.
function strip(label) {
  const most = Math.max(1, longest(label)), y = HEIGHT / 2;
  const marks = label.ranks.map(({ rank, elapsed }) => {
    const slow = rank === label.slowest, x = 6 + (elapsed.median_ns / most) * (WIDTH - 12);
    const mark = svg("circle", { cx: x, cy: y, r: slow ? 5 : 4, class: slow ? "fill" : "" });
    mark.append(svg("title", {}, `rank ${rank}: ${duration(elapsed.median_ns)}`));
    return mark;
  });
  return svg("svg", {
    width: WIDTH, height: HEIGHT, viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img",
    class: "forest " + LOOK[label.verdict],
    "aria-label": `from ${duration(fastest(label))} to ${duration(most)}`,
  }, svg("line", { x1: 6, x2: WIDTH - 6, y1: y, y2: y, class: "zero" }), ...marks);
}

function timeColumn(key, text, time, hint) {
  const show = (label) => (time(label) === null ? "-" : micro(time(label)));
  return { key, text: text + " us", number: true, value: (l) => time(l) ?? -1, show, hint };
}

function rankColumn({ rank, source }) {
  const time = (label) =>
    label.ranks.find((row) => row.rank === rank)?.elapsed.median_ns ?? null;
  return timeColumn("rank" + rank, `rank ${rank}`, time, source);
}

const COLUMNS = [
  { key: "label", text: "label", value: (l) => l.label },
  { key: "words", text: "what the ranks say", value: (l) => l.words },
  { key: "n", text: "n", number: true, value: (l) => l.repetitions,
    show: (l) => count(l.repetitions), hint: "intervals that every rank has" },
  ...(DATA.ranks.length <= MOST_COLUMNS ? DATA.ranks.map(rankColumn)
    : [timeColumn("fastest", "fastest", fastest), timeColumn("longest", "slowest", longest)]),
  { key: "strip", text: "ranks" },
  timeColumn("spread", "spread", (l) => l.spread_ns),
  timeColumn("waits", "waits", waits),
];

function bodyRow(label) {
  const special = {
    label: () => labelCell(label, () => choose(label, true)),
    strip: () => make("td", null, strip(label)),
    words: () => make("td", { class: "words", title: label.words }, label.words),
  };
  const cells = COLUMNS.map((column) => {
    if (special[column.key]) return special[column.key]();
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
  const whole = Math.max(1, ...label.example.map((row) => row.end_ns));
  $("example").hidden = !label.example.length;
  const piece = (kind, from, to, words) => {
    const element = make("span", { class: "piece " + kind, title: words });
    element.style.left = (100 * from) / whole + "%";
    element.style.width = `max(1px, ${(100 * (to - from)) / whole}%)`;
    return element;
  };
  const row = ({ rank, start_ns: start, end_ns: end, collectives }) => {
    const waiting = collectives.filter(([, , wait]) => wait);
    const waited = waiting.reduce((sum, [, , wait]) => sum + wait, 0);
    const track = [
      piece("window", start, end,
        `rank ${rank}: ${duration(end - start)}, from ${duration(start)}`),
      ...collectives.map(([from, to]) =>
        piece("met", from, to, `collective of ${duration(to - from)}`)),
      ...waiting.map(([from, , wait]) =>
        piece("waits p-flat", from, from + wait, `waits ${duration(wait)} for the last rank`)),
    ];
    return make("li", null, make("span", { class: "name" }, rankLink(rank)),
      make("span", { class: "track" }, track),
      make("span", { class: "value" }, waited ? `waits ${duration(waited)}` : "arrives last"));
  };
  const scale = make("span", { class: "track" }, make("span", null, "0"),
    make("span", null, duration(whole)));
  fill($("axis"), label.example.map(row), make("li", { class: "scale", "aria-hidden": "true" },
    make("span"), scale, make("span")));
}

function choose(label, show) {
  chosen.label = label;
  draw();
  $("label-head").textContent = `${label.label}, rank by rank`;
  $("label-words").textContent = label.words;
  drawExample(label);
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
    return [rankLink(row.rank), count(row.count), ...times, bar,
      `${row.slowest_in} of ${label.repetitions}`,
      row.collectives ? `${row.arrived_last} of ${row.collectives}` : "-",
      micro(row.wait_median_ns), waitsFor(row)];
  });
  fillTable($("label-ranks"), `${label.label} on every rank`, heads, rows);
  if (show) {
    bring($("label"));
    $("label-head").focus({ preventScroll: true });
  }
}

function drawWaits() {
  const ranks = DATA.ranks.map((rank) => rank.rank), ms = (ns) => (ns / 1e6).toFixed(3);
  $("waits").hidden = !DATA.waits.length;
  if (ranks.length > MOST_MATRIX) {
    const rows = DATA.waits.slice(0, MOST_WAITS).map((w) =>
      [rankLink(w.rank), rankLink(w.waits_for), ms(w.wait_ns), count(w.collectives)]);
    fillTable($("wait-table"), "Waits of ranks",
      [{ text: "rank" }, { text: "waits for" }, ...numbers("ms", "collectives")], rows);
    return;
  }
  const waited = Object.fromEntries(DATA.waits.map((w) => [`${w.rank}-${w.waits_for}`, w]));
  const most = Math.max(1, ...DATA.waits.map((w) => w.wait_ns));
  const cell = (rank, other) => {
    const wait = waited[`${rank}-${other}`];
    if (!wait) return make("td", { class: "number zero" }, ".");
    const met = plural(wait.collectives, "collective");
    const title = `rank ${rank} waits for rank ${other} in ${met}`;
    const element = make("td", { class: "number", title }, ms(wait.wait_ns));
    const share = (40 * wait.wait_ns) / most;
    element.style.backgroundColor = `color-mix(in srgb, var(--warning) ${share}%, transparent)`;
    return element;
  };
  const head = (n) => make("th", { scope: "col", class: "number" }, "for ", rankLink(n));
  const row = (n) => make("tr", null, make("th", { scope: "row" }, rankLink(n)),
    ranks.map((other) => cell(n, other)));
  fill($("wait-table"), make("caption", { class: "unseen" }, "Rows wait for columns"),
    make("thead", null, make("tr", null, make("th", { scope: "col" }, "waits ms"),
      ranks.map(head))),
    make("tbody", null, ranks.map(row)));
}

function start() {
  showSections();
  $("verdict-head").textContent = DATA.verdict.text;
  $("advice").textContent = DATA.verdict.advice ? "Change: " + DATA.verdict.advice : "";
  fill($("environment"),
    make("div", null, make("dt", null, "compared"), make("dd", null, DATA.title)));
  $("failures").hidden = !DATA.failures.length;
  fill($("failure-list"), DATA.failures.map((f) => make("li", null,
    make("strong", null, f.source), `: ${f.failure}`,
    f.next ? make("span", { class: "site" }, "next: " + f.next) : null)));
  const warned = ({ warnings }) => warnings.slice(0, 4).join(", ") +
    (warnings.length > 4 ? `, … (${warnings.length})` : "");
  fillTable($("rank-table"), "The ranks", [{ text: "rank" }, { text: "trace" },
    ...numbers("process", "device", "intervals", "not placed", "collectives"),
    { text: "warnings in its own report" }],
  DATA.ranks.map((r) => [rankLink(r.rank), make("code", null, r.source), String(r.pid),
    r.device < 0 ? "-" : String(r.device), count(r.intervals), count(r.unplaced),
    count(r.collectives), warned(r)]));
  fillTable($("clock-table"), "Clocks of the traces",
    [{ text: "trace" }, { text: "by" }, { text: "accuracy" }],
    DATA.clocks.map((c) => [make("code", null, c.source), c.method, c.words]));
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

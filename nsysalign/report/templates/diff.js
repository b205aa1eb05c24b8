// A comparison: every label's change with its bounds, then the causes of the chosen label.

const VERDICT = { slower: ["▲", "error"], faster: ["▼", "better"], "unclear": ["?", "warning"], same: ["=", "reading"] };
const chosen = { label: null };
const WIDTH = 260, HEIGHT = 26;

function share(ns, before) {
  return before ? (100 * ns) / before : ns ? 100 : 0;
}

function signed(value, text) {
  return (value > 0 ? "+" : "") + text;
}

function percentText(change) {
  return change.before_ns ? signed(change.change_ns, share(change.change_ns, change.before_ns).toFixed(1) + " %") : "new";
}

function microSigned(ns) {
  return ns === 0 ? "." : signed(ns, (ns / 1e3).toFixed(2));
}

function boundsText(change) {
  const [low, high] = [change.low_ns, change.high_ns].map((ns) => signed(ns, share(ns, change.before_ns).toFixed(1)));
  return `${low} to ${high} %`;
}

// The scale of all bounds: what most labels need; longer ones end in an arrow.
const SCALE = (() => {
  const sizes = DATA.labels.map((l) => Math.max(...[l.total.low_ns, l.total.high_ns].map((ns) => Math.abs(share(ns, l.total.before_ns))))).sort((a, b) => a - b);
  return Math.min(100, Math.max(5, sizes[Math.floor(0.9 * (sizes.length - 1))] || 0)) * 1.1;
})();

// The change as a point with its bounds, zero in the middle.
function forest(change, verdict) {
  const place = (ns) => WIDTH / 2 + (Math.max(-SCALE, Math.min(SCALE, share(ns, change.before_ns))) / SCALE) * (WIDTH / 2 - 8);
  const [low, point, high] = [place(change.low_ns), place(change.change_ns), place(change.high_ns)], y = HEIGHT / 2;
  const beyond = [change.low_ns, change.high_ns].map((ns) => Math.abs(share(ns, change.before_ns)) > SCALE);
  const end = (x, out, sign) => (out ? svg("path", { d: `M${x} ${y - 4} L${x + 6 * sign} ${y} L${x} ${y + 4} Z`, class: "fill" }) : svg("line", { x1: x, x2: x, y1: y - 4, y2: y + 4 }));
  return svg("svg", { width: WIDTH, height: HEIGHT, viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "forest " + VERDICT[verdict][1], role: "img", "aria-label": `${percentText(change)}, ${boundsText(change)}` },
    svg("line", { x1: WIDTH / 2, x2: WIDTH / 2, y1: 0, y2: HEIGHT, class: "zero" }), svg("line", { x1: low, x2: Math.max(high, low + 1), y1: y, y2: y }),
    end(low, beyond[0], low < WIDTH / 2 ? -1 : 1), end(high, beyond[1], high < WIDTH / 2 ? -1 : 1), svg("circle", { cx: point, cy: y, r: 4.5, class: "fill" }));
}

function withoutNsys(label) {
  const sides = [label.unprofiled.before, label.unprofiled.after];
  return sides.some((s) => s) ? sides.map((s) => (s ? within([s.ns, s.lower_ns, s.upper_ns]) : "none")).join(" → ") : "";
}

function side(label, which) {
  const parts = Object.fromEntries(DATA.causes.map((cause) => [cause.name, label.parts[cause.name] ? label.parts[cause.name][which] : 0]));
  return { parts, elapsed: label.total[which] || 1 };
}

function bars(label) {
  const scale = Math.max(label.total.before_ns, label.total.after_ns, 1);
  return make("div", { class: "pair" }, [["A", "before_ns"], ["B", "after_ns"]].map(([name, which]) =>
    make("div", null, make("span", { class: "site" }, name), budgetBar(side(label, which), scale, 220))));
}

const COLUMNS = [
  { key: "label", text: "label", value: (l) => l.label },
  { key: "verdict", text: "verdict", value: (l) => Object.keys(VERDICT).indexOf(l.verdict) },
  { key: "before", text: "A us", number: true, value: (l) => l.total.before_ns, show: (l) => micro(l.total.before_ns), hint: DATA.before },
  { key: "after", text: "B us", number: true, value: (l) => l.total.after_ns, show: (l) => micro(l.total.after_ns), hint: DATA.after },
  { key: "unprofiled", text: "w/o nsys us", number: true, value: (l) => l.unprofiled.after?.ns ?? -1, show: (l) => withoutNsys(l), hint: "the median interval of A and of B without nsys, predicted" },
  { key: "change", text: "change us", number: true, value: (l) => l.total.change_ns, show: (l) => microSigned(l.total.change_ns) },
  { key: "share", text: "change", number: true, value: (l) => share(l.total.change_ns, l.total.before_ns), show: (l) => percentText(l.total) },
  { key: "bounds", text: `bounds, ±${SCALE.toFixed(0)} %` },
  { key: "bars", text: "budgets" },
  { key: "count", text: "n A, B", number: true, value: (l) => Math.min(l.count_before, l.count_after), show: (l) => `${l.count_before}, ${l.count_after}` },
];

function verdictCell(label) {
  const [mark, look] = VERDICT[label.verdict];
  return make("td", { class: "verdict " + look, title: label.reason || null }, make("span", { "aria-hidden": "true" }, mark + " "), label.verdict, label.reason ? make("span", { class: "site" }, label.reason) : null);
}

function row(label) {
  const cells = COLUMNS.map((column) => {
    if (column.key === "label") return labelCell(label, () => choose(label, true));
    if (column.key === "verdict") return verdictCell(label);
    if (column.key === "bounds") return make("td", { title: boundsText(label.total) }, forest(label.total, label.verdict));
    if (column.key === "bars") return make("td", { class: "budget" }, bars(label));
    return make("td", { class: "number" }, column.show(label));
  });
  const element = make("tr", { class: label.library ? "library" : null }, cells);
  if (label === chosen.label) element.setAttribute("aria-current", "true");
  return element;
}

function draw() {
  const labels = shownLabels(COLUMNS, (l) => `${l.label} ${l.site} ${l.verdict}`);
  fillLabels($("table"), "Change of every label that is in both", COLUMNS, labels, row, draw);
}

function choose(label, show) {
  chosen.label = label;
  draw();
  $("label-head").textContent = "What changed in " + label.label;
  $("label-reading").textContent = `${VERDICT[label.verdict][0]} ${label.verdict}${label.reason ? " (" + label.reason + ")" : ""}: ${duration(label.total.before_ns)} → ${duration(label.total.after_ns)}, ${percentText(label.total)}, between ${boundsText(label.total).replace(" to ", " and ")}.`;
  const line = (name, change, strong) => [strong ? make("strong", null, name) : name, micro(change.before_ns), micro(change.after_ns), microSigned(change.change_ns),
    `${microSigned(change.low_ns)} to ${microSigned(change.high_ns)}`, change.clear ? "yes" : "no"];
  const rows = DATA.causes.filter((cause) => label.parts[cause.name]).map((cause) => {
    const mark = swatch(cause);
    mark.classList.add("mark");
    return line(make("span", { class: "named" }, mark, " " + cause.short), label.parts[cause.name], false);
  });
  const heads = [{ text: "cause" }, ...["A us", "B us", "change us", "bounds us"].map((text) => ({ text, number: true })), { text: "clear" }];
  fillTable($("causes"), "Change of every cause of " + label.label, heads, [line("total", label.total, true), ...rows]);
  if (show) {
    bring($("label"));
    $("label-head").focus({ preventScroll: true });
  }
}

function start() {
  showSections();
  const facts = [["A", DATA.before], ["B", DATA.after]];
  fill($("environment"), facts.map(([key, value]) => make("div", null, make("dt", null, key), make("dd", null, value))));
  $("summary").textContent = DATA.summary;
  $("method").textContent = DATA.method;
  fill($("remarks"), DATA.remarks.map((remark) => make("li", null, remark)));
  fill($("only-list"), DATA.only.flatMap((names, at) => (names.length ? [make("p", null, `Only in ${"AB"[at]}: `, names.map((name, i) => [i ? ", " : "", make("code", null, name)]).flat())] : [])));
  $("only").hidden = !DATA.only.some((names) => names.length);
  if (DATA.labels.length) {
    legend();
    choose(DATA.labels[0], false);
    $("filter").addEventListener("input", draw);
  } else for (const id of ["changes", "label"]) $(id).hidden = true;
  document.body.dataset.ready = "true";
}

start();

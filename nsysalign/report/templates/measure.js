// A measurement: the curve, a row per batch, the modes of one batch, budgets, distributions.

const COLOURS = ["var(--accent)", "var(--event)"];

function one(value, text = (v) => v) {
  return value === null || value === undefined ? "?" : text(value);
}

function count(value) {
  return one(value, (v) => v.toLocaleString("en", { maximumFractionDigits: v < 100 ? 2 : 0 }));
}

function within(low, high, value) {
  return low === null || high === null || !value ? "?" : ((50 * (high - low)) / value).toFixed(1) + " %";
}

function named(point) {
  return (DATA.targets.length > 1 ? "AB"[point.target] + ", " : "") + (point.batch === null ? "the call" : `batch ${point.batch}`);
}

// The scale of batch sizes: powers of two stand at equal distances.
function batchScale(points, left, right) {
  const low = Math.log2(Math.min(...points.map((p) => p.batch))), high = Math.log2(Math.max(...points.map((p) => p.batch)));
  return (batch) => left + ((Math.log2(batch) - low) / Math.max(high - low, 1e-9)) * (right - left);
}

function batchAxis(points, place, y) {
  let last = -Infinity;
  const shown = [...new Set(points.map((p) => p.batch))].sort((a, b) => a - b).filter((batch) => {
    const fits = place(batch) - last > 8 + 8 * String(batch).length;
    if (fits) last = place(batch);
    return fits;
  });
  return svg("g", { class: "axis" }, shown.map((batch) => svg("line", { x1: place(batch), x2: place(batch), y1: y, y2: y + 5 })),
    shown.map((batch) => svg("text", { x: place(batch), y: y + 18, "text-anchor": "middle" }, String(batch))),
    svg("text", { x: (place(points[0].batch) + place(points.at(-1).batch)) / 2, y: y + 36, "text-anchor": "middle" }, "batch size"));
}

function path(points, x, y) {
  return points.map((p, k) => (k ? "L" : "M") + x(p).toFixed(1) + " " + y(p).toFixed(1)).join("");
}

// A line with its band per target.  `get` gives [value, low, high] of a point; `extra` a second, thin line.
function drawCurve(plot, words, get, extra, marked) {
  const width = plot.clientWidth, height = 300, left = 66, right = width - 22, top = 26, bottom = height - 48;
  const points = DATA.points.filter((p) => p.batch !== null && get(p)[0] !== null).sort((a, b) => a.batch - b.batch);
  const highest = Math.max(...points.flatMap((p) => [get(p)[0], get(p)[2] ?? 0, extra ? extra(p) ?? 0 : 0])) * 1.06;
  const x = batchScale(points, left + 12, right - 12), y = (value) => bottom - (Math.max(0, Math.min(value, highest)) / highest) * (bottom - top), hits = [], drawn = [];
  DATA.targets.forEach((_, target) => {
    const mine = points.filter((p) => p.target === target), bounded = mine.filter((p) => get(p)[1] !== null && get(p)[2] !== null);
    if (bounded.length > 1) drawn.push(svg("path", { d: path(bounded, (p) => x(p.batch), (p) => y(get(p)[2])) + path(bounded.slice().reverse(), (p) => x(p.batch), (p) => y(get(p)[1])).replace("M", "L") + "Z", style: `fill:${COLOURS[target]};opacity:.22` }));
    if (extra) drawn.push(svg("path", { d: path(mine.filter((p) => extra(p) !== null), (p) => x(p.batch), (p) => y(extra(p))), style: `fill:none;stroke:${COLOURS[target]};stroke-width:1;stroke-dasharray:3 3` }));
    drawn.push(svg("path", { d: path(mine, (p) => x(p.batch), (p) => y(get(p)[0])), style: `fill:none;stroke:${COLOURS[target]};stroke-width:2` }));
    for (const p of mine) {
      const [value, low, high] = get(p), cx = x(p.batch), cy = y(value);
      if (low !== null && high !== null) drawn.push(svg("line", { x1: cx, x2: cx, y1: y(low), y2: y(high), style: `stroke:${COLOURS[target]};stroke-width:2` }));
      drawn.push(svg("circle", { cx, cy, r: 4.5, style: `stroke:${COLOURS[target]};stroke-width:2;fill:${p.processes > 1 ? COLOURS[target] : "var(--card)"}` }));
      hits.push({ x: cx - 9, y: top, w: 18, h: bottom - top, said: [named(p), `${count(p.rate)} per s ± ${within(p.rate_low, p.rate_high, p.rate)}`, `p50 ${duration(p.latency)} ± ${within(p.latency_low, p.latency_high, p.latency)}, p99 ${p.p99_bounded ? "" : "at least "}${duration(p.p99)}`, p.marks] });
    }
    const end = mine.at(-1);
    if (DATA.targets.length > 1 && end) drawn.push(svg("text", { x: x(end.batch) + 9, y: y(get(end)[0]) + 4, style: `fill:${COLOURS[target]}`, class: "strong" }, "AB"[target]));
    for (const p of marked && DATA.targets.length === 1 ? mine.filter((q) => /^best( \(|,|$)/.test(q.marks)) : []) drawn.push(svg("text", { x: x(p.batch), y: y(get(p)[0]) - 10, "text-anchor": x(p.batch) > right - 40 ? "end" : "middle", class: "strong" }, `best: ${p.batch}`));
  });
  const unit = highest > 2e9 ? [1e9, "s"] : highest > 2e6 ? [1e6, "ms"] : [1e3, "us"], scaled = extra ? unit[0] : 1;
  showDrawing(plot, width, height, [axisLeft(0, highest / scaled, (v) => y(v * scaled), left, right, extra ? `${words}, ${unit[1]}` : words), batchAxis(points, x, bottom), ...drawn], hits);
}

function drawCurves() {
  const batches = new Set(DATA.points.map((p) => p.batch));
  if (batches.size < 2) return;
  $("curve").hidden = false;
  const rates = DATA.points.some((p) => p.rate !== null);
  $("rate-plot").hidden = !rates;
  if (rates) whenSeen($("rate-plot"), () => drawCurve($("rate-plot"), "outputs per second", (p) => [p.rate, p.rate_low, p.rate_high], null, true));
  whenSeen($("latency-plot"), () => drawCurve($("latency-plot"), "latency", (p) => [p.latency, p.latency_low, p.latency_high], (p) => p.p99, false));
}

function drawPoints() {
  const two = DATA.targets.length > 1;
  const heads = [two ? { text: "of" } : null, { text: "batch", number: true }, { text: "p50", number: true }, { text: "±", number: true }, { text: "p90", number: true }, { text: "p99", number: true }, { text: "per second", number: true }, { text: "±", number: true }, { text: "memory", number: true }, { text: "SM MHz", number: true }, { text: "processes", number: true }, { text: "" }].filter(Boolean);
  fillTable($("points"), "One row per batch", heads, DATA.points.map((p) => [
    ...(two ? ["AB"[p.target]] : []), p.batch === null ? "-" : String(p.batch), duration(p.latency), within(p.latency_low, p.latency_high, p.latency), duration(p.p90), (p.p99_bounded ? "" : "≥ ") + duration(p.p99),
    count(p.rate), within(p.rate_low, p.rate_high, p.rate), p.memory ? (p.memory / 2 ** 30).toFixed(1) + " GiB" : "?", one(p.sm_mhz, (v) => v.toFixed(0)), String(p.processes), p.marks]));
}

function keysOf(rows) {
  const found = new Map();
  for (const row of rows) found.set(named(row), row);
  return found;
}

function choices(select, keys, draw, chosen) {
  fill(select, [...keys].map((key) => make("option", { value: key }, key)));
  if (chosen) select.value = chosen;
  select.addEventListener("change", draw);
}

const WORDS = {
  latency: "idle GPU, host clock around call and synchronise: one request", event: "idle GPU, event pair around the call", device: "behind a delay kernel: GPU time only",
  steady: "calls queued, per call: throughput", graph: "captured, replayed as a CUDA graph", transfer: "as latency, inputs copied in and outputs back",
};

function drawModes() {
  const key = $("mode-batch").value, rows = DATA.modes.filter((m) => named(m) === key);
  $("modes-reading").textContent = DATA.readings[key] || "";
  const name = (m) => m.mode + (m.l2 === "cold" ? ", cold L2" : "");
  fillTable($("mode-table"), "One row per mode", [{ text: "mode" }, { text: "time", number: true }, { text: "±", number: true }, { text: "mean", number: true }, { text: "deviation", number: true }, { text: "least", number: true }, { text: "most", number: true }, { text: "repetitions", number: true }, { text: "worth", number: true }, { text: "outliers", number: true }, { text: "what it is" }],
    rows.map((m) => [name(m), duration(m.value), within(m.low, m.high, m.value), duration(m.mean), duration(m.std), duration(m.least), duration(m.most), count(m.samples), count(m.effective), String(m.outliers), WORDS[m.mode] + (m.differ ? "; processes differ" : "")]));
  const plot = $("mode-plot"), width = plot.clientWidth, left = 118, right = width - 90, height = 34 + 34 * rows.length, hits = [];
  const most = Math.max(...rows.map((m) => m.high ?? m.value)) * 1.02, x = (ns) => left + (Math.min(ns, most) / most) * (right - left);
  const drawn = rows.map((m, k) => {
    const y = 22 + 34 * k;
    hits.push({ x: left, y: y - 12, w: right - left, h: 26, said: [name(m), `${duration(m.value)} ± ${within(m.low, m.high, m.value)}`, `medians of the processes: ${m.medians.map((v) => duration(v)).join(", ")}`, WORDS[m.mode]] });
    return svg("g", {}, svg("text", { x: left - 8, y: y + 5, "text-anchor": "end" }, name(m)), svg("rect", { x: left, y: y - 9, width: Math.max(1, x(m.value) - left), height: 18, rx: 3, style: "fill:var(--accent);opacity:.55" }),
      m.low === null ? null : svg("line", { x1: x(m.low), x2: Math.max(x(m.high), x(m.low) + 1.5), y1: y, y2: y, style: "stroke:var(--ink);stroke-width:3" }), m.medians.map((v) => svg("line", { x1: x(v), x2: x(v), y1: y - 9, y2: y + 9, style: "stroke:var(--ink);stroke-width:1" })),
      svg("text", { x: x(Math.max(m.value, m.high ?? 0)) + 7, y: y + 5 }, duration(m.value)));
  });
  showDrawing(plot, width, height, drawn, hits);
}

function drawBudgets() {
  if (!DATA.budgets.length) return;
  $("budgets").hidden = false;
  legend();
  fillTable($("budget-table"), "One row per profiled batch", [{ text: "batch" }, { text: "budget" }, { text: "under nsys", number: true }, { text: "GPU idle", number: true }, { text: "measured", number: true }, { text: "predicted", number: true }, { text: "" }],
    DATA.budgets.map((b) => [named(b), budgetBar({ parts: { ...ZERO, ...b.parts }, elapsed: b.elapsed }, b.elapsed, 420), duration(b.elapsed), percent(b.idle), duration(b.measured), duration(b.predicted), b.verdict]));
  for (const cell of $("budget-table").querySelectorAll("tbody td:nth-child(2)")) cell.className = "wide-budget";
}

function drawSpread() {
  const spread = DATA.spreads.find((s) => s.key === $("spread-of").value), plot = $("spread-plot");
  if (!spread) return;
  const width = plot.clientWidth, height = 250, left = 46, right = width - 16, top = 12, bottom = height - 44, hits = [];
  const bins = spread.counts[0].length, most = Math.max(...spread.counts.flat(), 1), scale = spread.high > 2e6 ? [1e6, "ms"] : [1e3, "us"];
  const x = (k) => left + (k / bins) * (right - left), y = (n) => bottom - (n / most) * (bottom - top), value = (k) => spread.low + ((spread.high - spread.low) * k) / bins;
  const drawn = spread.counts.map((counts, process) => svg("path", { style: `fill:none;stroke:var(--accent);stroke-width:1.6;opacity:${1 - (0.6 * process) / spread.counts.length};stroke-dasharray:${["none", "5 3", "2 2"][process % 3]}`, d: counts.map((n, k) => `${k ? "L" : "M"}${x(k).toFixed(1)} ${y(n).toFixed(1)}L${x(k + 1).toFixed(1)} ${y(n).toFixed(1)}`).join("") }));
  for (let k = 0; k < bins; k += 1) hits.push({ x: x(k), y: top, w: x(k + 1) - x(k), h: bottom - top, said: [`${duration(value(k))} to ${duration(value(k + 1))}`, ...spread.counts.map((c, p) => `process ${p + 1}: ${plural(c[k], "repetition")}`)] });
  const place = (v) => left + ((v * scale[0] - spread.low) / (spread.high - spread.low)) * (right - left);
  const marks = [["p50", spread.p50], ["p99", spread.p99]].filter(([, v]) => v !== null && v <= spread.high).map(([word, v]) => svg("g", {}, svg("line", { class: "event", x1: place(v / scale[0]), x2: place(v / scale[0]), y1: top, y2: bottom }), svg("text", { x: place(v / scale[0]) + 4, y: top + 10 }, word)));
  showDrawing(plot, width, height, [axisLeft(0, most, y, left, right, "", 4), axisBelow(spread.low / scale[0], spread.high / scale[0], place, bottom, right - left, scale[1]), ...drawn, ...marks], hits);
  $("spread-note").textContent = `One line per process, ${plural(spread.samples, "repetition")}. ` + (spread.above ? `${plural(spread.above, "repetition")} above ${duration(spread.high)} not drawn, up to ${duration(spread.most)}; ` : "") + "nothing is removed from the numbers.";
}

showSections();
const ZERO = Object.fromEntries(DATA.causes.map((cause) => [cause.name, 0]));
$("name").textContent = DATA.targets.join(" against ");
$("headline").textContent = DATA.headline;
fill($("environment"), DATA.environment.map(([key, value]) => make("div", null, make("dt", null, key), make("dd", null, value))));
if (DATA.notes.length) { $("notes-section").hidden = false; fill($("notes"), DATA.notes.map((note) => make("li", null, note))); }
drawCurves();
drawPoints();
if (DATA.differences.length) {
  $("differences").hidden = false;
  fillTable($("difference-table"), "One row per batch and mode", [{ text: "batch" }, { text: "mode" }, { text: "A", number: true }, { text: "B", number: true }, { text: "change", number: true }, { text: "95 %" }, { text: "verdict" }], DATA.differences.map((d) => [d.batch, d.mode, duration(d.a), duration(d.b), d.change, d.bounds, d.verdict]));
}
const MODES_OF = keysOf(DATA.modes);
choices($("mode-batch"), MODES_OF.keys(), drawModes, DATA.chosen);
whenSeen($("mode-plot"), drawModes);
drawModes();
drawBudgets();
choices($("spread-of"), DATA.spreads.map((s) => s.key), drawSpread, DATA.spreads.find((s) => s.key.startsWith(DATA.chosen))?.key);
whenSeen($("spread-plot"), drawSpread);

// A measurement: the curve, a row per batch, the modes of one batch, clocks.

const COLOURS = ["var(--accent)", "var(--event)"];
const TWO = DATA.targets.length > 1;

// The scale of batch sizes: powers of two stand at equal distances.
function batchScale(points, left, right) {
  const logs = points.map((p) => Math.log2(p.batch));
  const low = Math.min(...logs), width = Math.max(Math.max(...logs) - low, 1e-9);
  return (batch) => left + ((Math.log2(batch) - low) / width) * (right - left);
}

function batchAxis(points, place, y) {
  let last = -Infinity;
  const batches = [...new Set(points.map((p) => p.batch))].sort((a, b) => a - b);
  const shown = batches.filter((batch) => {
    const fits = place(batch) - last > 8 + 8 * String(batch).length;
    if (fits) last = place(batch);
    return fits;
  });
  const middle = (place(batches[0]) + place(batches.at(-1))) / 2;
  return svg("g", { class: "axis" },
    shown.map((batch) => svg("line", { x1: place(batch), x2: place(batch), y1: y, y2: y + 5 })),
    shown.map((batch) => svg("text", { x: place(batch), y: y + 18, "text-anchor": "middle" },
      batch.toLocaleString("en"))),
    svg("text", { x: middle, y: y + 36, "text-anchor": "middle" }, "batch size"));
}

function path(points, x, y) {
  return points.map((p, k) => (k ? "L" : "M") + x(p).toFixed(1) + " " + y(p).toFixed(1)).join("");
}

// A line with its band per target.  `what` is "rate" or "latency": the row's value and bounds.
function drawCurve(plot, what, extra) {
  const width = plot.clientWidth, height = 300, left = 66, right = width - 22, top = 26;
  const bottom = height - 48, ns = what === "latency" ? "_ns" : "";
  const value = (p) => p[what + ns], low = (p) => p[`${what}_low${ns}`];
  const high = (p) => p[`${what}_high${ns}`];
  const points = DATA.points.filter((p) => p.batch !== null && value(p) !== null)
    .sort((a, b) => a.batch - b.batch);
  const tops = points.flatMap((p) => [value(p), extra ? extra(p) ?? 0 : 0]);
  const highest = Math.max(...tops) * 1.1;
  const x = batchScale(points, left + 12, right - 12);
  const y = (v) => bottom - (Math.max(0, Math.min(v, highest)) / highest) * (bottom - top);
  const hits = [], drawn = [];
  DATA.targets.forEach((_, side) => {
    const own = points.filter((p) => p.side === side), stroke = `stroke:${COLOURS[side]}`;
    const bounded = own.filter((p) => low(p) !== null && high(p) !== null);
    const line = (rows, get, style) => svg("path", {
      d: path(rows, (p) => x(p.batch), (p) => y(get(p))), style: `fill:none;${stroke};${style}` });
    if (bounded.length > 1) {
      const back = path(bounded.slice().reverse(), (p) => x(p.batch), (p) => y(low(p)));
      drawn.push(svg("path", {
        d: path(bounded, (p) => x(p.batch), (p) => y(high(p))) + back.replace("M", "L") + "Z",
        style: `fill:${COLOURS[side]};opacity:.22` }));
    }
    if (extra) {
      const rows = own.filter((p) => extra(p) !== null);
      drawn.push(line(rows, extra, "stroke-width:1;stroke-dasharray:3 3"));
    }
    drawn.push(line(own, value, "stroke-width:2"));
    for (const p of own) {
      const cx = x(p.batch), filled = p.processes > 1 ? COLOURS[side] : "var(--card)";
      drawn.push(svg("circle", {
        cx, cy: y(value(p)), r: 4.5, style: `${stroke};stroke-width:2;fill:${filled}` }));
      const said = DATA.heads.map((head, k) => `${head} ${p.cells[k]}`).slice(0, -1);
      hits.push({ x: cx - 9, y: top, w: 18, h: bottom - top, said: [p.of, ...said, p.marks] });
      if (!TWO && what === "rate" && p.of === DATA.chosen) {
        const anchor = cx > right - 40 ? "end" : "middle", y0 = y(value(p)) - 10;
        drawn.push(svg("text", { x: cx, y: y0, "text-anchor": anchor, class: "strong" }, p.of));
      }
    }
    const end = own.at(-1), label = { style: `fill:${COLOURS[side]}`, class: "strong" };
    if (TWO && end) {
      const place = { x: x(end.batch) + 9, y: y(value(end)) + 4 };
      drawn.push(svg("text", { ...place, ...label }, "AB"[side]));
    }
  });
  const unit = highest > 2e9 ? [1e9, "s"] : highest > 2e6 ? [1e6, "ms"] : [1e3, "us"];
  const scale = ns ? unit[0] : 1, title = ns ? `latency, ${unit[1]}` : "outputs per second";
  const axis = axisLeft(0, highest / scale, (v) => y(v * scale), left, right, title);
  showDrawing(plot, width, height, [axis, batchAxis(points, x, bottom), ...drawn], hits);
}

function drawCurves() {
  if (new Set(DATA.points.map((p) => p.batch)).size < 2) return;
  $("curve").hidden = false;
  $("rate-plot").hidden = !DATA.points.some((p) => p.rate !== null);
  $("latency-plot").hidden = !DATA.points.some((p) => p.latency_ns !== null);
  if (!$("rate-plot").hidden) whenSeen($("rate-plot"), () => drawCurve($("rate-plot"), "rate"));
  if (!$("latency-plot").hidden) {
    whenSeen($("latency-plot"), () => drawCurve($("latency-plot"), "latency", (p) => p.p99_ns));
  }
}

function drawPoints() {
  const heads = [...(TWO ? [{ text: "of" }] : []), ...numbers(...DATA.heads.slice(0, -1)),
    { text: "processes", number: true }, { text: "" }];
  fillTable($("points"), "One row per batch", heads, DATA.points.map((p) => [
    ...(TWO ? ["AB"[p.side]] : []), ...p.cells.slice(0, -1), String(p.processes), p.marks]));
}

function drawModes() {
  const key = $("mode-batch").value, rows = DATA.modes.filter((m) => m.of === key);
  const point = DATA.points.find((p) => p.of === key);
  fill($("modes-reading"), point.lines.map((text) => make("li", null, text)));
  const heads = [{ text: "mode" }, ...numbers("time", "±", "mean", "repetitions"),
    { text: "what it is" }];
  fillTable($("mode-table"), "One row per mode", heads, rows.map((m) => [
    m.name, duration(m.value_ns), m.known, duration(m.mean_ns), m.samples.toLocaleString("en"),
    m.words]));
}

showSections();
$("name").textContent = DATA.targets.join(" against ");
$("headline").textContent = DATA.headline;
fill($("environment"), make("div", null, make("dt", null, "on"), make("dd", null, DATA.environment)));
if (DATA.notes.length) {
  $("notes-section").hidden = false;
  fill($("notes"), DATA.notes.map((note) => make("li", null, note)));
}
drawCurves();
drawPoints();
if (DATA.changes.length) {
  $("differences").hidden = false;
  const heads = DATA.change_heads.map((text, k) => ({ text, number: [0, 2, 3, 4].includes(k) }));
  fillTable($("difference-table"), "One row per batch and mode", heads, DATA.changes);
}
fill($("mode-batch"), [...new Set(DATA.modes.map((m) => m.of))].map((key) =>
  make("option", { value: key }, key)));
$("mode-batch").value = DATA.chosen;
$("mode-batch").addEventListener("change", drawModes);
drawModes();

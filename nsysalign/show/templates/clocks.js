// The GPU's clock over the whole run, what held it down, and the intervals of the chosen label
// under it.

const MOST_RUNS_DRAWN = 3000, MOST_HOLDS = 300;

// Some intervals where there are too many to draw: evenly in time, the slowest always among them.
function sample(count, most, always) {
  if (count <= most) return Array.from({ length: count }, (_, i) => i);
  const chosen = new Set(always);
  for (let k = 0; k < most; k += 1) chosen.add(Math.floor((k * count) / most));
  return [...chosen].sort((p, q) => p - q);
}

function whyWords(bits) {
  return Object.entries(DATA.clocks.why).filter(([bit]) => Number(bit) & bits)
    .map(([, text]) => text);
}

function clocksOf(runs) {
  return DATA.clocks.devices.find((item) => item.device === runs.device) || DATA.clocks.devices[0];
}

function clockSpan(gpu, i) {
  return gpu.low[i] === gpu.high[i] ? `${gpu.high[i]}` : `${gpu.low[i]} to ${gpu.high[i]}`;
}

// What held the clock down: one bar as long as it did, a row per reason.
function holds(gpu) {
  const rows = [];
  for (const [bit, word] of Object.entries(DATA.clocks.why)) {
    let open = null;
    gpu.x.forEach((start, i) => {
      if (!(gpu.why[i] & Number(bit))) open = null;
      else if (open) open.end = gpu.end[i];
      else rows.push(open = { word, start, end: gpu.end[i] });
    });
  }
  return rows;
}

// The words about the clock and the chosen label's intervals, and what their drawing needs.
function sayClocks() {
  const at = labelAt();
  const label = DATA.labels[at], runs = DATA.runs[at], gpu = clocksOf(runs),
    low = Math.min(...gpu.low), high = Math.max(...gpu.high);
  const chosen = sample(runs.elapsed.length, MOST_RUNS_DRAWN,
    [runs.elapsed.indexOf(slowest(runs))]), rows = holds(gpu);
  $("clocks-reading").textContent = `GPU ${gpu.device}: SM clock ` +
    `${low === high ? high : `${low} to ${high}`} MHz in ${plural(gpu.samples, "sample")}; ` +
    `below it the intervals of ${label.label}.`;
  const said =
    ["Between two samples the clock is not known. Circles: measured; filled: kernel only."];
  if (gpu.joined > 1) said.push(
    `Each point of the clock joins ${gpu.joined} stretches of equal samples, from their least to ` +
    "their highest.");
  if (rows.length > MOST_HOLDS) said.push(
    `Of ${rows.length} times that something held the clock down the first ${MOST_HOLDS} are ` +
    "drawn.");
  if (chosen.length < runs.elapsed.length) said.push(
    `Drawn are ${chosen.length.toLocaleString("en")} of ` +
    `${plural(runs.elapsed.length, "interval")}, evenly in time.`);
  const limit = upperLimit(label, runs), above = runs.elapsed.filter((ns) => ns > limit).length;
  if (above) said.push(
    `${plural(above, "interval")} lie${above === 1 ? "s" : ""} above the drawn range.`);
  $("clocks-note").textContent = said.join(" ");
  const words = new Set(rows.slice(0, MOST_HOLDS).map((row) => row.word)).size,
    plot = $("clock-plot");
  plot.style.height = 370 + (words ? 22 * words + 20 : 0) + AXIS_PX + "px";
  plot.setAttribute("aria-label", $("clocks-reading").textContent);
  return [label, runs, gpu, chosen, rows.slice(0, MOST_HOLDS), limit];
}

function drawClocks() {
  plotClocks(...sayClocks());
}

// From top to bottom: the clock, what held it down, the intervals of the chosen label; time on one
// axis in seconds.
function plotClocks(label, runs, gpu, chosen, rows, limit) {
  const plot = $("clock-plot"), width = plot.clientWidth,
    words = [...new Set(rows.map((row) => row.word))], held = 200 + 22 * words.length;
  const bottom = held + (words.length ? 20 : 0) + 170,
    left = Math.min(width < 700 ? 110 : 210, Math.max(76,
    16 + 6.4 * Math.max(0, ...words.map((word) => word.length)))), right = width - 14;
  const from = Math.min(...gpu.x, ...chosen.map((i) => runs.start[i])),
    to = Math.max(...gpu.end, ...chosen.map((i) => runs.start[i] + runs.elapsed[i] / 1e3),
    from + 1);
  const x = (at) => left + ((at - from) / (to - from)) * (right - left),
    low = 0.94 * Math.min(...gpu.low), high = 1.03 * Math.max(...gpu.high), hits = [], drawn = [];
  const mhz = (value) => 14 + 176 * (1 - (value - low) / Math.max(1, high - low)),
    top = bottom - 160, ns = (value) => bottom - 160 * Math.min(1, value / limit);
  const points = [];
  gpu.x.forEach((start, i) => {
    points.push(`${x(start)} ${mhz(gpu.low[i])}`, `${x(gpu.end[i])} ${mhz(gpu.high[i])}`);
    hits.push({ x: x(start), y: 14, w: Math.max(1, x(gpu.end[i]) - x(start)), h: 176,
      said: [`SM clock ${clockSpan(gpu, i)} MHz`, whyWords(gpu.why[i]).join(", ")] });
  });
  drawn.push(svg("polyline", { class: "clock", points: points.join(" ") }));
  for (const row of rows) {
    const y = 204 + 22 * words.indexOf(row.word), w = Math.max(1.5, x(row.end) - x(row.start));
    drawn.push(svg("rect", { class: row.word === "idle" ? "held idle" : "held", x: x(row.start), y,
      width: w, height: 15 }));
    hits.push({ x: x(row.start), y, w, h: 15,
      said: [row.word, `for ${duration((row.end - row.start) * 1e3)}`] });
  }
  words.forEach(
    (word, k) =>
    drawn.push(svg("text", { class: "lane", x: left - 8, y: 216 + 22 * k, "text-anchor": "end" },
      cut(word, Math.floor((left - 12) / 6.2)))));
  // All marks of one sort are one path: thousands of elements would hold up the page.
  const kernel = kernelOf(runs), circle = "a3 3 0 1 0 6 0a3 3 0 1 0 -6 0";
  const marks = (values, name) => svg("path", { class: name, d: chosen.map((i) =>
    `M${(x(runs.start[i]) - 3).toFixed(1)} ${ns(values[i]).toFixed(1)}${circle}`).join("") });
  drawn.push(marks(runs.elapsed, "run"), marks(kernel, "run kernel"));
  for (const i of chosen) {
    const said =
      [nameOf(label, runs, i),
      `measured ${duration(runs.elapsed[i])}, kernel only ${duration(kernel[i])}`],
      go = () => choose(label.label, numberOf(runs, i), true);
    for (const value of [runs.elapsed[i], kernel[i]]) hits.push(
      { x: x(runs.start[i]) - 4, y: ns(value) - 4, w: 8, h: 8, said, go });
  }
  const unit = limit >= 20e6 ? [1e6, "ms"] : [1e3, "us"];
  showDrawing(plot, width, bottom + AXIS_PX, [axisLeft(low, high, mhz, left, right, "MHz", 4),
    axisLeft(0, limit / unit[0], (value) => ns(value * unit[0]), left, right, unit[1], 4),
    axisBelow(0, (to - from) / 1e6, (s) => x(from + s * 1e6), bottom, right - left,
      "s since the first sample"), svg("line",
      { class: "frame", x1: left, x2: right, y1: top, y2: top }), ...drawn], hits);
}

function watchClocks() {
  if (!DATA.clocks) return () => {};
  $("clocks").hidden = false;
  sayClocks();
  return whenSeen($("clock-plot"), drawClocks);
}

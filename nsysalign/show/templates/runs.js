// Interval by interval: the budget of every interval of the chosen label over time, and as a table.

const MOST_POINTS = 2000, MOST_RUNS = 300, RUNS_TALL = 330;

// The chosen label's place among the labels and runs, -1 for none.
function labelAt() {
  return DATA.labels.findIndex((item) => item.label === selected.label);
}

function numberOf(runs, i) {
  return runs.interval[i];
}

function nameOf(label, runs, i) {
  return runs.names ? runs.names[i] : `${label.label}#${i}`;
}

function errorOf(runs, i) {
  return Array.isArray(runs.error) ? runs.error[i] : runs.error;
}

function kernelOf(runs) {
  return runs.kernel || runs.parts.kernel || runs.elapsed.map(() => 0);
}

// Means over `size` neighbours: what a line of 2,000 points can show.
function condense(values, size) {
  if (size === 1) return values;
  const out = [];
  for (let at = 0; at < values.length; at += size) {
    const group = values.slice(at, at + size);
    out.push(group.reduce((sum, value) => sum + value, 0) / group.length);
  }
  return out;
}

// One cold first interval must not flatten all others: the axis ends above the ordinary, and the
// page says so.
function upperLimit(label, runs) {
  const most = slowest(runs);
  if (most < 5 * label.median || label.count < 4) return 1.06 * most || 1;
  return 1.1 * runs.elapsed.reduce((most, ns) =>
    (ns < 4 * label.median ? Math.max(most, ns) : most), 0);
}

function slowest(runs) {
  return runs.elapsed.reduce((most, ns) => Math.max(most, ns), 0);
}

// The words about the chosen label's intervals, and what their drawing needs.
function sayRuns() {
  const at = labelAt();
  const label = DATA.labels[at], runs = DATA.runs[at], count = runs.elapsed.length;
  const size = Math.ceil(count / MOST_POINTS), limit = upperLimit(label, runs);
  const above = condense(runs.elapsed, size).filter((ns) => ns > limit).length;
  const warm = label.cold ?
    `${label.cold > 1 ? `${label.cold} cold intervals` : "a cold interval"} of ` +
    `${duration(label.cold_ns)}, then ${plural(count - label.cold, "warm interval")}` :
    plural(count, "interval");
  const spread = count - label.cold > 1 ?
    `median ${duration(label.median)}, from ${duration(label.min)} to ${duration(label.max)}, ` +
    `standard deviation ${duration(label.std)}` : duration(label.elapsed);
  $("runs-reading").textContent = `${label.label}: ${warm}: ${spread}, under ${DATA.recorder}.`;
  const said = [];
  const [lie, are] = above === 1 ? ["lies", "is"] : ["lie", "are"];
  if (above) said.push(`${plural(above, size > 1 ? "column" : "interval")} ${lie} above the ` +
    "drawn range (slowest " +
    `${duration(slowest(runs))}) and ${are} drawn shorter, broken, in proportion; ` +
    "the table has them.");
  if (size > 1) said.push(`Each column is the mean of ${size} neighbouring intervals.`);
  said.push("Click an interval to open it.");
  $("runs-note").textContent = said.join(" ");
  $("iterations").setAttribute("aria-label", $("runs-reading")
    .textContent + " The table of the intervals follows.");
  drawRunsTable();
  return { label, runs, size, limit };
}

function drawRuns() {
  const { label, runs, size, limit } = sayRuns();
  plotRuns(label, runs, size, limit);
}

// Stacked budgets of all intervals in order of time, one path per cause.
function plotRuns(label, runs, size, limit) {
  const plot = $("iterations"), width = plot.clientWidth, height = RUNS_TALL, bottom = height - 46,
    left = 64;
  const whole = condense(runs.elapsed, size), kernel = condense(kernelOf(runs), size);
  const right = width - 14, step = (right - left) / whole.length, gap = step > 8 ? Math.min(6, step * 0.15) : 0;
  const y = (ns) => 12 + (bottom - 12) * (1 - Math.min(ns, limit) / limit),
    x = (i) => left + i * step;
  const unit = limit >= 20e6 ? [1e6, "ms"] : [1e3, "us"], base = new Float64Array(whole.length),
    hits = [], drawn = [];
  for (const cause of PRESENT.filter((item) => runs.parts[item.name])) {
    const values = condense(runs.parts[cause.name], size);
    let path = "";
    values.forEach((part, i) => {
      const ns = whole[i] > limit ? (part * limit) / whole[i] : part;
      const [foot, head] = [base[i], base[i] + ns].map((level) => y(level).toFixed(1));
      if (ns > 0) path += `M${(x(i) + gap / 2).toFixed(2)} ${foot}V${head}` +
        `h${Math.max(step - gap, 0.4).toFixed(2)}V${foot}z`;
      base[i] += ns;
    });
    drawn.push(svg("path", { class: "cause", d: path, fill: cause.colour }));
    if (cause.pattern) drawn.push(svg("path",
      { d: path, fill: `url(#${patternId(cause.pattern)})`, style: `color:${cause.ink}` }));
  }
  const [shift, long] = step > 8 ? [gap / 2, `h${(step - gap).toFixed(2)}`] : [step / 2, ""];
  const line = (values, name) => svg("path", { class: name, d: values.map((ns, i) =>
    `${i ? "L" : "M"}${(x(i) + shift).toFixed(2)} ${y(ns).toFixed(1)}${long}`).join("") });
  drawn.push(line(whole, "measured"), line(kernel, "kernel-only"));
  // what does not fit keeps its proportions and is cut open below its end
  const broken = whole.map((ns, i) => (ns > limit ? `M${x(i) + gap / 2} 24l${step - gap} -6` : ""))
    .join("");
  if (broken) drawn.push(svg("path", { class: "broken", d: broken }));
  whole.forEach(
    (ns, i) => hits.push({ x: x(i), y: 0, w: Math.max(step, 0.5), h: bottom,
    go: size === 1 ? () => choose(label.label, numberOf(runs, i), true) : null,
    said: [size === 1 ? nameOf(label, runs, i) : `mean of ${size} intervals`,
      `measured ${duration(ns)}, kernel only ${duration(kernel[i])}`,
      ...PRESENT.filter((cause) => runs.parts[cause.name]?.[i * size]).slice(0, size === 1 ? 13 : 0)
        .map((cause) => `${cause.short} ${duration(runs.parts[cause.name][i])}`)] }));
  showDrawing(plot, width, height,
    [axisLeft(0, limit / unit[0], (value) => y(value * unit[0]), left, right,
    `${unit[1]} under ${DATA.recorder}`),
    axisBelow(0, runs.elapsed.length - 1, (run) => left + (run / size + 0.5) * step, bottom,
      right - left,
      "interval, in order of time", true), ...drawn], hits);
}

function drawRunsTable() {
  if (!$("runs-table").open) return;
  const at = labelAt(), label = DATA.labels[at], runs = DATA.runs[at];
  const causes = PRESENT.filter((cause) => runs.parts[cause.name]), rows = [];
  for (let i = 0; i < Math.min(MOST_RUNS, runs.elapsed.length); i += 1) {
    const number = numberOf(runs, i), name = nameOf(label, runs, i);
    rows.push([make("button",
      { type: "button", class: "link", onclick: () => choose(label.label, number, true) }, name), micro(runs.elapsed[i]), micro(errorOf(runs, i)),
      ...(causes.length ? causes.map((c) => micro(runs.parts[c.name][i])) :
      [micro(kernelOf(runs)[i])])]);
  }
  const heads = [{ text: "interval" }, ...["time us", "error ± us",
    ...(causes.length ? causes.map((c) => c.short + " us") : ["kernel us"])].map(
    (text) => ({ text, number: true }))];
  const count = runs.elapsed.length;
  fillTable($("runs-table").querySelector("table"), "Breakdown of the intervals of " + label.label,
    heads, rows);
  $("runs-table").querySelector("summary").textContent = count > MOST_RUNS ?
    `Table of the first ${MOST_RUNS} of ${plural(count, "interval")}` : "Table of the intervals";
}

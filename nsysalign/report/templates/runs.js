// Run by run: the budget of every interval of the chosen label over time, its distribution, and both as a table.

const MOST_BARS = 150, FEWEST_FOR_DISTRIBUTION = 10, MOST_POINTS = 2000, PAGE = 50;
const paging = { at: 0 };

// A list, or {from, step} of evenly spaced numbers.
function nth(column, i) {
  return Array.isArray(column) ? column[i] : column.from + i * column.step;
}

function numberOf(runs, i) {
  return nth(runs.interval, i);
}

function nameOf(label, runs, i) {
  const name = nth(runs.names, i);
  return typeof name === "number" ? `${label.label}#${name}` : name;
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

// One cold first run must not flatten all others: the axis ends above the ordinary, and the page says so.
function upperLimit(label, runs) {
  if (label.max < 5 * label.median || label.count < 4) return 1.06 * label.max;
  return 1.1 * runs.elapsed.reduce((most, ns) => (ns < 4 * label.median ? Math.max(most, ns) : most), 0);
}

function causeTraces(runs, x, size) {
  return PRESENT.filter((cause) => runs.parts[cause.name]).map((cause) => {
    const y = condense(runs.parts[cause.name], size).map((ns) => ns / 1e3);
    const common = { x, y, name: cause.short, hovertemplate: `${cause.short} %{y:.2f} us<extra></extra>`, xaxis: "x", yaxis: "y" };
    return x.length <= MOST_BARS
      ? { ...common, type: "bar", marker: { color: cause.colour, pattern: pattern(cause), line: { width: 0 } } }
      : { ...common, type: "scatter", mode: "lines", stackgroup: "parts", line: { width: 0, color: cause.colour },
        fillcolor: cause.colour, fillpattern: pattern(cause) };
  });
}

// Each histogram has its own scale of counts: a steady kernel beside a noisy host would leave nothing to see.
function histogram(values, name, limit, along, style) {
  return { type: "histogram", y: values.filter((ns) => ns / 1e3 <= limit).map((ns) => ns / 1e3), name, xaxis: along, yaxis: "y", nbinsy: 60, showlegend: false, marker: style,
    opacity: 0.85, hovertemplate: `${name}: %{x} runs at %{y} us<extra></extra>` };
}

function drawRuns() {
  const at = DATA.labels.findIndex((item) => item.label === selected.label);
  if (at < 0) return;
  const label = DATA.labels[at], runs = DATA.runs[at], count = runs.elapsed.length;
  const size = Math.ceil(count / MOST_POINTS), limit = upperLimit(label, runs) / 1e3;
  const above = runs.elapsed.filter((ns) => ns / 1e3 > limit).length;
  const spread = label.count > 1 ? `median ${duration(label.median)}, from ${duration(label.min)} to ${duration(label.max)}, standard deviation ${duration(label.std)}` : duration(label.elapsed);
  $("runs-reading").textContent = `${label.label}: ${plural(count, "run")}, ${spread}.`;
  const said = [];
  if (above) said.push(`${plural(above, "run")} lie${above === 1 ? "s" : ""} above the drawn range (slowest ${duration(label.max)}): drag the axis upwards or read the table.`);
  if (size > 1) said.push(`Each point is the mean of ${size} neighbouring runs.`);
  if (count >= FEWEST_FOR_DISTRIBUTION) said.push("Right: how the measured and the kernel-only time (hatched) are distributed, each to its own scale.");
  if (Object.keys(DATA.timelines).length) said.push("Click a run to see its timeline, where the page holds it.");
  $("runs-note").textContent = said.join(" ");
  if (window.Plotly) plotRuns(label, runs, size, limit);
  paging.at = 0;
  drawRunsTable();
}

function plotRuns(label, runs, size, limit) {
  const x = condense(runs.elapsed.map((_, i) => i), size), kernel = kernelOf(runs);
  const traces = causeTraces(runs, x, size);
  traces.push({ type: "scatter", mode: x.length > 60 ? "lines" : "lines+markers", x, y: condense(runs.elapsed, size).map((ns) => ns / 1e3), name: "measured",
    line: { color: theme("--ink"), width: 1.2 }, marker: { size: 5, color: theme("--ink") },
    hovertext: x.map((value, i) => escapePlotly(size === 1 ? nameOf(label, runs, i) : `${size} runs`)), hovertemplate: "<b>%{hovertext}</b><br>measured %{y:.2f} us<extra></extra>" });
  traces.push({ type: "scatter", mode: "lines", x, y: condense(kernel, size).map((ns) => ns / 1e3), name: "kernel only", line: { color: theme("--ink"), width: 1.2, dash: "dot" },
    hovertemplate: "kernel only %{y:.2f} us<extra></extra>" });
  const distribution = runs.elapsed.length >= FEWEST_FOR_DISTRIBUTION;
  if (distribution) {
    traces.push(histogram(runs.elapsed, "measured", limit, "x2", { color: theme("--event") }));
    traces.push(histogram(kernel, "kernel only", limit, "x3", { color: CAUSE.kernel.colour, pattern: { shape: "/", fgcolor: CAUSE.kernel.ink, fgopacity: 0.4, size: 5, fillmode: "overlay" } }));
  }
  const layout = baseLayout({
    height: 360, margin: { l: 70, r: 16, t: 10, b: 48 }, barmode: "stack", bargap: x.length > 40 ? 0 : 0.12, hovermode: "x unified", showlegend: true,
    legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, traceorder: "normal" },
    xaxis: axis({ title: { text: "run, in order of time" }, domain: [0, distribution ? 0.74 : 1], range: [-0.6, runs.elapsed.length - 0.4], tickformat: ",d", ...(x.length < 10 ? { dtick: 1 } : {}) }),
    xaxis2: axis({ title: { text: distribution ? "distribution" : "" }, domain: [0.79, 1], showticklabels: false, ticks: "", fixedrange: true }),
    xaxis3: axis({ overlaying: "x2", showgrid: false, showticklabels: false, ticks: "", fixedrange: true }),
    yaxis: axis({ title: { text: "us" }, range: [0, limit], exponentformat: "none", separatethousands: true }),
  });
  const plot = $("iterations");
  plot.setAttribute("aria-label", $("runs-reading").textContent + " The table of the runs follows.");
  drawPlot(plot, traces, layout, { ...CONFIG, doubleClick: "reset+autosize" }).then(() => {
    plot.removeAllListeners?.("plotly_click");
    plot.on("plotly_click", (event) => {
      const point = event.points.find((item) => !["x2", "x3"].includes(item.data.xaxis));
      if (point && size === 1) choose(label.label, numberOf(runs, point.pointIndex), true);
    });
  });
}

function drawRunsTable() {
  if (!$("runs-table").open) return;
  const at = DATA.labels.findIndex((item) => item.label === selected.label), label = DATA.labels[at], runs = DATA.runs[at];
  const causes = PRESENT.filter((cause) => runs.parts[cause.name]), from = paging.at, to = Math.min(from + PAGE, runs.elapsed.length);
  const rows = [];
  for (let i = from; i < to; i += 1) {
    const number = numberOf(runs, i), name = nameOf(label, runs, i);
    const held = DATA.timelines[number] ? make("button", { type: "button", class: "link", onclick: () => choose(label.label, number, true) }, name) : name;
    rows.push([held, micro(runs.elapsed[i]), micro(errorOf(runs, i)), ...(causes.length ? causes.map((c) => micro(runs.parts[c.name][i])) : [micro(kernelOf(runs)[i])])]);
  }
  const heads = [{ text: "run" }, ...["time us", "± us", ...(causes.length ? causes.map((c) => c.short + " us") : ["kernel us"])].map((text) => ({ text, number: true }))];
  fillTable($("runs-table").querySelector("table"), "Budget of every run of " + label.label, heads, rows);
  $("page-at").textContent = `${(from + 1).toLocaleString("en")} to ${to.toLocaleString("en")} of ${plural(runs.elapsed.length, "run")}`;
  $("page-back").disabled = from === 0;
  $("page-on").disabled = to === runs.elapsed.length;
}

function turnPage(step) {
  paging.at += step * PAGE;
  drawRunsTable();
}

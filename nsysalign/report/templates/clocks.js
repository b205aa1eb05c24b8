// The GPU's clock over the whole run, what held it down, and the runs of the chosen label under it.

const MOST_RUNS_DRAWN = 3000, MOST_HOLDS = 300, MOST_STRETCHES = 500;
const clocks = { near: false };

function whyWords(bits) {
  return Object.entries(DATA.clocks.why).filter(([bit]) => Number(bit) & bits).map(([, text]) => text);
}

function labelAt() {
  return DATA.labels.findIndex((item) => item.label === selected.label);
}

function clocksOf(runs) {
  return DATA.clocks.devices.find((item) => item.device === runs.device) || DATA.clocks.devices[0];
}

function clockSpan(gpu, i) {
  return gpu.low[i] === gpu.high[i] ? `${gpu.high[i]}` : `${gpu.low[i]} to ${gpu.high[i]}`;
}

function clockLine(gpu) {
  const x = [], y = [], text = [];
  gpu.x.forEach((start, i) => {
    const power = gpu.power[i] < 0 ? "" : `, ${(gpu.power[i] / 1e3).toFixed(0)} W`, heat = gpu.heat[i] < 0 ? "" : `, ${gpu.heat[i]} °C`;
    const why = whyWords(gpu.why[i]).join(", ");
    for (const [at, mhz] of [[start, gpu.low[i]], [gpu.end[i], gpu.high[i]]]) {
      x.push(at / 1e6);
      y.push(mhz);
      text.push(`SM clock ${clockSpan(gpu, i)} MHz${power}${heat}${why ? "<br>" + escapePlotly(why) : ""}`);
    }
  });
  return { type: "scatter", mode: "lines+markers", name: "SM clock", x, y, line: { color: theme("--ink"), width: 1.3 }, marker: { size: 3, color: theme("--ink") },
    hovertext: text, hovertemplate: "%{hovertext}<extra></extra>", showlegend: false };
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

function holdsTrace(rows) {
  return { type: "bar", orientation: "h", yaxis: "y2", base: rows.map((r) => r.start / 1e6), x: rows.map((r) => Math.max(r.end - r.start, 1) / 1e6), y: rows.map((r) => r.word), width: 0.7,
    marker: { color: rows.map((r) => theme(r.word === "idle" ? "--range" : "--warning")), line: { width: 1, color: theme("--ink") } },
    hovertext: rows.map((r) => `${escapePlotly(r.word)} for ${duration((r.end - r.start) * 1e3)}`), hovertemplate: "%{hovertext}<extra></extra>", showlegend: false };
}

function runsInTime(label, runs, chosen, values, name, marker) {
  return { type: "scatter", mode: "markers", name, yaxis: "y3", x: chosen.map((i) => runs.start[i] / 1e6), y: chosen.map((i) => values[i] / 1e3), marker, customdata: chosen,
    hovertext: chosen.map((i) => `<b>${escapePlotly(nameOf(label, runs, i))}</b> ${name} ${duration(values[i])}`), hovertemplate: "%{hovertext}<extra></extra>" };
}

function drawClocks() {
  const at = labelAt();
  if (!DATA.clocks || at < 0) return;
  $("clocks").hidden = false;
  const label = DATA.labels[at], runs = DATA.runs[at], gpu = clocksOf(runs), low = Math.min(...gpu.low), high = Math.max(...gpu.high);
  const chosen = sample(runs.elapsed.length, MOST_RUNS_DRAWN, [runs.elapsed.indexOf(label.max)]), rows = holds(gpu);
  $("clocks-reading").textContent = `GPU ${gpu.device}: SM clock ${low === high ? high : `${low} to ${high}`} MHz in ${plural(gpu.samples, "sample")}; below it the runs of ${label.label}.`;
  const said = ["Drag to zoom into a time, double-click for the whole run. What happened between two samples nobody saw."];
  if (gpu.joined > 1) said.push(`Each point of the clock joins ${gpu.joined} stretches of equal samples, from their least to their highest.`);
  if (rows.length > MOST_HOLDS) said.push(`Of ${rows.length} times that something held the clock down the first ${MOST_HOLDS} are drawn.`);
  if (chosen.length < runs.elapsed.length) said.push(`Drawn are ${chosen.length.toLocaleString("en")} of ${plural(runs.elapsed.length, "run")}, evenly in time.`);
  const limit = upperLimit(label, runs), above = runs.elapsed.filter((ns) => ns > limit).length;
  if (above) said.push(`${plural(above, "run")} lie${above === 1 ? "s" : ""} above the drawn range.`);
  $("clocks-note").textContent = said.join(" ");
  drawClocksTable();
  if (window.Plotly && clocks.near) plotClocks(label, runs, gpu, chosen, rows.slice(0, MOST_HOLDS), limit / 1e3);
}

function plotClocks(label, runs, gpu, chosen, rows, limit) {
  const words = [...new Set(rows.map((row) => row.word))], rest = 0.46 + (words.length ? 0.05 * words.length + 0.03 : 0);
  const low = Math.min(...gpu.low), high = Math.max(...gpu.high), left = 24 + Math.max(58, 6.6 * Math.max(0, ...words.map((word) => word.length)));
  const traces = [clockLine(gpu),
    runsInTime(label, runs, chosen, runs.elapsed, "measured", { symbol: "circle-open", size: 6, color: theme("--event"), line: { width: 1.3 } }),
    runsInTime(label, runs, chosen, kernelOf(runs), "kernel only", { symbol: "diamond", size: 6, color: CAUSE.kernel.colour, line: { width: 0.8, color: theme("--ink") } })];
  if (words.length) traces.push(holdsTrace(rows));
  const layout = baseLayout({
    height: 420, margin: { l: left, r: 16, t: 30, b: 48 }, hovermode: "closest", dragmode: "zoom", barmode: "overlay", showlegend: true,
    legend: { orientation: "h", y: 1.01, yanchor: "bottom", x: 0 },
    xaxis: axis({ title: { text: "s since the first sample" }, anchor: "y3", exponentformat: "none" }),
    yaxis: axis({ title: { text: "SM clock, MHz" }, domain: [rest + 0.04, 1], range: [0.94 * low, 1.03 * high], exponentformat: "none", separatethousands: true }),
    ...(words.length ? { yaxis2: axis({ domain: [0.46 + 0.02, rest], type: "category", showgrid: false, ticks: "", fixedrange: true, categoryorder: "array", categoryarray: words }) } : {}),
    yaxis3: axis({ title: { text: "us" }, domain: [0, 0.44], range: [0, limit], exponentformat: "none", separatethousands: true }),
  });
  const plot = $("clock-plot");
  plot.setAttribute("aria-label", $("clocks-reading").textContent + " The table of the samples follows.");
  drawPlot(plot, traces, layout, { ...CONFIG, doubleClick: "reset+autosize" }).then(() => {
    plot.removeAllListeners?.("plotly_click");
    plot.on("plotly_click", (event) => {
      const i = event.points[0].customdata;
      if (i !== undefined) choose(label.label, numberOf(runs, i), true);
    });
  });
}

function drawClocksTable() {
  if (!$("clocks-table").open || labelAt() < 0) return;
  const gpu = clocksOf(DATA.runs[labelAt()]), most = Math.min(gpu.x.length, MOST_STRETCHES), known = (value, text) => (value < 0 ? "?" : text);
  const rows = Array.from({ length: most }, (_, i) => [(gpu.x[i] / 1e3).toFixed(1), (gpu.end[i] / 1e3).toFixed(1), clockSpan(gpu, i), known(gpu.memory[i], `${gpu.memory[i]}`),
    known(gpu.power[i], (gpu.power[i] / 1e3).toFixed(0)), known(gpu.heat[i], `${gpu.heat[i]}`), whyWords(gpu.why[i]).join(", ")]);
  const caption = `The first ${most} of ${gpu.x.length.toLocaleString("en")} stretches of equal samples of GPU ${gpu.device}`;
  const heads = ["from ms", "to ms", "SM MHz", "memory MHz", "W", "°C"].map((text) => ({ text, number: true }));
  fillTable($("clocks-table").querySelector("table"), caption, [...heads, { text: "why not higher" }], rows);
  $("clocks-table").querySelector("summary").textContent = gpu.x.length > most ? caption : "Table of the clock samples";
}

// Drawn when it comes near the screen, or is printed.
function watchClocks() {
  if (!DATA.clocks) return;
  const draw = () => { clocks.near = true; drawClocks(); };
  const observer = new IntersectionObserver((entries) => {
    if (!entries.some((entry) => entry.isIntersecting)) return;
    observer.disconnect();
    draw();
  }, { rootMargin: "400px" });
  observer.observe($("clocks"));
  addEventListener("beforeprint", draw);
  $("clocks-table").addEventListener("toggle", drawClocksTable);
}

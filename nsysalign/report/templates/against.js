// Measured against kernel-only time, every run a point: on the diagonal an event pair measures its kernel and nothing else.

const MOST_AGAINST = 3000;
const against = { drawn: false };

// Some runs of every label when there are too many: evenly in time, the slowest always among them.
function sample(count, most, always) {
  if (count <= most) return Array.from({ length: count }, (_, i) => i);
  const chosen = new Set(always);
  for (let k = 0; k < most; k += 1) chosen.add(Math.floor((k * count) / most));
  return [...chosen].sort((p, q) => p - q);
}

function againstPoints() {
  const most = Math.max(6, Math.floor(MOST_AGAINST / Math.max(1, DATA.labels.length)));
  return DATA.labels.map((label, l) => {
    const runs = DATA.runs[l], kernel = kernelOf(runs), slowest = runs.elapsed.indexOf(label.max);
    const chosen = sample(runs.elapsed.length, most, [slowest]);
    return { label, l, runs, total: runs.elapsed.length, points: chosen.map((i) => ({ i, x: kernel[i], y: runs.elapsed[i] })) };
  });
}

function drawAgainst() {
  const plot = $("scatter");
  if (!window.Plotly || !DATA.labels.length) return;
  against.groups ||= againstPoints();
  const all = against.groups.flatMap((g) => g.points), kernels = all.filter((p) => p.x > 0), none = all.length - kernels.length;
  const most = Math.max(1, ...all.map((p) => p.y)), least = Math.min(most, ...kernels.map((p) => p.x));
  const low = least / 1e3 / 1.6, high = (most / 1e3) * 1.6, gutter = low / 3;
  const bottom = Math.max(1, all.reduce((least, p) => Math.min(least, p.y), most)) / 1e3 / 1.8;
  const place = (p) => (p.x > 0 ? p.x / 1e3 : gutter);
  const trace = (g, front) => ({
    type: "scatter", mode: "markers", name: escapePlotly(g.label.label), x: g.points.map(place), y: g.points.map((p) => Math.max(p.y, 1) / 1e3), customdata: g.points.map((p) => [g.l, p.i]), showlegend: false,
    hovertext: g.points.map((p) => `<b>${escapePlotly(nameOf(g.label, g.runs, p.i))}</b><br>measured ${duration(p.y)}, kernel only ${p.x ? duration(p.x) : "none"}`), hovertemplate: "%{hovertext}<extra></extra>",
    marker: front ? { symbol: "circle", size: 9, color: CAUSE.kernel.colour, line: { width: 1.2, color: theme("--ink") } } : { symbol: "circle-open", size: 6, color: theme("--quiet"), opacity: 0.75, line: { width: 1.1 } },
  });
  const others = against.groups.filter((g) => g.label.label !== selected.label), chosen = against.groups.filter((g) => g.label.label === selected.label);
  const diagonal = { type: "scatter", mode: "lines", x: [low, high], y: [low, high], line: { color: theme("--ink"), width: 1.2, dash: "dash" }, hoverinfo: "skip", showlegend: false };
  const ticks = [];
  for (let power = Math.ceil(Math.log10(low)); power <= Math.log10(high); power += 1) ticks.push(10 ** power);
  const words = ticks.map((us) => duration(us * 1e3).replace(/\.0+ /, " ").replace(/\.00 /, " "));
  const layout = baseLayout({
    height: 420, margin: { l: 76, r: 16, t: 14, b: 48 }, hovermode: "closest", dragmode: "zoom",
    xaxis: axis({ type: "log", title: { text: "kernel only" }, range: [Math.log10(none ? gutter / 1.3 : low), Math.log10(high)], tickangle: 0, tickvals: none ? [gutter, ...ticks] : ticks, ticktext: none ? ["none", ...words] : words }),
    yaxis: axis({ type: "log", title: { text: "measured" }, range: [Math.log10(bottom), Math.log10(high)], tickvals: ticks, ticktext: words }),
    annotations: [{ xref: "paper", yref: "paper", x: 0.99, y: 0.04, xanchor: "right", showarrow: false, text: "dashed: the kernel is all there is", font: { size: 12, color: theme("--quiet") } }],
  });
  const shown = all.length, total = against.groups.reduce((sum, g) => sum + g.total, 0);
  const said = [`Every point is a run; filled: ${selected.label}. Height above the diagonal is time in which no kernel ran.`];
  if (none) said.push(`${plural(none, "run")} without a kernel stand${none === 1 ? "s" : ""} at the left edge.`);
  if (shown < total) said.push(`Drawn are ${shown.toLocaleString("en")} of ${plural(total, "run")}, evenly in time, the slowest of each label among them.`);
  $("scatter-note").textContent = said.join(" ");
  plot.setAttribute("aria-label", said.join(" ") + " A table of the labels follows.");
  drawPlot(plot, [...others.map((g) => trace(g, false)), diagonal, ...chosen.map((g) => trace(g, true))], layout, { ...CONFIG, doubleClick: "reset+autosize" }).then(() => {
    plot.removeAllListeners?.("plotly_click");
    plot.on("plotly_click", (event) => {
      const [l, i] = event.points[0].customdata || [];
      if (l !== undefined) choose(DATA.labels[l].label, numberOf(DATA.runs[l], i), true);
    });
  });
  against.drawn = true;
}

function drawAgainstTable() {
  if (!$("scatter-table").open) return;
  const rows = DATA.labels.map((label) => {
    const kernel = label.parts.kernel || 0;
    const name = make("button", { type: "button", class: "link", onclick: () => choose(label.label, null, true) }, label.label);
    return [name, micro(label.elapsed), micro(kernel), kernel ? (label.elapsed / kernel).toFixed(2) : "no kernel"];
  });
  fillTable($("scatter-table").querySelector("table"), "Measured and kernel-only time of the median run of every label",
    [{ text: "label" }, { text: "measured us", number: true }, { text: "kernel only us", number: true }, { text: "measured / kernel", number: true }], rows);
}

// Below the fold and not free: drawn when it comes near the screen, or is printed.
function watchAgainst() {
  const observer = new IntersectionObserver((entries) => {
    if (!entries.some((entry) => entry.isIntersecting)) return;
    observer.disconnect();
    drawAgainst();
  }, { rootMargin: "400px" });
  observer.observe($("scatter"));
  addEventListener("beforeprint", drawAgainst);
  $("scatter-table").addEventListener("toggle", drawAgainstTable);
}

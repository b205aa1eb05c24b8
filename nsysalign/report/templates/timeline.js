// The timeline of one interval: cause strip, NVTX ranges, host threads, streams, the two events.
// Detail is reduced by resolution: neighbours narrower than a pixel are drawn as one block that says how many it is.

const view = { picture: null, range: null, timer: 0 };
const STRIP_HEIGHT = 1.5, LANE_GAP = 0.45, MOST_ROWS = 8, MOST_ARROWS = 250, LETTER_PX = 7.1;

function wholeRange(picture) {
  const margin = Math.max(0.06 * picture.width, 2000);
  return [-margin / 1e3, (picture.width + margin) / 1e3];
}

// Lanes from top to bottom: {lane, top, height}; y grows downwards.
function placeLanes(picture) {
  let y = STRIP_HEIGHT + LANE_GAP;
  return picture.lanes.map((lane) => {
    const placed = { lane, top: y, height: Math.min(lane.rows, MOST_ROWS) };
    y += placed.height + LANE_GAP;
    return placed;
  });
}

function eventTrace(picture) {
  const at = [0, picture.width / 1e3];
  const bounds = `<br>placed by ${escapePlotly(picture.method)}: ± ${duration(picture.error)} with 95 % confidence<br>certainly between ${(picture.lower / 1e3).toFixed(2)} and +${(picture.upper / 1e3).toFixed(2)} us of here`;
  return {
    type: "scatter", mode: "markers", x: at, y: [-0.3, -0.3], hovertext: ["<b>start</b>" + bounds, `<b>end</b> at ${at[1].toFixed(2)} us` + bounds],
    hovertemplate: "%{hovertext}<extra></extra>", showlegend: false, marker: { symbol: "diamond", size: 10, color: theme("--event") },
    error_x: { type: "data", symmetric: false, array: [picture.upper / 1e3, picture.upper / 1e3], arrayminus: [-picture.lower / 1e3, -picture.lower / 1e3], color: theme("--event"), thickness: 1.5, width: 4 },
  };
}

function eventShapes(picture, bottom) {
  const shapes = [], colour = theme("--event"), error = picture.error / 1e3;
  for (const x of [0, picture.width / 1e3]) {
    shapes.push({ type: "rect", x0: x - error, x1: x + error, y0: -0.6, y1: bottom, fillcolor: colour, opacity: 0.16, line: { width: 0 }, layer: "above" });
    shapes.push({ type: "line", x0: x, x1: x, y0: -0.6, y1: bottom, line: { color: colour, width: 1.6 }, layer: "above" });
  }
  return shapes;
}

function drawTimeline() {
  const picture = view.picture, plot = $("lanes");
  if (!picture || !window.Plotly) return;
  const places = placeLanes(picture), end = places.length ? places[places.length - 1] : { top: STRIP_HEIGHT, height: 0 };
  const bottom = end.top + end.height + (picture.clock ? 1.5 : 0) + 0.2;
  const names = places.map(({ lane }) => escapePlotly(cut(lane.name, 34)));
  const left = 24 + Math.max(60, 6.8 * Math.max(0, ...names.map((n) => n.length), picture.clock ? clockWords(picture).length : 0));
  const pixel = ((view.range[1] - view.range[0]) * 1e3) / Math.max(200, plot.clientWidth - left - 20);
  const drawn = places.map((placed) => laneTrace(placed, view.range, pixel));
  if (picture.strip) drawn.unshift(stripTrace(picture.strip, view.range, pixel));
  const links = arrows(places, view.range);
  const clock = picture.clock ? [clockTrace(picture.clock, bottom - 1.4, view.range)] : [];
  const layout = baseLayout({
    height: Math.max(240, 92 + 29 * (bottom + 0.6)), margin: { l: left, r: 20, t: 26, b: 44 }, barmode: "overlay", dragmode: "zoom", hovermode: "closest",
    xaxis: axis({ title: { text: "us since the start event", standoff: 8 }, range: view.range, exponentformat: "none", separatethousands: true }),
    yaxis: axis({ range: [bottom, -0.7], fixedrange: true, showgrid: false, ticks: "", automargin: false,
      tickvals: [-0.3, STRIP_HEIGHT / 2, ...places.map((p) => p.top + p.height / 2), ...(picture.clock ? [bottom - 0.9] : [])],
      ticktext: ["events", "<b>budget</b>", ...names, ...(picture.clock ? [clockWords(picture)] : [])] }),
    shapes: eventShapes(picture, bottom), uirevision: "timeline",
  });
  const marks = drawn.map((d) => d.marks).filter(Boolean);
  drawPlot(plot, [...drawn.map((d) => d.trace), ...links.traces, ...marks, ...clock, eventTrace(picture)], layout, CONFIG);
  const merged = drawn.reduce((sum, d) => sum + d.merged, 0), said = [...picture.omitted];
  if (merged) said.push(`At this zoom ${plural(merged, "item")} narrower than a pixel are drawn together with their neighbours.`);
  if (links.count > MOST_ARROWS) said.push(`The arrows of ${links.count} operations are drawn when fewer than ${MOST_ARROWS} are in view.`);
  $("reduced").textContent = said.join(" ");
  plot.dataset.drawn = `${selected.interval}:${view.range.map((v) => v.toFixed(3)).join(":")}`;
}

function zoomTo(range) {
  view.range = range;
  clearTimeout(view.timer);
  view.timer = setTimeout(drawTimeline, 30);
}

function zoomBy(factor, centre = 0.5) {
  const [a, b] = view.range, at = a + (b - a) * centre;
  if ((b - a) * factor < 0.01) return; // ten nanoseconds across is closer than the clock
  zoomTo([at - (at - a) * factor, at + (b - at) * factor]);
}

function panBy(share) {
  const step = (view.range[1] - view.range[0]) * share;
  zoomTo([view.range[0] + step, view.range[1] + step]);
}

function listenToTimeline() {
  const plot = $("lanes");
  const fit = () => zoomTo(wholeRange(view.picture));
  const keys = { ArrowLeft: () => panBy(-0.2), a: () => panBy(-0.2), ArrowRight: () => panBy(0.2), d: () => panBy(0.2), "+": () => zoomBy(0.6),
    "=": () => zoomBy(0.6), w: () => zoomBy(0.6), "-": () => zoomBy(1 / 0.6), s: () => zoomBy(1 / 0.6), 0: fit, Home: fit };
  plot.addEventListener("keydown", (event) => {
    if (!view.picture || event.ctrlKey || event.metaKey || event.altKey || !keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  });
  plot.addEventListener("wheel", (event) => {
    if (!view.picture || !event.ctrlKey) return; // a plain wheel scrolls the page
    event.preventDefault();
    const box = plot.querySelector(".nsewdrag")?.getBoundingClientRect() || plot.getBoundingClientRect();
    zoomBy(event.deltaY > 0 ? 1.25 : 0.8, Math.min(1, Math.max(0, (event.clientX - box.left) / box.width)));
  }, { passive: false });
  $("zoom-in").addEventListener("click", () => view.picture && zoomBy(0.5));
  $("zoom-out").addEventListener("click", () => view.picture && zoomBy(2));
  $("zoom-fit").addEventListener("click", () => view.picture && fit());
  // plotly gives its plots `on` with the first drawing.
  Plotly.newPlot(plot, [], baseLayout({ height: 240 }), CONFIG).then(() => {
    plot.on("plotly_doubleclick", fit);
    plot.on("plotly_relayout", (change) => {
      if (change["xaxis.range[0]"] !== undefined) zoomTo([change["xaxis.range[0]"], change["xaxis.range[1]"]]);
      else if (change["xaxis.autorange"]) fit();
    });
    drawTimeline();
  });
}

const MOST_PIECES = 500;

function drawPieces() {
  const strip = view.picture?.strip, table = $("pieces").querySelector("table");
  if (!strip || !$("pieces").open) return;
  const rows = strip.x.slice(0, MOST_PIECES).map((x, i) => [at(x), micro(strip.d[i]), DATA.causes[strip.c[i]].short, DATA.strings[strip.n[i]]]);
  const caption = `The first ${rows.length} of ${plural(strip.x.length, "piece")} of the interval`;
  fillTable(table, caption, [{ text: "from us", number: true }, { text: "length us", number: true }, { text: "cause" }, { text: "what" }], rows);
  $("pieces").querySelector("summary").textContent = strip.x.length > MOST_PIECES ? caption : "Table of the pieces of this interval";
}

// Everything in the lanes as a table, in order of time: what the plot says to those who cannot see or hover it.
function drawItems() {
  const picture = view.picture, details = $("items");
  if (!picture || !details.open) return;
  const items = picture.lanes.flatMap((lane) => lane.x.map((x, i) => ({ lane, x, i }))).sort((p, q) => p.x - q.x);
  const rows = items.slice(0, MOST_PIECES).map(({ lane, x, i }) => [at(x), micro(lane.d[i]), lane.name, DATA.strings[lane.n[i]], DATA.strings[lane.t[i]]]);
  const caption = `The first ${rows.length} of ${plural(items.length, "item")} in the lanes`;
  fillTable(details.querySelector("table"), caption, [{ text: "from us", number: true }, { text: "length us", number: true }, { text: "lane" }, { text: "what" }, { text: "detail" }], rows);
  details.querySelector("summary").textContent = items.length > MOST_PIECES ? caption : "Table of everything in the lanes";
}

function at(ns) {
  return (ns / 1e3).toFixed(2);
}

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

// Items of one lane as blocks for the visible range: {x, d, row, items: [first, count], cause, sum}.
function blocks(lane, range, pixel) {
  const [from, to] = [range[0] * 1e3 - (range[1] - range[0]) * 1e3, range[1] * 1e3 + (range[1] - range[0]) * 1e3];
  const last = new Map(), out = [];
  for (let i = 0; i < lane.x.length; i += 1) {
    const x = lane.x[i], d = lane.d[i];
    if (x + d < from || x > to) continue;
    const row = Math.min(lane.r ? lane.r[i] : 0, MOST_ROWS - 1), cause = lane.c[i];
    const previous = last.get(row);
    if (previous && d < pixel && x - (previous.x + previous.d) < pixel && previous.small) {
      previous.d = Math.max(previous.d, x + d - previous.x);
      previous.count += 1;
      previous.sum += d;
      previous.by.set(cause, (previous.by.get(cause) || 0) + d);
      continue;
    }
    const block = { x, d, row, item: i, count: 1, sum: d, small: d < pixel, by: new Map([[cause, d]]) };
    last.set(row, block);
    out.push(block);
  }
  return out;
}

function largest(by) {
  return [...by].reduce((best, entry) => (entry[1] > best[1] ? entry : best))[0];
}

// A name may be cut, a count may not: "48…" of 481 calls would be a lie.
function fitting(block, text, letters) {
  if (block.count > 1 && text.length > letters) return "";
  return escapePlotly(cut(text, letters));
}

function barTrace(list, pixel, where, look, hover, text) {
  return {
    type: "bar", orientation: "h", base: list.map((b) => b.x / 1e3), x: list.map((b) => Math.max(b.d, pixel) / 1e3),
    y: list.map((b) => where(b)[0]), width: list.map((b) => where(b)[1]), marker: look(list),
    hovertext: list.map(hover), hovertemplate: "%{hovertext}<extra></extra>", showlegend: false,
    text: list.map((b) => fitting(b, text(b), Math.floor(b.d / pixel / LETTER_PX))),
    textposition: "inside", insidetextanchor: "middle", textangle: 0, constraintext: "none", cliponaxis: true,
    insidetextfont: { size: 11 },
  };
}

function laneTrace(placed, range, pixel) {
  const { lane, top } = placed, list = blocks(lane, range, pixel);
  const cause = (b) => (largest(b.by) < 0 ? null : DATA.causes[largest(b.by)]);
  const noun = { nvtx: "range", host: "call", stream: "operation" }[lane.kind] || "item";
  const hover = (b) => {
    if (b.count > 1) return `${b.count} ${noun}s, ${duration(b.sum)} together, zoom in to see them`;
    const more = DATA.strings[lane.t[b.item]];
    return `<b>${wrapPlotly(DATA.strings[lane.n[b.item]])}</b><br>${duration(b.d)}, from ${(b.x / 1e3).toFixed(2)} us${more ? "<br>" + wrapPlotly(more) : ""}`;
  };
  const look = (items) => ({
    color: items.map((b) => cause(b)?.colour || theme("--range")),
    line: { width: 0.6, color: theme("--page") },
  });
  const trace = barTrace(list, pixel, (b) => [top + b.row + 0.5, 0.86], look, hover,
    (b) => (b.count > 1 ? `${b.count} ${noun}s` : lane.kind === "nvtx" ? DATA.strings[lane.n[b.item]] : shortName(DATA.strings[lane.n[b.item]])));
  trace.insidetextfont.color = list.map((b) => cause(b)?.ink || theme("--ink"));
  return { trace, merged: list.reduce((sum, b) => sum + b.count - 1, 0) };
}

function stripTrace(strip, range, pixel) {
  const list = blocks(strip, range, pixel);
  const cause = (b) => DATA.causes[largest(b.by)];
  const hover = (b) => {
    if (b.count > 1) {
      const parts = [...b.by].sort((p, q) => q[1] - p[1]).map(([c, ns]) => `${DATA.causes[c].short} ${duration(ns)}`);
      return `${b.count} pieces: ${parts.join(", ")}<br>zoom in to see them`;
    }
    const detail = DATA.strings[strip.n[b.item]];
    return `<b>${cause(b).short}</b> ${duration(b.d)}<br>${wrapPlotly(cause(b).meaning)}${detail ? "<br>" + wrapPlotly(detail) : ""}`;
  };
  // A pattern is an element of its own for every bar: only where there are few.
  const look = (items) => ({
    color: items.map((b) => cause(b).colour), line: { width: 0.6, color: theme("--page") },
    ...(items.length <= 300 ? { pattern: { shape: items.map((b) => cause(b).pattern), fgcolor: items.map((b) => cause(b).ink), fgopacity: 0.4, size: 6, solidity: 0.2, fillmode: "overlay" } } : {}),
  });
  const trace = barTrace(list, pixel, () => [STRIP_HEIGHT / 2, STRIP_HEIGHT * 0.94], look, hover, (b) => {
    const short = cause(b).short, long = `${short} ${duration(b.d)}`;
    return long.length * LETTER_PX < b.d / pixel ? long : short.length * LETTER_PX < b.d / pixel ? short : "";
  });
  trace.insidetextfont.color = list.map((b) => cause(b).ink);
  return { trace, merged: list.reduce((sum, b) => sum + b.count - 1, 0) };
}

// From the call that issued an operation down to the operation.
function arrows(places, range) {
  const x = [], y = [], heads = [[], []];
  let count = 0;
  for (const { lane, top } of places) {
    if (!lane.ax) continue;
    for (let i = 0; i < lane.x.length; i += 1) {
      const from = lane.ax[i];
      if (from === null || lane.x[i] / 1e3 > range[1] || (lane.x[i] + lane.d[i]) / 1e3 < range[0]) continue;
      count += 1;
      const source = places[lane.al[i]], row = Math.min(lane.r ? lane.r[i] : 0, MOST_ROWS - 1);
      x.push(from / 1e3, lane.x[i] / 1e3, null);
      y.push(source.top + 0.93, top + row + 0.07, null);
      heads[0].push(lane.x[i] / 1e3);
      heads[1].push(top + row + 0.02);
    }
  }
  if (count > MOST_ARROWS) return { traces: [], count };
  const colour = theme("--arrow");
  return { count, traces: [
    { type: "scatter", mode: "lines", x, y, line: { color: colour, width: 1 }, hoverinfo: "skip", showlegend: false },
    { type: "scatter", mode: "markers", x: heads[0], y: heads[1], marker: { symbol: "triangle-down", size: 7, color: colour }, hoverinfo: "skip", showlegend: false },
  ] };
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
  const bottom = end.top + end.height + 0.2;
  const names = places.map(({ lane }) => escapePlotly(cut(lane.name, 34)));
  const left = 24 + Math.max(60, 6.8 * Math.max(0, ...names.map((n) => n.length)));
  const pixel = ((view.range[1] - view.range[0]) * 1e3) / Math.max(200, plot.clientWidth - left - 20);
  const drawn = places.map((placed) => laneTrace(placed, view.range, pixel));
  if (picture.strip) drawn.unshift(stripTrace(picture.strip, view.range, pixel));
  const links = arrows(places, view.range);
  const layout = baseLayout({
    height: Math.max(240, 92 + 29 * (bottom + 0.6)), margin: { l: left, r: 20, t: 26, b: 44 }, barmode: "overlay", dragmode: "zoom", hovermode: "closest",
    xaxis: axis({ title: { text: "us since the start event", standoff: 8 }, range: view.range, exponentformat: "none", separatethousands: true }),
    yaxis: axis({ range: [bottom, -0.7], fixedrange: true, showgrid: false, ticks: "", automargin: false,
      tickvals: [-0.3, STRIP_HEIGHT / 2, ...places.map((p) => p.top + p.height / 2)], ticktext: ["events", "<b>budget</b>", ...names] }),
    shapes: eventShapes(picture, bottom), uirevision: "timeline",
  });
  Plotly.react(plot, [...drawn.map((d) => d.trace), ...links.traces, eventTrace(picture)], layout, CONFIG);
  const merged = drawn.reduce((sum, d) => sum + d.merged, 0), said = [];
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
  const rows = strip.x.slice(0, MOST_PIECES).map((x, i) => [micro(x) === "." ? "0.00" : micro(x), micro(strip.d[i]), DATA.causes[strip.c[i]].short, DATA.strings[strip.n[i]]]);
  const caption = `The first ${rows.length} of ${plural(strip.x.length, "piece")} of the interval`;
  fillTable(table, caption, [{ text: "from us", number: true }, { text: "length us", number: true }, { text: "cause" }, { text: "what" }], rows);
  $("pieces").querySelector("summary").textContent = strip.x.length > MOST_PIECES ? caption : "Table of the pieces of this interval";
}

// What a timeline is made of: items as blocks at the resolution of the screen, the cause strip, arrows, the clock.

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
  const noun = { nvtx: "range", host: "call", stream: "operation", event: "record" }[lane.kind] || "item";
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
    (b) => (b.count > 1 ? `${b.count} ${noun}s` : ["nvtx", "event"].includes(lane.kind) ? DATA.strings[lane.n[b.item]] : shortName(DATA.strings[lane.n[b.item]])));
  trace.insidetextfont.color = list.map((b) => cause(b)?.ink || theme("--ink"));
  const marks = lane.kind === "event" ? recordTrace(trace, list) : null;
  return { trace, marks, merged: list.reduce((sum, b) => sum + b.count - 1, 0) };
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

// Records are instants: diamonds on their stream's lane; the waits beside them are bars.
function recordTrace(trace, list) {
  const bars = list.map((b, i) => ({ b, i })).filter(({ b }) => b.count > 1 || b.d > 0), points = list.map((b, i) => ({ b, i })).filter(({ b }) => b.count === 1 && b.d === 0);
  const pick = (values, chosen) => chosen.map(({ i }) => values[i]);
  const marks = { type: "scatter", mode: "markers", x: points.map(({ b }) => b.x / 1e3), y: pick(trace.y, points), hovertext: pick(trace.hovertext, points),
    hovertemplate: "%{hovertext}<extra></extra>", showlegend: false, marker: { symbol: "diamond", size: 8, color: theme("--event"), line: { width: 1, color: theme("--page") } } };
  for (const key of ["base", "x", "y", "width", "hovertext", "text"]) trace[key] = pick(trace[key], bars);
  trace.marker = { ...trace.marker, color: pick(trace.marker.color, bars) };
  trace.insidetextfont = { ...trace.insidetextfont, color: pick(trace.insidetextfont.color, bars) };
  return marks;
}

// From the call that issued an operation down to the operation; from a record to the end of the wait that it released.
function arrows(places, range) {
  const calls = { x: [], y: [] }, releases = { x: [], y: [] }, heads = { x: [], y: [], symbol: [], color: [] };
  const colours = [theme("--arrow"), theme("--event")];
  let count = 0;
  for (const { lane, top } of places) {
    if (!lane.ax) continue;
    for (let i = 0; i < lane.x.length; i += 1) {
      const source = lane.ax[i] === null ? null : places[lane.al[i]];
      if (!source) continue;
      const from = lane.ax[i] / 1e3, to = (lane.x[i] + (lane.kind === "event" ? lane.d[i] : 0)) / 1e3;
      if (Math.max(from, to) < range[0] || Math.min(from, to) > range[1]) continue;
      count += 1;
      const release = source.lane.kind === "event", into = release ? releases : calls, row = Math.min(lane.r ? lane.r[i] : 0, MOST_ROWS - 1);
      const down = source.top <= top, head = down ? top + row + 0.02 : top + row + 0.98;
      into.x.push(from, to, null);
      into.y.push(down ? source.top + 0.93 : source.top + 0.07, head, null);
      heads.x.push(to);
      heads.y.push(head);
      heads.symbol.push(down ? "triangle-down" : "triangle-up");
      heads.color.push(colours[release ? 1 : 0]);
    }
  }
  if (count > MOST_ARROWS) return { traces: [], count };
  const line = (points, color, width) => ({ type: "scatter", mode: "lines", ...points, line: { color, width }, hoverinfo: "skip", showlegend: false });
  return { count, traces: [line(calls, colours[0], 1), line(releases, colours[1], 1.8),
    { type: "scatter", mode: "markers", x: heads.x, y: heads.y, marker: { symbol: heads.symbol, size: 7, color: heads.color }, hoverinfo: "skip", showlegend: false }] };
}

// The SM clock under the lanes, where it was sampled, in its own band; between two samples nobody looked.
function clockTrace(clock, top, range) {
  const most = Math.max(...clock.mhz), low = Math.min(...clock.mhz), base = Math.min(low, 0.95 * most), span = Math.max(1, most - base);
  const place = (mhz) => top + 1 - (0.9 * (mhz - base)) / span;
  const points = clock.x.map((ns, i) => ({ ns, mhz: clock.mhz[i], said: sampleText(clock, i, "sampled here") }));
  // An interval is usually shorter than the time between two samples: the line is to be hovered all the same.
  for (let k = 0; k <= 24; k += 1) {
    const ns = (range[0] + ((range[1] - range[0]) * k) / 24) * 1e3, after = clock.x.findIndex((x) => x > ns);
    if (after <= 0) continue;
    const [p, q] = [after - 1, after], share = (ns - clock.x[p]) / (clock.x[q] - clock.x[p]);
    points.push({ ns, mhz: clock.mhz[p] + share * (clock.mhz[q] - clock.mhz[p]),
      said: `${sampleText(clock, p, duration(ns - clock.x[p]) + " before")}<br>${sampleText(clock, q, duration(clock.x[q] - ns) + " after")}` });
  }
  points.sort((p, q) => p.ns - q.ns);
  return { type: "scatter", mode: "lines", x: points.map((p) => p.ns / 1e3), y: points.map((p) => place(p.mhz)), line: { color: theme("--ink"), width: 1.4 },
    hovertext: points.map((p) => p.said), hovertemplate: "%{hovertext}<extra></extra>", showlegend: false };
}

function sampleText(clock, i, where) {
  const more = DATA.strings[clock.t[i]];
  return `SM clock ${clock.mhz[i].toFixed(0)} MHz ${where}${more ? ", " + escapePlotly(more) : ""}`;
}

// What stands at the left of the band: the clock at the interval, or between which it moved.
function clockWords(picture) {
  const clock = picture.clock, before = clock.x.findLastIndex((x) => x <= 0), after = clock.x.findIndex((x) => x >= picture.width);
  const seen = clock.mhz.slice(Math.max(0, before), after < 0 ? undefined : after + 1);
  const [low, high] = [Math.min(...seen), Math.max(...seen)];
  return low === high ? `SM clock ${low.toFixed(0)} MHz` : `SM clock ${low.toFixed(0)} to ${high.toFixed(0)} MHz`;
}

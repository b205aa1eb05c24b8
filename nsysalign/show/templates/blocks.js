// What a timeline is made of: items as blocks at the resolution of the screen, and how they are
// drawn and explained.

// Items of one lane as blocks for the visible range (us): {x, d, row, item, count, sum, by} in ns;
// neighbours narrower than `pixel` ns are one block, which is no wider than `most` ns.
function blocks(lane, range, pixel, most = Infinity) {
  const [from, to] = [range[0] * 1e3, range[1] * 1e3], last = new Map(), out = [];
  for (let i = 0; i < lane.x.length; i += 1) {
    const x = lane.x[i], d = lane.d[i];
    if (x + d < from || x > to) continue;
    const row = Math.min(lane.r ? lane.r[i] : 0, MOST_ROWS - 1), cause = lane.c[i],
      previous = last.get(row);
    if (previous && d < pixel && x - (previous.x + previous.d) < pixel && previous.small && x - previous.x < most) {
      previous.d = Math.max(previous.d, x + d - previous.x);
      previous.count += 1;
      previous.sum += d;
      previous.by.set(cause, (previous.by.get(cause) || 0) + d);
      continue;
    }
    const block = { x, d, row, item: i, count: 1, sum: d, small: d < pixel,
      by: new Map([[cause, d]]) };
    last.set(row, block);
    out.push(block);
  }
  return out;
}

function largest(by) {
  return [...by].reduce((best, entry) => (entry[1] > best[1] ? entry : best))[0];
}

function causeOf(block) {
  const code = largest(block.by);
  return code < 0 ? null : DATA.causes[code];
}

// A name may be cut, but not to "c…s"; a count may not: "48…" of 481 calls would be a lie.
function fitting(block, text, letters) {
  return text.length > letters && (block.count > 1 || letters < 8) ? "" : cut(text, letters);
}

const NOUN = { nvtx: "range", host: "call", stream: "operation", event: "record" };

function laneSaid(lane, b) {
  const noun = NOUN[lane.kind] || "item";
  if (b.count > 1) return [`${b.count} ${noun}s`,
    `${duration(b.sum)} together; zoom in to see them`];
  const more = DATA.strings[lane.t[b.item]], [name, ...rest] = wrap(DATA.strings[lane.n[b.item]]);
  const call = launchOf(lane, b.item), waited = lane.kind === "stream" && call ?
    `started ${duration(b.x - lane.ax[b.item])} after its launch call began` : null;
  const when = lane.kind === "event" && !b.d ? "at" : `${duration(b.d)}, from`;
  return [name, ...rest, `${when} ${(b.x / 1e3).toFixed(2)} us`,
    lane.kind === "stream" ? lane.name : null, waited, waited && `launched by ${call}`,
    ...(more ? wrap(more) : [])];
}

// The call at which an item's arrow begins, and when that began; null for none that is drawn.
function launchOf(lane, i) {
  const source = lane.ax && lane.ax[i] !== null ? view.picture.lanes[lane.al[i]] : null;
  const at = source ? source.x.indexOf(lane.ax[i]) : -1;
  return at < 0 ? null : `${DATA.strings[source.n[at]]} at ${(source.x[at] / 1e3).toFixed(2)} us`;
}

function laneText(lane, b) {
  const name = DATA.strings[lane.n[b.item]];
  return b.count > 1 ? `${b.count} ${NOUN[lane.kind] || "item"}s` :
    ["nvtx", "event"].includes(lane.kind) ? name : shortName(name);
}

function stripSaid(strip, b) {
  if (b.count > 1) {
    const parts = [...b.by].sort((p, q) => q[1] - p[1])
      .map(([c, ns]) => `${DATA.causes[c].short} ${duration(ns)}`);
    return [`${b.count} pieces`, parts.join(", "), "zoom in to see them"];
  }
  const detail = DATA.strings[strip.n[b.item]];
  return [`${causeOf(b).short} ${duration(b.d)}`, causeOf(b).meaning,
    ...(detail ? wrap(detail) : [])];
}

function stripText(b, letters) {
  const short = causeOf(b).short, long = `${short} ${duration(b.d)}`;
  return long.length <= letters ? long : short.length <= letters ? short : "";
}

// A narrow block of a breakdown: its parts above each other, each as high as its share, so that all areas together are
// the parts of the time. {paths: [[colour, path]], hit}
function drawShares(frame, b, top, height) {
  const x = Math.max(frame.left, frame.x(b.x / 1e3)), w = Math.min(frame.right, frame.x((b.x + b.d) / 1e3)) - x;
  if (!(w > 0)) return null;
  let y = top;
  const paths = [...b.by].sort(([p], [q]) => p - q).map(([code, ns]) => {
    const h = (height * ns) / b.sum, from = y;
    y += h;
    return [DATA.causes[code].colour, `M${x.toFixed(2)} ${from.toFixed(2)}h${w.toFixed(2)}v${h.toFixed(2)}h${(-w).toFixed(2)}z`];
  });
  return { paths, hit: { x, y: top, w, h: height } };
}

// One block as drawn: a rectangle, its pattern, its name in the middle of what is visible of it; a
// path and its colour where
// there is neither pattern nor name.
function drawBlock(frame, b, top, height, cause, text, patterned) {
  const x = Math.max(frame.left, frame.x(b.x / 1e3)),
    end = Math.min(frame.right, frame.x((b.x + b.d) / 1e3)), w = Math.max(1, end - x);
  if (end < frame.left || x > frame.right) return null;
  const words = text(Math.floor((w - 6) / LETTER_PX)), box = { x, y: top, width: w, height };
  const fill = cause ? cause.colour : "var(--range)",
    hatched = patterned && cause?.pattern && w > 3;
  if (!words && !hatched) return { fill, path:
    `M${x.toFixed(2)} ${top}h${w.toFixed(2)}v${height}h${(-w).toFixed(2)}z`,
    hit: { x, y: top, w, h: height } };
  const element = svg("g", { class: "block" }, svg("rect", { ...box, fill }),
    hatched ? svg("rect", { ...box, fill: `url(#${patternId(cause.pattern)})`,
      style: `color:${cause.ink}` }) : null,
    words ? svg("text", { x: x + w / 2, y: top + height / 2 + 4, "text-anchor": "middle",
      "data-full": words.includes("…") ? text(Infinity) : null, class: patterned && cause?.pattern ? "on-pattern" : null,
      style: `fill:${cause?.ink || "var(--ink)"};` +
        `stroke:${patterned && cause?.pattern ? cause.colour : "none"}` }, words) : null);
  return { element, hit: { x, y: top, w, h: height } };
}

// From the call that issued an operation to the operation; from a record to the end of the wait
// that it releases.
function arrow(frame, places, lane, top, i) {
  const source = lane.ax && lane.ax[i] !== null ? places[lane.al[i]] : null;
  if (!source?.rows) return null;
  const from = frame.x(lane.ax[i] / 1e3), to =
    frame.x((lane.x[i] + (lane.kind === "event" ? lane.d[i] : 0)) / 1e3);
  const row = Math.min(lane.r ? lane.r[i] : 0, MOST_ROWS - 1), down = source.top <= top;
  const y1 = down ? source.top + ROW - 3 : source.top + 3,
    y2 = down ? top + row * ROW + 2 : top + (row + 1) * ROW - 2, tip = down ? -7 : 7;
  if (to < frame.left || to > frame.right) return null; // what it points at is not in sight
  const start = Math.max(frame.left, Math.min(frame.right, from)); // it comes in where it would cross the edge
  const y = from === to ? y1 : y1 + ((y2 - y1) * (start - from)) / (to - from);
  return svg("g", { class: "arrow" }, svg("line", { x1: start, y1: y, x2: to, y2 }),
    svg("path", { d: `M${to} ${y2}l-4 ${tip}h8z` }));
}

// From a call to every operation that it issued.
function issued(frame, places, lane, b) {
  const source = places.findIndex((place) => place.lane === lane), out = svg("g", {});
  for (const place of places) {
    if (place.lane.kind !== "stream" || !place.lane.ax) continue;
    place.lane.ax.forEach((x, i) => {
      if (place.lane.al[i] !== source || x === null || x < b.x || x > b.x + b.d) return;
      out.append(arrow(frame, places, place.lane, place.top, i) || "");
    });
  }
  return out;
}

// How the two events were placed, in words.
function methodWords(method) {
  return { clock: "placed by the events' own clock", bounds: "placed between the work before and after",
    "event-trace": "placed by the GPU's timestamps", inferred: "a pair inferred from the trace",
  }[method] || method;
}

// A host timer or an NVTX range: it has no events.
function exact(picture) {
  return picture.method === "exact";
}

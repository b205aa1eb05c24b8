// The timeline of one interval: its budget in time, NVTX ranges, host threads, streams, the two
// events.
// Detail is reduced by resolution: neighbours narrower than a pixel are drawn as one block that
// says how many it is.

const view = { picture: null, range: null, timer: 0, other: null };
const ROW = 25, STRIP_TALL = 38, LANE_GAP = 10, HEAD = 30, MOST_ROWS = 8, LETTER_PX = 7,
  AXIS_PX = 44, NARROW_PX = 6;

function wholeRange(picture) {
  const margin = Math.max((picture.whole ? 0.01 : 0.06) * picture.width, 2000);
  return [-margin / 1e3, (endOfWork(picture) + margin) / 1e3];
}

// Whether a call inside the interval launched an item of a lane.
function launchedInside(picture, lane, item) {
  const at = lane.kind === "stream" && lane.ax ? lane.ax[item] : null;
  return at !== null && at >= 0 && at <= picture.width;
}

// Where the picture ends (ns): with the interval, or later with the work that was launched in it, as of a timer that
// is read before its work has run, or of an event on another stream than the work.  What takes longer than the interval
// is drawn in part.
function endOfWork(picture) {
  if (picture.end !== undefined) return picture.end;
  picture.end = picture.width;
  for (const lane of picture.whole ? [] : picture.lanes) {
    for (let i = 0; i < lane.x.length; i += 1) {
      if (lane.x[i] + lane.d[i] <= picture.width + (picture.error || 0) || !launchedInside(picture, lane, i)) continue;
      picture.end = Math.max(picture.end, Math.min(lane.x[i] + lane.d[i], 2 * picture.width));
    }
  }
  return picture.end;
}

// Lanes from top to bottom: {lane, top, rows, tall}; y in pixels.  What lies beyond the whole range, in
// the picture's margins, takes no room until one zooms out to it.
function placeLanes(picture) {
  let y = HEAD + (picture.strip ? STRIP_TALL + LANE_GAP : 0);
  const [a, b] = wholeRange(picture), from = 1e3 * Math.min(a, view.range[0]),
    to = 1e3 * Math.max(b, view.range[1]);
  return picture.lanes.map((lane) => {
    let rows = 0;
    for (let i = 0; i < lane.x.length && rows < lane.rows; i += 1) {
      if (lane.x[i] <= to && lane.x[i] + lane.d[i] >= from) {
        rows = Math.max(rows, lane.r ? lane.r[i] + 1 : 1);
      }
    }
    const placed = { lane, top: y, rows: Math.min(rows, MOST_ROWS) };
    if (rows && lane.kind === "parts" && y > HEAD) placed.top = y += HEAD - LANE_GAP;
    placed.tall = lane.kind === "parts" ? STRIP_TALL : placed.rows * ROW;
    if (rows) y += placed.tall + LANE_GAP;
    return placed;
  });
}

// "CUDA calls, thread 667" as "calls 667", where there is no room for it.
function laneName(name) {
  return name.replace(/^CUDA /, "").replace(/, (thread|stream)/, "");
}

function drawTimeline() {
  const picture = view.picture, plot = $("lanes");
  if (!picture || plot.hidden) return;
  const width = plot.clientWidth, places = placeLanes(picture), narrow = width < 700;
  const end = places.findLast(({ rows }) => rows) || { top: HEAD, tall: STRIP_TALL };
  const bottom = end.top + end.tall + LANE_GAP;
  const names = [...places.filter(({ rows }) => rows).map(({ lane }) => lane.name), "parts"];
  const left = Math.min(narrow ? 112 : 250, 20 +
    6.5 * Math.max(...names.map((text) => text.length))), right = width - 14;
  const frame = { left, right, x: (at) => left +
    ((at - view.range[0]) / (view.range[1] - view.range[0])) * (right - left) };
  view.frame = frame;
  const pixel = ((view.range[1] - view.range[0]) * 1e3) / Math.max(200, right - left),
    letters = Math.floor((left - 14) / (narrow ? 7 : 6.3));
  const hits = [], drawn = [], labels = [], name = (text, y, strong) =>
    labels.push(
      svg("text", { x: left - 10, y: y + 4, "text-anchor": "end",
      class: strong ? "lane strong" : "lane" }, cut(narrow ? laneName(text) : text, strong ? Math.floor(0.88 * letters) : letters),
      svg("title", {}, text)));
  let merged = 0;
  // colour -> path of all blocks that are nothing but that colour: thousands of elements take long
  // to draw
  const plain = new Map();
  const put = (made, say, over = null, go = null, up = false, find = null) => {
    if (!made) return;
    if (made.element) drawn.push(made.element);
    else plain.set(made.fill, (plain.get(made.fill) || "") + made.path);
    hits.push({ ...made.hit, over, go, up, find, get said() { return say(); } });
  };
  if (!picture.whole) name(exact(picture) ? "ends" : "events", HEAD - 12);
  const shares = new Map(); // the same of narrow blocks of the breakdown, which have no edges
  const parts = (strip, top) => {
    // where most pieces are narrow, all of them are joined into columns of one width: then their shares can be compared
    const [from, to] = view.range.map((at) => at * 1e3);
    const inside = strip.x.reduce((n, x, i) => n + (x < to && x + strip.d[i] > from), 0);
    const least = inside > (right - left) / NARROW_PX ? NARROW_PX * pixel : pixel;
    const list = blocks(strip, view.range, least, NARROW_PX * pixel);
    for (const b of list) { merged += b.count - 1;
      const narrow = b.count > 1 || b.d < NARROW_PX * pixel ? drawShares(frame, b, top, STRIP_TALL) : null;
      for (const [colour, path] of narrow?.paths || []) shares.set(colour, (shares.get(colour) || "") + path);
      if (narrow) hits.push({ ...narrow.hit, get said() { return stripSaid(strip, b); } });
      else put(drawBlock(frame, b, top, STRIP_TALL, causeOf(b), (room) => stripText(b, room),
        list.length <= 300), () => stripSaid(strip, b)); }
  };
  if (picture.strip) {
    name("parts", HEAD + STRIP_TALL / 2, true);
    parts(picture.strip, HEAD);
  }
  for (const { lane, top, rows, tall } of places) {
    if (!rows) continue;
    name(lane.name, top + tall / 2, lane.kind === "parts");
    if (lane.kind === "parts") { parts(lane, top); continue; }
    for (const b of blocks(lane, view.range, pixel)) {
      merged += b.count - 1;
      const y = top + b.row * ROW + 2, over = b.count > 1 ? null : lane.kind === "host" ?
        () => issued(frame, places, lane, b) :
        () => arrow(frame, places, lane, top, b.item) || svg("g", {});
      const up = lane.kind === "host"; // below it lies what its arrow points at
      if (lane.kind === "event" && b.count === 1 && b.d === 0) put(recordMark(frame, b, y),
        () => laneSaid(lane, b), over);
      else put(laneBlock(frame, lane, b, y), () => laneSaid(lane, b), over,
      lane.numbers && b.count === 1 ? () => chooseNumber(lane.numbers[b.item], true) : null, up,
      lane.kind === "stream" && b.count === 1 ? DATA.strings[lane.n[b.item]] : null);
    }
  }
  const gaps = bandsOf(picture).flatMap(({ picture: of, shift }) => {
    const last = endOfGap(of), ended = last && places[last.lane + shift];
    const line = ended?.rows ? arrow(frame, places, ended.lane, ended.top, last.item) : null;
    line?.classList.add("gap");
    return line ? [line] : [];
  });
  const seen = ({ place: { lane, rows }, i }) => rows && lane.x[i] <= view.range[1] * 1e3 &&
    lane.x[i] + lane.d[i] >= view.range[0] * 1e3;
  const matches = matching(places).filter(seen).map(({ place, i, row }) => svg("rect", {
    class: found.item === i && found.lane === place.lane ? "match now" : "match", x: Math.max(left, frame.x(place.lane.x[i] / 1e3)), y: place.top + row * ROW + 1,
      height: ROW - 2,
    width: Math.max(2, Math.min(right, frame.x((place.lane.x[i] + place.lane.d[i]) / 1e3)) -
      Math.max(left, frame.x(place.lane.x[i] / 1e3))), "clip-path": "url(#inside)" }));
  const long = view.range[1] - view.range[0],
    [unit, word] = long > 2e6 ? [1e6, "s"] : long > 2e4 ? [1e3, "ms"] : [1, "us"];
  const clip = svg("clipPath", { id: "inside" },
    svg("rect", { x: left, y: 0, width: Math.max(1, right - left), height: bottom + AXIS_PX }));
  showDrawing(plot, width, bottom + AXIS_PX, [clip,
    axisBelow(view.range[0] / unit, view.range[1] / unit, (at) => frame.x(at * unit), bottom,
    right - left, `${word} since ` +
      (picture.whole ? "the first GPU work" : exact(picture) ? "the start" : "start.record()"), false,
    HEAD), svg("line", {
    class: "frame", x1: left, x2: left, y1: 8, y2: bottom }), ...labels,
      ...[...plain].map(([fill, d]) => svg("path", { class: "blocks", d, fill })),
      ...[...shares].map(([fill, d]) => svg("path", { class: "shares", d, fill })), ...drawn,
      ...gaps, ...matches, chosenBand(frame, bottom),
      ...bandsOf(picture).flatMap((band) => {
        const inside = places.slice(band.from, band.to).filter(({ rows }) => rows);
        const foot = picture.bands && inside.length ? inside.at(-1).top + inside.at(-1).tall + 4 : bottom;
        const head = picture.bands && inside.length ? inside[0].top : HEAD;
        return eventMarks(frame, band.picture, head, foot, hits);
      })], hits);
  const said = [];
  const [are, their] = merged === 1 ? ["is", "its"] : ["are", "their"];
  if (merged) said.push(`At this zoom ${plural(merged, "item")} narrower than a pixel ${are} drawn ` +
    `together with ${their} neighbours.`);
  $("reduced").textContent = said.join(" ");
  plot.dataset.drawn = `${selected.interval}:${view.range.map((v) => v.toFixed(3)).join(":")}`;
}

// One item, or several that are drawn together: as high as the share of their time that they cover, so that a stream
// that runs little does not look busy.
function laneBlock(frame, lane, b, top) {
  const whole = ROW - 4, together = b.count > 1 && ["stream", "host"].includes(lane.kind);
  const height = together ? Math.max(3, whole * Math.min(1, b.sum / b.d)) : whole;
  const made = drawBlock(frame, b, top + whole - height, height, causeOf(b),
    (room) => (height < 14 ? "" : fitting(b, laneText(lane, b), room)), false);
  if (made) Object.assign(made.hit, { y: top, h: whole });
  return made;
}

// The pictures of which this one consists, and which of its lanes are theirs.
function bandsOf(picture) {
  return picture.bands || [{ picture, from: 0, to: picture.lanes.length, shift: 0 }];
}

// What the field "Find" asks for, in order of time.
const found = { at: -1, lane: null, item: -1 };

function matching(places) {
  const words = $("find").value.trim().toLowerCase(), out = [];
  if (words) for (const place of places) place.lane.n.forEach((name, i) => {
    if (DATA.strings[name].toLowerCase().includes(words)) out.push({ place, i,
      row: Math.min(place.lane.r ? place.lane.r[i] : 0, MOST_ROWS - 1) });
  });
  out.sort((p, q) => p.place.lane.x[p.i] - q.place.lane.x[q.i]);
  $("finds").textContent = words ? `${out.length.toLocaleString("en")} in this picture${out.length ?
    ", Enter: next" : ""}` : "";
  return out;
}

function nextFound() {
  const all = view.picture ? matching(placeLanes(view.picture)) : [];
  if (!all.length) return;
  found.at = (found.at + 1) % all.length;
  const { place, i } = all[found.at], at = (place.lane.x[i] + place.lane.d[i] / 2) / 1e3;
  Object.assign(found, { lane: place.lane, item: i });
  // so close that it is seen among its neighbours; the chart stays where it is if the match is in it, and as close
  const [from, to] = view.range, wide = Math.min(to - from, Math.max(6 * place.lane.d[i] / 1e3, 20));
  zoomTo(wide === to - from && at >= from && at <= to ? view.range : [at - wide / 2, at + wide / 2]);
}

// The work that ended the longest time in which no stream of the picture ran anything: inside the interval, or
// launched there.
function endOfGap(picture) {
  if (picture.gap !== undefined) return picture.gap;
  const work = picture.lanes.flatMap((lane, at) => (lane.kind === "stream" ?
    Array.from(lane.x, (x, item) => ({ lane: at, item, x, end: x + lane.d[item] })) : []));
  let busy = 0, longest = 0;
  picture.gap = null;
  for (const one of work.sort((p, q) => p.x - q.x)) {
    if (one.x > picture.width && !launchedInside(picture, picture.lanes[one.lane], one.item)) break;
    if (one.x - busy > longest) [longest, picture.gap] = [one.x - busy, one];
    busy = Math.max(busy, one.end);
  }
  return picture.gap;
}

// A chosen stretch (Shift and drag) stays until Escape, and is added up beside the plot.
function chosenBand(frame, bottom) {
  if (!view.chosen) return null;
  const [a, b] = view.chosen.map((at) => Math.max(frame.left, Math.min(frame.right, frame.x(at))));
  return svg("rect", { class: "chosen-stretch", x: a, y: HEAD - 8, width: Math.max(1, b - a),
    height: bottom - HEAD + 8 });
}

// What the picture leaves out, in words; "" for nothing.
function missing(picture) {
  return picture ? [...new Set(picture.omitted)].join(" ") : "";
}

function chooseStretch(range) {
  view.chosen = range;
  drawTimeline();
  if (!range) return fill($("selection"));
  const { from, to, sides, items } = stretch();
  const rest = items.slice(MOST_ITEMS), [calls, work] = [true, false].map((called) =>
    items.slice(0, MOST_ITEMS).filter((item) => item.call === called));
  const list = (rows, name) => sumList(rows.map(({ name: head, count, ns }) =>
    [head, `×${count.toLocaleString("en")} ${duration(ns)}`]), name);
  fill($("selection"), make("p", { class: "head" }, make("strong", null, `selected ${addends([to - from], to - from)[0]}`),
    make("button", { type: "button", "aria-label": "Remove the selection", onclick: () => chooseStretch(null) }, "×")),
    sides.map((parts, k) => {
      const texts = addends(parts.map(({ ns }) => ns), to - from);
      return sumList(parts.map(({ name }, i) => [name, texts[i]]).filter(([, text]) => /[1-9]/.test(text)),
        `${sides.length > 1 ? `${"AB"[k]}: ` : ""}parts, which add up to it`);
    }),
    list(work, "operations in it, on all streams"), list(calls, "CUDA calls in it"),
    rest.length ? make("p", { class: "quiet" }, `and ${plural(rest.length, "more name")}: ` +
      duration(rest.reduce((sum, { ns }) => sum + ns, 0))) : null);
}

// What was chosen, added up: {from, to (ns), sides: the parts of the picture or of both, items}.
function stretch() {
  const [from, to] = view.chosen.map((at) => Math.round(at * 1e3));
  return { from, to, sides: bandsOf(view.picture).map((band) => partsBetween(band.picture, from, to)),
    items: itemsBetween(view.picture, from, to) };
}

function sumList(rows, name) {
  return rows.length ? [make("p", { class: "quiet" }, name), make("dl", { "aria-label": name }, rows.map(([head, text]) =>
    make("div", null, make("dt", { title: head }, cut(head, 26)), make("dd", null, text))))] : null;
}

// How long a stretch (ns) is covered by items of a lane.
function inside(lane, i, from, to) {
  return Math.min(to, lane.x[i] + lane.d[i]) - Math.max(from, lane.x[i]);
}

// The parts of a stretch, [{name, ns, colour}]: they add up to its length, with what lies before and behind the
// interval.
function partsBetween(picture, from, to) {
  const sums = new Map(), add = (name, ns) => sums.set(name, (sums.get(name) || 0) + ns);
  const { strip } = picture;
  if (strip) strip.x.forEach((_, i) => {
    const ns = inside(strip, i, from, to);
    if (ns > 0) add(DATA.causes[strip.c[i]].short, ns);
  });
  else { // of a run of very many pieces: whether anything ran
    const work = picture.lanes.filter(({ kind }) => kind === "stream").flatMap((lane) =>
      lane.x.map((x, i) => [Math.max(from, x), Math.min(to, x + lane.d[i])]));
    let end = from;
    for (const [a, b] of work.filter(([p, q]) => q > p).sort((p, q) => p[0] - q[0])) {
      if (b > end) add("GPU works", b - Math.max(a, end));
      end = Math.max(end, b);
    }
  }
  const colours = new Map(DATA.causes.map(({ short, colour }) => [short, colour]));
  const rows = [...sums].sort((p, q) => q[1] - p[1]).map(([name, ns]) => ({ name, ns, colour: colours.get(name) }));
  const rest = to - from - rows.reduce((sum, { ns }) => sum + ns, 0);
  if (rest > 0) rows.push({ name: strip ? "outside the interval" : "GPU idle, or not drawn", ns: rest });
  return rows;
}

// What ran and was called in a stretch, by name, the longest first: how often, how long (ns), and whether it is a call.
// It may overlap, so it adds up to nothing.
function itemsBetween(picture, from, to) {
  const sums = new Map();
  for (const lane of picture.lanes.filter(({ kind }) => ["stream", "host"].includes(kind))) {
    const call = lane.kind === "host";
    lane.x.forEach((_, i) => {
      const ns = inside(lane, i, from, to), name = shortName(DATA.strings[lane.n[i]]), key = `${call} ${name}`;
      if (!(ns > 0)) return;
      const sum = sums.get(key) || { name, count: 0, ns: 0, call };
      sums.set(key, { ...sum, count: sum.count + 1, ns: sum.ns + ns });
    });
  }
  return [...sums.values()].sort((p, q) => q.ns - p.ns);
}

// A record is an instant: a diamond on the lane of its stream.
function recordMark(frame, b, top) {
  const x = frame.x(b.x / 1e3), y = top + (ROW - 4) / 2;
  if (x < frame.left || x > frame.right) return null;
  return { element: svg("path", { class: "record", d: `M${x} ${y - 6}l6 6l-6 6l-6 -6z` }),
    hit: { x: x - 6, y: y - 6, w: 12, h: 12 } };
}

// Both events: a line where each is placed, shaded as far as the placement is certain to 95 %.
function eventMarks(frame, picture, top, bottom, hits) {
  if (picture.whole) return [];
  const out = [], inside = (x) => Math.max(frame.left, Math.min(frame.right, x));
  [["start", 0], ["end", picture.width]].forEach(([word, ns], k) => {
    const x = frame.x(ns / 1e3), [a, b] = [frame.x((ns - picture.error) / 1e3),
      frame.x((ns + picture.error) / 1e3)];
    if (b < frame.left || a > frame.right) return;
    out.push(svg("rect", { class: "placed", x: inside(a), width: Math.max(1, inside(b) - inside(a)),
      y: top - 8, height: bottom - top + 8 }));
    if (x < frame.left || x > frame.right) return;
    out.push(svg("line", { class: "event", x1: x, x2: x, y1: top - 12, y2: bottom }),
      svg("path", { class: "record", d: `M${x} ${top - 20}l7 7l-7 7l-7 -7z` }));
    hits.push({ x: x - 8, y: top - 22, w: 16, h: 18, said: exact(picture) ? [`${word} at ${us(ns)} us`] :
      [`${word} event at ${us(ns)} us`,
      `±${duration(picture.error)} (95 %), ${methodWords(picture.method)}`,
      DATA.strings[picture.bounds[k]]] });
  });
  return out;
}

function zoomTo(range) {
  unpin(); // what it explains lies elsewhere now
  view.range = range;
  clearTimeout(view.timer);
  view.timer = setTimeout(() => { drawTimeline(); remember(); }, 30);
}

const timeAxis = { ready: () => view.picture, range: () => view.range, frame: () => view.frame,
  to: zoomTo, select: chooseStretch, fit: () => zoomTo(wholeRange(view.picture)) };

function listenToTimeline() {
  const plot = $("lanes"), { fit } = timeAxis;
  const pan = (share) => () => panBy(timeAxis, share), zoom = (by) => () => zoomBy(timeAxis, by);
  const keys = { ArrowLeft: pan(-0.2), a: pan(-0.2), ArrowRight: pan(0.2), d: pan(0.2),
    "+": zoom(0.6), "=": zoom(0.6), w: zoom(0.6), "-": zoom(1 / 0.6), s: zoom(1 / 0.6),
    0: fit, Home: fit, Escape: () => chooseStretch(null) };
  plot.addEventListener("keydown", (event) => {
    if (!view.picture || event.ctrlKey || event.metaKey || event.altKey || !keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  });
  $("zoom-in").addEventListener("click", () => view.picture && zoomBy(timeAxis, 0.5));
  $("zoom-out").addEventListener("click", () => view.picture && zoomBy(timeAxis, 2));
  $("zoom-fit").addEventListener("click", () => view.picture && fit());
  zoomable(plot, timeAxis);
}

const MOST_PIECES = 500, MOST_ITEMS = 10;

// Everything in the lanes as a table, in order of time: what the plot says to those who cannot see
// or hover it.
function drawItems() {
  const picture = view.picture, details = $("items");
  if (!picture || !details.open) return;
  const lanes = [...(picture.strip ? [{ ...picture.strip, name: "parts" }] : []), ...picture.lanes];
  const items = lanes.flatMap((lane) => lane.x.map((x, i) => ({ lane, x, i })))
    .sort((p, q) => p.x - q.x);
  const rows = items.slice(0, MOST_PIECES).map(({ lane, x, i }) => [us(x), micro(lane.d[i]),
    lane.name, ...(lane.t ? [DATA.strings[lane.n[i]], DATA.strings[lane.t[i]]] :
      [DATA.causes[lane.c[i]].short, DATA.strings[lane.n[i]]])]);
  const caption = `The first ${rows.length} of ${plural(items.length, "item")} in the lanes`;
  fillTable(details.querySelector("table"), caption,
    [{ text: "from us", number: true }, { text: "length us", number: true }, { text: "lane" },
    { text: "what" }, { text: "detail" }], rows);
  details.querySelector("summary").textContent = items.length > MOST_PIECES ? caption :
    "Table of everything in the lanes";
}

function us(ns) {
  return (ns / 1e3).toFixed(2);
}

// The picture of an interval, unpacked; null where the page holds none.
function pictureOf(number) {
  const picture = DATA.timelines[number] || null, strip = picture?.strip;
  if (strip && !strip.x) {
    for (const key of ["d", "c", "n"]) strip[key] = unpack(strip[key]);
    let end = strip.x0;
    strip.x = strip.d.map((length) => (end += length) - length);
  }
  if (picture && !picture.lanes) Object.assign(picture, { lanes: lanesOf(strip), derived: true });
  return picture;
}

// Lanes from the parts alone: the calls that the GPU waited for, as long as it did, and its work.  Their names are no
// longer than those of whole lanes, lest the axis moves.
function lanesOf(strip) {
  const none = DATA.strings.push("") - 1, lane = (kind, name) => ({ kind, name, rows: 1, r: 0,
    x: [], d: [], n: [], t: [], c: [], ax: [], al: [] });
  const lanes = [lane("host", "CUDA calls, in part"), lane("stream", "stream, in part")];
  strip.x.forEach((x, i) => {
    const { name } = DATA.causes[strip.c[i]];
    const at = LAST_STEPS.includes(name) ? 1 : ["api_launch", "api", "sync"].includes(name) ? 0 : -1;
    if (at < 0) return;
    const { [at]: to, 0: calls } = lanes, issued = at && calls.x.length;
    to.x.push(x), to.d.push(strip.d[i]), to.n.push(strip.n[i]), to.t.push(none);
    to.c.push(strip.c[i]);
    to.ax.push(issued ? calls.x.at(-1) : null), to.al.push(issued ? 0 : null);
  });
  return lanes;
}

// The run as a whole, and a lane of the intervals in it.
function wholePicture(run) {
  const picture = pictureOf(run.number);
  if (picture.whole) return picture;
  picture.whole = true;
  const items = DATA.runs.flatMap((runs, at) => Array.from(runs.start, (start, i) => ({
    name: nameOf(DATA.labels[at], runs, i), number: numberOf(runs, i),
    x: (start - run.start) * 1e3, d: runs.elapsed[i] }))).sort((p, q) => p.x - q.x);
  if (!items.length) return picture;
  const free = [], row = ({ x, d }) => {
    const found = free.findIndex((end) => end <= x), at = found < 0 ? free.length : found;
    free[at] = x + d;
    return at;
  };
  const text = DATA.strings.push(
    "Placed here to the microsecond; click to open its own timeline.") - 1;
  for (const lane of picture.lanes) lane.al &&= lane.al.map((at) => (at === null ? at : at + 1));
  picture.lanes.unshift({ kind: "interval", name: "intervals", r: items.map(row),
    x: items.map((item) => item.x), d: items.map((item) => item.d), t: items.map(() => text),
    n: items.map((item) => DATA.strings.push(item.name) - 1), c: items.map(() => -1),
    numbers: items.map((item) => item.number) });
  picture.lanes[0].rows = free.length;
  return picture;
}

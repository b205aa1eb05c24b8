// All repetitions of the chosen label below its picture: a row for each kind of them, in it a bar as
// high as each took long, at its place in the order of time; the one that is shown is marked.

const KIND_ROW = 36, KIND_BAR = 26;
// Kinds whose longest repetitions differ by at most this factor have one scale: beyond it the bars of
// the short ones would all look alike.
const ONE_SCALE = 6;

// The kind of a repetition: its place among the label's kinds.
function kindOf(runs, i) {
  return runs.kind ? runs.kind[i] : 0;
}

// The place of an interval among the repetitions of its label, -1 for none.
function placeOf(runs, number) {
  return runs.interval.indexOf(number);
}

// Of each kind how many there are, and the shortest, median and longest of them; worked out once.
function kindsOf(label, runs) {
  return runs.kinds ||= label.kinds.map((name, kind) => {
    const times = runs.elapsed.filter((_, i) => kindOf(runs, i) === kind).sort((p, q) => p - q);
    return { name, count: times.length, least: times[0], most: times[times.length - 1],
      median: times[(times.length - 1) >> 1] };
  });
}

// As many letters as there is room for: a number is left out, never cut.
function kindTimes({ name, count, least, most, median }, letters) {
  const times = (name.startsWith("×") ? "" : `×${count.toLocaleString("en")}  `) + duration(median);
  const range = `${times} (${duration(least)} to ${duration(most)})`;
  return count > 1 && duration(least) !== duration(most) && range.length <= letters ? range : times;
}

// The page's picture of an interval, if it holds one.
function hasPicture(number) {
  return Boolean(DATA.timelines[number]);
}

// The repetition that stands for a kind: that of its row among the labels; the median one of those that have a
// picture, or of all of them.
function typicalOf(label, runs, kind) {
  const row = label.groups.find(({ name }) => name === label.kinds[kind]);
  if (row) return row.interval;
  const same = [...runs.interval.keys()].filter((i) => kindOf(runs, i) === kind);
  if (same.includes(placeOf(runs, label.roles.median))) return label.roles.median;
  const held = same.filter((i) => hasPicture(numberOf(runs, i)));
  const from = (held.length ? held : same).sort((p, q) => runs.elapsed[p] - runs.elapsed[q]);
  return from.length ? numberOf(runs, from[(from.length - 1) >> 1]) : label.roles.median;
}

function typicalFor(label, runs, number) {
  return typicalOf(label, runs, kindOf(runs, placeOf(runs, number)));
}

// The buttons beside "compare two": one for each repetition that has a name; while two are compared, they choose B.
function drawRoles(label, runs, at) {
  const shown = view.other ?? selected.interval, kind = kindOf(runs, placeOf(runs, shown));
  const { median, fastest, slowest, first } = label.roles, steady = label.kinds[kind] !== FIRST_CALLS;
  const places = new Map([["median", steady ? typicalFor(label, runs, shown) : median], ["fastest", fastest],
    ["slowest", slowest], ["first", first]]);
  const apart = label.kinds.includes(FIRST_CALLS) && label.kinds.length > 1;
  const numbers = [...places.values()], own = [...places].filter(([, number], k) => numbers.indexOf(number) === k);
  const buttons = own.map(([role, number]) => make("button", { type: "button", class: "role",
    "aria-pressed": String(number === shown),
    title: role === "median" && label.kinds.length > 1 && steady ? `of “${label.kinds[kind]}”` : null,
    onclick: () => (view.other === null ? choose(label.label, number, false) : takeRepetition(label, runs, number)) },
  role === "first" && apart ? "first call" : role));
  const aside = apart && own.some(([role]) => role === "first"), pairing = view.other !== null;
  buttons.at(-1).classList.toggle("apart", aside);
  const said = [pairing ? "B" : "", aside ? "later calls" : ""].filter(Boolean).join(", ");
  fill($("roles"), runs.elapsed.length < 2 ? null : [said ? make("span", { class: "quiet" }, said + ":") : null,
    buttons]);
}

// What makes a repetition longer or shorter than the typical one of its kind, if it is by 5 % or more; "" where the
// page has no parts of every repetition.
function differenceSaid(label, runs, number) {
  const typical = typicalFor(label, runs, number), [i, k] = [number, typical].map((one) => placeOf(runs, one));
  const more = runs.elapsed[i] - runs.elapsed[k];
  if (number === typical || i < 0 || k < 0 || Math.abs(more) < 0.05 * runs.elapsed[k]) return "";
  const changes = PRESENT.filter(({ name }) => runs.parts[name]).map((cause) =>
    ({ cause, ns: runs.parts[cause.name][i] - runs.parts[cause.name][k] }));
  const [{ cause, ns } = {}] = changes.sort((p, q) => Math.abs(q.ns) - Math.abs(p.ns));
  return cause ? `${duration(Math.abs(more))} ${more > 0 ? "longer" : "shorter"} than #${k.toLocaleString("en")}, the ` +
    `typical one${label.kinds.length > 1 ? " of its kind" : ""}; largest difference: ${cause.short} ` +
    `${ns > 0 ? "+" : "−"}${duration(Math.abs(ns))}.` : "";
}

// How to have the picture of a repetition that this page does not hold.
function commandFor(label, runs, number) {
  const name = nameOf(label, runs, placeOf(runs, number));
  return `nsysalign report RUN --interval ${/^[\w#.:-]+$/.test(name) ? name : number}`;
}

// Says it in the line of the buttons, so that nothing moves.
function sayNoPicture(label, runs, number, what) {
  const at = placeOf(runs, number), command = commandFor(label, runs, number);
  fill($("compared"), make("button", { type: "button",
    onclick: (event) => copyText(command, event.currentTarget) }, "copy the command"),
  make("span", { title: command }, `#${at.toLocaleString("en")} (${duration(runs.elapsed[at])}) ${what}: `,
    make("code", null, command)));
}

// What fills the height of each kind's row (ns), and what is said about it.
function scalesOf(kinds) {
  const longest = kinds.map(({ most }) => most), most = Math.max(...longest, 1);
  if (most <= ONE_SCALE * Math.min(...longest)) {
    return { tops: longest.map(() => most), said: `height: 0 to ${duration(most)}` };
  }
  return { tops: longest.map((ns) => Math.max(1, ns)), said: "each row has its own scale" };
}

function drawRepetitions(label, runs) {
  const plot = $("repetitions"), width = plot.clientWidth, count = runs.elapsed.length;
  const kinds = kindsOf(label, runs), left = narrow() ? 12 : Math.max(240, view.frame?.left || 0);
  const tall = narrow() ? KIND_ROW + 20 : KIND_ROW, bottom = 8 + kinds.length * tall;
  const right = width - 14, step = (right - left) / count, now = placeOf(runs, selected.interval);
  const x = (i) => left + (i + 0.5) * step, bar = Math.max(1, Math.min(14, 0.72 * step));
  const hits = [], drawn = [], { tops, said } = scalesOf(kinds);
  const held = [...runs.interval.keys()].filter((i) => hasPicture(numberOf(runs, i)));
  const some = held.length < count; // then those with a picture are marked
  kinds.forEach((kind, row) => {
    const foot = 8 + (row + 1) * tall - 6, y = narrow() ? foot - KIND_BAR - 8 : foot - 16;
    const name = kinds.length > 1 ? kind.name : "repetitions";
    const texts = narrow() ? [`${name}  ${duration(kind.median)}`] : [name, kindTimes(kind, Math.floor(left / 6.4))];
    texts.forEach((text, line) => drawn.push(svg("text", { x: narrow() ? left : left - 10,
      y: y + 15 * line, "text-anchor": narrow() ? "start" : "end",
      class: line ? "quiet" : "strong" }, cut(text, Math.floor(narrow() ? (width - 2 * left) / 7.6 : left / 6.4)))));
    const columns = new Map(); // the longest of those that share a pixel
    for (let i = 0; i < count; i += 1) {
      if (kindOf(runs, i) !== row) continue;
      const at = step < 1 ? Math.floor(x(i)) : i;
      if (!columns.has(at) || runs.elapsed[columns.get(at)] < runs.elapsed[i]) columns.set(at, i);
    }
    let path = "";
    for (const i of columns.values()) {
      const high = Math.max(2, KIND_BAR * runs.elapsed[i] / tops[row]);
      path += `M${(x(i) - bar / 2).toFixed(2)} ${foot}v${(-high).toFixed(2)}h${bar.toFixed(2)}V${foot}z`;
      hits.push({ x: x(i) - Math.max(bar, step) / 2, y: foot - tall + 6, w: Math.max(bar, step),
        h: tall - 4, said: [nameOf(label, runs, i), duration(runs.elapsed[i]),
          kinds.length > 1 ? kind.name : null, hasPicture(numberOf(runs, i)) ? null : "without a picture on this page"], go: (event) => takeRepetition(label, runs, numberOf(runs, i), event) });
    }
    drawn.push(svg("line", { class: "frame", x1: left, x2: right, y1: foot, y2: foot }),
      svg("path", { class: "repetition", d: path }));
    for (const i of some ? held.filter((one) => kindOf(runs, one) === row) : []) {
      drawn.push(svg("circle", { class: "has-picture", cx: x(i), cy: foot + 4, r: 2.5 }));
      hits.push({ x: x(i) - 5, y: foot, w: 10, h: 9, said: [nameOf(label, runs, i), duration(runs.elapsed[i]),
        kinds.length > 1 ? kind.name : null], go: (event) => takeRepetition(label, runs, numberOf(runs, i), event) });
    }
    for (const [word, number] of [["", now], ["other", placeOf(runs, view.other)]]) {
      if (number < 0 || kindOf(runs, number) !== row) continue;
      const high = Math.max(2, KIND_BAR * runs.elapsed[number] / tops[row]);
      drawn.push(svg("rect", { class: "repetition now " + word, x: x(number) - Math.max(3, bar) / 2,
        width: Math.max(3, bar), y: foot - high, height: high }),
      svg("path", { class: "now " + word, d: `M${x(number)} ${foot + 1}l4 6h-8z` }));
    }
  });
  // the number of the one that is shown, and those of the axis that leave it room
  const at = ticks(0, count - 1, Math.min(Math.max(2, width / 90), count - 1))
    .filter((i) => now < 0 || Math.abs(x(i) - x(now)) > 34);
  drawn.push(svg("g", { class: "axis" }, at.map((i) => svg("text", { x: x(i), y: bottom + 14,
    "text-anchor": "middle" }, i.toLocaleString("en")))));
  drawn.push(svg("text", { class: "quiet scale", x: narrow() ? left : left - 10, y: bottom + (narrow() ? 32 : 14),
    "text-anchor": narrow() ? "start" : "end" }, said));
  if (some) drawn.push(svg("text", { class: "quiet", x: right, y: bottom + 32, "text-anchor": "end" },
    "dot: the page holds its picture"));
  const text = now.toLocaleString("en"), most = width - 4 * text.length - 2;
  if (now >= 0) drawn.push(svg("text", { x: Math.min(x(now), most), y: bottom + 14,
    "text-anchor": "middle", class: "strong" }, text));
  plot.setAttribute("aria-valuemax", count - 1);
  plot.setAttribute("aria-valuenow", Math.max(0, now));
  plot.setAttribute("aria-valuetext", now < 0 ? "" :
    `${nameOf(label, runs, now)}, ${duration(runs.elapsed[now])}` +
    (kinds.length > 1 ? `, ${label.kinds[kindOf(runs, now)]}` : ""));
  showDrawing(plot, width, bottom + (narrow() || some ? 38 : 20), drawn, hits);
}

// Opens one; while two are compared, or with Shift, puts it beside the one that is shown.
function takeRepetition(label, runs, number, event) {
  const compares = number !== selected.interval && (view.other !== null || event?.shiftKey);
  if (!compares) choose(label.label, number, false);
  else if (hasPicture(number)) compareTwo(label, runs, number);
  else sayNoPicture(label, runs, number, "cannot be compared, no picture on this page");
}

// Another repetition by the arrow keys: by one, or to an end; past those without a picture.
function stepRepetition(by) {
  const label = byName(selected.label), runs = label && DATA.runs[DATA.labels.indexOf(label)];
  if (!runs || WHOLE.has(selected.interval)) return;
  const last = runs.elapsed.length - 1, none = !runs.interval.some(hasPicture);
  let at = Math.max(0, Math.min(last, placeOf(runs, selected.interval) + by));
  const on = Math.abs(by) === 1 ? by : -Math.sign(by); // from an end back
  while (!none && at > 0 && at < last && !hasPicture(numberOf(runs, at))) at += on;
  if (none || hasPicture(numberOf(runs, at))) choose(label.label, numberOf(runs, at), false);
}

function listenToRepetitions() {
  const by = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, Home: -Infinity,
    End: Infinity };
  $("repetitions").addEventListener("keydown", (event) => {
    if (!(event.key in by) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    stepRepetition(by[event.key]);
  });
}

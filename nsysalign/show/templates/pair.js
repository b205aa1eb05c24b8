// The kind of the calls that load code: show/payload.py, `_kind_of_group`.
const FIRST_CALLS = "first calls";

// Two pictures on one scale, each from its own start: two repetitions of a label, or one label before
// and after; and beside them their parts, which add up on both sides and in between.

// `sides`: two of {name, picture}.  Lanes of the second lie below those of the first.
function pairPicture(sides) {
  const lanes = [], bands = [];
  for (const { name, picture } of sides) {
    const band = { picture, from: lanes.length };
    const side = `${"AB"[bands.length]} ${name}`;
    if (picture.strip) lanes.push({ ...picture.strip, kind: "parts", name: side, rows: 1, r: 0 });
    const shift = lanes.length;
    for (const lane of picture.lanes) lanes.push({ ...lane,
      al: lane.al?.map((at) => (at === null ? null : at + shift)) });
    bands.push({ ...band, to: lanes.length, shift });
  }
  return { lanes, bands, width: Math.max(...sides.map(({ picture }) => picture.width)),
    error: sides[0].picture.error, method: sides[0].picture.method, strip: null,
    omitted: sides.flatMap(({ picture }) => picture.omitted) };
}

// `before`, `after`: {name, elapsed, parts, beside}.  {head, rows}: a row [name, [A, B, B − A], cause] for each
// part of one of them, then their sum, then what ran beside.  One unit for all; as printed, columns add up, and
// each difference is that of the two numbers beside it.
function pairRows(before, after) {
  const present = DATA.causes.filter(({ name }) => before.parts[name] || after.parts[name]);
  const longest = Math.max(before.elapsed, after.elapsed); // no number has more than six digits: the column is narrow
  const [unit, word, digits] = longest < 999.5e3 ? [1e3, "us", 2] : longest < 999.5e6 ? [1e6, "ms", 3] : [1e9, "s", 3];
  const places = { minimumFractionDigits: digits, maximumFractionDigits: digits }, step = unit / 10 ** digits;
  const text = (steps) => (steps / 10 ** digits).toLocaleString("en", places).replace("-", "−");
  const row = (name, p, q, cause = null) =>
    [name, [text(p), text(q), (q > p ? "+" : "") + text(q - p)], cause];
  const [one, two] = [before, after].map(({ parts }) =>
    inSteps(present.map(({ name }) => parts[name] || 0), step));
  const rows = present.map((cause, i) => row(cause.short, one[i], two[i], cause))
    .filter(([, numbers]) => /[1-9]/.test(numbers.join()));
  const round = (ns) => Math.round((ns || 0) / step);
  rows.push(row("measured", round(before.elapsed), round(after.elapsed)));
  if (before.beside || after.beside) rows.push(row(besideSum(before), round(before.beside), round(after.beside)));
  return { head: [`part, ${word}`, ["A", "B", "B − A"]], rows };
}

function pairTable(before, after) {
  const { head: [part, sides], rows } = pairRows(before, after);
  const line = ([name, numbers, cause]) => {
    const mark = cause ? swatch(cause) : null;
    mark?.classList.add("mark");
    return make("tr", { class: name === "measured" ? "whole" : null },
      make("th", { scope: "row" }, mark, mark ? " " : null, name),
      numbers.map((number) => make("td", { class: "number" }, number)));
  };
  return make("table", { class: "pair-table" },
    make("caption", { class: "unseen" }, `Parts of ${before.name} and of ${after.name}`),
    make("thead", null, make("tr", null, [part, ...sides].map((head, k) =>
      make("th", { scope: "col", class: k ? "number" : null }, head)))),
    make("tbody", null, rows.map(line)));
}

// What a repetition is put beside, if nobody says so: the typical one of its kind; of that one the typical ones of
// the other kinds, then the slowest, then any whose picture the page holds; a first call last.
function besideOf(label, runs, number) {
  const kinds = label.kinds.map((name, kind) => (name === FIRST_CALLS ? label.roles.slowest : typicalOf(label, runs, kind)));
  const { slowest, fastest } = label.roles;
  const wanted = [typicalFor(label, runs, number), ...kinds, slowest, fastest, ...runs.interval];
  return wanted.find((other) => other !== number && hasPicture(other)) ?? null;
}

// What B is, in words.
function besideSaid(label, runs, other) {
  const kind = kindOf(runs, placeOf(runs, other));
  const what = other === typicalOf(label, runs, kind) ? "the typical one" :
    other === label.roles.slowest ? "the slowest" : other === label.roles.fastest ? "the fastest" :
    other === label.roles.first ? "the first" : "";
  const same = kind === kindOf(runs, placeOf(runs, selected.interval));
  const of = label.kinds.length > 1 && !same ? `${what === "the typical one" ? " of" : ","} “${label.kinds[kind]}”` : "";
  return `B is #${placeOf(runs, other).toLocaleString("en")}${what ? `, ${what}` : ""}${of}.`;
}

// What is drawn of the chosen repetition: its own picture, or that and the other one's.
function chosenPicture(label, runs) {
  const one = pictureOf(selected.interval), two = view.other === null ? null : pictureOf(view.other);
  if (!one || !two) return one;
  const name = (number) => `#${placeOf(runs, number).toLocaleString("en")}`; // the label is known
  return pairPicture([{ name: name(selected.interval), picture: one },
    { name: name(view.other), picture: two }]);
}

function compareTwo(label, runs, other) {
  view.other = other;
  choose(label.label, selected.interval, false);
}

// Begins to compare: from the median on the fastest with the slowest, where all of them do the same work.
function compareSome(label, runs) {
  const { median, fastest, slowest } = label.roles;
  const kinds = label.kinds.filter((name) => name !== FIRST_CALLS);
  const extremes = selected.interval === median && kinds.length < 2 && fastest !== slowest;
  if (extremes && hasPicture(fastest) && hasPicture(slowest)) {
    view.other = slowest;
    choose(label.label, fastest, false);
  } else compareTwo(label, runs, besideOf(label, runs, selected.interval));
}

// The button beside the roles, and what is compared with what.
function drawCompare(label, runs) {
  const pairing = view.other !== null, other = (number) => number !== selected.interval && hasPicture(number);
  $("compare").hidden = !pairing && !(hasPicture(selected.interval) && runs.interval.some(other));
  $("compare").setAttribute("aria-pressed", String(pairing));
  $("compare").onclick = () => (pairing ? compareTwo(label, runs, null) : compareSome(label, runs));
  $("compared").textContent = pairing ?
    `${besideSaid(label, runs, view.other)} Click another for B.` : "";
}

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
// part of one of them, then their sum, then what ran beside.  One unit for all.
function pairRows(before, after) {
  const present = DATA.causes.filter(({ name }) => before.parts[name] || after.parts[name]);
  const [unit, word] = Math.max(before.elapsed, after.elapsed) < 1e7 ? [1e3, "us"] : [1e6, "ms"];
  const places = { minimumFractionDigits: 2, maximumFractionDigits: 2 };
  const text = (ns) => (ns / unit).toLocaleString("en", places).replace("-", "−");
  const row = (name, p, q, cause = null) => [name, [text(p), text(q), (q > p ? "+" : "") + text(q - p)], cause];
  const rows = present.map((cause) => row(cause.short, ...[before, after].map(
    ({ parts }) => parts[cause.name] || 0), cause)).filter(([, numbers]) => /[1-9]/.test(numbers.join()));
  rows.push(row("measured", before.elapsed, after.elapsed));
  if (before.beside || after.beside) rows.push(row(besideWord(before), before.beside || 0, after.beside || 0));
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

// What a repetition is put beside, if nobody says so: the median one, else the slowest or the
// fastest of its kind, else any whose timeline the page holds.
function besideOf(label, runs, number) {
  const kind = kindOf(runs, placeOf(runs, number));
  const same = [...runs.interval.keys()].filter((i) => kindOf(runs, i) === kind)
    .sort((p, q) => runs.elapsed[q] - runs.elapsed[p]).map((i) => numberOf(runs, i));
  const wanted = [label.roles.median, same[0], same[same.length - 1], ...runs.interval];
  return wanted.find((other) => other !== number && DATA.timelines[other]) ?? null;
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

// The button beside the roles, and what is compared with what.
function drawCompare(label, runs) {
  const pairing = view.other !== null, other = (number) =>
    number !== selected.interval && DATA.timelines[number];
  $("compare").hidden = !pairing && !(DATA.timelines[selected.interval] && runs.interval.some(other));
  $("compare").setAttribute("aria-pressed", String(pairing));
  $("compare").onclick = () => compareTwo(label, runs, pairing ? null :
    besideOf(label, runs, selected.interval));
  $("compared").textContent = pairing ? "Click a repetition to put it in B's place." : "";
}

// What "Find" looks for: first in what is drawn (timeline.js marks it), below the field in the whole
// run: labels, kernels and copies, ranges; how often, and in which labels.

const MOST_FOUND = 6, MOST_PLACES = 9;

// [{heading, count, rows: [{name, count, places: [[label, how often in it], ...], beside: [label, ...]}]}]
// of what has these words.  beside: labels in whose pictures it runs, outside their own time: before, after or on another stream.
function findings(words) {
  const has = (name) => name.toLowerCase().includes(words);
  const { names, count, labels } = DATA.everything;
  const ranges = DATA.answers.ranges.filter(({ label }) => has(label));
  const of = (heading, rows) => ({ heading, count: rows.length, rows: rows.slice(0, MOST_FOUND) });
  return [
    of("labels", DATA.labels.filter(({ label }) => has(label)).map((label) => ({ name: label.label,
      count: label.count, places: [[label.label, label.count]], beside: [] }))),
    of("kernels and copies", names.flatMap((name, i) => (has(name) ? [{ name, count: count[i],
      places: labels[i].map(([at, n]) => [DATA.labels[at].label, n]), beside: null }] : []))),
    of("ranges", ranges.map(({ label, count: n }) => ({ name: label, count: n,
      places: byName(label) ? [[label, n]] : [], beside: [] }))),
  ].filter(({ count: n }) => n);
}

// The intervals of a label in which something of that name is drawn, the median one first.
function drawnIn(label, name) {
  const runs = DATA.runs[DATA.labels.indexOf(label)];
  const numbers = DATA.strings.flatMap((text, i) => (text === name ? [i] : []));
  const drawn = (number) => pictureOf(number)?.lanes.some((lane) => lane.n.some((n) => numbers.includes(n)));
  return [label.roles.median, ...runs.interval].filter(drawn);
}

function drawFound() {
  const words = $("find").value.trim().toLowerCase();
  const groups = words.length > 1 ? findings(words) : [];
  const open = (name, place) => {
    const label = byName(place);
    choose(place, drawnIn(label, name)[0] ?? label.roles.median, true);
    $("found").hidden = true;
  };
  const showRun = () => {
    chooseWhole(DATA.wholes[0].number, null, true);
    $("found").hidden = true;
  };
  const link = (text, onclick) => make("button", { type: "button", class: "link", onclick }, text);
  const times = (n) => ` ×${n.toLocaleString("en")} `;
  const row = ({ name, count, places, beside }, short) => {
    const own = new Set(places.map(([label]) => label));
    const others = beside ?? DATA.labels.filter((label) => !own.has(label.label) &&
      drawnIn(label, name).length).map((label) => label.label);
    // what is chosen first, then where else it runs: counts of the whole run
    const [, here = 0] = places.find(([label]) => label === selected.label) || [];
    const elsewhere = places.filter(([label]) => label !== selected.label);
    const listed = elsewhere.slice(0, MOST_PLACES);
    const loose = count - places.reduce((sum, [, n]) => sum + n, 0); // in no label
    const place = (...words) => make("li", null, words);
    const more = elsewhere.length - listed.length;
    return make("li", null, make("code", { title: name }, short), `${times(count)}in the run`,
      make("ul", { class: "places" },
        here ? place(`in this label${times(here)}`) : null,
        elsewhere.length ? place(here ? "elsewhere: " : "in: ", listed.map(([other, n], k) => [k ? ", " : "",
          link(cut(other, 40), () => open(name, other)), times(n).trimEnd()]), more ? ` and ${plural(more, "more label")}` : null) : null,
        places.length && loose > 0 ? place(`in no label${times(loose)}`) : null,
        others.length ? place("around it, in the pictures of: ", others.slice(0, MOST_PLACES).map((other, k) => [
          k ? ", " : "", link(cut(other, 40), () => open(name, other))])) : null,
        places.length || others.length ? null : place("in no label's picture ",
          WHOLE.size ? link("the whole run", showRun) : null)));
  };
  const close = make("button", { type: "button", class: "close", "aria-label": "Close",
    onclick: () => { $("found").hidden = true; } }, "×");
  fill($("found"), close, groups.map(({ heading, count, rows }) => make("div", null,
    make("strong", null, `${heading} (${count.toLocaleString("en")})`),
    make("ul", null, rows.map((one, i) => row(one, cutApart(rows.map(({ name }) => name), 64)[i])),
      count > rows.length ? make("li", { class: "quiet" }, `${count - rows.length} more`) : null))),
  words.length > 1 && !groups.length ? make("p", { class: "quiet" },
    `No label, kernel, copy or range of the run has “${words}” in its name; calls are found in the ` +
    "picture alone" +
    `${DATA.everything.left ? ` (${plural(DATA.everything.left, "rarer kernel")} left out)` : ""}.`) : null);
  $("found").hidden = !words;
}

// Opens the label whose name was typed, or the only one that has what was typed where the picture has none of it.
function openTyped() {
  const words = $("find").value.trim().toLowerCase();
  const all = DATA.labels.filter(({ label }) => words && label.toLowerCase().includes(words));
  const none = !view.picture || !matching(placeLanes(view.picture)).length;
  const label = all.find((one) => one.label.toLowerCase() === words) ?? (none && all.length === 1 ? all[0] : null);
  if (!label || label.label === selected.label) return false;
  choose(label.label, null, true);
  $("found").hidden = true;
  return true;
}

// The list gives way to the picture.
function showNext() {
  nextFound();
  if (view.picture && matching(placeLanes(view.picture)).length) $("found").hidden = true;
}

function listenToFind() {
  $("find").addEventListener("input", () => { found.at = -1; drawTimeline(); drawFound(); });
  $("find").addEventListener("focus", drawFound);
  $("find").addEventListener("keydown", (event) => { if (event.key === "Enter" && !openTyped()) showNext(); });
  addEventListener("keydown", (event) => { if (event.key === "Escape") $("found").hidden = true; });
  addEventListener("pointerdown", (event) => {
    if (!event.target.closest("#found, #find")) $("found").hidden = true;
  });
}

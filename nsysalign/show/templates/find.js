// What "Find" looks for: first in what is drawn (timeline.js marks it), below the field in the whole
// run: labels, kernels and copies, ranges; how often, and in which labels.

const MOST_FOUND = 6, MOST_PLACES = 9;

// [{heading, rows: [{name, count, places: [label, ...], go}], more}] of what has these words.
function findings(words) {
  const has = (name) => name.toLowerCase().includes(words);
  const { names, count, labels } = DATA.everything;
  const ranges = DATA.answers.ranges.filter(({ label }) => has(label));
  const of = (heading, rows) => ({ heading, count: rows.length, rows: rows.slice(0, MOST_FOUND) });
  return [
    of("labels", DATA.labels.filter(({ label }) => has(label)).map((label) => ({ name: label.label,
      count: label.count, places: [label.label] }))),
    of("kernels and copies", names.flatMap((name, i) => (has(name) ? [{ name, count: count[i],
      places: labels[i].map((at) => DATA.labels[at].label) }] : []))),
    of("ranges", ranges.map(({ label, count: n }) => ({ name: label, count: n,
      places: byName(label) ? [label] : [] }))),
  ].filter(({ count: n }) => n);
}

// The interval of a label in which something of that name is drawn: the median one if it is there.
function whereDrawn(label, name) {
  const runs = DATA.runs[DATA.labels.indexOf(label)];
  const numbers = DATA.strings.flatMap((text, i) => (text === name ? [i] : []));
  const drawn = (number) => {
    const picture = pictureOf(number);
    return picture?.lanes.some((lane) => lane.n.some((n) => numbers.includes(n)));
  };
  return [label.roles.median, ...runs.interval].find(drawn) ?? label.roles.median;
}

function drawFound() {
  const words = $("find").value.trim().toLowerCase();
  const groups = words.length > 1 ? findings(words) : [];
  const open = (name, place) => {
    choose(place, whereDrawn(byName(place), name), true);
    $("found").hidden = true;
  };
  const showRun = () => {
    chooseWhole(DATA.wholes[0].number, null, true);
    $("found").hidden = true;
  };
  const row = ({ name, count, places }) => make("li", null,
    make("code", { title: name }, cut(name, 64)), ` ×${count.toLocaleString("en")} `,
    places.length ? ["in ", places.slice(0, MOST_PLACES).map((place) => make("button", { type: "button",
      class: "link", onclick: () => open(name, place) }, cut(place, 40)))] :
      [make("span", { class: "quiet" }, "outside of all labels "), WHOLE.size ? make("button",
        { type: "button", class: "link", onclick: showRun }, "the whole run") : null],
    places.length > MOST_PLACES ? ` and ${places.length - MOST_PLACES} more` : null);
  fill($("found"), groups.map(({ heading, count, rows }) => make("div", null,
    make("strong", null, `${heading} (${count.toLocaleString("en")})`),
    make("ul", null, rows.map(row),
      count > rows.length ? make("li", { class: "quiet" }, `${count - rows.length} more`) : null))),
  words.length > 1 && !groups.length ? make("p", { class: "quiet" },
    `No label, kernel, copy or range of the run has “${words}” in its name` +
    `${DATA.everything.left ? ` (${plural(DATA.everything.left, "rarer kernel")} left out)` : ""}.`) : null);
  $("found").hidden = !words;
}

function listenToFind() {
  $("find").addEventListener("input", () => { found.at = -1; drawTimeline(); drawFound(); });
  $("find").addEventListener("focus", drawFound);
  $("find").addEventListener("keydown", (event) => { if (event.key === "Enter") nextFound(); });
  addEventListener("keydown", (event) => { if (event.key === "Escape") $("found").hidden = true; });
  addEventListener("pointerdown", (event) => {
    if (!event.target.closest("#found, #find")) $("found").hidden = true;
  });
}

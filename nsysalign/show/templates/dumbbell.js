// For every label with kernels how far apart kernel and event are: two marks on one axis, sorted
// by the gap; what libraries timed is last, and shown on demand beside labels of the program.

const MOST_DUMBBELLS = 16;
const dumbbell = { all: false };

function drawDumbbells() {
  const labels = DATA.labels.map((label) => ({ label, kernel: label.ran })).filter((p) => p.kernel);
  $("against").hidden = !labels.length;
  labels.sort((p, q) => p.label.library - q.label.library ||
    q.label.elapsed - q.kernel - (p.label.elapsed - p.kernel));
  const own = labels.filter((p) => !p.label.library).length || labels.length;
  const shown = dumbbell.all ? labels : labels.slice(0, Math.min(own, MOST_DUMBBELLS));
  const ends = shown.flatMap(({ label, kernel }) =>
    [kernel, label.p05 || label.elapsed, label.p95, label.elapsed]);
  const logs = ends.filter((ns) => ns > 0).map(Math.log10);
  const low = Math.min(...logs) - 0.06, high = Math.max(...logs) + 0.06;
  const span = Math.max(0.3, high - low);
  const place = (ns) =>
    Math.max(0, Math.min(100, (100 * (Math.log10(Math.max(1, ns)) - low)) / span));
  const powers = [], between = span > 1.5 ? [1] : [1, 2, 5];
  for (let power = Math.floor(low); power <= low + span; power += 1) {
    const marks = between.map((times) => times * 10 ** power);
    powers.push(...marks.filter((ns) => Math.log10(ns) >= low && Math.log10(ns) <= low + span));
  }
  const mark = (kind, from, to) => {
    const element = make("span", { class: kind });
    element.style.left = place(from) + "%";
    if (to !== undefined) element.style.width = place(to) - place(from) + "%";
    return element;
  };
  const names = cutApart(shown.map(({ label }) => label.label), narrow() ? 13 : 36);
  const row = ({ label, kernel }, at) => {
    const [event, part] = [duration(label.elapsed), duration(kernel)];
    const spread = `90 % of the intervals from ${duration(label.p05)} to ${duration(label.p95)}`;
    const times = label.elapsed / kernel;
    return make("li", { title: `${label.label}: event ${event}, kernel ${part}; ${spread}` },
      make("button",
        { type: "button", class: "link", onclick: () => choose(label.label, null, true) },
        names[at]),
      make("span", { class: "track" }, powers.map((ns) => mark("tick", ns)),
        mark("gap", kernel, label.elapsed), mark("range", label.p05, label.p95),
        mark("dot kernel", kernel), mark("dot event", label.elapsed)),
      make("span", { class: "value" }, `${part} → ${event}`),
      make("span", { class: "times" }, `${times.toFixed(times < 9.95 ? 1 : 0)} ×`));
  };
  const scale = powers.map((ns) => {
    const words = make("span", { class: "words" }, duration(ns).replace(/\.0+ /, " "));
    words.style.left = place(ns) + "%";
    return words;
  });
  const axis = make("li", { class: "axis", "aria-hidden": "true" }, make("span"),
    make("span", { class: "track" }, scale), make("span"), make("span"));
  fill($("dumbbells"), shown.map(row), axis);
  const rest = labels.length - shown.length, none = DATA.labels.length - labels.length;
  $("dumbbell-none").textContent =
    none ? ` Without ${plural(none, "label")} in which no kernel ran.` : "";
  const more = () => {
    dumbbell.all = true;
    drawDumbbells();
  };
  fill($("dumbbell-more"), rest > 0 ? make("button", { type: "button", onclick: more },
    `Show ${plural(rest, "more label")}`) : null);
}

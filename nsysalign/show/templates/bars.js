// Budget bars and the legend: each cause has one colour and one pattern, and says its name where
// there is room.

const PATTERN_CLASS = { "": "", x: "p-cross", ".": "p-dots", "/": "p-rise", "\\": "p-fall",
  "-": "p-flat", "|": "p-tall", "+": "p-plus" };

// Work of the stream.
const LAST_STEPS = ["kernel", "graph", "memcpy", "memset"];

// What is said of kernels that ran beside the sum.
function besideWord({ kind }) {
  return kind === "host" ? "meanwhile" : "other streams";
}

// The same in a table of parts, of which it is none.
function besideSum(label) {
  return `beside: ${besideWord(label)}`;
}

function swatch(cause, tag = "span") {
  const element = make(tag, { class: "piece " + PATTERN_CLASS[cause.pattern] });
  element.style.backgroundColor = cause.colour;
  element.style.color = cause.ink;
  return element;
}

function legend() {
  fill($("legend"), PRESENT.map((cause) => {
    const mark = swatch(cause);
    mark.classList.add("mark");
    mark.setAttribute("aria-hidden", "true");
    return make("li", { title: cause.meaning }, mark, cause.short,
      make("span", { class: "unseen" }, ": " + cause.meaning));
  }));
}

function budgetText(label) {
  const parts = Object.entries(label.parts).filter(([, ns]) => ns > 0).sort((a, b) => b[1] - a[1]);
  return parts.map(
    ([name, ns]) => `${CAUSE[name].short} ${duration(ns)} (${percent(ns / label.elapsed)})`)
    .join(", ");
}

// `scale` is the time that fills the whole width, `room` the least width in pixels that the bar
// will have.
function budgetBar(label, scale, room) {
  const bar = make("div", { class: "bar", role: "img", "aria-label": budgetText(label) });
  for (const cause of PRESENT) {
    const ns = label.parts[cause.name];
    const width = (100 * ns) / scale;
    if (!(width > 0.1)) continue; // less than a pixel, and its border would be more
    const piece = swatch(cause);
    piece.style.width = width + "%";
    piece.title =
      `${cause.short} ${duration(ns)} (${percent(ns / label.elapsed)}): ${cause.meaning}`;
    const texts = [`${cause.short} ${percent(ns / label.elapsed)}`, cause.short];
    const text = texts.find((words) => 7.4 * words.length + 10 < (width / 100) * room);
    if (text) piece.append(make("b", null, text));
    bar.append(piece);
  }
  return bar;
}

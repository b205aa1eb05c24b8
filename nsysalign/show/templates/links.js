// Links that arrive: what is chosen, zoomed, filtered and sorted stands in the address; and tables
// as text to paste.

let remembering = 0;

// "#label=h2d_t1&run=80&from=12.5&to=40&filter=x&sort=lost&down=1"; "#interval-80" is the short
// form.
// A jump is a step of the history, so that Back leads to where one was; zooming and sorting are
// not.
function remember(jump = false) {
  if (!document.body.dataset.ready) return; // where a link leads is still to be read
  clearTimeout(remembering);
  if (jump) return step(() => history.pushState({ jump }, "", address()));
  remembering = setTimeout(
    () => step(() => history.replaceState(history.state || {}, "", address())), 150);
}

function address() {
  const words = new URLSearchParams(), fit = view.picture && wholeRange(view.picture);
  if (selected.label) words.set("label", selected.label);
  if (selected.interval !== null) words.set("run", selected.interval);
  if (view.other !== null) words.set("with", view.other);
  if (fit && view.range.some((at, k) => Math.abs(at - fit[k]) > 1e-6)) ["from",
    "to"].forEach((key, k) => words.set(key, view.range[k].toFixed(3)));
  if ($("filter").value) words.set("filter", $("filter").value);
  if (sorting.key) words.set("sort", sorting.key), words.set("down", sorting.down ? "1" : "0");
  return "#" + words;
}

function step(change) {
  try {
    change();
  } catch {
    // A page in a notebook's frame has no address of its own.
  }
}

// What a link asks for, done; whether it asked for an interval or a label.
function follow(show) {
  const place = /^#[\w-]+$/.test(location.hash) && $(location.hash.slice(1));
  if (place) { bring(place); return true; }
  const short = /^#interval-(\d+)$/.exec(location.hash),
    words = new URLSearchParams(short ? `run=${short[1]}` : location.hash.slice(1));
  if (words.has("filter")) $("filter").value = words.get("filter");
  if (words.has("sort")) Object.assign(sorting,
    { key: words.get("sort"), down: words.get("down") === "1" });
  if (words.has("filter") || words.has("sort")) drawTable();
  const number = Number(words.get("run") ?? NaN);
  const found = (Number.isInteger(number) && chooseNumber(number, false)) ||
    (words.has("label") && choose(words.get("label"), null, false));
  const other = Number(words.get("with") ?? NaN), label = byName(selected.label);
  const runs = DATA.runs[DATA.labels.indexOf(label)];
  if (found && runs && runs.interval.includes(other)) compareTwo(label, runs, other);
  if (found && show) bringChosen();
  const range = [Number(words.get("from") ?? NaN), Number(words.get("to") ?? NaN)];
  if (found && view.picture && range[1] > range[0]) zoomTo(range);
  return Boolean(found);
}

// A table's visible text for a spreadsheet: a line per row, tabs between its cells.
function tableText(table) {
  const text = (cell) => {
    const from = cell.tagName === "TH" && cell.querySelector("button") || cell;
    const words = [...from.childNodes, ...(from === cell ? [] : cell.childNodes)].filter((node) =>
      node !== from).filter((node) => !node.matches?.("[aria-hidden],.flag,.site,small"))
      .map((node) => node.textContent).join(" ").replace(/\s+/g, " ").trim();
    if (!cell.classList.contains("number") || cell.tagName === "TH") return words;
    if (words === "." || words.startsWith("(")) return "0"; // what ran beside is no part of the sum
    return words.replace(/ \(.*/, "").replace(/(\d),(?=\d{3})/g, "$1");
  };
  const shown = [...table.tHead.rows[0].cells].map((cell) => cell.textContent.trim() !== "breakdown");
  return [...table.rows].map((row) => [...row.cells].filter((_, k) => shown[k]).map(text)
    .join("\t")).join("\n") + "\n";
}

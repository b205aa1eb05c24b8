// What is chosen as Markdown, for an issue or a review: the twin of show/markdown.py, to the letter.
// Two repetitions, or a label of two runs: their parts beside each other.

const CELLS = 72;

function escaped(text) {
  return text.replace(/([\\`*[\]<>|~#])/g, "\\$1");
}

function exactMicro(ns) {
  return (ns / 1e3).toLocaleString("en", { minimumFractionDigits: 3, maximumFractionDigits: 3 });
}

// The breakdown to scale: in each cell the column with most of its time.
function textBar(strip, elapsed) {
  if (!strip || !elapsed) return "";
  const columns = [...new Set(DATA.causes.map((cause) => cause.column))].sort(
    (p, q) => DATA.columns.indexOf(p) - DATA.columns.indexOf(q));
  const sums = Array.from({ length: CELLS }, () => new Map());
  strip.x.forEach((x, i) => {
    const { column } = DATA.causes[strip.c[i]], begin = x - strip.x[0], end = begin + strip.d[i];
    const last = Math.min(CELLS - 1, Math.floor(end * CELLS / elapsed));
    for (let k = Math.floor(begin * CELLS / elapsed); k <= last; k += 1) {
      const ns = Math.min(end, (k + 1) * elapsed / CELLS) - Math.max(begin, k * elapsed / CELLS);
      if (ns > 0) sums[k].set(column, (sums[k].get(column) || 0) + ns);
    }
  });
  const fill = (column) => DATA.causes.find((cause) => cause.column === column).fill;
  return sums.map((cell) => fill(columns.reduce((best, column) =>
    ((cell.get(column) || 0) > (cell.get(best) || 0) ? column : best)))).join("").trimEnd();
}

// `about`: {sentence, fixes, elapsed, parts, strip, name}.
function markdownOf({ sentence, fixes, elapsed, parts, strip, name }) {
  const lines = [`**${escaped(sentence)}**`, ""], drawn = textBar(strip, elapsed);
  if (drawn) lines.push("    " + drawn, "    0" + `${exactMicro(elapsed)} us`.padStart(CELLS - 1), "");
  lines.push("| | part | us | share |", "|---|---|--:|--:|");
  for (const cause of byTime(parts)) lines.push(`| ${cause.fill.trim()} | ${cause.short} | ` +
    `${exactMicro(parts[cause.name])} | ${percent(parts[cause.name] / Math.max(elapsed, 1))} |`);
  lines.push(`| | **measured** | **${exactMicro(elapsed)}** | |`, "");
  for (const fix of fixes) {
    lines.push(`**${fix.purpose}:** ${escaped(fix.sentence)}`, "");
    if (fix.code) lines.push("    " + fix.code, "");
  }
  return [...lines, escaped(`${name}; ${DATA.title}; ${DATA.about}`)].join("\n") + "\n";
}

function byTime(parts) {
  return DATA.causes.filter(({ name }) => parts[name])
    .sort((p, q) => parts[q.name] - parts[p.name]);
}

// `before`, `after`: {name, elapsed, parts}.
function markdownOfPair(sentence, before, after) {
  const both = Object.fromEntries(DATA.causes.map(({ name }) =>
    [name, Math.max(before.parts[name] || 0, after.parts[name] || 0)]));
  const signed = (ns) => (ns > 0 ? "+" : "") + exactMicro(ns).replace("-", "−");
  const row = (head, p, q) => `| ${head} | ${exactMicro(p)} | ${exactMicro(q)} | ${signed(q - p)} |`;
  return [`**${escaped(sentence)}**`, "", `A: ${escaped(before.name)}, B: ${escaped(after.name)}`, "",
    "| part, us | A | B | B − A |", "|---|--:|--:|--:|",
    ...byTime(both).map(({ name, short }) => row(short, before.parts[name] || 0, after.parts[name] || 0)),
    row("**measured**", before.elapsed, after.elapsed), "",
    escaped(`${DATA.title}; ${DATA.about}`)].join("\n") + "\n";
}

// A sentence in lines of whole words.
function inLines(text, letters) {
  return text.split(" ").reduce((lines, word) => {
    const last = lines.at(-1);
    if (last && last.length + 1 + word.length <= letters) lines[lines.length - 1] = `${last} ${word}`;
    else lines.push(cut(word, letters));
    return lines;
  }, []);
}

// The sentence, the picture and the sum as one drawing that needs nothing else.
function svgOf(sentence, rows) {
  const plot = $("lanes").querySelector("svg"), copy = plot.cloneNode(true);
  const names = ["fill", "stroke", "stroke-width", "stroke-dasharray", "opacity", "fill-opacity",
    "stroke-opacity", "font-size", "font-weight", "font-family", "text-anchor", "paint-order"];
  const plain = (from, to) => {
    const style = getComputedStyle(from);
    for (const name of names) to.setAttribute(name, style.getPropertyValue(name).replaceAll('"', ""));
    to.removeAttribute("class");
    [...from.children].forEach((child, i) => plain(child, to.children[i]));
  };
  plain(plot, copy);
  const [wide, tall] = [plot.clientWidth, plot.clientHeight], lines = inLines(sentence, 104);
  const top = 18 + 22 * lines.length, ink = theme("--ink"), text = (x, y, words, more = {}) =>
    svg("text", { x, y, fill: ink, "font-size": 13, "font-family": "sans-serif", ...more }, words);
  const defs = $("patterns").firstElementChild.cloneNode(true);
  plain($("patterns").firstElementChild, defs);
  const sum = rows.flatMap(([name, value, colour], i) => [
    colour ? svg("rect", { x: wide + 20, y: top + 22 * i + 10, width: 14, height: 12, fill: colour }) : "",
    text(wide + 40, top + 22 * i + 20, name),
    text(wide + 290, top + 22 * i + 20, value, { "text-anchor": "end", "font-family": "monospace" })]);
  copy.setAttribute("y", top);
  const height = Math.max(top + tall, top + 22 * rows.length + 24) + 24;
  const whole = svg("svg", { xmlns: "http://www.w3.org/2000/svg", width: wide + 310, height,
    viewBox: `0 0 ${wide + 310} ${height}` }, defs,
  svg("rect", { width: wide + 310, height, fill: theme("--card") }),
  lines.map((line, i) => text(12, 24 + 22 * i, line, { "font-size": 17, "font-weight": 600 })),
  copy, sum.filter(Boolean),
  text(12, height - 8, `${DATA.title}; ${DATA.about}`, { "font-size": 11, fill: theme("--quiet") }));
  return new XMLSerializer().serializeToString(whole);
}

function saveFile(name, text, type) {
  const link = make("a", { download: name, href: URL.createObjectURL(new Blob([text], { type })) });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

// `chosen()`: what is to be shared, {markdown, sentence, rows, file}.
function listenToShare(chosen) {
  $("copy-markdown").addEventListener("click",
    (event) => copyText(chosen().markdown, event.currentTarget));
  $("save-svg").addEventListener("click", () => {
    const { sentence, rows, file } = chosen();
    saveFile(`${file.replace(/[^\w.-]+/g, "_").slice(0, 60) || "nsysalign"}.svg`,
      svgOf(sentence, rows), "image/svg+xml");
  });
}

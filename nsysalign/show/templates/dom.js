// The page's data and the one way elements are made: text enters as text nodes, never as markup.

const DATA = JSON.parse(document.getElementById("data").textContent);
const DIGIT = new Uint8Array(128);
[..."ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"].forEach(
  (digit, value) => { DIGIT[digit.charCodeAt(0)] = value; });
for (const runs of DATA.runs || []) {
  for (const key of ["elapsed", "kernel", "error", "start", "interval", "kind", "beside"]) runs[key] = unpack(runs[key]);
  for (const cause of Object.keys(runs.parts)) runs.parts[cause] = unpack(runs.parts[cause]);
}
const CAUSE = Object.fromEntries(DATA.causes.map((cause) => [cause.name, cause]));
const PRESENT = DATA.causes.filter((cause) => cause.present);

// "2AAA/BA" -> [0, 63, 64]: a width, then numbers of that many base-64 digits (show/pack.py);
// lists stay lists.
function unpack(column) {
  if (typeof column !== "string") return column;
  const width = Number(column[0]), out = new Array((column.length - 1) / width);
  for (let i = 0, at = 1; i < out.length; i += 1) {
    let number = 0;
    for (let k = 0; k < width; k += 1, at += 1) number = number * 64 + DIGIT[column.charCodeAt(at)];
    out[i] = number;
  }
  return out;
}

function $(id) {
  return document.getElementById(id);
}

// Sections that draw themselves (all of add-ons): [id, key of the data, what draws it].
const SECTIONS = [];

function make(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.className = value;
    else if (value !== null && value !== false && value !== undefined) element.setAttribute(name,
      value);
  }
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined) element.append(child); // strings become text nodes
  }
  return element;
}

// The same for drawings; everything that is drawn is an image for a screen reader, so its pieces
// need no names.
function svg(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) if (value !== null &&
    value !== undefined) element.setAttribute(name, value);
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

function fill(element, ...children) {
  element.replaceChildren(...children.flat(Infinity).filter((child) => child !== null &&
    child !== undefined));
}

// A phone: the twin of the widths in report.css.
function narrow() {
  return matchMedia("(max-width: 700px)").matches && !onPaper();
}

// Whether the page is being printed (draw.js): then it has the width of the paper, not of the window.
function onPaper() {
  return document.documentElement.classList.contains("paper");
}

// Whether a label's row lies on several lines: the twin of a width in report.css.
const STACKED = matchMedia("screen and (max-width: 1050px)");

function stacked() {
  return STACKED.matches && !onPaper();
}

// Draws again when that changes: names and bars are cut to their room.
function whenStacked(draw) {
  STACKED.addEventListener("change", draw);
  for (const when of ["beforeprint", "afterprint"]) addEventListener(when, draw);
}

// The least width of a bar in a label's row.
function roomOfBar() {
  return $("rows").clientWidth * (stacked() ? 0.8 : 0.36);
}

function theme(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// Unfolds what an element is in, and a section or a card itself.
function open(element) {
  const folds = [element.closest("details"), element.querySelector(":scope > details.fold")];
  for (let fold = element; fold; fold = fold.parentElement) folds.push(fold);
  for (const fold of folds) if (fold?.tagName === "DETAILS") fold.open = true;
}

function scrolling() {
  return matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth";
}

function bring(element) {
  open(element);
  element.scrollIntoView({ behavior: scrolling(), block: "start" });
}

// To the sentence, the fixes and the picture of what was chosen: the page's first screen.
function bringChosen() {
  scrollTo({ top: 0, behavior: scrolling() });
}

// Plain table: heads are {text, number}, rows are lists of strings or elements.
function fillTable(table, caption, heads, rows) {
  const cells = (row) => row.map((cell, at) =>
    make("td", { class: heads[at].number ? "number" : null }, cell));
  fill(
    table,
    make("caption", { class: "unseen" }, caption),
    make("thead", null,
      make("tr", null,
      heads.map((head) => make("th", { scope: "col", class: head.number ? "number" : null },
      head.text)))),
    make("tbody", null, rows.map((row) => make("tr", null, cells(row)))),
  );
}

// For pages that are drawn at once: nothing is seen before it has its size, so nothing moves.
function showSections() {
  for (const section of document.querySelectorAll("#main > section")) section.classList.add(
    "filled");
}

// What scrolls is reached by keyboard, and named.
for (const box of document.querySelectorAll(".scroll")) {
  box.tabIndex = 0;
  box.setAttribute("role", "region");
}

// When what was changed is on the screen.  A hidden page draws nothing, and is not waited for.
function shown() {
  return new Promise((done) => {
    const late = setTimeout(done, 100);
    requestAnimationFrame(() => setTimeout(() => { clearTimeout(late); done(); }));
  });
}

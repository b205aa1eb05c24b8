// Drawing: frames with axes, patterns, and one tooltip for everything that is drawn.

// Patterns of the causes as SVG: the twin of .p-rise and the others in report.css.
const PATTERNS = {
  x: ["M0 0L7 7M7 0L0 7", 7], ".": ["M1 1h1.5v1.5h-1.5zM4 4h1.5v1.5h-1.5z", 6],
    "/": ["M-1 7L7 -1M5 7L7 5", 6], "\\": ["M-1 -1L7 7M-1 5L1 7", 6],
  "-": ["M0 3h6", 6], "|": ["M3 0v6", 6], "+": ["M0 3h6M3 0v6", 6],
};

function patterns() {
  return svg("defs", {}, Object.entries(PATTERNS).map(([shape, [path, size]]) =>
    svg("pattern", { id: patternId(shape), width: size, height: size,
      patternUnits: "userSpaceOnUse" },
      svg("path", { d: path, class: shape === "." ? "dots" : "hatch" }))));
}

function patternId(shape) {
  return "pattern-" + shape.charCodeAt(0);
}

// Round numbers between two: at most `most` of them.
function ticks(low, high, most) {
  const rough = (high - low) / Math.max(1, most);
  if (!(rough > 0)) return [low];
  const power = 10 ** Math.floor(Math.log10(rough)),
    step = [1, 2, 5, 10].find((times) => times * power >= rough) * power;
  const out = [];
  // -0 is 0
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * step;
    k += 1) out.push(k * step || 0);
  return out;
}

// A number with no more decimals than its neighbours on the axis need.
function tickText(value, step) {
  const decimals = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  return value.toLocaleString("en", { minimumFractionDigits: Math.min(3, decimals),
    maximumFractionDigits: Math.min(3, decimals) });
}

// The lower axis of a drawing: `place` turns a value into x.
function axisBelow(low, high, place, y, width, words, whole = false, grid = 0) {
  const at = ticks(low, high, Math.min(Math.max(4, width / 90), whole ? high - low : Infinity)),
    step = at.length > 1 ? at[1] - at[0] : 1;
  return svg("g", { class: "axis" },
    grid ? at.map((value) => svg("line", { class: "grid", x1: place(value), x2: place(value),
      y1: grid, y2: y })) : null,
    at.map((value) => svg("line", { x1: place(value), x2: place(value), y1: y, y2: y + 5 })),
    at.map((value) => svg("text", { x: place(value), y: y + 18, "text-anchor": "middle" },
      tickText(value, step))),
    svg("text", { x: place((low + high) / 2), y: y + 36, "text-anchor": "middle" }, words));
}

// A canvas as wide as it is shown and so tall, empty: what draws on it, in the colour of remarks.
function penOn(canvas, width, height) {
  const dense = devicePixelRatio || 1, pen = canvas.getContext("2d");
  canvas.width = Math.round(width * dense);
  canvas.height = Math.round(height * dense);
  canvas.style.height = height + "px";
  pen.scale(dense, dense);
  pen.font = `12px ${theme("--sans")}`;
  pen.fillStyle = theme("--quiet");
  return pen;
}

// Times (us) below what a canvas shows, from `low` to `high`, with a line through it for each.
function axisOn(pen, low, high, place, bottom, width, grid = bottom) {
  const [unit, word] = high - low > 2e6 ? [1e6, "s"] : high - low > 2e3 ? [1e3, "ms"] : [1, "us"];
  const at = ticks(low / unit, high / unit, Math.max(2, width / 110)), step = at[1] - at[0] || 1;
  for (const value of at) {
    const x = Math.min(width - 1, place(value * unit)), text = `${tickText(value, step)} ${word}`;
    const room = pen.measureText(text).width;
    pen.globalAlpha = 0.25;
    pen.fillRect(x, grid, 1, bottom + 4 - grid);
    pen.globalAlpha = 1;
    pen.fillText(text, Math.max(0, Math.min(x - room / 2, width - room)), bottom + 18);
  }
}

// The left axis, with lines across.
function axisLeft(low, high, place, left, right, words, most = 5) {
  const at = ticks(low, high, most), step = at.length > 1 ? at[1] - at[0] : 1;
  const middle = place((low + high) / 2);
  return svg("g", { class: "axis" },
    at.map((value) => svg("line", { class: "grid", x1: left, x2: right, y1: place(value),
      y2: place(value) })),
    at.map((value) => svg("text", { x: left - 7, y: place(value) + 4, "text-anchor": "end" },
      tickText(value, step))),
    words ? svg("text", { x: 13, y: middle, transform: `rotate(-90 13 ${middle})`,
      "text-anchor": "middle" }, words) : null);
}

// What a drawing hands over: `hits` are {x, y, w, h, said: [line, ...], go, over}, the last one
// drawn lies on top.
const drawings = new Map();

function showDrawing(plot, width, height, content, hits) {
  const image = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`,
    "aria-hidden": "true" }, content);
  if (!$("patterns")) document.body.append(svg("svg", { id: "patterns", width: 0, height: 0,
    "aria-hidden": "true", style: "position:absolute" }, patterns()));
  plot.replaceChildren(image);
  plot.style.height = height + "px";
  const known = drawings.has(plot);
  drawings.set(plot, { hits, image });
  if (known) return;
  plot.addEventListener("pointermove", (event) => {
    if (event.buttons) return; // dragging says how long
    const hit = hitAt(plot, event);
    plot.classList.toggle("pointing", Boolean(hit?.go));
    drawings.get(plot).over?.remove();
    if (!hit) return hideTip();
    if (hit.over) drawings.get(plot).image.append(drawings.get(plot).over = hit.over());
    tell(plot, hit, event);
  });
  plot.addEventListener("pointerleave", () => { hideTip(); drawings.get(plot).over?.remove(); });
  plot.addEventListener("click", (event) => {
    const hit = hitAt(plot, event), before = pinned;
    unpin();
    if (hit?.go) hit.go(event);
    else if (hit && hit !== before) {
      tell(plot, hit, event);
      pin(hit);
    }
  });
}

// The thing whose hover text stays until it is closed, or anything else is clicked or zoomed.
let pinned = null;

function pin(hit) {
  const tip = $("tip");
  pinned = hit;
  tip.classList.add("pinned");
  tip.prepend(make("button", { type: "button", class: "close", "aria-label": "Close", onclick: unpin }, "×"));
  if (hit.find) tip.append(make("button", { type: "button", onclick: () => findName(hit.find) }, "find it in the run"));
  const below = tip.getBoundingClientRect().bottom - innerHeight; // it has grown
  if (below > 0) tip.style.top = `${Math.max(4, parseFloat(tip.style.top) - below)}px`;
}

function findName(name) {
  unpin();
  $("find").value = name;
  $("find").dispatchEvent(new Event("input"));
}

// A hover text below what it names, or above it: never on it, unless that is taller than a row.
function tell(plot, hit, event) {
  const top = plot.firstElementChild.getBoundingClientRect().top, tall = hit.h > 60;
  showTip(hit.said, event.clientX, tall ? event.clientY : top + hit.y + hit.h - 12,
    tall ? event.clientY : top + hit.y + 8, hit.up);
}

function unpin() {
  pinned = null;
  $("tip").classList.remove("pinned");
  hideTip();
}

addEventListener("keydown", (event) => { if (event.key === "Escape") unpin(); });
addEventListener("pointerdown", (event) => { if (!event.target.closest("#tip, .plot")) unpin(); });

// The topmost thing under the pointer; a narrow one can be hit a few pixels next to it.
function hitAt(plot, event) {
  const box = plot.firstElementChild.getBoundingClientRect(), { hits } = drawings.get(plot);
  const x = event.clientX - box.left, y = event.clientY - box.top;
  for (const slack of [0, 3]) {
    for (let i = hits.length - 1; i >= 0; i -= 1) {
      const hit = hits[i];
      if (x >= hit.x - slack && x <= hit.x + hit.w + slack && y >= hit.y &&
        y <= hit.y + hit.h) return hit;
    }
  }
  return null;
}

let tipScroll = 0;

// The first line is the name. Text enters as text.  `above`: where it ends if there is no room
// below, or if `up`.
function showTip(lines, x, y, above = y, up = false) {
  const tip = $("tip");
  if (tip.classList.contains("pinned")) return;
  tipScroll = scrollY;
  fill(tip, lines.filter(Boolean).map((line, i) => make(i ? "div" : "strong", null, line)));
  tip.hidden = false;
  const box = tip.getBoundingClientRect(), room = document.documentElement.clientWidth;
  tip.style.left = Math.max(4, Math.min(x + 14, room - box.width - 8)) + "px";
  const over = (up && above - box.height > 16) || y + 18 + box.height > innerHeight;
  tip.style.top = (over ? Math.max(4, above - box.height - 12) : y + 18) + "px";
}

// What it explains is no longer under the pointer.
addEventListener("scroll", () => { if (Math.abs(scrollY - tipScroll) > 4) unpin(); },
  { passive: true });

function hideTip() {
  if (!$("tip").classList.contains("pinned")) $("tip").hidden = true;
}

// Paper is as wide as a screen of 1396 px, whatever the window (report.css, `.paper`): every drawing that listens is
// made for it, and for the window again afterwards.
addEventListener("beforeprint", () => document.documentElement.classList.add("paper"));
addEventListener("afterprint", () => document.documentElement.classList.remove("paper"));

// Draws when the element comes near the screen or is printed, and again when its width changes;
// `seen`: it is drawn already.
function whenSeen(element, draw, seen = false) {
  let width = seen ? element.clientWidth : 0;
  const now = () => { seen = true; width = element.clientWidth; draw(); };
  new IntersectionObserver((entries, observer) => {
    if (!entries.some((entry) => entry.isIntersecting)) return;
    observer.disconnect();
    if (!seen) now();
  }, { rootMargin: "300px" }).observe(element);
  new ResizeObserver(
    () => { if (seen && element.clientWidth && element.clientWidth !== width) now(); })
    .observe(element);
  addEventListener("beforeprint", now);
  return () => { if (seen) now(); };
}

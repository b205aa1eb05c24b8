// Inside a kernel: where the time of its SMs went, its blocks on the SMs, phases and counters.

const insides = { at: 0, boxes: [], block: null };
const PHASE_COLOURS = ["#3778bf", "#e08a1e", "#2f9e63", "#b5489a", "#7a6ad8", "#c8553d", "#0f9aa8", "#8c8c2e"];
const PART_LOOKS = {
  before: ["before the SM's first block", "#b9bfc9"], between: ["between its blocks", "#d7dbe1"], after: ["after its last block", "#8e97a4"],
  none: ["SMs without a block", "#6a7280"], unmarked: ["blocks there, outside of ranges", "#9fc3e6"], unknown: ["marks are missing", "#d9534f"],
};

function startInside() {
  const list = DATA.inside || [];
  $("insides").hidden = !list.length;
  if (!list.length) return;
  for (const kernel of list) if (kernel.strip) for (const key of Object.keys(kernel.strip)) if (key !== "names") kernel.strip[key] = unpack(kernel.strip[key]);
  fill($("inside-kernel"), list.map((kernel, at) => make("option", { value: at }, `${shortName(kernel.name)}  ${duration(kernel.duration)}  (launch ${kernel.kernel})`)));
  $("inside-kernel").addEventListener("change", () => { insides.at = Number($("inside-kernel").value); insides.block = null; drawInside(); });
  $("inside-strip").addEventListener("click", (event) => { const box = blockAt(event); if (box) { insides.block = box; drawWarps(); } });
  $("inside-strip").addEventListener("mousemove", (event) => { const box = blockAt(event); $("inside-strip").title = box ? blockSaid(box) : ""; });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawInside);
  addEventListener("resize", drawInside);
  drawInside();
}

function phaseColour(kernel, name) {
  const names = [...new Set([...(kernel.strip ? kernel.strip.names.slice(1) : []), ...kernel.phases.map((row) => row[0])])].sort();
  return PHASE_COLOURS[names.indexOf(name) % PHASE_COLOURS.length];
}

function lookOf(kernel, part, phase) {
  return part === "phase" ? [phase, phaseColour(kernel, phase)] : PART_LOOKS[part] || [part, "#999999"];
}

function phaseChip(colour) {
  const box = make("span", { class: "swatch" });
  box.style.background = colour;
  box.style.display = "inline-block";
  box.style.width = box.style.height = "11px";
  box.style.marginRight = "6px";
  return box;
}

function drawInside() {
  const kernel = DATA.inside[insides.at];
  const whole = Math.max(1, kernel.sms * kernel.duration), change = kernel.change;
  const said = [`${kernel.name}: ${duration(kernel.duration)}, ${plural(kernel.blocks, "block")} seen on ${kernel.sms} SMs`];
  if (kernel.interval) said.push(`ran in ${kernel.interval}`);
  if (kernel.error >= 0) said.push(`marks placed ±${duration(kernel.error)}`);
  if (!kernel.complete && kernel.warps) said.push("some of its marks are missing");
  if (change) said.push(`marks change it: ${duration(change.ns[0])} without, ${duration(change.ns[1])} with them (${(100 * change.share).toFixed(1)} %), registers ${change.registers.join(" → ")}, local memory ${change.local_bytes.join(" → ")} bytes, warps per SM ${change.warps_per_sm.join(" → ")}`);
  else said.push("what the marks change was not measured (nsysalign run --marks)");
  $("inside-reading").textContent = said.join("; ") + ".";
  const bar = make("div", { class: "bar", role: "img", "aria-label": "SM time by part; the table follows" });
  bar.style.display = "flex";
  bar.style.height = "22px";
  for (const [part, phase, ns] of kernel.budget) {
    const look = lookOf(kernel, part, phase), piece = make("span", { title: `${look[0]} ${percent(ns / whole)}` });
    piece.style.background = look[1];
    piece.style.width = `${100 * ns / whole}%`;
    bar.append(piece);
  }
  fill($("inside-bar"), bar);
  fillTable($("inside-budget"), "SM time", [{ text: "SM time" }, { text: "share", number: true }, { text: "us x SMs", number: true }, { text: "mean us per SM", number: true }],
    [...kernel.budget.map(([part, phase, ns]) => [make("span", null, phaseChip(lookOf(kernel, part, phase)[1]), lookOf(kernel, part, phase)[0]), percent(ns / whole), micro(ns), micro(ns / kernel.sms)]),
      [`${kernel.sms} SMs x ${duration(kernel.duration)}`, "100 %", micro(kernel.budget.reduce((sum, row) => sum + row[2], 0)), micro(kernel.duration)]]);
  fillTable($("inside-phases"), "Phases", [{ text: "phase" }, ...["passages of warps", "total us", "least us", "median us", "most us"].map((text) => ({ text, number: true }))],
    kernel.phases.map(([name, count, ...times]) => [make("span", null, phaseChip(phaseColour(kernel, name)), name), count.toLocaleString("en"), ...times.map(micro)]));
  $("inside-counts").hidden = !kernel.counters.length;
  fillTable($("inside-counters"), "Counters", [{ text: "path" }, ...["warps", "lanes", "lanes per warp", "SMs"].map((text) => ({ text, number: true }))],
    kernel.counters.map(([name, warps, lanes, sms]) => [name, warps.toLocaleString("en"), lanes.toLocaleString("en"), (lanes / Math.max(1, warps)).toFixed(1), sms.toLocaleString("en")]));
  $("inside-times").hidden = !kernel.latencies.length;
  fillTable($("inside-latencies"), "Latencies", [{ text: "what" }, { text: "cycles" }, { text: "lanes", number: true }, { text: "mean cycles", number: true }],
    kernel.latencies.map(([name, bin, low, high, lanes, sum]) => [bin < 0 ? name : "", bin < 0 ? `${low.toLocaleString("en")} to ${high.toLocaleString("en")}` : `${low.toLocaleString("en")} to under ${high.toLocaleString("en")}`, lanes.toLocaleString("en"), bin < 0 ? (sum / Math.max(1, lanes)).toFixed(1) : ""]));
  $("inside-strips").hidden = !kernel.strip;
  $("inside-block").hidden = true;
  if (kernel.strip) drawSms(kernel);
  if (insides.block) drawWarps();
}

// Blocks from warps; each SM has as many lanes as blocks were there at once.
function blocksOnSms(kernel) {
  const s = kernel.strip, blocks = new Map();
  for (let i = 0, at = 0; i < s.sm.length; at += s.n[i], i += 1) {
    const key = [s.sm[i], s.x[i], s.y[i], s.z[i]].join();
    const box = blocks.get(key) || { sm: s.sm[i], x: s.x[i], y: s.y[i], z: s.z[i], from: s.from[i], to: s.to[i], warps: [] };
    box.from = Math.min(box.from, s.from[i]);
    box.to = Math.max(box.to, s.to[i]);
    box.warps.push({ warp: s.warp[i], from: s.from[i], to: s.to[i], at, n: s.n[i] });
    blocks.set(key, box);
  }
  const lanes = new Map();
  for (const box of [...blocks.values()].sort((a, b) => a.from - b.from)) {
    const free = lanes.get(box.sm) || [];
    const lane = free.findIndex((until) => until <= box.from);
    box.lane = lane < 0 ? free.length : lane;
    free[box.lane] = box.to;
    lanes.set(box.sm, free);
  }
  return [[...blocks.values()], lanes];
}

function clearCanvas(canvas, width, height) {
  const scale = window.devicePixelRatio || 1;
  canvas.width = width * scale;
  canvas.height = height * scale;
  canvas.style.width = width + "px";
  canvas.style.height = height + "px";
  const drawing = canvas.getContext("2d");
  drawing.scale(scale, scale);
  drawing.clearRect(0, 0, width, height);
  drawing.font = "11px system-ui, sans-serif";
  return drawing;
}

function axisInside(drawing, kernel, place, bottom, width) {
  drawing.fillStyle = theme("--quiet");
  drawing.textAlign = "center";
  const at = ticks(0, kernel.duration / 1e3, Math.max(2, width / 110)), step = at.length > 1 ? at[1] - at[0] : 1;
  for (const value of at) {
    drawing.fillRect(place(value * 1e3), bottom, 1, 4);
    drawing.fillText(`${tickText(value, step)} us`, Math.min(width - 22, place(value * 1e3)), bottom + 15);
  }
}

function paintWarp(drawing, kernel, warp, place, y, height) {
  const s = kernel.strip;
  const piece = (from, to, phase) => {
    drawing.fillStyle = phase ? phaseColours[phase] : PART_LOOKS.unmarked[1];
    drawing.fillRect(place(from), y, Math.max(0.6, place(to) - place(from)), height);
  };
  const phaseColours = s.colours || (s.colours = s.names.map((name) => phaseColour(kernel, name)));
  let from = warp.from, phase = 0;
  for (let i = warp.at; i < warp.at + warp.n; i += 1) {
    piece(from, s.t[i], phase);
    from = s.t[i];
    phase = s.p[i];
  }
  piece(from, warp.to, phase);
}

function drawSms(kernel) {
  const [boxes, lanes] = blocksOnSms(kernel), left = 54;
  const width = Math.max(320, $("insides").clientWidth || 900);
  const total = [...lanes.values()].reduce((sum, free) => sum + free.length, 0);
  const lane = Math.max(1.5, Math.min(12, 640 / total)), sms = [...lanes.keys()].sort((a, b) => a - b), top = new Map();
  let y = 4;
  for (const sm of sms) { top.set(sm, y); y += lanes.get(sm).length * lane + (lane > 3 ? 2 : 0.5); }
  const place = (ns) => left + (width - left - 8) * ns / Math.max(1, kernel.duration);
  const drawing = clearCanvas($("inside-strip"), width, y + 22);
  insides.boxes = boxes.map((box) => ({ ...box, px: place(box.from), pw: Math.max(1, place(box.to) - place(box.from)), py: top.get(box.sm) + box.lane * lane, ph: lane }));
  for (const box of insides.boxes) {
    const first = box.warps.reduce((a, b) => (b.warp < a.warp ? b : a));
    drawing.fillStyle = PART_LOOKS.unmarked[1];
    drawing.fillRect(box.px, box.py, box.pw, Math.max(1, lane - 0.5));
    paintWarp(drawing, kernel, first, place, box.py, Math.max(1, lane - 0.5));
  }
  drawing.fillStyle = theme("--quiet");
  drawing.textAlign = "right";
  let last = -20;
  for (const sm of sms) if (top.get(sm) - last >= 13) { last = top.get(sm); drawing.fillText(`SM ${sm}`, left - 6, last + 8); }
  axisInside(drawing, kernel, place, y, width);
}

function blockAt(event) {
  const frame = $("inside-strip").getBoundingClientRect(), x = event.clientX - frame.left, y = event.clientY - frame.top;
  return insides.boxes.find((box) => x >= box.px && x <= box.px + box.pw && y >= box.py && y <= box.py + box.ph) || null;
}

function blockSaid(box) {
  return `block (${box.x}, ${box.y}, ${box.z}) on SM ${box.sm}: ${duration(box.to - box.from)}, from ${micro(box.from)} to ${micro(box.to)} us, ${plural(box.warps.length, "warp")}`;
}

function drawWarps() {
  const kernel = DATA.inside[insides.at], box = insides.block, left = 54, row = 12;
  const width = Math.max(320, $("insides").clientWidth || 900), warps = [...box.warps].sort((a, b) => a.warp - b.warp);
  $("inside-block").hidden = false;
  const drawing = clearCanvas($("inside-block"), width, 24 + warps.length * row + 22);
  const span = Math.max(1, box.to - box.from), place = (ns) => left + (width - left - 8) * (ns - box.from) / span;
  drawing.fillStyle = theme("--ink");
  drawing.fillText(blockSaid(box), left, 12);
  warps.forEach((warp, at) => {
    paintWarp(drawing, kernel, warp, place, 20 + at * row, row - 2);
    drawing.fillStyle = theme("--quiet");
    drawing.textAlign = "right";
    drawing.fillText(`warp ${warp.warp}`, left - 6, 29 + at * row);
  });
}

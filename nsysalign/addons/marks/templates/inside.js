// Inside a kernel: where the time of its SMs went, its blocks on the SMs, phases and counters.

const insides = { at: 0, boxes: [], block: null };
const PHASE_COLOURS = ["#3778bf", "#e08a1e", "#2f9e63", "#b5489a", "#7a6ad8", "#c8553d", "#0f9aa8",
  "#8c8c2e"];
const PART_LOOKS = {
  before: ["before the SM's first block", "#b9bfc9"],
  between: ["between its blocks", "#d7dbe1"],
  after: ["after its last block", "#8e97a4"],
  none: ["SMs without a block", "#6a7280"],
  unmarked: ["blocks there, outside of ranges", "#9fc3e6"],
  unknown: ["marks are missing", "#d9534f"],
};
const SM_LEFT = 54, WARP_ROW = 12;

SECTIONS.push(["insides", "inside", startInside]);

function startInside() {
  const list = DATA.inside || [], strip = $("inside-strip");
  $("insides").hidden = !list.length;
  if (!list.length) return;
  for (const { strip: columns } of list) for (const key of Object.keys(columns || {})) {
    if (key !== "names") columns[key] = unpack(columns[key]);
  }
  fill($("inside-kernel"), list.map((kernel, at) => make("option", { value: at },
    `${shortName(kernel.name)}  ${duration(kernel.duration)}  (launch ${kernel.kernel})`)));
  $("inside-kernel").addEventListener("change", () => {
    Object.assign(insides, { at: Number($("inside-kernel").value), block: null });
    drawInside();
  });
  strip.addEventListener("click", (event) => {
    insides.block = blockAt(event) || insides.block;
    if (insides.block) drawWarps();
  });
  strip.addEventListener("mousemove", (event) => {
    const box = blockAt(event);
    strip.title = box ? blockSaid(box) : "";
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawInside);
  addEventListener("resize", drawInside);
  drawInside();
}

function phaseColour(kernel, name) {
  const names = [...new Set([...(kernel.strip?.names.slice(1) || []),
    ...kernel.phases.map((row) => row[0])])].sort();
  return PHASE_COLOURS[names.indexOf(name) % PHASE_COLOURS.length];
}

function named(colour, text) {
  const mark = make("span", { class: "swatch" });
  mark.style.background = colour;
  return make("span", null, mark, text);
}

function insideSaid(kernel) {
  const { change } = kernel;
  const said = [`${kernel.name}: ${duration(kernel.duration)}, ` +
    `${plural(kernel.blocks, "block")} seen on ${kernel.sms} SMs`];
  if (kernel.interval) said.push(`ran in ${kernel.interval}`);
  if (kernel.error >= 0) said.push(`marks placed ±${duration(kernel.error)}`);
  if (!kernel.complete && kernel.warps) said.push("some of its marks are missing");
  said.push(change ? `marks change it: ${duration(change.ns[0])} without, ` +
    `${duration(change.ns[1])} with them (${(100 * change.share).toFixed(1)} %), registers ` +
    `${change.registers.join(" → ")}, local memory ${change.local_bytes.join(" → ")} bytes` :
    "what the marks change was not measured (nsysalign run --marks)");
  return said.join("; ") + ".";
}

function drawInside() {
  const kernel = DATA.inside[insides.at], whole = Math.max(1, kernel.sms * kernel.duration);
  const looks = kernel.budget.map(([part, phase, ns]) => [...(part === "phase" ?
    [phase, phaseColour(kernel, phase)] : PART_LOOKS[part] || [part, "#999999"]), ns]);
  const count = (value) => value.toLocaleString("en");
  $("inside-reading").textContent = insideSaid(kernel);
  fill($("inside-bar"), looks.map(([name, colour, ns]) => {
    const piece = make("span", { title: `${name} ${percent(ns / whole)}` });
    piece.style.background = colour;
    piece.style.width = `${100 * ns / whole}%`;
    return piece;
  }));
  fillTable($("inside-budget"), "SM time",
    [{ text: "SM time" }, ...numbers("share", "us x SMs", "mean us per SM")],
    [...looks.map(([name, colour, ns]) =>
      [named(colour, name), percent(ns / whole), micro(ns), micro(ns / kernel.sms)]),
    [`${kernel.sms} SMs x ${duration(kernel.duration)}`, "100 %",
      micro(looks.reduce((sum, [, , ns]) => sum + ns, 0)), micro(kernel.duration)]]);
  fillTable($("inside-phases"), "Phases", [{ text: "phase" },
    ...numbers("passages of warps", "total us", "least us", "median us", "most us")],
  kernel.phases.map(([name, passages, ...times]) =>
    [named(phaseColour(kernel, name), name), count(passages), ...times.map(micro)]));
  $("inside-counts").hidden = !kernel.counters.length;
  fillTable($("inside-counters"), "Counters",
    [{ text: "path" }, ...numbers("warps", "lanes", "lanes per warp", "SMs")],
    kernel.counters.map(([name, warps, lanes, sms]) => [name, count(warps), count(lanes),
      (lanes / Math.max(1, warps)).toFixed(1), count(sms)]));
  $("inside-strips").hidden = !kernel.strip;
  $("inside-block").hidden = true;
  if (kernel.strip) drawSms(kernel);
  if (insides.block) drawWarps();
}

// Blocks from warps; each SM has as many lanes as blocks were there at once.
function blocksOnSms({ strip: s }) {
  const blocks = new Map(), lanes = new Map();
  for (let i = 0, at = 0; i < s.sm.length; at += s.n[i], i += 1) {
    const [sm, x, y, z, from, to] = [s.sm, s.x, s.y, s.z, s.from, s.to].map((column) => column[i]);
    const key = [sm, x, y, z].join(), box = blocks.get(key) || { sm, x, y, z, from, to, warps: [] };
    box.from = Math.min(box.from, from);
    box.to = Math.max(box.to, to);
    box.warps.push({ warp: s.warp[i], from, to, at, n: s.n[i] });
    blocks.set(key, box);
  }
  for (const box of [...blocks.values()].sort((a, b) => a.from - b.from)) {
    const free = lanes.get(box.sm) || [], lane = free.findIndex((until) => until <= box.from);
    box.lane = lane < 0 ? free.length : lane;
    free[box.lane] = box.to;
    lanes.set(box.sm, free);
  }
  for (const box of blocks.values()) box.warps.sort((a, b) => a.warp - b.warp);
  return [[...blocks.values()], lanes];
}

function paintWarp(pen, kernel, warp, place, y, height) {
  const s = kernel.strip;
  s.colours ||= s.names.map((name, k) => (k ? phaseColour(kernel, name) : PART_LOOKS.unmarked[1]));
  let from = warp.from, phase = 0;
  const piece = (to) => {
    pen.fillStyle = s.colours[phase];
    pen.fillRect(place(from), y, Math.max(0.6, place(to) - place(from)), height);
  };
  for (let i = warp.at; i < warp.at + warp.n; i += 1) {
    piece(s.t[i]);
    from = s.t[i];
    phase = s.p[i];
  }
  piece(warp.to);
}

function drawSms(kernel) {
  const [boxes, lanes] = blocksOnSms(kernel), canvas = $("inside-strip"), top = new Map();
  const total = [...lanes.values()].reduce((sum, free) => sum + free.length, 0);
  const lane = Math.max(1.5, Math.min(12, 640 / total)), tall = Math.max(1, lane - 0.5);
  const sms = [...lanes.keys()].sort((a, b) => a - b), width = canvas.clientWidth;
  let y = 4, last = -20;
  for (const sm of sms) {
    top.set(sm, y);
    y += lanes.get(sm).length * lane + (lane > 3 ? 2 : 0.5);
  }
  const pen = penOn(canvas, width, y + 22), long = Math.max(1, kernel.duration);
  const place = (ns) => SM_LEFT + (width - SM_LEFT - 8) * ns / long;
  axisOn(pen, 0, long / 1e3, (us) => place(us * 1e3), y, width);
  pen.textAlign = "right";
  for (const sm of sms) if (top.get(sm) - last >= 13) {
    last = top.get(sm);
    pen.fillText(`SM ${sm}`, SM_LEFT - 6, last + 8);
  }
  insides.boxes = boxes.map((box) => ({ ...box, px: place(box.from), ph: lane,
    pw: Math.max(1, place(box.to) - place(box.from)), py: top.get(box.sm) + box.lane * lane }));
  for (const box of insides.boxes) {
    pen.fillStyle = PART_LOOKS.unmarked[1];
    pen.fillRect(box.px, box.py, box.pw, tall);
    paintWarp(pen, kernel, box.warps[0], place, box.py, tall);
  }
}

function blockAt(event) {
  const frame = $("inside-strip").getBoundingClientRect();
  const x = event.clientX - frame.left, y = event.clientY - frame.top;
  return insides.boxes.find((box) =>
    x >= box.px && x <= box.px + box.pw && y >= box.py && y <= box.py + box.ph) || null;
}

function blockSaid(box) {
  return `block (${box.x}, ${box.y}, ${box.z}) on SM ${box.sm}: ${duration(box.to - box.from)}, ` +
    `from ${micro(box.from)} to ${micro(box.to)} us, ${plural(box.warps.length, "warp")}`;
}

function drawWarps() {
  const kernel = DATA.inside[insides.at], box = insides.block, canvas = $("inside-block");
  canvas.hidden = false;
  const width = canvas.clientWidth, span = Math.max(1, box.to - box.from);
  const pen = penOn(canvas, width, 24 + box.warps.length * WARP_ROW + 22);
  const place = (ns) => SM_LEFT + (width - SM_LEFT - 8) * (ns - box.from) / span;
  pen.fillText(blockSaid(box), SM_LEFT, 12);
  pen.textAlign = "right";
  box.warps.forEach((warp, at) => {
    paintWarp(pen, kernel, warp, place, 20 + at * WARP_ROW, WARP_ROW - 2);
    pen.fillStyle = theme("--quiet");
    pen.fillText(`warp ${warp.warp}`, SM_LEFT - 6, 29 + at * WARP_ROW);
  });
}

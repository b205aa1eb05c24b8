// Tables that stand by themselves, folded where the page has budgets: the longest idle times, ranges
// on the host.

function startAnswers() {
  const { gaps, ranges, host } = DATA.answers;
  const text = (...names) => names.map((name) => ({ text: name }));
  const code = (name, short = name) => make("code", { title: name }, short);
  listAnswers("gaps", gaps,
    [...text("of"), ...numbers("idle us"), ...text("until", "held up by"), ...numbers("for us")],
    (g) => [g.run, micro(g.ns), code(g.next, shortName(g.next)),
      g.call || "the CPU, outside of CUDA", g.call_ns ? micro(g.call_ns) : ""]);
  listAnswers("ranges", ranges, [...text("range"), ...numbers("n", "with GPU work", "time us",
    "median us", "launch us", "copy us", "sync us", "calls us", "CPU us", "GPU us")],
  (r) => [r.label, r.count.toLocaleString("en"), r.with_work.toLocaleString("en"),
    ...[r.host_ns, r.median_ns, r.launch_ns, r.copy_ns, r.sync_ns, r.other_ns, r.outside_ns,
      r.gpu_ns].map(micro)]);
  listAnswers("host", host, [...text("label", "seen in", "what", "where"),
    ...numbers("share of the gaps", "samples", "us")],
  (h) => [h.label, h.view, code(h.name), h.place + (h.within ? `, in ${h.within}` : ""),
    percent(h.share), h.samples ? h.samples.toLocaleString("en") : "", h.ns ? micro(h.ns) : ""]);
  $("answers").hidden = !gaps.length && !ranges.length && !host.length;
}

// A column that is empty, or says whose the rows are where all are of one, is left out: then the
// line above the table says it.
function listAnswers(name, rows, heads, cells) {
  const part = $("answers-" + name), summary = part.querySelector("summary");
  part.hidden = !rows.length;
  if (!rows.length) return;
  part.open = !DATA.labels.length;
  const all = rows.map(cells), one = new Set(all.map(([first]) => first)).size === 1;
  const kept = heads.map((head, k) => (k === 0 && one && ["of", "label"].includes(head.text) ?
    false : all.some((row) => row[k] !== "")));
  const title = summary.textContent + (kept[0] || rows[0].run ? "" : `: ${all[0][0]}`);
  summary.textContent = title;
  fillTable(part.querySelector("table"), title, heads.filter((_, k) => kept[k]),
    all.map((row) => row.filter((_, k) => kept[k])));
  const more = DATA.answers.more[name];
  if (more) part.append(make("p", { class: "quiet" },
    `${more.toLocaleString("en")} more in analysis.db.`));
}

// The run under nsys beside the one without.
function startBaseline() {
  const { heads, rows, note } = DATA.baseline;
  $("baseline").hidden = !rows.length;
  $("baseline-note").textContent = note;
  fillTable($("baseline").querySelector("table"), "The run under nsys and the one without",
    heads.map((text, k) => ({ text, number: k > 0 && k < heads.length - 1 })), rows);
}

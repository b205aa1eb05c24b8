// Tables that stand by themselves: labels that did different work, the longest idle times, ranges
// on the host.

function startAnswers() {
  const { variants, gaps, ranges, host } = DATA.answers, us = (text) => ({ text, number: true });
  listAnswers("variants", variants, "Labels by the work they did",
    [{ text: "label" }, { text: "work" }, us("runs"), us("median us"), us("w/o nsys us"),
    us("least us"), us("most us")],
    (v) => [v.label, DATA.timelines[v.row_interval] ?
      make("button", { type: "button", class: "link",
      onclick: () => choose(v.label, v.row_interval, true) }, v.variant) : v.variant,
      v.count.toLocaleString("en"), micro(v.median_ns),
        make("span", { title: withoutHint(v) }, withoutWord(v)), micro(v.min_ns),
        micro(v.max_ns)]);
  listAnswers("gaps", gaps, "The longest idle times of the GPU",
    [{ text: "of" }, us("idle us"), { text: "until" }, { text: "held up by" }, us("for us")],
    (g) => [g.run, micro(g.ns), make("code", { title: g.next }, shortName(g.next)),
      g.call || "the host, outside of CUDA", g.call_ns ? micro(g.call_ns) : ""]);
  listAnswers("ranges", ranges, "NVTX ranges on the host",
    [{ text: "range" }, ...["n", "with GPU work", "host us", "median us", "launch us", "copy us",
    "sync us", "other calls us", "outside us", "GPU us"].map(us)],
    (r) => [r.label, r.count.toLocaleString("en"), r.with_work.toLocaleString("en"),
      ...[r.host_ns, r.median_ns, r.launch_ns, r.copy_ns, r.sync_ns, r.other_ns, r.outside_ns,
      r.gpu_ns].map((ns) => micro(ns))]);
  listAnswers("host", host, "What the host did while the GPU waited",
    [{ text: "label" }, { text: "seen in" }, { text: "what" }, { text: "where" },
    us("share of the gaps"), us("samples"), us("us")],
    (h) => [h.label, h.view, make("code", null, h.name),
      h.place + (h.within ? `, in ${h.within}` : ""), percent(h.share),
      h.samples ? h.samples.toLocaleString("en") : "", h.ns ? micro(h.ns) : ""]);
  $("answers").hidden = !variants.length && !gaps.length && !ranges.length && !host.length;
}

function withoutWord(variant) {
  if (variant.unprofiled_ns) return within(variant.unprofiled_ns);
  return variant.no_prediction ? inAWord(variant.no_prediction) : "-";
}

function withoutHint(variant) {
  if (variant.unprofiled_ns) return "the interval that stands for this work, without nsys, predicted from this trace";
  return "no prediction: " + (variant.no_prediction ||
    "only the first rows have one, since each takes a replay of its calls");
}

function listAnswers(name, rows, caption, heads, cells) {
  const part = $("answers-" + name);
  part.hidden = !rows.length;
  if (rows.length) fillTable(part.querySelector("table"), caption, heads, rows.map(cells));
  const more = DATA.answers.more[name];
  if (more) part.append(make("p", { class: "quiet" },
    `${more.toLocaleString("en")} more in analysis.db.`));
}

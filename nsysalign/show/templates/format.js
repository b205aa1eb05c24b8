"use strict";
// Numbers as text: the counterpart of nsysalign/text.py, for texts that are made in the browser.

function threeDigits(value, whole) {
  const size = Math.abs(value);
  if (whole || size >= 99.95) return value.toFixed(0);
  return size >= 9.995 ? value.toFixed(1) : value.toFixed(2);
}

function duration(ns) {
  if (ns === null || ns === undefined) return "unknown";
  const size = Math.abs(ns);
  if (size < 999.5) return threeDigits(ns, true) + " ns";
  if (size < 999.5e3) return threeDigits(ns / 1e3, false) + " us";
  if (size < 999.5e6) return threeDigits(ns / 1e6, false) + " ms";
  return threeDigits(ns / 1e9, false) + " s";
}

// Parts of a whole (ns) as whole numbers of steps, which add up to the whole's if the parts do.
function inSteps(parts, step) {
  const steps = parts.map((ns) => Math.floor(ns / step));
  const total = Math.round(parts.reduce((sum, ns) => sum + ns, 0) / step);
  const lost = parts.map((ns, i) => [ns % step, i]).sort((p, q) => q[0] - p[0]);
  const missing = total - steps.reduce((sum, n) => sum + n, 0);
  for (const [, i] of lost.slice(0, missing)) steps[i] += 1;
  return steps;
}

// Parts of a whole (ns) as texts in one unit that add up to the whole's to the last digit, if the parts
// do: what rounding leaves goes to those that lost most by it.
function addends(parts, whole) {
  const [unit, digits, step] = whole < 999.5e3 ? ["us", 2, 10] :
    whole < 999.5e6 ? ["ms", 3, 1e3] : ["s", 3, 1e6];
  return inSteps(parts, step).map((n) => `${(n / 10 ** digits).toLocaleString("en",
    { minimumFractionDigits: digits, maximumFractionDigits: digits })} ${unit}`);
}

function micro(ns) {
  if (ns === null || ns === undefined) return "?";
  if (ns === 0) return ".";
  // above 10 ms a tenth of a microsecond is enough
  const places = Math.abs(ns) < 9_999_995 ? 2 : 1;
  return (ns / 1e3).toLocaleString("en",
    { minimumFractionDigits: places, maximumFractionDigits: places });
}

function percent(share) {
  return share > 0 && share < 0.005 ? "<1 %" : (100 * share).toFixed(0) + " %";
}

// Milliseconds with the separators of the axes.
function milli(ns) {
  return ns ? (ns / 1e6).toLocaleString("en",
    { minimumFractionDigits: 2, maximumFractionDigits: 2 }) : ".";
}

// Heads of columns of numbers.
function numbers(...names) {
  return names.map((text) => ({ text, number: true }));
}

function plural(count, noun) {
  return count.toLocaleString("en") + " " + noun + (count === 1 ? "" : "s");
}

// Long names over several lines of a hover text, whole: each line ends behind a word or a mark of C++, if one is near.
function wrap(text, width = 70) {
  const lines = [];
  for (let rest = text; rest;) {
    const whole = rest.length <= width, marks = [" ", ",", "<", ">", "(", ")", ":", "_"];
    const at = Math.max(...marks.map((mark) => rest.slice(0, width).lastIndexOf(mark) + 1));
    const end = whole ? rest.length : at > width / 2 ? at : width;
    lines.push(rest.slice(0, end));
    rest = rest.slice(end);
  }
  return lines;
}

// "void at::native::reduce_kernel<512, 1, ...>(...)" -> "reduce_kernel": what fits into a bar.
function shortName(name) {
  let depth = 0, plain = "";
  for (const letter of name.replace(/^void /, "")) {
    if (letter === "<") depth += 1;
    else if (letter === ">") depth = Math.max(0, depth - 1);
    else if (letter === "(" && depth === 0 && plain) break;
    else if (depth === 0) plain += letter;
  }
  return plain.split("::").pop().trim() || name;
}

// Long texts are cut in the middle: names differ at their ends, too (text.py, `middle`).
function cut(text, letters) {
  if (letters < 3) return "";
  if (text.length <= letters) return text;
  const tail = Math.floor((letters - 1) / 2);
  return text.slice(0, letters - 1 - tail) + "…" + text.slice(text.length - tail);
}

// Names cut so that they differ: those that would look alike begin where they stop being the same.
function cutApart(names, letters) {
  const short = names.map((name) => cut(name, letters));
  return names.map((name, i) => {
    const alike = names.filter((other, k) => short[k] === short[i] && other !== name);
    if (!alike.length) return short[i];
    const same = Math.min(...alike.map((other) =>
      [...name].findIndex((letter, at) => letter !== other[at])));
    return same > 0 ? cut("…" + name.slice(same), letters) : short[i];
  });
}

// The short names of kernels; those that share one are told apart by their template arguments.
function shortNames(names) {
  const short = names.map(shortName);
  return names.map((name, i) => {
    const alike = [...new Set(names.filter((_, k) => short[k] === short[i]))];
    const inside = alike.map((other) => other.slice(other.indexOf("<"), other.lastIndexOf(">") + 1));
    if (alike.length < 2 || !name.includes("<")) return short[i];
    return `${short[i]} ${cutApart(inside, 60)[alike.indexOf(name)]}`;
  });
}

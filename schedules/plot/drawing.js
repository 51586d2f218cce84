// Draws the steps of a page on canvases. pointer.js and page.js come after this file. The data are JSON, compressed by gzip; `page.py` describes and writes them.
"use strict";

const LEFT = 46, RIGHT = 124, AXIS = 20, GAP = 2, SHADES = [0, 0.36, 0.18, 0.5], STRIP = 0.24, ABOVE = 4;
const dark = matchMedia("(prefers-color-scheme: dark)");
const tip = document.getElementById("tip"), detail = document.getElementById("detail");
const hidden = new Set(), palette = {};
let data, view, whole, selected = null, held = null, path = false, waiting = false;

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made[name] = value;
    else if (value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

async function unpacked(text) {
  const bytes = Uint8Array.from(atob(text), (each) => each.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).json();
}

// ---- data ----------------------------------------------------------------------------------------------------------

function summed(differences) {
  let sum = 0;
  return Float64Array.from(differences, (each) => (sum += each));
}

function prepare(step) {
  const spans = step.spans;
  spans.start = summed(spans.start).map((each) => each + step.start);
  spans.end = spans.start.map((each, i) => each + spans.length[i]);
  step.lanes = Array.from({ length: step.meshes }, () => step.tracks.map(() => []));
  step.sends = [];
  for (let i = 0; i < spans.mesh.length; i++) {
    if (spans.target[i] >= 0) step.sends.push(i);
    else step.lanes[spans.mesh[i]][spans.track[i]].push(i);
  }
  step.onPath = new Set(step.path);
  step.idle = Array.from({ length: step.meshes }, () => []);
  const { mesh, start, length, cause, after } = step.bubbles;
  for (let i = 0; i < mesh.length; i++) {
    const from = start[i] + step.start;
    step.idle[mesh[i]].push({ start: from, end: from + length[i], cause: data.causes[cause[i]], after: after[i] });
  }
  for (const curve of step.memory?.curves ?? []) {
    curve.times = summed(curve.times).map((each) => each + step.start);
    curve.amounts = summed(curve.amounts);
    curve.peak = curve.amounts.reduce((one, other) => Math.max(one, other), 0);
  }
  step.end += step.start;
}

function number(value) {
  return String(Number(value.toPrecision(5)));
}

function time(value) {
  return `${number(value * data.quantum)} ${data.unit}`;
}

function amount(value, unit) {
  if (unit !== "bytes") return number(value);
  const names = ["B", "kB", "MB", "GB", "TB"];
  let power = 0;
  while (value >= 999.5 && power < 4) { value /= 1000; power++; }
  return `${Number(value.toPrecision(3))} ${names[power]}`;
}

function partName([kind, stage, microbatch, slice], base) {
  const words = [kind.replaceAll("_", " ")];
  if (stage !== null) words.push(`of stage ${stage}`);
  const tail = microbatch === null ? "" : `, microbatch ${base + microbatch}${slice ? `.${slice}` : ""}`;
  return words.join(" ") + tail;
}

function nameOf(step, i) {
  const { spans } = step, parts = step.shapes[spans.shape[i]];
  if (spans.target[i] < 0) return parts.map((part) => partName(part, spans.microbatch[i])).join(" + ");
  return partName(["transfer", ...parts[0].slice(1)], spans.microbatch[i]);
}

// The first task of a span, which no other span of a mesh has.
function taskOf(step, i) {
  const { spans } = step, [kind, stage, microbatch, slice] = step.shapes[spans.shape[i]][0];
  return { mesh: spans.mesh[i], kind, stage, microbatch: microbatch === null ? null : spans.microbatch[i] + microbatch, slice };
}

function keyOf(step, i) {
  return step.spans.target[i] < 0 ? JSON.stringify(taskOf(step, i)) : null;
}

// The tasks of the row of a task, in order; none for a transfer.
function laneOf(step, i) {
  return step.spans.target[i] < 0 ? step.lanes[step.spans.mesh[i]][step.spans.track[i]] : [];
}

function whereOf(step, i) {
  const { spans } = step;
  return spans.target[i] < 0 ? `mesh ${spans.mesh[i]}` : `mesh ${spans.mesh[i]} to mesh ${spans.target[i]}`;
}

function named(step, i) {
  return i < 0 ? "nothing" : `${nameOf(step, i)} (${whereOf(step, i)})`;
}

// ---- colours -------------------------------------------------------------------------------------------------------

function mixed(colour, white) {
  const parts = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
  return `rgb(${parts.map((each) => Math.round(each + (255 - each) * white)).join(" ")})`;
}

function readColours() {
  const style = getComputedStyle(document.documentElement);
  for (const name of ["paper", "ink", "soft", "line", "row", "memory", "limit", ...Object.keys(data.waits)]) {
    palette[name] = style.getPropertyValue(`--${name}`).trim();
  }
  palette.kinds = {};
  for (const [kind, colour] of Object.entries(data.kinds)) {
    const base = dark.matches ? 0.12 : 0;
    palette.kinds[kind] = SHADES.map((white) => mixed(colour, base + white * (dark.matches ? 0.6 : 1)));
  }
}

function textOn(colour) {
  const [red, green, blue] = colour.match(/\d+/g).map((each) => (each / 255) ** 2.2);
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.18 ? "#000000" : "#ffffff";
}

// ---- drawing -------------------------------------------------------------------------------------------------------

function context(canvas, height) {
  const width = canvas.clientWidth, ratio = devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.height = `${height}px`;
  }
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  pen.textBaseline = "middle";
  return pen;
}

// The space to the right of the rows, for the peaks of memory; a narrow page writes them into the rows.
function right(canvas) {
  return canvas.clientWidth < 560 ? 6 : RIGHT;
}

function across(canvas) {
  return (canvas.clientWidth - LEFT - right(canvas)) / (view.to - view.from);
}

function xOf(canvas, at) {
  return LEFT + (at - view.from) * across(canvas);
}

// The first of `count` indices whose key is greater than a time.
function firstAfter(count, key, at) {
  let low = 0, high = count;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (key(middle) <= at) low = middle + 1;
    else high = middle;
  }
  return low;
}

function* seen(step, lane) {
  const { start, end } = step.spans;
  const first = firstAfter(lane.length, (k) => end[lane[k]], view.from);
  for (let k = first; k < lane.length && start[lane[k]] < view.to; k++) yield lane[k];
}

function rowBox(step, mesh, track) {
  const top = AXIS + mesh * step.row, full = step.row - GAP, others = step.tracks.length - 1;
  const own = others ? full * (1 - STRIP) : full;
  if (track === 0) return [top, own];
  return [top + own + ((track - 1) * full * STRIP) / others, (full * STRIP) / others];
}

function labels(pen, step, top, row) {
  const every = Math.max(1, Math.ceil(11 / row));
  pen.fillStyle = palette.soft;
  pen.font = "11px system-ui, sans-serif";
  pen.textAlign = "right";
  for (let mesh = 0; mesh < step.meshes; mesh += every) pen.fillText(mesh, LEFT - 8, top + mesh * row + row / 2);
}

function axis(pen, canvas, height) {
  const room = canvas.clientWidth - LEFT - right(canvas), length = (view.to - view.from) * data.quantum;
  const rough = length / Math.max(2, room / 110), power = 10 ** Math.floor(Math.log10(rough));
  const tick = power * [1, 2, 5, 10].find((each) => each * power >= rough);
  pen.font = "11px system-ui, sans-serif";
  pen.textAlign = "center";
  for (let at = Math.ceil((view.from * data.quantum) / tick) * tick; at <= view.to * data.quantum + tick / 1e6; at += tick) {
    const x = xOf(canvas, at / data.quantum);
    pen.fillStyle = palette.line;
    pen.fillRect(x, AXIS - 4, 1, height - AXIS + 4);
    pen.fillStyle = palette.soft;
    if (x < LEFT + room - 24) pen.fillText(number(at), x, AXIS / 2);
  }
  pen.textAlign = "left";
  pen.fillText(data.unit, 4, AXIS / 2);
}

function drawTasks(step) {
  const { canvas } = step, height = AXIS + step.meshes * step.row, pen = context(canvas, height), scale = across(canvas);
  axis(pen, canvas, height);
  labels(pen, step, AXIS, step.row);
  pen.save();
  pen.beginPath();
  pen.rect(LEFT, 0, canvas.clientWidth - LEFT - right(canvas), height);
  pen.clip();
  for (let mesh = 0; mesh < step.meshes; mesh++) {
    const [top, full] = rowBox(step, mesh, 0);
    pen.fillStyle = palette.row;
    pen.fillRect(xOf(canvas, step.start), top, (step.end - step.start) * scale, step.row - GAP);
    for (const each of step.idle[mesh]) {
      if (each.end < view.from || each.start > view.to) continue;
      pen.fillStyle = palette[each.cause];
      pen.fillRect(xOf(canvas, each.start), top, (each.end - each.start) * scale, full);
    }
    step.lanes[mesh].forEach((lane, track) => {
      for (const i of seen(step, lane)) drawTask(pen, step, i, rowBox(step, mesh, track), scale);
    });
  }
  drawTransfers(pen, step);
  if (selected?.step === step) outline(pen, step, selected.i);
  if (held?.step === step) drawHeld(pen, step);
  pen.restore();
}

function drawTask(pen, step, i, [top, height], scale) {
  const { spans, canvas } = step, x = xOf(canvas, spans.start[i]), width = (spans.end[i] - spans.start[i]) * scale;
  const parts = step.shapes[spans.shape[i]], each = height / parts.length;
  pen.globalAlpha = path && !step.onPath.has(i) ? 0.22 : 1;
  parts.forEach((part, at) => {
    if (hidden.has(part[0])) return;
    const microbatch = spans.microbatch[i] + (part[2] ?? 0);
    const colour = palette.kinds[part[0]][width > 4 ? microbatch % SHADES.length : 0];
    const y = top + at * each, air = width > 8 ? 0.7 : 0;
    pen.fillStyle = colour;
    pen.fillRect(x, y, Math.max(width - air, 0.4), each - (parts.length > 1 ? 0.5 : 0));
    if (width < 13 || each < 9 || part[2] === null) return;
    const short = `${microbatch}${part[3] ? `.${part[3]}` : ""}`, long = `${short} s${part[1]}`;
    pen.font = `${Math.min(12, Math.max(9, each - 4))}px system-ui, sans-serif`;
    pen.textAlign = "center";
    const words = step.chunks && pen.measureText(long).width + 6 < width ? long : short;
    if (pen.measureText(words).width + 3 > width) return;
    pen.fillStyle = textOn(colour);
    pen.fillText(words, x + width / 2, y + each / 2 + 0.5);
  });
  pen.globalAlpha = 1;
}

// Lines from the sender's row to the receiver's: of the critical path, of the selected task, and of all if they are few.
function drawTransfers(pen, step) {
  const { spans, canvas } = step, { start, end } = spans;
  const shown = step.sends.filter((i) => end[i] >= view.from && start[i] <= view.to);
  const chosen = selected?.step === step ? [selected.i, spans.after[selected.i]] : [];
  for (const i of shown) {
    const strong = chosen.includes(i) || (path && step.onPath.has(i));
    if (!strong && (path || shown.length > 160)) continue;
    const [from, high] = rowBox(step, spans.mesh[i], 0), [to, low] = rowBox(step, spans.target[i], 0);
    pen.strokeStyle = strong ? palette.ink : palette.soft;
    pen.lineWidth = strong ? 1.6 : 0.7;
    pen.beginPath();
    pen.moveTo(xOf(canvas, start[i]), from + (to > from ? high : 0));
    pen.lineTo(xOf(canvas, end[i]), to + (to > from ? 0 : low));
    pen.stroke();
  }
}

function outline(pen, step, i) {
  const { spans, canvas } = step, [top, height] = rowBox(step, spans.mesh[i], spans.track[i]);
  if (spans.target[i] >= 0) return;
  pen.strokeStyle = palette.ink;
  pen.lineWidth = 2;
  pen.strokeRect(xOf(canvas, spans.start[i]), top, Math.max(2, (spans.end[i] - spans.start[i]) * across(canvas)), height);
}

// The task that the pointer holds, and a line where it will be.
function drawHeld(pen, step) {
  const { spans, canvas } = step, { i, before } = held, box = rowBox(step, spans.mesh[i], spans.track[i]);
  pen.save();
  pen.translate((held.at - held.graspedAt) * across(canvas), -3);
  pen.shadowColor = palette.ink;
  pen.shadowBlur = 6;
  drawTask(pen, step, i, box, across(canvas));
  pen.restore();
  if (before === null) return;
  const at = before < 0 ? Math.max(...laneOf(step, i).map((each) => spans.end[each])) : spans.start[before];
  pen.fillStyle = held.failed ? palette.limit : palette.ink;
  pen.fillRect(xOf(canvas, at) - 1.5, box[0] - 1, 3, box[1] + 2);
}

function drawMemory(step) {
  const { memory, memoryCanvas: canvas } = step, row = step.memoryRow, pen = context(canvas, ABOVE + step.meshes * row);
  const edge = canvas.clientWidth - right(canvas), narrow = right(canvas) < RIGHT;
  labels(pen, step, ABOVE, row);
  const peaks = Math.max(...memory.curves.map((each) => each.peak)) || 1;
  memory.curves.forEach(({ times, amounts, peak }, mesh) => {
    const limit = memory.limits?.[mesh] ?? null, top = limit !== null && limit < 2.5 * peaks ? Math.max(peaks, limit) : peaks;
    const bottom = ABOVE + (mesh + 1) * row - 1, scale = (row - GAP - 1) / top, end = xOf(canvas, step.end);
    pen.save();
    pen.beginPath();
    pen.rect(LEFT, 0, edge - LEFT, ABOVE + step.meshes * row);
    pen.clip();
    pen.fillStyle = palette.memory;
    pen.beginPath();
    pen.moveTo(xOf(canvas, step.start), bottom);
    let level = 0, most = 0, last = -1e9; // of many changes within a pixel the largest amount is drawn
    for (let k = 0; k < times.length; k++) {
      const x = xOf(canvas, times[k]);
      if (x > LEFT && x < edge && x - last < 0.5) {
        most = Math.max(most, level = amounts[k]);
        continue;
      }
      if (k > 0) for (const each of [most, level]) pen.lineTo(last, bottom - each * scale);
      pen.lineTo(x, bottom - level * scale);
      most = level = amounts[k];
      pen.lineTo(x, bottom - level * scale);
      last = x;
    }
    if (times.length) for (const each of [most, level]) pen.lineTo(last, bottom - each * scale);
    pen.lineTo(end, bottom - level * scale);
    pen.lineTo(end, bottom);
    pen.fill();
    pen.fillStyle = palette.line;
    pen.fillRect(LEFT, bottom, edge - LEFT, 1);
    if (limit !== null && limit <= top) {
      pen.fillStyle = palette.limit;
      pen.fillRect(LEFT, bottom - limit * scale, edge - LEFT, 1);
    }
    pen.restore();
    if (row < 11 && mesh % Math.ceil(11 / row)) return;
    pen.font = "11px system-ui, sans-serif";
    pen.fillStyle = limit !== null && peak > limit ? palette.limit : narrow ? palette.ink : palette.soft;
    pen.textAlign = narrow ? "right" : "left";
    const words = amount(peak, memory.unit) + (limit !== null ? ` / ${amount(limit, memory.unit)}` : "");
    pen.fillText(words, narrow ? edge - 2 : edge + 6, bottom - row / 2);
  });
}

function draw() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => {
    waiting = false;
    for (const step of data?.steps ?? []) {
      drawTasks(step);
      if (step.memory) drawMemory(step);
    }
  });
}

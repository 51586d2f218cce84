// What the pointer and the keys do: they name, zoom, move and select, and they carry tasks where a page lets them.
"use strict";

// A page that can change the order of a mesh sets this. `hold(step, i, before)` is called when a task is held before the task
// `before` of its row (-1: at the end), and with `before` null where it was; `drop()` when it is let go there, `leave()` elsewhere.
let rearranger = null;

function timeAt(canvas, x) {
  return view.from + (x - LEFT) / across(canvas);
}

function zoom(factor, around = (view.from + view.to) / 2) {
  const least = (whole.to - whole.from) / 20000;
  const length = Math.min(whole.to - whole.from, Math.max(least, (view.to - view.from) * factor));
  move(around - ((around - view.from) / (view.to - view.from)) * length, length);
}

function move(from, length = view.to - view.from) {
  const start = Math.min(Math.max(from, whole.from), whole.to - length);
  view = { from: start, to: start + length };
  draw();
}

function hit(step, x, y) {
  const at = timeAt(step.canvas, x), mesh = Math.floor((y - AXIS) / step.row);
  if (mesh < 0 || mesh >= step.meshes || x < LEFT || x > step.canvas.clientWidth - right(step.canvas)) return null;
  const { start, end } = step.spans, slack = 1.5 / across(step.canvas);
  for (let track = step.tracks.length - 1; track >= 0; track--) {
    const [top, height] = rowBox(step, mesh, track), lane = step.lanes[mesh][track];
    if (y < top || y > top + height) continue;
    const i = lane[firstAfter(lane.length, (k) => end[lane[k]], at)];
    const visible = i !== undefined && step.shapes[step.spans.shape[i]].some((part) => !hidden.has(part[0]));
    if (visible && start[i] <= at + (track ? slack : 0)) return { step, i };
    const idle = step.idle[mesh].find((each) => each.start <= at && at < each.end);
    if (track === 0 && idle) return { step, idle, mesh };
  }
  return null;
}

function about({ step, i, idle, mesh }) {
  const { spans } = step;
  if (idle) {
    const from = idle.after < 0 ? "" : `\n${nameOf(step, idle.after)}\n${whereOf(step, idle.after)}`;
    return `idle for ${time(idle.end - idle.start)}: mesh ${mesh} ${data.waits[idle.cause]}${from}`;
  }
  const times = `${time(spans.start[i])} to ${time(spans.end[i])}, ${time(spans.end[i] - spans.start[i])}`;
  const sent = spans.bytes[i] ? `\n${amount(spans.bytes[i], "bytes")}` : "";
  return `${nameOf(step, i)}\n${whereOf(step, i)}, ${times}${sent}\nwaited for ${named(step, spans.after[i])}`;
}

function memoryAt(step, x, y) {
  const mesh = Math.floor((y - ABOVE) / step.memoryRow), at = timeAt(step.memoryCanvas, x), curve = step.memory.curves[mesh];
  if (!curve || x < LEFT || at < step.start || at > step.end) return null;
  const k = firstAfter(curve.times.length, (each) => curve.times[each], at) - 1;
  const limit = step.memory.limits?.[mesh] ?? null, unit = step.memory.unit;
  const of = limit === null ? "" : ` of ${amount(limit, unit)}`;
  return `mesh ${mesh} at ${time(at)}: ${amount(k < 0 ? 0 : curve.amounts[k], unit)}${of}; peak ${amount(curve.peak, unit)}`;
}

function showTip(text, event) {
  tip.hidden = !text;
  if (!text) return;
  tip.textContent = text;
  const x = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 6);
  const y = event.clientY + 18 + tip.offsetHeight > innerHeight ? event.clientY - tip.offsetHeight - 10 : event.clientY + 18;
  tip.style.left = `${Math.max(4, x)}px`;
  tip.style.top = `${y}px`;
}

function select(found) {
  selected = found && found.i !== undefined ? found : null;
  detail.hidden = !selected;
  detail.replaceChildren();
  if (selected) {
    const { step, i } = selected, name = step.functions[step.spans.function[i]], text = data.texts[name];
    const close = element("button", { class: "close", onclick: () => select(null) }, "close");
    const lines = about(selected).split("\n");
    detail.append(close, element("h2", {}, lines[0]), ...lines.slice(1).map((line) => element("p", {}, line)));
    const earlier = step.spans.after[i];
    const buttons = earlier < 0 ? [] : [element("button", { onclick: () => select({ step, i: earlier }) }, "show what it waited for")];
    detail.append(element("div", { class: "actions" }, ...buttons, ...(rearranger ? neighbours(step, i) : [])));
    if (text) detail.append(element("pre", { id: "ir" }, text));
  }
  draw();
}

// The buttons that move a task by one place.
function neighbours(step, i) {
  const lane = laneOf(step, i), k = lane.indexOf(i);
  const places = [["earlier", k > 0, lane[k - 1]], ["later", k >= 0 && k + 1 < lane.length, lane[k + 2] ?? -1]];
  return places.filter(([, possible]) => possible).map(([words, , before]) =>
    element("button", { id: words, onclick: () => { rearranger.hold(step, i, before); rearranger.drop(); } }, `run it one place ${words}`));
}

// ---- tasks that the pointer carries --------------------------------------------------------------------------------

// The task that the pointer carries from a place: the task there, or of a gap the one after it; null at the end of a row.
function carried(found) {
  if (!found?.idle) return found;
  const { step, idle, mesh } = found, lane = step.lanes[mesh][0];
  const i = lane[firstAfter(lane.length, (k) => step.spans.start[lane[k]], idle.start)];
  return i === undefined ? null : { step, i };
}

// The task of its row before which a task comes if it is let go at a time, -1 for the end; null for its own place.
function placeAt({ step, i }, at) {
  const lane = laneOf(step, i), { start, end } = step.spans, k = lane.indexOf(i);
  const before = lane.find((other) => other !== i && (start[other] + end[other]) / 2 > at) ?? -1;
  return before === (lane[k + 1] ?? -1) ? null : before;
}

function carry(task, x, event) {
  const { step, i } = task, at = timeAt(step.canvas, x), before = placeAt(task, at);
  const isNew = !held || held.before !== before;
  held = { ...held, ...task, at, before, event };
  if (isNew) {
    tellHeld(before === null ? "its place" : "…");
    rearranger.hold(step, i, before);
  }
  showTip(held.words, event);
  draw();
}

// Says what becomes of the step if the task that is held is let go.
function tellHeld(words, failed = false) {
  if (!held) return;
  Object.assign(held, { words, failed });
  showTip(words, held.event);
  draw();
}

function letGo(drop) {
  if (!held) return;
  const isMoved = held.before !== null;
  held = null;
  showTip(null);
  draw();
  if (drop && isMoved) rearranger.drop();
  else rearranger.leave();
}

function listen(canvas, hover, click, grasp = () => null) {
  const pointers = new Map();
  let moved = 0, grasped = null;
  const local = (event) => [event.clientX - canvas.getBoundingClientRect().left, event.clientY - canvas.getBoundingClientRect().top];
  canvas.onpointerdown = (event) => {
    pointers.set(event.pointerId, local(event));
    moved = 0;
    letGo(false);
    const found = pointers.size === 1 ? grasp(...local(event)) : null;
    grasped = found && { ...found, graspedAt: timeAt(canvas, local(event)[0]) };
    canvas.setPointerCapture(event.pointerId);
  };
  canvas.onpointerup = canvas.onpointercancel = (event) => {
    pointers.delete(event.pointerId);
    grasped = null;
    if (held) letGo(event.type === "pointerup");
    else if (event.type === "pointerup" && moved < 4) click(...local(event));
  };
  canvas.onpointerleave = () => { if (!held) showTip(null); };
  canvas.onpointermove = (event) => {
    const before = pointers.get(event.pointerId), here = local(event);
    if (!before) {
      canvas.style.cursor = grasp(...here) ? "grab" : "";
      return showTip(hover(...here), event);
    }
    moved += Math.abs(here[0] - before[0]);
    if (grasped) {
      pointers.set(event.pointerId, here);
      if (held || moved >= 4) carry(grasped, here[0], event);
      return;
    }
    if (pointers.size === 2) {
      const [other] = [...pointers].filter(([id]) => id !== event.pointerId).map(([, each]) => each);
      const near = Math.max(12, Math.abs(before[0] - other[0])), far = Math.max(12, Math.abs(here[0] - other[0]));
      zoom(near / far, timeAt(canvas, (here[0] + other[0]) / 2));
    } else move(view.from - (here[0] - before[0]) / across(canvas));
    pointers.set(event.pointerId, here);
    showTip(null);
  };
  canvas.addEventListener("wheel", (event) => {
    const isZoom = event.ctrlKey || event.metaKey || event.altKey;
    if (!isZoom && Math.abs(event.deltaX) <= Math.abs(event.deltaY)) return;
    event.preventDefault();
    if (isZoom) zoom(Math.exp(event.deltaY / 300), timeAt(canvas, local(event)[0]));
    else move(view.from + event.deltaX / across(canvas));
  }, { passive: false });
  canvas.ondblclick = (event) => zoom(0.4, timeAt(canvas, local(event)[0]));
  canvas.onkeydown = (event) => {
    const length = view.to - view.from;
    const does = { "+": () => zoom(0.6), "-": () => zoom(1 / 0.6), 0: () => move(whole.from, whole.to - whole.from),
      ArrowLeft: () => move(view.from - length / 8), ArrowRight: () => move(view.from + length / 8), Escape: () => { grasped = null; if (held) letGo(false); else select(null); } }[event.key];
    if (does) { does(); event.preventDefault(); }
  };
}

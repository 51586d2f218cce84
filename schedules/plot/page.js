// The parts of a page: facts, buttons, a canvas for each step, tables.
"use strict";

function toggle(kind) {
  const swatch = element("i", { style: `background: ${data.kinds[kind]}` });
  return element("button", { class: "toggle", "data-kind": kind, "aria-pressed": String(!hidden.has(kind)), title: "show or hide", onclick: (event) => {
    if (!hidden.delete(kind)) hidden.add(kind);
    event.currentTarget.setAttribute("aria-pressed", String(!hidden.has(kind)));
    draw();
  } }, swatch, kind.replaceAll("_", " "));
}

function tools() {
  const mark = element("button", { class: "mark", id: "path", "aria-pressed": String(path), onclick: () => {
    path = !path;
    mark.setAttribute("aria-pressed", String(path));
    draw();
  } }, "critical path");
  return element("div", { class: "tools" }, ...Object.keys(data.kinds).map(toggle), mark, element("span", { class: "gap" }),
    element("button", { id: "out", title: "zoom out", onclick: () => zoom(1 / 0.6) }, "−"),
    element("button", { id: "in", title: "zoom in (or ctrl and wheel, pinch, double click)", onclick: () => zoom(0.6) }, "+"),
    element("button", { id: "all", title: "the whole step", onclick: () => move(whole.from, whole.to - whole.from) }, "all"));
}

function section(step) {
  const label = `the tasks of ${step.title}; the tables have the numbers`;
  step.canvas = element("canvas", { tabindex: "0", role: "img", "aria-label": label });
  step.row = Math.min(26, Math.max(9, Math.floor(520 / step.meshes)));
  const grasp = (x, y) => rearranger && carried(hit(step, x, y));
  listen(step.canvas, (x, y) => { const found = hit(step, x, y); return found && about(found); }, (x, y) => select(hit(step, x, y)), grasp);
  const made = element("section", {}, element("h2", {}, step.title), step.canvas);
  if (step.note) made.children[0].after(element("p", {}, step.note));
  if (step.memory) {
    step.memoryCanvas = element("canvas", { role: "img", "aria-label": `the memory of ${step.title}` });
    step.memoryRow = Math.min(26, Math.max(7, Math.floor(360 / step.meshes)));
    listen(step.memoryCanvas, (x, y) => memoryAt(step, x, y), () => select(null));
    made.append(element("div", { class: "caption" }, step.memory.title), step.memoryCanvas);
  }
  return made;
}

function table({ title, columns, rows, note }) {
  const line = (cells, tag) => element("tr", {}, ...cells.map((each) => element(tag, {}, each)));
  const body = element("table", {}, line(columns, "th"), ...rows.map((row) => line(row, "td")));
  const made = element("section", {}, element("h2", {}, title), element("div", { class: "scroll" }, body));
  if (note) made.append(element("p", {}, note));
  return made;
}

// Shows data in place of those that the page shows; kinds stay hidden, and the critical path and the selected task stay marked.
function show(given) {
  letGo(false);
  const chosen = selected && selected.step.spans.target[selected.i] < 0 ? keyOf(selected.step, selected.i) : null;
  data = given;
  data.steps.forEach(prepare);
  whole = { from: Math.min(0, ...data.steps.map((each) => each.start)), to: Math.max(...data.steps.map((each) => each.end)) };
  view = { ...whole };
  readColours();
  const facts = data.facts.map(([name, value]) => element("div", {}, element("b", {}, value), element("span", {}, name)));
  const found = new Set(data.steps.flatMap((step) => step.idle.flat().map((each) => each.cause)));
  const causes = Object.entries(data.waits).filter(([name]) => found.has(name)).map(([name, words]) =>
    element("span", {}, element("i", { style: `background: var(--${name})` }), `idle: ${words}`));
  const page = document.getElementById("page");
  page.replaceChildren(element("h1", {}, data.title), ...data.notes.map((each) => element("p", {}, each)),
    element("div", { class: "facts" }, ...facts));
  if (data.steps.length) {
    page.append(tools(), element("div", { class: "causes" }, ...causes), ...data.steps.map(section));
  }
  page.append(element("div", { class: "tables" }, ...data.tables.map(table)));
  const [step] = data.steps, i = chosen && step ? step.spans.mesh.findIndex((_, each) => keyOf(step, each) === chosen) : -1;
  select(i < 0 ? null : { step, i });
}

async function start() {
  dark.addEventListener("change", () => { if (data) { readColours(); draw(); } });
  new ResizeObserver(draw).observe(document.body);
  const packed = document.getElementById("data"); // a page that is told what to show has none
  if (packed) show(await unpacked(packed.textContent.trim()));
}

const started = start();

// The form of the playground. A worker simulates. The scripts that every page of a schedule has draw, and carry tasks.
/* global show, unpacked, element, taskOf, tellHeld, rearranger:writable */

const form = document.getElementById("form"), status = document.getElementById("status");
const page = document.getElementById("page"), undo = document.getElementById("undo");
const { schedule, options, grid } = form.elements;
const PATIENCE = 5000; // a change of the form waits this long for an older one, in milliseconds
let worker, since = 0, waiting = false, changed = true, edited = false, known = {};
let move = null; // of a task to another place of its row, which is tried while the task is held
let asked = null; // the move that the worker tries

function tell(text, failed = false) {
  status.textContent = text;
  status.classList.toggle("failed", failed);
}

function start() {
  worker = new Worker("worker.js", { type: "module" });
  worker.onmessage = ({ data }) => hear(data);
  worker.onerror = (event) => tell(event.message || "Python can't start: this browser lacks modules in workers", true);
}

async function hear({ choices, answer, failed }) {
  since = 0;
  if (failed) return tell(failed, true);
  tell("");
  if (choices && !schedule.length) begin(choices);
  if (answer && !asked) await display(answer);
  else if (answer && asked === move) await hearOfMove(answer);
  if (choices || waiting) ask();
}

// A move that can't be is not made. What is said of it stands below the grid.
async function hearOfMove(answer) {
  if (!move.dropped) {
    move.answer = answer;
    return tellHeld(answer.error?.split("\n")[0] ?? `a step of ${(await dataOf(answer)).facts[0][1]}`, Boolean(answer.error));
  }
  move = null;
  if (answer.error) return refuse(answer.part, `The task stays in its place. ${answer.error}`);
  grid.value = answer.grid;
  edited = true;
  undo.hidden = false;
  await display(answer);
}

rearranger = {
  hold(step, i, before) {
    move = before === null ? null : { task: taskOf(step, i), before: before < 0 ? null : taskOf(step, before) };
    if (move) ask();
  },
  drop() {
    move.dropped = true;
    if (move.answer) hearOfMove(move.answer);
  },
  leave() { move = null; },
};

function begin(choices) {
  known = choices;
  schedule.append(...Object.keys(choices).map((name) => element("option", {}, name)));
  schedule.value = "1f1b";
  form.firstElementChild.disabled = false;
  offer();
}

// Names the options of the schedule, if it has any.
function offer() {
  options.value = "";
  options.placeholder = known[schedule.value].map((name) => `${name}=`).join(" ") || "none";
  options.disabled = !known[schedule.value].length;
}

function ask() {
  if (since) {
    waiting = true;
    if (performance.now() - since < PATIENCE) return;
    worker.terminate(); // a huge schedule may take minutes
    start();
    tell("starting Python again …");
    since = performance.now();
    changed = true;
    return;
  }
  asked = changed ? null : move; // a change of the form comes first
  waiting = asked !== move;
  changed = false;
  since = performance.now();
  const request = Object.fromEntries([...form.elements].filter((each) => each.name).map((each) => [each.name, each.value]));
  if (asked) request.move = { task: asked.task, before: asked.before };
  else if (!edited) delete request.grid;
  worker.postMessage(request);
  setTimeout(() => { if (since) tell("simulating …"); }, 200);
}

function refuse(part, error) {
  for (const place of form.querySelectorAll(".error")) {
    place.hidden = place.dataset.part !== part;
    place.textContent = place.hidden ? "" : error;
  }
}

function dataOf({ page: made }) {
  return unpacked(new DOMParser().parseFromString(made, "text/html").getElementById("data").textContent.trim());
}

async function display(answer) {
  refuse(answer.part, answer.error);
  page.classList.toggle("stale", Boolean(answer.error));
  if (answer.error) return;
  if (!edited) grid.value = answer.grid;
  grid.rows = Math.min(14, grid.value.split("\n").length + 1);
  show(await dataOf(answer));
}

form.addEventListener("input", ({ target }) => {
  move = null;
  changed = true;
  if (target === schedule) offer();
  if (target === grid) edited = true;
  else if (["schedule", "options", "meshes", "microbatches"].includes(target.name)) edited = false;
  undo.hidden = !edited;
  ask();
});
form.addEventListener("submit", (event) => event.preventDefault());
undo.addEventListener("click", () => {
  edited = false;
  undo.hidden = true;
  move = null;
  changed = true;
  ask();
});

if (location.protocol === "file:") tell("a browser runs no Python for a page of a file: `make docs-serve` serves it", true);
else start();

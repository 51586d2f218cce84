// The form of the playground. A worker simulates, and page.js, which every page of a schedule has, draws.
/* global show, unpacked, element */

const form = document.getElementById("form"), status = document.getElementById("status");
const page = document.getElementById("page"), undo = document.getElementById("undo");
const { schedule, options, grid } = form.elements;
const PATIENCE = 5000; // a change of the form waits this long for an older one, in milliseconds
let worker, since = 0, waiting = false, edited = false, known = {};

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
  if (answer) await display(answer);
  if (choices || waiting) ask();
}

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
    return;
  }
  waiting = false;
  since = performance.now();
  const request = Object.fromEntries([...form.elements].filter((each) => each.name).map((each) => [each.name, each.value]));
  if (!edited) delete request.grid;
  worker.postMessage(request);
  setTimeout(() => { if (since) tell("simulating …"); }, 200);
}

async function display({ grid: text, page: made, part, error }) {
  for (const place of form.querySelectorAll(".error")) {
    place.hidden = place.dataset.part !== part;
    place.textContent = place.hidden ? "" : error;
  }
  page.classList.toggle("stale", Boolean(error));
  if (error) return;
  if (!edited) grid.value = text;
  grid.rows = Math.min(14, grid.value.split("\n").length + 1);
  show(await unpacked(new DOMParser().parseFromString(made, "text/html").getElementById("data").textContent.trim()));
}

form.addEventListener("input", ({ target }) => {
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
  ask();
});

if (location.protocol === "file:") tell("a browser runs no Python for a page of a file: `make docs-serve` serves it", true);
else start();

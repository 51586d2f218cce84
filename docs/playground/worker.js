// Runs Python beside the page, which stays responsive. It tells the choices first, then answers one request at a time.
import { PYODIDE } from "./pyodide.js";

const ready = (async () => {
  const { loadPyodide } = await import(`${PYODIDE}pyodide.mjs`);
  const [python, archive] = await Promise.all([loadPyodide(), fetch("modules.zip").then((found) => found.arrayBuffer())]);
  python.unpackArchive(archive, "zip", { extractDir: "/modules" });
  python.runPython("import sys; sys.path.insert(0, '/modules')");
  return python.pyimport("play");
})();

async function answer(make) {
  try {
    postMessage(make(await ready));
  } catch (error) {
    postMessage({ failed: String(error.message ?? error) });
  }
}

onmessage = ({ data }) => answer((play) => ({ answer: JSON.parse(play.play(JSON.stringify(data))) }));
answer((play) => ({ choices: JSON.parse(play.choices()) }));

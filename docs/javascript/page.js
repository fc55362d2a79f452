// The page: load a release, and transform the rows that were typed. Rows never leave the browser.

import { openSubspace } from "./subspace.js";

const part = (id) => document.getElementById(id);

part("form").addEventListener("submit", async (event) => {
  event.preventDefault();
  try {
    const subspace = await openSubspace(part("registry").value, part("reference").value);
    const lines = part("rows").value.trim().split("\n");
    const rows = lines.map((line) => line.split(",").map((cell) => (cell.trim() === "" ? NaN : Number(cell))));
    const { privacy = {}, mechanism } = subspace.manifest;
    part("facts").textContent =
      `${subspace.nComponents} components of ${subspace.nFeatures} features by ${mechanism}; ` +
      (privacy.private === false ? "NOT PRIVATE" : `epsilon ${privacy.epsilon}, delta ${privacy.delta}`);
    part("scores").textContent = subspace.transform(rows).map((row) => row.join(",")).join("\n");
  } catch (error) {
    part("facts").textContent = error.message;
    part("scores").textContent = "";
  }
});

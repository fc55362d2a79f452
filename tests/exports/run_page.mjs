// Run docs/javascript/index.html in Node: apply its import map, load its module, then fill in and submit its form.
//
//     node run_page.mjs PAGE_FOLDER REGISTRY REFERENCE ROWS

import { readFileSync } from "node:fs";
import { register } from "node:module";
import { pathToFileURL } from "node:url";

const [folder, registry, reference, rows] = process.argv.slice(2);
const page = pathToFileURL(`${folder}/index.html`);
const html = readFileSync(page, "utf8");
const [, text] = /<script type="importmap">(.*?)<\/script>/s.exec(html);
const imports = Object.fromEntries(
  Object.entries(JSON.parse(text).imports).map(([name, path]) => [name, new URL(path, page).href]),
);
const hook = `
  const imports = ${JSON.stringify(imports)};
  export const resolve = (name, context, next) => {
    if (/^(node:|file:|data:|[./])/.test(name)) return next(name, context);
    if (imports[name] === undefined) throw new Error("the import map does not have " + name);
    return { url: imports[name], shortCircuit: true, format: "module" };
  };
`;
register(`data:text/javascript,${encodeURIComponent(hook)}`);

const ids = [...html.matchAll(/ id="(\w+)"/g)].map(([, id]) => id);
const parts = Object.fromEntries(ids.map((id) => [id, { value: "", textContent: "" }]));
let submit;
parts.form.addEventListener = (name, listener) => {
  if (name === "submit") submit = listener;
};
globalThis.document = { getElementById: (id) => parts[id] };
Object.assign(parts.registry, { value: registry });
Object.assign(parts.reference, { value: reference });
Object.assign(parts.rows, { value: rows });

const [, source] = /<script type="module" src="([^"]+)">/.exec(html);
await import(new URL(source, page).href);
await submit({ preventDefault() {} });
console.log(JSON.stringify({ facts: parts.facts.textContent, scores: parts.scores.textContent }));

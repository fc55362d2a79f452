// Read a released subspace in a browser or in Node, from the folder `registry` behind a web server.
//
//     const subspace = await openSubspace("https://data.example.org/registry", "census-map@champion");
//     const scores = subspace.transform([[1, 0, 2]]);
//
// Every file is checked against the digest of the artifact before zarrita sees it.

import * as zarr from "zarrita";

const FOLDER = "subspace.zarr";
const DIMENSIONS = { components: 2, eigenvalues: 1, spectrum: 1, further: 2, mean: 1, leading: 2, matrix: 1 };
const MOST_BYTES = 2 ** 30;
const REFERENCE = /^([a-z][a-z0-9._-]{0,99})(?:@(?:([1-9][0-9]{0,8})|([a-z][a-z0-9._-]{0,99})|sha256:([0-9a-f]{64})))?$/;

/** Load and verify `name`, `name@3`, `name@alias` or `name@sha256:...`. */
export async function openSubspace(registry, reference) {
  const root = registry.replace(/\/+$/, "");
  const digest = await findDigest(root, reference);
  const files = await readFiles(`${root}/artifacts/${digest}`);
  if ((await digestOf(files)) !== digest) {
    throw new Error(`artifact ${digest} is not what was published: its files have another digest`);
  }
  const manifest = parsed(files.get("manifest.json"));
  const store = { get: async (path) => files.get(FOLDER + path) };
  const array = async (name) => {
    const found = await zarr.open(zarr.root(store).resolve(name), { kind: "array" });
    return (await zarr.get(found)).data;
  };
  const components = await array("components");
  const mean = files.has(`${FOLDER}/mean/zarr.json`) ? await array("mean") : null;
  return new Subspace(manifest, components, mean);
}

/** Released components, one after another, and the mean around which they were taken. */
export class Subspace {
  constructor(manifest, components, mean) {
    this.manifest = manifest;
    this.components = components;
    this.mean = mean;
    this.nComponents = manifest.n_components;
    this.nFeatures = manifest.n_features;
    this.featureNames = manifest.feature_names ?? null;
  }

  /** Project rows of numbers, in the order of the release's features, onto the components. */
  transform(rows) {
    return rows.map((row) => {
      if (row.length !== this.nFeatures) {
        throw new Error(`a row of ${row.length} values; this subspace has ${this.nFeatures} features; pass one a feature`);
      }
      if (!row.every(Number.isFinite)) {
        throw new Error("a row holds what is no finite number; correct or drop it");
      }
      return Array.from({ length: this.nComponents }, (_, component) => {
        const start = component * this.nFeatures;
        return row.reduce((sum, value, at) => sum + (value - (this.mean?.[at] ?? 0)) * this.components[start + at], 0);
      });
    });
  }
}

async function findDigest(root, reference) {
  const [, name, version, alias, digest] = REFERENCE.exec(reference) ?? [];
  if (name === undefined) {
    throw new Error(`reference ${reference} is none of name, name@3, name@alias, name@sha256:<64 hex digits>`);
  }
  const pointer = parsed(await fetched(`${root}/names/${name}.json`));
  const versions = Object.keys(pointer.versions).map(Number);
  const meant =
    digest !== undefined
      ? versions.find((one) => pointer.versions[one] === digest)
      : version !== undefined
        ? Number(version)
        : alias !== undefined && alias !== "latest"
          ? pointer.aliases[alias]
          : Math.max(...versions);
  const found = pointer.versions[meant];
  if (!/^[0-9a-f]{64}$/.test(found ?? "")) {
    throw new Error(`${name} has no such version as ${reference}`);
  }
  return found;
}

/** Read the files of an artifact: a web server lists none, so each is named by what was read before it. */
async function readFiles(folder) {
  const files = new Map();
  const read = async (path, optional = false) => {
    const bytes = await fetched(`${folder}/${path}`, optional);
    if (bytes !== null) files.set(path, bytes);
    return bytes;
  };
  const manifest = parsed(await read("manifest.json"));
  if (manifest.format !== 1 || manifest.kind !== "private_subspace") {
    throw new Error(`artifact has format ${manifest.format} and kind ${manifest.kind}; this reads subspaces of format 1`);
  }
  await read(`${FOLDER}/zarr.json`);
  const named = Object.entries(DIMENSIONS).map(async ([name, sides]) => {
    const description = await read(`${FOLDER}/${name}/zarr.json`, true);
    if (description === null) return;
    const { shape, chunk_grid: grid } = parsed(description);
    const chunk = grid.configuration.chunk_shape;
    const bytes = 8 * Math.max(1, ...shape) * chunk.slice(1).reduce((one, other) => one * other, 1);
    if (shape.length !== sides || !(chunk[0] > 0) || !(bytes <= MOST_BYTES)) {
      throw new Error(`${name} is not stored in chunks of whole rows, or is too large for this reader`);
    }
    const paths = Array.from({ length: Math.ceil(shape[0] / chunk[0]) }, (_, at) => `c/${at}${"/0".repeat(sides - 1)}`);
    await Promise.all(paths.map((path) => read(`${FOLDER}/${name}/${path}`)));
  });
  await Promise.all(named);
  return files;
}

async function fetched(url, optional = false) {
  const answer = await fetch(url, { redirect: "error" });
  if (optional && [403, 404, 410].includes(answer.status)) return null;
  if (answer.status !== 200) throw new Error(`${url} answers ${answer.status}; it must answer 200`);
  return new Uint8Array(await answer.arrayBuffer());
}

/** SHA-256 of the sorted list of (path, size, SHA-256) of the files, in hex. */
async function digestOf(files) {
  const entries = await Promise.all([...files].map(async ([path, bytes]) => [path, bytes.length, await sha256(bytes)]));
  entries.sort(([one], [other]) => (one < other ? -1 : 1));
  return sha256(new TextEncoder().encode(JSON.stringify(entries)));
}

async function sha256(bytes) {
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
  return Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

function parsed(bytes) {
  return JSON.parse(new TextDecoder().decode(bytes));
}

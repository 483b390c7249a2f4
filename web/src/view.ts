// What a panel shows: from state and data to colored cells.

import { magma, niceTicks, paint, parseColor, place, viridis, type Scale } from "./colors";
import { cosines, meanQuery, queryAt, summarize } from "./cosine";
import type { Facet, Layer, Model, Store } from "./data";
import { cellsIn, indexAt, type Grid } from "./geometry";
import type { Range, State } from "./state";
import type { Examples, Method } from "./strokes";

export interface View {
  readonly grid: Grid;
  readonly values: Float32Array | null; // what the scale is for
  readonly pixels: Uint8ClampedArray<ArrayBuffer> | null; // RGBA; null until the scale is known
  readonly flagged: readonly number[]; // cells
  readonly dropped: Uint8Array | null; // 0 where a pruned model dropped the patch
  readonly title: string; // which block
  readonly note: string;
  readonly message: string; // instead of a map
}

export interface Labels {
  readonly examples: (model: Model, layer: Layer, facet: Facet) => Examples;
  readonly method: Method;
  readonly colors: readonly string[];
}

const EMPTY = { values: null, pixels: null, flagged: [], dropped: null, note: "", message: "" };
const PLURAL: Record<Facet, string> = { token: "tokens", key: "keys", query: "queries", value: "values" };

export function layerTitle(model: Model, layer: Layer): string {
  if (layer.block === null) return "output";
  return layer.output ? `output, block ${layer.block} of 0–${model.depth - 1}` : `block ${layer.block} of 0–${model.depth - 1}`;
}

export function viewOf(store: Store, state: State, model: Model, image: number, labels: Labels): View {
  const layer = store.layer(model, state.slot);
  const title = layerTitle(model, layer) + (store.has(model, state.slot) ? "" : ", all that is stored");
  const base: View = { ...EMPTY, grid: layer.facets.token!.grid, title };
  switch (state.mode) {
    case "similarity":
      return similarity(store, state, model, layer, image, base);
    case "attention":
      return attention(store, state, model, layer, image, base);
    case "norms":
      return norms(store, model, layer, image, base);
    case "components":
      return components(store, state, layer, image, base);
    case "mask":
      return mask(store, state, model, layer, image, base, labels);
    case "region":
      return region(store, state, model, layer, image, base);
  }
}

function similarity(store: Store, state: State, model: Model, layer: Layer, image: number, base: View): View {
  const entry = layer.facets[state.facet];
  if (!entry) return { ...base, message: `No ${PLURAL[state.facet]} are stored of this block.` };
  const own = store.channels(entry, state.image);
  const other = store.channels(entry, image);
  if (!own || !other) return { ...base, grid: entry.grid };
  const query = queryAt(own, indexAt(state.point, entry.grid, store.box(model, state.image)));
  const values = cosines(query, other);
  const { middle } = summarize(values);
  const dropped = layer.kept ? store.kept(layer.kept, image) : null;
  return { ...base, grid: entry.grid, values, dropped, note: `median ${middle.toFixed(2)}` };
}

/** Cosines with the mean of all tokens in the box. */
function region(store: Store, state: State, model: Model, layer: Layer, image: number, base: View): View {
  const entry = layer.facets[state.facet];
  if (!entry) return { ...base, message: `No ${PLURAL[state.facet]} are stored of this block.` };
  if (!state.region) return { ...base, message: "Draw a box on the image." };
  const own = store.channels(entry, state.image);
  const other = store.channels(entry, image);
  if (!own || !other) return { ...base, grid: entry.grid };
  const cells = cellsIn(state.region, entry.grid, store.box(model, state.image));
  const query = meanQuery(cells.map((cell) => queryAt(own, cell)), own.channels);
  return { ...base, grid: entry.grid, values: cosines(query, other), note: `mean of ${cells.length} token${cells.length > 1 ? "s" : ""}` };
}

function attention(store: Store, state: State, model: Model, layer: Layer, image: number, base: View): View {
  if (state.from < 0) {
    const entry = layer.patchAttention;
    if (image !== state.image) return { ...base, message: "Attention stays inside one image." };
    if (!entry) return { ...base, message: "The attention of patches is not stored of this block." };
    const cells = store.attention(entry, image);
    if (!cells) return { ...base, grid: entry.grid };
    const count = entry.grid[0] * entry.grid[1];
    const row = indexAt(state.point, entry.grid, store.box(model, image));
    return { ...base, grid: entry.grid, values: cells.slice(row * count, (row + 1) * count), note: "mean over heads" };
  }
  const entry = layer.prefixAttention;
  const index = entry?.rows.indexOf(store.prefixNames[state.from] ?? "") ?? -1;
  if (!entry || index < 0) return { ...base, message: "This model has no such token." };
  const rows = store.attention(entry, image);
  if (!rows) return { ...base, grid: entry.grid };
  const count = entry.grid[0] * entry.grid[1];
  const inside = entry.onPrefix[image]?.[index] ?? 0;
  const note = `${(100 * inside).toFixed(0)} % goes to prefix tokens`;
  return { ...base, grid: entry.grid, values: rows.slice(index * count, (index + 1) * count), note };
}

function norms(store: Store, model: Model, layer: Layer, image: number, base: View): View {
  const entry = model.norms;
  if (!entry || layer.block === null) return { ...base, message: "Norms are known of the blocks of a ViT only." };
  const all = store.norms(entry, image);
  if (!all) return { ...base, grid: entry.grid };
  const count = entry.grid[0] * entry.grid[1];
  const values = all.slice(layer.block * count, (layer.block + 1) * count);
  const flagged = entry.flagged[image]?.[String(layer.block)] ?? [];
  const median = entry.medians[image]?.[layer.block] ?? 0;
  const note = `${flagged.length} flagged, median ${Number(median.toPrecision(3))}`;
  return { ...base, grid: entry.grid, values, flagged, note };
}

function components(store: Store, state: State, layer: Layer, image: number, base: View): View {
  const entry = layer.facets[state.facet];
  if (!entry) return { ...base, message: `No ${PLURAL[state.facet]} are stored of this block.` };
  const tokens = store.channels(entry, image);
  if (!tokens) return { ...base, grid: entry.grid };
  const pixels = new Uint8ClampedArray(4 * tokens.count).fill(255);
  for (let c = 0; c < 3; c++) {
    const k = c + 1;
    const [low, high] = [entry.low[c] ?? 0, entry.high[c] ?? 0];
    for (let j = 0; j < tokens.count; j++) {
      const value = k < tokens.channels ? tokens.offset[k]! + tokens.scale[k]! * tokens.values[k * tokens.count + j]! : 0;
      pixels[4 * j + c] = high > low ? (255 * (value - low)) / (high - low) : 128;
    }
  }
  return { ...base, grid: entry.grid, pixels, note: "colors of this model's own" };
}

function mask(
  store: Store, state: State, model: Model, layer: Layer, image: number, base: View, labels: Labels,
): View {
  const entry = layer.facets[state.facet];
  if (!entry) return { ...base, message: `No ${PLURAL[state.facet]} are stored of this block.` };
  const tokens = store.channels(entry, image);
  if (!tokens) return { ...base, grid: entry.grid };
  const found = labels.examples(model, layer, state.facet).classify(tokens, labels.method);
  if (!found) return { ...base, grid: entry.grid, message: "Draw on the image with two classes." };
  const pixels = new Uint8ClampedArray(4 * found.length).fill(255);
  const totals = new Map<number, number>();
  found.forEach((kind, j) => {
    pixels.set(parseColor(labels.colors[kind]!), 4 * j);
    totals.set(kind, (totals.get(kind) ?? 0) + 1);
  });
  return { ...base, grid: entry.grid, pixels, note: `${totals.size} of ${labels.colors.length} classes` };
}

/** One scale for all panels: fixed, unless it is asked to follow the maps. */
export function scaleFor(state: State, views: readonly View[]): Scale | null {
  const fixed = { stretched: false, log: false };
  if (state.mode === "similarity" || state.mode === "region") {
    const [low, high] = state.range === "map" ? limits(views) : rangeOf(state.range);
    const stretched = state.range === "map";
    return { ...fixed, low, high, table: magma, unit: state.mode === "region" ? "cosine with the mean of the box, of the stored components" : "cosine", ticks: niceTicks(low, high), stretched };
  }
  if (state.mode === "attention") {
    const ticks = [0.125, 0.25, 0.5, 1, 2, 4, 8, 16, 32];
    return { ...fixed, low: 0.125, high: 32, log: true, table: viridis, unit: "attention, times an even share", ticks };
  }
  if (state.mode === "norms") {
    const ticks = [0.25, 0.5, 1, 2, 4];
    return { ...fixed, low: 0.25, high: 4, log: true, table: magma, unit: "norm, times the median of the image", ticks };
  }
  return null;
}

function rangeOf(range: Range): [number, number] {
  const [low, high] = range.split(",").map(Number);
  return [low ?? 0, high ?? 1];
}

function limits(views: readonly View[]): [number, number] {
  let [low, high] = [Infinity, -Infinity];
  for (const view of views) {
    for (const value of view.values ?? []) {
      low = Math.min(low, value);
      high = Math.max(high, value);
    }
  }
  return low < high ? [low, high] : [0, 1];
}

/** Fill in the colors of a view. */
export function colored(view: View, scale: Scale | null): View {
  if (!view.values || !scale) return view;
  return { ...view, pixels: paint(view.values, scale) };
}

export { place };

// Cosines of tokens from their stored channels, as clearvit/microscopy/channels.py explains.

import type { Channels } from "./decode";

/** One token, as coordinates. */
export interface Query {
  readonly values: Float64Array; // (K)
  readonly length: number;
  readonly rest: number;
}

export function queryAt(tokens: Channels, index: number): Query {
  const values = new Float64Array(tokens.channels);
  for (let k = 0; k < tokens.channels; k++) {
    values[k] = tokens.offset[k]! + tokens.scale[k]! * tokens.values[k * tokens.count + index]!;
  }
  return { values, length: tokens.length[index]!, rest: tokens.rest[index]! };
}

/** The mean of tokens as a query of unit length, as far as their coordinates go. */
export function meanQuery(queries: readonly Query[], channels: number): Query {
  const mean = new Float64Array(channels);
  for (const one of queries) for (let k = 0; k < channels; k++) mean[k]! += one.values[k]! / queries.length;
  const length = Math.sqrt(mean.reduce((sum, value) => sum + value * value, 0)) || 1;
  return { values: mean.map((value) => value / length), length: 1, rest: 0 };
}

/** Cosines of a query with all tokens of an image; the exponent is 8, three squarings. */
export function cosines(query: Query, tokens: Channels, out?: Float32Array): Float32Array {
  const { count, channels, offset, scale, values, length, rest } = tokens;
  const found = out?.length === count ? out : new Float32Array(count);
  let bias = 0;
  for (let k = 0; k < channels; k++) bias += query.values[k]! * offset[k]!;
  found.fill(bias);
  for (let k = 0; k < channels; k++) {
    const weight = query.values[k]! * scale[k]!;
    const start = k * count;
    for (let j = 0; j < count; j++) found[j]! += weight * values[start + j]!;
  }
  for (let j = 0; j < count; j++) {
    const known = found[j]!;
    let alike = Math.min(1, Math.max(0, known / (query.length * length[j]!)));
    alike *= alike;
    alike *= alike;
    alike *= alike;
    found[j] = Math.min(1, Math.max(-1, known + query.rest * rest[j]! * alike));
  }
  return found;
}

export function indexOfLargest(values: ArrayLike<number>): number {
  let best = 0;
  for (let j = 1; j < values.length; j++) if (values[j]! > values[best]!) best = j;
  return best;
}

export interface Summary {
  readonly low: number;
  readonly middle: number;
  readonly high: number;
}

/** Smallest, median and largest value. */
export function summarize(values: Float32Array): Summary {
  const sorted = values.slice().sort();
  return { low: sorted[0]!, middle: sorted[sorted.length >> 1]!, high: sorted[sorted.length - 1]! };
}

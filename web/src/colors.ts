// Color maps and the scales they are read by.

export type Rgb = readonly [number, number, number];

// Points of matplotlib's magma and viridis, which are in the public domain (CC0).
const MAGMA: readonly string[] = [
  "#000004", "#050416", "#100b2d", "#1d1147", "#2c115f", "#3f0f72", "#51127c", "#601880",
  "#721f81", "#832681", "#932b80", "#a5317e", "#b73779", "#c73d73", "#d8456c", "#e75263",
  "#f1605d", "#f8745c", "#fc8961", "#fd9b6b", "#feb078", "#fec488", "#fed799", "#fdebac",
  "#fcfdbf",
];
const VIRIDIS: readonly string[] = [
  "#440154", "#471063", "#481f70", "#472d7b", "#443983", "#404688", "#3b528b", "#365d8d",
  "#31688e", "#2c728e", "#287c8e", "#24868e", "#21918c", "#1f9a8a", "#20a486", "#28ae80",
  "#35b779", "#48c16e", "#5ec962", "#75d054", "#90d743", "#addc30", "#c8e020", "#e5e419",
  "#fde725",
];
export const magma = makeTable(MAGMA);
export const viridis = makeTable(VIRIDIS);

export const CLASS_COLORS: readonly string[] = [
  "#8a93a3", "#0b7fd6", "#e0701b", "#159a62", "#b04bc4", "#c9a006", "#d23c51", "#11a3b0",
];

/** 256 colors between points that lie at equal distances. */
export function makeTable(points: readonly string[]): Uint8ClampedArray {
  const parsed = points.map(parseColor);
  const table = new Uint8ClampedArray(256 * 3);
  for (let i = 0; i < 256; i++) {
    const place = (i / 255) * (parsed.length - 1);
    const left = Math.min(parsed.length - 2, Math.floor(place));
    for (let c = 0; c < 3; c++) {
      const from = parsed[left]![c]!;
      table[3 * i + c] = from + (place - left) * (parsed[left + 1]![c]! - from);
    }
  }
  return table;
}

export function parseColor(text: string): Rgb {
  const value = parseInt(text.slice(1), 16);
  return [value >> 16, (value >> 8) & 255, value & 255];
}

/** How values become places between 0 and 1 of a color map. */
export interface Scale {
  readonly low: number;
  readonly high: number;
  readonly log: boolean;
  readonly table: Uint8ClampedArray;
  readonly unit: string; // what the numbers are
  readonly ticks: readonly number[];
  readonly stretched: boolean; // to this one map
}

export function place(value: number, scale: Scale): number {
  const [low, high, v] = scale.log
    ? [Math.log2(scale.low), Math.log2(scale.high), Math.log2(Math.max(value, 1e-9))]
    : [scale.low, scale.high, value];
  return Math.min(1, Math.max(0, (v - low) / (high - low || 1)));
}

/** Colors of values, RGBA. */
export function paint(values: ArrayLike<number>, scale: Scale): Uint8ClampedArray<ArrayBuffer> {
  const pixels = new Uint8ClampedArray(values.length * 4);
  for (let j = 0; j < values.length; j++) {
    const at = 3 * Math.round(255 * place(values[j]!, scale));
    pixels[4 * j] = scale.table[at]!;
    pixels[4 * j + 1] = scale.table[at + 1]!;
    pixels[4 * j + 2] = scale.table[at + 2]!;
    pixels[4 * j + 3] = 255;
  }
  return pixels;
}

/** About five round numbers between two ends. */
export function niceTicks(low: number, high: number): number[] {
  const span = high - low;
  if (!(span > 0)) return [low];
  const raw = span / 4;
  const power = 10 ** Math.floor(Math.log10(raw));
  const size = [1, 2, 2.5, 5, 10].map((m) => m * power).find((m) => m >= raw) ?? raw;
  const ticks = [];
  for (let t = Math.ceil(low / size - 1e-9) * size; t <= high + 1e-9 * span; t += size) {
    ticks.push(Math.abs(t) < size * 1e-6 ? 0 : Number(t.toPrecision(6)));
  }
  return ticks;
}

export function cssGradient(table: Uint8ClampedArray): string {
  const stops = [];
  for (let i = 0; i <= 255; i += 15) {
    stops.push(`rgb(${table[3 * i]} ${table[3 * i + 1]} ${table[3 * i + 2]})`);
  }
  return `linear-gradient(to right, ${stops.join(", ")})`;
}

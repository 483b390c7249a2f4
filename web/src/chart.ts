// Norms by block, one small chart per model.

import { svg } from "./dom";
import type { Norms } from "./data";

const WIDTH = 360;
const HEIGHT = 150;
const LEFT = 34;
const RIGHT = 10;
const TOP = 12;
const BOTTOM = 26;

export interface ChartData {
  readonly norms: Norms;
  readonly values: Float32Array; // (L, N), times the median
  readonly token: number; // the token whose norms are drawn
  readonly block: number | null; // that is shown
  readonly label: string;
}

export function drawChart(data: ChartData): SVGElement {
  const depth = data.norms.cutoffs.length;
  const count = data.norms.grid[0] * data.norms.grid[1];
  const { low, high, own } = ranges(data, depth, count);
  const [bottom, top] = [Math.min(0.5, ...low) * 0.9, Math.max(2, ...high) * 1.1];
  const x = (block: number): number => LEFT + ((block + 0.5) / depth) * (WIDTH - LEFT - RIGHT);
  const y = (value: number): number =>
    TOP + (1 - Math.log(value / bottom) / Math.log(top / bottom)) * (HEIGHT - TOP - BOTTOM);
  const line = (values: readonly number[]): string =>
    values.map((value, block) => `${block ? "L" : "M"}${x(block).toFixed(1)} ${y(value).toFixed(1)}`).join("");
  const band = `${line(high)}${[...low].map((v, b) => [v, b] as const).reverse().map(([v, b]) => `L${x(b).toFixed(1)} ${y(v).toFixed(1)}`).join("")}Z`;
  const onset = data.norms.onset;
  const children = [
    svg("title", {}, [describe(data, own)]),
    ...[0.25, 0.5, 1, 2, 4, 8, 16].filter((v) => v >= bottom && v <= top).flatMap((v) => [
      svg("path", { class: "grid", d: `M${LEFT} ${y(v)}H${WIDTH - RIGHT}` }),
      svg("text", { class: "axis", x: LEFT - 6, y: y(v) + 3.5, "text-anchor": "end" }, [v < 1 ? `1⁄${1 / v}` : `${v}×`]),
    ]),
    data.block !== null && svg("rect", { class: "now", x: x(data.block) - 0.5 * (x(1) - x(0)), y: TOP, width: Math.max(2, x(1) - x(0)), height: HEIGHT - TOP - BOTTOM }),
    svg("path", { class: "band", d: band }),
    ...cutoffLines(data, x, y),
    svg("path", { class: "own", d: line(own) }),
    ...own.map((value, block) => svg("circle", { class: "dot", cx: x(block), cy: y(value), r: block === data.block ? 3.5 : 2 })),
    ...Array.from({ length: depth }, (_, block) => block)
      .filter((block) => depth <= 14 || block % 3 === 0)
      .map((block) => svg("text", { class: "axis", x: x(block), y: HEIGHT - 10, "text-anchor": "middle" }, [String(block)])),
    onset !== null && svg("text", { class: "onset", x: x(onset), y: TOP + 2, "text-anchor": "middle" }, ["onset"]),
  ];
  return svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", class: "chart" }, children);
}

function ranges(data: ChartData, depth: number, count: number): { low: number[]; high: number[]; own: number[] } {
  const low: number[] = [];
  const high: number[] = [];
  const own: number[] = [];
  for (let block = 0; block < depth; block++) {
    const values = data.values.subarray(block * count, (block + 1) * count);
    low.push(values.reduce((a, b) => Math.min(a, b), Infinity));
    high.push(values.reduce((a, b) => Math.max(a, b), 0));
    own.push(values[data.token]!);
  }
  return { low, high, own };
}

function cutoffLines(data: ChartData, x: (b: number) => number, y: (v: number) => number): SVGElement[] {
  const half = (x(1) - x(0)) / 2 || 5;
  return data.norms.cutoffs.flatMap((cutoff, block) =>
    [cutoff.high, cutoff.low].flatMap((value) =>
      value === undefined ? [] : [svg("path", { class: "cut", d: `M${x(block) - half} ${y(value)}H${x(block) + half}` })],
    ),
  );
}

function describe(data: ChartData, own: readonly number[]): string {
  const numbers = own.map((value, block) => `block ${block}: ${value.toFixed(2)}`).join(", ");
  return `${data.label}: norm of this token by block, times the median: ${numbers}. ${data.norms.verdict}`;
}

// Strokes of classes, the mask they give, and the file that `clearvit segment` reads.

import { cosines, meanQuery, queryAt, type Query } from "./cosine";
import type { Channels } from "./decode";
import { centerOf, type Box, type Grid, type Point } from "./geometry";

export interface Stroke {
  readonly image: number;
  readonly class: number;
  readonly points: Point[]; // fractions of the image
  readonly radius: number; // pixels of the original
}

export interface StrokeFile {
  readonly format: "clearvit-strokes";
  readonly version: 1;
  readonly classes: readonly string[];
  readonly images: readonly {
    readonly image: string;
    readonly width: number;
    readonly height: number;
    readonly strokes: readonly {
      readonly class: string;
      readonly points: readonly (readonly [number, number])[];
      readonly radius: number;
    }[];
  }[];
}

interface Sized {
  readonly name: string;
  readonly width: number;
  readonly height: number;
}

export type Method = "prototype" | "neighbors";
const NEIGHBORS = 5;
const MOST_NEIGHBORS = 400; // labeled tokens of a class that are asked

export function toFile(strokes: readonly Stroke[], classes: readonly string[], images: readonly Sized[]): StrokeFile {
  const used = [...new Set(strokes.map((stroke) => stroke.image))].sort((a, b) => a - b);
  return {
    format: "clearvit-strokes",
    version: 1,
    classes: [...classes],
    images: used.map((number) => {
      const image = images[number]!;
      const own = strokes.filter((stroke) => stroke.image === number);
      return {
        image: image.name,
        width: image.width,
        height: image.height,
        strokes: own.map((stroke) => ({
          class: classes[stroke.class]!,
          points: stroke.points.map((p) => [round(p.x * image.width), round(p.y * image.height)] as const),
          radius: round(stroke.radius),
        })),
      };
    }),
  };
}

/** Read a file back; images that the page does not hold are left out and counted. */
export function fromFile(content: unknown, images: readonly Sized[]): { strokes: Stroke[]; classes: string[]; unknown: number } {
  const file = content as StrokeFile;
  const wrong = new Error("this is no file of strokes that this page wrote");
  if (file?.format !== "clearvit-strokes" || file.version !== 1) throw wrong;
  if (!Array.isArray(file.classes) || !Array.isArray(file.images)) throw wrong;
  const classes = file.classes.map(String);
  const strokes: Stroke[] = [];
  let unknown = 0;
  for (const entry of file.images) {
    const number = images.findIndex((image) => image.name === entry.image);
    const image = images[number];
    if (!image) {
      unknown++;
      continue;
    }
    for (const stroke of entry.strokes) {
      const kind = classes.indexOf(stroke.class);
      const points = stroke.points.map(([x, y]: readonly [number, number]): Point => ({ x: x / entry.width, y: y / entry.height }));
      if (kind < 0 || !points.every((p: Point) => p.x >= 0 && p.x <= 1 && p.y >= 0 && p.y <= 1)) throw wrong;
      strokes.push({ image: number, class: kind, points, radius: Number(stroke.radius) });
    }
  }
  return { strokes, classes, unknown };
}

function round(value: number): number {
  return Math.round(value * 10) / 10;
}

/** Class of every cell that a stroke of this image covers, or -1; later strokes win. */
export function labelCells(strokes: readonly Stroke[], image: number, size: Sized, grid: Grid, box: Box): Int16Array {
  const labels = new Int16Array(grid[0] * grid[1]).fill(-1);
  const half = { x: ((box[2] - box[0]) / grid[1]) * size.width * 0.5, y: ((box[3] - box[1]) / grid[0]) * size.height * 0.5 };
  for (const stroke of strokes) {
    if (stroke.image !== image) continue;
    for (let j = 0; j < labels.length; j++) {
      const center = centerOf(j, grid, box);
      if (touches(stroke, center.x * size.width, center.y * size.height, half, size)) labels[j] = stroke.class;
    }
  }
  return labels;
}

function touches(stroke: Stroke, x: number, y: number, half: Point, size: Sized): boolean {
  const at = (p: Point): [number, number] => [p.x * size.width, p.y * size.height];
  for (let i = 0; i < stroke.points.length; i++) {
    const [ax, ay] = at(stroke.points[Math.max(0, i - 1)]!);
    const [bx, by] = at(stroke.points[i]!);
    const span = (bx - ax) ** 2 + (by - ay) ** 2;
    const t = span ? Math.min(1, Math.max(0, ((x - ax) * (bx - ax) + (y - ay) * (by - ay)) / span)) : 0;
    const [dx, dy] = [Math.abs(ax + t * (bx - ax) - x), Math.abs(ay + t * (by - ay) - y)];
    if (dx <= half.x && dy <= half.y) return true; // it passes through the cell
    if (dx * dx + dy * dy <= stroke.radius ** 2) return true; // or covers its center
  }
  return false;
}

/** Tokens below strokes, by class. */
export class Examples {
  readonly queries: Query[][] = [];

  add(labels: Int16Array, tokens: Channels): void {
    labels.forEach((kind, j) => {
      if (kind >= 0) (this.queries[kind] ??= []).push(queryAt(tokens, j));
    });
  }

  get classes(): number[] {
    return this.queries.flatMap((own, kind) => (own?.length ? [kind] : []));
  }

  /** The class of every token, or null while fewer than two classes have examples. */
  classify(tokens: Channels, method: Method): Int16Array | null {
    if (this.classes.length < 2) return null;
    const best = new Float32Array(tokens.count).fill(-Infinity);
    const labels = new Int16Array(tokens.count);
    for (const kind of this.classes) {
      const own = this.queries[kind]!;
      const scores = method === "prototype" ? prototypeScores(own, tokens) : neighborScores(own, tokens);
      for (let j = 0; j < tokens.count; j++) {
        if (scores[j]! > best[j]!) {
          best[j] = scores[j]!;
          labels[j] = kind;
        }
      }
    }
    return labels;
  }
}

/** Cosine with the mean of the examples. */
function prototypeScores(examples: readonly Query[], tokens: Channels): Float32Array {
  return cosines(meanQuery(examples, tokens.channels), tokens);
}

/** Mean cosine with the five most similar examples. */
function neighborScores(examples: readonly Query[], tokens: Channels): Float32Array {
  const every = Math.ceil(examples.length / MOST_NEIGHBORS);
  const asked = examples.filter((_, i) => i % every === 0);
  const count = Math.min(NEIGHBORS, asked.length);
  const top = Array.from({ length: count }, () => new Float32Array(tokens.count).fill(-1));
  for (const one of asked) {
    const found = cosines(one, tokens);
    for (let j = 0; j < found.length; j++) {
      let value = found[j]!;
      for (let r = 0; r < count && value > -1; r++) {
        const row = top[r]!;
        if (value > row[j]!) [row[j], value] = [value, row[j]!];
      }
    }
  }
  return Float32Array.from({ length: tokens.count }, (_, j) => top.reduce((sum, row) => sum + row[j]!, 0) / count);
}

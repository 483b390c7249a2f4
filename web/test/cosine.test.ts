import { describe, expect, it } from "vitest";
import { cosines, queryAt } from "../src/cosine";
import { readAttention, readChannels, readNorms } from "../src/decode";
import { cellAt, centerOf, indexAt, step } from "../src/geometry";
import { firstState, fromHash, toHash } from "../src/state";
import { Examples, fromFile, labelCells, toFile } from "../src/strokes";

function channels(rows: number[][]) {
  const [count, k] = [rows.length, rows[0]!.length];
  const bytes = new Uint8Array(8 * k + k * count);
  new Float32Array(bytes.buffer, 0, 2 * k).set([...Array(k).fill(0), ...Array(k).fill(0.01)]);
  const values = new Int8Array(bytes.buffer, 8 * k);
  rows.forEach((row, j) => row.forEach((value, i) => (values[i * count + j] = Math.round(value * 100))));
  return readChannels(bytes, k);
}

const tokens = channels([[0.6, 0.8], [0.8, 0.6], [-0.6, 0.8], [0.3, 0.4]]);

describe("cosines", () => {
  it("are dot products where nothing is left out", () => {
    const found = cosines(queryAt(tokens, 0), tokens);
    expect(found[0]).toBeCloseTo(1, 5);
    expect(found[1]).toBeCloseTo(0.96, 5);
    expect(found[2]).toBeCloseTo(0.28, 5);
  });
  it("of a token with itself are 1 whatever is left out", () => {
    expect(cosines(queryAt(tokens, 3), tokens)[3]).toBeCloseTo(1, 5);
  });
});

describe("codes", () => {
  it("give back norms and attention", () => {
    expect(readNorms(new Uint8Array([0, 255]))).toEqual(new Float32Array([1 / 16, 16]));
    expect(readAttention(new Uint8Array([0, 1, 128, 255]))).toEqual(new Float32Array([0, 1 / 256, 1, 256]));
  });
});

describe("geometry", () => {
  it("finds the cell of its own center, also in a part of the image", () => {
    for (let index = 0; index < 12; index++) {
      expect(indexAt(centerOf(index, [3, 4], [0.1, 0.2, 0.7, 0.9]), [3, 4], [0.1, 0.2, 0.7, 0.9])).toBe(index);
    }
    expect(cellAt({ x: 0.99, y: -3 }, [3, 4])).toEqual({ row: 0, column: 3 });
  });
  it("stays inside when it steps", () => {
    expect(cellAt(step({ x: 0, y: 0 }, -1, 9, [3, 4]), [3, 4])).toEqual({ row: 0, column: 3 });
  });
});

describe("the address", () => {
  it("holds the state", () => {
    const state = { ...firstState(4), image: 2, point: { x: 0.25, y: 0.75 }, pinned: true, mode: "norms" as const };
    expect(fromHash(`#${toHash(state)}`, firstState(4), { images: 3, slots: 4 })).toEqual(state);
  });
  it("ignores what is wrong", () => {
    const hash = "#image=99&mode=x&x=7&slot=-1&facet=%3Cb%3E&range=2";
    expect(fromHash(hash, firstState(2), { images: 3, slots: 2 })).toEqual(firstState(2));
  });
});

describe("strokes", () => {
  const images = [{ name: "a.jpg", width: 200, height: 100 }];
  const strokes = [{ image: 0, class: 1, points: [{ x: 0.1, y: 0.5 }, { x: 0.4, y: 0.5 }], radius: 6 }];
  it("become a file in pixels, and come back", () => {
    const file = toFile(strokes, ["background", "dog"], images);
    expect(file.images[0]!.strokes[0]).toEqual({ class: "dog", points: [[20, 50], [80, 50]], radius: 6 });
    expect(fromFile(file, images).strokes).toEqual(strokes);
    expect(() => fromFile({ format: "other" }, images)).toThrow();
  });
  it("label the cells they touch and give a mask", () => {
    const labels = labelCells(strokes, 0, images[0]!, [2, 4], [0, 0, 1, 1]);
    expect([...labels].filter((one) => one === 1).length).toBeGreaterThanOrEqual(2);
    const examples = new Examples();
    examples.add(new Int16Array([0, -1, 1, -1]), tokens);
    for (const method of ["prototype", "neighbors"] as const) {
      expect([...examples.classify(tokens, method)!].slice(0, 3)).toEqual([0, 0, 1]);
    }
  });
});

// What is being looked at; it stands in the address, so that a link shows the same.

import { FACETS, type Facet } from "./data";
import type { Box, Point } from "./geometry";

export type Mode = "similarity" | "attention" | "norms" | "components" | "mask" | "region";
export const MODES: readonly Mode[] = ["similarity", "attention", "norms", "components", "mask", "region"];
export type Range = "0,1" | "-1,1" | "0.5,1" | "map";
export const RANGES: readonly Range[] = ["0,1", "-1,1", "0.5,1", "map"];

export interface State {
  readonly image: number;
  readonly second: number; // -1 for none
  readonly mode: Mode;
  readonly slot: number; // of the blocks that are stored; the last is the output
  readonly facet: Facet;
  readonly from: number; // -1 the patch, else a prefix token
  readonly point: Point;
  readonly pinned: boolean;
  readonly region: Box | null; // of the image, in fractions
  readonly range: Range;
  readonly photo: number; // how much of the photo shows through the maps, 0..1
}

export function firstState(slots: number): State {
  return {
    image: 0,
    second: -1,
    mode: "similarity",
    slot: slots - 1,
    facet: "token",
    from: -1,
    point: { x: 0.5, y: 0.5 },
    pinned: false,
    region: null,
    range: "0,1",
    photo: 0,
  };
}

export function toHash(state: State): string {
  const { point, region, ...rest } = state;
  const box = region ? { region: region.map((value) => value.toFixed(4)).join(",") } : {};
  const values = { ...rest, ...box, pinned: Number(state.pinned), x: point.x.toFixed(4), y: point.y.toFixed(4) };
  const known: Record<string, string> = {};
  for (const [key, value] of Object.entries(values)) known[key] = String(value);
  return new URLSearchParams(known).toString();
}

/** Read an address; whatever in it is wrong or missing stays as it is. */
export function fromHash(hash: string, state: State, counts: { images: number; slots: number }): State {
  const given = new URLSearchParams(hash.replace(/^#/, ""));
  const whole = (key: string, low: number, high: number, otherwise: number): number => {
    const text = given.get(key);
    const value = text === null || text === "" ? NaN : Number(text);
    return Number.isInteger(value) && value >= low && value <= high ? value : otherwise;
  };
  const fraction = (key: string, otherwise: number): number => {
    const text = given.get(key);
    const value = text === null || text === "" ? NaN : Number(text);
    return value >= 0 && value <= 1 ? value : otherwise;
  };
  const word = <T extends string>(key: string, words: readonly T[], otherwise: T): T =>
    words.find((one) => one === given.get(key)) ?? otherwise;
  const box = (otherwise: Box | null): Box | null => {
    const [left, top, right, bottom, ...more] = (given.get("region") ?? "").split(",").map((text) => (text ? Number(text) : NaN));
    const inside = (low: number | undefined, high: number | undefined): boolean => low! >= 0 && low! < high! && high! <= 1;
    return inside(left, right) && inside(top, bottom) && !more.length ? [left!, top!, right!, bottom!] : otherwise;
  };
  return {
    image: whole("image", 0, counts.images - 1, state.image),
    second: whole("second", -1, counts.images - 1, state.second),
    mode: word("mode", MODES, state.mode),
    slot: whole("slot", 0, counts.slots - 1, state.slot),
    facet: word("facet", FACETS, state.facet),
    from: whole("from", -1, 255, state.from),
    point: { x: fraction("x", state.point.x), y: fraction("y", state.point.y) },
    pinned: whole("pinned", 0, 1, Number(state.pinned)) === 1,
    region: box(state.region),
    range: word("range", RANGES, state.range),
    photo: fraction("photo", state.photo),
  };
}

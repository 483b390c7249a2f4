// A part of an image: drawn, shown, and copied as the command that searches for it.

import type { ImageEntry } from "./data";
import { copyText, h } from "./dom";
import type { Box, Point } from "./geometry";

const SMALLEST = 0.01; // of a side of the image; less is a click and no region

/** The box between two corners, or null where they lie too close together. */
export function boxBetween(a: Point, b: Point): Box | null {
  const box: Box = [Math.min(a.x, b.x), Math.min(a.y, b.y), Math.max(a.x, b.x), Math.max(a.y, b.y)];
  return box[2] - box[0] >= SMALLEST && box[3] - box[1] >= SMALLEST ? box : null;
}

/** A box in whole pixels of the original image: left, top, right, bottom. */
export function toPixels(box: Box, image: { readonly width: number; readonly height: number }): readonly [number, number, number, number] {
  const low = (value: number, side: number): number => Math.max(0, Math.min(side - 1, Math.floor(value * side + 1e-6)));
  const high = (value: number, side: number): number => Math.max(1, Math.min(side, Math.ceil(value * side - 1e-6)));
  return [low(box[0], image.width), low(box[1], image.height), high(box[2], image.width), high(box[3], image.height)];
}

/** A word for a shell of POSIX, quoted where it has to be. */
export function quote(word: string): string {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'"'"'`)}'`;
}

export function searchCommand(image: ImageEntry, box: Box): string {
  return `clearvit search index/ ${quote(image.name)} --region ${toPixels(box, image).join(",")}`;
}

export type SearchRegion = (image: number, pixels: readonly [number, number, number, number]) => void;

/** What stands below the controls while a region is drawn. */
export class RegionTool {
  anchor: Point | null = null; // the first corner, while the second one is looked for
  private image = 0;
  private box: Box | null = null;
  private readonly images: readonly ImageEntry[];
  private readonly command = h("code", { class: "command" });
  private readonly said = h("span", { class: "faint", role: "status" });
  private readonly copy = h("button", { type: "button" }, ["Copy command"], { onclick: () => void this.copyCommand() });
  private readonly find = h("button", { type: "button" }, ["Search this region"]);
  readonly element: HTMLElement;

  constructor(images: readonly ImageEntry[], search: SearchRegion | null) {
    this.images = images;
    this.find.hidden = !search;
    this.find.addEventListener("click", () => {
      if (this.box) search?.(this.image, toPixels(this.box, images[this.image]!));
    });
    this.element = h("section", { class: "labeling", "aria-label": "Region" }, [
      h("div", { class: "tools-row" }, [this.command, this.copy, this.find, this.said]),
    ]);
  }

  show(image: number, box: Box | null): void {
    if (image === this.image && box === this.box && this.command.textContent) return;
    [this.image, this.box] = [image, box];
    this.copy.disabled = this.find.disabled = !box;
    this.said.textContent = "";
    this.command.textContent = box
      ? searchCommand(this.images[image]!, box)
      : "Draw a box on the image, or press Enter on two of its corners. The maps show the cosine with the mean of the box.";
    this.command.classList.toggle("empty", !box);
  }

  private async copyCommand(): Promise<void> {
    const copied = await copyText(this.command.textContent ?? "");
    if (!copied) getSelection()?.selectAllChildren(this.command);
    this.said.textContent = copied ? "Copied." : "Selected; copy it with the keys of your browser.";
  }
}

/** Draw a box on the photo. */
export function boxOverlay(box: Box): (context: CanvasRenderingContext2D, width: number, height: number) => void {
  return (context, width, height) => {
    const place = [box[0] * width, box[1] * height, (box[2] - box[0]) * width, (box[3] - box[1]) * height] as const;
    for (const [line, color] of [[4, "rgb(0 0 0 / 75%)"], [2, "#ffffff"]] as const) {
      context.lineWidth = line;
      context.strokeStyle = color;
      context.strokeRect(...place);
    }
  };
}

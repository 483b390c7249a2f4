// One canvas: the photo, a map over it, the patch that is looked at, flagged tokens.

import { h } from "./dom";
import { cellAt, type Box, type Grid, type Point } from "./geometry";
import type { View } from "./view";

export interface Drawing {
  readonly photo: HTMLImageElement;
  readonly aspect: number; // height / width of the image
  readonly box: Box;
  readonly view: View | null; // null: the photo alone
  readonly through: number; // how much of the photo shows through, 0..1
  readonly marks: readonly { readonly point: Point; readonly grid: Grid; readonly color: string }[];
  readonly overlay?: (context: CanvasRenderingContext2D, width: number, height: number) => void;
}

export class Panel {
  readonly canvas = h("canvas", { tabindex: 0, role: "application", "aria-roledescription": "patches of an image" });
  private readonly title = h("span", { class: "name" });
  private readonly block = h("span", { class: "block" });
  private readonly note = h("span", { class: "note" });
  private readonly message = h("p", { class: "message" });
  readonly element = h("figure", { class: "panel" }, [
    h("figcaption", {}, [this.title, this.block]),
    h("div", { class: "frame" }, [this.canvas, this.message]),
    this.note,
  ]);
  private readonly cells = document.createElement("canvas");
  private readonly resized = { canvas: document.createElement("canvas"), photo: null as HTMLImageElement | null };
  private pixels: Uint8ClampedArray | null = null;
  private measured = 0; // width of the frame; to ask for it in every frame would lay the page out again

  constructor() {
    new ResizeObserver(([entry]) => (this.measured = entry!.contentRect.width)).observe(this.canvas.parentElement!);
  }

  /** Draw; costs about a millisecond. */
  draw(title: string, drawing: Drawing): void {
    const { canvas } = this;
    const { view } = drawing;
    write(this.title, title);
    write(this.block, view?.title ?? "");
    write(this.note, view?.note ?? "");
    write(this.message, view?.message ?? "");
    this.message.hidden = !view?.message;
    const ratio = Math.min(2, window.devicePixelRatio || 1);
    const width = Math.max(1, Math.round((this.measured || canvas.parentElement?.clientWidth || 320) * ratio));
    const height = Math.max(1, Math.round(width * drawing.aspect));
    if (canvas.width !== width || canvas.height !== height) [canvas.width, canvas.height] = [width, height];
    const context = canvas.getContext("2d")!;
    this.paint(context, width, height, drawing);
  }

  /** Draw on any canvas of any size. */
  paint(context: CanvasRenderingContext2D, width: number, height: number, drawing: Drawing): void {
    const { view, box } = drawing;
    const opaque = view?.pixels && drawing.through === 0 && box[0] === 0 && box[1] === 0;
    if (!opaque) {
      const photo = this.photoAt(drawing.photo, width, height);
      if (photo) context.drawImage(photo, 0, 0);
      else context.clearRect(0, 0, width, height);
    }
    const [left, top] = [box[0] * width, box[1] * height];
    const [across, down] = [(box[2] - box[0]) * width, (box[3] - box[1]) * height];
    if (view?.pixels) {
      this.fill(view);
      context.imageSmoothingEnabled = false;
      context.globalAlpha = 1 - drawing.through;
      context.drawImage(this.cells, left, top, across, down);
      context.globalAlpha = 1;
    }
    if (view) this.outline(context, view, [left, top, across, down]);
    drawing.overlay?.(context, width, height);
    for (const mark of drawing.marks) {
      const { row, column } = cellAt(mark.point, mark.grid, box);
      const [h0, w0] = [down / mark.grid[0], across / mark.grid[1]];
      frame(context, left + column * w0, top + row * h0, w0, h0, mark.color);
    }
  }

  /** The photo at the size of the panel; resizing it well takes longer than all the rest of a frame. */
  private photoAt(photo: HTMLImageElement, width: number, height: number): HTMLCanvasElement | null {
    if (!photo.complete || !photo.naturalWidth) return null;
    const [across, down] = [Math.round(width), Math.round(height)];
    const { canvas } = this.resized;
    if (this.resized.photo === photo && canvas.width === across && canvas.height === down) return canvas;
    [canvas.width, canvas.height] = [across, down];
    const context = canvas.getContext("2d")!;
    context.imageSmoothingQuality = "high";
    context.drawImage(photo, 0, 0, across, down);
    this.resized.photo = photo;
    return canvas;
  }

  private fill(view: View): void {
    const [rows, columns] = view.grid;
    if (this.pixels === view.pixels) return;
    if (this.cells.width !== columns || this.cells.height !== rows) {
      [this.cells.width, this.cells.height] = [columns, rows];
    }
    this.cells.getContext("2d")!.putImageData(new ImageData(view.pixels!, columns, rows), 0, 0);
    this.pixels = view.pixels;
  }

  /** Show flagged tokens by a frame, dropped patches by a dot. */
  private outline(context: CanvasRenderingContext2D, view: View, place: readonly [number, number, number, number]): void {
    const [left, top, across, down] = place;
    const [h0, w0] = [down / view.grid[0], across / view.grid[1]];
    for (const index of view.flagged) {
      const [row, column] = [Math.floor(index / view.grid[1]), index % view.grid[1]];
      frame(context, left + column * w0, top + row * h0, w0, h0, "#35c3ff");
    }
    if (!view.dropped || view.dropped.length !== view.grid[0] * view.grid[1]) return;
    context.fillStyle = "rgb(255 255 255 / 70%)";
    view.dropped.forEach((kept, index) => {
      if (kept) return;
      const [row, column] = [Math.floor(index / view.grid[1]), index % view.grid[1]];
      context.fillRect(left + (column + 0.4) * w0, top + (row + 0.4) * h0, 0.2 * w0, 0.2 * h0);
    });
  }

  /** The point of the image below a pointer. */
  pointAt(event: PointerEvent): Point {
    const frame = this.canvas.getBoundingClientRect();
    const inside = (value: number): number => Math.min(0.99999, Math.max(0, value));
    return {
      x: inside((event.clientX - frame.left) / frame.width),
      y: inside((event.clientY - frame.top) / frame.height),
    };
  }
}

/** A frame that can be seen on any color. */
function frame(context: CanvasRenderingContext2D, x: number, y: number, width: number, height: number, color: string): void {
  const line = Math.max(1.5, Math.min(3, width / 5));
  context.lineWidth = line * 2;
  context.strokeStyle = "rgb(0 0 0 / 75%)";
  context.strokeRect(x, y, width, height);
  context.lineWidth = line;
  context.strokeStyle = color;
  context.strokeRect(x, y, width, height);
}

function write(element: HTMLElement, text: string): void {
  if (element.textContent !== text) element.textContent = text;
}

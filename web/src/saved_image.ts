// What is seen as one PNG: panels with their names, the scale with its numbers, where it is from.

import { place, type Scale } from "./colors";
import { format } from "./legend";
import type { Drawing, Panel } from "./panel";

export interface Shown {
  readonly panel: Panel;
  readonly title: string;
  readonly drawing: Drawing;
}

const WIDTH = 480;
const GAP = 16;
const HEAD = 44;
const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif";

/** Draw rows of panels; the caption says what they are. */
export function compose(rows: readonly (readonly Shown[])[], scale: Scale | null, caption: string): HTMLCanvasElement {
  const columns = Math.max(...rows.map((row) => row.length));
  const heights = rows.map((row) => HEAD + WIDTH * Math.max(...row.map((one) => one.drawing.aspect)));
  const canvas = document.createElement("canvas");
  canvas.width = GAP + columns * (WIDTH + GAP);
  canvas.height = Math.round(GAP + heights.reduce((sum, one) => sum + one + GAP, 0) + (scale ? 64 : 0) + 34);
  const context = canvas.getContext("2d")!;
  context.fillStyle = "#ffffff";
  context.fillRect(0, 0, canvas.width, canvas.height);
  let top = GAP;
  rows.forEach((row, r) => {
    row.forEach((one, c) => panelAt(context, one, GAP + c * (WIDTH + GAP), top));
    top += heights[r]! + GAP;
  });
  if (scale) {
    scaleAt(context, scale, GAP, top, Math.min(640, canvas.width - 2 * GAP));
    top += 64;
  }
  context.fillStyle = "#596070";
  context.font = `14px ${FONT}`;
  context.fillText(caption, GAP, top + 12, canvas.width - 2 * GAP);
  return canvas;
}

function panelAt(context: CanvasRenderingContext2D, one: Shown, x: number, y: number): void {
  context.fillStyle = "#1d2330";
  context.font = `600 17px ${FONT}`;
  context.fillText(one.title, x, y + 16, WIDTH);
  context.fillStyle = "#596070";
  context.font = `13px ${FONT}`;
  const view = one.drawing.view;
  context.fillText(view ? [view.title, view.note || view.message].filter(Boolean).join(" · ") : "", x, y + 35, WIDTH);
  context.save();
  context.translate(x, y + HEAD);
  context.beginPath();
  const height = WIDTH * one.drawing.aspect;
  context.rect(0, 0, WIDTH, height);
  context.clip();
  one.panel.paint(context, WIDTH, height, one.drawing);
  context.restore();
}

function scaleAt(context: CanvasRenderingContext2D, scale: Scale, x: number, y: number, width: number): void {
  for (let i = 0; i < width; i++) {
    const at = 3 * Math.round((255 * i) / (width - 1));
    context.fillStyle = `rgb(${scale.table[at]} ${scale.table[at + 1]} ${scale.table[at + 2]})`;
    context.fillRect(x + i, y, 1, 14);
  }
  context.fillStyle = "#1d2330";
  context.font = `13px ${FONT}`;
  for (const tick of scale.ticks) {
    const left = x + place(tick, scale) * width;
    context.textAlign = left < x + 9 ? "left" : left > x + width - 9 ? "right" : "center";
    context.fillText(format(tick, scale), left, y + 30);
  }
  context.textAlign = "left";
  context.fillText(scale.unit + (scale.stretched ? ", stretched to these maps" : ""), x, y + 49);
}

// Positions: fractions of the whole image, cells of a grid, pixels of the original.

export type Box = readonly [number, number, number, number]; // left, top, right, bottom, fractions
export type Grid = readonly [number, number]; // (H, W)

export interface Point {
  readonly x: number; // fraction of the width of the image
  readonly y: number;
}

export const WHOLE: Box = [0, 0, 1, 1];

/** Row and column of the cell below a point; a point outside the box takes the nearest cell. */
export function cellAt(point: Point, grid: Grid, box: Box = WHOLE): { row: number; column: number } {
  const along = (value: number, low: number, high: number, count: number): number =>
    Math.min(count - 1, Math.max(0, Math.floor(((value - low) / (high - low)) * count)));
  return {
    row: along(point.y, box[1], box[3], grid[0]),
    column: along(point.x, box[0], box[2], grid[1]),
  };
}

export function indexAt(point: Point, grid: Grid, box: Box = WHOLE): number {
  const { row, column } = cellAt(point, grid, box);
  return row * grid[1] + column;
}

/** Center of a cell. */
export function centerOf(index: number, grid: Grid, box: Box = WHOLE): Point {
  const row = Math.floor(index / grid[1]);
  const column = index % grid[1];
  return {
    x: box[0] + ((column + 0.5) / grid[1]) * (box[2] - box[0]),
    y: box[1] + ((row + 0.5) / grid[0]) * (box[3] - box[1]),
  };
}

/** Cells whose center lies in a part of the image, or the one below its middle. */
export function cellsIn(part: Box, grid: Grid, box: Box = WHOLE): number[] {
  const found: number[] = [];
  for (let index = 0; index < grid[0] * grid[1]; index++) {
    const { x, y } = centerOf(index, grid, box);
    if (x >= part[0] && x <= part[2] && y >= part[1] && y <= part[3]) found.push(index);
  }
  return found.length ? found : [indexAt({ x: (part[0] + part[2]) / 2, y: (part[1] + part[3]) / 2 }, grid, box)];
}

/** Move by whole cells and stay inside. */
export function step(point: Point, rows: number, columns: number, grid: Grid, box: Box = WHOLE): Point {
  const { row, column } = cellAt(point, grid, box);
  const to = (value: number, count: number): number => Math.min(count - 1, Math.max(0, value));
  return centerOf(to(row + rows, grid[0]) * grid[1] + to(column + columns, grid[1]), grid, box);
}

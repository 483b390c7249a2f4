// The most similar patch of every other image, the best images first.

import { cosines, indexOfLargest, queryAt } from "./cosine";
import type { Model, Store } from "./data";
import { h } from "./dom";
import { centerOf, indexAt, type Point } from "./geometry";
import type { State } from "./state";

export interface Match {
  readonly image: number;
  readonly point: Point;
  readonly cosine: number;
}

const SHOWN = 8;
const SIDE = 96; // pixels of a thumbnail
const AROUND = 0.22; // of the shorter side of the image, on either side of the match

/** Null while tokens are being decoded. */
export function findMatches(store: Store, state: State, model: Model): Match[] | null {
  const entry = store.layer(model, state.slot).facets[state.facet];
  if (!entry) return [];
  const own = store.channels(entry, state.image);
  let ready = own !== null;
  const found: Match[] = [];
  const query = own && queryAt(own, indexAt(state.point, entry.grid, store.box(model, state.image)));
  store.manifest.images.forEach((_, image) => {
    if (image === state.image) return;
    const tokens = store.channels(entry, image);
    if (!tokens || !query) {
      ready = false;
      return;
    }
    const values = cosines(query, tokens);
    const best = indexOfLargest(values);
    found.push({ image, point: centerOf(best, entry.grid, store.box(model, image)), cosine: values[best]! });
  });
  return ready ? found.sort((a, b) => b.cosine - a.cosine).slice(0, SHOWN) : null;
}

export class Matches {
  readonly element = h("div", { class: "matches" });

  constructor(
    private readonly store: Store,
    private readonly pick: (match: Match) => void,
  ) {}

  show(rows: readonly { readonly model: Model; readonly matches: readonly Match[] | null }[]): void {
    this.element.replaceChildren(
      ...rows.map(({ model, matches }) =>
        h("div", { class: "row" }, [
          h("h3", {}, [model.label]),
          matches === null
            ? h("p", { class: "faint" }, ["decoding …"])
            : h("ol", {}, matches.map((match) => h("li", {}, [this.thumbnail(model, match)]))),
        ]),
      ),
    );
  }

  private thumbnail(model: Model, match: Match): HTMLElement {
    const image = this.store.manifest.images[match.image]!;
    const canvas = h("canvas", { width: SIDE, height: SIDE });
    const label = `${image.name}, cosine ${match.cosine.toFixed(2)} in ${model.label}; show it beside`;
    const photo = this.store.photo(match.image);
    const draw = (): void => crop(canvas, photo, match.point);
    if (photo.complete && photo.naturalWidth) draw();
    else photo.addEventListener("load", draw, { once: true });
    return h(
      "button",
      { type: "button", "aria-label": label, title: image.name },
      [canvas, h("span", { class: "value" }, [match.cosine.toFixed(2)]), h("span", { class: "file" }, [image.name])],
      { onclick: () => this.pick(match) },
    );
  }
}

function crop(canvas: HTMLCanvasElement, photo: HTMLImageElement, point: Point): void {
  const { naturalWidth: width, naturalHeight: height } = photo;
  const side = 2 * AROUND * Math.min(width, height);
  const within = (center: number, most: number): number => Math.min(Math.max(0, most - side), Math.max(0, center - side / 2));
  const [left, top] = [within(point.x * width, width), within(point.y * height, height)];
  const context = canvas.getContext("2d")!;
  context.imageSmoothingQuality = "high";
  context.drawImage(photo, left, top, side, side, 0, 0, SIDE, SIDE);
  const [x, y] = [((point.x * width - left) / side) * SIDE, ((point.y * height - top) / side) * SIDE];
  for (const [line, color] of [[4, "rgb(0 0 0 / 75%)"], [2, "#fff"]] as const) {
    context.lineWidth = line;
    context.strokeStyle = color;
    context.strokeRect(x - 7, y - 7, 14, 14);
  }
}

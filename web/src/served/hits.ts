// What a search found; a hit can be added to the images that are looked at.

import { h } from "../dom";
import type { Hit } from "./api";
import { thumbnail, type Picked } from "./folder";

export class HitList {
  private readonly list = h("div", { class: "thumbnails" });
  private readonly note = h("p", { class: "faint" });
  readonly element = h("section", { class: "folder", "aria-label": "Found", hidden: true }, [h("h2", {}, ["Found"]), this.note, this.list]);

  constructor(private readonly pick: (image: Picked) => void) {}

  show(note: string, hits: readonly Hit[]): void {
    this.element.hidden = false;
    this.note.textContent = hits.length ? note : "Nothing was found.";
    this.list.replaceChildren(...hits.map((hit) => this.hit(hit)));
    this.element.scrollIntoView({ block: "nearest" });
  }

  private hit(hit: Hit): HTMLElement {
    const { address } = hit;
    const score = hit.score.toFixed(3);
    if (address === null) {
      return h("div", { class: "elsewhere", title: hit.name }, [h("span", { class: "file" }, [`${score} ${hit.name}`]), h("span", { class: "faint" }, ["not in these folders"])]);
    }
    const button = thumbnail(address, () => this.pick({ address, name: address }), score);
    if (hit.box) button.append(frame(hit));
    return button;
  }
}

/** The region that matches, over a thumbnail that shows the middle of the image as a square. */
function frame(hit: Hit): HTMLElement {
  const side = Math.min(hit.width, hit.height);
  const [left, top] = [(hit.width - side) / 2, (hit.height - side) / 2];
  const along = (value: number, start: number): number => Math.min(1, Math.max(0, (value - start) / side));
  const [x0, y0, x1, y1] = [along(hit.box![0], left), along(hit.box![1], top), along(hit.box![2], left), along(hit.box![3], top)];
  const box = h("i", { class: "box", "aria-hidden": "true" });
  Object.assign(box.style, { left: `${100 * x0}%`, top: `${100 * y0}%`, width: `${100 * (x1 - x0)}%`, height: `${100 * (y1 - y0)}%` });
  return h("span", { class: "over" }, [box]);
}

// What stands around the panels: the strip of images, the numbers behind the page, the keys.

import type { Manifest, Store } from "./data";
import { h } from "./dom";
import { layerTitle } from "./view";

/** The images as a strip; a thumbnail is decoded when it comes into sight. */
export class Thumbnails {
  private readonly buttons: HTMLButtonElement[];
  readonly element: HTMLElement;

  constructor(store: Store, pick: (image: number) => void) {
    const seen = new IntersectionObserver((entries) => {
      for (const entry of entries) {
        if (!entry.isIntersecting) continue;
        const image = entry.target as HTMLImageElement;
        image.src = store.photoUrl(Number(image.dataset["image"]));
        seen.unobserve(image);
      }
    }, { rootMargin: "200px" });
    this.buttons = store.manifest.images.map((entry, i) => {
      const image = h("img", { alt: "", "data-image": i, decoding: "async" });
      seen.observe(image);
      return h("button", { type: "button", title: entry.name, "aria-label": entry.name }, [image], { onclick: () => pick(i) });
    });
    this.element = h("nav", { class: "images", "aria-label": "Images" }, this.buttons);
    this.element.hidden = this.buttons.length < 2;
  }

  show(image: number, second: number): void {
    this.buttons.forEach((button, i) => {
      const now = i === image;
      if (button.getAttribute("aria-current") === String(now) && button.classList.contains("second") === (i === second)) return;
      button.setAttribute("aria-current", String(now));
      button.classList.toggle("second", i === second);
      if (now) button.scrollIntoView({ block: "nearest", inline: "nearest" });
    });
  }
}

/** How exact the page is, and what it does not hold. */
export function aboutNumbers(manifest: Manifest): HTMLElement {
  const rows = manifest.models.flatMap((model) =>
    model.layers.flatMap((layer) =>
      Object.entries(layer.facets).map(([facet, entry]) =>
        h("tr", {}, [
          h("th", { scope: "row" }, [model.label]),
          h("td", {}, [layerTitle(model, layer)]),
          h("td", {}, [facet]),
          h("td", { class: "number" }, [`${entry.grid[0]} × ${entry.grid[1]}`]),
          h("td", { class: "number" }, [`${entry.channels} of ${entry.of}`]),
          h("td", { class: "number" }, [entry.error.rms.toFixed(3)]),
          h("td", { class: "number" }, [entry.error.most.toFixed(3)]),
          h("td", { class: "number" }, [entry.error.largest.toFixed(3)]),
        ]),
      ),
    ),
  );
  const head = ["model", "block", "of", "grid", "channels", "error, rms", "95 % within", "largest"];
  const worst = Math.max(...manifest.models.flatMap((m) => m.layers.flatMap((l) => Object.values(l.facets).map((f) => f.error.most))));
  const left = manifest.leftOut.length ? `Left out for size: ${manifest.leftOut.join(", ")}. A larger --megabytes stores them.` : "Nothing was left out for size.";
  return h("section", { class: "below", "aria-label": "How exact this is" }, [
    h("h2", {}, ["How exact this is"]),
    h("p", {}, [
      `Each token is stored as principal components in 8 bits. 95 % of the cosines lie within ${worst.toFixed(3)} of those of the full tokens; the table has the error of each map, measured on patches within an image and between two. Tokens are taken after the final norm, norms before it. Attention is the mean over heads, exact to 2 %; that of patches is averaged over small groups of them.`,
    ]),
    h("p", { class: "faint" }, [left]),
    h("details", {}, [
      h("summary", {}, ["Errors of every map"]),
      h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Errors" }, [
        h("table", {}, [h("thead", {}, [h("tr", {}, head.map((text) => h("th", { scope: "col" }, [text])))]), h("tbody", {}, rows)]),
      ]),
    ]),
    h("p", { class: "faint" }, [
      ...manifest.models.flatMap((model, i) => [i ? " · " : "", `${model.label}: ${model.name}, ${model.size[0]} × ${model.size[1]} px`]),
      ` · made by clearvit ${manifest.clearvit}; this page loads nothing from the network.`,
    ]),
  ]);
}

export function listKeys(): HTMLElement {
  const keys = [
    ["arrows", "move the patch; with Shift by five"],
    ["Enter", "hold the patch; in the mask draw it, in the region set a corner"],
    ["Esc", "let go"],
    ["[ ]", "block before, block after"],
    [", .", "image before, image after"],
    ["1 … 6", "similarity, attention, norms, components, mask, region"],
  ] as const;
  return h("details", { class: "below keys" }, [
    h("summary", {}, ["Keys"]),
    h("dl", {}, keys.map(([key, text]) => h("div", {}, [h("dt", {}, [h("kbd", {}, [key])]), h("dd", {}, [text])]))),
  ]);
}

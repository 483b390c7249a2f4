// The controls above the panels.

import { FACETS, type Facet, type Layer, type Store } from "./data";
import { choices, h } from "./dom";
import type { Mode, Range, State } from "./state";

const MODE_NAMES: readonly (readonly [Mode, string])[] = [
  ["similarity", "Similarity"],
  ["attention", "Attention"],
  ["norms", "Norms"],
  ["components", "Components"],
  ["mask", "Mask"],
  ["region", "Region"],
];
const RANGE_NAMES: readonly (readonly [Range, string])[] = [
  ["0,1", "0 to 1"],
  ["-1,1", "−1 to 1"],
  ["0.5,1", "0.5 to 1"],
  ["map", "stretch"],
];

export class Toolbar {
  private readonly modes;
  private readonly facets;
  private readonly ranges;
  private readonly slider: HTMLInputElement;
  private readonly blockName = h("output", { class: "value" });
  private readonly ticks = h("div", { class: "block-ticks", "aria-hidden": "true" });
  private readonly from: HTMLSelectElement;
  private readonly fromBox: HTMLElement;
  private readonly second: HTMLSelectElement;
  private readonly through: HTMLInputElement;
  readonly element: HTMLElement;

  constructor(
    private readonly store: Store,
    change: (part: Partial<State>) => void,
  ) {
    const number = (event: Event): number => Number((event.target as HTMLInputElement | HTMLSelectElement).value);
    this.modes = choices("Show", "mode", MODE_NAMES, (mode) => change({ mode }));
    this.facets = choices("Of", "facet", FACETS.map((one) => [one, one] as const), (facet) => change({ facet }));
    this.ranges = choices("Scale", "range", RANGE_NAMES, (range) => change({ range }));
    this.slider = h("input", { type: "range", min: 0, max: store.slots - 1, step: 1, "aria-label": "Block" }, [], {
      oninput: (event) => change({ slot: number(event) }),
    });
    this.slider.disabled = store.slots < 2;
    this.from = h("select", { "aria-label": "Attention from" }, [], { onchange: (event) => change({ from: number(event) }) });
    this.fromBox = h("label", { class: "field" }, ["From", this.from]);
    const images = store.manifest.images.map((image, i) => h("option", { value: i }, [image.name]));
    this.second = h("select", { "aria-label": "Second image" }, [h("option", { value: -1 }, ["none"]), ...images], {
      onchange: (event) => change({ second: number(event) }),
    });
    this.through = h("input", { type: "range", min: 0, max: 90, step: 5, "aria-label": "How much of the image shows through the maps" }, [], {
      oninput: (event) => change({ photo: number(event) / 100 }),
    });
    this.element = h("div", { class: "toolbar" }, [
      this.modes.element,
      h("div", { class: "field blocks" }, [
        h("span", {}, ["Block"]), h("div", { class: "track" }, [this.slider, this.ticks]), this.blockName,
      ]),
      this.facets.element,
      this.fromBox,
      this.ranges.element,
      h("label", { class: "field" }, ["Image through", this.through]),
      h("label", { class: "field" }, ["Second image", this.second]),
    ]);
    this.ticks.replaceChildren(...this.slotNames().map((name) => h("span", {}, [name])));
    this.from.replaceChildren(
      h("option", { value: -1 }, ["this patch"]),
      ...store.prefixNames.map((name, i) => h("option", { value: i }, [name])),
    );
  }

  show(state: State): void {
    this.modes.show(state.mode);
    const stored = new Set(this.layers(state.slot).flatMap((layer) => Object.keys(layer.facets) as Facet[]));
    this.facets.show(state.facet, new Set(FACETS.filter((facet) => !stored.has(facet))));
    this.ranges.show(state.range);
    this.slider.value = String(state.slot);
    const name = this.slotNames()[state.slot] ?? "";
    const words = name === "out" ? "output" : `block ${name}`;
    this.blockName.textContent = words;
    this.slider.setAttribute("aria-valuetext", words);
    this.from.value = String(state.from);
    this.second.value = String(state.second);
    this.through.value = String(Math.round(state.photo * 100));
    const uses = (modes: readonly Mode[]): boolean => !modes.includes(state.mode);
    this.fromBox.hidden = uses(["attention"]);
    this.facets.element.hidden = uses(["similarity", "components", "mask", "region"]);
    this.ranges.element.hidden = uses(["similarity", "region"]);
  }

  /** Names of the slots after the first model that has a layer for each. */
  private slotNames(): string[] {
    return Array.from({ length: this.store.slots }, (_, slot) => {
      const layer = this.layers(slot).find((one) => one.block !== null && !one.output);
      return layer ? String(layer.block) : "out";
    });
  }

  private layers(slot: number): Layer[] {
    const { models } = this.store.manifest;
    return models.filter((model) => this.store.has(model, slot)).map((model) => this.store.layer(model, slot));
  }
}

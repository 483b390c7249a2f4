// The microscope: state in, drawings out.

import type { Scale } from "./colors";
import { indexOfLargest } from "./cosine";
import { drawChart } from "./chart";
import type { Model, Store } from "./data";
import { copyText, download, h } from "./dom";
import { centerOf, indexAt, step, type Grid, type Point } from "./geometry";
import { Labeling } from "./labeling";
import { Legend, type Pointer } from "./legend";
import { findMatches, Matches } from "./matches";
import { Panel, type Drawing } from "./panel";
import { boxBetween, boxOverlay, RegionTool, type SearchRegion } from "./region";
import { compose, type Shown } from "./saved_image";
import { firstState, fromHash, MODES, toHash, type State } from "./state";
import { aboutNumbers, listKeys, Thumbnails } from "./surroundings";
import { Toolbar } from "./toolbar";
import { colored, layerTitle, scaleFor, viewOf, type View } from "./view";

const MARK = "#ffffff";
const FOUND = "#35c3ff";
const LATER = 140; // milliseconds after the last move until matches are looked for

export class App {
  state: State;
  frames = 0; // drawn so far, for the benchmark
  private hover: Point | null = null;
  private waiting = 0;
  private later = 0;
  private shown: Shown[][] = [];
  private scale: Scale | null = null;
  private readonly first: Panel[];
  private readonly others: Panel[];
  private readonly labeling: Labeling;
  private readonly region: RegionTool;
  private readonly toolbar: Toolbar;
  private readonly legend = new Legend();
  private readonly matches: Matches;
  private readonly thumbnails: Thumbnails;
  private readonly stage = h("div", { class: "stage" });
  private readonly secondStage = h("div", { class: "stage second" });
  private readonly readout = h("dl", { class: "readout" });
  private readonly charts = h("div", { class: "charts" });
  private readonly live = h("p", { class: "unseen", role: "status", "aria-live": "polite" });
  private readonly said = h("span", { class: "faint", role: "status" });
  private readonly link = h("input", { class: "link", type: "text", readonly: true, hidden: true, "aria-label": "Link to what is shown" });

  constructor(
    readonly root: HTMLElement,
    readonly store: Store,
    search: SearchRegion | null = null,
  ) {
    this.state = this.readHash(firstState(store.slots));
    const count = store.manifest.models.length + 1;
    this.first = Array.from({ length: count }, () => new Panel());
    this.others = Array.from({ length: count }, () => new Panel());
    this.labeling = new Labeling(store, () => this.schedule());
    this.region = new RegionTool(store.manifest.images, search);
    this.toolbar = new Toolbar(store, (part) => this.change(part));
    this.matches = new Matches(store, (match) => this.change({ second: match.image, pinned: true }));
    this.thumbnails = new Thumbnails(store, (image) => this.change({ image }));
    this.build();
    store.onReady = () => this.schedule(true);
    window.addEventListener("hashchange", this.followHash);
    this.resized.observe(this.stage);
    this.change({});
  }

  private readonly followHash = (): void => this.change(this.readHash(this.state));
  private readonly resized = new ResizeObserver(() => this.schedule());

  /** Stop listening; another page takes the place. */
  close(): void {
    window.removeEventListener("hashchange", this.followHash);
    this.resized.disconnect();
    this.store.onReady = () => undefined;
    clearTimeout(this.later);
  }

  /** Change what is looked at. */
  change(part: Partial<State>): void {
    const before = this.state.image;
    this.state = { ...this.state, ...part };
    if (part.image !== undefined) this.hover = null;
    if (part.image !== undefined && part.region === undefined && part.image !== before) this.state = { ...this.state, region: null };
    if (part.mode !== undefined || part.image !== undefined) this.region.anchor = null;
    this.schedule(true);
  }

  /** Draw with the next frame; matches and charts follow when the pointer rests. */
  schedule(all = false): void {
    if (!this.waiting) {
      this.waiting = requestAnimationFrame(() => {
        this.waiting = 0;
        this.draw();
      });
    }
    if (!all) return;
    clearTimeout(this.later);
    this.later = window.setTimeout(() => this.drawLater(), LATER);
  }

  /** Cosines of pairs of patches of one model as the page shows them; for tests. */
  async cosinesOf(model: number, slot: number, image: number, point: Point, other: number): Promise<number[]> {
    const chosen = this.store.manifest.models[model]!;
    const state = { ...this.state, mode: "similarity" as const, facet: "token" as const, slot, image, point };
    viewOf(this.store, state, chosen, other, this.labels);
    await this.store.idle();
    return Array.from(viewOf(this.store, state, chosen, other, this.labels).values ?? []);
  }

  private get labels(): { examples: Labeling["examples"]; method: Labeling["method"]; colors: readonly string[] } {
    const { labeling } = this;
    return { examples: (...where) => labeling.examples(...where), method: labeling.method, colors: labeling.colors };
  }

  private readHash(state: State): State {
    return fromHash(location.hash, state, { images: this.store.manifest.images.length, slots: this.store.slots });
  }

  private build(): void {
    const { manifest } = this.store;
    const button = (text: string, act: () => void): HTMLElement => h("button", { type: "button" }, [text], { onclick: act });
    this.stage.append(...this.first.map((panel) => panel.element));
    this.secondStage.append(...this.others.map((panel) => panel.element));
    for (const stage of [this.stage, this.secondStage]) stage.style.setProperty("--columns", String(this.first.length));
    this.first.forEach((panel) => this.listen(panel, true));
    this.others.forEach((panel) => this.listen(panel, false));
    this.root.replaceChildren(
      h("a", { class: "skip", href: "#stage" }, ["Skip to the image"], { onclick: (event) => { event.preventDefault(); this.first[0]!.canvas.focus(); } }),
      h("header", { class: "top" }, [
        h("div", {}, [h("h1", {}, ["Token microscope"]), h("p", { class: "faint" }, [manifest.title])]),
        h("div", { class: "actions" }, [
          this.said, button("Save image", () => void this.saveImage()), button("Copy link", () => void this.copyLink()),
        ]),
      ]),
      this.link,
      this.thumbnails.element,
      this.toolbar.element,
      this.labeling.element,
      this.region.element,
      h("main", {}, [
        this.stage, this.secondStage, this.legend.element, this.readout, this.live,
        h("section", { class: "below", "aria-label": "All images" }, [
          h("h2", {}, ["Most similar patch of the other images"]), this.matches.element,
        ]),
        h("section", { class: "below", "aria-label": "Norms by block" }, [
          h("h2", {}, ["Norms by block"]),
          h("p", { class: "faint" }, [
            "Before the final norm, times the median of the image. The line is the patch you look at, the band all patches of the image, the dashes the cutoff beyond which tokens are flagged.",
          ]),
          this.charts,
        ]),
        aboutNumbers(manifest),
        listKeys(),
      ]),
    );
    if (manifest.images.length < 2) this.matches.element.parentElement!.hidden = true;
    if (!manifest.models.some((model) => model.norms)) this.charts.parentElement!.hidden = true;
  }

  private listen(panel: Panel, primary: boolean): void {
    const { canvas } = panel;
    let drawing = false;
    canvas.addEventListener("pointermove", (event) => {
      const point = panel.pointAt(event);
      if (drawing && this.state.mode === "region") this.change({ region: boxBetween(this.region.anchor!, point) });
      else if (drawing) {
        this.labeling.strokes[this.labeling.strokes.length - 1]!.points.push(point);
        this.labeling.changed();
      } else if (primary && !this.state.pinned && event.pointerType !== "touch") this.change({ point });
      else {
        this.hover = point;
        this.schedule();
      }
    });
    canvas.addEventListener("pointerleave", () => {
      this.hover = null;
      this.schedule();
    });
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button !== 0 || !primary) return;
      const point = panel.pointAt(event);
      if (this.state.mode !== "mask" && this.state.mode !== "region") return this.press(point);
      drawing = true;
      canvas.setPointerCapture(event.pointerId);
      if (this.state.mode === "mask") return this.addStroke(point);
      this.change({ region: null, point });
      this.region.anchor = point;
    });
    for (const name of ["pointerup", "pointercancel"] as const) canvas.addEventListener(name, () => {
        drawing = false;
        this.region.anchor = null;
      });
    canvas.addEventListener("keydown", (event) => this.key(event));
  }

  private addStroke(point: Point): void {
    const { current, radius } = this.labeling;
    this.labeling.add({ image: this.state.image, class: current, points: [point], radius });
  }

  /** Hold a patch, or let go of the one that is held. */
  private press(point: Point): void {
    const { grid } = this.reference;
    const same = indexAt(point, grid) === indexAt(this.state.point, grid);
    this.hover = null;
    this.change({ point, pinned: !(this.state.pinned && same) });
  }

  private get reference(): { model: Model; grid: Grid } {
    const model = this.store.manifest.models[0]!;
    return { model, grid: this.store.layer(model, this.state.slot).facets.token!.grid };
  }

  private key(event: KeyboardEvent): void {
    const { state } = this;
    const { model, grid } = this.reference;
    const far = event.shiftKey ? 5 : 1;
    const move = { ArrowUp: [-far, 0], ArrowDown: [far, 0], ArrowLeft: [0, -far], ArrowRight: [0, far] }[event.key];
    const { length } = this.store.manifest.images;
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (move) this.moveTo(step(state.point, move[0]!, move[1]!, grid, this.store.box(model, state.image)));
    else if (event.key === "Enter" || event.key === " ") this.enter();
    else if (event.key === "Escape") this.change({ pinned: false, second: -1 });
    else if (event.key === "[") this.change({ slot: Math.max(0, state.slot - 1) });
    else if (event.key === "]") this.change({ slot: Math.min(this.store.slots - 1, state.slot + 1) });
    else if (event.key === ",") this.change({ image: (state.image + length - 1) % length });
    else if (event.key === ".") this.change({ image: (state.image + 1) % length });
    else if (MODES[Number(event.key) - 1]) this.change({ mode: MODES[Number(event.key) - 1]! });
    else return;
    event.preventDefault();
    this.speak = true;
  }
  private speak = false;

  private moveTo(point: Point): void {
    const { anchor } = this.region;
    this.change(anchor ? { point, region: boxBetween(anchor, point) } : { point });
  }

  private enter(): void {
    const { mode, point, pinned } = this.state;
    if (mode === "mask") this.addStroke(point);
    else if (mode !== "region") this.change({ pinned: !pinned });
    else if (this.region.anchor) this.region.anchor = null;
    else {
      this.region.anchor = point;
      this.change({ region: null });
    }
  }

  private draw(): void {
    const { state, store } = this;
    const { models, images } = store.manifest;
    this.toolbar.show(state);
    this.thumbnails.show(state.image, state.second);
    const numbers = state.second >= 0 ? [state.image, state.second] : [state.image];
    const views = numbers.map((image) => models.map((model) => viewOf(store, state, model, image, this.labels)));
    this.scale = scaleFor(state, views.flat());
    this.shown = numbers.map((image, row) => {
      const panels = row ? this.others : this.first;
      const own = views[row]!.map((view) => colored(view, this.scale));
      return panels.map((panel, i) => ({
        panel,
        title: i ? models[i - 1]!.label : images[image]!.name,
        drawing: this.drawing(image, row, i ? models[i - 1]! : null, own[i - 1] ?? null),
      }));
    });
    this.secondStage.hidden = numbers.length < 2;
    this.labeling.element.hidden = state.mode !== "mask";
    this.region.element.hidden = state.mode !== "region";
    this.region.show(state.image, state.region);
    for (const one of this.shown.flat()) one.panel.draw(one.title, one.drawing);
    this.root.classList.toggle("drawing", state.mode === "mask" || state.mode === "region");
    this.first.forEach((panel, i) => this.name(panel, i ? models[i - 1]!.label : images[state.image]!.name));
    this.others.forEach((panel, i) => this.name(panel, `${i ? models[i - 1]!.label : ""} second image`.trim()));
    this.read(views[0]!);
    this.frames++;
  }

  private name(panel: Panel, title: string): void {
    const words = { similarity: "cosines with this patch", attention: "attention", norms: "norms", components: "principal components", mask: "mask", region: "cosines with the mean of the box" };
    panel.canvas.setAttribute("aria-label", `${title}, ${words[this.state.mode]}. Arrow keys move the patch, Enter holds it.`);
  }

  private drawing(image: number, row: number, model: Model | null, view: View | null): Drawing {
    const { state, store } = this;
    const { width, height } = store.manifest.images[image]!;
    const shownModel = model ?? this.reference.model;
    const grid = view?.grid ?? this.reference.grid;
    const marks = row === 0 && (state.mode !== "attention" || state.from < 0) ? [{ point: state.point, grid, color: MARK }] : [];
    const box = store.box(shownModel, image);
    if (row && view?.values && (state.mode === "similarity" || state.mode === "region")) {
      marks.push({ point: centerOf(indexOfLargest(view.values), view.grid, box), grid, color: FOUND });
    }
    const base = { photo: store.photo(image), aspect: height / width, box, view, through: state.photo, marks };
    if (state.mode === "region" && row === 0 && state.region) return { ...base, marks: [], overlay: boxOverlay(state.region) };
    return state.mode === "mask" && !model ? { ...base, overlay: this.labeling.overlay(image) } : base;
  }

  /** Numbers of the patch below the pointer, model by model. */
  private read(views: readonly View[]): void {
    const { state, store } = this;
    const at = state.pinned && this.hover ? this.hover : state.point;
    const pointers: Pointer[] = [];
    const cutoffs = new Set<number>();
    const rows = store.manifest.models.map((model, m) => {
      const view = views[m]!;
      const box = store.box(model, state.image);
      const value = view.values?.[indexAt(at, view.grid, box)];
      const layer = store.layer(model, state.slot);
      if (value !== undefined && this.scale) pointers.push({ value, name: model.label });
      const parts = value === undefined ? [] : [`${this.scale?.unit.split(",")[0]} ${value.toFixed(2)}`];
      if (state.mode === "norms" && layer.block !== null) {
        Object.values(model.norms?.cutoffs[layer.block] ?? {}).forEach((cutoff) => cutoffs.add(cutoff));
        if (view.flagged.includes(indexAt(at, view.grid, box))) parts.push("flagged");
      }
      return h("div", {}, [h("dt", {}, [model.label]), h("dd", {}, [parts.join(", ") || layerTitle(model, layer)])]);
    });
    const row = 1 + Math.floor(at.y * this.reference.grid[0]);
    const column = 1 + Math.floor(at.x * this.reference.grid[1]);
    const head = h("div", {}, [h("dt", {}, [state.pinned ? "held patch, pointer at" : "patch"]), h("dd", {}, [`row ${row}, column ${column}`])]);
    this.readout.replaceChildren(head, ...rows);
    this.legend.show(this.scale, pointers, [...cutoffs]);
  }

  private drawLater(): void {
    const { state, store } = this;
    const { models } = store.manifest;
    history.replaceState(null, "", `#${toHash(state)}`);
    if (this.speak) {
      this.live.textContent = Array.from(this.readout.children, (row) => row.textContent).join("; ");
      this.speak = false;
    }
    if (store.manifest.images.length > 1) {
      this.matches.show(models.map((model) => ({ model, matches: findMatches(store, state, model) })));
    }
    this.charts.replaceChildren(
      ...models.flatMap((model) => {
        const values = model.norms && store.norms(model.norms, state.image);
        if (!model.norms || !values) return [];
        const token = indexAt(state.point, model.norms.grid, store.box(model, state.image));
        const { block } = store.layer(model, state.slot);
        const chart = drawChart({ norms: model.norms, values, token, block, label: model.label });
        return [h("figure", {}, [h("figcaption", {}, [model.label]), chart, h("p", { class: "faint" }, [model.norms.verdict])])];
      }),
    );
  }

  private async saveImage(): Promise<void> {
    const { title, clearvit } = this.store.manifest;
    const canvas = compose(this.shown, this.scale, `clearvit ${clearvit} · ${title} · ${this.state.mode}`);
    const blob = await new Promise<Blob | null>((done) => canvas.toBlob(done, "image/png"));
    if (blob) download("microscope.png", blob);
    this.said.textContent = blob ? "Saved." : "This browser cannot save the image.";
  }

  private async copyLink(): Promise<void> {
    this.drawLater();
    const copied = await copyText(location.href);
    this.said.textContent = copied ? "Copied." : "Copy it from here:";
    if (copied) return;
    this.link.hidden = false; // no clipboard here: show it, selected
    this.link.value = location.href;
    this.link.select();
  }
}

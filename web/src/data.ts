// What the page holds: a manifest, and chunks that are decoded when they are looked at.

import { fromBase64, inflate, readAttention, readChannels, readNorms, type Channels } from "./decode";
import { WHOLE, type Box, type Grid } from "./geometry";

export type Facet = "token" | "key" | "query" | "value";
export const FACETS: readonly Facet[] = ["token", "key", "query", "value"];

export interface FacetEntry {
  readonly grid: Grid;
  readonly channels: number;
  readonly of: number; // channels of the model
  readonly error: { rms: number; most: number; largest: number; pairs: number };
  readonly low: readonly number[]; // of channels 1 to 3, for the colors
  readonly high: readonly number[];
  readonly chunks: readonly number[];
}

export interface MapEntry {
  readonly grid: Grid;
  readonly chunks: readonly (number | null)[];
}

export interface PrefixEntry extends MapEntry {
  readonly rows: readonly string[];
  readonly onPrefix: readonly (readonly number[])[];
}

export interface Layer {
  readonly block: number | null;
  readonly output: boolean;
  readonly facets: Partial<Record<Facet, FacetEntry>>;
  readonly prefixAttention: PrefixEntry | null;
  readonly patchAttention: MapEntry | null;
  readonly kept: MapEntry | null;
}

export interface Norms {
  readonly grid: Grid;
  readonly chunks: readonly number[];
  readonly medians: readonly (readonly number[])[];
  readonly cutoffs: readonly { readonly high?: number; readonly low?: number }[];
  readonly flagged: readonly Readonly<Record<string, readonly number[]>>[];
  readonly onset: number | null;
  readonly peak: number | null;
  readonly verdict: string;
}

export interface Model {
  readonly name: string;
  readonly label: string;
  readonly depth: number;
  readonly width: number;
  readonly size: readonly [number, number];
  readonly patch: readonly [number, number];
  readonly boxes: readonly Box[] | null;
  readonly norms: Norms | null;
  readonly layers: readonly Layer[];
}

export interface ImageEntry {
  readonly name: string;
  readonly width: number; // of the original, upright, in pixels
  readonly height: number;
  readonly photo: number;
}

export interface Manifest {
  readonly format: string;
  readonly version: number;
  readonly clearvit: string;
  readonly title: string;
  readonly exponent: number;
  readonly channels: number;
  readonly leftOut: readonly string[];
  readonly images: readonly ImageEntry[];
  readonly models: readonly Model[];
}

const KEPT = 4000; // decoded chunks, about 100 kB each at most

export class Store {
  private readonly decoded = new Map<string, unknown>();
  private readonly pending = new Map<string, Promise<void>>();
  private readonly photos = new Map<number, HTMLImageElement>();
  onReady: () => void = () => undefined;

  constructor(
    readonly manifest: Manifest,
    private readonly chunk: (id: number) => string,
  ) {
    if (manifest.format !== "clearvit-microscope" || manifest.version !== 1) {
      throw new Error("this page holds data that its script does not understand");
    }
  }

  /** Blocks are aligned at the output: models may store different numbers of them. */
  get slots(): number {
    return Math.max(...this.manifest.models.map((model) => model.layers.length));
  }

  /** Names of the class token, registers and others of all models; the state counts in these. */
  get prefixNames(): readonly string[] {
    const layers = this.manifest.models.flatMap((model) => model.layers);
    return [...new Set(layers.flatMap((layer) => layer.prefixAttention?.rows ?? []))];
  }

  layer(model: Model, slot: number): Layer {
    const index = model.layers.length - (this.slots - slot);
    return index >= 0 ? model.layers[index]! : model.layers[model.layers.length - 1]!;
  }

  /** Whether a model has a layer of its own for a slot, or shows its output instead. */
  has(model: Model, slot: number): boolean {
    return model.layers.length - (this.slots - slot) >= 0;
  }

  box(model: Model, image: number): Box {
    return model.boxes?.[image] ?? WHOLE;
  }

  channels(entry: FacetEntry | undefined, image: number): Channels | null {
    if (!entry) return null;
    return this.get(entry.chunks[image]!, "c", (bytes) => readChannels(bytes, entry.channels));
  }

  norms(norms: Norms, image: number): Float32Array | null {
    return this.get(norms.chunks[image]!, "n", readNorms);
  }

  attention(entry: MapEntry, image: number): Float32Array | null {
    const id = entry.chunks[image];
    return id == null ? null : this.get(id, "a", readAttention);
  }

  kept(entry: MapEntry | null, image: number): Uint8Array | null {
    const id = entry?.chunks[image];
    return id == null ? null : this.get(id, "k", (bytes) => bytes);
  }

  /** The photo of an image, which may still be loading. */
  photo(image: number): HTMLImageElement {
    const known = this.photos.get(image);
    if (known) return known;
    const element = new Image();
    element.decoding = "async";
    element.onload = () => this.onReady();
    element.src = this.photoUrl(image);
    this.photos.set(image, element);
    return element;
  }

  photoUrl(image: number): string {
    return `data:image/jpeg;base64,${this.chunk(this.manifest.images[image]!.photo)}`;
  }

  /** Wait until everything that was asked for is decoded. */
  async idle(): Promise<void> {
    while (this.pending.size) await Promise.all(this.pending.values());
  }

  private get<T>(id: number, kind: string, read: (bytes: Uint8Array<ArrayBuffer>) => T): T | null {
    const key = `${kind}${id}`;
    const known = this.decoded.get(key);
    if (known !== undefined) return known as T;
    if (!this.pending.has(key)) {
      const work = inflate(fromBase64(this.chunk(id))).then((bytes) => {
        if (this.decoded.size >= KEPT) this.decoded.delete(this.decoded.keys().next().value!);
        this.decoded.set(key, read(bytes));
        this.pending.delete(key);
        this.onReady();
      });
      this.pending.set(key, work);
    }
    return null;
  }
}

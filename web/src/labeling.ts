// The tools of the mask: classes, strokes, undo, files.

import { CLASS_COLORS } from "./colors";
import type { Facet, Layer, Model, Store } from "./data";
import { choices, download, h } from "./dom";
import { Examples, fromFile, labelCells, toFile, type Method, type Stroke } from "./strokes";

const MOST_CLASSES = CLASS_COLORS.length;

export class Labeling {
  strokes: Stroke[] = [];
  classes: string[] = ["background", "object"];
  current = 1;
  radius = 6; // pixels of the original
  method: Method = "prototype";
  private version = 0;
  private readonly known = new Map<string, { version: number; examples: Examples }>();
  private readonly list = h("div", { class: "classes", role: "radiogroup", "aria-label": "Class to draw" });
  private readonly said = h("p", { class: "faint", role: "status" });
  private readonly methods = choices<Method>(
    "Mask by", "method", [["prototype", "mean of each class"], ["neighbors", "5 nearest"]],
    (method) => {
      this.method = method;
      this.changed();
    },
  );
  readonly element: HTMLElement;

  constructor(
    private readonly store: Store,
    private readonly redraw: () => void,
  ) {
    const size = h("input", { type: "range", min: 1, max: 60, value: this.radius, "aria-label": "Radius in pixels of the image" }, [], {
      oninput: (event) => {
        this.radius = Number((event.target as HTMLInputElement).value);
      },
    });
    const file = h("input", { type: "file", accept: "application/json,.json", hidden: true, "aria-label": "File of strokes" }, [], {
      onchange: () => void this.open(file),
    });
    const button = (text: string, act: () => void): HTMLElement => h("button", { type: "button" }, [text], { onclick: act });
    this.element = h("section", { class: "labeling", "aria-label": "Strokes" }, [
      this.list,
      h("div", { class: "tools-row" }, [
        h("label", { class: "slider" }, ["Radius", size]),
        this.methods.element,
        button("Undo", () => this.undo()),
        button("Clear", () => this.clear()),
        button("Save strokes", () => this.save()),
        button("Open strokes", () => file.click()),
        file,
      ]),
      this.said,
    ]);
    this.methods.show(this.method);
    this.drawClasses();
  }

  get colors(): readonly string[] {
    return this.classes.map((_, i) => CLASS_COLORS[i % MOST_CLASSES]!);
  }

  /** Tokens below the strokes of all images, as one model sees them. */
  examples(model: Model, layer: Layer, facet: Facet): Examples {
    const entry = layer.facets[facet]!;
    const key = `${model.name}/${layer.block}/${facet}/${entry.chunks[0]}`;
    const known = this.known.get(key);
    if (known?.version === this.version) return known.examples;
    const examples = new Examples();
    let whole = true;
    for (const image of new Set(this.strokes.map((stroke) => stroke.image))) {
      const tokens = this.store.channels(entry, image);
      if (!tokens) whole = false;
      else examples.add(labelCells(this.strokes, image, this.store.manifest.images[image]!, entry.grid, this.store.box(model, image)), tokens);
    }
    if (whole) this.known.set(key, { version: this.version, examples });
    return examples;
  }

  add(stroke: Stroke): void {
    this.strokes.push(stroke);
    this.changed();
  }

  /** Note that strokes have changed. */
  changed(): void {
    this.version++;
    const count = this.strokes.length;
    this.said.textContent = count
      ? `${count} stroke${count > 1 ? "s" : ""}; the file is read by “clearvit segment”.`
      : "Draw on the image, or put the patch with the arrow keys and press Enter. Two classes give a mask.";
    this.redraw();
  }

  /** Draw the strokes of an image. */
  overlay(image: number): (context: CanvasRenderingContext2D, width: number, height: number) => void {
    return (context, width, height) => {
      const size = this.store.manifest.images[image]!;
      for (const stroke of this.strokes) {
        if (stroke.image !== image) continue;
        const path = new Path2D();
        stroke.points.forEach((p, i) => (i ? path.lineTo(p.x * width, p.y * height) : path.moveTo(p.x * width, p.y * height)));
        if (stroke.points.length === 1) path.lineTo(stroke.points[0]!.x * width + 0.01, stroke.points[0]!.y * height);
        context.lineCap = context.lineJoin = "round";
        const line = Math.max(4, (2 * stroke.radius * width) / size.width);
        for (const [extra, color] of [[3, "rgb(0 0 0 / 55%)"], [0, this.colors[stroke.class]!]] as const) {
          context.lineWidth = line + extra;
          context.strokeStyle = color;
          context.stroke(path);
        }
      }
    };
  }

  private undo(): void {
    this.strokes.pop();
    this.changed();
  }

  private clear(): void {
    this.strokes = [];
    this.changed();
  }

  private save(): void {
    const content = toFile(this.strokes, this.classes, this.store.manifest.images);
    download("strokes.json", new Blob([JSON.stringify(content, null, 2)], { type: "application/json" }));
  }

  private async open(input: HTMLInputElement): Promise<void> {
    const file = input.files?.[0];
    input.value = "";
    if (!file) return;
    try {
      const read = fromFile(JSON.parse(await file.text()), this.store.manifest.images);
      [this.strokes, this.classes] = [read.strokes, read.classes.slice(0, MOST_CLASSES)];
      this.current = Math.min(this.current, this.classes.length - 1);
      this.drawClasses();
      this.changed();
      if (read.unknown) this.said.textContent = `${read.unknown} images of the file are not on this page.`;
    } catch (error) {
      this.said.textContent = `${file.name} cannot be read: ${(error as Error).message}.`;
    }
  }

  private drawClasses(): void {
    const chips = this.classes.map((name, i) => {
      const radio = h("input", { type: "radio", name: "class", value: i, "aria-label": `Draw ${name}` }, [], {
        onchange: () => (this.current = i),
      });
      radio.checked = i === this.current;
      const swatch = h("i", { class: "swatch" });
      swatch.style.background = this.colors[i]!;
      const field = h("input", { type: "text", value: name, size: 11, "aria-label": `Name of class ${i + 1}`, maxlength: 40 }, [], {
        onchange: (event) => this.rename(i, event.target as HTMLInputElement),
      });
      return h("label", { class: "chip" }, [radio, swatch, field]);
    });
    const more = h("button", { type: "button" }, ["Add class"], { onclick: () => this.addClass() });
    more.disabled = this.classes.length >= MOST_CLASSES;
    this.list.replaceChildren(...chips, more);
  }

  private rename(index: number, field: HTMLInputElement): void {
    const name = field.value.trim();
    if (!name || this.classes.some((other, i) => other === name && i !== index)) {
      field.value = this.classes[index]!;
      this.said.textContent = "Every class needs a name of its own.";
      return;
    }
    this.classes[index] = name;
    this.drawClasses();
    this.changed();
  }

  private addClass(): void {
    let number = this.classes.length;
    while (this.classes.includes(`class ${number}`)) number++;
    this.classes.push(`class ${number}`);
    this.current = this.classes.length - 1;
    this.drawClasses();
    this.changed();
  }
}

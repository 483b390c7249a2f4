// What to look at: images that were dropped or picked, models, views, scale and size.

import { h } from "../dom";
import { thumbnailUrl, upload, type LookRequest, type Settings } from "./api";
import type { Picked } from "./folder";

const VIEWS = [1, 4, 10, 16] as const;
const SCALES = [1, 2, 4] as const;

export class Chooser {
  private picked: Picked[] = [];
  private readonly tray = h("ul", { class: "tray", "aria-label": "Chosen images" });
  private readonly models: HTMLInputElement[];
  private readonly views = select("Views", VIEWS.map((n) => [n, n === 1 ? "1 (as it is)" : `${n}, denoised`]));
  private readonly scale = select("Scale", SCALES.map((n) => [n, n === 1 ? "1 (own grid)" : `${n} times finer`]));
  private readonly size: HTMLInputElement;
  private readonly go = h("button", { type: "submit", class: "primary" }, ["Look"]);
  private readonly find = h("button", { type: "button" }, ["Search the index"]);
  readonly element: HTMLFormElement;

  constructor(
    private readonly settings: Settings,
    private readonly act: { look: () => void; search: (image: Picked) => void; fail: (error: unknown) => void },
  ) {
    this.models = settings.models.map((_, i) => {
      const box = h("input", { type: "checkbox", name: "model", value: i });
      box.checked = i < 3;
      return box;
    });
    this.size = h("input", { type: "number", min: 16, max: settings.largest, step: 1, placeholder: "model's own", "aria-label": "Size in pixels" });
    const file = h("input", { type: "file", accept: "image/*", multiple: true, "aria-label": "Image files" }, [], {
      onchange: () => void this.take(file),
    });
    const zone = h("label", { class: "drop" }, [
      h("span", {}, ["Drop images here or ", h("u", {}, ["choose files"])]),
      h("span", { class: "faint" }, [`up to ${settings.megabytes} MB each`]),
      file,
    ]);
    this.find.hidden = !settings.index;
    this.find.addEventListener("click", () => this.picked[0] && act.search(this.picked[0]));
    this.element = h("form", { class: "chooser", "aria-label": "What to look at" }, [
      zone,
      this.tray,
      h("div", { class: "toolbar plain" }, [
        h("fieldset", { class: "models" }, [
          h("legend", {}, ["Models"]),
          ...settings.models.map((model, i) => h("label", { title: model.name }, [this.models[i]!, model.label])),
        ]),
        this.views.element, this.scale.element,
        h("label", { class: "field" }, ["Size, px", this.size]),
        this.go, this.find,
      ]),
    ], {
      onsubmit: (event) => {
        event.preventDefault();
        act.look();
      },
    });
    for (const name of ["dragover", "drop", "dragleave"] as const) {
      document.addEventListener(name, (event) => this.drag(event, zone));
    }
    this.show();
  }

  get images(): readonly Picked[] {
    return this.picked;
  }

  add(image: Picked): void {
    if (this.picked.some((one) => one.address === image.address)) return;
    if (this.picked.length >= this.settings.images) {
      return this.act.fail(new Error(`a page holds up to ${this.settings.images} images; remove one first`));
    }
    this.picked.push(image);
    this.show();
  }

  request(): LookRequest {
    const views = Number(this.views.input.value);
    return {
      images: this.picked.map((one) => one.address),
      models: this.models.flatMap((box, i) => (box.checked ? [i] : [])),
      views: views > 1 ? views : null,
      scale: Number(this.scale.input.value),
      size: this.size.value ? Number(this.size.value) : null,
    };
  }

  busy(working: boolean): void {
    this.go.textContent = working ? "Stop" : "Look";
  }

  private drag(event: DragEvent, zone: HTMLElement): void {
    if (!event.dataTransfer?.types.includes("Files")) return;
    event.preventDefault();
    zone.classList.toggle("over", event.type === "dragover");
    if (event.type === "drop") void this.send([...event.dataTransfer.files]);
  }

  private async take(input: HTMLInputElement): Promise<void> {
    const files = [...(input.files ?? [])];
    input.value = "";
    await this.send(files);
  }

  private async send(files: readonly File[]): Promise<void> {
    for (const file of files) {
      try {
        if (file.size > this.settings.megabytes * 1e6) throw new Error(`“${file.name}” is larger than ${this.settings.megabytes} MB, the limit here`);
        this.add(await upload(file));
      } catch (error) {
        this.act.fail(error);
      }
    }
  }

  private show(): void {
    this.go.disabled = this.find.disabled = !this.picked.length;
    this.tray.hidden = !this.picked.length;
    this.tray.replaceChildren(
      ...this.picked.map((one) =>
        h("li", {}, [
          h("img", { src: thumbnailUrl(one.address), alt: one.name, title: one.name }),
          h("button", { type: "button", "aria-label": `Remove ${one.name}` }, ["×"], {
            onclick: () => {
              this.picked = this.picked.filter((other) => other !== one);
              this.show();
            },
          }),
        ]),
      ),
    );
  }
}

function select(name: string, options: readonly (readonly [number, string])[]): { element: HTMLElement; input: HTMLSelectElement } {
  const input = h("select", { "aria-label": name }, options.map(([value, text]) => h("option", { value }, [text])));
  return { element: h("label", { class: "field" }, [name, input]), input };
}

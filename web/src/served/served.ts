// The microscope of `clearvit serve`: choose, have it computed, look.

import { App } from "../app";
import { Store } from "../data";
import { h } from "../dom";
import { look, pageContent, savedPageUrl, search, type Settings } from "./api";
import { Chooser } from "./chooser";
import { FolderBrowser, type Picked } from "./folder";
import { HitList } from "./hits";

export class Served {
  app: App | null = null;
  private working: AbortController | null = null;
  private readonly chooser: Chooser;
  private readonly hits = new HitList((image) => this.chooser.add(image));
  private readonly alert = h("p", { class: "failure small", role: "alert", hidden: true });
  private readonly bar = h("progress", { max: 1, value: 0, hidden: true, "aria-label": "Progress" });
  private readonly said = h("p", { class: "faint", role: "status" });
  private readonly save = h("a", { class: "button", download: "microscope.html", hidden: true }, ["Save this page"]);
  private readonly stage = h("div", {});

  constructor(
    root: HTMLElement,
    private readonly settings: Settings,
  ) {
    const fail = (error: unknown): void => this.fail(error);
    this.chooser = new Chooser(settings, { look: () => void this.look(), search: (image) => void this.search(image, null), fail });
    const folder = new FolderBrowser((image) => this.chooser.add(image), fail, settings.folders);
    const index = settings.index ? `; an index of ${settings.index.images} images` : "";
    root.replaceChildren(
      h("header", { class: "top" }, [
        h("div", {}, [
          h("h1", {}, ["Token microscope"]),
          h("p", { class: "faint" }, [`${settings.models.length} model${settings.models.length > 1 ? "s" : ""}${index}. Images stay on the machine that serves this page.`]),
        ]),
        h("div", { class: "actions" }, [this.save]),
      ]),
      this.chooser.element,
      this.alert, this.bar, this.said,
      h("details", { class: "library", open: true }, [h("summary", {}, ["Folders"]), folder.element]),
      this.hits.element,
      this.stage,
    );
    root.querySelector<HTMLDetailsElement>(".library")!.hidden = !settings.folders.length;
  }

  /** Have the chosen images computed and show them; pressed again, stop. */
  private async look(): Promise<void> {
    if (this.working) return this.working.abort();
    const images = [...this.chooser.images];
    this.begin();
    const controller = (this.working = new AbortController());
    this.chooser.busy(true);
    this.tell(0, 0, "Waiting for the models …");
    try {
      const { key, skipped, names } = await look(this.chooser.request(), (done, total, note) => this.tell(done, total, note), controller.signal);
      const { manifest, chunks } = await pageContent(key);
      this.open(new Store(manifest, (id) => chunks[id]!), new Map(names.map((name, i) => [name, images[i]!])));
      this.save.href = savedPageUrl(key);
      this.save.hidden = false;
      this.said.textContent = skipped.length ? `Skipped: ${skipped.join("; ")}` : "";
    } catch (error) {
      if ((error as Error).name === "AbortError") this.said.textContent = "Stopped.";
      else this.fail(error);
    } finally {
      this.working = null;
      this.bar.hidden = true;
      this.chooser.busy(false);
    }
  }

  private open(store: Store, named: ReadonlyMap<string, Picked>): void {
    this.app?.close();
    const root = h("div", { class: "inner" });
    this.stage.replaceChildren(root);
    const find = (image: number, pixels: readonly number[]): void => {
      const picked = named.get(store.manifest.images[image]!.name);
      if (picked) void this.search(picked, pixels);
    };
    this.app = new App(root, store, this.settings.index ? find : null);
    root.scrollIntoView({ block: "start" });
  }

  private async search(image: Picked, region: readonly number[] | null): Promise<void> {
    this.begin();
    this.said.textContent = "Searching …";
    try {
      const { note, hits } = await search(image.address, region);
      this.hits.show(note, hits);
      this.said.textContent = "";
    } catch (error) {
      this.fail(error);
    }
  }

  private begin(): void {
    this.alert.hidden = true;
    this.said.textContent = "";
  }

  private tell(done: number, total: number, note: string): void {
    if (note) this.said.textContent = note;
    this.bar.hidden = false;
    if (total) this.bar.value = done / total;
    else this.bar.removeAttribute("value");
  }

  private fail(error: unknown): void {
    const text = error instanceof Error ? error.message : String(error);
    this.said.textContent = "";
    this.alert.hidden = false;
    this.alert.textContent = `${text.charAt(0).toUpperCase()}${text.slice(1)}${/[.?!]$/.test(text) ? "" : "."}`;
  }
}

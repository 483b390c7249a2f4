// A folder as thumbnails: steps into folders, picks images.

import { h } from "../dom";
import { listFolder, thumbnailUrl } from "./api";

export interface Picked {
  readonly address: string;
  readonly name: string;
}

export class FolderBrowser {
  private address = "";
  private start = 0;
  private readonly path = h("nav", { class: "crumbs", "aria-label": "Folder" });
  private readonly grid = h("div", { class: "thumbnails" });
  private readonly more = h("button", { type: "button" }, ["Show more"], { onclick: () => void this.load() });
  readonly element = h("section", { class: "folder", "aria-label": "Folders" }, [this.path, this.grid, this.more]);

  constructor(
    private readonly pick: (image: Picked) => void,
    private readonly fail: (error: unknown) => void,
    folders: readonly string[],
  ) {
    this.element.hidden = !folders.length;
    if (folders.length) void this.open(folders.length === 1 ? folders[0]! : "");
  }

  async open(address: string): Promise<void> {
    [this.address, this.start] = [address, 0];
    this.grid.replaceChildren();
    await this.load();
  }

  private async load(): Promise<void> {
    const { address } = this;
    this.more.hidden = true;
    try {
      const listing = await listFolder(address, this.start);
      if (address !== this.address) return; // another folder was opened meanwhile
      if (!this.start) this.grid.append(...listing.folders.map((one) => this.folder(one)));
      this.grid.append(...listing.images.map((one) => thumbnail(one, () => this.pick({ address: one, name: one }))));
      this.start += listing.images.length;
      this.more.hidden = this.start >= listing.total;
      this.more.textContent = `Show more (${this.start} of ${listing.total})`;
      this.showPath(listing.total);
    } catch (error) {
      this.fail(error);
    }
  }

  private showPath(total: number): void {
    const parts = this.address ? this.address.split("/") : [];
    const steps = ["", ...parts.map((_, i) => parts.slice(0, i + 1).join("/"))];
    this.path.replaceChildren(
      ...steps.map((address, i) =>
        h("button", { type: "button", class: "crumb" }, [i ? parts[i - 1]! : "Folders"], { onclick: () => void this.open(address) }),
      ),
      h("span", { class: "faint" }, [this.address ? `${total} image${total === 1 ? "" : "s"}` : ""]),
    );
  }

  private folder(address: string): HTMLElement {
    const name = address.slice(address.lastIndexOf("/") + 1);
    return h("button", { type: "button", class: "into", title: address }, [`${name}/`], { onclick: () => void this.open(address) });
  }
}

/** One image as a button; it says so when the file cannot be read. */
export function thumbnail(address: string, act: () => void, caption = ""): HTMLElement {
  const name = address.slice(address.lastIndexOf("/") + 1);
  const image = h("img", { src: thumbnailUrl(address), alt: "", loading: "lazy", decoding: "async" });
  const button = h("button", { type: "button", title: address, "aria-label": `${name} ${caption}`.trim() }, [
    image, h("span", { class: "file" }, [caption || name]),
  ], { onclick: act });
  image.addEventListener("error", () => {
    button.classList.add("broken");
    button.setAttribute("aria-label", `${name}, cannot be read`);
  });
  return button;
}

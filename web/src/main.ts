// Start with the data that stands in the page, or with the server it comes from.

import "./style.css";
import "./served/served.css";
import { App } from "./app";
import { Store, type Manifest } from "./data";
import { h } from "./dom";
import type { Settings } from "./served/api";
import { Served } from "./served/served";

declare global {
  interface Window {
    clearvit?: App;
    clearvitServed?: Served;
  }
}

function textOf(id: string): string {
  const element = document.getElementById(id);
  if (!element) throw new Error(`this page is incomplete: ${id} is missing`);
  return element.textContent ?? "";
}

function start(root: HTMLElement): void {
  try {
    if (document.getElementById("clearvit-server")) {
      window.clearvitServed = new Served(root, JSON.parse(textOf("clearvit-server")) as Settings);
      return;
    }
    const manifest = JSON.parse(textOf("clearvit-data")) as Manifest;
    window.clearvit = new App(root, new Store(manifest, (id) => textOf(`chunk-${id}`)));
  } catch (error) {
    root.replaceChildren(h("p", { class: "failure", role: "alert" }, [`This page cannot be shown: ${(error as Error).message}.`]));
  }
}

start(document.getElementById("app")!);

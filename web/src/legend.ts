// The color scale with its numbers.

import { cssGradient, place, type Scale } from "./colors";
import { h } from "./dom";

export interface Pointer {
  readonly value: number;
  readonly name: string;
}

export class Legend {
  private readonly bar = h("div", { class: "bar" });
  private readonly ticks = h("div", { class: "ticks" });
  private readonly unit = h("span", { class: "unit" });
  readonly element = h("div", { class: "legend", role: "img" }, [this.unit, h("div", { class: "scale" }, [this.bar, this.ticks])]);
  private shown = "";

  /** Show a scale, and where some values and the cutoff lie on it. */
  show(scale: Scale | null, pointers: readonly Pointer[], cutoffs: readonly number[]): void {
    this.element.hidden = !scale;
    if (!scale) return;
    const key = JSON.stringify([scale.low, scale.high, scale.unit, pointers, cutoffs, scale.stretched]);
    if (key === this.shown) return;
    this.shown = key;
    this.bar.style.background = cssGradient(scale.table);
    this.bar.replaceChildren(
      ...cutoffs.map((value) => mark(scale, value, "cutoff", "cutoff")),
      ...pointers.map(({ value, name }) => mark(scale, value, "pointer", name)),
    );
    this.ticks.replaceChildren(
      ...scale.ticks.map((value) => {
        const tick = h("span", {}, [format(value, scale)]);
        tick.style.left = `${100 * place(value, scale)}%`;
        return tick;
      }),
    );
    const stretched = scale.stretched ? " · stretched to these maps" : " · the same for every patch";
    this.unit.textContent = scale.unit + stretched;
    this.unit.classList.toggle("stretched", scale.stretched);
    this.element.setAttribute("aria-label", `Color scale: ${scale.unit}, from ${format(scale.low, scale)} to ${format(scale.high, scale)}`);
  }
}

function mark(scale: Scale, value: number, kind: string, name: string): HTMLElement {
  const element = h("i", { class: kind, title: `${name}: ${value.toFixed(2)}` });
  element.style.left = `${100 * place(value, scale)}%`;
  return element;
}

export function format(value: number, scale: Scale): string {
  if (!scale.log) return String(Number(value.toFixed(2))).replace("-", "−");
  return value < 1 ? `1⁄${Math.round(1 / value)}` : `${value}×`;
}

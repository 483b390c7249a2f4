// Elements from data. Text is always a text node, so names of files and models stay text.

type Child = Node | string | null | undefined | false;
type Handlers = { [K in keyof HTMLElementEventMap as `on${K}`]?: (event: HTMLElementEventMap[K]) => void };
type Attributes = Record<string, string | number | boolean | undefined> & { class?: string };

export function h<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  attributes: Attributes = {},
  children: readonly Child[] = [],
  handlers: Handlers = {},
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  set(element, attributes);
  element.append(...children.filter((child): child is Node | string => Boolean(child)));
  for (const [name, handler] of Object.entries(handlers)) {
    element.addEventListener(name.slice(2), handler as EventListener);
  }
  return element;
}

export function svg(tag: string, attributes: Attributes = {}, children: readonly Child[] = []): SVGElement {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  set(element, attributes);
  element.append(...children.filter((child): child is Node | string => Boolean(child)));
  return element;
}

export function set(element: Element, attributes: Attributes): void {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === false) element.removeAttribute(name);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
}

/** Offer a file to keep. */
export function download(name: string, content: Blob): void {
  const url = URL.createObjectURL(content);
  const link = h("a", { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/** Put text on the clipboard; false where the browser does not allow it. */
export async function copyText(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false;
  }
}

/** A row of choices, of which one holds: radio buttons, so that arrow keys work. */
export function choices<T extends string>(
  legend: string,
  name: string,
  options: readonly (readonly [T, string])[],
  pick: (value: T) => void,
): { element: HTMLElement; show: (value: T, disabled?: ReadonlySet<T>) => void } {
  const inputs = new Map<T, HTMLInputElement>();
  const labels = options.map(([value, text]) => {
    const input = h("input", { type: "radio", name, value }, [], { onchange: () => pick(value) });
    inputs.set(value, input);
    return h("label", {}, [input, h("span", {}, [text])]);
  });
  const element = h("fieldset", { class: "choices" }, [h("legend", {}, [legend]), h("div", {}, labels)]);
  return {
    element,
    show: (value, disabled) =>
      inputs.forEach((input, key) => {
        input.checked = key === value;
        input.disabled = disabled?.has(key) ?? false;
      }),
  };
}

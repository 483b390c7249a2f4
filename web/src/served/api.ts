// Requests to the server of `clearvit serve`; every failure is an Error with one sentence.

import type { Manifest } from "../data";

export interface ServedModel {
  readonly name: string;
  readonly label: string;
  readonly size: readonly [number, number];
}

export interface Settings {
  readonly models: readonly ServedModel[];
  readonly folders: readonly string[];
  readonly index: { readonly images: number; readonly model: string } | null;
  readonly megabytes: number; // of an upload at most
  readonly images: number; // of one page at most
  readonly largest: number; // side of an image in the network, in pixels
}

export interface Listing {
  readonly address: string;
  readonly folders: readonly string[];
  readonly images: readonly string[];
  readonly total: number;
}

export interface Hit {
  readonly name: string;
  readonly score: number;
  readonly address: string | null; // null: not in the folders that are served
  readonly box: readonly [number, number, number, number] | null; // pixels
  readonly width: number;
  readonly height: number;
}

export interface LookRequest {
  readonly images: readonly string[];
  readonly models: readonly number[];
  readonly views: number | null;
  readonly scale: number;
  readonly size: number | null;
}

export interface PageContent {
  readonly manifest: Manifest;
  readonly chunks: readonly string[];
}

interface Event {
  readonly done?: number;
  readonly total?: number;
  readonly note?: string;
  readonly page?: string;
  readonly skipped?: readonly string[];
  readonly names?: readonly string[]; // of the images, in the order of the request
  readonly error?: string;
}

export const thumbnailUrl = (address: string): string => `/api/thumbnail?address=${encodeURIComponent(address)}`;

export async function listFolder(address: string, start: number): Promise<Listing> {
  return (await ask(`/api/folder?address=${encodeURIComponent(address)}&start=${start}`)).json();
}

export async function upload(file: File): Promise<{ address: string; name: string }> {
  const headers = { "Content-Type": "application/octet-stream", "X-Name": encodeURIComponent(file.name) };
  return (await ask("/api/uploads", { method: "POST", headers, body: file })).json();
}

export async function search(image: string, region: readonly number[] | null): Promise<{ note: string; hits: readonly Hit[] }> {
  return (await post("/api/search", { image, region })).json();
}

/** Have a page made; `tell` hears how far it is. */
export async function look(
  request: LookRequest, tell: (done: number, total: number, note: string) => void, signal: AbortSignal,
): Promise<{ key: string; skipped: readonly string[]; names: readonly string[] }> {
  const answer = await post("/api/looks", request, signal);
  for await (const event of events(answer)) {
    if (event.error) throw new Error(event.error);
    if (event.page) return { key: event.page, skipped: event.skipped ?? [], names: event.names ?? [] };
    if (event.total !== undefined) tell(event.done ?? 0, event.total, event.note ?? "");
  }
  throw new Error("the server ended before the page was made");
}

export async function pageContent(key: string): Promise<PageContent> {
  return (await ask(`/api/pages/${key}`)).json();
}

export const savedPageUrl = (key: string): string => `/api/pages/${key}/microscope.html`;

/** Lines of JSON as they arrive. */
export async function* events(answer: Response): AsyncGenerator<Event> {
  const reader = answer.body!.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    const lines = (rest + (value ?? "")).split("\n");
    rest = done ? "" : lines.pop()!;
    for (const line of lines) if (line) yield JSON.parse(line) as Event;
    if (done) return;
  }
}

function post(address: string, body: unknown, signal?: AbortSignal): Promise<Response> {
  const headers = { "Content-Type": "application/json" };
  return ask(address, { method: "POST", headers, body: JSON.stringify(body), ...(signal ? { signal } : {}) });
}

async function ask(address: string, options: RequestInit = {}): Promise<Response> {
  let answer: Response;
  try {
    answer = await fetch(address, options);
  } catch (error) {
    if ((error as Error).name === "AbortError") throw error;
    throw new Error("the server does not answer; is “clearvit serve” still running?");
  }
  if (answer.ok) return answer;
  const content = (await answer.json().catch(() => ({}))) as { error?: string };
  throw new Error(content.error ?? `the server answered ${answer.status}`);
}

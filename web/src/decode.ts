// From text in the page to numbers; clearvit/microscopy/coding.py and channels.py write them.

/** Coordinates of the N tokens of an image: offset + scale * values, channel by channel. */
export interface Channels {
  readonly count: number; // tokens N
  readonly channels: number; // K
  readonly offset: Float32Array; // (K)
  readonly scale: Float32Array; // (K)
  readonly values: Int8Array; // (K, N)
  readonly length: Float32Array; // (N), of the coordinates; at most 1
  readonly rest: Float32Array; // (N), of what the coordinates leave out
}

const NORM_RANGE = 4;
const ATTENTION_RANGE = 8;

export function fromBase64(text: string): Uint8Array<ArrayBuffer> {
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

export async function inflate(bytes: Uint8Array<ArrayBuffer>): Promise<Uint8Array<ArrayBuffer>> {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

export function readChannels(bytes: Uint8Array<ArrayBuffer>, channels: number): Channels {
  const count = (bytes.length - 8 * channels) / channels;
  if (!Number.isInteger(count) || count < 1) throw new Error("the tokens of this page are damaged");
  const floats = new Float32Array(bytes.buffer.slice(0, 8 * channels));
  const offset = floats.subarray(0, channels);
  const scale = floats.subarray(channels);
  const values = new Int8Array(bytes.buffer, 8 * channels, channels * count);
  const squares = new Float32Array(count);
  for (let k = 0; k < channels; k++) {
    const start = k * count;
    const shift = offset[k]!;
    const step = scale[k]!;
    for (let j = 0; j < count; j++) {
      const value = shift + step * values[start + j]!;
      squares[j]! += value * value;
    }
  }
  const length = squares.map((square) => Math.max(Math.sqrt(square), 1e-12));
  const rest = squares.map((square) => Math.sqrt(Math.max(0, 1 - square)));
  return { count, channels, offset, scale, values, length, rest };
}

/** Norms as multiples of the median of their image, (L, N). */
export function readNorms(codes: Uint8Array): Float32Array {
  const table = new Float32Array(256);
  for (let code = 0; code < 256; code++) table[code] = 2 ** ((code / 255) * 2 * NORM_RANGE - NORM_RANGE);
  return Float32Array.from(codes, (code) => table[code]!);
}

/** Attention as multiples of an even share. */
export function readAttention(codes: Uint8Array): Float32Array {
  const table = new Float32Array(256);
  for (let code = 1; code < 256; code++) {
    table[code] = 2 ** (((code - 1) / 254) * 2 * ATTENTION_RANGE - ATTENTION_RANGE);
  }
  return Float32Array.from(codes, (code) => table[code]!);
}

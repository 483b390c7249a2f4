import { describe, expect, it } from "vitest";
import { cosines, meanQuery, queryAt } from "../src/cosine";
import { readChannels } from "../src/decode";
import { cellsIn } from "../src/geometry";
import { boxBetween, quote, searchCommand, toPixels } from "../src/region";
import { events } from "../src/served/api";
import { firstState, fromHash, toHash } from "../src/state";

const image = { name: "my cat's.jpg", width: 200, height: 100, photo: 0 };

describe("a region", () => {
  it("is the box between two corners, whichever comes first", () => {
    expect(boxBetween({ x: 0.8, y: 0.2 }, { x: 0.3, y: 0.9 })).toEqual([0.3, 0.2, 0.8, 0.9]);
    expect(boxBetween({ x: 0.5, y: 0.2 }, { x: 0.5, y: 0.9 })).toBeNull();
  });
  it("becomes whole pixels inside the image", () => {
    expect(toPixels([0.1, 0.2, 0.5, 1], image)).toEqual([20, 20, 100, 100]);
    expect(toPixels([0.999, 0.999, 1, 1], image)).toEqual([199, 99, 200, 100]);
  });
  it("becomes a command that a shell reads as it was meant", () => {
    expect(quote("a/b-1.jpg")).toBe("a/b-1.jpg");
    expect(searchCommand(image, [0, 0, 0.5, 0.5])).toBe(`clearvit search index/ 'my cat'"'"'s.jpg' --region 0,0,100,50`);
  });
  it("stands in the address, and a wrong one does not", () => {
    const state = { ...firstState(1), region: [0.1, 0.2, 0.3, 0.4] as const };
    expect(fromHash(`#${toHash(state)}`, firstState(1), { images: 1, slots: 1 })).toEqual(state);
    for (const text of ["0.3,0,0.1,1", "0,0,1,2", "1,2,3", "a,b,c,d", "0,0,1,1,1"]) {
      expect(fromHash(`#region=${text}`, firstState(1), { images: 1, slots: 1 }).region).toBeNull();
    }
  });
  it("covers the cells whose centers lie in it, at least one", () => {
    expect(cellsIn([0, 0, 0.5, 0.5], [4, 4])).toEqual([0, 1, 4, 5]);
    expect(cellsIn([0.3, 0.3, 0.31, 0.31], [4, 4])).toEqual([5]);
  });
  it("is looked for by the mean of its tokens", () => {
    const bytes = new Uint8Array(16 + 6);
    new Float32Array(bytes.buffer, 0, 4).set([0, 0, 0.01, 0.01]);
    new Int8Array(bytes.buffer, 16).set([100, 0, 60, 0, 100, 80]); // (1, 0), (0, 1), (0.6, 0.8)
    const tokens = readChannels(bytes, 2);
    const mean = meanQuery([queryAt(tokens, 0), queryAt(tokens, 1)], 2);
    const found = cosines(mean, tokens);
    expect(found[0]).toBeCloseTo(Math.SQRT1_2, 4);
    expect(found[2]).toBeCloseTo(1.4 * Math.SQRT1_2, 4);
  });
});

describe("what a server says", () => {
  it("is read line by line, wherever the parts are cut", async () => {
    const parts = ['{"done": 1, "to', 'tal": 2}\n{"waiting": true}\n{"pa', 'ge": "x"}'];
    const body = new ReadableStream({
      start(controller) {
        for (const part of parts) controller.enqueue(new TextEncoder().encode(part));
        controller.close();
      },
    });
    const found = [];
    for await (const event of events(new Response(body))) found.push(event);
    expect(found).toEqual([{ done: 1, total: 2 }, { waiting: true }, { page: "x" }]);
  });
});

import { createHash } from "node:crypto";
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { defineConfig, type Plugin } from "vite";

const BESIDE = ["index.html", "package-lock.json", "package.json", "tsconfig.json", "vite.config.ts"];

/** A hash of all that the page is built from; tests/microscopy/test_built_page.py computes it too. */
function hashSources(root: string): string {
  const inside = readdirSync(join(root, "src"), { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => join(entry.parentPath, entry.name).slice(root.length + 1).replaceAll("\\", "/"));
  const hash = createHash("sha256");
  for (const name of [...BESIDE, ...inside].sort()) {
    hash.update(`${name}\0${readFileSync(join(root, name), "utf-8").replaceAll("\r\n", "\n")}\0`);
  }
  return hash.digest("hex");
}

/** Put the script and the styles into the page, so that it is one file, and say what it is made of. */
function oneFile(): Plugin {
  return {
    name: "one-file",
    enforce: "post",
    generateBundle(_, bundle) {
      const page = bundle["index.html"];
      if (page?.type !== "asset") throw new Error("there is no index.html");
      let html = String(page.source);
      html = html.replace(/\s*<(script|link)[^>]*(src|href)="(?!data:)[^"]*"[^>]*>(<\/script>)?/g, "");
      const built = createHash("sha256");
      for (const [name, item] of Object.entries(bundle).sort(([a], [b]) => (a < b ? -1 : 1))) {
        if (item === page) continue;
        const text = item.type === "chunk" ? item.code.trim() : String(item.source).trim();
        if (text.includes("</script") || text.includes("</style")) {
          throw new Error(`${name} would end its own element`);
        }
        const element = item.type === "chunk" ? `<script>${text}</script>` : `<style>${text}</style>`;
        const mark = item.type === "chunk" ? "<!--clearvit:script-->" : "<!--clearvit:style-->";
        html = html.replace(mark, () => element);
        delete bundle[name];
      }
      for (const [, text] of html.matchAll(/<(?:script|style)>(.*?)<\/(?:script|style)>/gs)) built.update(`${text}\0`);
      const source = `<meta name="clearvit-source" content="${hashSources(import.meta.dirname)}">`;
      html = html.replace("<!--clearvit:source-->", `${source}\n<meta name="clearvit-built" content="${built.digest("hex")}">`);
      page.source = html;
      page.fileName = "microscope.html";
    },
  };
}

export default defineConfig({
  plugins: [oneFile()],
  build: {
    target: "es2022",
    outDir: "../src/clearvit/microscopy",
    emptyOutDir: false,
    modulePreload: false,
    cssCodeSplit: false,
    rollupOptions: { output: { format: "iife", inlineDynamicImports: true } },
  },
});

import { defineConfig, type Plugin } from "vite";

/** Put the script and the styles into the page, so that it is one file. */
function oneFile(): Plugin {
  return {
    name: "one-file",
    enforce: "post",
    generateBundle(_, bundle) {
      const page = bundle["index.html"];
      if (page?.type !== "asset") throw new Error("there is no index.html");
      let html = String(page.source);
      html = html.replace(/\s*<(script|link)[^>]*(src|href)="[^"]*"[^>]*>(<\/script>)?/g, "");
      for (const [name, item] of Object.entries(bundle)) {
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

import { createHash } from "node:crypto";
import { readFileSync, readdirSync, statSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { defineConfig, type Plugin } from "vite";

const root = fileURLToPath(new URL(".", import.meta.url));

// What the build reads. tests/explorer/test_page_is_current.py makes the same hash without node.
const SOURCES = [".npmrc", "package-lock.json", "package.json", "public", "src", "tsconfig.json", "vite.config.ts"];

function files(path: string): string[] {
  if (!statSync(join(root, path)).isDirectory()) return [path];
  return readdirSync(join(root, path)).flatMap((name) => files(`${path}/${name}`));
}

/** SHA-256 over path, NUL, content, NUL of each source in the order of their paths, CRLF as LF. */
function hashOfSources(): string {
  const hash = createHash("sha256");
  for (const path of SOURCES.flatMap(files).sort()) {
    hash.update(`${path}\0${readFileSync(join(root, path), "utf8").replaceAll("\r\n", "\n")}\0`);
  }
  return hash.digest("hex");
}

function banner(): Plugin {
  return {
    name: "banner",
    enforce: "post",
    generateBundle: {
      order: "post",
      handler(_options, bundle) {
        const line = `/* Built from web/ by Vite, not to be edited. Sources: sha256 ${hashOfSources()} */\n`;
        for (const part of Object.values(bundle)) {
          if (part.type === "chunk") part.code = line + part.code;
          else part.source = line + part.source.toString();
        }
      },
    },
  };
}

export default defineConfig({
  root,
  define: { "process.env.NODE_ENV": '"production"' },
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  build: {
    outDir: "../src/htaf/concepts/explorer/page",
    emptyOutDir: true,
    target: "es2022",
    cssTarget: ["chrome123", "firefox120", "safari17.5"], // light-dark() stays
    minify: true,
    reportCompressedSize: false,
    // one classic script: a page that is opened from disk may not load modules
    lib: {
      entry: "src/main.tsx",
      formats: ["iife"],
      name: "htafExplorerPage",
      fileName: () => "app.js",
      cssFileName: "app",
    },
  },
  plugins: [banner()],
});

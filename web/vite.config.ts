import { fileURLToPath } from "node:url";
import { defineConfig } from "vite";

const SERVER = process.env["TIDINGS_URL"] ?? "http://127.0.0.1:8080";

// Two pages, each built by itself, so that neither loads what only the other needs: `vite build` and `vite build --mode console`.
const PAGES = {
  chat: { input: "index.html", files: "page/app", emptyOutDir: true },
  console: { input: "console/index.html", files: "console/app", emptyOutDir: false },
};

export default defineConfig(({ mode }) => {
  const { input, files, emptyOutDir } = mode === "console" ? PAGES.console : PAGES.chat;
  return {
    resolve: {
      // The client's sources, so that no build of it can be forgotten.
      alias: { "@tidings/client": fileURLToPath(new URL("../sdk/typescript/src/index.ts", import.meta.url)) },
    },
    build: {
      target: "es2022",
      cssTarget: "esnext", // `light-dark()` stays as it is written
      modulePreload: false,
      cssCodeSplit: false,
      assetsInlineLimit: 0, // the pages' policy has no inline content
      emptyOutDir,
      rollupOptions: {
        input,
        // The same names after every build: the server compiles these files in, and tells browsers by a tag whether they changed.
        output: { entryFileNames: `${files}.js`, assetFileNames: `${files}[extname]`, codeSplitting: false },
      },
    },
    // `npm run dev` shows the sources beside a server in development mode: the chat page at /, the console at /console/.
    server: {
      proxy: {
        "/v1": { target: SERVER, ws: true },
        "/page/users": { target: SERVER, changeOrigin: true },
        "/metrics": { target: SERVER },
        "/readyz": { target: SERVER },
      },
    },
  };
});

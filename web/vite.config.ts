import { fileURLToPath } from "node:url";
import { defineConfig } from "vite";

const SERVER = process.env["TIDINGS_URL"] ?? "http://127.0.0.1:8080";

export default defineConfig({
  resolve: {
    // The client's sources, so that no build of it can be forgotten.
    alias: { "@tidings/client": fileURLToPath(new URL("../sdk/typescript/src/index.ts", import.meta.url)) },
  },
  build: {
    target: "es2022",
    cssTarget: "esnext", // `light-dark()` stays as it is written
    modulePreload: false,
    cssCodeSplit: false,
    assetsInlineLimit: 0, // the page's policy has no inline content
    rollupOptions: {
      // The same names after every build: the server compiles these files in, and tells browsers by a tag whether they changed.
      output: { entryFileNames: "page/app.js", assetFileNames: "page/app[extname]", codeSplitting: false },
    },
  },
  // `npm run dev` shows the sources beside a server in development mode.
  server: { proxy: { "/v1": { target: SERVER, ws: true }, "/page/users": { target: SERVER, changeOrigin: true } } },
});

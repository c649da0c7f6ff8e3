// The console: what a server does, and what its operators may do about it.
//
// Read in this order: `app.tsx` (the key, then the pages), `state/api.ts` (every call to the server), `metrics/` (from the text of
// `/metrics` to figures over time), `pages/` (one file per page), `parts/` (what pages share). It shares the theme, the basic
// styles, dialogs and how icons are drawn with the chat page in `../../src`, and nothing else.
import { render } from "preact";
import { applyTheme } from "../../src/state/theme.js";
import { App } from "./app.js";
import "../../src/styles/shared.css";
import "uplot/dist/uPlot.min.css";
import "./styles/frame.css";
import "./styles/parts.css";
import "./styles/pages.css";

applyTheme();
const place = document.getElementById("page");
if (place) render(<App />, place);

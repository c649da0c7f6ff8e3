// The chat page: one user of a Tidings server, in one window.
//
// Read in this order: `page.tsx` (who the window is), `messenger.tsx` (its two halves), `list/`, `chat/` (a conversation: `history.tsx`
// draws no more of it than is seen), `parts/` (what both use), `state/` (what the client does not keep: names, drafts, the
// theme). Messages, counts and the connection are the client's, in sdk/typescript.
import { render } from "preact";
import { Page } from "./page.js";
import { applyTheme } from "./state/theme.js";
import "./styles/shared.css";
import "./styles/base.css";
import "./styles/list.css";
import "./styles/chat.css";
import "./styles/message.css";
import "./styles/composer.css";

applyTheme();
const place = document.getElementById("page");
if (place) render(<Page />, place);

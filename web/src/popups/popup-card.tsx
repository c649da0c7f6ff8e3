// The popup that suits the user now, as an app would show it: asked for when the page opens, or triggered by the server.
import type { PopupButton, PopupDecision, PopupEvent, Tidings } from "@tidings/client";
import { useEffect, useState } from "preact/hooks";
import { hashOf } from "../address.js";
import { IconButton } from "../parts/icon.js";
import { useSession } from "../state/context.js";

const PLACEMENT = "chat";

export function PopupSummary() {
  const { tidings, assistant } = useSession();
  const [popup, setPopup] = useState<PopupDecision>();

  useEffect(() => {
    let isOver = false;
    tidings.popups.ask({ placement: PLACEMENT }).then(
      ({ show }) => !isOver && show && setPopup(show),
      () => undefined, // a page never waits for a popup
    );
    const end = tidings.on("popup", setPopup);
    return () => {
      isOver = true;
      end();
    };
  }, [tidings]);

  useEffect(() => {
    if (popup) report(tidings, popup, { type: "impression" });
  }, [tidings, popup]);

  if (!popup) return null;
  const { title, text, buttons = [] } = popup.content;
  const close = (event: Happened): void => {
    report(tidings, popup, event);
    setPopup(undefined);
  };
  const press = ({ id, action }: PopupButton): void => {
    close({ type: "button", button: id });
    if (action.type === "app" && action.name === assistant.id) location.hash = hashOf(tidings.direct(assistant.id).id);
    if (action.type === "open" && /^https?:/u.test(action.url)) window.open(action.url, "_blank", "noopener");
  };
  return (
    <div class="popup" role="dialog" aria-label={title ?? "Message"}>
      <header>
        {title !== undefined && <h2 dir="auto">{title}</h2>}
        <IconButton icon="close" label="Close" onClick={() => close({ type: "dismiss" })} />
      </header>
      {text !== undefined && <p dir="auto">{text}</p>}
      {buttons.length > 0 && (
        <div class="popup-buttons">
          {buttons.map((button, index) => (
            <button key={button.id} type="button" class={index === 0 ? "primary" : "plain"} onClick={() => press(button)}><bdi>{button.label}</bdi></button>
          ))}
        </div>
      )}
    </div>
  );
}

type Happened = Pick<PopupEvent, "type" | "button">;

/** Reported once for each kind of event, also from two windows: the id is the decision's. */
function report(tidings: Tidings, { decision }: PopupDecision, happened: Happened): void {
  tidings.popups.report([{ id: `${decision}:${happened.type}`, decision, at: Date.now(), ...happened }]).catch(() => undefined);
}

// One row of the history: the day, the line above what is new, and a message or a notice.
import type { Message, SentMessage } from "@tidings/client";
import { Component } from "preact";
import { Avatar } from "../parts/avatar.js";
import { Icon, IconButton } from "../parts/icon.js";
import { Name } from "../parts/name.js";
import { useName, useSession } from "../state/context.js";
import { reason } from "../state/toasts.js";
import { fullTimeText, previewOf, timeText } from "../text.js";
import type { MessageActions } from "./actions.js";
import { Body } from "./body.js";
import { NoticeText } from "./notice-text.js";
import type { Row } from "./rows.js";

export type Tick = "sent" | "delivered" | "read";

interface Props {
  readonly row: Row;
  readonly isGroup: boolean;
  readonly tick: Tick;
  readonly isFocusable: boolean;
  readonly isMarked: boolean;
  readonly position: number;
  readonly actions: MessageActions;
}

/** Draws a row again only when it has changed: a burst draws each row once. */
export class MessageRow extends Component<Props> {
  override shouldComponentUpdate(next: Props): boolean {
    const { row, ...before } = this.props;
    const { row: nextRow, ...after } = next;
    return differ(row, nextRow) || differ(before, after);
  }

  override render() {
    const { row, isMarked } = this.props;
    return (
      <div class={`row ${isMarked ? "is-marked" : ""}`}>
        {row.day !== undefined && <div class="day"><span>{row.day}</span></div>}
        {row.isFirstNew && <div class="first-new"><span>New</span></div>}
        {row.item.is === "notice" ? (
          <div class="notice" data-key={row.key}><NoticeText notice={row.item} /></div>
        ) : (
          <MessageArticle {...this.props} message={row.item} />
        )}
      </div>
    );
  }
}

function differ<T extends object>(one: T, other: T): boolean {
  return (Object.keys(one) as (keyof T)[]).some((name) => one[name] !== other[name]);
}

function MessageArticle({ row, message, isGroup, tick, isFocusable, position, actions }: Props & { readonly message: Message }) {
  const { tidings } = useSession();
  const isMine = message.from === tidings.user;
  const sender = useName(message.from);
  const isSent = message.state === "sent";
  const recalled = isSent ? message.recalled : undefined;
  const shape = `${isMine ? "is-mine" : ""} ${row.isFirst ? "is-first" : ""} ${row.isLast ? "is-last" : ""} is-${message.state}`;
  const speaker = message.from === undefined ? "The conversation" : isMine ? "You" : sender;
  return (
    <article
      class={`message ${shape}`}
      data-key={row.key}
      data-seq={isSent ? message.seq : undefined}
      data-state={message.state}
      tabIndex={isFocusable ? 0 : -1}
      aria-label={`${speaker}, ${timeText(message.at)}`}
      aria-posinset={position}
      aria-setsize={-1}
    >
      {!isMine && (
        <span class="message-avatar">{row.isLast && <Avatar id={message.from ?? message.conversation} name={message.from === undefined ? "·" : sender} />}</span>
      )}
      <div class="message-column">
        {row.isFirst && !isMine && isGroup && message.from !== undefined && <span class="message-from"><bdi>{sender}</bdi></span>}
        <div class="message-line">
          <div class={`bubble ${recalled ? "is-recalled" : ""}`}>
            {message.replyTo && !recalled && <Quote message={message} actions={actions} />}
            {recalled ? <p class="body is-note">This message was taken back.</p> : <Body message={message} />}
            <span class="message-meta">
              {isSent && message.pinned && <span role="img" aria-label="pinned"><Icon name="pin" /></span>}
              {isSent && message.edited && !recalled && <span class="message-edited">edited</span>}
              <time dateTime={new Date(message.at).toISOString()} title={fullTimeText(message.at)}>{timeText(message.at)}</time>
              {isMine && <State message={message} tick={tick} />}
            </span>
          </div>
          {isSent && !recalled && <Toolbar message={message} isMine={isMine} actions={actions} />}
        </div>
        {isSent && message.reactions.length > 0 && <Reactions message={message} actions={actions} />}
        {message.state === "refused" && (
          <p class="refused" role="alert">
            <span>Not sent. {reason(message.error)}</span>
            <button type="button" class="link" onClick={() => actions.retry(message.clientMsgId ?? "")}>Try again</button>
            <button type="button" class="link" onClick={() => actions.discard(message.clientMsgId ?? "")}>Discard</button>
          </p>
        )}
      </div>
    </article>
  );
}

function State({ message, tick }: { readonly message: Message; readonly tick: Tick }) {
  const [icon, label] =
    message.state === "pending" ? (["clock", "sending"] as const)
    : message.state === "refused" ? (["alert", "not sent"] as const)
    : tick === "sent" ? (["check", "sent"] as const)
    : (["checks", tick] as const);
  return <span class={`message-state is-${label.replace(" ", "-")}`} role="img" aria-label={label} title={label}><Icon name={icon} /></span>;
}

function Quote({ message, actions }: { readonly message: Message; readonly actions: MessageActions }) {
  const { replyTo: quote } = message;
  if (!quote) return null;
  return (
    <button type="button" class="quote" onClick={() => actions.jump(quote.seq)}>
      <span class="quote-from">{quote.from === undefined ? "Answer" : <Name user={quote.from} />}</span>
      <span class="quote-text" dir="auto">{quote.recalled ? "This message was taken back." : previewOf(quote.type ?? "text", quote.body)}</span>
    </button>
  );
}

function Toolbar({ message, isMine, actions }: { readonly message: SentMessage; readonly isMine: boolean; readonly actions: MessageActions }) {
  return (
    <div class="toolbar" role="group" aria-label="Actions">
      <IconButton icon="smile" label="React" onClick={(event) => actions.pick(message, event.currentTarget as Element)} />
      {actions.mayWrite && <IconButton icon="reply" label="Reply" onClick={() => actions.reply(message)} />}
      {isMine && actions.mayWrite && <IconButton icon="edit" label="Edit" onClick={() => actions.edit(message)} />}
      <IconButton icon="copy" label="Copy the text" onClick={() => actions.copy(message)} />
      {actions.mayPin && <IconButton icon="pin" label={message.pinned ? "Unpin" : "Pin"} onClick={() => actions.pin(message)} />}
      {(isMine || actions.mayModerate) && <IconButton icon="undo" label="Take back" onClick={() => actions.recall(message)} />}
    </div>
  );
}

function Reactions({ message, actions }: { readonly message: SentMessage; readonly actions: MessageActions }) {
  const { tidings } = useSession();
  return (
    <div class="reactions">
      {message.reactions.map(({ key, count, users }) => {
        const isMine = users.includes(tidings.user);
        return (
          <button
            key={key}
            type="button"
            class={`reaction ${isMine ? "is-mine" : ""}`}
            aria-pressed={isMine}
            aria-label={`${key}, ${count}`}
            onClick={() => actions.react(message, key)}
          >
            <bdi class="reaction-key">{key}</bdi> <span>{count}</span>
          </button>
        );
      })}
      <IconButton class="reaction-more" icon="smile" label="Add a reaction" onClick={(event) => actions.pick(message, event.currentTarget as Element)} />
    </div>
  );
}

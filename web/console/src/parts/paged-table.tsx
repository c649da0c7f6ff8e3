// A table of a list that the server hands out page by page.
import { useState } from "preact/hooks";
import { ask, withQuery } from "../state/api.js";
import type { Paged } from "../state/types.js";
import { useAsk, type Asked } from "../state/use-ask.js";
import { Loaded, Table, type Column, type Row } from "./layout.js";

const PAGE = 50;

type After = string | number;

export interface Pages<P> extends Asked<P> {
  readonly isFirst: boolean;
  /** Goes behind a place of the list; without one, to its beginning. */
  readonly go: (after: After | undefined) => void;
}

/** The pages of the list at this address. Another list begins at its first page. */
export function usePages<P extends Paged<After>>(where: string): Pages<P> {
  const [place, setPlace] = useState<{ readonly where: string; readonly after: After | undefined }>();
  const after = place?.where === where ? place.after : undefined;
  const asked = useAsk(() => ask<P>(withQuery(where, { after, limit: PAGE })), [where, after]);
  return { ...asked, isFirst: after === undefined, go: (next) => setPlace({ where, after: next }) };
}

export function PagedTable<P extends Paged<After>>({ pages, rows, ...table }: {
  readonly pages: Pages<P>;
  readonly label: string;
  readonly columns: readonly Column[];
  readonly rows: (page: P) => readonly Row[];
  readonly empty?: string;
}) {
  return (
    <Loaded asked={pages}>
      {(page) => (
        <>
          <Table {...table} rows={rows(page)} />
          <div class="row">
            {!pages.isFirst && <button type="button" class="plain" onClick={() => pages.go(undefined)}>First page</button>}
            {page.next !== undefined && page.next !== null && <button type="button" class="plain" onClick={() => pages.go(page.next ?? undefined)}>Next page</button>}
          </div>
        </>
      )}
    </Loaded>
  );
}

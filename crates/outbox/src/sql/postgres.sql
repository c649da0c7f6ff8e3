-- The outbox of Tidings in PostgreSQL 13 or later, in the schema of the app's tables. docs/outbox.md explains it.

CREATE TABLE tidings_outbox (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    -- By which a request is stored once. Not the number: a database that was restored gives numbers again.
    key uuid NOT NULL DEFAULT gen_random_uuid(),
    operation text NOT NULL CHECK (operation IN ('send', 'push', 'popup_events', 'members')),
    -- The conversation, whose rows are taken by place: 1, 2, 3, with no hole among those that are committed.
    conversation text COLLATE "C",
    place bigint,
    -- The body of the same request over HTTP.
    request json NOT NULL CHECK (octet_length(request::text) <= 1048576),
    -- waiting; done: `result` has the answer; refused: `code` and `detail` say why, and the conversation waits; skipped: by tidings_skip.
    state text NOT NULL DEFAULT 'waiting' CHECK (state IN ('waiting', 'done', 'refused', 'skipped')),
    result json,
    code text,
    detail text,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    finished_at timestamptz,
    UNIQUE (conversation, place),
    CHECK ((conversation IS NULL) = (place IS NULL))
);
CREATE INDEX tidings_outbox_waiting ON tidings_outbox (id) WHERE state = 'waiting';
CREATE INDEX tidings_outbox_refused ON tidings_outbox (conversation) WHERE state = 'refused';
CREATE INDEX tidings_outbox_finished ON tidings_outbox (finished_at) WHERE state IN ('done', 'skipped');

-- The place of each conversation's last row. The row is locked until the transaction that has written it ends.
CREATE TABLE tidings_outbox_conversations (
    conversation text COLLATE "C" PRIMARY KEY,
    place bigint NOT NULL
);

-- Which server reads the table: one row.
CREATE TABLE tidings_outbox_reader (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    owner text NOT NULL DEFAULT '',
    beat bigint NOT NULL DEFAULT 0
);
INSERT INTO tidings_outbox_reader DEFAULT VALUES;

-- The conversation of a message, which names it, or two users.
CREATE FUNCTION tidings_outbox_conversation(of_request json) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path FROM CURRENT AS $$
DECLARE
    named text := of_request->>'conversation';
    one text := of_request->>'from';
    other text := of_request->>'to';
BEGIN
    IF named IS NOT NULL AND other IS NULL THEN
        RETURN named;
    ELSIF named IS NULL AND one IS NOT NULL AND other IS NOT NULL THEN
        RETURN least(one COLLATE "C", other COLLATE "C") || '~' || greatest(one COLLATE "C", other COLLATE "C");
    END IF;
    RAISE EXCEPTION 'a message names its conversation, or the users from and to';
END $$;

CREATE FUNCTION tidings_outbox_put(of_operation text, of_conversation text, of_request json) RETURNS bigint
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    new_place bigint;
    new_id bigint;
BEGIN
    IF of_conversation IS NOT NULL THEN
        INSERT INTO tidings_outbox_conversations AS last (conversation, place) VALUES (of_conversation, 1)
            ON CONFLICT (conversation) DO UPDATE SET place = last.place + 1 RETURNING last.place INTO new_place;
    END IF;
    INSERT INTO tidings_outbox (operation, conversation, place, request)
        VALUES (of_operation, of_conversation, new_place, of_request) RETURNING id INTO new_id;
    PERFORM pg_notify('tidings_outbox', '');
    RETURN new_id;
END $$;

-- A message, when this transaction has committed. The request is the body of POST /v1/messages. Answers the row's id.
CREATE FUNCTION tidings_send(request json) RETURNS bigint
LANGUAGE sql SET search_path FROM CURRENT AS $$
    SELECT tidings_outbox_put('send', tidings_outbox_conversation(request), request)
$$;

-- Who else writes to these conversations waits for the end of this transaction. Locked in the order of their ids, whatever the order of
-- the list: transactions that begin with all that they are going to write to wait for each other, and never in a circle.
CREATE FUNCTION tidings_lock(conversations text[]) RETURNS void
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    one text;
BEGIN
    FOR one IN SELECT DISTINCT named COLLATE "C" FROM unnest(conversations) AS named ORDER BY 1 LOOP
        INSERT INTO tidings_outbox_conversations AS last (conversation, place) VALUES (one, 0)
            ON CONFLICT (conversation) DO UPDATE SET place = last.place;
    END LOOP;
END $$;

-- Several messages, as a JSON array: their conversations are locked before the first is written.
CREATE FUNCTION tidings_send_all(requests json) RETURNS SETOF bigint
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    one json;
BEGIN
    PERFORM tidings_lock(ARRAY(SELECT tidings_outbox_conversation(value) FROM json_array_elements(requests)));
    FOR one IN SELECT value FROM json_array_elements(requests) LOOP
        RETURN NEXT tidings_send(one);
    END LOOP;
END $$;

-- A change of members; the request is the body of POST /v1/conversations/{conversation}/members.
CREATE FUNCTION tidings_change_members(conversation text, request json) RETURNS bigint
LANGUAGE sql SET search_path FROM CURRENT AS $$
    SELECT tidings_outbox_put('members', conversation, request)
$$;

-- Pushes and popup events are in no order. The requests are the bodies of POST /v1/push and POST /v1/popup-events.
CREATE FUNCTION tidings_push(request json) RETURNS bigint
LANGUAGE sql SET search_path FROM CURRENT AS $$
    SELECT tidings_outbox_put('push', NULL, request)
$$;
CREATE FUNCTION tidings_popup_events(request json) RETURNS bigint
LANGUAGE sql SET search_path FROM CURRENT AS $$
    SELECT tidings_outbox_put('popup_events', NULL, request)
$$;

-- Has a refused row tried again, with another request if one is given. Answers whether there was such a row.
CREATE FUNCTION tidings_retry(of_id bigint, other_request json DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    was_there boolean;
BEGIN
    UPDATE tidings_outbox SET state = 'waiting', request = coalesce(other_request, request), code = NULL, detail = NULL, finished_at = NULL
        WHERE id = of_id AND state = 'refused';
    was_there := FOUND;
    PERFORM pg_notify('tidings_outbox', '');
    RETURN was_there;
END $$;

-- Leaves a refused row out, so that those behind it go on. Answers whether there was such a row.
CREATE FUNCTION tidings_skip(of_id bigint) RETURNS boolean
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    was_there boolean;
BEGIN
    UPDATE tidings_outbox SET state = 'skipped', finished_at = clock_timestamp() WHERE id = of_id AND state = 'refused';
    was_there := FOUND;
    PERFORM pg_notify('tidings_outbox', '');
    RETURN was_there;
END $$;

-- A row that waits may be stored by Tidings at this moment: what it asks for changes only after a refusal.
CREATE FUNCTION tidings_outbox_guard() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.state <> 'refused' AND (OLD.request::text, OLD.operation, OLD.conversation, OLD.place, OLD.key)
        IS DISTINCT FROM (NEW.request::text, NEW.operation, NEW.conversation, NEW.place, NEW.key) THEN
        RAISE EXCEPTION 'row % is %: only a refused row can be corrected (tidings_retry)', OLD.id, OLD.state;
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER tidings_outbox_guard BEFORE UPDATE OF request, operation, conversation, place, key ON tidings_outbox
    FOR EACH ROW EXECUTE FUNCTION tidings_outbox_guard();

-- The outbox of Tidings in MariaDB 10.6 or later, or MySQL 8.0.21 or later, in the database of the app's tables. docs/outbox.md explains it.
-- For the clients `mariadb` and `mysql`, which know DELIMITER. With a binary log the trigger needs log_bin_trust_function_creators = 1.

CREATE TABLE tidings_outbox (
    id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    -- By which a request is stored once. Not the number: a database that was restored gives numbers again.
    `key` CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    operation ENUM('send', 'push', 'popup_events', 'members') NOT NULL,
    -- The conversation, whose rows are taken by place: 1, 2, 3, with no hole among those that are committed.
    conversation VARCHAR(160) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    place BIGINT,
    -- The body of the same request over HTTP.
    request LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL CHECK (JSON_VALID(request) AND LENGTH(request) <= 1048576),
    -- waiting; done: `result` has the answer; refused: `code` and `detail` say why, and the conversation waits; skipped: by tidings_skip.
    state ENUM('waiting', 'done', 'refused', 'skipped') NOT NULL DEFAULT 'waiting',
    result LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    code VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin,
    detail TEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    -- UTC.
    created_at DATETIME(3) NOT NULL,
    finished_at DATETIME(3),
    UNIQUE KEY tidings_outbox_place (conversation, place),
    KEY tidings_outbox_waiting (state, id),
    KEY tidings_outbox_refused (state, conversation),
    KEY tidings_outbox_finished (state, finished_at)
) ENGINE = InnoDB;

-- The place of each conversation's last row. The row is locked until the transaction that has written it ends.
CREATE TABLE tidings_outbox_conversations (
    conversation VARCHAR(160) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL PRIMARY KEY,
    place BIGINT NOT NULL
) ENGINE = InnoDB;

-- Which server reads the table: one row.
CREATE TABLE tidings_outbox_reader (
    one TINYINT NOT NULL PRIMARY KEY DEFAULT 1 CHECK (one = 1),
    owner VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '',
    beat BIGINT NOT NULL DEFAULT 0
) ENGINE = InnoDB;
INSERT INTO tidings_outbox_reader () VALUES ();

DELIMITER //

-- The conversation of a message, which names it, or two users.
CREATE PROCEDURE tidings_outbox_conversation(IN of_request LONGTEXT CHARACTER SET utf8mb4, OUT found VARCHAR(160) CHARACTER SET utf8mb4)
BEGIN
    DECLARE named, one, other VARCHAR(160) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
    SET named = JSON_VALUE(of_request, '$.conversation');
    SET one = JSON_VALUE(of_request, '$.from');
    SET other = JSON_VALUE(of_request, '$.to');
    IF named IS NOT NULL AND other IS NULL THEN
        SET found = named;
    ELSEIF named IS NULL AND one IS NOT NULL AND other IS NOT NULL THEN
        SET found = CONCAT(LEAST(one, other), '~', GREATEST(one, other));
    ELSE
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'a message names its conversation, or the users from and to';
    END IF;
END //

CREATE PROCEDURE tidings_outbox_put(
    IN of_operation VARCHAR(16), IN of_conversation VARCHAR(160) CHARACTER SET utf8mb4, IN of_request LONGTEXT CHARACTER SET utf8mb4)
BEGIN
    DECLARE new_place BIGINT;
    IF of_conversation IS NOT NULL THEN
        INSERT INTO tidings_outbox_conversations (conversation, place) VALUES (of_conversation, 1)
            ON DUPLICATE KEY UPDATE place = place + 1;
        SELECT place INTO new_place FROM tidings_outbox_conversations
            WHERE conversation = CONVERT(of_conversation USING utf8mb4) COLLATE utf8mb4_bin FOR UPDATE;
    END IF;
    INSERT INTO tidings_outbox (`key`, operation, conversation, place, request, created_at)
        VALUES (UUID(), of_operation, of_conversation, new_place, of_request, UTC_TIMESTAMP(3));
END //

-- A message, when this transaction has committed. The request is the body of POST /v1/messages. LAST_INSERT_ID() is the row's id.
CREATE PROCEDURE tidings_send(IN request LONGTEXT CHARACTER SET utf8mb4)
BEGIN
    DECLARE found VARCHAR(160) CHARACTER SET utf8mb4;
    CALL tidings_outbox_conversation(request, found);
    CALL tidings_outbox_put('send', found, request);
END //

-- Who else writes to these conversations, a JSON array of ids, waits for the end of this transaction. Locked in the order of their ids,
-- whatever the order of the list: transactions that begin with all that they are going to write to wait for each other, and never in a circle.
CREATE PROCEDURE tidings_lock(IN conversations LONGTEXT CHARACTER SET utf8mb4)
BEGIN
    DECLARE one VARCHAR(160) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
    DECLARE is_over BOOLEAN DEFAULT FALSE;
    DECLARE named CURSOR FOR SELECT DISTINCT listed.id COLLATE utf8mb4_bin AS id
        FROM JSON_TABLE(conversations, '$[*]' COLUMNS (id VARCHAR(160) CHARACTER SET utf8mb4 PATH '$')) AS listed ORDER BY id;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET is_over = TRUE;
    OPEN named;
    locking: LOOP
        FETCH named INTO one;
        IF is_over THEN
            LEAVE locking;
        END IF;
        INSERT INTO tidings_outbox_conversations (conversation, place) VALUES (one, 0) ON DUPLICATE KEY UPDATE place = place;
    END LOOP;
    CLOSE named;
END //

-- Several messages, as a JSON array: their conversations are locked before the first is written.
CREATE PROCEDURE tidings_send_all(IN requests LONGTEXT CHARACTER SET utf8mb4)
BEGIN
    DECLARE found VARCHAR(160) CHARACTER SET utf8mb4;
    DECLARE named LONGTEXT CHARACTER SET utf8mb4 DEFAULT '[]';
    DECLARE at_row, rows_in_all INT DEFAULT 0;
    SET rows_in_all = JSON_LENGTH(requests);
    WHILE at_row < rows_in_all DO
        CALL tidings_outbox_conversation(JSON_EXTRACT(requests, CONCAT('$[', at_row, ']')), found);
        SET named = JSON_ARRAY_APPEND(named, '$', found);
        SET at_row = at_row + 1;
    END WHILE;
    CALL tidings_lock(named);
    SET at_row = 0;
    WHILE at_row < rows_in_all DO
        CALL tidings_send(JSON_EXTRACT(requests, CONCAT('$[', at_row, ']')));
        SET at_row = at_row + 1;
    END WHILE;
END //

-- A change of members; the request is the body of POST /v1/conversations/{conversation}/members.
CREATE PROCEDURE tidings_change_members(IN conversation VARCHAR(160) CHARACTER SET utf8mb4, IN request LONGTEXT CHARACTER SET utf8mb4)
BEGIN
    CALL tidings_outbox_put('members', conversation, request);
END //

-- Pushes and popup events are in no order. The requests are the bodies of POST /v1/push and POST /v1/popup-events.
CREATE PROCEDURE tidings_push(IN request LONGTEXT CHARACTER SET utf8mb4)
BEGIN
    CALL tidings_outbox_put('push', NULL, request);
END //
CREATE PROCEDURE tidings_popup_events(IN request LONGTEXT CHARACTER SET utf8mb4)
BEGIN
    CALL tidings_outbox_put('popup_events', NULL, request);
END //

-- Has a refused row tried again, with another request unless that is NULL. ROW_COUNT() says whether there was such a row.
CREATE PROCEDURE tidings_retry(IN of_id BIGINT, IN other_request LONGTEXT CHARACTER SET utf8mb4)
BEGIN
    UPDATE tidings_outbox
        SET request = COALESCE(other_request, request), state = 'waiting', code = NULL, detail = NULL, finished_at = NULL
        WHERE id = of_id AND state = 'refused';
END //

-- Leaves a refused row out, so that those behind it go on. ROW_COUNT() says whether there was such a row.
CREATE PROCEDURE tidings_skip(IN of_id BIGINT)
BEGIN
    UPDATE tidings_outbox SET state = 'skipped', finished_at = UTC_TIMESTAMP(3) WHERE id = of_id AND state = 'refused';
END //

-- A row that waits may be stored by Tidings at this moment: what it asks for changes only after a refusal.
CREATE TRIGGER tidings_outbox_guard BEFORE UPDATE ON tidings_outbox FOR EACH ROW
BEGIN
    IF OLD.state <> 'refused' AND NOT (OLD.request <=> NEW.request AND OLD.operation <=> NEW.operation
        AND OLD.conversation <=> NEW.conversation AND OLD.place <=> NEW.place AND OLD.`key` <=> NEW.`key`) THEN
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'the row is not refused: only a refused row can be corrected (tidings_retry)';
    END IF;
END //

DELIMITER ;

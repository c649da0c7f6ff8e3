-- Notifications that wait for another attempt, and messages that a session did not acknowledge: they were rows of
-- dead_notifications, whose ids said what they were. Such rows are read as before, and go as they are dealt with; the tables
-- are written once the gate "notification_tables" is open.
-- needs program: 3

CREATE TABLE notification_retries (
    id bigint PRIMARY KEY,
    row bytea NOT NULL
);

CREATE TABLE unacknowledged_messages (
    id bigint PRIMARY KEY,
    row bytea NOT NULL
);

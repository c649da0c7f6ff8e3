-- Before when each user's tokens are revoked, in milliseconds since 1970 UTC. A column of its own: programs that do not
-- know of it write a user's card anew and leave it as it is.
-- needs program: 3

ALTER TABLE users ADD COLUMN revoked_at bigint NOT NULL DEFAULT 0;

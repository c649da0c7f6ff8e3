-- The digest of the request behind each first result: another request with the same id is refused. First results are kept by
-- conversation, too, without another key: where the id alone is taken by another conversation, client_msg_id is the conversation's
-- number, a slash and the id (no id has a slash), and the sender of messages without one is the conversation's number, negative.
-- Nodes of the previous version find and write what they know, and leave the digest out.
-- needs program: 3

ALTER TABLE dedupe ADD COLUMN request bytea;

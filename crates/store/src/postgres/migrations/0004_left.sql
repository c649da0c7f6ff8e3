-- When a member last left each conversation: another node may not have heard of it yet.
-- needs program: 3

ALTER TABLE heads ADD COLUMN left_at bigint NOT NULL DEFAULT 0;

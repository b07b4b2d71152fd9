-- The session of the owner of a lease: it holds an advisory lock on witness. A lease whose witness has ended need not be waited for. It
-- counts at the epoch witness_epoch only: a relay that does not know the columns leaves them as they are.
ALTER TABLE "boxpair"."outbox_shards" ADD COLUMN witness bigint, ADD COLUMN witness_epoch bigint;

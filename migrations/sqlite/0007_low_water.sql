-- Up to where the queue of a shard has no row and will get none. It counts for the epoch that comes next, in the same history
-- of the database: a relay that does not know the columns leaves them as they are, and what it does may make them wrong.
ALTER TABLE "boxpair_outbox_shards" ADD COLUMN low_water INTEGER;
ALTER TABLE "boxpair_outbox_shards" ADD COLUMN low_epoch INTEGER;
ALTER TABLE "boxpair_outbox_shards" ADD COLUMN low_history TEXT;

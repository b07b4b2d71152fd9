-- Up to where the queue of a shard has no row and will get none, so that the next owner need not step over all that was delivered
-- and cannot be purged while somebody holds an old snapshot. It counts for the epoch that comes next, in the same history
-- of the database: a relay that does not know the columns leaves them as they are, and what it does may make them wrong.
ALTER TABLE `boxpair_outbox_shards` ADD COLUMN `low_water` BIGINT NULL;
ALTER TABLE `boxpair_outbox_shards` ADD COLUMN `low_epoch` BIGINT NULL;
ALTER TABLE `boxpair_outbox_shards` ADD COLUMN `low_history` VARBINARY(1024) NULL;

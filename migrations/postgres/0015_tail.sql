-- Up to where an owner has read the queue of a shard, and left nothing there but events of the keys that tail_passed names: the next
-- owner reads on from there. It counts as low_water does.
ALTER TABLE "boxpair"."outbox_shards" ADD COLUMN tail bigint, ADD COLUMN tail_round bigint, ADD COLUMN tail_passed bytea;

-- Since when a lease runs, and a relay is visible. A lease whose beginning lies further ahead than it lasts is of before the clock was
-- set back, and has expired, however long others ask for. A relay that does not know the columns leaves them as they are.
ALTER TABLE "boxpair_outbox_shards" ADD COLUMN leased_at INTEGER;
ALTER TABLE "boxpair_outbox_relays" ADD COLUMN seen_at INTEGER;

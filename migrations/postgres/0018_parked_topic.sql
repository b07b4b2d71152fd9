-- The topic of an event that a relay has parked, so that dead letters are counted by cause without a look at the log,
-- where each of them is on a page of its own. NULL: it was cancelled, or parked by an earlier version. The log tells.
ALTER TABLE "boxpair"."outbox_parked" ADD COLUMN topic text COLLATE "C";

-- The topic of a parked event, so that dead letters are counted by cause without a look at the log, where each of
-- them is on a page of its own. NULL: an earlier version parked the event, and the log tells.
ALTER TABLE "boxpair"."outbox_parked" ADD COLUMN topic text COLLATE "C";

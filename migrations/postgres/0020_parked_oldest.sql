-- The index of the oldest live event serves the one question for it, by a condition that no other statement has. The planner would look
-- through all live events by it, for the first one of each key, once an ANALYZE has seen dead events only and they are redriven.
DROP INDEX "boxpair"."outbox_parked_oldest";
CREATE INDEX "outbox_parked_oldest" ON "boxpair"."outbox_parked" (id)
    WHERE state IN ('retrying', 'following') AND shard >= 0;

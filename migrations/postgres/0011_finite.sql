-- A time without end cannot be sent. Rows that are there are not looked at: a relay buries what it cannot read.
ALTER TABLE "boxpair"."outbox_events"
    ADD CONSTRAINT occurred_at_finite CHECK (isfinite(occurred_at)) NOT VALID,
    ADD CONSTRAINT due_at_finite CHECK (isfinite(due_at)) NOT VALID;

-- A database that lost commits gives IDs out again, and the row of one event would pass for that of another which a relay
-- has in memory. So the first round of a row is a number below zero by chance. Those of rows that are queued again still
-- ascend from 1, above all that are the first. random() has at least 48 bits of chance, and costs the writer nothing to speak of.
ALTER TABLE "boxpair"."outbox_queue" ALTER COLUMN round SET DEFAULT -1 - (random() * 4503599627370496)::bigint;

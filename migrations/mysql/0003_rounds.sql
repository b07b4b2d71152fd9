-- A database that lost commits gives IDs out again, and the row of one event would pass for that of another which a relay
-- has in memory. So the first round of a row is a number below zero by chance: 52 bits, of which one RAND() has 30. (MySQL
-- takes no hash of a UUID as a default.) Those of rows that are queued again still ascend from 1, above all that are the first.
ALTER TABLE `boxpair_outbox_queue` ALTER COLUMN `round` SET DEFAULT (-1 - CAST(FLOOR(RAND() * 67108864) * 67108864 + FLOOR(RAND() * 67108864) AS SIGNED));

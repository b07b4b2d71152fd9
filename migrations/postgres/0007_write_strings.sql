-- Functions of outbox_write() that read a backslash in a string as itself, whatever standard_conforming_strings is
-- in the session that calls them.
ALTER FUNCTION "boxpair"."outbox_hash"(bytea) SET standard_conforming_strings = on;
ALTER FUNCTION "boxpair"."outbox_headers"(jsonb) SET standard_conforming_strings = on;

package child

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/boxpair/boxpair/store/postgres"
)

// Schema makes the tables of the service itself, besides the library's tables: the producer's
// orders and the consumer's effects.
//
// place inserts an order, once for each name, and returns its place among the orders of its key. It
// locks the aggregate first, which puts the events of a key in order. place_all does the same for
// many orders, and returns no row while the brake is on.
const Schema = `
CREATE TABLE aggregates (key text PRIMARY KEY, n bigint NOT NULL) WITH (fillfactor = 50);
CREATE TABLE orders (
    producer text NOT NULL, number bigint NOT NULL, key text NOT NULL, n bigint NOT NULL, amount bigint NOT NULL,
    PRIMARY KEY (producer, number)
);
CREATE FUNCTION place(p text, num bigint, k text, a bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE place bigint;
BEGIN
    INSERT INTO aggregates AS g VALUES (k, 0) ON CONFLICT (key) DO UPDATE SET n = g.n;
    SELECT o.n INTO place FROM orders o WHERE o.producer = p AND o.number = num;
    IF FOUND THEN
        RETURN place;
    END IF;
    UPDATE aggregates g SET n = g.n + 1 WHERE g.key = k RETURNING g.n INTO place;
    INSERT INTO orders VALUES (p, num, k, place, a);
    RETURN place;
END $$;
CREATE TABLE brake (held boolean NOT NULL);
INSERT INTO brake VALUES (false);
CREATE FUNCTION place_all(p text, first bigint, last bigint, keys bigint) RETURNS TABLE (num bigint, place bigint)
LANGUAGE plpgsql AS $$
BEGIN
    IF (SELECT held FROM brake) THEN
        RETURN;
    END IF;
    IF NOT EXISTS (SELECT FROM orders o WHERE o.producer = p AND o.number = first) THEN
        CREATE TEMPORARY TABLE IF NOT EXISTS placed (number bigint, key text, place bigint) ON COMMIT DELETE ROWS;
        INSERT INTO placed SELECT s, 'key-' || s % keys, row_number() OVER (PARTITION BY s % keys ORDER BY s)
        FROM generate_series(first, last) s;
        INSERT INTO aggregates AS g SELECT DISTINCT key, 0 FROM placed ORDER BY key
        ON CONFLICT (key) DO UPDATE SET n = g.n; -- locks, in one order
        INSERT INTO orders SELECT p, b.number, b.key, g.n + b.place, b.number * 7919 % 1000 - 300
        FROM placed b JOIN aggregates g USING (key);
        UPDATE aggregates g SET n = g.n + c.n FROM (SELECT key, count(*) AS n FROM placed GROUP BY key) c WHERE g.key = c.key;
    END IF;
    RETURN QUERY SELECT o.number, o.n FROM orders o WHERE o.producer = p AND o.number BETWEEN first AND last ORDER BY o.number;
END $$;
CREATE TABLE effects (
    seq bigint GENERATED ALWAYS AS IDENTITY, at timestamptz NOT NULL DEFAULT clock_timestamp(), sent timestamptz,
    consumer text NOT NULL, dispatch uuid NOT NULL, key text NOT NULL, n bigint NOT NULL, amount bigint NOT NULL
);
CREATE TABLE totals (
    consumer text NOT NULL, key text NOT NULL, count bigint NOT NULL, sum bigint NOT NULL, least bigint NOT NULL, most bigint NOT NULL,
    PRIMARY KEY (consumer, key)
) WITH (fillfactor = 50);`

// Install creates the tables of the library and of the service, as their owner, and grants every
// [Role] its privileges. The roles' logins must exist: see [CreateLogins].
func Install(ctx context.Context, url string) error { return install(ctx, url, Schema) }

// Upgrade brings the tables of the library up to date, and grants every [Role] its privileges.
func Upgrade(ctx context.Context, url string) error { return install(ctx, url, "") }

func install(ctx context.Context, url, schema string) error {
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return err
	}
	defer pool.Close()
	if _, err := postgres.Migrate(ctx, pool, postgres.Config{}); err != nil {
		return err
	}
	if _, err := pool.Exec(ctx, schema); err != nil {
		return fmt.Errorf("tables of the service: %w", err)
	}
	if _, err := pool.Exec(ctx, Grants()); err != nil {
		return fmt.Errorf("rights of the roles: %w", err)
	}
	return nil
}

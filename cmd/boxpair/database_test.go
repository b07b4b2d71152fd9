package main

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/boxpair/boxpair/internal/testenv"
)

func TestParametersOfAURLKeepTheirSpaces(t *testing.T) {
	t.Parallel()
	target, err := parseTarget("postgres://app@db/shop?options=-c%20statement_timeout%3D5s&boxpair_schema=events")
	ok(t, err)
	if got := target.pool.ConnConfig.RuntimeParams["options"]; got != "-c statement_timeout=5s" || target.schema != "events" {
		t.Errorf("options %q, schema %q", got, target.schema)
	}
}

func TestServerPastAPooler(t *testing.T) {
	t.Parallel()
	target, err := parseTarget("postgres://app:secret@pooler:6432/shop?boxpair_direct=db:5433&pool_max_conns=3&sslmode=require")
	ok(t, err)
	conn := target.direct
	if conn == nil {
		t.Fatal("no server is named")
	}
	if conn.Host != "db" || conn.Port != 5433 || conn.Password != "secret" || conn.TLSConfig == nil || conn.ConnectTimeout == 0 {
		t.Errorf("%s:%d, password %t, TLS %t, timeout %v", conn.Host, conn.Port, conn.Password != "", conn.TLSConfig != nil, conn.ConnectTimeout)
	}
	if _, set := conn.RuntimeParams["pool_max_conns"]; set {
		t.Error("a setting of the pool is sent to the server")
	}
	if pool := target.pool.ConnConfig; pool.Host != "pooler" || pool.Port != 6432 || pool.RuntimeParams[directParameter] != "" {
		t.Errorf("the pool goes to %s:%d, with %v", pool.Host, pool.Port, pool.RuntimeParams)
	}
	for _, wrong := range []string{"x@db", "db/other", "db:port", "db?a=b"} {
		_, err := parseTarget("postgres://app:secret@pooler/shop?boxpair_direct=" + wrong)
		if err == nil || !strings.Contains(err.Error(), directParameter) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", wrong, err)
		}
	}
}

// Nobody listens at the address of the server, and the relay says so instead of listening at the pooler.
func TestRelayListensAtTheServerPastAPooler(t *testing.T) {
	t.Parallel()
	target, err := parseTarget(testenv.Postgres(t) + "&boxpair_direct=127.0.0.1:1")
	ok(t, err)
	store, pool, end, err := openPostgres(t.Context(), &target, &places{})
	ok(t, err)
	defer end()
	ok(t, pool.Ping(t.Context()))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second) // it would listen at the pooler for good
	defer cancel()
	if err := store.Listen(ctx, func(string) {}); err == nil || !strings.Contains(err.Error(), "127.0.0.1:1") {
		t.Errorf("%v", err)
	}
}

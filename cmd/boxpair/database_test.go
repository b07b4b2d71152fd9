package main

import "testing"

func TestParametersOfAURLKeepTheirSpaces(t *testing.T) {
	t.Parallel()
	target, err := parseTarget("postgres://app@db/shop?options=-c%20statement_timeout%3D5s&boxpair_schema=events")
	ok(t, err)
	if got := target.pool.ConnConfig.RuntimeParams["options"]; got != "-c statement_timeout=5s" || target.schema != "events" {
		t.Errorf("options %q, schema %q", got, target.schema)
	}
}

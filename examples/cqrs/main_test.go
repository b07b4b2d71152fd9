package main

import (
	"path/filepath"
	"strings"
	"testing"
)

func TestEveryEventHasOneEffect(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	if err := run(t.Context(), filepath.Join(t.TempDir(), "shop.db"), &out); err != nil {
		t.Fatal(err)
	}
	if got, want := out.String(), "9 of 10 lamps left, 1 order confirmed\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

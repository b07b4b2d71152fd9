package main

import (
	"encoding/json"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// TestEveryCommandWithAResultPrintsJSON: the others print what a program of another format reads, or run
// until they are stopped.
func TestEveryCommandWithAResultPrintsJSON(t *testing.T) {
	t.Parallel()
	without := []string{"relay", "ui", "migrate sql", "migrate grants"}
	for i := range commands {
		name := commands[i].name
		_, out, _ := call(t, nil, append(strings.Fields(name), "--help")...)
		if has := strings.Contains(out, "--output"); has == slices.Contains(without, name) {
			t.Errorf("%s: has --output: %v", name, has)
		}
	}
}

func TestResultsOfChangesAreJSONOnRequest(t *testing.T) {
	t.Parallel()
	result := func(status int, args ...string) map[string]any {
		t.Helper()
		got, out, errs := call(t, nil, append(args, "-o", "json")...)
		object := make(map[string]any)
		if err := json.Unmarshal([]byte(out), &object); got != status || err != nil {
			t.Errorf("%v: %d, %q, %q (%v)", args, got, out, errs, err)
		}
		return object
	}
	fresh := "sqlite:" + filepath.Join(t.TempDir(), "fresh.db")
	if applied, _ := result(exitOK, "migrate", "up", "--database", fresh)["applied"].([]any); len(applied) == 0 {
		t.Error("no migration was applied")
	}
	if applied, _ := result(exitOK, "migrate", "up", "--database", fresh)["applied"].([]any); applied == nil || len(applied) > 0 {
		t.Errorf("applied again: %v", applied)
	}
	for _, c := range []struct {
		status int
		args   string
		want   map[string]any
	}{
		{exitOK, "migrate status --database " + fresh, map[string]any{"up_to_date": true}},
		{exitOK, "id --producer shop --source order --version-number 1", map[string]any{"id": id(1).String()}},
		{exitOK, "resume --topic order.# --outbox " + fresh, map[string]any{"kind": "topic", "name": "order.#", "resumed": true}},
		{exitFound, "resume --topic order.# --outbox " + fresh, map[string]any{"kind": "topic", "name": "order.#", "resumed": false}},
		{exitOK, "janitor --once --outbox " + fresh, map[string]any{"removed": []any{map[string]any{
			"database": fresh, "events": 0.0, "attempts": 0.0, "receipts": 0.0, "archived": 0.0,
		}}}},
	} {
		if c.args[:6] == "resume" && c.status == exitOK {
			if p := result(exitOK, "pause", "--topic", "order.#", "-m", "counting", "--outbox", fresh); p["name"] != "order.#" || p["reason"] != "counting" || p["until"] != nil {
				t.Errorf("paused: %v", p)
			}
		}
		if got := result(c.status, strings.Fields(c.args)...); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %v, want %v", c.args, got, c.want)
		}
	}
	if built := result(exitOK, "version"); built["go"] == "" || built["version"] == nil {
		t.Errorf("version: %v", built)
	}
}

package settings

import (
	"context"
	"database/sql"
	"encoding"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"gopkg.in/yaml.v3"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/consumer/effects"
	"github.com/boxpair/boxpair/producer/relay"
	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/sqlite"
	"github.com/boxpair/boxpair/transport/amqp"
)

// newInbox returns an inbox, whose database is never opened.
func newInbox(t *testing.T) *consumer.Inbox[*sql.Tx] {
	t.Helper()
	db, err := sqlite.Open(filepath.Join(t.TempDir(), "settings.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	store, err := sqlite.New(db, sqlite.Config{})
	if err != nil {
		t.Fatal(err)
	}
	inbox, err := consumer.New(store, consumer.Config{Service: "settings"})
	if err != nil {
		t.Fatal(err)
	}
	return inbox
}

func handleEffect(inbox *consumer.Inbox[*sql.Tx], cfg effects.Config) error {
	effect := effects.Effect[*sql.Tx, string, string]{
		Prepare: func(context.Context, *consumer.Work[*sql.Tx], *message.Message) (string, error) { return "", nil },
		Do:      func(context.Context, uuid.UUID, string) (string, error) { return "", nil },
		Finish:  func(context.Context, *consumer.Work[*sql.Tx], string, string) error { return nil },
	}
	_, err := effects.Handle(inbox, "e", effect, cfg)
	return err
}

// TestNegativeValuesAreRefusedByName gives every duration and number in turn a value below zero:
// the constructor names the field, whose key is that name in snake case.
func TestNegativeValuesAreRefusedByName(t *testing.T) {
	t.Parallel()
	for name, c := range configurations(t) {
		if c.build == nil {
			continue
		}
		checked := 0
		for _, path := range numbers(c.kind, nil) {
			pointer := reflect.New(c.kind)
			setNegative(pointer.Elem(), path)
			field := fieldName(c.kind, path)
			if err := c.build(pointer.Interface()); err == nil || !strings.Contains(err.Error(), field+": ") {
				t.Errorf("%s: with a negative %s the error is %v", name, field, err)
			}
			checked++
		}
		if checked == 0 && !slices.Contains([]string{"sqlite.Config", "postgres.Config", "mysql.Config", "prometheus.Config"}, name) {
			t.Errorf("%s has no number", name)
		}
	}
}

// numbers returns the indexes of all durations and numbers of a structure, also in structures
// inside of it.
func numbers(kind reflect.Type, base []int) [][]int {
	var found [][]int
	for i := range kind.NumField() {
		f := kind.Field(i)
		path := append(append([]int(nil), base...), i)
		switch {
		case f.Tag.Get("yaml") == "-":
		case f.Type.Kind() == reflect.Int, f.Type.Kind() == reflect.Int64, f.Type.Kind() == reflect.Float64:
			found = append(found, path)
		case f.Type.Kind() == reflect.Struct && f.Type != reflect.TypeFor[time.Time]():
			found = append(found, numbers(f.Type, path)...)
		}
	}
	return found
}

func setNegative(v reflect.Value, path []int) {
	switch f := v.FieldByIndex(path); f.Kind() {
	case reflect.Float64:
		f.SetFloat(-2)
	case reflect.Int64:
		f.SetInt(-2 * int64(time.Hour))
	default:
		f.SetInt(-2) // -1 is a value of CacheSize
	}
}

// fieldName returns the name of the last field of path, with those before it unless they are a
// handler's, whose own configuration is named instead.
func fieldName(kind reflect.Type, path []int) string {
	var names []string
	for n := range path {
		if f := kind.FieldByIndex(path[:n+1]); f.Type != reflect.TypeFor[consumer.HandlerConfig]() {
			names = append(names, f.Name)
		}
	}
	return strings.Join(names, ".")
}

// TestErrorsLeadToTheSetting writes settings wrongly. What a loader finds is told with the line of
// the file, or the name of the field; what a constructor finds, with the name of the field.
func TestErrorsLeadToTheSetting(t *testing.T) {
	t.Parallel()
	type service struct {
		Relay   relay.Config           `yaml:"relay" envPrefix:"RELAY_"`
		Reserve consumer.HandlerConfig `yaml:"reserve" envPrefix:"RESERVE_"`
	}
	for text, want := range map[string]string{
		"relay:\n  window: 10\n  lease_tll: 5s\n":                     "line 3: field lease_tll not found in type relay.Config",
		"relay:\n  window: 10\n  lease_ttl: 5\n":                      "line 3: cannot unmarshal !!int `5` into time.Duration",
		"relay:\n  window: 10\n  lease_ttl: soon\n":                   "line 3: cannot unmarshal !!str `soon` into time.Duration",
		"relay:\n  lease_ttl: 5s\n  lease_ttl: 6s\n":                  `line 3: mapping key "lease_ttl" already defined at line 2`,
		"relay:\n  backoff:\n    initial: 1s\n    maximum: 1m\n":      "line 4: field maximum not found in type relay.Backoff",
		"relay:\n  downstreams:\n  - name: a\n    topic: x\n":         "line 4: field topic not found in type relay.Downstream",
		"relay:\n  downstreams:\n  - name: a\n    publisher: kafka\n": "line 4: field publisher not found in type relay.Downstream",
		"reserve:\n  isolation: Serializable\n":                       `Isolation: "Serializable" is none of read committed, repeatable read, serializable`,
	} {
		var s service
		if err := loadYAML(text, &s); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\ngave the error %v\nwant %s", text, err, want)
		}
	}
	for variable, want := range map[string]string{
		"APP_RELAY_LEASE_TTL=5":             `parse error on field "LeaseTTL" of type "time.Duration": `,
		"APP_RELAY_BACKOFF_MAX=long":        `parse error on field "Max" of type "time.Duration": `,
		"APP_RELAY_WINDOW=1.5":              `parse error on field "Window" of type "int": `,
		"APP_RELAY_HOLD_DEAD_KEYS=perhaps":  `parse error on field "HoldDeadKeys" of type "bool": `,
		"APP_RELAY_DOWNSTREAMS_0_WINDOW=xs": `parse error on field "Window" of type "int": `,
		"APP_RESERVE_ISOLATION=snapshot":    `parse error on field "Isolation" of type "inbox.Isolation": Isolation: "snapshot" is none of `,
	} {
		var s service
		name, value, _ := strings.Cut(variable, "=")
		if err := loadEnvironment(map[string]string{name: value}, &s); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s gave the error %v, want %s", variable, err, want)
		}
	}
	var s service
	if err := loadYAML("relay:\n  lease_ttl: 1ms\n  backoff: {initial: 2s, max: 1s}\n  downstreams: [{name: a, topics: [a*]}]\n", &s); err != nil {
		t.Fatal(err)
	}
	_, err := relay.NewStandalone(nil, nil, s.Relay)
	for _, want := range []string{"LeaseTTL: 1ms ", "Backoff.Max: 1s ", "Downstreams[0]: Publisher: ", "Topics: in \"a*\""} {
		if !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("the error %v does not contain %q", err, want)
		}
	}
}

// TestChoicesAreWords tells that a setting with a few values takes the words of the document and
// gives them back.
func TestChoicesAreWords(t *testing.T) {
	t.Parallel()
	words(t, inbox.ReadCommitted, "read committed", "repeatable read", "serializable")
	words(t, consumer.RefuseShortWindow, "refuse", "report")
	words(t, amqp.Declare, "declare", "passive", "none")
	words(t, amqp.Quorum, "quorum", "classic")
	h := consumer.HandlerConfig{Isolation: inbox.RepeatableRead}
	for _, text := range []string{"isolation: 1", `isolation: ""`, "isolation: READ COMMITTED"} {
		if err := loadYAML(text, &h); err == nil || h.Isolation != inbox.RepeatableRead {
			t.Errorf("%s gave %v, %v", text, h.Isolation, err)
		}
	}
}

// words checks the words of a type, from that of the value first on.
func words[T ~uint8](t *testing.T, first T, want ...string) {
	t.Helper()
	for i, word := range want {
		value := first + T(i)
		out, err := yaml.Marshal(map[string]T{"a": value})
		if err != nil || string(out) != "a: "+word+"\n" {
			t.Errorf("%T %d is written %s, %v", value, value, out, err)
		}
		back := struct{ A T }{A: 255}
		if err := loadYAML("a: "+word, &back); err != nil || back.A != value {
			t.Errorf("%T %s is read as %d, %v", value, word, back.A, err)
		}
	}
	if out, err := any(first + T(len(want))).(encoding.TextMarshaler).MarshalText(); err == nil {
		t.Errorf("%T %d does not exist and is written %s", first, len(want), out)
	}
}

// TestWhatLoadersLetPass shows what the document warns of.
func TestWhatLoadersLetPass(t *testing.T) {
	t.Parallel()
	cfg := relay.Config{MaxPerKey: 7}
	if err := loadYAML("lease_ttl:\nmax_per_key:\nwindow: 1.5\n", &cfg); err != nil || cfg.LeaseTTL != 0 || cfg.MaxPerKey != 7 || cfg.Window != 1 {
		t.Errorf("the file gave %+v, %v", cfg, err)
	}
	if err := loadEnvironment(map[string]string{"APP_LEASE_TLL": "5s", "APP_WINDOW": ""}, &cfg); err != nil || cfg.LeaseTTL != 0 || cfg.Window != 1 {
		t.Errorf("the environment gave %+v, %v", cfg, err)
	}
	if err := loadEnvironment(map[string]string{"APP_WINDOW": "2147483648"}, &cfg); err == nil {
		t.Error("a number over 31 bits was taken")
	}
}

// TestTextsAreRefusedByName does the same with a text that no database and no broker takes.
func TestTextsAreRefusedByName(t *testing.T) {
	t.Parallel()
	anything := []string{"amqp.PublisherConfig.Name", "amqp.SubscriberConfig.DeadLetterExchange"} // the broker's names are its own
	for name, c := range configurations(t) {
		for i := range c.kind.NumField() {
			f := c.kind.Field(i)
			if c.build == nil || f.Type.Kind() != reflect.String || slices.Contains(anything, name+"."+f.Name) {
				continue
			}
			pointer := reflect.New(c.kind)
			pointer.Elem().Field(i).SetString("a\x00b")
			err := c.build(pointer.Interface())
			if !strings.Contains(strings.ToLower(fmt.Sprint(err)), strings.ToLower(f.Name)+": ") {
				t.Errorf("%s: with NUL in %s the error is %v", name, f.Name, err)
			}
		}
	}
}

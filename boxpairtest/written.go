package boxpairtest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/store/outbox"
)

// RequireWritten fails the test unless exactly the wanted events were written. The order matters only
// among events of one key. Zero fields of a wanted event are not compared, nor are headers that the
// wanted event lacks. JSON payloads are compared as JSON. Without wanted events, no event may have
// been written.
func RequireWritten(t testing.TB, r *Recorder, want ...producer.Event) {
	t.Helper()
	if problems := compare(r.Events(), want); len(problems) > 0 {
		t.Fatalf("boxpairtest: the written events are not the wanted ones:\n%s", strings.Join(problems, "\n"))
	}
}

// compare returns the differences between the written and the wanted events.
func compare(written []outbox.Record, want []producer.Event) (problems []string) {
	match := assign(len(want), len(written), func(i, k int) bool { return len(differences(&written[k], &want[i])) == 0 })
	taken := make([]bool, len(written))
	for _, k := range match {
		if k >= 0 {
			taken[k] = true
		}
	}
	for i := range want {
		if match[i] >= 0 {
			continue
		}
		k := closest(written, taken, &want[i])
		if k < 0 {
			problems = append(problems, fmt.Sprintf("  event %d is missing: %s", i, describeWanted(&want[i])))
			continue
		}
		taken[k] = true
		problems = append(problems, fmt.Sprintf("  event %d, %s, differs:", i, describeWanted(&want[i])))
		for _, d := range differences(&written[k], &want[i]) {
			problems = append(problems, "    "+d.wanted())
		}
	}
	for k := range written {
		if !taken[k] {
			problems = append(problems, "  not wanted: "+describe(&written[k]))
		}
	}
	if len(problems) > 0 {
		return problems
	}
	last := make(map[string]int)
	for i, k := range match {
		key := written[k].Key
		if before, ok := last[key]; ok && key != "" && match[before] > k {
			problems = append(problems, fmt.Sprintf("  key %q: event %d was written before event %d", key, i, before))
		}
		last[key] = i
	}
	return problems
}

// assign returns for each of n items its partner among m items, or -1: a maximum matching in a
// bipartite graph, by Kuhn's algorithm.
func assign(n, m int, fits func(i, k int) bool) []int {
	owner := make([]int, m)
	for k := range owner {
		owner[k] = -1
	}
	var place func(i int, seen []bool) bool
	place = func(i int, seen []bool) bool {
		for k := range m {
			if seen[k] || !fits(i, k) {
				continue
			}
			seen[k] = true
			if owner[k] < 0 || place(owner[k], seen) {
				owner[k] = i
				return true
			}
		}
		return false
	}
	for i := range n {
		place(i, make([]bool, m))
	}
	match := make([]int, n)
	for i := range match {
		match[i] = slices.Index(owner, i)
	}
	return match
}

// closest returns the event of the same topic that has the fewest differences, or -1.
func closest(written []outbox.Record, taken []bool, want *producer.Event) int {
	best, fewest := -1, 0
	for k := range written {
		if taken[k] || written[k].Topic != want.Topic {
			continue
		}
		if n := len(differences(&written[k], want)); best < 0 || n < fewest {
			best, fewest = k, n
		}
	}
	return best
}

func describe(r *outbox.Record) string {
	return summary(r.Topic, r.Key, r.Type, r.Source, r.Version, r.Payload)
}

func describeWanted(e *producer.Event) string {
	return summary(e.Topic, e.Key, e.Type, e.Source, e.Version, e.Payload)
}

func summary(topic, key, kind, source string, version int64, payload []byte) string {
	s := topic
	for _, f := range [][2]string{{"key", key}, {"type", kind}, {"source", source}} {
		if f[1] != "" {
			s += " " + f[0] + " " + f[1]
		}
	}
	if version != 0 {
		s += fmt.Sprintf(" version %d", version)
	}
	if payload != nil {
		s += " payload " + shorten(string(payload), 200)
	}
	return s
}

// change is a field, or a part of a JSON payload, that differs between two events.
type change struct{ field, first, second string }

func (c change) wanted() string { return fmt.Sprintf("%s: %s, want %s", c.field, c.first, c.second) }

const missing = "missing"

// differences returns the fields in which r differs from the wanted e.
func differences(r *outbox.Record, e *producer.Event) (list []change) {
	differ := func(field string, got, want any) {
		list = append(list, change{field, fmt.Sprint(got), fmt.Sprint(want)})
	}
	text := func(field, got, want string) {
		if want != "" && got != want {
			differ(field, strconv.Quote(got), strconv.Quote(want))
		}
	}
	text("Topic", r.Topic, e.Topic)
	text("Key", r.Key, e.Key)
	text("Type", r.Type, e.Type)
	text("Source", r.Source, e.Source)
	text("ContentType", r.ContentType, e.ContentType)
	text("CorrelationID", r.CorrelationID, e.CorrelationID)
	text("TraceParent", r.TraceParent, e.TraceParent)
	text("TraceState", r.TraceState, e.TraceState)
	if e.Version != 0 && r.Version != e.Version {
		differ("Version", r.Version, e.Version)
	}
	if e.IdempotencyKey != "" && r.ID != idgen.OfKey(r.Producer, r.Source, e.IdempotencyKey, r.Index) {
		differ("IdempotencyKey", "another one", strconv.Quote(e.IdempotencyKey))
	}
	if e.SchemaVersion != 0 && r.SchemaVersion != e.SchemaVersion {
		differ("SchemaVersion", r.SchemaVersion, e.SchemaVersion)
	}
	if !e.OccurredAt.IsZero() && !r.OccurredAt.Equal(e.OccurredAt) {
		differ("OccurredAt", r.OccurredAt, e.OccurredAt)
	}
	if !e.DeliverAt.IsZero() && !r.DeliverAt.Equal(e.DeliverAt) {
		differ("DeliverAt", r.DeliverAt, e.DeliverAt)
	}
	for _, name := range slices.Sorted(maps.Keys(e.Headers)) {
		got, ok := r.Headers[name]
		switch field := fmt.Sprintf("Headers[%q]", name); {
		case !ok:
			differ(field, missing, strconv.Quote(e.Headers[name]))
		case got != e.Headers[name]:
			differ(field, strconv.Quote(got), strconv.Quote(e.Headers[name]))
		}
	}
	if e.Payload != nil {
		list = append(list, payloadDifferences(r.Payload, e.Payload)...)
	}
	return list
}

func payloadDifferences(first, second []byte) []change {
	if bytes.Equal(first, second) {
		return nil
	}
	f, okFirst := decode(first)
	s, okSecond := decode(second)
	if okFirst && okSecond {
		return valueDifferences("Payload", f, s)
	}
	return []change{{"Payload", shorten(strconv.Quote(string(first)), 400), shorten(strconv.Quote(string(second)), 400)}}
}

// decode reads JSON, with numbers as they are written.
func decode(payload []byte) (v any, ok bool) {
	d := json.NewDecoder(bytes.NewReader(payload))
	d.UseNumber()
	return v, d.Decode(&v) == nil && !d.More()
}

// valueDifferences returns the parts of two JSON values that differ.
func valueDifferences(path string, first, second any) (list []change) {
	switch s := second.(type) {
	case map[string]any:
		f, ok := first.(map[string]any)
		if !ok {
			break
		}
		names := maps.Clone(s)
		maps.Copy(names, f)
		for _, name := range slices.Sorted(maps.Keys(names)) {
			list = append(list, memberDifferences(path+"."+name, f, s, name)...)
		}
		return list
	case []any:
		f, ok := first.([]any)
		if !ok || len(f) != len(s) {
			break
		}
		for i := range s {
			list = append(list, valueDifferences(fmt.Sprintf("%s[%d]", path, i), f[i], s[i])...)
		}
		return list
	}
	if f, s := compact(first), compact(second); f != s {
		return []change{{path, f, s}}
	}
	return nil
}

func memberDifferences(path string, first, second map[string]any, name string) []change {
	f, inFirst := first[name]
	s, inSecond := second[name]
	switch {
	case !inFirst:
		return []change{{path, missing, compact(s)}}
	case !inSecond:
		return []change{{path, compact(f), "none"}}
	}
	return valueDifferences(path, f, s)
}

func compact(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	return string(text)
}

// shorten returns the first bytes of text, on one line.
func shorten(text string, limit int) string {
	text = strings.Join(strings.Fields(text), " ")
	if len(text) > limit {
		text = strings.ToValidUTF8(text[:limit], "") + "…"
	}
	return text
}

package sqlstore

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/migrations"
)

// literal writes lists as they are, and binds texts as bytes.
func literal(t *testing.T) *Core {
	t.Helper()
	names, err := migrations.SQLiteNames("")
	if err != nil {
		t.Fatal(err)
	}
	return NewCore(nil, Dialect{
		Names: names,
		Words: map[string]string{"now": "CLOCK()", "live": "$.live = 1", "lock": "FOR UPDATE", "of": "$.id IN (SELECT id FROM {outbox_events} WHERE x IN ?)"},
		List: func(list any) (string, []any) {
			if texts, ok := list.([]string); ok {
				return "(" + strings.TrimSuffix(strings.Repeat("?,", len(texts)), ",") + ")", []any{texts[0], texts[1]}
			}
			return fmt.Sprint(list), nil
		},
		Text: func(s string) any { return []byte(s) },
	}, false)
}

// bound gives every list as one argument, and the clock as another.
func bound(t *testing.T) *Core {
	t.Helper()
	names, err := migrations.SQLiteNames("")
	if err != nil {
		t.Fatal(err)
	}
	tick := int64(0)
	return NewCore(nil, Dialect{
		Names: names,
		Words: map[string]string{"live": "$.state = 'live'", "lock": "", "of": "$.id IN (SELECT id FROM {outbox_events} WHERE x IN ?)"},
		Clock: func() int64 { tick++; return tick },
		Fixed: true,
		List:  func(list any) (string, []any) { return "(each ?)", []any{fmt.Sprint(list)} },
	}, false)
}

func TestStatementIsWrittenForItsDatabase(t *testing.T) {
	t.Parallel()
	id := uuid.UUID{15: 1}
	for name, c := range map[string]struct {
		query         string
		args          []any
		literal, each string
	}{
		"table, word and clock": {
			`UPDATE {outbox_parked} p SET at = {now} + ?, seen = {now} WHERE {live p} AND id = ? {lock}`, []any{5, 7},
			`UPDATE "boxpair_outbox_parked" p SET at = CLOCK() + ?, seen = CLOCK() WHERE p.live = 1 AND id = ? FOR UPDATE [5 7]`,
			`UPDATE "boxpair_outbox_parked" p SET at = ? + ?, seen = ? WHERE p.state = 'live' AND id = ?  [1 5 1 7]`,
		},
		"list among arguments": {
			`a = ? AND b IN ? AND c = ?`, []any{1, []int64{2, 3}, 4},
			`a = ? AND b IN [2 3] AND c = ? [1 4]`,
			`a = ? AND b IN (each ?) AND c = ? [1 [2 3] 4]`,
		},
		"list of texts": {
			`a IN ? AND b = ?`, []any{[]string{"x", "y"}, 1},
			`a IN (?,?) AND b = ? [x y 1]`,
			`a IN (each ?) AND b = ? [[x y] 1]`,
		},
		"argument within a word": {
			`{of p} AND c = ?`, []any{[]uuid.UUID{id}, 1},
			`p.id IN (SELECT id FROM "boxpair_outbox_events" WHERE x IN [` + id.String() + `]) AND c = ? [1]`,
			`p.id IN (SELECT id FROM "boxpair_outbox_events" WHERE x IN (each ?)) AND c = ? [[` + id.String() + `] 1]`,
		},
		"text": {`a = ?`, []any{Text("x")}, `a = ? [[120]]`, `a = ? [x]`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			text, args := literal(t).statement(c.query, c.args)
			if got := fmt.Sprint(text, " ", args); got != c.literal {
				t.Errorf("with literals it is\n%s\nwant\n%s", got, c.literal)
			}
			text, args = bound(t).statement(c.query, c.args)
			if got := fmt.Sprint(text, " ", args); got != c.each {
				t.Errorf("with bound lists it is\n%s\nwant\n%s", got, c.each)
			}
		})
	}
}

func TestFixedStatementTakesTheArgumentsOfEachCall(t *testing.T) {
	t.Parallel()
	c := bound(t)
	for i := range int64(3) {
		_, args := c.statement(`a IN ? AND b > {now} AND c = ?`, []any{[]int64{i}, i})
		if want := []any{fmt.Sprint([]int64{i}), i + 1, i}; !slices.Equal(args, want) {
			t.Errorf("call %d has the arguments %v, want %v", i, args, want)
		}
	}
}

func TestNumberedArgumentsAreLeftAlone(t *testing.T) {
	t.Parallel()
	const query = `a = ?1 AND b = ?2 AND c = ?1`
	if text, args := bound(t).statement(query, []any{1, 2}); text != query || !slices.Equal(args, []any{1, 2}) {
		t.Errorf("the statement is %s with %v", text, args)
	}
}

func TestConditionsAreNotSharedWithThoseMadeOfThem(t *testing.T) {
	t.Parallel()
	w := &where{}
	w.add("a = ?", 1)
	one, other := w.with("b = ?", 2), w.with("c = ?", 3)
	if got := fmt.Sprint(w, w.args, one, one.and(9), other, other.args); got != "a = ? [1] a = ? AND b = ? [1 2 9] a = ? AND c = ? [1 3]" {
		t.Errorf("the conditions are %s", got)
	}
}

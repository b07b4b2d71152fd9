package boxpairtest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/transport"
)

// maxOrders is how many orders of the messages are tried.
const maxOrders = 6

// orders returns the given order of the messages, and then other orders.
func orders(msgs []*message.Message, byKey bool) [][]int {
	first := make([]int, len(msgs))
	for i := range first {
		first[i] = i
	}
	list := [][]int{first}
	random := rand.New(rand.NewPCG(1, 2)) // the same orders each time
	for n := range 10 * maxOrders {
		order := slices.Clone(first)
		if n == 0 {
			slices.Reverse(order)
		} else {
			random.Shuffle(len(order), func(i, k int) { order[i], order[k] = order[k], order[i] })
		}
		if byKey {
			keepKeys(order, msgs)
		}
		if !slices.ContainsFunc(list, func(o []int) bool { return slices.Equal(o, order) }) {
			list = append(list, order)
		}
		if len(list) == maxOrders {
			break
		}
	}
	return list
}

// keepKeys sorts the messages of each key, within the places of the key.
func keepKeys(order []int, msgs []*message.Message) {
	places := make(map[string][]int)
	for at, i := range order {
		if key := msgs[i].Metadata[transport.MetaKey]; key != "" {
			places[key] = append(places[key], at)
		}
	}
	for _, at := range places {
		sorted := make([]int, len(at))
		for k, p := range at {
			sorted[k] = order[p]
		}
		slices.Sort(sorted)
		for k, p := range at {
			order[p] = sorted[k]
		}
	}
}

// place names the place before statement k, from 1.
func place(statements []string, k int) string {
	switch {
	case len(statements) == 0:
		return "before the first statement"
	case k > len(statements):
		return "after " + statement(statements, len(statements))
	}
	return "before " + statement(statements, k)
}

func statement(statements []string, k int) string {
	text := statements[k-1]
	if strings.Contains(text, "outbox_events") { // the library's own
		return fmt.Sprintf("statement %d (the write of events)", k)
	}
	return fmt.Sprintf("statement %d (%s)", k, shorten(text, 80))
}

// hint suggests the reason of an error.
func hint(err error) string {
	text := strings.ToLower(err.Error())
	if errors.Is(err, context.DeadlineExceeded) || strings.Contains(text, "locked") || strings.Contains(text, "lock wait") {
		return " (does the handler use the database in place of w.DB(), its transaction?)"
	}
	return ""
}

// difference returns the lines of only one of the texts, or says that the order of lines differs.
func difference(before, after string) string {
	if before == after {
		return ""
	}
	count := make(map[string]int)
	for line := range strings.Lines(after) {
		count[trim(line)]++
	}
	var b strings.Builder
	for line := range strings.Lines(before) {
		if count[trim(line)]--; count[trim(line)] < 0 {
			fmt.Fprintf(&b, "    - %s\n", trim(line))
		}
	}
	for line := range strings.Lines(after) {
		if count[trim(line)] > 0 {
			count[trim(line)]--
			fmt.Fprintf(&b, "    + %s\n", trim(line))
		}
	}
	if b.Len() == 0 {
		return "    the same lines in another order"
	}
	return strings.TrimRight(b.String(), "\n")
}

// trim returns a line of JSON without its indentation and its comma.
func trim(line string) string { return strings.TrimSuffix(strings.TrimSpace(line), ",") }

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/boxpair/boxpair/store/inbox"
)

// cause is the common cause of dead events or messages.
type cause struct {
	Database string    `json:"database"`
	Consumer string    `json:"consumer,omitempty"`
	State    string    `json:"state"`
	Topic    string    `json:"topic"`
	Error    string    `json:"error"`
	Count    int64     `json:"count"`
	First    time.Time `json:"first_parked_at"`
	Last     time.Time `json:"last_parked_at"`
	Example  uuid.UUID `json:"example"`
}

// causes reads the causes of the selected letters of a database, the most frequent first.
func (q *selection) causes(ctx context.Context, s *operators) ([]cause, error) {
	var list []cause
	if s.isInbox {
		found, err := s.messages.MessageCauses(ctx, q.filter)
		for _, c := range found {
			list = append(list, cause{s.name, c.Consumer, string(c.State), c.Topic, c.Error, c.Count, c.First, c.Last, c.Example})
		}
		return list, err
	}
	found, err := s.events.Causes(ctx, q.events())
	for _, c := range found {
		list = append(list, cause{s.name, "", string(c.State), c.Topic, c.Error, c.Count, c.First, c.Last, c.Example})
	}
	return list, err
}

// mostCauses is how many causes of a database are listed.
const mostCauses = 50

func (l *letters) listCauses(ctx context.Context, p *process) error {
	l.filter.Limit = mostCauses
	all, err := l.allCauses(ctx, p)
	if err != nil {
		return err
	}
	slices.SortStableFunc(all, func(a, b cause) int { return cmp.Compare(b.Count, a.Count) })
	if l.json() {
		return l.encode(p.stdout, map[string][]cause{"causes": all})
	}
	if len(all) == 0 {
		defer l.misspelt(ctx, p.stderr, l.filter.Topic, l.filter.Consumer)
		return l.print(p, nil)
	}
	g := l.grid(p, column{head: "count", number: true}, column{head: "state"}, column{head: "since"}, column{head: "last"}, column{head: "topic", flexible: true},
		column{head: "consumer", flexible: true, wide: len(l.inboxes) == 0}, column{head: "database", wide: true}, column{head: "example"}, column{head: "last error", flexible: true})
	for i := range all {
		c := &all[i]
		g.add(c.Count, c.State, l.when(c.First), l.when(c.Last), c.Topic, c.Consumer, c.Database, l.id(c.Example), c.Error)
	}
	return g.print(p.stdout)
}

// allCauses reads the causes of all databases, at once. It soon says so if the read takes long.
func (l *letters) allCauses(ctx context.Context, p *process) ([]cause, error) {
	type result struct {
		list []cause
		err  error
	}
	var results []*result
	var reading sync.WaitGroup
	err := l.with(ctx, func(s *operators) error {
		q, r := l.selection, &result{}
		results = append(results, r)
		reading.Go(func() {
			if r.list, r.err = q.causes(ctx, s); r.err != nil {
				r.err = fmt.Errorf("%s: %w", s.name, r.err)
			}
		})
		return nil
	})
	read := make(chan struct{})
	go func() {
		reading.Wait()
		close(read)
	}()
	select {
	case <-read:
	case <-time.After(firstProgress):
		fmt.Fprintln(p.stderr, "counting the letters of each cause …")
		<-read
	}
	all, errs := []cause{}, []error{err}
	for _, r := range results {
		all, errs = append(all, r.list...), append(errs, r.err)
	}
	return all, errors.Join(errs...)
}

// deadCauses reads the causes of dead letters, of one consumer unless consumer is "".
func deadCauses(ctx context.Context, s *operators, consumer string, most int) ([]cause, error) {
	q := selection{filter: inbox.Filter{Consumer: consumer, States: []inbox.State{inbox.Dead}, Limit: most}}
	return q.causes(ctx, s)
}

// atOnce is how many causes of all consumers are read at once.
const atOnce = 1000

// consumerCauses returns a function that returns the causes of a consumer's dead messages. All
// consumers are read at once, unless there are too many causes.
func consumerCauses(ctx context.Context, s *operators) func(consumer string) ([]cause, error) {
	all := sync.OnceValues(func() ([]cause, error) { return deadCauses(ctx, s, "", atOnce) })
	return func(consumer string) (own []cause, err error) {
		list, err := all()
		if err != nil || len(list) == atOnce {
			return deadCauses(ctx, s, consumer, mostCauses)
		}
		for i := range list {
			if list[i].Consumer == consumer && len(own) < mostCauses {
				own = append(own, list[i])
			}
		}
		return own, nil
	}
}

const (
	// printed is how many causes are printed.
	printed = 3
	// longest is how many characters of an error are printed.
	longest = 120
)

// causesIf reads the causes of dead events or messages if there are any. It returns nil if the role
// may not read them.
func causesIf(dead int64, read func() ([]cause, error)) ([]cause, error) {
	if dead == 0 {
		return nil, nil
	}
	list, err := read()
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok && pgErr.Code == "42501" {
		return nil, nil
	}
	return list, err
}

// printCauses prints the first causes.
func (d *display) printCauses(p *process, consumer string, causes []cause) {
	for i := range causes[:min(printed, len(causes))] {
		c := &causes[i]
		d.wrap(p, p.stdout, "", "  ", fmt.Sprintf("dead: %s%d of topic %s: %s", consumer, c.Count, plain(c.Topic), clipped(c.Error)))
	}
	if more := len(causes) - printed; more > 0 {
		fmt.Fprintf(p.stdout, "dead: %sand for %d other reasons: boxpair dead list\n", consumer, more)
	}
}

// clipped returns the beginning of an error, to be printed.
func clipped(text string) string {
	why := []rune(plain(text))
	if len(why) > longest {
		why = append(why[:longest-1], '…')
	}
	return string(why)
}

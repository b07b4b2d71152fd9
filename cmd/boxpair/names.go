package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/boxpair/boxpair/internal/topics"
	"github.com/boxpair/boxpair/store/control"
	"github.com/boxpair/boxpair/store/outbox"
)

// lookedAt is how many of the latest events are searched for topics.
const lookedAt = 1000

// vocabulary holds the names that databases know, to find misspelt ones.
type vocabulary struct{ topics, downstreams, consumers []string }

// learn adds the names of a database: of an outbox the topics of its latest events, routes and relays,
// and the downstreams that relays have reported; of an inbox its registered consumers.
func (v *vocabulary) learn(ctx context.Context, s *operators) error {
	if s.isInbox {
		list, err := s.consumers(ctx)
		for i := range list {
			v.consumers = append(v.consumers, list[i].Name)
		}
		return err
	}
	found, err := s.events.Search(ctx, outbox.Query{Limit: lookedAt})
	if err != nil {
		return err
	}
	for i := range found.Events {
		v.topics = append(v.topics, found.Events[i].Topic)
	}
	routes, err := s.outbox.ListRoutes(ctx)
	if err != nil {
		return err
	}
	for i := range routes {
		v.route(routes[i].Topic, routes[i].Route)
	}
	relays, err := fleet(ctx, s)
	for i := range relays {
		for k := range relays[i].Topics {
			v.route(relays[i].Topics[k].Topic, relays[i].Topics[k].Route)
		}
	}
	return err
}

// route learns a topic and, if the topic's route names one, its downstream.
func (v *vocabulary) route(topic, route string) {
	v.topics = append(v.topics, topic)
	if downstream, _, named := strings.Cut(route, ": "); named {
		v.downstreams = append(v.downstreams, downstream)
	}
}

// hasTopic tells whether a known topic matches the pattern. s is asked for earlier events of a topic
// that is not among the latest.
func (v *vocabulary) hasTopic(ctx context.Context, s *operators, pattern string) (bool, error) {
	if slices.ContainsFunc(v.topics, func(topic string) bool { return topics.Match(pattern, topic) }) {
		return true, nil
	}
	if s.isInbox || strings.ContainsAny(pattern, "*#") {
		return false, nil
	}
	found, err := s.events.Search(ctx, outbox.Query{Topic: pattern, Limit: 1})
	return len(found.Events) > 0, err
}

// unknown says in words that a name or pattern of a kind is unknown, or returns "".
func (v *vocabulary) unknown(ctx context.Context, s *operators, kind control.Kind, name string) (string, error) {
	switch kind {
	case control.Topic:
		if known, err := v.hasTopic(ctx, s, name); known || err != nil {
			return "", err
		}
		return v.noTopic(name), nil
	case control.Downstream:
		if slices.Contains(v.downstreams, name) {
			return "", nil
		}
		return "no relay has reported a downstream " + name + nearest(name, v.downstreams), nil
	}
	p := control.Pause{Kind: control.Consumer, Name: name}
	if slices.ContainsFunc(v.consumers, p.Consumes) {
		return "", nil
	}
	return noConsumer(name, v.consumers), nil
}

// noTopic and noConsumer say that a name is unknown.
func (v *vocabulary) noTopic(name string) string {
	return "no recent event, route or relay has topic " + name + nearest(name, v.topics)
}

func noConsumer(name string, known []string) string {
	return "no consumer " + name + " has registered yet" + nearest(name, known)
}

// misspelt says if no database knows the topic or the consumer of a search without results; "" is not
// looked up. It is silent if a database cannot be read: the search itself has succeeded.
func (d *databases) misspelt(ctx context.Context, out io.Writer, topic, consumer string) {
	if topic+consumer == "" {
		return
	}
	var v vocabulary
	known := topic == "" || len(d.outboxes) == 0
	err := d.each(ctx, true, func(s *operators) error {
		err := v.learn(ctx, s)
		if err == nil && !known {
			known, err = v.hasTopic(ctx, s, topic)
		}
		return err
	})
	if err != nil {
		return
	}
	if !known {
		fmt.Fprintln(out, plain(v.noTopic(topic)))
	}
	if consumer != "" && !slices.Contains(v.consumers, consumer) {
		fmt.Fprintln(out, plain(noConsumer(consumer, v.consumers)))
	}
}

// mostNearest is how many names are suggested.
const mostNearest = 3

// nearest suggests the names that are most like name, with a leading semicolon, or returns "".
func nearest(name string, names []string) string {
	type scored struct {
		name string
		far  int
	}
	var list []scored
	for _, one := range slices.Compact(slices.Sorted(slices.Values(names))) {
		far := distance(strings.ToLower(name), strings.ToLower(one))
		if word := strings.Trim(name, ".*#/"); word != "" && strings.Contains(strings.ToLower(one), strings.ToLower(word)) {
			far = min(far, 1)
		}
		if far <= max(2, utf8.RuneCountInString(one)/3) {
			list = append(list, scored{one, far})
		}
	}
	if len(list) == 0 {
		return ""
	}
	slices.SortStableFunc(list, func(a, b scored) int { return cmp.Compare(a.far, b.far) })
	near := make([]string, 0, mostNearest)
	for _, one := range list[:min(mostNearest, len(list))] {
		near = append(near, one.name)
	}
	return "; did you mean " + strings.Join(near, " or ") + "?"
}

// distance is the number of letters to insert, delete or replace between two words.
func distance(from, to string) int {
	b := []rune(to)
	row := make([]int, len(b)+1)
	for k := range row {
		row[k] = k
	}
	for i, x := range []rune(from) {
		diagonal := row[0]
		row[0] = i + 1
		for k, y := range b {
			replaced := diagonal
			if x != y {
				replaced++
			}
			diagonal = row[k+1]
			row[k+1] = min(replaced, row[k]+1, row[k+1]+1)
		}
	}
	return row[len(b)]
}

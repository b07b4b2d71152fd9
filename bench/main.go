// Command bench measures this library beside plain code that gives none of its
// guarantees, in one run, on one PostgreSQL and one RabbitMQ.
//
//	DATABASE_URL=… AMQP_URL=… go run . [-events N] [-rounds N]
//
// It measures
//
//   - relay: committed events to a RabbitMQ queue, marked as delivered, beside a plain
//     amqp091 loop that publishes the same messages with a window of 100 and of 1000 unconfirmed
//     publishes and touches no database;
//   - consume: messages from a RabbitMQ queue through a Watermill router into one inbox
//     row and one effect row each, beside 8 plain workers with one transaction
//     per message in four round trips.
//
// Rounds are interleaved. The last line is one JSON object; ratios are medians of
// the ratios within one round. Everything is made in a schema and in queues of
// its own and removed in the end.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"slices"
)

type options struct {
	databaseURL, amqpURL string
	events, rounds       int
	queue                string
	inFlight             int
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run() error {
	o := options{databaseURL: os.Getenv("DATABASE_URL"), amqpURL: os.Getenv("AMQP_URL")}
	flag.IntVar(&o.events, "events", 30_000, "events or messages per measurement")
	flag.IntVar(&o.rounds, "rounds", 3, "interleaved rounds")
	flag.StringVar(&o.queue, "queue", "quorum", "type of the queues: quorum or classic")
	flag.IntVar(&o.inFlight, "in-flight", 0, "messages in flight of a subscriber; 0 is its default")
	only := flag.String("only", "", "measure only variants whose names match this regular expression")
	flag.Parse()
	chosen, err := regexp.Compile(*only)
	if err != nil {
		return fmt.Errorf("only: %w", err)
	}
	if o.databaseURL == "" || o.amqpURL == "" {
		return fmt.Errorf("set DATABASE_URL and AMQP_URL")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()

	variants := append([]variant{
		{"amqp091 window 100", func(ctx context.Context, o options) (float64, error) { return rawPublish(ctx, o, 100) }},
		{"amqp091 window 1000", func(ctx context.Context, o options) (float64, error) { return rawPublish(ctx, o, 1000) }},
		{"relay distinct keys", func(ctx context.Context, o options) (float64, error) { return relay(ctx, o, o.events) }},
		{"relay 1000 keys", func(ctx context.Context, o options) (float64, error) { return relay(ctx, o, 1000) }},
		{"plain workers", plainConsume},
		{"inbox", inboxConsume},
	}, consumeVariants...)
	variants = slices.DeleteFunc(variants, func(v variant) bool { return !chosen.MatchString(v.name) })
	rates := make(map[string][]float64)
	for round := range o.rounds {
		for _, v := range variants {
			rate, err := v.measure(ctx, o)
			if err != nil {
				return fmt.Errorf("%s: %w", v.name, err)
			}
			rates[v.name] = append(rates[v.name], rate)
			fmt.Printf("round %d  %-26s %8.0f/s\n", round+1, v.name, rate)
		}
	}
	report := map[string]any{"queue": o.queue, "events": o.events, "rounds": o.rounds}
	for name, values := range rates {
		report[name] = int(median(values))
	}
	pairs := append([][2]string{
		{"relay distinct keys", "amqp091 window 100"}, {"relay distinct keys", "amqp091 window 1000"},
		{"relay 1000 keys", "amqp091 window 100"}, {"inbox", "plain workers"},
	}, consumePairs...)
	for _, pair := range pairs {
		if rates[pair[0]] == nil || rates[pair[1]] == nil {
			continue
		}
		report[pair[0]+" / "+pair[1]] = ratio(rates[pair[0]], rates[pair[1]])
	}
	return json.NewEncoder(os.Stdout).Encode(report)
}

func ratio(values, limits []float64) float64 {
	ratios := make([]float64, len(values))
	for i := range values {
		ratios[i] = values[i] / limits[i]
	}
	return float64(int(median(ratios)*1000)) / 1000
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}

package main

import (
	"context"
	"errors"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/consumer/effects"
	"github.com/boxpair/boxpair/idgen"
)

var identify = command{
	name: "id", group: looking,
	summary: "compute the dispatch ID of an event, without a database",
	details: `Prints the dispatch ID of the event that a producer writes for a source at a version, or under an
idempotency key, or that a consumer's handler writes for a message; or the idempotency key of an effect.

    boxpair id --producer orders --source order/42 --version-number 3
    boxpair id --producer orders --source order/42 --idempotency-key checkout-7
    boxpair id --consumer stock/reserve --cause 4b9d2a51-7c11-5d6e-9d7e-2f4c8f3b1a20 --index 1
    boxpair id --consumer payments/charge --cause 4b9d2a51-7c11-5d6e-9d7e-2f4c8f3b1a20 --effect-key`,
	define: func(s *settings) func(context.Context, *process) (int, error) {
		i := &identity{}
		s.text(&i.producer, "producer", "NAME", "the name of the producer.")
		s.text(&i.source, "source", "TEXT", "the source of the event.")
		s.number(&i.version, "version-number", "the version of the source.")
		s.text(&i.key, "idempotency-key", "TEXT", "the idempotency key, in place of a version.")
		s.text(&i.consumer, "consumer", "NAME", "the consumer whose handler writes the event, such as stock/reserve.")
		s.add("cause", envOf("cause"), "UUID", "the dispatch ID of the message that the handler handles.", false, func(text string) (err error) {
			if i.cause, err = uuid.Parse(text); err != nil {
				return errors.New("want a UUID")
			}
			return nil
		})
		s.number(&i.index, "index", "the position of the event among those of one source and version, or of one handler. Defaults to 0.")
		s.on(&i.effect, "effect-key", "the key of the consumer's effect, in place of an event.")
		i.out.define(s)
		return i.run
	},
}

// identity holds the settings of id.
type identity struct {
	producer, source, key, consumer string
	version, index                  int64
	cause                           uuid.UUID
	effect                          bool
	out                             form
}

func (i *identity) run(_ context.Context, p *process) (int, error) {
	var id uuid.UUID
	switch {
	case i.consumer != "" && i.producer+i.source+i.key == "" && i.cause != uuid.Nil && i.effect:
		id = effects.Key(i.consumer, i.cause)
	case i.consumer != "" && i.producer+i.source+i.key == "" && i.cause != uuid.Nil:
		id = idgen.Child(i.consumer, i.cause, int(i.index))
	case i.consumer != "":
		return exitFailed, errors.New("--consumer: goes with --cause and --index only")
	case i.producer == "":
		return exitFailed, errors.New("--producer or --consumer: is missing")
	case i.key != "" && i.version > 0:
		return exitFailed, errors.New("--version-number, --idempotency-key: want at most one")
	case i.key != "":
		id = idgen.OfKey(i.producer, i.source, i.key, int(i.index))
	default:
		id = idgen.Of(i.producer, i.source, i.version, int(i.index))
	}
	return exitOK, i.out.result(p, id.String()+"\n", map[string]any{"id": id})
}

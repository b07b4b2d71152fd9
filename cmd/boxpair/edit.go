package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/producer"
)

var edit = command{
	name: deadLetters + " edit", group: changing,
	summary: "send a dead event, or handle a dead message, with another payload",
	details: `Writes a copy with another payload as a new event, a child of the dead one, and discards the dead one; in
an inbox the copy is parked and due at once. Also of an event or message that is retried. Content never changes under its dispatch ID. Prints the
ID of the copy. Editing again to the same content makes no second copy.

    boxpair show 4b9d2a51 --payload -o json --outbox postgres://operator@orders/shop
    boxpair dead edit 4b9d2a51 --payload-file mended.json --outbox postgres://operator@orders/shop -m "price was missing"`,
	define: func(s *settings) func(context.Context, *process) (int, error) {
		e := &editing{headers: make(map[string]string)}
		e.define(s)
		return e.run
	},
}

// editing holds the settings of dead edit.
type editing struct {
	databases
	change

	ids            []idRange
	consumer, file string
	headers        map[string]string
	out            form
}

func (e *editing) define(s *settings) {
	e.databases.define(s, "the database of the outbox.", "the database of the inbox, with --consumer.")
	s.text(&e.consumer, "consumer", "NAME", "the consumer of the message, such as stock/reserve.")
	s.text(&e.file, "payload-file", "FILE", "the file with the new payload, or - for the standard input. Defaults to none: the payload stays.")
	s.add("header", envOf("header"), "NAME=VALUE", "a header to set, or to remove with an empty value. May be given several times.", true, func(text string) error {
		name, value, found := strings.Cut(text, "=")
		if !found || name == "" {
			return errors.New("want NAME=VALUE")
		}
		e.headers[name] = value
		return nil
	})
	e.defineReason(s, "the reason, in less than 1 KiB. Required.")
	e.out.define(s)
	s.idsAfterFlags("ID", &e.ids)
}

func (e *editing) run(ctx context.Context, p *process) (int, error) {
	errs := []error{because(e.reason), e.one()}
	if len(e.ids) != 1 {
		errs = append(errs, fmt.Errorf("ID: want exactly one, got %d", len(e.ids)))
	}
	if (e.consumer == "") != (len(e.inboxes) == 0) {
		errs = append(errs, errors.New("--consumer: is required with --inbox, and only there"))
	}
	if e.file == "" && len(e.headers) == 0 {
		errs = append(errs, errors.New("--payload-file or --header: is missing"))
	}
	if err := errors.Join(errs...); err != nil {
		return exitFailed, err
	}
	payload, err := e.payload(p)
	if err != nil {
		return exitFailed, fmt.Errorf("--payload-file: %w", err)
	}
	err = e.each(ctx, false, func(s *operators) error {
		ids, err := s.resolve(ctx, e.ids)
		if err != nil {
			return err
		}
		copied, err := e.edit(ctx, s, ids[0], payload)
		if err != nil {
			return err
		}
		return e.out.result(p, copied.String()+"\n", map[string]any{"id": copied})
	})
	if err != nil {
		return exitFailed, err
	}
	return exitOK, nil
}

// payload reads the new payload; nil if it stays.
func (e *editing) payload(p *process) ([]byte, error) {
	switch e.file {
	case "":
		return nil, nil
	case "-":
		return io.ReadAll(p.stdin)
	}
	return os.ReadFile(e.file)
}

func (e *editing) edit(ctx context.Context, s *operators, id uuid.UUID, payload []byte) (uuid.UUID, error) {
	change := func(to *[]byte, headers *map[string]string) {
		if payload != nil {
			*to = payload
		}
		if *headers == nil {
			*headers = make(map[string]string)
		}
		for name, value := range e.headers {
			(*headers)[name] = value
			if value == "" {
				delete(*headers, name)
			}
		}
	}
	reason, err := e.attributed(s)
	if err != nil {
		return uuid.Nil, err
	}
	if s.isInbox {
		return s.inbox.Edit(ctx, e.consumer, id, reason, func(c *consumer.Content) error {
			change(&c.Payload, &c.Headers)
			return nil
		})
	}
	return s.outbox.Edit(ctx, id, reason, func(c *producer.Content) error {
		change(&c.Payload, &c.Headers)
		return nil
	})
}

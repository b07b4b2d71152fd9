package middleware

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"runtime"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
)

// lossy are Watermill's middlewares that acknowledge messages which the inbox has neither applied nor
// parked, by the names of their types and functions.
var lossy = map[string]string{
	"poisonQueue":  "PoisonQueue takes an outage of the database for a bad message, and the message never has its effect: the inbox keeps dead messages itself",
	"Deduplicator": "Deduplicator takes a message for handled before it is: a message that comes again after an outage is dropped, and the inbox finds copies itself",
	"InstantAck":   "InstantAck acknowledges a message before it is handled: a crash loses the message",
}

// checkMiddlewares returns an error for each lossy middleware of router, or of a handler that is no
// exception, or logs the errors with allow.
func checkMiddlewares(router *message.Router, except map[string]bool, log *slog.Logger, allow bool) error {
	list := reflect.ValueOf(router).Elem().FieldByName("middlewares")
	if list.Kind() != reflect.Slice {
		return errors.New("this version of Watermill does not tell which middlewares its handlers have: use Wrap")
	}
	var errs []error
	for i := range list.Len() {
		entry := reflect.Indirect(list.Index(i))
		fn, handler := entry.FieldByName("Handler"), entry.FieldByName("HandlerName")
		if fn.Kind() != reflect.Func || handler.Kind() != reflect.String {
			return errors.New("this version of Watermill does not tell what its middlewares are: use Wrap")
		}
		problem := lossy[watermillName(runtime.FuncForPC(fn.Pointer()).Name())]
		switch {
		case problem == "" || except[handler.String()]:
		case allow:
			log.ErrorContext(context.Background(), "middleware around an inbox loses messages", "problem", problem, "handler", handler.String())
		default:
			errs = append(errs, fmt.Errorf("%s (take it out, or set AllowLoss)", problem))
		}
	}
	return errors.Join(errs...)
}

// watermillName returns the name of the type or function of a middleware of Watermill that has the
// function named full, or "".
func watermillName(full string) string {
	name, ok := strings.CutPrefix(full, watermillMiddleware)
	if !ok {
		return ""
	}
	name, _, _ = strings.Cut(strings.TrimPrefix(name, "(*"), ".")
	return strings.TrimSuffix(name, ")")
}

// warnOfDecorators says that the publisher decorators of router get no messages of handlers that
// return some.
func warnOfDecorators[TX any](router *message.Router, log *slog.Logger, topics map[string]string, handlers map[string]*plain[TX]) {
	decorators := reflect.ValueOf(router).Elem().FieldByName("publisherDecorators")
	if decorators.Kind() != reflect.Slice || decorators.Len() == 0 {
		return
	}
	for name := range handlers {
		if topics[name] != "" {
			log.WarnContext(context.Background(), "publisher decorators of the router get no messages of this handler, which go to the outbox",
				"handler", name, "topic", topics[name])
		}
	}
}

package middleware

import (
	"runtime"
	"strings"
)

const (
	watermillMiddleware = "github.com/ThreeDotsLabs/watermill/message/router/middleware."
	// innermost ends the name of the function that runs a handler in its transaction.
	innermost = "/middleware.(*plain[...]).handle"
	maxFrames = 256
)

// notInside are Watermill's middlewares that run a handler again or hide its error, by the names of
// their types and functions.
var notInside = map[string]string{
	"Retry": "Retry", "Duplicator": "Duplicator", "IgnoreErrors": "IgnoreErrors", "poisonQueue": "PoisonQueue",
}

// look finds the middlewares between the inbox and the handler, once. A handler changes its
// database only through WorkFrom, and all calls that lead to the handler are on the stack of
// WorkFrom; nothing else shows whether a handler runs twice. A goroutine of the handler has a stack
// of its own, which is not enough: then the next call looks again.
func (p *plain[TX]) look() {
	if p.looked.Load() {
		return
	}
	var pcs [maxFrames]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs[:])])
	found := ""
	for {
		frame, more := frames.Next()
		if found == "" {
			found = notInside[watermillName(frame.Function)]
		}
		if strings.HasSuffix(frame.Function, innermost) {
			if found != "" {
				p.inside.Store(&found)
			}
			p.looked.Store(true)
			return
		}
		if !more {
			return
		}
	}
}

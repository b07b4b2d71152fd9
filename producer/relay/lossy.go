package relay

import (
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
)

// refuseLossy returns an error that names the publishers known to lose messages.
func refuseLossy(publisher message.Publisher, downstreams []Downstream) error {
	var errs []error
	check := func(name string, p message.Publisher) {
		if isLossy(p) {
			errs = append(errs, fmt.Errorf("%s: %T reports a message as published that no queue has taken, and the event is lost; "+
				"use the Publisher of transport/amqp, which takes the same configuration, or set AllowLoss", name, p))
		}
	}
	check("publisher", publisher)
	for i, d := range downstreams {
		check(fmt.Sprintf("Downstreams[%d].Publisher", i), d.Publisher)
	}
	return errors.Join(errs...)
}

// isLossy tells whether p is watermill-amqp's publisher, by the package path of the type: an import
// would compile watermill-amqp into every program.
func isLossy(p message.Publisher) bool {
	t := reflect.TypeOf(p)
	if t == nil || t.Kind() != reflect.Pointer {
		return false
	}
	return t.Elem().Name() == "Publisher" && strings.HasPrefix(t.Elem().PkgPath(), "github.com/ThreeDotsLabs/watermill-amqp/")
}

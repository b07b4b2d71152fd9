package amqp

import (
	"errors"
	"net/url"
	"strings"

	"github.com/rabbitmq/amqp091-go"
)

// errURI says nothing of the URI itself: what a parser quotes of a URI that it
// could not parse may be the password.
var errURI = errors.New("not a valid AMQP URI: want amqp://user:password@host:port/vhost, " +
	"with reserved characters of user, password and vhost percent-encoded")

// parseURI parses an AMQP URI. Its error contains no part of the URI.
func parseURI(uri string) (amqp091.URI, error) {
	u, err := url.Parse(uri)
	if err != nil {
		return amqp091.URI{}, errURI
	}
	// A password with an unencoded / ? or # ends the authority early: what
	// follows would be taken for the vhost, and shown.
	if strings.Contains(u.EscapedPath(), "@") || strings.Contains(u.RawQuery, "@") || strings.Contains(uri, "#") {
		return amqp091.URI{}, errURI
	}
	parsed, err := amqp091.ParseURI(uri)
	if err != nil || parsed.Port < 1 || parsed.Port > 65535 {
		return amqp091.URI{}, errURI
	}
	return parsed, nil
}

// redact returns err, or, should its text contain the password, an error with
// the same text without it. Nothing that is known to produce such an error is
// left; this is the second lock on the door.
func redact(err error, password string) error {
	if err == nil || len(password) < 4 {
		return err
	}
	text := err.Error()
	if !strings.Contains(text, password) && !strings.Contains(text, url.QueryEscape(password)) {
		return err
	}
	text = strings.ReplaceAll(text, url.QueryEscape(password), "***")
	return errors.New(strings.ReplaceAll(text, password, "***"))
}

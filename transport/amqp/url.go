package amqp

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"

	"github.com/rabbitmq/amqp091-go"
)

// errURI contains no part of the URI: the error of a parser may quote the password.
var errURI = errors.New("not a valid AMQP URI: want amqp://user:password@host:port/vhost, " +
	"with reserved characters of user, password and vhost percent-encoded")

// parseURI parses an AMQP URI. Its error contains no part of the URI.
func parseURI(uri string) (amqp091.URI, error) {
	u, err := url.Parse(uri)
	if err != nil {
		return amqp091.URI{}, errURI
	}
	// A password with an unencoded / ? or # ends the authority early. The rest of the password
	// would count as the vhost, and be logged.
	if strings.Contains(u.EscapedPath(), "@") || strings.Contains(u.RawQuery, "@") || strings.Contains(uri, "#") {
		return amqp091.URI{}, errURI
	}
	parsed, err := amqp091.ParseURI(uri)
	if err != nil || parsed.Port < 1 || parsed.Port > 65535 {
		return amqp091.URI{}, errURI
	}
	return parsed, nil
}

// urisOf returns uri with each of the hosts as its host, and the addresses of the hosts. Its error
// contains no part of the URI.
func urisOf(uri string, port int, hosts []string) (uris, addresses []string, err error) {
	u, err := url.Parse(uri)
	if err != nil {
		return nil, nil, errURI
	}
	for i, host := range hosts {
		at := url.URL{Scheme: u.Scheme, Host: host}
		parsed, err := url.Parse(at.String())
		if err != nil || parsed.Hostname() == "" || parsed.User != nil || parsed.Host != host || strings.Contains(parsed.Hostname(), ",") {
			return nil, nil, fmt.Errorf("%s[%d]: want a host, or host:port", "Hosts", i)
		}
		if parsed.Port() == "" {
			host = net.JoinHostPort(parsed.Hostname(), strconv.Itoa(port))
		}
		u.Host = host
		uris, addresses = append(uris, u.String()), append(addresses, host)
	}
	return uris, addresses, nil
}

// redact returns err. If its text contains the password, redact returns an error with the same text
// without the password. No such error is known; this is a second safeguard.
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

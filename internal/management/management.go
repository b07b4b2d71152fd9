// Package management reads the HTTP API of RabbitMQ's plugin rabbitmq_management.
package management

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// API is a management API and one virtual host. It is safe for concurrent use.
type API struct {
	base           *url.URL // without user and password
	user, password string
	client         *http.Client

	// Host is the host and port of the API.
	Host string
	// VHost is the virtual host.
	VHost string
}

// ErrDenied is wrapped when the API denies the user an answer.
var ErrDenied = errors.New("denies access")

// New returns the API at address, http://user:password@host:15672 or https://…, without I/O. vhost
// defaults to /, and client to one that gives up after 10 seconds. The error quotes nothing of
// address.
func New(address, vhost string, client *http.Client) (*API, error) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || strings.Contains(u.Path+u.RawQuery+u.Fragment, "@") {
		return nil, errors.New("URL: want http://user:password@host:15672 or https://…, with reserved characters of user and password percent-encoded")
	}
	a := &API{user: u.User.Username(), client: client, Host: u.Host, VHost: vhost}
	a.password, _ = u.User.Password()
	u.User = nil
	a.base = u
	if a.VHost == "" {
		a.VHost = "/"
	}
	if a.client == nil {
		transport := http.DefaultTransport.(*http.Transport).Clone() //nolint:forcetypeassert // documented to have this type
		transport.DisableKeepAlives = true
		a.client = &http.Client{Transport: transport, Timeout: 10 * time.Second}
	}
	return a, nil
}

// maxAnswer is how many bytes of an answer are read: a queue takes about 2 KiB of a list.
const maxAnswer = 64 << 20

// Get reads the object or the list at path, below /api, into v. It reports false if there is no such
// object. The error contains no password, and wraps [ErrDenied] if the user lacks a right.
func (a *API) Get(ctx context.Context, v any, path ...string) (bool, error) {
	where := a.base.JoinPath("api")
	for _, part := range path {
		where.RawPath = where.EscapedPath() + "/" + url.PathEscape(part)
		where.Path += "/" + part
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, where.String(), http.NoBody)
	if err != nil {
		return false, err
	}
	request.SetBasicAuth(a.user, a.password)
	response, err := a.client.Do(request)
	if err != nil {
		if len(a.password) >= 4 && strings.Contains(err.Error(), a.password) {
			err = errors.New("the request failed") // a client of the user's own may tell the header
		}
		return false, fmt.Errorf("no management API at %s; enable the plugin rabbitmq_management, or correct the URL: %w", a.Host, err)
	}
	defer response.Body.Close()
	switch response.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound:
		return false, nil
	case http.StatusUnauthorized, http.StatusForbidden:
		return false, fmt.Errorf("%s %w (%s); the user needs the tag management, and access to the virtual host %q",
			a.Host, ErrDenied, response.Status, a.VHost)
	default:
		return false, fmt.Errorf("%s: %s", a.Host, response.Status)
	}
	if err := json.NewDecoder(io.LimitReader(response.Body, maxAnswer)).Decode(v); err != nil {
		return false, fmt.Errorf("%s: not the answer of a management API: %w", a.Host, err)
	}
	return true, nil
}

// Settings are the arguments of a queue or an exchange, or a policy. RabbitMQ writes empty settings
// as an empty list.
type Settings map[string]any

// UnmarshalJSON treats any value except an object as empty settings.
func (s *Settings) UnmarshalJSON(text []byte) error {
	if len(text) > 0 && text[0] == '{' {
		return json.Unmarshal(text, (*map[string]any)(s))
	}
	return nil
}

package main

import (
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/boxpair/boxpair/internal/testenv"
)

// ask sends a request to the daemon, and returns the answer.
func (d *daemon) ask(t *testing.T, method, path, form string, prepare func(r *http.Request)) (int, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, "http://"+d.health+path, strings.NewReader(form))
	ok(t, err)
	if form != "" {
		request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		request.Header.Set("Sec-Fetch-Site", "same-origin")
	}
	if prepare != nil {
		prepare(request)
	}
	client := http.Client{
		Transport:     &http.Transport{DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	response, err := client.Do(request)
	ok(t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	ok(t, err)
	return response.StatusCode, string(text)
}

// TestRelayServesADashboardOnRequestOnly, to the machine that it runs on, or to those who have the token.
func TestRelayServesADashboardOnRequestOnly(t *testing.T) {
	t.Parallel()
	const token = "canary-of-a-password"
	database := testenv.Postgres(t)
	plantEvents(t, database, testenv.Name(t), 1)
	broker := "amqp://127.0.0.1:1/" // the event waits
	pause := url.Values{"kind": {"outbox"}, "source": {databaseName(t, database)}, "what": {"topic"}, "name": {"audit.#"}, "reason": {"counting"}, "back": {"/pauses"}}.Encode()
	for name, c := range map[string]struct {
		args        []string
		prepare     func(r *http.Request)
		look, pause int
		page        string
	}{
		"not asked for":      {args: nil, look: http.StatusNotFound, pause: http.StatusNotFound},
		"this machine looks": {args: []string{"--dashboard"}, look: http.StatusOK, pause: http.StatusForbidden, page: "reader"},
		"a name that another site may have": {
			args: []string{"--dashboard", "--write"}, prepare: func(r *http.Request) { r.Host = "relay.example" },
			look: http.StatusForbidden, pause: http.StatusForbidden,
		},
		"through a proxy": {
			args: []string{"--dashboard", "--write"}, prepare: func(r *http.Request) { r.Header.Set("X-Forwarded-For", "192.0.2.1") },
			look: http.StatusForbidden, pause: http.StatusForbidden,
		},
		"this machine writes": {args: []string{"--dashboard", "--write"}, look: http.StatusOK, pause: http.StatusSeeOther, page: "operator"},
		"without the token":   {args: []string{"--dashboard", "--token", token}, look: http.StatusUnauthorized, pause: http.StatusUnauthorized},
		"with the token": {
			args: []string{"--dashboard", "--token", token, "--title", "night"}, prepare: func(r *http.Request) { r.SetBasicAuth("ada", token) },
			look: http.StatusOK, pause: http.StatusSeeOther, page: "· night</title>",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := start(t, append([]string{"--outbox", database, "--amqp", broker}, c.args...)...)
			if status, page := d.ask(t, http.MethodGet, "/ui/", "", c.prepare); status != c.look || !strings.Contains(page, c.page) {
				t.Errorf("%d, want %d with %q: %.300s", status, c.look, c.page, page)
			}
			if status, page := d.ask(t, http.MethodPost, "/ui/pauses/begin", pause, c.prepare); status != c.pause {
				t.Errorf("a pause: %d, want %d: %.300s", status, c.pause, page)
			}
			if status, _ := d.get(t, "/healthz"); status != http.StatusOK {
				t.Errorf("/healthz: %d", status)
			}
			if log := d.stop(t); strings.Contains(log, token) {
				t.Errorf("the token is shown: %s", log)
			}
		})
	}
}

// databaseName returns the name of the database of a URL.
func databaseName(t *testing.T, database string) string {
	t.Helper()
	u, err := url.Parse(database)
	ok(t, err)
	return strings.TrimPrefix(u.Path, "/")
}

// TestRelayWithADashboardStartsWhileItsDatabaseIsDown: the pages say why nothing is shown.
func TestRelayWithADashboardStartsWhileItsDatabaseIsDown(t *testing.T) {
	t.Parallel()
	d := start(t, "--outbox", "postgres://nobody@127.0.0.1:1/shop", "--amqp", "amqp://127.0.0.1:1/", "--dashboard")
	if status, page := d.ask(t, http.MethodGet, "/ui/", "", nil); status != http.StatusOK || !strings.Contains(page, "connection refused") {
		t.Errorf("%d, %.300s", status, page)
	}
	d.stop(t)
}

func TestLagAndDeadEventsMakeARelayUnreadyOnRequestOnly(t *testing.T) {
	t.Parallel()
	broker := testenv.AMQPURL(t)
	r := newRig(t, 3)
	r.exec(`DELETE FROM boxpair.outbox_queue`,
		`INSERT INTO boxpair.outbox_parked (id, shard, key, state, attempts, last_error) SELECT id, shard, 'k', 'dead', 10, 'no' FROM boxpair.outbox_events WHERE id < 3`,
		`INSERT INTO boxpair.outbox_parked (id, shard, key, state, attempts, next_attempt_at, last_error, parked_at)
			SELECT id, shard, 'k', 'retrying', 1, now() + interval '5 minutes', 'no', now() - interval '1 hour' FROM boxpair.outbox_events WHERE id = 3`,
		`UPDATE boxpair.outbox_events SET created_at = now() - interval '1 hour'`)
	for name, c := range map[string]struct {
		args   []string
		status int
		why    string
	}{
		"without bounds": {nil, http.StatusOK, `"problems":[]`},
		"below":          {[]string{"--unready-dead", "3", "--unready-age", "2h"}, http.StatusOK, `"problems":[]`},
		"dead":           {[]string{"--unready-dead", "2"}, http.StatusServiceUnavailable, `: dead events: 2"]`},
		"late":           {[]string{"--unready-age", "30m"}, http.StatusServiceUnavailable, `: the oldest pending event is 1h`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := start(t, append([]string{"--outbox", r.url, "--amqp", broker}, c.args...)...)
			await(t, d.status(t, "/readyz", c.status, c.why))
			await(t, d.status(t, "/healthz", http.StatusOK, `"ok":true`))
			d.stop(t)
		})
	}
}

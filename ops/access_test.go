package ops_test

import (
	"bytes"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/boxpair/boxpair/ops"
)

func TestWithoutSettingsOnlyLoopbackMayRead(t *testing.T) {
	t.Parallel()
	r := over(t, newScene(t, false), func(c *ops.Config) { c.Loopback = ops.Reader })
	for name, tc := range map[string]struct {
		peer, host string
		header     [2]string
		want       int
	}{
		"loopback":                     {"127.0.0.1:1", "localhost:8080", [2]string{}, http.StatusOK},
		"loopback by address":          {"127.0.0.1:1", "127.0.0.1", [2]string{}, http.StatusOK},
		"loopback of IPv6":             {"[::1]:1", "[::1]:8080", [2]string{}, http.StatusOK},
		"mapped loopback":              {"[::ffff:127.0.0.1]:1", "localhost", [2]string{}, http.StatusOK},
		"another machine":              {"192.0.2.7:1", "localhost:8080", [2]string{}, http.StatusForbidden},
		"a rebound name":               {"127.0.0.1:1", "evil.example:8080", [2]string{}, http.StatusForbidden},
		"a name that begins so":        {"127.0.0.1:1", "localhost.evil.example", [2]string{}, http.StatusForbidden},
		"no name":                      {"127.0.0.1:1", "", [2]string{}, http.StatusForbidden},
		"a socket without an address":  {"@", "localhost", [2]string{}, http.StatusForbidden},
		"a proxy on the same machine":  {"127.0.0.1:1", "localhost", [2]string{"X-Forwarded-For", "192.0.2.7"}, http.StatusForbidden},
		"another proxy on the machine": {"127.0.0.1:1", "localhost", [2]string{"Forwarded", "for=192.0.2.7"}, http.StatusForbidden},
	} {
		for _, target := range []string{"/", "/dead", "/live?outbox=shop", "/assets/x/app.js", "/nothing"} {
			status, header, body := r.do(http.MethodGet, target, nil, func(req *http.Request) {
				req.RemoteAddr, req.Host = tc.peer, tc.host
				if tc.header[0] != "" {
					req.Header.Set(tc.header[0], tc.header[1])
				}
			})
			if got := status == http.StatusForbidden; got != (tc.want == http.StatusForbidden) {
				t.Errorf("%s, %s: status %d", name, target, status)
			}
			if header.Get("X-Frame-Options") == "" {
				t.Errorf("%s, %s: no security headers", name, target)
			}
			if tc.want == http.StatusForbidden && strings.Contains(body, "shop") {
				t.Errorf("%s, %s: shows the outbox", name, target)
			}
		}
	}
}

func TestReaderMayNotChange(t *testing.T) {
	t.Parallel()
	r := over(t, newScene(t, true), func(c *ops.Config) { c.Loopback = ops.Reader })
	for _, page := range []string{"/dead", "/pauses", "/effects", "/deferred"} {
		if strings.Contains(r.page(page), `name="reason"`) {
			t.Errorf("%s offers a reader to change something", page)
		}
	}
	for _, target := range changes {
		if status, _ := r.post(target, "reason", "x", "source", "shop"); status != http.StatusForbidden {
			t.Errorf("%s: a reader gets %d", target, status)
		}
	}
	if status, _ := r.post("/theme", "theme", "dark"); status != http.StatusSeeOther {
		t.Errorf("a reader may not choose a theme: %d", status)
	}
}

// changes are the addresses of all changes.
var changes = []string{
	"/dead/redrive", "/dead/discard", "/dead/edit", "/deferred/cancel", "/deferred/move", "/effects/redrive", "/effects/discard", "/effects/resolve",
	"/pauses/begin", "/pauses/end",
}

func TestChangeFromAnotherSiteIsRefused(t *testing.T) {
	t.Parallel()
	r := over(t, newScene(t, false), nil)
	form := url.Values{"kind": {"outbox"}, "source": {"shop"}, "what": {"topic"}, "name": {"orders"}, "reason": {"x"}}
	for name, headers := range map[string][2]string{
		"another site": {"cross-site", "https://evil.example"}, "a sister site": {"same-site", "http://other.localhost:8080"},
		"another port": {"", "http://localhost:9999"}, "a sandbox": {"", "null"}, "no browser": {"", ""}, "typed in": {"none", ""},
		"forged fetch site": {"same-origin", "https://evil.example"},
	} {
		status, _, _ := r.do(http.MethodPost, "/pauses/begin", form, func(req *http.Request) {
			for i, name := range []string{"Sec-Fetch-Site", "Origin"} {
				if req.Header.Del(name); headers[i] != "" {
					req.Header.Set(name, headers[i])
				}
			}
		})
		if status != http.StatusForbidden {
			t.Errorf("%s: status %d", name, status)
		}
	}
	for _, target := range changes {
		if status, _, _ := r.do(http.MethodGet, target+"?"+form.Encode(), nil, nil); status != http.StatusNotFound && status != http.StatusMethodNotAllowed {
			t.Errorf("GET %s: status %d", target, status)
		}
	}
	pauses, err := r.scene.Outbox.Pauses(t.Context())
	if err != nil || len(pauses) > 0 {
		t.Errorf("pauses are %v, %v", pauses, err)
	}
	if status, body := r.post("/pauses/begin", "kind", "outbox", "source", "shop", "what", "topic", "name", "orders", "reason", "x"); status != http.StatusSeeOther {
		t.Errorf("the dashboard's own form: status %d, %s", status, body)
	}
}

func TestTokenMakesAnOperator(t *testing.T) {
	t.Parallel()
	const token = "0123456789abcdef0123"
	var log bytes.Buffer
	r := over(t, newScene(t, false), func(c *ops.Config) {
		c.Token, c.Logger = token, slog.New(slog.NewTextHandler(&log, nil))
	})
	away := func(set func(*http.Request)) func(*http.Request) {
		return func(req *http.Request) {
			req.RemoteAddr, req.Host = "192.0.2.7:1", "ops.example"
			set(req)
		}
	}
	for name, tc := range map[string]struct {
		set  func(*http.Request)
		want int
	}{
		"none":         {func(*http.Request) {}, http.StatusUnauthorized},
		"wrong bearer": {func(r *http.Request) { r.Header.Set("Authorization", "Bearer 0123456789abcdef0124") }, http.StatusUnauthorized},
		"a beginning":  {func(r *http.Request) { r.Header.Set("Authorization", "Bearer 0123456789abcdef") }, http.StatusUnauthorized},
		"bearer":       {func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+token) }, http.StatusOK},
		"basic":        {func(r *http.Request) { r.SetBasicAuth("dana", token) }, http.StatusOK},
		"as the user":  {func(r *http.Request) { r.SetBasicAuth(token, "") }, http.StatusUnauthorized},
		"in the query": {func(r *http.Request) { r.URL.RawQuery = "token=" + token }, http.StatusUnauthorized},
	} {
		status, header, body := r.do(http.MethodGet, "/", nil, away(tc.set))
		if status != tc.want {
			t.Errorf("%s: status %d, want %d", name, status, tc.want)
		}
		if status == http.StatusUnauthorized && header.Get("WWW-Authenticate") == "" {
			t.Errorf("%s: the browser is not asked", name)
		}
		if strings.Contains(body, token) {
			t.Errorf("%s: the page has the token", name)
		}
	}
	if strings.Contains(log.String(), token) {
		t.Error("the log has the token")
	}
	if _, _, body := r.do(http.MethodGet, "/", nil, nil); strings.Contains(body, "shop") {
		t.Error("loopback needs no token")
	}
}

func TestAuthorizeDecides(t *testing.T) {
	t.Parallel()
	r := over(t, newScene(t, false), func(c *ops.Config) {
		c.Authorize = func(r *http.Request) (ops.Role, string, error) {
			switch r.Header.Get("X-User") {
			case "dana":
				return ops.Operator, "dana", nil
			case "eve":
				return ops.Reader, "eve", nil
			case "odd":
				return 7, "odd", nil
			}
			return ops.Operator, "", errors.New("session 4711 of the database is over")
		}
	})
	for user, want := range map[string]int{"dana": http.StatusSeeOther, "eve": http.StatusForbidden, "odd": http.StatusForbidden, "": http.StatusForbidden} {
		form := url.Values{"kind": {"outbox"}, "source": {"shop"}, "what": {"topic"}, "name": {"orders"}, "reason": {"x"}}
		status, _, body := r.do(http.MethodPost, "/pauses/begin", form, func(req *http.Request) { req.Header.Set("X-User", user) })
		if status != want || strings.Contains(body, "4711") {
			t.Errorf("%q: status %d, want %d: %s", user, status, want, body)
		}
	}
	pauses, err := r.scene.Outbox.Pauses(t.Context())
	if err != nil || len(pauses) != 1 || pauses[0].By != "dana" || pauses[0].Reason != "x" {
		t.Errorf("pauses are %+v, %v", pauses, err)
	}
}

func TestAnswersAreNotKeptAndNotFramed(t *testing.T) {
	t.Parallel()
	r := over(t, newScene(t, true), nil)
	for _, target := range pages {
		_, header, body := r.do(http.MethodGet, target, nil, nil)
		csp := header.Get("Content-Security-Policy")
		if header.Get("Cache-Control") != "no-store" || header.Get("X-Content-Type-Options") != "nosniff" ||
			!strings.Contains(csp, "frame-ancestors 'none'") || !strings.Contains(csp, "default-src 'none'") || strings.Contains(csp, "unsafe") {
			t.Errorf("%s: headers are %v", target, header)
		}
		for _, inline := range []string{"<script>", " style=", "<style", "javascript:", " onclick="} {
			if strings.Contains(body, inline) {
				t.Errorf("%s has %s", target, inline)
			}
		}
	}
}

func TestMistakesInTheConfigurationAreNamed(t *testing.T) {
	t.Parallel()
	s := newScene(t, false)
	_, err := ops.New(ops.Config{
		Path: "ops", Token: "short", Authorize: func(*http.Request) (ops.Role, string, error) { return 0, "", nil }, Loopback: 9, Timeout: -1,
		Outboxes: []ops.Outbox{{Name: "a", Operator: s.Outbox}, {Name: "a", Operator: s.Outbox}, {Name: "b/c", Operator: s.Outbox}, {}},
		Inboxes:  []ops.Inbox{{Name: "a"}},
	})
	for _, field := range []string{
		"Path:", "Token:", "Token: cannot be", "Loopback:", "Timeout:", "Outboxes[1].Name:", "Outboxes[2].Name:", "Outboxes[3].Name:", "Outboxes[3].Operator:",
		"Inboxes[0].Operator:",
	} {
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s is not named: %v", field, err)
		}
	}
	if strings.Contains(err.Error(), "short,") {
		t.Errorf("the token is shown: %v", err)
	}
	if _, err := ops.New(ops.Config{}); err == nil || !strings.Contains(err.Error(), "Outboxes: at least") {
		t.Errorf("a dashboard of nothing: %v", err)
	}
}

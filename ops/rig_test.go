package ops_test

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/boxpair/boxpair/internal/opsscene"
	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/ops"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a dashboard over a scene.
type rig struct {
	*testing.T
	scene   *opsscene.Scene
	handler *ops.Handler
}

// scenes makes scenes, with something in every state if they are to be filled.
type scenes func(t *testing.T, fill bool) *opsscene.Scene

// newScene makes scenes on SQLite, for what is the same on every store.
func newScene(t *testing.T, fill bool) *opsscene.Scene {
	t.Helper()
	s, err := opsscene.New(t.Context(), t.TempDir())
	return filled(t, s, err, fill)
}

func newPostgresScene(t *testing.T, fill bool) *opsscene.Scene {
	t.Helper()
	s, err := opsscene.NewPostgres(t.Context(), testenv.Postgres(t))
	return filled(t, s, err, fill)
}

func filled(t *testing.T, s *opsscene.Scene, err error, fill bool) *opsscene.Scene {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	if fill {
		if err := s.Fill(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// onEachStore runs a test on each store that the dashboard is tested with.
func onEachStore(t *testing.T, test func(t *testing.T, newScene scenes)) {
	t.Helper()
	t.Parallel()
	for store, newScene := range map[string]scenes{"SQLite": newScene, "PostgreSQL": newPostgresScene} {
		t.Run(store, func(t *testing.T) {
			t.Parallel()
			test(t, newScene)
		})
	}
}

// over returns a dashboard of a scene, with settings.
func over(t *testing.T, s *opsscene.Scene, change func(c *ops.Config)) *rig {
	t.Helper()
	cfg := ops.Config{
		Loopback: ops.Operator,
		Outboxes: []ops.Outbox{{Name: "shop", Operator: s.Outbox, Parts: []any{s.Store}}},
		Inboxes:  []ops.Inbox{{Name: "stock", Operator: s.Inbox, Effects: s.Ledger, Parts: []any{s.Store, s.Auditor}}},
		Logger:   slog.New(slog.DiscardHandler),
		Timeout:  5 * time.Minute,
	}
	if change != nil {
		change(&cfg)
	}
	h, err := ops.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return &rig{t, s, h}
}

// do sends a request as a browser on the same machine does, changed by change.
func (r *rig) do(method, target string, form url.Values, change func(*http.Request)) (int, http.Header, string) {
	r.Helper()
	req := httptest.NewRequestWithContext(r.Context(), method, target, strings.NewReader(form.Encode()))
	req.RemoteAddr, req.Host = "127.0.0.1:40000", "localhost:8080"
	if method == http.MethodPost {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		req.Header.Set("Sec-Fetch-Site", "same-origin")
		req.Header.Set("Origin", "http://localhost:8080")
	}
	if change != nil {
		change(req)
	}
	w := httptest.NewRecorder()
	r.handler.ServeHTTP(w, req)
	res := w.Result()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		r.Fatal(err)
	}
	return res.StatusCode, res.Header, string(body)
}

// page reads a page that is there.
func (r *rig) page(target string) string {
	r.Helper()
	status, _, body := r.do(http.MethodGet, target, nil, nil)
	if status != http.StatusOK {
		r.Fatalf("%s: status %d:\n%s", target, status, body)
	}
	return body
}

// shows checks that a page has the texts.
func (r *rig) shows(target string, texts ...string) string {
	r.Helper()
	body := r.page(target)
	for _, text := range texts {
		if !strings.Contains(body, text) {
			r.Errorf("%s does not show %q", target, text)
		}
	}
	return body
}

// post sends a form, and returns the status and the page that follows, with the notice.
func (r *rig) post(target string, fields ...string) (int, string) {
	r.Helper()
	form := url.Values{}
	for i := 0; i+1 < len(fields); i += 2 {
		form.Set(fields[i], fields[i+1])
	}
	status, header, body := r.do(http.MethodPost, target, form, nil)
	if status != http.StatusSeeOther {
		return status, body
	}
	cookie := header.Get("Set-Cookie")
	_, _, body = r.do(http.MethodGet, header.Get("Location"), nil, func(req *http.Request) { req.Header.Set("Cookie", strings.Split(cookie, ";")[0]) })
	return status, body
}

// goOn takes the next steps of a long change, until it is complete.
func (r *rig) goOn(target string, status int, body string) string {
	r.Helper()
	for status == http.StatusOK && strings.Contains(body, "Continue</button>") {
		var fields []string
		for _, field := range hidden.FindAllStringSubmatch(body, -1) {
			fields = append(fields, field[1], field[2])
		}
		status, body = r.post(target, fields...)
	}
	return body
}

package main

import (
	"bufio"
	"context"
	"database/sql"
	"encoding/json"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/store/sqlite"
	"github.com/boxpair/boxpair/transport"
)

// TestTreeShowsWhatAnEventHasCaused in a service whose handler writes an event.
func TestTreeShowsWhatAnEventHasCaused(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "shop.db")
	db, err := sqlite.Open(path)
	ok(t, err)
	t.Cleanup(func() { ok(t, db.Close()) })
	_, err = sqlite.Migrate(t.Context(), db, sqlite.Config{})
	ok(t, err)
	store, err := sqlite.New(db, sqlite.Config{})
	ok(t, err)
	outbox, err := producer.New(store, producer.Config{Name: "shop"})
	ok(t, err)
	inbox, err := consumer.New(store, consumer.Config{Service: "stock"}, consumer.WithOutbox(outbox))
	ok(t, err)
	reserve, err := inbox.Handle("reserve", func(ctx context.Context, w *consumer.Work[*sql.Tx], _ *message.Message) error {
		_, err := w.Write(ctx, producer.Event{Topic: "stock.reserved", Payload: []byte(payload)})
		return err
	}, consumer.HandlerConfig{Topic: "order.placed"})
	ok(t, err)
	place := func(version int64) {
		ok(t, outbox.Transact(t.Context(), func(ctx context.Context, w *producer.Writer[*sql.Tx]) error {
			_, err := w.Write(ctx, producer.Event{Topic: "order.placed", Source: "order", Version: version, CorrelationID: "request-7", Payload: []byte(payload)})
			return err
		}))
	}
	place(1)
	url := "sqlite:" + path
	tree := func(want int, args ...string) string {
		t.Helper()
		status, out, errs := call(t, nil, append([]string{"tree", id(1).String()[:8], "--outbox", url, "--inbox", url, "--consumer", "stock/reserve=order.*"}, args...)...)
		if status != want || strings.Contains(out, payload) {
			t.Errorf("%v: %d, %s%s", args, status, out, errs)
		}
		return out
	}
	if out := tree(exitFound); !strings.Contains(out, "  stock/reserve  has not got it\n") || !strings.HasSuffix(out, "2 not done, of 1 events\n") {
		t.Error(out)
	}
	event := transport.Event{ID: id(1), Topic: "order.placed", CorrelationID: "request-7", Payload: []byte(payload)}
	ok(t, reserve.Consume(event.Message()))
	child := idgen.Child("stock/reserve", id(1), 0)
	if out := tree(exitFound, "--wait", "1s"); !strings.Contains(out, "  stock/reserve  applied\n    "+child.String()[:8]+"  stock.reserved  pending: ") {
		t.Error(out)
	}
	_, err = db.ExecContext(t.Context(), `DELETE FROM boxpair_outbox_queue`)
	ok(t, err)
	if out := tree(exitOK, "--wait", "1m"); !strings.HasSuffix(out, "all is done: 2 events\n") {
		t.Error(out)
	}
	var got struct {
		Done bool
		Tree branch
	}
	ok(t, json.Unmarshal([]byte(tree(exitOK, "-o", "json")), &got))
	if !got.Done || len(got.Tree.Children) != 1 || got.Tree.Children[0].ID != child || got.Tree.Children[0].Consumer != "stock/reserve" {
		t.Errorf("%+v", got)
	}
	if status, out, errs := call(t, nil, "why", id(1).String(), "--outbox", url, "--inbox", url); status != exitOK || !strings.Contains(out, "caused      1 events: boxpair tree "+id(1).String()[:8]) {
		t.Errorf("%d, %s%s", status, out, errs)
	}
	treesOfACorrelationID(t, url, place)
	if status, _, errs := call(t, nil, "tree", "ffffffff", "--outbox", url); status != exitFailed || !strings.Contains(errs, "no given database knows") {
		t.Errorf("%d, %q", status, errs)
	}
}

// treesOfACorrelationID goes on after an event and its child, and places more events.
func treesOfACorrelationID(t *testing.T, url string, place func(version int64)) {
	t.Helper()
	again := []string{"tree", "request-7", "--outbox", url, "--inbox", url}
	// The child is no root.
	if status, out, errs := call(t, nil, again...); status != exitOK || !strings.HasPrefix(out, id(1).String()[:8]) || !strings.HasSuffix(out, "all is done: 2 events\n") {
		t.Errorf("%d, %s%s", status, out, errs)
	}
	place(2)
	if status, out, errs := call(t, nil, again...); status != exitFound || !strings.Contains(out, "\n"+id(2).String()[:8]+"  order.placed  pending") || !strings.HasSuffix(out, "not done, of 3 events\n") {
		t.Errorf("%d, %s%s", status, out, errs)
	}
	var both struct {
		Done  bool
		Trees []branch
	}
	_, out, _ := call(t, nil, append(again, "-o", "json")...)
	ok(t, json.Unmarshal([]byte(out), &both))
	if both.Done || len(both.Trees) != 2 || both.Trees[0].ID != id(1) || both.Trees[1].ID != id(2) {
		t.Errorf("%s", out)
	}
	for version := range int64(19) {
		place(version + 3)
	}
	if status, out, errs := call(t, nil, again...); status != exitFound || !strings.Contains(out, id(20).String()[:8]) || strings.Contains(out, id(21).String()[:8]) ||
		errs != "the trees of the first 20 events are shown; there may be more\n" {
		t.Errorf("%d, %s%s", status, out, errs)
	}
}

// TestDashboardIsServedUntilItIsStopped to readers, and to operators with the token.
func TestDashboardIsServedUntilItIsStopped(t *testing.T) {
	t.Parallel()
	url, _ := plantDead(t)
	const token = "canary-of-a-password"
	cmd := exec.CommandContext(t.Context(), program, "ui", "--outbox", url, "--inbox", url, "--listen", "127.0.0.1:0", "--token", token)
	stderr, err := cmd.StderrPipe()
	ok(t, err)
	ok(t, cmd.Start())
	lines := bufio.NewScanner(stderr)
	address := ""
	for address == "" && lines.Scan() {
		if _, at, found := strings.Cut(lines.Text(), "msg=\"dashboard is served\" address="); found {
			address = at
		}
	}
	get := func(password string) (int, string) {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address+"/", http.NoBody)
		ok(t, err)
		if password != "" {
			request.SetBasicAuth("night shift", password)
		}
		client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		response, err := client.Do(request)
		ok(t, err)
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		ok(t, err)
		return response.StatusCode, string(text)
	}
	if status, _ := get(""); status != http.StatusUnauthorized {
		t.Errorf("without the token: %d", status)
	}
	if status, page := get(token); status != http.StatusOK || !strings.Contains(page, ">shop<") {
		t.Errorf("with the token: %d, %.500s", status, page)
	}
	ok(t, cmd.Process.Signal(syscall.SIGTERM))
	for lines.Scan() {
		if strings.Contains(lines.Text(), token) {
			t.Errorf("the token is shown: %s", lines.Text())
		}
	}
	ok(t, cmd.Wait())
	for want, args := range map[string][]string{
		"--outbox or --inbox":             {},
		"Token: ":                         {"--outbox", url, "--token", "short"},
		"--token already makes operators": {"--outbox", url, "--token", token, "--write"},
	} {
		if status, _, errs := call(t, nil, append([]string{"ui", "--listen", "127.0.0.1:0"}, args...)...); status != exitFailed || !strings.Contains(errs, want) {
			t.Errorf("%v: %d, %q", args, status, errs)
		}
	}
}

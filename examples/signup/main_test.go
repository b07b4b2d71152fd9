package main

import (
	"context"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/boxpair/boxpair/internal/testenv"
)

func TestUserIsWelcomedAndCountedOnce(t *testing.T) {
	t.Parallel()
	database, broker, topic := testenv.Postgres(t), testenv.AMQPURL(t), testenv.Name(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, database, broker, topic, listener) }()
	post := func(email string, want int) {
		t.Helper()
		answer, err := http.PostForm("http://"+listener.Addr().String()+"/signup", url.Values{"email": {email}})
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		if answer.StatusCode != want {
			t.Errorf("%s: %s, want %d", email, answer.Status, want)
		}
	}
	post("ada@example.org", http.StatusCreated)
	post("bob@example.org", http.StatusCreated)
	post("ada@example.org", http.StatusInternalServerError)

	pool, err := pgxpool.New(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(time.Minute)
	for done := false; !done; {
		select {
		case err := <-ended:
			t.Fatalf("the service has ended: %v", err)
		case <-deadline:
			t.Fatal("waited for too long")
		case <-tick.C:
			err := pool.QueryRow(t.Context(), `SELECT (SELECT count(DISTINCT email) FROM welcomes) = 2 AND coalesce((SELECT sum(n) FROM signups), 0) = 2`).Scan(&done)
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestProgramIsShort keeps the service to the size that README promises.
func TestProgramIsShort(t *testing.T) {
	t.Parallel()
	if n := strings.Count(read(t, "main.go"), "\n"); n >= 150 {
		t.Errorf("main.go has %d lines", n)
	}
}

// TestDocumentMakesThisProgram types what docs/getting-started.md shows, in an empty folder.
func TestDocumentMakesThisProgram(t *testing.T) {
	t.Parallel()
	var typed strings.Builder
	for _, block := range strings.Split(read(t, "../../docs/getting-started.md"), "```go\n")[1:] {
		code, _, _ := strings.Cut(block, "```")
		typed.WriteString(code)
	}
	if strings.ReplaceAll(typed.String(), "\n\n", "\n") != strings.ReplaceAll(read(t, "main.go"), "\n\n", "\n") {
		t.Fatalf("the document does not show main.go, from its first line to the last, but:\n%s", &typed)
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte(typed.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "go.sum"), []byte(read(t, "../../go.sum")), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{ // go get would find a released version
		"mod init signup", "mod edit -require=github.com/boxpair/boxpair@v0.0.0 -replace=github.com/boxpair/boxpair=" + root, "build -o signup .",
	} {
		cmd := exec.CommandContext(t.Context(), "go", strings.Fields(command)...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GOFLAGS=-mod=mod -trimpath", "GOWORK=off")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("go %s: %v\n%s", command, err, out)
		}
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

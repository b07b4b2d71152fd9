package archive_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.uber.org/goleak"

	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/producer/archive"
	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/transport"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var _ producer.ArchiveSink = (*archive.Files)(nil)

func archived(seq int64) outbox.Archived {
	at := time.Date(2026, 11, 20, 10, 30, 0, 123456000, time.UTC)
	e := outbox.Archived{
		Record: outbox.Record{
			Event: transport.Event{
				ID: uuid.New(), Topic: "order.placed", Key: "42", Type: "placed", Producer: "orders", Source: "order/42", Version: 3, Index: 1,
				SchemaVersion: 2, ContentType: "application/json", CorrelationID: "c", TraceParent: "p", TraceState: "s",
				Headers: map[string]string{"a": "<b>"}, Payload: []byte("\x00\xff{}"), Stamp: at, Digest: transport.Digest{1, 2},
			},
			Shard: 7, OccurredAt: at.Add(-time.Second), ResendFor: time.Hour,
		},
		Seq: seq, State: outbox.Discarded, EndedAt: at.Add(time.Hour), Attempts: 4, LastError: "refused", Reason: "obsolete",
	}
	e.SetResend()
	return e
}

// readAll reads an archive up to its first error.
func readAll(dir string) (list []outbox.Archived, err error) {
	for e, err := range archive.Read(dir) {
		if err != nil {
			return list, err
		}
		list = append(list, e)
	}
	return list, nil
}

func sinkIn(t *testing.T, dir string) *archive.Files {
	t.Helper()
	files, err := archive.New(dir)
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func TestArchivedEventsAreReadBackWhole(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	files := sinkIn(t, dir)
	want := []outbox.Archived{archived(3), archived(1), archived(2)}
	for _, batch := range [][]outbox.Archived{want[:2], nil, want[2:]} {
		if err := files.Archive(t.Context(), batch); err != nil {
			t.Fatal(err)
		}
	}
	got, err := readAll(dir)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("read are %+v, %v; want %+v", got, err, want)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 2 || !strings.Contains(entries[0].Name(), "Z-1-3-") {
		t.Errorf("files are %v, %v", entries, err)
	}
}

func TestUnfinishedFileIsNotRead(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, ".archive-123"), []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := readAll(dir); err != nil || len(got) != 0 {
		t.Errorf("read are %v, %v", got, err)
	}
}

func TestDamagedFileIsNamed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := sinkIn(t, dir).Archive(t.Context(), []outbox.Archived{archived(1)}); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, entries[0].Name())
	if err := os.Truncate(path, 60); err != nil {
		t.Fatal(err)
	}
	if _, err := readAll(dir); err == nil || !strings.Contains(err.Error(), entries[0].Name()) {
		t.Errorf("error is %v", err)
	}
}

func TestNothingIsArchivedWithoutADirectoryOrTime(t *testing.T) {
	t.Parallel()
	if _, err := archive.New(""); err == nil {
		t.Error("an empty directory is accepted")
	}
	missing := filepath.Join(t.TempDir(), "missing")
	if err := sinkIn(t, missing).Archive(t.Context(), []outbox.Archived{archived(1)}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error is %v", err)
	}
	if _, err := readAll(missing); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error is %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	dir := t.TempDir()
	if err := sinkIn(t, dir).Archive(ctx, []outbox.Archived{archived(1)}); !errors.Is(err, context.Canceled) {
		t.Errorf("error is %v", err)
	}
}

package sqlite_test

import (
	"context"
	"database/sql"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/producer/archive"
	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/store/sqlite"
)

// stalling is an archive that tells when a batch is on disk, and then never returns.
type stalling struct{ *archive.Files }

func (s stalling) Archive(ctx context.Context, events []outbox.Archived) error {
	check(s.Files.Archive(ctx, events))
	fmt.Println("archived")
	select {}
}

// archiveAndStall is a janitor that gets no further than to the end of its first archived batch.
func archiveAndStall(args []string) {
	store := must(sqlite.New(must(sqlite.Open(args[0])), sqlite.Config{}))
	janitor := must(producer.NewJanitor(store, producer.JanitorConfig{Archive: stalling{must(archive.New(args[1]))}}))
	_ = must(janitor.RunOnce(context.Background()))
}

// archivedIn counts the copies of each dispatch ID in an archive.
func archivedIn(t *testing.T, dir string) map[uuid.UUID]int {
	t.Helper()
	copies := make(map[uuid.UUID]int)
	for e, err := range archive.Read(dir) {
		if err != nil {
			t.Fatal(err)
		}
		copies[e.ID]++
	}
	return copies
}

// A janitor is killed when a batch is archived and not removed: the next pass archives the batch
// again, and removes it.
func TestEventsOfAKilledJanitorAreArchivedAndRemovedByTheNextPass(t *testing.T) {
	t.Parallel()
	db, path := database(t)
	store, dir := newStore(t, db), t.TempDir()
	const events = 3
	written := make(map[uuid.UUID]bool)
	for i := range events {
		e := record(fmt.Sprint(i), 1, "placed")
		written[e.ID] = true
		err := store.Transact(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
			_, err := store.Append(ctx, tx, uuid.New(), []outbox.Record{e})
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	eightDaysAgo := time.Now().Add(-8 * 24 * time.Hour).UnixMicro()
	run(t, db, fmt.Sprintf(`INSERT INTO boxpair_outbox_receipts (delivered_at, relay, event_ids)
		SELECT %d, 'relay', json_group_array(id) FROM boxpair_outbox_queue`, eightDaysAgo))
	run(t, db, `DELETE FROM boxpair_outbox_queue`)

	cmd, lines := child(t, "archive", path, dir)
	killAfter(t, cmd, lines, 1)
	if n := number(t, db, `SELECT count(*) FROM boxpair_outbox_events`); n != events {
		t.Errorf("%d events are left after the kill, want all %d", n, events)
	}
	if copies := archivedIn(t, dir); len(copies) != events {
		t.Errorf("archived are %v", copies)
	}

	files, err := archive.New(dir)
	if err != nil {
		t.Fatal(err)
	}
	janitor, err := producer.NewJanitor(store, producer.JanitorConfig{Archive: files})
	if err != nil {
		t.Fatal(err)
	}
	if r, err := janitor.RunOnce(t.Context()); err != nil || r.Events != events || r.Archived != events {
		t.Errorf("the next pass did %+v, %v", r, err)
	}
	if n := number(t, db, `SELECT count(*) FROM boxpair_outbox_events`); n != 0 {
		t.Errorf("%d events are left", n)
	}
	copies := archivedIn(t, dir)
	for id := range written {
		if copies[id] != 2 {
			t.Errorf("event %s is archived %d times, want 2", id, copies[id])
		}
	}
	checkIntegrity(t, db)
}

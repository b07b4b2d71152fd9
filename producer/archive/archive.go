package archive

import (
	"compress/gzip"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/transport"
)

// suffix ends the names of files.
const suffix = ".ndjson.gz"

// Files is a producer.ArchiveSink that writes a file for each batch. It is safe for concurrent use,
// also by several processes with one directory.
type Files struct{ dir string }

// New returns a sink that writes to dir. It does no I/O: dir must exist when events are archived.
// Files are readable by their owner only. An error says that dir is empty.
func New(dir string) (*Files, error) {
	if dir == "" {
		return nil, errors.New("archive: the directory is empty")
	}
	return &Files{dir: dir}, nil
}

// Archive implements producer.ArchiveSink. When it returns nil, the file and its name are on disk.
func (f *Files) Archive(ctx context.Context, events []outbox.Archived) (err error) {
	if len(events) == 0 {
		return nil
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	file, err := os.CreateTemp(f.dir, ".archive-*")
	if err != nil {
		return fmt.Errorf("archive events: %w", err)
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("archive events: %w", err)
			_ = os.Remove(file.Name())
		}
	}()
	err = errors.Join(write(file, events), file.Sync(), file.Close())
	if err != nil {
		return err
	}
	if err := os.Rename(file.Name(), filepath.Join(f.dir, name(events))); err != nil {
		return err
	}
	return syncDir(f.dir)
}

// name returns a name that no other batch has.
func name(events []outbox.Archived) string {
	first, last := events[0].Seq, events[0].Seq
	for i := range events {
		first, last = min(first, events[i].Seq), max(last, events[i].Seq)
	}
	var unique [8]byte
	_, _ = rand.Read(unique[:]) // never fails
	return fmt.Sprintf("%s-%d-%d-%s%s", time.Now().UTC().Format("20060102T150405.000000Z"), first, last, hex.EncodeToString(unique[:]), suffix)
}

// syncDir makes a new name durable. Windows can neither do it nor needs it.
func syncDir(dir string) error {
	if os.PathSeparator == '\\' {
		return nil
	}
	d, err := os.Open(dir) //nolint:gosec // the directory of the configuration
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func write(w io.Writer, events []outbox.Archived) error {
	compressed := gzip.NewWriter(w)
	lines := json.NewEncoder(compressed)
	lines.SetEscapeHTML(false)
	for i := range events {
		if err := lines.Encode(lineOf(&events[i])); err != nil {
			return fmt.Errorf("event %d: %w", events[i].Seq, err)
		}
	}
	return compressed.Close()
}

// line is an event in a file. Payload is base64.
type line struct {
	ID            uuid.UUID         `json:"id"`
	Seq           int64             `json:"seq"`
	State         outbox.State      `json:"state"`
	EndedAt       time.Time         `json:"ended_at"`
	Topic         string            `json:"topic"`
	Key           string            `json:"key,omitempty"`
	Type          string            `json:"type,omitempty"`
	Producer      string            `json:"producer"`
	Source        string            `json:"source,omitempty"`
	Version       int64             `json:"version,omitempty"`
	Index         int               `json:"index,omitempty"`
	SchemaVersion int               `json:"schema_version,omitempty"`
	ContentType   string            `json:"content_type,omitempty"`
	CorrelationID string            `json:"correlation_id,omitempty"`
	TraceParent   string            `json:"traceparent,omitempty"`
	TraceState    string            `json:"tracestate,omitempty"`
	Headers       map[string]string `json:"headers,omitempty"`
	Payload       []byte            `json:"payload"`
	Digest        string            `json:"digest"`
	Shard         int               `json:"shard"`
	OccurredAt    time.Time         `json:"occurred_at"`
	Stamp         time.Time         `json:"stamp"`
	ResendSeconds int64             `json:"resend_seconds,omitempty"`
	Attempts      int               `json:"attempts,omitempty"`
	LastError     string            `json:"last_error,omitempty"`
	Reason        string            `json:"reason,omitempty"`
	Unreadable    string            `json:"unreadable,omitempty"`
}

func lineOf(e *outbox.Archived) line {
	return line{
		ID: e.ID, Seq: e.Seq, State: e.State, EndedAt: e.EndedAt, Topic: e.Topic, Key: e.Key, Type: e.Type, Producer: e.Producer,
		Source: e.Source, Version: e.Version, Index: e.Index, SchemaVersion: e.SchemaVersion, ContentType: e.ContentType,
		CorrelationID: e.CorrelationID, TraceParent: e.TraceParent, TraceState: e.TraceState, Headers: e.Headers, Payload: e.Payload,
		Digest: hex.EncodeToString(e.Digest[:]), Shard: e.Shard, OccurredAt: e.OccurredAt, Stamp: e.Stamp,
		ResendSeconds: int64(e.ResendFor / time.Second), Attempts: e.Attempts, LastError: e.LastError, Reason: e.Reason, Unreadable: e.Unreadable,
	}
}

func (l *line) event() (e outbox.Archived, err error) {
	digest, err := hex.DecodeString(l.Digest)
	if err != nil || len(digest) != len(transport.Digest{}) {
		return e, errors.New("the digest is not 16 bytes in hexadecimal")
	}
	e = outbox.Archived{
		Record: outbox.Record{
			Event: transport.Event{
				ID: l.ID, Topic: l.Topic, Key: l.Key, Type: l.Type, Producer: l.Producer, Source: l.Source, Version: l.Version, Index: l.Index,
				SchemaVersion: l.SchemaVersion, ContentType: l.ContentType, CorrelationID: l.CorrelationID, TraceParent: l.TraceParent,
				TraceState: l.TraceState, Headers: l.Headers, Payload: l.Payload, Stamp: l.Stamp, Digest: transport.Digest(digest),
			},
			Shard: l.Shard, OccurredAt: l.OccurredAt, ResendFor: time.Duration(l.ResendSeconds) * time.Second,
		},
		Seq: l.Seq, State: l.State, EndedAt: l.EndedAt, Attempts: l.Attempts, LastError: l.LastError, Reason: l.Reason, Unreadable: l.Unreadable,
	}
	e.SetResend()
	return e, nil
}

// Read returns the events of all files in dir, the oldest file first. A dispatch ID may come several
// times. A file that cannot be read ends the events with an error that names the file.
func Read(dir string) iter.Seq2[outbox.Archived, error] {
	return func(yield func(outbox.Archived, error) bool) {
		entries, err := os.ReadDir(dir) // by name, and so by time
		if err != nil {
			yield(outbox.Archived{}, fmt.Errorf("read archive: %w", err))
			return
		}
		for _, entry := range entries {
			if strings.HasPrefix(entry.Name(), ".") || !strings.HasSuffix(entry.Name(), suffix) {
				continue
			}
			goesOn, err := readFile(filepath.Join(dir, entry.Name()), yield)
			if err != nil {
				yield(outbox.Archived{}, fmt.Errorf("read archive: %s: %w", entry.Name(), err))
			}
			if err != nil || !goesOn {
				return
			}
		}
	}
}

func readFile(path string, yield func(outbox.Archived, error) bool) (goesOn bool, err error) {
	file, err := os.Open(path) //nolint:gosec // a file of the archive
	if err != nil {
		return false, err
	}
	defer func() { _ = file.Close() }()
	compressed, err := gzip.NewReader(file)
	if err != nil {
		return false, err
	}
	for lines := json.NewDecoder(compressed); ; {
		var l line
		if err := lines.Decode(&l); errors.Is(err, io.EOF) {
			return true, nil
		} else if err != nil {
			return false, err
		}
		e, err := l.event()
		if err != nil {
			return false, fmt.Errorf("event %d: %w", l.Seq, err)
		}
		if !yield(e, nil) {
			return false, nil
		}
	}
}

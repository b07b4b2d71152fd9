package transport_test

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/transport"
	"github.com/boxpair/boxpair/transport/internal/sample"
)

// stampOf returns what Parse makes of a stamp, and what time.Parse does.
func stampOf(t *testing.T, text string) (got time.Time, err error, want time.Time, wantErr error) {
	t.Helper()
	msg := message.NewMessage("6f2c1a1e-1f7e-5d0b-9d7e-3f0f5c1d2e3a", nil)
	msg.Metadata[transport.MetaStamp] = text
	e, err := transport.Parse("topic", msg)
	want, wantErr = time.Parse(time.RFC3339Nano, text)
	return e.Stamp, err, want.UTC(), wantErr
}

func TestStampsAreReadAsTimeParseReadsThem(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"0000-01-01T00:00:00Z", "0000-02-29T23:59:59.999999999Z", "0001-01-01T00:00:00Z", "0400-03-01T00:00:00Z",
		"1600-02-29T12:00:00Z", "1900-02-28T23:59:59Z", "1969-12-31T23:59:59.5Z", "1970-01-01T00:00:00Z",
		"2000-02-29T00:00:00.000000001Z", "2024-02-29T00:00:00.1Z", "2026-11-20T10:20:30.123456Z", "9999-12-31T23:59:59.999999999Z",
		"2026-11-20T10:20:30.1234567891Z", "2026-11-20T10:20:30,5Z", "2026-11-20T10:20:30+01:30",
		"1900-02-29T00:00:00Z", "2026-04-31T00:00:00Z", "2026-00-10T00:00:00Z", "2026-13-10T00:00:00Z", "2026-01-00T00:00:00Z",
		"2026-01-32T00:00:00Z", "2026-01-01T24:00:00Z", "2026-01-01T00:60:00Z", "2026-01-01T00:00:60Z", "2026-01-01T00:00:00.Z",
		"2026-01-01 00:00:00Z", "2026-01-01T00:00:00", "2026-01-01T00:00:00.5", "-026-01-01T00:00:00Z", "2026-1-011T00:00:00Z", "", "Z",
		"2026-01-01T00:00:00.12x4Z", "2026-01-01T00:00:00x5Z", "2o26-01-01T00:00:00Z", "2026/01-01T00:00:00Z",
	} {
		got, err, want, wantErr := stampOf(t, text)
		if (err == nil) != (wantErr == nil) || err == nil && got != want {
			t.Errorf("%q: %v, %v; time.Parse says %v, %v", text, got, err, want, wantErr)
		}
	}
	// Every day of 400 years, after which the calendar begins again.
	for day := time.Date(1600, 1, 1, 1, 2, 3, 4000, time.UTC); day.Year() <= 2000; day = day.AddDate(0, 0, 1) {
		text := day.Format(time.RFC3339Nano)
		if got, err, _, _ := stampOf(t, text); err != nil || got != day {
			t.Fatalf("%q: %v, %v", text, got, err)
		}
	}
}

// FuzzStamp compares Parse with time.Parse.
func FuzzStamp(f *testing.F) {
	f.Add("2026-11-20T10:20:30.123456Z")
	f.Add("0000-01-01T00:00:00Z")
	f.Add("2026-11-20T10:20:30+14:00")
	f.Fuzz(func(t *testing.T, text string) {
		got, err, want, wantErr := stampOf(t, text)
		if wantErr == nil && (want.Year() < 0 || want.Year() > 9999) {
			return // refused, since it could not be sent on
		}
		if (err == nil) != (wantErr == nil) || err == nil && got != want {
			t.Errorf("%q: %v, %v; time.Parse says %v, %v", text, got, err, want, wantErr)
		}
	})
}

// BenchmarkParse reads a message as a relay sends it, also in a goroutine of its own, as
// a Watermill router does: what calls deeply there pays for the stack.
func BenchmarkParse(b *testing.B) {
	e := sample.Event()
	msg := e.Message()
	b.Run("here", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := transport.Parse("topic", msg); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("goroutine", func(b *testing.B) {
		b.ReportAllocs()
		done := make(chan error)
		for b.Loop() {
			go func() {
				_, err := transport.Parse("topic", msg)
				done <- err
			}()
			if err := <-done; err != nil {
				b.Fatal(err)
			}
		}
	})
}

package postgres

import (
	"bytes"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
)

func TestLeanArraysAreEncodedAsSlicesAre(t *testing.T) {
	t.Parallel()
	now := time.Now()
	texts := []string{"", "a", "ä\n{},\"\\", "NULL"}
	bytea := [][]byte{{}, {0}, []byte("abc")}
	ints := []int64{0, -1, 1 << 40}
	ids := []pgtype.UUID{{Valid: true}, {Bytes: [16]byte{1, 2, 3}, Valid: true}}
	times := []pgtype.Timestamptz{{Time: now, Valid: true}, {}}
	for name, c := range map[string]struct {
		oid         uint32
		slice, lean any
	}{
		"text":        {pgtype.TextArrayOID, texts, leanTexts(texts)},
		"bytea":       {pgtype.ByteaArrayOID, bytea, leanByteas(bytea)},
		"int8":        {pgtype.Int8ArrayOID, ints, leanInts(ints)},
		"uuid":        {pgtype.UUIDArrayOID, ids, leanValues(ids)},
		"timestamptz": {pgtype.TimestamptzArrayOID, times, leanValues(times)},
		"nothing":     {pgtype.TextArrayOID, []string{}, leanTexts(nil)},
	} {
		for _, format := range []int16{pgtype.BinaryFormatCode, pgtype.TextFormatCode} {
			m := pgtype.NewMap()
			want, err := m.Encode(c.oid, format, c.slice, nil)
			if err != nil {
				t.Fatal(name, err)
			}
			got, err := m.Encode(c.oid, format, c.lean, nil)
			if err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s, format %d: %q, %v; a slice is %q", name, format, got, err, want)
			}
		}
	}
}

func TestLeanArraysAreEncodedWithoutAllocations(t *testing.T) {
	texts := make([]string, 100)
	for i := range texts {
		texts[i] = "key"
	}
	m, buf := pgtype.NewMap(), make([]byte, 0, 4096)
	allocations := testing.AllocsPerRun(10, func() {
		if _, err := m.Encode(pgtype.TextArrayOID, pgtype.BinaryFormatCode, leanTexts(texts), buf); err != nil {
			t.Fatal(err)
		}
	})
	if allocations > 5 {
		t.Errorf("%v allocations for an array of %d", allocations, len(texts))
	}
}

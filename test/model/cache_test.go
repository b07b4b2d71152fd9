package modeltest

import (
	"encoding/binary"
	"testing"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/boxpair/boxpair/dedupe"
	"github.com/boxpair/boxpair/transport"
)

// dispatch returns a dispatch ID that depends on n alone.
func dispatch(n int) (id uuid.UUID) {
	binary.BigEndian.PutUint64(id[8:], uint64(n)+1)
	return id
}

// entry is what was added last under a dispatch ID, and when.
type entry struct {
	term   dedupe.Term
	digest transport.Digest
}

func TestWindowInMemorySaysOnlyWhatIsCertain(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		size := rapid.IntRange(1, 4).Draw(rt, "size")
		window, err := dedupe.New(size)
		if err != nil {
			rt.Fatal(err)
		}
		added := make(map[int]entry)
		terms := []dedupe.Term{window.Term()}
		ids := rapid.IntRange(0, 5)
		digests := rapid.Custom(func(rt *rapid.T) transport.Digest {
			return transport.Digest{byte(rapid.IntRange(0, 2).Draw(rt, "content"))} // 0: says nothing
		})
		rt.Repeat(map[string]func(*rapid.T){
			"add": func(rt *rapid.T) {
				n, e := ids.Draw(rt, "id"), entry{rapid.SampledFrom(terms).Draw(rt, "term"), digests.Draw(rt, "digest")}
				window.Add(e.term, dispatch(n), e.digest)
				added[n] = e
				want := dedupe.Duplicate
				if e.term != window.Term() {
					want = dedupe.Miss
				}
				if got := window.Seen(dispatch(n), e.digest); got != want {
					rt.Fatalf("added in term %d, it is %d now: seen as %v", e.term, window.Term(), got)
				}
			},
			"ask": func(rt *rapid.T) {
				n, digest := ids.Draw(rt, "id"), digests.Draw(rt, "digest")
				e, known := added[n]
				got := window.Seen(dispatch(n), digest)
				switch {
				case got == dedupe.Miss: // always allowed
				case !known, e.term != window.Term(), (got == dedupe.Duplicate) != e.digest.Matches(digest):
					rt.Fatalf("%d with digest %v: %v, of %+v in term %d", n, digest, got, e, window.Term())
				}
			},
			"forget": func(*rapid.T) {
				window.Forget()
				terms = append(terms, window.Term())
			},
			"": func(rt *rapid.T) {
				if window.Len() > size {
					rt.Fatalf("%d entries in a window of %d", window.Len(), size)
				}
			},
		})
	})
}

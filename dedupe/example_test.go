package dedupe_test

import (
	"fmt"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/dedupe"
	"github.com/boxpair/boxpair/transport"
)

func Example() {
	window, err := dedupe.New(10_000)
	if err != nil {
		fmt.Println(err)
		return
	}
	id := uuid.MustParse("e73790f9-3c0f-594d-99b5-201864784b89")
	digest := transport.Digest{1}

	term := window.Term()
	fmt.Println(window.Seen(id, digest)) // not known: claim it in the database, and commit
	window.Add(term, id, digest)         // the commit is known
	fmt.Println(window.Seen(id, digest)) // a copy: acknowledge it
	fmt.Println(window.Seen(id, transport.Digest{2}))

	// Output:
	// miss
	// duplicate
	// altered
}

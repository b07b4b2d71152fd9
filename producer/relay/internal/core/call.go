package core

import (
	"time"

	"github.com/boxpair/boxpair/producer/relay/internal/statement"
)

// Call is a statement of the machine, with the machine's memory of the request until the call is
// given back. Err is the error of the statement.
type Call struct {
	statement.Statement
	Err error

	issued  time.Duration // when the machine asked, before the statement began
	shards  []*shardState // of the statement
	entries []*Entry      // of the statement
}

func ask(s statement.Statement, shards ...*shardState) *Call {
	return &Call{Statement: s, shards: shards}
}

// fetch is [statement.Fetch] with the machine's memory.
type fetch struct {
	statement.Fetch

	parts     []fetchPart // by position of the shards of the call
	old       int64       // the lowest floor below the reach of the late ranges
	sampled   int64       // lateCommits.sampled when the call was issued
	lateLimit int         // the most rows of a late range; 0: the fetch has no late range
	woken     bool        // only shards with commits are read
	alone     bool        // no wake-up has come for a while
	looks     bool        // deferred events are looked for

	lap    bool // a page of laps …
	urgent bool // … that is urgent
	share  int  // … with at most share rows of a shard
}

// fetchPart is the part of a fetch about one shard. version and known are the fields of the shard
// when the call was issued.
type fetchPart struct {
	version  uint32
	known    int64
	lateFrom int64   // where the late range begins
	above    int     // index in Ranges of the range above the read position
	wanted   []int64 // Seqs of rows that are read alone
}

// fetch returns the statement of a call that reads the queue, nil for any other call.
func (c *Call) fetch() *fetch {
	if c == nil {
		return nil
	}
	f, _ := c.Statement.(*fetch)
	return f
}

// fetchKey is [statement.FetchKey] with the machine's memory.
type fetchKey struct {
	statement.FetchKey

	line    *keyLine
	version uint32 // of the shard when the call was issued
}

// renew is [statement.Renew] with the machine's memory.
type renew struct {
	statement.Renew

	poll    *Call   // Renew.Poll as a call of the reader; nil: there is none
	early   bool    // for news, before the renewal is due
	beats   bool    // a heartbeat was asked for
	awaited []int64 // shardState.replaysAwaited of the shards when the call was issued
}

// heal is [statement.Heal] with the machine's memory.
type heal struct {
	statement.Heal

	reload bool // the blocked keys of the shards are loaded next
}

// fetchParked is [statement.FetchParked] with the machine's memory.
type fetchParked struct {
	statement.FetchParked

	lines []*keyLine // by position of the keys
}

// takeTokens is [statement.TakeTokens] with the machine's memory.
type takeTokens struct {
	statement.TakeTokens

	limit *rateLimit
}

// numbersOf returns the numbers of shards.
func numbersOf(shards []*shardState) []int {
	numbers := make([]int, len(shards))
	for i, sh := range shards {
		numbers[i] = sh.no
	}
	return numbers
}

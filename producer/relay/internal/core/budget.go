package core

import "github.com/boxpair/boxpair/store/outbox"

// budget bounds the work of one statement: a fetch brings no more rows than make the fetch quick
// and small in memory. The budget is cut when a statement takes too long, whether the statement
// succeeds or not, and grows while statements are quick.
type budget struct {
	most    int     // FetchSize, for a fetch
	now     int     // rows, for a fetch
	average float64 // bytes of an event, averaged over the latest events
}

const (
	fetchBytes    = 16 << 20 // size of the rows of one fetch, about
	budgetCut     = 4
	budgetGrowth  = 8 // the budget grows by 1/budgetGrowth
	averageWeight = 64
	// firstAverage is the assumed size of an event before the first read, so that the first fetch
	// brings few rows.
	firstAverage = 256 << 10
	// leastSize is about how many bytes an event takes without its payload and headers.
	leastSize = 256
)

// rows returns how many rows a fetch may bring.
func (b *budget) rows() int {
	if b.average*float64(b.now) > fetchBytes {
		return max(1, int(fetchBytes/b.average))
	}
	return b.now
}

// booked books a finished statement. slow tells whether the statement took too long.
func (b *budget) booked(err error, slow bool, rows []outbox.Queued) {
	switch {
	case slow:
		b.now = max(1, b.now/budgetCut)
		return
	case err != nil:
		return
	}
	b.now = min(b.most, b.now+b.now/budgetGrowth+1)
	for i := range rows {
		if !rows[i].Missing {
			b.average += (float64(sizeOf(&rows[i])) - b.average) / averageWeight
		}
	}
}

// sizeOf returns about how many bytes an event takes.
func sizeOf(q *outbox.Queued) int {
	n := leastSize + len(q.Payload)
	for name, value := range q.Headers {
		n += len(name) + len(value)
	}
	return n
}

// capacity is the most events in memory: twice the window, or as many as WindowBytes has room for.
func (rd *reader) capacity() int {
	most := 2 * rd.cfg.Window
	if average := rd.budget.average; average*float64(most) > float64(rd.cfg.WindowBytes) {
		most = max(2, int(float64(rd.cfg.WindowBytes)/average))
	}
	return most
}

// room is how many further events memory may take.
func (rd *reader) room() int { return rd.capacity() - rd.keys.buffered + rd.routes.stalledRoom() }

// coldLimit is the limit of rows of a polled shard, and of a late range. A late range with as many
// rows counts as cut short.
func (rd *reader) coldLimit() int {
	return max(1, min(rd.limits.cold, rd.budget.rows()/len(rd.shards)))
}

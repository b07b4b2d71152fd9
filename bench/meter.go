package main

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"github.com/jackc/pgx/v5"
)

// meter reads the use of the machine before and after a measurement.
type meter struct {
	postgres, rabbitMQ int // processes; 0 if they are not on this machine
	wire               *wire
	databaseURL        string
}

// reading is one reading of a meter.
type reading struct {
	client, postgres, rabbit, machine time.Duration
	hasPostgres, hasRabbit, hasCPU    bool
	lsn                               int64
	statements, roundTrips            int64
	mallocs                           uint64
}

// begin reads the meter before the measurement, and end after it. The cost of reading is not part
// of the result.
func (m *meter) begin(ctx context.Context) (reading, error) {
	lsn, err := m.lsn(ctx)
	r := m.now()
	r.lsn = lsn
	return r, err
}

func (m *meter) end(ctx context.Context) (reading, error) {
	r := m.now()
	lsn, err := m.lsn(ctx)
	r.lsn = lsn
	return r, err
}

func (m *meter) now() (r reading) {
	r.client = ownCPU()
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	r.mallocs = mem.Mallocs
	r.statements, r.roundTrips = m.wire.statements.Load(), m.wire.roundTrips.Load()
	r.postgres, r.hasPostgres = treeCPU(m.postgres)
	r.rabbit, r.hasRabbit = treeCPU(m.rabbitMQ)
	r.machine, r.hasCPU = machineCPU()
	return r
}

// lsn returns the position in the write-ahead log.
func (m *meter) lsn(ctx context.Context) (lsn int64, err error) {
	conn, err := pgx.Connect(ctx, m.databaseURL)
	if err != nil {
		return 0, hidden(err)
	}
	defer conn.Close(ctx)
	err = conn.QueryRow(ctx, `SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint`).Scan(&lsn)
	if err != nil {
		return 0, fmt.Errorf("read the position in the write-ahead log: %w", err)
	}
	return lsn, nil
}

// difference fills in the cost of n messages between two readings. end was read as soon as the
// messages were processed.
func difference(begin, end reading, n int, took time.Duration) Result {
	count := float64(n)
	per100k := func(d time.Duration) *float64 {
		v := d.Seconds() * 100_000 / count
		return &v
	}
	r := Result{
		Messages: n, Seconds: took.Seconds(), Rate: count / took.Seconds(),
		ClientCPU:  *per100k(end.client - begin.client),
		Statements: float64(end.statements-begin.statements) / count,
		RoundTrips: float64(end.roundTrips-begin.roundTrips) / count,
		Allocs:     float64(end.mallocs-begin.mallocs) / count,
		PeakRSS:    peakRSS("self"),
	}
	if end.lsn > 0 {
		wal := float64(end.lsn-begin.lsn) / count
		r.WAL = &wal
	}
	used := end.client - begin.client
	if begin.hasPostgres && end.hasPostgres {
		r.PostgresCPU = per100k(end.postgres - begin.postgres)
		used += end.postgres - begin.postgres
	}
	if begin.hasRabbit && end.hasRabbit {
		r.RabbitMQCPU = per100k(end.rabbit - begin.rabbit)
		used += end.rabbit - begin.rabbit
	}
	if begin.hasCPU && begin.hasPostgres && begin.hasRabbit {
		other := (end.machine - begin.machine - used).Seconds() / (took.Seconds() * float64(runtime.NumCPU()))
		other = max(0, other)
		r.OtherLoad = &other
	}
	return r
}

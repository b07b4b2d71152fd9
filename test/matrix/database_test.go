package matrix

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/boxpair/boxpair/internal/fault"
	"github.com/boxpair/boxpair/test/faults/child"
	"github.com/boxpair/boxpair/test/faults/proxy"
	"github.com/boxpair/boxpair/test/faults/system"
)

// database returns the name of the database in use at a point.
func (r *rig) database(p fault.Point) string {
	if victim(p) == child.Consumer {
		return r.InboxDB
	}
	return r.OutboxDB
}

// proxyAt returns the proxy in front of that database.
func (r *rig) proxyAt(p fault.Point) *proxy.Proxy {
	if victim(p) == child.Consumer {
		return r.Inbox
	}
	return r.Outbox
}

// Every backend of the service is ended while it stands at a point.
func TestBackendsTerminatedAtAnyPointLoseAndDoubleNothing(t *testing.T) {
	t.Parallel()
	for _, p := range points() {
		cell(t, string(p), calm, system.Config{}, func(t *testing.T, r *rig) {
			v := r.at(p)
			n, err := r.Servers.Postgres.Terminate(r.ctx, r.database(p))
			ok(t, err)
			if n == 0 {
				t.Fatal("there was no backend to be terminated")
			}
			r.Injected(1)
			ok(t, v.Release())
			r.finish()
		})
	}
}

// The database carries out a statement, and its answer is lost: the COMMIT of a producer or a
// handler, a relay's mark and park, and statements without a COMMIT of their own.
func TestLostRepliesOfTheDatabaseAreAskedForAgain(t *testing.T) {
	t.Parallel()
	for _, p := range []fault.Point{
		fault.BeforeBegin, fault.BeforeEvent, fault.BeforeCommit, fault.BeforeLease, fault.Leased, fault.BeforeMark, fault.MarkSent, fault.AfterMark, fault.BeforePark,
		fault.Received, fault.WindowAsked, fault.Claimed, fault.BeforeHandler, fault.BeforeClaimCommit, fault.BeforeMessageParked,
	} {
		cell(t, string(p), calm, system.Config{Proxies: true}, func(_ *testing.T, r *rig) {
			r.loseReplies(p, r.at(p, shortLease))
		})
	}
	for _, p := range []fault.Point{fault.WindowAsked, fault.Claimed, fault.BeforeClaimCommit} {
		cell(t, "optimistic/"+string(p), calm, system.Config{Proxies: true}, func(_ *testing.T, r *rig) {
			r.loseReplies(p, r.at(p, optimistic))
		})
	}
}

// shortLease has a relay wait for the end of a lease that it does not know of, since the answer was
// lost, for less than a chain takes to drain. A relay on a busy machine asks for its leases so late.
func shortLease(c *child.Config) { c.LeaseTTL = 10 * time.Second }

// loseReplies drops the answers of a database for a time, for a process that waits at p, and drains
// the chain.
func (r *rig) loseReplies(p fault.Point, v *child.Process) {
	r.t.Helper()
	ok(r.t, r.proxyAt(p).Add(proxy.DropReplies(150)))
	ok(r.t, v.Release())
	pause(300 * time.Millisecond) // the statements of that time have no answer
	r.proxyAt(p).Heal()
	r.Injected(1)
	r.finish()
}

// refusal is a refusal of the database for a time.
type refusal struct {
	begin, end []string // statements of the superuser in the database, with {db} for its name
	reconnect  bool     // it concerns new sessions only
}

var refusals = map[string]refusal{
	"read only": {
		begin:     []string{`ALTER DATABASE {db} SET default_transaction_read_only = on`},
		end:       []string{`ALTER DATABASE {db} RESET default_transaction_read_only`},
		reconnect: true,
	},
	"too many connections": {
		begin:     []string{`ALTER DATABASE {db} CONNECTION LIMIT 0`},
		end:       []string{`ALTER DATABASE {db} CONNECTION LIMIT -1`},
		reconnect: true,
	},
	"no permission": {
		begin: []string{`REVOKE ALL ON ALL TABLES IN SCHEMA boxpair FROM ` + strings.Join(child.Logins(), ", ")},
		end:   []string{child.Grants()},
	},
}

// The database refuses statements for a second. Meanwhile attempts are not counted, nothing is
// lost, and the database is not hammered.
func TestDatabaseThatRefusesForATimeIsWaitedFor(t *testing.T) {
	t.Parallel()
	for name, f := range refusals {
		for _, p := range []fault.Point{fault.BeforeBegin, fault.BeforeCommit, fault.BeforeLease, fault.BeforeMark, fault.Received, fault.BeforeClaimCommit} {
			cell(t, name+"/"+string(p), calm, system.Config{}, func(t *testing.T, r *rig) {
				v := r.at(p)
				db := r.database(p)
				r.admin(db, f.begin...)
				if f.reconnect {
					_, err := r.Servers.Postgres.Terminate(r.ctx, db)
					ok(t, err)
				}
				ok(t, v.Release())
				pause(time.Second)
				last := v.Last()
				r.admin(db, f.end...)
				if f.reconnect {
					_, err := r.Servers.Postgres.Terminate(r.ctx, db) // sessions that are read only
					ok(t, err)
				}
				r.Injected(1)
				r.calm(v, last)
				state := r.finish()
				if n := len(state.Dead) + len(state.Consumers[0].Aside); n > 0 {
					t.Errorf("%d events were given up for the refusal", n)
				}
			})
		}
	}
}

// calm checks that a process did not hammer the refusing server.
func (r *rig) calm(v *child.Process, after *child.Report) {
	r.t.Helper()
	const most = 300
	if after == nil {
		r.t.Fatalf("%s told nothing", v.Name())
	}
	if n := after.Handlers["stock"].DatabaseErrors + after.PlaceErrors; n > most {
		r.t.Errorf("%s tried %d times in a second", v.Name(), n)
	}
}

// admin runs statements as superuser in a database, on connections from before the refusal.
func (r *rig) admin(database string, statements ...string) {
	r.t.Helper()
	pool := r.OutboxPool()
	if database == r.InboxDB {
		pool = r.InboxPool()
	}
	for _, s := range statements {
		s = replaceDB(s, database)
		if _, err := pool.Exec(r.ctx, s); err != nil {
			r.t.Fatalf("%s: %v", s, err)
		}
	}
}

// A disk is full: the tables of the outbox or of the inbox are on a small file system, which then
// gets room again.
func TestFullDiskIsWaitedFor(t *testing.T) {
	t.Parallel()
	for _, p := range []fault.Point{fault.BeforeCommit, fault.BeforeMark, fault.BeforeClaimCommit} {
		cell(t, string(p), calm, system.Config{}, func(t *testing.T, r *rig) {
			db, space := r.database(p), r.Topic
			ok(t, r.Servers.Postgres.Tablespace(r.ctx, space, 4<<20))
			t.Cleanup(func() {
				_ = r.Servers.Postgres.Exec(context.WithoutCancel(r.ctx), `DROP TABLESPACE IF EXISTS `+space)
			})
			for _, table := range []string{"boxpair.outbox_events", "boxpair.outbox_receipts", "effects", "boxpair.inbox"} {
				r.admin(db, `ALTER TABLE `+table+` SET TABLESPACE `+space)
			}
			r.admin(db, `CREATE TABLE fill (text text) TABLESPACE `+space, `ALTER TABLE fill ALTER text SET STORAGE EXTERNAL`)
			v := r.at(p)
			r.fill(db)
			ok(t, v.Release())
			pause(time.Second)
			r.admin(db, `DROP TABLE fill`)
			r.Injected(1)
			r.finish()
			// Tables must be dropped with their database before the tablespace is dropped.
			for _, table := range []string{"boxpair.outbox_events", "boxpair.outbox_receipts", "effects", "boxpair.inbox"} {
				r.admin(db, `ALTER TABLE `+table+` SET TABLESPACE pg_default`)
			}
		})
	}
}

// fill writes until the disk is full, in ever smaller pieces.
func (r *rig) fill(database string) {
	r.t.Helper()
	pool := r.OutboxPool()
	if database == r.InboxDB {
		pool = r.InboxPool()
	}
	full := false
	for size := 1 << 20; size >= 1<<12; {
		if _, err := pool.Exec(r.ctx, `INSERT INTO fill VALUES (repeat('x', $1))`, size); err != nil {
			full = true
			size /= 2
		}
	}
	if !full {
		r.t.Fatal("the disk is not full")
	}
}

// Another session holds a needed lock for longer than the role may wait.
func TestTimeoutsOfStatementsAndLocksAreNoFailures(t *testing.T) {
	t.Parallel()
	for _, setting := range []string{"statement_timeout", "lock_timeout"} {
		for _, c := range []struct {
			point  fault.Point
			tables []string
		}{
			{fault.BeforeBegin, []string{"orders"}}, {fault.BeforeEvent, []string{"boxpair.outbox_events"}},
			{fault.BeforeMark, []string{"boxpair.outbox_queue"}},
			{fault.WindowAsked, []string{"boxpair.inbox"}}, {fault.BeforeHandler, []string{"effects"}},
		} {
			cell(t, setting+"/"+string(c.point), calm, system.Config{}, func(t *testing.T, r *rig) {
				db := r.database(c.point)
				r.admin(db, `ALTER ROLE `+victim(c.point).Login()+` IN DATABASE {db} SET `+setting+` = '150ms'`)
				v := r.at(c.point)
				tx := r.begin(db)
				for _, table := range c.tables {
					locked(r, tx, v, table)
				}
				ok(t, v.Release())
				pause(time.Second)
				ok(t, tx.Rollback(r.ctx))
				r.Injected(1)
				state := r.finish()
				if n := len(state.Dead) + len(state.Consumers[0].Aside); n > 0 {
					t.Errorf("%d events were given up for a timeout", n)
				}
			})
		}
	}
}

// locked locks a table exclusively. If the process that waits at its point holds a conflicting
// lock, the process is released.
func locked(r *rig, tx pgx.Tx, v *child.Process, table string) {
	r.t.Helper()
	got := make(chan error, 1)
	go func() {
		_, err := tx.Exec(r.ctx, `LOCK TABLE `+table+` IN ACCESS EXCLUSIVE MODE`)
		got <- err
	}()
	select {
	case err := <-got:
		ok(r.t, err)
	case <-time.After(500 * time.Millisecond):
		ok(r.t, v.Release())
		ok(r.t, <-got)
	}
}

func (r *rig) begin(database string) pgx.Tx {
	r.t.Helper()
	pool := r.OutboxPool()
	if database == r.InboxDB {
		pool = r.InboxPool()
	}
	tx, err := pool.Begin(r.ctx)
	ok(r.t, err)
	r.t.Cleanup(func() { _ = tx.Rollback(context.WithoutCancel(r.ctx)) })
	return tx
}

// A transaction that waits at its point and another transaction need rows of each other: the
// database ends the service's transaction.
func TestDeadlockIsRunAgain(t *testing.T) {
	t.Parallel()
	cell(t, "before-event", calm, system.Config{}, func(t *testing.T, r *rig) {
		v := r.at(fault.BeforeEvent) // its order is placed
		tx := r.begin(r.OutboxDB)
		_, err := tx.Exec(r.ctx, `LOCK TABLE boxpair.outbox_events IN EXCLUSIVE MODE`) // others may read
		ok(t, err)
		r.deadlock(tx, v, `LOCK TABLE orders IN ACCESS EXCLUSIVE MODE`)
		r.finish()
	})
	cell(t, "before-handler", calm, system.Config{}, func(t *testing.T, r *rig) {
		v := r.at(fault.BeforeHandler) // it has claimed
		tx := r.begin(r.InboxDB)
		_, err := tx.Exec(r.ctx, `LOCK TABLE effects IN ACCESS EXCLUSIVE MODE`)
		ok(t, err)
		r.deadlock(tx, v, `LOCK TABLE boxpair.inbox IN ACCESS EXCLUSIVE MODE`)
		state := r.finish()
		if n := len(state.Consumers[0].Aside); n > 0 {
			t.Errorf("%d messages were given up for a deadlock", n)
		}
	})
}

// deadlock closes a circle of locks with a patient transaction, and checks that this transaction
// gets its lock, since the other one was ended.
func (r *rig) deadlock(tx pgx.Tx, v *child.Process, wants string) {
	r.t.Helper()
	pid := tx.Conn().PgConn().PID()
	got := make(chan error, 1)
	go func() {
		_, err := tx.Exec(r.ctx, wants)
		got <- err
	}()
	r.eventually("a lock that the service holds", func() (bool, error) {
		n, err := system.Number(r.ctx, r.OutboxPool(), `SELECT count(*) FROM pg_locks WHERE pid = $1 AND NOT granted`, pid)
		return n > 0, err
	})
	ok(r.t, v.Release())
	ok(r.t, <-got)
	ok(r.t, tx.Rollback(r.ctx))
	r.eventually("a deadlock is counted", func() (bool, error) {
		n, err := system.Number(r.ctx, r.OutboxPool(), `SELECT deadlocks FROM pg_stat_database WHERE datname = $1`, tx.Conn().Config().Database)
		return n > 0, err
	})
	r.Injected(1)
}

// The row that a handler is about to change was changed after its transaction began.
func TestSerializationFailureIsRunAgain(t *testing.T) {
	t.Parallel()
	for name, level := range map[string]uint8{"repeatable read": 1, "serializable": 2} {
		cell(t, name+"/before-handler", calm, system.Config{}, func(t *testing.T, r *rig) {
			v := r.atNth(fault.BeforeHandler, "@20", func(c *child.Config) { c.Isolation = level })
			tag, err := r.InboxPool().Exec(r.ctx, `UPDATE totals SET count = count`)
			ok(t, err)
			if tag.RowsAffected() == 0 {
				t.Fatal("nothing has been summed up")
			}
			r.Injected(1)
			ok(t, v.Release())
			state := r.finish()
			if n := len(state.Consumers[0].Aside); n > 0 {
				t.Errorf("%d messages were given up for a conflict", n)
			}
		})
	}
}

// The database ends a handler's transaction that has been idle too long.
func TestIdleTransactionThatIsEndedIsRunAgain(t *testing.T) {
	t.Parallel()
	for _, p := range []fault.Point{fault.BeforeCommit, fault.BeforeClaimCommit} {
		cell(t, string(p), calm, system.Config{}, func(t *testing.T, r *rig) {
			if p == fault.BeforeCommit {
				r.admin(r.OutboxDB, `ALTER ROLE `+victim(p).Login()+` IN DATABASE {db} SET idle_in_transaction_session_timeout = '300ms'`)
			}
			v := r.at(p, func(c *child.Config) { c.Timeout = 500 * time.Millisecond })
			r.eventually("the end of the idle transaction", func() (bool, error) {
				n, err := system.Number(r.ctx, r.OutboxPool(), `SELECT count(*) FROM pg_stat_activity
					WHERE datname = $1 AND state LIKE 'idle in transaction%'`, r.database(p))
				return n == 0, err
			})
			r.Injected(1)
			ok(t, v.Release())
			r.finish()
		})
	}
}

func replaceDB(statement, database string) string {
	return strings.ReplaceAll(statement, "{db}", database)
}

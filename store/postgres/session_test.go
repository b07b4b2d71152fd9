package postgres_test

import (
	"context"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/migrations"
	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/store/postgres"
	"github.com/boxpair/boxpair/store/storetest"
)

// foreign are settings of sessions in which times, intervals, bytes and numbers are written
// otherwise, names are looked up elsewhere and comparisons with NULL are read otherwise.
func foreign() map[string]map[string]string {
	return map[string]map[string]string{
		"abroad": {
			"timezone": "Asia/Kolkata", "datestyle": "SQL, DMY", "intervalstyle": "sql_standard", "search_path": "elsewhere",
			"bytea_output": "escape", "extra_float_digits": "-15", "array_nulls": "off", "transform_null_equals": "on",
			"lc_monetary": "C", "lc_numeric": "C", "lc_time": "C",
		},
		"with summer time": { // of half an hour
			"timezone": "Australia/Lord_Howe", "datestyle": "German, MDY", "intervalstyle": "iso_8601",
			"search_path": "information_schema, pg_catalog", "bytea_output": "escape", "quote_all_identifiers": "on",
		},
		"in text": { // which DateStyle and bytea_output have to be readable for
			mode: "simple_protocol", "timezone": "Asia/Kolkata", "intervalstyle": "postgres_verbose", "search_path": "elsewhere",
			"extra_float_digits": "-15", "array_nulls": "off", "transform_null_equals": "on",
		},
	}
}

const mode = "default_query_exec_mode" // not the server's, but pgx's

// sessions makes those of a pool have settings.
func sessions(settings map[string]string) func(cfg *pgxpool.Config) {
	return func(cfg *pgxpool.Config) {
		cfg.MaxConns = 40
		maps.Copy(cfg.ConnConfig.RuntimeParams, settings)
		delete(cfg.ConnConfig.RuntimeParams, mode)
		if settings[mode] != "" {
			cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
		}
	}
}

// part is a part of the contract: groups of the outbox's, and of the inbox's.
type part struct{ outbox, inbox []string }

// run runs the part in sessions with settings.
func (p part) run(t *testing.T, settings map[string]string) {
	t.Helper()
	pool := newPool(t, sessions(settings))
	open := fixture(pool)
	storetest.Producer(t, func(t *testing.T) storetest.OutboxFixture[pgx.Tx] {
		f := open(t)
		f.Store = insistent{f.Store}
		f.Begin = func(ctx context.Context) (pgx.Tx, error) { // whatever the default of the session is
			return pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
		}
		return f
	}, p.outbox...)
	storetest.Consumer(t, inboxFixture(pool, ""), p.inbox...)
}

// insistent repeats what meets a conflict, as a relay does: where the default is not READ
// COMMITTED, single statements may.
type insistent struct{ outbox.Store[pgx.Tx] }

func (i insistent) Undefer(ctx context.Context, relay string, leases []outbox.Lease, limit int) (u outbox.Undeferred, err error) {
	for {
		if u, err = i.Store.Undefer(ctx, relay, leases, limit); !i.Retryable(err) || ctx.Err() != nil {
			return u, err
		}
	}
}

// Notify is what a producer does after its commits.
func (i insistent) Notify(ctx context.Context, from string) error {
	return i.Store.(*postgres.Store).Notify(ctx, from)
}

// CountRemovable is an operator's.
func (i insistent) CountRemovable(ctx context.Context, retention time.Duration, limit int) (outbox.RemovableCount, error) {
	return i.Store.(*postgres.Store).CountRemovable(ctx, retention, limit)
}

// TestContractHoldsInForeignSessions runs what has to do with times, texts and bytes, some in each.
func TestContractHoldsInForeignSessions(t *testing.T) {
	t.Parallel()
	parts := map[string]part{
		"abroad":           {[]string{"append", "deferred"}, []string{"park", "window"}},
		"with summer time": {[]string{"operator", "replay"}, []string{"operator"}},
		"in text":          {[]string{"janitor", "promotion"}, []string{"history"}},
	}
	for name, settings := range foreign() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			parts[name].run(t, settings)
		})
	}
}

// TestContractHoldsWhateverIsolationIsTheDefault is about what runs outside the transactions of
// callers, who ask for the level that they want.
func TestContractHoldsWhateverIsolationIsTheDefault(t *testing.T) {
	t.Parallel()
	for level, p := range map[string]part{
		"repeatable read": {[]string{"lease", "parked"}, []string{"take up"}},
		"serializable":    {[]string{"queue", "deferred"}, []string{"claim"}},
	} {
		t.Run(level, func(t *testing.T) {
			t.Parallel()
			p.run(t, map[string]string{"default_transaction_isolation": level})
		})
	}
}

// abroad are two stores on the same tables: one with settings of the server, one with foreign ones.
type abroad struct {
	*inboxRig
	stores map[string]*postgres.Store
	pools  map[string]*pgxpool.Pool
}

func newAbroad(t *testing.T, settings map[string]string) *abroad {
	t.Helper()
	url := testenv.Postgres(t)
	cfg := postgres.Config{Schema: testenv.Name(t)}
	names, err := migrations.PostgresNames(cfg.Schema, cfg.Prefix)
	if err != nil {
		t.Fatal(err)
	}
	a := &abroad{stores: map[string]*postgres.Store{}, pools: map[string]*pgxpool.Pool{}}
	for name, settings := range map[string]map[string]string{"home": nil, "abroad": settings} {
		a.pools[name] = poolOn(t, url, sessions(settings))
		a.stores[name] = newStore(t, a.pools[name], cfg)
	}
	a.inboxRig = &inboxRig{rig: &rig{T: t, Store: a.stores["home"], pool: a.pools["home"], names: names}}
	return a
}

// same reads a time in both kinds of sessions and checks that it is one instant: want, or about now
// and that long ahead.
func (a *abroad) same(what string, want time.Time, ahead time.Duration, read func(s *postgres.Store) time.Time) {
	a.Helper()
	home, elsewhere := read(a.stores["home"]), read(a.stores["abroad"])
	if !home.Equal(elsewhere) {
		a.Errorf("%s: %v at home, %v abroad", what, home, elsewhere)
	}
	switch off := time.Until(home) - ahead; {
	case want.IsZero() && (off < -time.Minute || off > time.Minute):
		a.Errorf("%s: %v, %v off", what, home, off)
	case !want.IsZero() && !home.Equal(want):
		a.Errorf("%s: %v, want %v", what, home, want)
	}
}

// One time is ambiguous where clocks are put back, and its day and month can be taken for one
// another. The other one is far from it.
var (
	someTime  = time.Date(2030, 4, 6, 15, 15, 0, 123456000, time.UTC).In(time.FixedZone("", -9*3600-1800))
	otherTime = time.Date(2031, 2, 3, 23, 59, 59, 999999000, time.UTC)
)

func TestTimesAreTheSameInstantsInEverySession(t *testing.T) {
	t.Parallel()
	for name, settings := range foreign() {
		for _, writer := range []string{"home", "abroad"} {
			t.Run(name+", written "+writer, func(t *testing.T) {
				t.Parallel()
				a := newAbroad(t, settings)
				leases := a.acquire("relay", time.Minute)
				a.eventsKeepTheirTimes(writer, leases)
				a.deferredEventsKeepTheirTimes(writer, slices.Collect(maps.Values(leases)))
				a.messagesKeepTheirTimes(writer)
			})
		}
	}
}

func (a *abroad) eventsKeepTheirTimes(writer string, leases map[int]outbox.Lease) {
	s := a.stores[writer]
	inGo := event("go", "1")
	inGo.OccurredAt, inGo.ResendFor = someTime, 36*time.Hour
	a.ok(s.Transact(a.ctx(), func(ctx context.Context, tx pgx.Tx) error {
		_, err := s.Append(ctx, tx, uuid.New(), []outbox.Record{inGo})
		return err
	}))
	inSQL, _, err := a.writeSQL(a.pools[writer], `producer => 'p', topic => 't', source => 's', version => 1, payload => '\x00ff',
		key => 'sql', resend_for => '1 day 12:00', occurred_at => `+literal(someTime.Format(time.RFC3339Nano)))
	a.ok(err)
	for what, id := range map[string]uuid.UUID{"in Go": inGo.ID, "in SQL": inSQL} {
		read := func(column func(q outbox.Queued) time.Time) func(s *postgres.Store) time.Time {
			return func(s *postgres.Store) time.Time {
				reader := *a.rig
				reader.Store = s
				for _, q := range reader.queue() {
					if q.ID == id {
						return column(q)
					}
				}
				a.Fatalf("the event written %s is not queued", what)
				return time.Time{}
			}
		}
		a.same("occurred, written "+what, someTime, 0, read(func(q outbox.Queued) time.Time { return q.OccurredAt }))
		a.same("stamp, written "+what, time.Time{}, 0, read(func(q outbox.Queued) time.Time { return q.Stamp }))
		a.same("resent until, written "+what, time.Time{}, 36*time.Hour, read(func(q outbox.Queued) time.Time { return q.ResendUntil }))
	}

	for i, q := range a.queue() {
		if i == 0 {
			_, err = s.Mark(a.ctx(), "relay", []outbox.Mark{markOf(leases[q.Shard], q)})
			a.ok(err)
			a.same("receipt", time.Time{}, 0, func(s *postgres.Store) time.Time {
				deliveries, err := s.Deliveries(a.ctx(), q.ID)
				a.ok(err)
				return deliveries[0].At
			})
			continue
		}
		_, err = s.Park(a.ctx(), "relay", leases[q.Shard], []outbox.Failure{{Seq: q.Seq, Round: q.Round, Attempts: 1, RetryIn: time.Hour}})
		a.ok(err)
		a.same("attempt", time.Time{}, 0, func(s *postgres.Store) time.Time {
			attempts, err := s.Attempts(a.ctx(), q.ID, 1)
			a.ok(err)
			return attempts[0].At
		})
		a.same("next attempt", time.Time{}, time.Hour, func(s *postgres.Store) time.Time {
			parked, err := s.ListParked(a.ctx(), outbox.Filter{})
			a.ok(err)
			return parked[0].NextAttemptAt
		})
	}
}

func (a *abroad) deferredEventsKeepTheirTimes(writer string, leases []outbox.Lease) {
	s := a.stores[writer]
	later := event("later", "1")
	later.DeliverAt = someTime
	due := func(s *postgres.Store) time.Time {
		list, err := s.ListDeferred(a.ctx(), outbox.DeferredFilter{Key: "later"})
		if err != nil || len(list) != 1 {
			a.Fatalf("deferred are %v, %v", list, err)
		}
		return list[0].DueAt
	}
	a.ok(s.Transact(a.ctx(), func(ctx context.Context, tx pgx.Tx) error {
		_, err := s.Append(ctx, tx, uuid.New(), []outbox.Record{later})
		return err
	}))
	a.same("due", someTime, 0, due)
	a.ok(s.Transact(a.ctx(), func(ctx context.Context, tx pgx.Tx) error {
		_, err := s.Reschedule(ctx, tx, []uuid.UUID{later.ID}, otherTime)
		return err
	}))
	a.same("due elsewhen", otherTime, 0, due)
	for where, s := range a.stores {
		for want, f := range []outbox.DeferredFilter{
			{From: otherTime.Add(time.Microsecond)}, {From: otherTime, To: otherTime.Add(time.Microsecond)},
		} {
			if list, err := s.ListDeferred(a.ctx(), f); err != nil || len(list) != want {
				a.Errorf("%s: from %v are %v, %v, want %d", where, f.From, list, err, want)
			}
		}
		u, err := s.Undefer(a.ctx(), "relay", leases, 10)
		if off := time.Until(otherTime) - u.Next; err != nil || len(u.Moved)+len(u.Lost) > 0 || off < -time.Minute || off > time.Minute {
			a.Errorf("%s: moved %v, %v", where, u, err)
		}
	}
}

func (a *abroad) messagesKeepTheirTimes(writer string) {
	s := a.stores[writer]
	registered, err := s.Register(a.ctx(), "service/handler", 24*time.Hour)
	a.ok(err)
	id := registered.Consumer
	a.ok(s.NoteHorizon(a.ctx(), id, 25*time.Hour+time.Microsecond, otherTime))
	a.same("horizon", otherTime, 0, func(s *postgres.Store) time.Time {
		r, err := s.Register(a.ctx(), "service/handler", 24*time.Hour)
		if err != nil || r.Horizon != 25*time.Hour+time.Microsecond {
			a.Errorf("horizon is %v, %v", r.Horizon, err)
		}
		return r.HorizonUntil
	})

	m := &inbox.Message{ID: uuid.New(), Topic: "topic", Key: "key", Stamp: someTime, Metadata: map[string]string{"a": "b"}, Payload: []byte{0, 255}}
	_, err = s.ParkMessage(a.ctx(), inbox.Parking{Consumer: id, Message: m, State: inbox.Retrying, Attempts: 1, RetryIn: time.Hour})
	a.ok(err)
	list := func(s *postgres.Store, f inbox.Filter) []inbox.Parked {
		parked, err := s.ListParkedMessages(a.ctx(), f)
		a.ok(err)
		return parked
	}
	var parkedAt time.Time
	a.same("stamp of a message", someTime, 0, func(s *postgres.Store) time.Time { return list(s, inbox.Filter{})[0].Stamp })
	a.same("next attempt of a message", time.Time{}, time.Hour, func(s *postgres.Store) time.Time { return list(s, inbox.Filter{})[0].NextAttemptAt })
	a.same("parked at", time.Time{}, 0, func(s *postgres.Store) time.Time {
		parkedAt = list(s, inbox.Filter{})[0].ParkedAt
		return parkedAt
	})
	for where, s := range a.stores {
		if n := len(list(s, inbox.Filter{Since: parkedAt})); n != 1 {
			a.Errorf("%s: %d were parked since then", where, n)
		}
		if n := len(list(s, inbox.Filter{Until: parkedAt})); n != 0 {
			a.Errorf("%s: %d were parked before", where, n)
		}
	}

	claim := inbox.Claim{Consumer: id, ID: uuid.New(), Stamp: someTime, IdleTimeout: patience, LockTimeout: patience}
	_, err = s.Failed(a.ctx(), id, claim.ID, "failed")
	a.ok(err)
	a.same("attempt at a message", time.Time{}, 0, func(s *postgres.Store) time.Time {
		attempts, err := s.MessageAttempts(a.ctx(), "", claim.ID, 1)
		a.ok(err)
		return attempts[0].At
	})
	verdict, err := s.Apply(a.ctx(), claim, func(context.Context, pgx.Tx) error { return nil })
	if err != nil || verdict != inbox.Applied {
		a.Errorf("verdict %v, %v", verdict, err)
	}
	stamps := "SELECT max(stamp) FROM " + a.names.Table("inbox") + " WHERE dispatch_id = $1"
	if at := value[time.Time](a.rig, stamps, claim.ID.String()); !at.Equal(someTime) {
		a.Errorf("stamp of a claim: %v", at)
	}

	a.shift(30)
	_, err = s.AdvanceForgotten(a.ctx(), id, 24*time.Hour, 60*day)
	a.ok(err)
	a.same("forgotten until", time.Time{}, -24*time.Hour, func(s *postgres.Store) time.Time {
		r, err := s.Register(a.ctx(), "service/handler", 24*time.Hour)
		a.ok(err)
		return r.ForgottenUntil
	})
}

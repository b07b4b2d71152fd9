package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/migrations"
	"github.com/boxpair/boxpair/store/control"
	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/store/postgres"
	"github.com/boxpair/boxpair/store/storetest"
)

// parts are roles of a test's own, one for each part, each with a pool, and tables on which they
// have their privileges.
type parts struct {
	owner                               *pgxpool.Pool
	tables                              *shelf
	granted                             sync.Map // schemas
	roles                               migrations.Roles
	producer, relay, consumer, requests *pgxpool.Pool
	janitor, archiver                   *pgxpool.Pool
	operator, monitor                   *pgxpool.Pool
}

// newParts makes roles that have no privileges yet.
func newParts(t *testing.T, owner *pgxpool.Pool) *parts {
	t.Helper()
	p := &parts{owner: owner, tables: &shelf{pool: owner, prefix: "p_"}}
	for _, part := range []struct {
		name  *string
		pool  **pgxpool.Pool
		conns int32
	}{
		{&p.roles.Producer, &p.producer, 10}, {&p.roles.Relay, &p.relay, 10}, {&p.roles.Consumer, &p.consumer, 20},
		{&p.roles.Requests, &p.requests, 20}, {&p.roles.Janitor, &p.janitor, 4}, {&p.roles.Archiver, &p.archiver, 4},
		{&p.roles.Operator, &p.operator, 4}, {&p.roles.Monitor, &p.monitor, 2},
	} {
		*part.name = `R"o'le ` + testenv.Name(t)
		*part.pool = asRole(t, owner, *part.name, part.conns)
	}
	return p
}

// grant gives the roles what they need on the tables that cfg names, unless they have it.
func (p *parts) grant(t *testing.T, cfg postgres.Config) {
	t.Helper()
	if _, has := p.granted.LoadOrStore(cfg.Schema, true); has {
		return
	}
	names, err := migrations.PostgresNames(cfg.Schema, cfg.Prefix)
	if err != nil {
		t.Fatal(err)
	}
	grants, err := migrations.PostgresGrants(names, p.roles)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // again, as after a migration
		if _, err := p.owner.Exec(t.Context(), grants); err != nil {
			t.Fatal(err)
		}
	}
}

// migrated makes the tables that cfg names, as their owner.
func (p *parts) migrated(t *testing.T, cfg postgres.Config) {
	t.Helper()
	if _, err := postgres.Migrate(t.Context(), p.owner, cfg); err != nil {
		t.Fatal(err)
	}
	p.grant(t, cfg)
}

func storeOf(t *testing.T, pool *pgxpool.Pool, cfg postgres.Config) *postgres.Store {
	t.Helper()
	store, err := postgres.New(pool, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return store
}

// outboxParts is an outbox of which each part works under its own role.
type outboxParts struct {
	outbox.EventStore[pgx.Tx]
	outbox.RelayStore
	outbox.OperatorStore
	outbox.Searcher
	outbox.JanitorStore
	producerRole, archiver, operator, monitor *postgres.Store
	outbox.RemovableCounter                   // a janitor's
}

// The lists and their removal are an archiver's.

func (o *outboxParts) ListDelivered(ctx context.Context, retention time.Duration, after time.Time, limit int) (outbox.Removable, error) {
	return o.archiver.ListDelivered(ctx, retention, after, limit)
}

func (o *outboxParts) ListDiscarded(ctx context.Context, retention time.Duration, limit int) (outbox.Removable, error) {
	return o.archiver.ListDiscarded(ctx, retention, limit)
}

func (o *outboxParts) RemoveListed(ctx context.Context, retention time.Duration, list outbox.Removable) (outbox.Removed, error) {
	return o.archiver.RemoveListed(ctx, retention, list)
}

// Notify is what a producer does after its commits.
func (o *outboxParts) Notify(ctx context.Context, from string) error {
	return o.producerRole.Notify(ctx, from)
}

// SetPause is an operator's.
func (o *outboxParts) SetPause(ctx context.Context, p control.Pause) error {
	return o.operator.SetPause(ctx, p)
}

// EndPause is an operator's.
func (o *outboxParts) EndPause(ctx context.Context, kind control.Kind, name string) (bool, error) {
	return o.operator.EndPause(ctx, kind, name)
}

func (o *outboxParts) Stats(ctx context.Context) (outbox.Stats, error) { return o.monitor.Stats(ctx) }

func (o *outboxParts) CountTopics(ctx context.Context, limit int) (outbox.TopicCounts, error) {
	return o.monitor.CountTopics(ctx, limit)
}

// inboxParts is an inbox of which each part works under its own role.
type inboxParts struct {
	*postgres.Store
	operator, monitor *postgres.Store
}

func (i *inboxParts) ListParkedMessages(ctx context.Context, f inbox.Filter) ([]inbox.Parked, error) {
	return i.operator.ListParkedMessages(ctx, f)
}

func (i *inboxParts) RedriveMessages(ctx context.Context, f inbox.Filter, reason string) ([]uuid.UUID, error) {
	return i.operator.RedriveMessages(ctx, f, reason)
}

func (i *inboxParts) DiscardMessages(ctx context.Context, f inbox.Filter, reason string) ([]uuid.UUID, error) {
	return i.operator.DiscardMessages(ctx, f, reason)
}

func (i *inboxParts) ListEffects(ctx context.Context, f inbox.EffectFilter) ([]inbox.Effect, error) {
	return i.operator.ListEffects(ctx, f)
}

func (i *inboxParts) ChangeEffects(ctx context.Context, f inbox.EffectFilter, c inbox.EffectChange) ([]uuid.UUID, error) {
	return i.operator.ChangeEffects(ctx, f, c)
}

func (i *inboxParts) SetPause(ctx context.Context, p control.Pause) error {
	return i.operator.SetPause(ctx, p)
}

func (i *inboxParts) EndPause(ctx context.Context, kind control.Kind, name string) (bool, error) {
	return i.operator.EndPause(ctx, kind, name)
}

func (i *inboxParts) SearchMessages(ctx context.Context, q inbox.Query) (inbox.Results, error) {
	return i.operator.SearchMessages(ctx, q)
}

func (i *inboxParts) MessageCauses(ctx context.Context, f inbox.Filter) ([]inbox.Cause, error) {
	return i.operator.MessageCauses(ctx, f)
}

func (i *inboxParts) ListHandlers(ctx context.Context) ([]inbox.RunningHandler, error) {
	return i.operator.ListHandlers(ctx)
}

func (i *inboxParts) EffectStats(ctx context.Context, id int) (inbox.EffectStats, error) {
	return i.monitor.EffectStats(ctx, id)
}

func (i *inboxParts) InboxStats(ctx context.Context, id int) (inbox.Stats, error) {
	return i.monitor.InboxStats(ctx, id)
}

// TestEveryPartKeepsItsContractUnderItsRole runs the contract with the privileges that are
// shipped: it fails when a statement needs one that its role lacks.
func TestEveryPartKeepsItsContractUnderItsRole(t *testing.T) {
	t.Parallel()
	p := newParts(t, newPool(t, nil))
	t.Run("outbox", func(t *testing.T) {
		storetest.Producer(t, func(t *testing.T) storetest.OutboxFixture[pgx.Tx] {
			cfg := p.tables.config(t)
			p.migrated(t, cfg)
			writer, operator := storeOf(t, p.producer, cfg), storeOf(t, p.operator, cfg)
			return storetest.OutboxFixture[pgx.Tx]{
				Store: &outboxParts{
					EventStore: writer, RelayStore: storeOf(t, p.relay, cfg), OperatorStore: operator, Searcher: operator,
					JanitorStore: storeOf(t, p.janitor, cfg), RemovableCounter: storeOf(t, p.janitor, cfg), archiver: storeOf(t, p.archiver, cfg), producerRole: writer, operator: operator, monitor: storeOf(t, p.monitor, cfg),
				},
				Begin:    p.producer.Begin,
				Commit:   func(ctx context.Context, tx pgx.Tx) error { return tx.Commit(ctx) },
				Rollback: func(ctx context.Context, tx pgx.Tx) error { return tx.Rollback(ctx) },
				User:     p.roles.Operator,
			}
		})
	})
	t.Run("inbox", func(t *testing.T) { storetest.Consumer(t, p.inbox) })
	t.Run("effects", func(t *testing.T) { storetest.Effects(t, p.inbox) })
}

// inbox is an inbox whose parts have roles of their own.
func (p *parts) inbox(t *testing.T) storetest.InboxFixture[pgx.Tx] {
	t.Helper()
	cfg := p.tables.config(t)
	f := inboxFixtureOf(t, p.owner, cfg)
	p.grant(t, cfg)
	_, err := p.owner.Exec(t.Context(), "GRANT INSERT ON "+pgx.Identifier{cfg.Schema, "effects"}.Sanitize()+
		" TO "+migrations.Quote(p.roles.Consumer))
	if err != nil {
		t.Fatal(err)
	}
	f.Store = &inboxParts{storeOf(t, p.consumer, cfg), storeOf(t, p.operator, cfg), storeOf(t, p.monitor, cfg)}
	f.User = p.roles.Operator
	return f
}

func TestRequestsKeepTheirContractUnderTheirRole(t *testing.T) {
	t.Parallel()
	p := newParts(t, newPool(t, nil))
	storetest.Requests(t, func(t *testing.T) storetest.RequestFixture[pgx.Tx] {
		cfg := p.tables.config(t)
		p.migrated(t, cfg)
		return storetest.RequestFixture[pgx.Tx]{
			Store: storeOf(t, p.requests, cfg), Begin: p.requests.Begin,
			Commit:   func(ctx context.Context, tx pgx.Tx) error { return tx.Commit(ctx) },
			Rollback: func(ctx context.Context, tx pgx.Tx) error { return tx.Rollback(ctx) },
		}
	})
}

// denied are statements that a role must not run. Each would do something if it could: the
// tables are not empty.
var denied = map[string][]string{
	"producer": {
		`SELECT payload FROM outbox_events`, `SELECT key FROM outbox_events`, `SELECT headers FROM outbox_events`,
		`DELETE FROM outbox_events`, `UPDATE outbox_events SET digest = digest`, `UPDATE outbox_events SET payload = ''`,
		`INSERT INTO outbox_events (created_at) VALUES (now())`, `SELECT FROM outbox_queue`, `DELETE FROM outbox_queue`,
		`INSERT INTO outbox_queue (shard, id, round) VALUES (1, 1, 1)`, `SELECT FROM outbox_parked`, `SELECT FROM outbox_shards`,
		`UPDATE outbox_shards SET owner = 'x'`, `SELECT FROM inbox`, `INSERT INTO inbox_parked DEFAULT VALUES`,
		`SELECT FROM outbox_status`, `TRUNCATE outbox_queue`, `CREATE TABLE x ()`, `SELECT nextval('outbox_tickets')`,
		`SELECT FROM pauses`, `SELECT FROM rates`,
		`UPDATE outbox_deferred SET shard = 1`, `UPDATE outbox_parked SET state = 'discarded'`, `SELECT FROM outbox_attempts`,
		`INSERT INTO outbox_parked (id, shard, key, state, attempts) VALUES (1, 1, '', 'dead', 1)`,
	},
	"relay": {
		`INSERT INTO outbox_events (topic) VALUES ('forged')`, `UPDATE outbox_events SET payload = ''`, `UPDATE outbox_events SET altered = altered`,
		`DELETE FROM outbox_events`, `INSERT INTO outbox_queue (shard, id, round) VALUES (1, 1, 1)`, `UPDATE outbox_events SET due_at = now()`,
		`INSERT INTO outbox_deferred (id, shard, due_at, key) VALUES (1, 1, now(), '')`, `UPDATE outbox_queue SET round = 1`,
		`UPDATE outbox_parked SET key = ''`, `SELECT FROM outbox_attempts`, `DELETE FROM outbox_attempts`, `DELETE FROM outbox_receipts`,
		`INSERT INTO outbox_shards (shard) VALUES (64)`, `DELETE FROM outbox_shards`, `SELECT FROM inbox`, `SELECT FROM inbox_parked`,
		`TRUNCATE outbox_queue`, `CREATE TABLE x ()`, `DELETE FROM pauses`, `UPDATE pauses SET paused_until = now()`,
		`INSERT INTO pauses VALUES ('topic', 'x', now(), NULL, 'x', 'x')`, `DELETE FROM rates`,
	},
	"consumer": {
		`SELECT FROM outbox_events`, `SELECT FROM outbox_queue`, `SELECT FROM outbox_parked`, `SELECT FROM outbox_status`,
		`INSERT INTO outbox_events (topic) VALUES ('forged')`, `DELETE FROM outbox_queue`, `UPDATE outbox_shards SET owner = 'x'`,
		`UPDATE inbox SET digest = NULL`, `UPDATE inbox SET stamp = now()`, `UPDATE inbox_parked SET payload = ''`,
		`UPDATE inbox_parked SET metadata = '{}'`, `UPDATE inbox_parked SET forced = true`, `UPDATE inbox_parked SET reason = 'x'`,
		`UPDATE inbox_consumers SET name = 'other'`, `DELETE FROM inbox_consumers`, `TRUNCATE inbox`, `CREATE TABLE x ()`,
		`UPDATE inbox_history SET error = ''`, `UPDATE inbox_effects SET intent = ''`, `UPDATE inbox_effects SET effect_key = dispatch_id`,
		`DELETE FROM pauses`, `UPDATE pauses SET paused_until = now()`, `INSERT INTO pauses VALUES ('topic', 'x', now(), NULL, 'x', 'x')`, `DELETE FROM rates`,
	},
	"requests": {
		`UPDATE inbox_requests SET fingerprint = ''`, `UPDATE inbox_requests SET key = 'x'`, `SELECT FROM outbox_events`,
		`DELETE FROM outbox_queue`, `SELECT FROM inbox`, `TRUNCATE inbox_requests`, `CREATE TABLE x ()`,
	},
	"janitor": {
		`SELECT payload FROM outbox_events`, `SELECT key FROM outbox_events`, `UPDATE outbox_events SET payload = ''`,
		`INSERT INTO outbox_events (topic) VALUES ('forged')`, `DELETE FROM outbox_queue`, `UPDATE outbox_queue SET round = 1`,
		`SELECT last_error FROM outbox_parked`, `UPDATE outbox_parked SET state = 'discarded'`, `SELECT error FROM outbox_attempts`,
		`UPDATE outbox_shards SET owner = 'x'`, `SELECT FROM inbox`, `DELETE FROM inbox`, `DELETE FROM inbox_parked`,
		`TRUNCATE outbox_events`, `CREATE TABLE x ()`,
	},
	"archiver": {
		`UPDATE outbox_events SET payload = ''`, `INSERT INTO outbox_events (topic) VALUES ('forged')`, `DELETE FROM outbox_queue`,
		`UPDATE outbox_parked SET state = 'discarded'`, `SELECT key FROM outbox_parked`, `SELECT error FROM outbox_attempts`,
		`SELECT FROM inbox`, `DELETE FROM inbox_parked`, `TRUNCATE outbox_events`, `CREATE TABLE x ()`,
	},
	"operator": {
		`INSERT INTO outbox_events (topic) VALUES ('forged')`, `UPDATE outbox_events SET payload = ''`, `DELETE FROM outbox_events`,
		`DELETE FROM outbox_queue`, `DELETE FROM outbox_parked`, `UPDATE outbox_shards SET owner = 'x'`, `DELETE FROM inbox`,
		`UPDATE inbox SET digest = NULL`, `UPDATE inbox_parked SET payload = ''`, `DELETE FROM inbox_parked`, `DELETE FROM outbox_attempts`,
		`DELETE FROM inbox_history`, `DELETE FROM inbox_effects`, `UPDATE inbox_effects SET intent = ''`, `CREATE TABLE x ()`, `UPDATE rates SET tokens = 0`,
	},
	"monitor": {
		`SELECT payload FROM outbox_events`, `SELECT headers FROM outbox_events`, `SELECT payload FROM inbox_parked`,
		`SELECT metadata FROM inbox_parked`, `SELECT body FROM inbox_requests`, `DELETE FROM outbox_queue`, `UPDATE outbox_parked SET state = 'dead'`,
		`UPDATE outbox_shards SET owner = 'x'`, `DELETE FROM inbox`, `INSERT INTO outbox_relays VALUES ('x', now())`,
		`UPDATE inbox_consumers SET forgotten_until = now()`, `CREATE TABLE x ()`, `SELECT nextval('outbox_tickets')`,
		`SELECT intent FROM inbox_effects`, `SELECT result FROM inbox_effects`, `DELETE FROM inbox_history`,
		`DELETE FROM pauses`, `UPDATE rates SET tokens = 0`,
	},
}

func TestRolesAreDeniedWhatIsNotTheirs(t *testing.T) {
	t.Parallel()
	owner := newPool(t, nil)
	p := newParts(t, owner)
	schema := testenv.Name(t)
	p.migrated(t, postgres.Config{Schema: schema})
	pools := map[string]*pgxpool.Pool{
		"producer": p.producer, "relay": p.relay, "consumer": p.consumer,
		"requests": p.requests, "janitor": p.janitor, "archiver": p.archiver, "operator": p.operator, "monitor": p.monitor,
	}
	for part, statements := range denied {
		for _, statement := range statements {
			err := pgx.BeginFunc(t.Context(), pools[part], func(tx pgx.Tx) error {
				if _, err := tx.Exec(t.Context(), "SET LOCAL search_path = "+schema); err != nil {
					return err
				}
				_, err := tx.Exec(t.Context(), statement)
				return err
			})
			var pgErr *pgconn.PgError
			if !errors.As(err, &pgErr) || pgErr.Code != "42501" {
				t.Errorf("%s: %s: %v", part, statement, err)
			}
		}
	}
}

// TestProducerCannotMarkAnEventAsAltered: the one column that a producer may update takes no
// other value than it has.
func TestProducerCannotMarkAnEventAsAltered(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.write(event("key", "payload"))
	for _, value := range []string{"true", "NULL"} {
		_, err := r.pool.Exec(t.Context(), "UPDATE "+r.names.Table("outbox_events")+" SET altered = "+value)
		if err == nil {
			t.Errorf("altered is %s", value)
		}
	}
}

func TestGrantsAreForTheRolesThatAreNamed(t *testing.T) {
	t.Parallel()
	names, err := migrations.PostgresNames("", "")
	if err != nil {
		t.Fatal(err)
	}
	grants, err := migrations.PostgresGrants(names, migrations.Roles{Relay: `re"lay`})
	if err != nil || !strings.Contains(grants, `TO "re""lay";`) || strings.Contains(grants, `boxpair_producer`) {
		t.Errorf("%s, %v", grants, err)
	}
	_, err = migrations.PostgresGrants(names, migrations.Roles{Producer: "public", Monitor: "a\x00", Consumer: strings.Repeat("x", 64)})
	for _, want := range []string{"producer: ", "monitor: ", "consumer: "} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not name %s", err, want)
		}
	}
}

// TestFileOfGrantsWorksAsItIs: with roles of the names in it, it needs no rewriting. The names
// belong to the server, so the statements are rolled back.
func TestFileOfGrantsWorksAsItIs(t *testing.T) {
	t.Parallel()
	pool := newPool(t, nil)
	newStore(t, pool, postgres.Config{})
	names, err := migrations.PostgresNames("", "")
	if err != nil {
		t.Fatal(err)
	}
	roles := migrations.Roles{
		Producer: "boxpair_producer", Relay: "boxpair_relay", Consumer: "boxpair_consumer",
		Requests: "boxpair_requests", Janitor: "boxpair_janitor", Operator: "boxpair_operator", Monitor: "boxpair_monitor",
	}
	grants, err := migrations.PostgresGrants(names, roles)
	if err != nil {
		t.Fatal(err)
	}
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.WithoutCancel(t.Context()))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, role := range []string{roles.Producer, roles.Relay, roles.Consumer, roles.Requests, roles.Janitor, roles.Operator, roles.Monitor} {
		if _, err := tx.Exec(ctx, fmt.Sprintf("CREATE ROLE %q", role)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := tx.Exec(ctx, grants); err != nil {
		t.Error(err)
	}
}

func TestGrantsSayWhichRoleIsMissing(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	names, err := migrations.PostgresNames("", "")
	if err != nil {
		t.Fatal(err)
	}
	grants, err := migrations.PostgresGrants(names, migrations.Roles{Relay: `no such "role`})
	if err != nil {
		t.Fatal(err)
	}
	_, err = pool.Exec(t.Context(), grants)
	if err == nil || !strings.Contains(err.Error(), `role "no such "role" does not exist: CREATE ROLE it first, as an administrator`) {
		t.Errorf("error is %v", err)
	}
}

// TestCreatedRolesAreGroupsWithTheirGrants creates roles twice, and gives them their grants.
func TestCreatedRolesAreGroupsWithTheirGrants(t *testing.T) {
	t.Parallel()
	owner := newPool(t, nil)
	group := `g"o'up ` + testenv.Name(t)
	roles := migrations.Roles{Relay: group, Janitor: group}
	create, err := migrations.PostgresRoles(roles)
	if err != nil || strings.Count(create, "CREATE ROLE") != 1 {
		t.Fatalf("statements are %s, %v", create, err)
	}
	t.Cleanup(func() {
		quoted := migrations.Quote(group)
		_, err := owner.Exec(context.WithoutCancel(t.Context()), "DROP OWNED BY "+quoted+"; DROP ROLE "+quoted)
		if err != nil {
			t.Error(err)
		}
	})
	for range 2 {
		if _, err := owner.Exec(t.Context(), create); err != nil {
			t.Fatal(err)
		}
	}
	var powers bool
	err = owner.QueryRow(t.Context(), `SELECT rolcanlogin OR rolsuper OR rolcreatedb OR rolcreaterole OR rolreplication OR rolbypassrls
		FROM pg_roles WHERE rolname = $1`, group).Scan(&powers)
	if err != nil || powers {
		t.Errorf("the role has powers: %v, %v", powers, err)
	}
	cfg := postgres.Config{Schema: testenv.Name(t)}
	(&parts{owner: owner, roles: roles}).migrated(t, cfg)
	for statement, allowed := range map[string]bool{
		`SELECT payload FROM outbox_events`: true, `DELETE FROM outbox_receipts`: true, `SELECT FROM inbox`: false, `UPDATE outbox_events SET payload = ''`: false,
	} {
		err := pgx.BeginFunc(t.Context(), owner, func(tx pgx.Tx) error {
			if _, err := tx.Exec(t.Context(), "SET LOCAL search_path = "+cfg.Schema+"; SET LOCAL ROLE "+migrations.Quote(group)); err != nil {
				return err
			}
			_, err := tx.Exec(t.Context(), statement)
			return err
		})
		if (err == nil) != allowed {
			t.Errorf("%s: %v", statement, err)
		}
	}
	if _, err := migrations.PostgresRoles(migrations.Roles{Operator: "pg_x", Producer: "a$boxpair$"}); err == nil ||
		!strings.Contains(err.Error(), "operator") || !strings.Contains(err.Error(), "producer") {
		t.Errorf("error is %v", err)
	}
}
